"""What a program's own packages compute best is given to them before the search, as library calls.

These are products with constant weights: with many rows, a library that has packed the weights computes as much as the
processor can, which leaves a search nothing to gain. What stands between them is searched, and fused. All programs are given
the functions of their target, for a processor convolutions.
"""

from __future__ import annotations

from mirage.compiler.context import Context
from mirage.compiler.passes.lower_libraries import lowered
from mirage.compiler.patterns import rules
from mirage.ir.graph.nodes import Module


def run(module: Module, context: Context) -> Module:
    return lowered(module, context, rules((*context.packages, context.kernels.target)))
