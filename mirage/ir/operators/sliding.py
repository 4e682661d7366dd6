"""The windows of the last dims of a tensor, all of which lie within it (pad it before), and what operators over them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import sympy

from mirage.errors import AttributeValueError, ShapeError
from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import Arithmetic, ArrayModule
from mirage.ir.dims import Dim, to_dim
from mirage.ir.expand import evaluate_expansion
from mirage.ir.gradient import Backward, Cotangents, Emitter
from mirage.ir.graph_operator import GraphOperator, Moving, steps_between
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import Scalar
from mirage.ir.operator import Attribute, Attrs, register
from mirage.ir.requirements import AtMost, at_most, needs
from mirage.ir.types import TensorType, shape_text

if TYPE_CHECKING:
    from mirage.ir.program import ProgramBuilder

#: how windows lie
WINDOW = (Attribute("kernel", "ints"), Attribute("strides", "ints"), Attribute("dilations", "ints"))


def places_of(op: str, space: Sequence[Dim], kernel: Sequence[int], attrs: Attrs) -> tuple[Dim, ...]:
    """The number of windows along each spatial dim."""
    steps, gaps = attrs["strides"], attrs["dilations"]
    if not len(space) == len(kernel) == len(steps) == len(gaps):
        raise ShapeError(
            f"{op}: windows {tuple(kernel)}, strides {steps} and dilations {gaps} of the dims "
            f"[{shape_text(tuple(space))}]; give one each"
        )
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)]
    return tuple(steps_between(sympy.Integer(0), n - e + 1, s) for n, e, s in zip(space, extents, steps, strict=True))


def lead_of(op: str, x: TensorType, attrs: Attrs) -> int:
    """The number of dims before the spatial ones."""
    if len(attrs["kernel"]) > x.rank:
        raise ShapeError(f"{op}: windows {attrs['kernel']} of [{shape_text(x.shape)}]; give at most one size per dim")
    return x.rank - len(attrs["kernel"])


def windows_of(xp: ArrayModule, x: Any, kernel: Sequence[int], attrs: Attrs) -> Any:
    """A view of an array, `[..., *kernel, *places]`, without a copy."""
    rank = len(kernel)
    lead, space = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    steps, gaps = attrs["strides"], attrs["dilations"]
    places = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(space, kernel, steps, gaps, strict=True)]
    own = x.strides[x.ndim - rank :]
    strides = (
        *x.strides[: x.ndim - rank],
        *(b * d for b, d in zip(own, gaps, strict=True)),
        *(b * s for b, s in zip(own, steps, strict=True)),
    )
    return xp.lib.stride_tricks.as_strided(x, (*lead, *kernel, *places), strides)


def element_of(i: Sequence[Scalar], r: Sequence[Scalar], attrs: Attrs) -> tuple[Scalar, ...]:
    """Where an element of a window is along the spatial dims."""
    steps, gaps = attrs["strides"], attrs["dilations"]
    return tuple(
        (a * s if s != 1 else a) + (b * d if d != 1 else b) for a, b, s, d in zip(i, r, steps, gaps, strict=True)
    )


def apart(b: Emitter, g: Any, steps: Sequence[int], space: Sequence[Dim], low: Sequence[int]) -> Any:
    """What belongs to windows, each where the window begins: zeros between, `low` before, and behind up to the spatial dims."""
    shape, rank = b.type(g).shape, len(steps)
    lead, places = shape[: len(shape) - rank], shape[len(shape) - rank :]
    none, one = (sympy.Integer(0),) * len(lead), sympy.Integer(1)
    if any(s != 1 for s in steps):
        g = b.reshape(g, (*lead, *(n for p in places for n in (p, one))))
        behind = [sympy.Integer(n) for s in steps for n in (0, s - 1)]
        g = b.op("pad", g, low=(*none, *([0] * len(behind))), high=(*none, *behind))
        g = b.reshape(g, (*lead, *(to_dim(p * s) for p, s in zip(places, steps, strict=True))))
        stops = tuple(to_dim(p * s - s + 1) for p, s in zip(places, steps, strict=True))
        g = b.op("slice", g, axes=tuple(range(len(lead), len(shape))), starts=(0,) * rank, stops=stops)
    rest = (to_dim(n - p * s + s - 1) for n, p, s in zip(space, places, steps, strict=True))
    return b.op("pad", g, low=(*none, *low), high=(*none, *rest))


def elements(b: Emitter, x: Any, kernel: Sequence[int], places: Sequence[Dim], attrs: Attrs) -> Iterator[Any]:
    """For each element of a window in row-major order: where it is in the window, and what it is in every window."""
    rank, steps, gaps = len(kernel), attrs["strides"], attrs["dilations"]
    axes = tuple(range(b.type(x).rank - rank, b.type(x).rank))
    for at in product(*map(range, kernel)):
        starts = tuple(sympy.Integer(k * d) for k, d in zip(at, gaps, strict=True))
        stops = tuple(to_dim(start + p * s - s + 1) for start, p, s in zip(starts, places, steps, strict=True))
        yield starts, b.op("slice", x, axes=axes, starts=starts, stops=stops, steps=steps)


@dataclass(frozen=True, eq=False)
class OverWindows(GraphOperator):
    """An operator over the windows of the last dims of its first operand."""

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        for a in WINDOW:
            if any(n < 1 for n in attrs.get(a.name, ())):
                raise AttributeValueError(
                    f"{self.name}: {a.name}={attrs[a.name]} are not all positive; give one of at least 1 per spatial dim"
                )
        return attrs

    def window(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[Sequence[Dim], Sequence[int]]:
        """The spatial dims, and the size of a window along each; raises ShapeError."""
        return types[0].shape[lead_of(self.name, types[0], attrs) :], attrs["kernel"]

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        space, kernel = self.window(types, attrs)
        extents = [sympy.Integer((k - 1) * d + 1) for k, d in zip(kernel, attrs["dilations"], strict=True)]
        pairs = enumerate(zip(extents, space, strict=True))
        return needs(*(at_most(e, n, f"the window along spatial dim {k} is within the dim") for k, (e, n) in pairs))


def _overlap(window: Attrs) -> bool:
    """Whether an element may be in several windows."""
    sizes = zip(window["kernel"], window["strides"], window["dilations"], strict=True)
    return any((k - 1) * d >= s for k, s, d in sizes)


@dataclass(frozen=True, eq=False)
class FoldOfWindows(OverWindows):
    """One that makes an element of each window: to the search, as its `expand` says, of what kernels read where it lies."""

    @abstractmethod
    def folded(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]) -> int:
        """The windows of the windows ... of the result, from the operands."""

    def expand(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs) -> int:
        return self.folded(b, args, attrs, ())

    def of_windows(
        self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]
    ) -> int | None:
        # what is in several windows would be computed as often
        return None if any(map(_overlap, further)) else self.folded(b, args, attrs, further)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        return self.compute(ar.xp, args, attrs) if ar.is_float else evaluate_expansion(self, ar, args, attrs, shapes)


class Windows(OverWindows, Moving):
    """The windows of the last dims, element by element: `x[..., *space]` gives `[..., *kernel, *places]`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        lead = lead_of(self.name, x, attrs)
        places = places_of(self.name, x.shape[lead:], attrs["kernel"], attrs)
        return TensorType((*x.shape[:lead], *map(sympy.Integer, attrs["kernel"]), *places), x.dtype)

    def view(self, xp: ArrayModule, x: Any, attrs: Attrs) -> Any:
        return windows_of(xp, x, attrs["kernel"], attrs)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        rank = len(attrs["kernel"])
        lead = out.rank - 2 * rank
        return compute(out, lambda *i: x[(*i[:lead], *element_of(i[lead + rank :], i[lead : lead + rank], attrs))])

    def gradient(self, b: Backward) -> Cotangents:
        (x,), g, kernel = b.types(), b.full_g(), b.attrs["kernel"]
        lead = lead_of(self.name, x, b.attrs)
        axes, rank = tuple(range(lead, lead + len(kernel))), len(kernel)
        found = None
        for at in product(*map(range, kernel)):
            starts, stops = tuple(map(sympy.Integer, at)), tuple(sympy.Integer(k + 1) for k in at)
            shape = b.type(g).shape
            part = b.reshape(b.op("slice", g, axes=axes, starts=starts, stops=stops), (*shape[:lead], *shape[lead + rank :]))
            shifts = [k * d for k, d in zip(at, b.attrs["dilations"], strict=True)]
            rest = [to_dim(n - shift) for n, shift in zip(x.shape[lead:], shifts, strict=True)]
            part = apart(b, part, b.attrs["strides"], rest, shifts)
            found = part if found is None else b.add(found, part)
        return (found,)


WINDOWS = register(Windows("windows", 1, 1, WINDOW))
