"""Independent products of equal shapes become one batched product of stacked operands (BladeDISC, section 4.3).

The shapes are proved equal by the constraints of dims. The right operands are constants, which are stacked once
(`lift_constants`); stacking the left ones is a copy. So it pays for small products only: at least `FEWEST` of them, each of at
most `MOST_PRODUCTS` multiplications, by the proved bounds. With NumPy's BLAS alone, the copy included, 4 products of
16 x 64 x 64 take 0.83 of the time, 8 of 4 x 64 x 64 0.57, 16 of 1 x 64 x 64 0.35; products of 64 x 64 x 64 gain nothing (two
cores, float32).

And the parts of the result have to cost nothing: elementwise operators read them, and all meet in one of these, so that one
generated kernel reads the whole batch (a sum of experts). Whole programs with such products of 16 x 32 x 32 then take 1.0 of
the time for 4 of them, 0.85 for 6, 0.75 for 16; with a kernel for each part they take up to 1.7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.products import MOST_JOINED, Block, Names, Product, join_in_blocks, join_products
from mirage.compiler.passes.rewrite import operator_call
from mirage.ir.graph.nodes import Atom, Binding, Function, MatchCast, Module, OpCall, Var
from mirage.ir.types import TensorType

#: products of a batch, at least
FEWEST = 6
#: multiplications of each product, at most
MOST_PRODUCTS = 1 << 16


def run(module: Module, context: Context) -> Module:
    """The module with equal products batched; the parameters `context.constants` of the main function are constants."""
    return join_products(module, context, batch)


def batch(
    function: Function, weights: Collection[Var], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with independent products of equal shapes batched; `weights` are its parameters that never change."""

    def in_block(block: Block, names: Names) -> bool:
        changed = False
        for group in _groups(block, store):
            # an earlier batch may have made one product wait for another
            if len(group) >= FEWEST and block.independent(group):
                _batch_group(block, group, names)
                changed = True
        return changed

    return join_in_blocks(function, weights, functions, in_block)


def _groups(block: Block, store: Constraints) -> list[list[Product]]:
    """Independent products of equal shapes."""
    found: list[list[Product]] = []
    for p in block.products():
        if p.constant != (False, True) or p.left_type.rank != 2 or p.right_type.rank != 2:
            continue
        most = store.upper_bound(sympy.expand(p.left_type.shape[0] * sympy.prod(p.right_type.shape)))
        if most is None or most > MOST_PRODUCTS:
            continue
        for group in found:
            joins = len(group) < MOST_JOINED and _equal(group[0], p, store) and _meet(block, [*group, p])
            if joins and block.independent([*group, p]):
                group.append(p)
                break
        else:
            found.append([p])
    return found


def _meet(block: Block, group: list[Product]) -> bool:
    """Whether the results of all products flow into one elementwise operator."""
    return bool(set.intersection(*(block.reached(p.binding.var) for p in group)))


def _equal(a: Product, b: Product, store: Constraints) -> bool:
    if a.type.dtype != b.type.dtype:
        return False
    return store.same_shape(a.left_type.shape, b.left_type.shape) and store.same_shape(
        a.right_type.shape, b.right_type.shape
    )


def _batch_group(block: Block, group: list[Product], names: Names) -> None:
    added: list[Binding] = []

    def bind(hint: str, value: OpCall | MatchCast) -> Var:
        added.append(names.bind(hint, value))
        return added[-1].var

    def as_type(x: Atom, wanted: TensorType) -> Atom:
        # equal, as the constraints say, under other names
        return x if x.annotation == wanted else bind("same", MatchCast((x,), wanted))

    def stacked(operands: list[Atom], type: TensorType) -> Var:
        rows = [bind("row", operator_call("reshape", as_type(x, type), shape=(1, *type.shape))) for x in operands]
        return bind("stacked", operator_call("concat", *rows, axis=0))

    first = group[0]
    left = stacked([p.left for p in group], first.left_type)
    right = stacked([p.right for p in group], first.right_type)
    product = bind("batched", operator_call("matmul", left, right))
    changed: dict[Var, Binding] = {}
    for i, p in enumerate(group):
        part = bind("part", operator_call("slice", product, axes=(0,), starts=(i,), stops=(i + 1,)))
        value: OpCall | MatchCast = operator_call("reshape", part, shape=first.type.shape)
        if p.type != first.type:
            value = MatchCast((bind("part", value),), p.type)
        changed[p.binding.var] = Binding(p.binding.var, value, p.binding.where)
    block.replace(added, changed)
