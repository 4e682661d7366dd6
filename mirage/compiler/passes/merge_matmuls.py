"""Products that share an operand become one: A @ B and A @ C are slices of A @ [B C] (BladeDISC, section 4.3), B @ A and C @ A of
[B; C] @ A.

In the first case, B and C are constants, so that [B C] is computed once (`lift_constants`). It pays where the call is a good part
of the time: for weights of at most `MOST_ELEMENTS` elements each, which the constraints of dims have to prove. With NumPy's BLAS
alone, three products as one take 0.4 to 0.9 of the time up to there, 1.0 at 256 x 256, and more for larger ones (two cores,
float32). And the slices have to cost less than that: they are read by elementwise operators, whose generated kernels fuse
them, and which library calls would not have taken along (a bias, relu); and the products may have `FEWEST_ROWS` rows. Whole
programs of 2 to 6 products of 256 rows then take 0.8 to 1.0 of the time, those of 16 rows 1.0 to 1.1.

Where two of the results meet in one elementwise operator (gated MLP), the products stay apart, for the search makes one
kernel of all that.

In the second case, B and C are rows of equal cells, such as those of an unrolled loop or recursion, and A their weights, constant
or not. It pays where the weights are read more than once otherwise: for `FEWEST_CELLS` products at least, of at most `MOST_ROWS`
rows, which are independent of each other. Whole programs of 8 products of 1 x 128 x 512 then take 0.6 of the time, of 16 of
1 x 300 x 600 0.6, of 4 of 4 x 256 x 256 0.75, of 8 of 4 x 128 x 128 1.0 (two cores, float32, the copies included).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.products import MOST_JOINED, Block, Names, Product, join_in_blocks, join_products
from mirage.compiler.passes.rewrite import operator_call
from mirage.ir.dims import Dim
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Binding, Function, Module, Var

#: elements of each of the constants that are joined
MOST_ELEMENTS = 1 << 15
#: rows that the shared operand has at the largest sizes, at least; where it is shared on the right, columns
FEWEST_ROWS = 128
#: products of equal cells, at least, and rows of each, at most
FEWEST_CELLS, MOST_ROWS = 4, 4
#: what `lower_libraries` computes with a product
_EPILOGUES = ("add", "relu")


def run(module: Module, context: Context) -> Module:
    """The module with products merged; the parameters `context.constants` of the main function are constants."""
    return join_products(module, context, merge)


def merge(
    function: Function, weights: Collection[Var], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with products that share an operand merged; `weights` are its parameters that never change."""

    def in_block(block: Block, names: Names) -> bool:
        merged = [_merge_group(block, side, group, names) for side, group in _groups(block, store)]
        return any(merged)

    def cells_in_block(block: Block, names: Names) -> bool:
        changed = False
        for shared in _shared_weights(block, store):
            # by what an earlier group has become
            cells = [p for p in block.products(of_constants=False) if p.right is shared and _is_cell(p, store)]
            for level in block.levels(cells):
                for k in range(0, len(level), MOST_JOINED):
                    group = level[k : k + MOST_JOINED]
                    changed |= len(group) >= FEWEST_CELLS and _merge_group(block, 0, group, names)
        return changed

    function = join_in_blocks(function, weights, functions, in_block)
    return join_in_blocks(function, weights, functions, cells_in_block)


def _shared_weights(block: Block, store: Constraints) -> list[Atom]:
    """The right operands of as many products of few rows as may be joined."""
    counts = Counter(p.right for p in block.products(of_constants=False) if _is_cell(p, store))
    return [right for right, count in counts.items() if count >= FEWEST_CELLS]


def _is_cell(p: Product, store: Constraints) -> bool:
    if p.constant[0] or p.left_type.rank != 2 or p.right_type.rank != 2 or p.left is p.right:
        return False
    rows = store.upper_bound(p.left_type.shape[0])
    return rows is not None and rows <= MOST_ROWS


def _groups(block: Block, store: Constraints) -> list[tuple[int, list[Product]]]:
    """Products that can be merged, and the side of their constants: 0 for left, 1 for right."""
    found: dict[tuple[int, Atom, Dim, str], list[Product]] = defaultdict(list)
    for p in block.products():
        side = 0 if p.constant[0] else 1
        weight, shared = (p.left, p.right) if side == 0 else (p.right, p.left)
        type, other = (p.left_type, p.right_type) if side == 0 else (p.right_type, p.left_type)
        # weights on the left meet matrices only: a batch of right operands would repeat them
        if type.rank != 2 or (side == 0 and other.rank != 2) or weight == shared:
            continue
        most = store.upper_bound(sympy.expand(sympy.prod(type.shape)))
        rows = store.upper_bound(sympy.expand(sympy.prod(other.shape[:-1] if side else other.shape[1:])))
        if most is None or most > MOST_ELEMENTS or (rows is not None and rows < FEWEST_ROWS):
            continue
        if not set(block.reached(p.binding.var).values()) <= set(_EPILOGUES):
            found[side, shared, type.shape[side - 1], type.dtype].append(p)
    return [(key[0], apart) for key, group in found.items() if len(apart := _apart(block, group)[:MOST_JOINED]) > 1]


def _apart(block: Block, group: list[Product]) -> list[Product]:
    """The products of a group whose results meet no other's in an elementwise operator."""
    reached = [set(block.reached(p.binding.var)) for p in group]
    return [p for k, p in enumerate(group) if not any(reached[k] & other for i, other in enumerate(reached) if i != k)]


def _merge_group(block: Block, side: int, group: list[Product], names: Names) -> bool:
    weights = [p.right if side else p.left for p in group]
    joined = names.bind("weights", operator_call("concat", *weights, axis=side))
    operands = (group[0].left, joined.var) if side else (joined.var, group[0].right)
    product = names.bind("merged", operator_call("matmul", *operands))
    axis = group[0].type.rank - 2 + side
    start: Dim = sympy.Integer(0)
    changed: dict[Var, Binding] = {}
    for p in group:
        stop = sympy.expand(start + p.type.shape[axis])
        part = operator_call("slice", product.var, axes=(axis,), starts=(start,), stops=(stop,))
        if deduce(part, {}) != p.type:
            return False
        changed[p.binding.var] = Binding(p.binding.var, part, p.binding.where)
        start = stop
    block.replace([joined, product], changed)
    return True
