"""What the tests of partial evaluation share."""

from __future__ import annotations

import numpy as np

import mirage as mi
from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.specialize import specialize_module
from mirage.ir.graph import nodes
from mirage.ir.graph.check import check

VECTOR, FLAG = mi.tensor("n"), mi.tensor(dtype="bool")
ONES = np.ones(3, np.float32)
FUNCTIONAL = (nodes.Construct, nodes.Match, nodes.Closure, nodes.CallValue, nodes.ReferenceCall, nodes.FunctionCall, nodes.If)


def specialized(module: nodes.Module, limit: int = 10_000) -> nodes.Module:
    """The module evaluated as far as it knows itself."""
    made = specialize_module(module, {}, Budget(steps=10 * limit, bindings=limit))
    check(made)
    return made


def is_straight(module: nodes.Module) -> bool:
    """Whether it is one function that only computes tensors."""
    return len(module.functions) == 1 and not any(isinstance(b.value, FUNCTIONAL) for f in module for b in f.bindings)
