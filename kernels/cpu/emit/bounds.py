"""Bounds of what hides tiles of masked scores, by which most of these tiles are passed over without a look at their elements.

A mask of positions, such as clamp(i - j + 1, 0, 1), is computed from vectors: in a tile, from as many numbers of each as the tile
is long. The least and the largest of these bound the mask of the whole tile by interval arithmetic (Moore, "Interval Analysis",
1966), in a few operations per vector instead of some per element. Each bound is rounded as the elements are, and rounding never
changes an order, so that the bounds hold for the elements as they are computed. NaN and what is not finite make NaN of a bound,
of which nothing is concluded.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fractions import Fraction

import sympy

from mirage.ir.functions import ScalarFunction
from mirage.ir.operator import Elementwise, get_operator
from mirage.kernels.cpu.emit.algebra import FunctionSources, literal
from mirage.kernels.cpu.emit.hidden import LOW, Terms
from mirage.kernels.cpu.emit.layout import View
from mirage.kernels.cpu.emit.loops import Nest
from mirage.mugraph.graph import Graph

#: C functions of intervals
BOUNDS = f"""\
/* All numbers from `low` to `high`; NaN where there are others. */
typedef struct {{ mi_real low, high; }} bounds;

static inline bounds known(int finite, mi_real low, mi_real high)
{{
    return finite ? (bounds){{low, high}} : (bounds){{__builtin_nan(""), __builtin_nan("")}};
}}

static inline bounds exactly(mi_real x)
{{
    return (bounds){{x, x}};
}}

static inline bounds sum_of(bounds x, bounds y)
{{
    return (bounds){{x.low + y.low, x.high + y.high}};
}}

static inline bounds minus(bounds x)
{{
    return (bounds){{-x.high, -x.low}};
}}

static inline bounds product_of(bounds x, bounds y)
{{
    const mi_real a = x.low * y.low, b = x.low * y.high, c = x.high * y.low, d = x.high * y.high;
    const mi_real low = a < b ? a : b, high = a < b ? b : a, lower = c < d ? c : d, higher = c < d ? d : c;
    return known(__builtin_isfinite(a + b + c + d), low < lower ? low : lower, high < higher ? higher : high);
}}

/* Of the numbers so far, and those of a vector. */
static inline void widen(mi_vec *low, mi_vec *high, mi_ivec *finite, mi_vec x)
{{
    *low = mi_select(x < *low, x, *low);
    *high = mi_select(x > *high, x, *high);
    *finite &= mi_abs(x) < mi_broadcast(MI_INFINITY);
}}

static inline bounds bounds_of(mi_vec low, mi_vec high, mi_ivec finite)
{{
    return known(mi_hmin(mi_select(finite, mi_broadcast(1), mi_broadcast(0))) > 0, mi_hmin(low), mi_hmax(high));
}}

static inline int is_zero(bounds x)
{{
    return x.low == 0 && x.high == 0;
}}

/* Whether what is added hides, whatever the product is. */
static inline int is_low(bounds x)
{{
    return x.high <= ({LOW}) && x.low <= x.high;
}}
"""


class _Unbounded(Exception):
    """There are no bounds of such an operator."""


class _BoundsAlgebra:
    """Operators as C expressions of type `bounds`."""

    def __init__(self, functions: FunctionSources, dims: Mapping[sympy.Expr, str]) -> None:
        self.functions = functions
        self.dims = dims

    def constant(self, value: Fraction) -> str:
        return f"exactly({literal(value)})"

    def dim(self, size: sympy.Expr) -> str:
        return f"exactly((mi_real){self.dims[size]})"

    def add(self, x: str, y: str) -> str:
        return f"sum_of({x}, {y})"

    def neg(self, x: str) -> str:
        return f"minus({x})"

    def sub(self, x: str, y: str) -> str:
        return self.add(x, self.neg(y))

    def mul(self, x: str, y: str) -> str:
        return f"product_of({x}, {y})"

    def div(self, x: str, y: str) -> str:
        raise _Unbounded

    def function(self, fn: ScalarFunction, x: str, *params: Fraction) -> str:
        if fn.increasing:
            more = "".join(f", mi_broadcast({literal(p)})" for p in params)
            ends = (f"{self.functions.use(fn)}(mi_broadcast(({x}).{end}){more})[0]" for end in ("low", "high"))
            # a function may make a number of NaN
            return f"known(({x}).low <= ({x}).high, {', '.join(ends)})"
        written = fn.written(self, x, *params) if fn.written is not None else None
        if written is None:
            raise _Unbounded
        return str(written)


class TileBounds:
    """The C code of bounds of the terms of an exponent, over an iteration's tile."""

    def __init__(self, graph: Graph, terms: Terms, functions: FunctionSources, dims: Mapping[sympy.Expr, str]) -> None:
        self.graph = graph
        self.terms = terms
        self.algebra = _BoundsAlgebra(functions, dims)

    @staticmethod
    def find(
        graph: Graph, terms: Terms, functions: FunctionSources, dims: Mapping[sympy.Expr, str]
    ) -> TileBounds | None:
        """Those of terms that are computed from tensors of fewer elements than they have, by operators that have bounds; None of
        others.
        """
        found = TileBounds(graph, terms, functions, dims)
        if any(set(graph.nodes[i].axes()) == terms.axes for i in terms.inputs):
            return None
        try:
            for i in terms.members:
                found.member(i)
        except _Unbounded:
            return None
        return found

    def inputs(self, looping: bool) -> list[int]:
        """Those that vary with the for-loop, or those that do not."""
        loop = set(self.graph.loop)
        return [i for i in self.terms.inputs if bool(loop & set(self.graph.nodes[i].axes())) == looping]

    def added(self) -> str:
        """C expression of the bounds of what is added."""
        terms = [self.algebra.neg(self._operand(i)) if less else self._operand(i) for less, i in self.terms.added]
        return functools.reduce(self.algebra.add, terms)

    def hides(self, added: str) -> str:
        """C expression of whether a tile is hidden where what is added has these bounds."""
        zeros = [" || ".join(f"is_zero({self._operand(i)})" for i in f) for f in self.terms.factors]
        nothing = f"{added}.high == -MI_INFINITY"
        hidden = f"(({' && '.join(f'({z})' for z in zeros)}) || {nothing})" if all(zeros) else nothing
        return f"{hidden} && is_low({added})"

    def member(self, i: int) -> str:
        """C expression of the bounds of a node that is computed from the inputs."""
        n = self.graph.nodes[i]
        op = get_operator(n.op)
        assert isinstance(op, Elementwise)
        return str(op.apply(self.algebra, [self._operand(r.node) for r in n.operands], n.attr))

    def _operand(self, i: int) -> str:
        n = self.graph.nodes[i]
        if n.op == "constant":
            return self.algebra.constant(n.attr["value"])
        return self.algebra.dim(n.attr["dim"]) if n.op == "size" else f"bounds{i}"


def declare_bounds(nest: Nest, i: int, view: View) -> None:
    """Print the bounds of an input's elements at hand."""
    w, unit = nest.w, view.unit
    w.line(f"bounds bounds{i};")
    with w.block():
        w.line("mi_vec low = mi_broadcast(MI_INFINITY), high = -low;")
        w.line("mi_ivec finite = low == low;")

        def body(lanes: str) -> None:
            x = nest.load(view, unit, lanes)
            if lanes:
                # what is left is less than a vector, filled up with its first number
                x = f"mi_fill_tail({x}, {lanes}, mi_broadcast(*({view.at(nest.index)})))"
            w.line(f"widen(&low, &high, &finite, {x});")

        with nest.over([a for a in view.strides if a != unit]):
            nest.vectors(unit, body)
        w.line(f"bounds{i} = bounds_of(low, high, finite);")
