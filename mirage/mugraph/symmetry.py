"""Which axes of a kernel's results may be exchanged, as those of `X @ X.T`: one triangle of them is the other one.

Two inputs that read one argument are independent to a search. Here they are not: what the kernel computes is read in the exact
algebra as it is, and with two of its axes exchanged, and an input is known by its argument and by its dims.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisDims, AxisInput, AxisNode, AxisProgram
from mirage.ir.dims import Dim
from mirage.ir.functions import ScalarFunction
from mirage.ir.moves import moves_text
from mirage.ir.operator import PRODUCTS, reduced_parts
from mirage.mugraph.exact import ExactAlgebra, Form, read_node
from mirage.mugraph.graph import Graph, MuGraph, Role
from mirage.mugraph.thread import inline_threads
from mirage.mugraph.whole import results_of

Pair = tuple[str, str]


def exchangeable_axes(graph: MuGraph, kernel: int) -> tuple[Pair, ...]:
    """The pairs of parallel axes of node `kernel` of the kernel graph, a graph-defined kernel with products, whose exchange
    leaves all of the node's results as they are, at every size, and as defined as they are.

    Not proved to be so counts as not exchangeable. The graph has to be valid.
    """
    node = graph.kernel.nodes[kernel]
    assert node.graph is not None
    axes = [a for a, role in node.graph.roles if role is Role.PARALLEL and a in graph.axes]
    pairs = [p for p in itertools.combinations(axes, 2) if _may_be(graph, p)]
    if not pairs or not any(n.op in PRODUCTS for n in inline_threads(node.graph).nodes):
        return ()
    return _exchangeable(graph.kernel, tuple(graph.axes.items()), graph.inputs, kernel, tuple(pairs))


def _may_be(graph: MuGraph, pair: Pair) -> bool:
    """Whether the two have one size, and some argument is read along the one and along the other."""
    if graph.axes[pair[0]] != graph.axes[pair[1]]:
        return False
    read = {(x.argument, x.moved, x.dims) for x in graph.inputs}
    return any(x.dims != (other := _exchanged(x.dims, pair)) and (x.argument, x.moved, other) in read for x in graph.inputs)


@lru_cache(maxsize=256)
def _exchangeable(
    kernels: Graph,
    axes: tuple[tuple[str, Dim], ...],
    inputs: tuple[AxisInput, ...],
    kernel: int,
    pairs: tuple[Pair, ...],
) -> tuple[Pair, ...]:
    program = results_of(MuGraph("", dict(axes), inputs, kernels, (), "float32"), kernel)
    block = kernels.nodes[kernel].graph
    assert block is not None
    # what a kernel leaves of a split axis is the sum over some of its elements: equal whatever their number
    sizes = {a: d for a, d in axes if block.role.get(a) is not Role.SPLIT}
    algebra = _Noting(sizes)
    try:
        own = algebra.read(program)
        return tuple(p for p in pairs if algebra.read(_with_exchanged(program, p)) == own)
    except TermTooLarge:
        return ()


class _Noting(ExactAlgebra):
    """The exact algebra, which notes what is divided by and what functions are taken of: where these are defined, all is."""

    def __init__(self, sizes: Mapping[str, Dim]) -> None:
        super().__init__({}, sizes=sizes)
        self._noted: set[tuple[object, ...]] = set()

    def inverse(self, y: Form) -> Form:
        self._noted.add(("inverse", y))
        return super().inverse(y)

    def function(self, fn: ScalarFunction, x: Form, *params: Fraction) -> Form:
        self._noted.add((fn.name, x, *params))
        return super().function(fn, x, *params)

    def read(self, program: AxisProgram) -> tuple[tuple[Form, ...], frozenset[tuple[object, ...]]]:
        """The forms of a program's results, and what was noted on the way."""
        self._noted = set()
        inputs = {x.name: x for x in program.inputs}
        values: list[Form] = []
        for n in program.nodes:
            if n.op == "input":
                x = inputs[n.attr["name"]]
                # the axes alone do not say which dim has which
                values.append(self.tensor(f"{x.argument}{moves_text(x.moved)} {x.dims}", n.axes))
            else:
                over = reduced_parts(n.op, [program.nodes[i].axes for i in n.operands], n.reduce, frozenset)
                values.append(read_node(self, n, [values[i] for i in n.operands], over))
        return tuple(values[o.value] for o in program.outputs), frozenset(self._noted)


def _with_exchanged(program: AxisProgram, pair: Pair) -> AxisProgram:
    """The program with two axes of one size exchanged in all its inputs and values."""
    inputs = tuple(replace(x, dims=_exchanged(x.dims, pair)) for x in program.inputs)
    return replace(program, inputs=inputs, nodes=tuple(_exchanged_node(n, pair) for n in program.nodes))


def _exchanged_node(n: AxisNode, pair: Pair) -> AxisNode:
    axes, reduce = _exchanged((n.axes, n.reduce), pair)
    if n.joined is None:
        return replace(n, axes=axes, reduce=reduce)
    ((joined,), parts) = _exchanged(((n.joined[0],), n.joined[1]), pair)
    return replace(n, axes=axes, reduce=reduce, joined=(joined, parts))


def _exchanged(dims: AxisDims, pair: Pair) -> AxisDims:
    other = {pair[0]: pair[1], pair[1]: pair[0]}
    return tuple(tuple(other.get(a, a) for a in d) for d in dims)
