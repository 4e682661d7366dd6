"""Products of equal cells with one right operand become one: B @ A and C @ A are rows of [B; C] @ A (BladeDISC, section 4.3).

B and C are rows of equal cells, such as those of an unrolled loop or recursion, and A their weights, constant or not. It pays
where the weights are read more than once otherwise: for `FEWEST_CELLS` products at least, of at most `MOST_ROWS` rows, which are
independent of each other, and whose results only elementwise operators read, whose kernels take slices along. Whole programs of 8
products of 1 x 128 x 512 then take 0.67 of the time, of 16 of 1 x 300 x 600 0.60, of 4 of 4 x 256 x 256 0.85, of 8 of
4 x 128 x 128 0.99 (two cores, float32, the copies included).

Products of one left operand, A @ B and A @ C, stay apart: as C for packed weights computes them, one product of joined weights
takes 0.9 to 1.1 of their time. Where joining gains something, as in the gated MLP, the search finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.products import MOST_JOINED, Block, Names, Product, join_in_blocks, join_products
from mirage.compiler.passes.rewrite import operator_call
from mirage.ir.dims import Dim
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Binding, Function, Module, Var

#: products of equal cells, at least, and rows of each, at most
FEWEST_CELLS, MOST_ROWS = 4, 4


def run(module: Module, context: Context) -> Module:
    """The module with products of equal cells merged; the parameters `context.constants` of the main function are constants."""
    return join_products(module, context, merge)


def merge(
    function: Function, weights: Collection[Var], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with products of equal cells merged; `weights` are its parameters that never change."""

    def in_block(block: Block, names: Names) -> bool:
        changed = False
        for shared in _shared_weights(block, store):
            # by what an earlier group has become
            cells = [p for p in block.products() if p.right is shared and _is_cell(p, store)]
            for level in block.levels(cells):
                for k in range(0, len(level), MOST_JOINED):
                    group = level[k : k + MOST_JOINED]
                    changed |= len(group) >= FEWEST_CELLS and _merge_cells(block, group, names)
        return changed

    return join_in_blocks(function, weights, functions, in_block)


def _shared_weights(block: Block, store: Constraints) -> list[Atom]:
    """The right operands of as many products of few rows as may be joined."""
    counts = Counter(p.right for p in block.products() if _is_cell(p, store))
    return [right for right, count in counts.items() if count >= FEWEST_CELLS]


def _is_cell(p: Product, store: Constraints) -> bool:
    if p.constant[0] or p.left_type.rank != 2 or p.right_type.rank != 2 or p.left is p.right:
        return False
    rows = store.upper_bound(p.left_type.shape[0])
    return rows is not None and rows <= MOST_ROWS


def _merge_cells(block: Block, group: list[Product], names: Names) -> bool:
    rows = names.bind("rows", operator_call("concat", *(p.left for p in group), axis=0))
    product = names.bind("merged", operator_call("matmul", rows.var, group[0].right))
    start: Dim = sympy.Integer(0)
    changed: dict[Var, Binding] = {}
    for p in group:
        stop = sympy.expand(start + p.type.shape[0])
        part = operator_call("slice", product.var, axes=(0,), starts=(start,), stops=(stop,))
        if deduce(part, {}) != p.type:
            return False
        changed[p.binding.var] = Binding(p.binding.var, part, p.binding.where)
        start = stop
    block.replace([rows, product], changed)
    return True
