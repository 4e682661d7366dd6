"""Windows of the last dims, all of which lie within the tensor (pad it before), and what is made of them: convolution, pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import sympy

from mirage.errors import AttributeValueError, ShapeError
from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import Arithmetic, ArrayModule
from mirage.ir.dims import Dim, to_dim
from mirage.ir.gradient import Backward, Cotangents, Emitter
from mirage.ir.expand import evaluate_expansion
from mirage.ir.graph_operator import GraphOperator, Moving, steps_between, wide
from mirage.ir.loops.program import TensorExpr, compute, operands, reduction
from mirage.ir.loops.scalars import Scalar, size
from mirage.ir.operator import FLOATING, NUMERIC, ORDERED, Attribute, Attrs, register, same_dtype
from mirage.ir.program import ProgramBuilder
from mirage.ir.requirements import AtMost, at_most, needs
from mirage.ir.types import TensorType, is_one, shape_text

#: operands of one concat
_JOINED = 16
#: bytes of the patches that are laid out as a matrix at a time
_PATCH_BYTES = 32 << 20


def _positive(op: str, attrs: Attrs, *names: str) -> None:
    for name in names:
        if any(n < 1 for n in attrs[name]):
            raise AttributeValueError(
                f"{op}: {name}={attrs[name]} are not all positive; give one of at least 1 per spatial dim"
            )


def _places(op: str, space: Sequence[Dim], kernel: Sequence[int], attrs: Attrs) -> tuple[Dim, ...]:
    """The number of windows along each spatial dim."""
    steps, gaps = attrs["strides"], attrs["dilations"]
    if not len(space) == len(kernel) == len(steps) == len(gaps):
        raise ShapeError(
            f"{op}: windows {tuple(kernel)}, strides {steps} and dilations {gaps} of the dims "
            f"[{shape_text(tuple(space))}]; give one each"
        )
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)]
    return tuple(steps_between(sympy.Integer(0), n - e + 1, s) for n, e, s in zip(space, extents, steps, strict=True))


def _within(op: str, space: Sequence[Dim], kernel: Sequence[int], attrs: Attrs) -> tuple[AtMost, ...]:
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    pairs = enumerate(zip(extents, space, strict=True))
    return needs(
        *(at_most(sympy.Integer(e), n, f"the window along spatial dim {k} is within the dim") for k, (e, n) in pairs)
    )


def _lead(op: str, x: TensorType, attrs: Attrs) -> int:
    """The number of dims before the spatial ones."""
    if len(attrs["kernel"]) > x.rank:
        raise ShapeError(f"{op}: windows {attrs['kernel']} of [{shape_text(x.shape)}]; give at most one size per dim")
    return x.rank - len(attrs["kernel"])


def _windows(xp: ArrayModule, x: Any, kernel: Sequence[int], attrs: Attrs) -> Any:
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


def _window(i: Sequence[Scalar], r: Sequence[Scalar], attrs: Attrs) -> tuple[Scalar, ...]:
    """Where an element of a window is along the spatial dims."""
    steps, gaps = attrs["strides"], attrs["dilations"]
    return tuple(
        (a * s if s != 1 else a) + (b * d if d != 1 else b) for a, b, s, d in zip(i, r, steps, gaps, strict=True)
    )


def _apart(b: Emitter, g: Any, steps: Sequence[int], space: Sequence[Dim], low: Sequence[int]) -> Any:
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


def _elements(b: Emitter, x: Any, kernel: Sequence[int], places: Sequence[Dim], attrs: Attrs) -> Iterator[Any]:
    """For each element of a window in row-major order: where it is in the window, and what it is in every window."""
    rank, steps, gaps = len(kernel), attrs["strides"], attrs["dilations"]
    axes = tuple(range(b.type(x).rank - rank, b.type(x).rank))
    for at in product(*map(range, kernel)):
        starts = tuple(sympy.Integer(k * d) for k, d in zip(at, gaps, strict=True))
        stops = tuple(to_dim(start + p * s - s + 1) for start, p, s in zip(starts, places, steps, strict=True))
        yield starts, b.op("slice", x, axes=axes, starts=starts, stops=stops, steps=steps)


class Convolution(GraphOperator):
    """Products of windows with weights, summed: `x[b, groups * c, *space]`, `w[o, c, *kernel]` give `[b, o, *places]`.

    Results `o // groups` at a time are those of one group of channels of `x`. Nothing is flipped: a cross-correlation. To the
    search it is a product of matrices: of the weights, and of windows that kernels read where they lie.
    """

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        _positive(self.name, attrs, "strides", "dilations")
        if attrs["groups"] < 1:
            raise AttributeValueError(f"{self.name}: groups={attrs['groups']} is not positive")
        return attrs

    def _kernel(self, w: TensorType) -> tuple[int, ...]:
        if w.rank < 3 or not all(d.is_Integer and d > 0 for d in w.shape[2:]):
            raise ShapeError(
                f"{self.name}: weights [{shape_text(w.shape)}]; they are [o, c, *kernel], the kernel of literal sizes"
            )
        return tuple(int(d) for d in w.shape[2:])

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, w = types
        groups = attrs["groups"]
        if x.rank != w.rank:
            raise ShapeError(
                f"{self.name}: [{shape_text(x.shape)}] with weights [{shape_text(w.shape)}]; give both one rank"
            )
        places = _places(self.name, x.shape[2:], self._kernel(w), attrs)
        if sympy.expand(w.shape[1] * groups) != x.shape[1] or (groups > 1 and not (w.shape[0] / groups).is_integer):
            raise ShapeError(
                f"{self.name}: {x.shape[1]} channels in {groups} groups, with weights [{shape_text(w.shape)}]; the weights' "
                "second dim is the channels of a group, and the groups divide their first"
            )
        return TensorType((x.shape[0], w.shape[0], *places), same_dtype(self.name, types))

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        x, w = types
        return _within(self.name, x.shape[2:], self._kernel(w), attrs)

    def expand(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs) -> int:
        x, w = args
        batch, (outputs, channels, *kernel) = b.type(x).shape[0], b.type(w).shape
        groups = sympy.Integer(attrs["groups"])
        sizes = {"kernel": tuple(map(int, kernel)), "strides": attrs["strides"], "dilations": attrs["dilations"]}
        windows = b.op("windows", x, **sizes)
        places = b.type(windows).shape[2 + len(kernel) :]
        inner, count = to_dim(channels * sympy.prod(kernel)), to_dim(sympy.prod(places))
        lead = () if groups == 1 else (groups,)
        columns = b.op("reshape", windows, shape=(batch, *lead, inner, count))
        weights = b.op("reshape", w, shape=(*lead, to_dim(outputs / groups), inner))
        product = b.op("matmul", weights, columns)
        return b.op("reshape", product, shape=(batch, outputs, *places))

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        return evaluate_expansion(self, ar, args, attrs, shapes)

    def gradient(self, b: Backward) -> Cotangents:
        g = b.full_g()
        return self._of_x(b, g) if b.wanted[0] else None, self._of_weights(b, g) if b.wanted[1] else None

    def _of_x(self, b: Backward, g: Any) -> Any:
        """The transposed convolution: that of the cotangent, set apart, with the weights turned round."""
        x, w = b.types()
        groups, kernel, attrs = b.attrs["groups"], self._kernel(w), b.attrs
        reach = [(k - 1) * d for k, d in zip(kernel, attrs["dilations"], strict=True)]
        wide_g = _apart(b, g, attrs["strides"], x.shape[2:], reach)
        outer = to_dim(w.shape[0] / groups)
        turned = b.reshape(b.args[1], (groups, outer, *w.shape[1:]))
        turned = b.op("transpose", turned, perm=(0, 2, 1, *range(3, 3 + len(kernel))))
        turned = b.reshape(turned, (x.shape[1], outer, *w.shape[2:]))
        turned = b.op("flip", turned, axes=tuple(range(2, 2 + len(kernel))))
        ones = (1,) * len(kernel)
        return b.op("convolution", wide_g, turned, strides=ones, dilations=attrs["dilations"], groups=groups)

    def _of_weights(self, b: Backward, g: Any) -> Any:
        """For each element of the window, the product of the cotangent with what that element was."""
        x, w = b.types()
        groups, kernel = sympy.Integer(b.attrs["groups"]), self._kernel(w)
        batch, places = x.shape[0], b.type(g).shape[2:]
        count, outer = to_dim(sympy.prod(places)), to_dim(w.shape[0] / groups)
        many = to_dim(batch * count)
        left = b.op("transpose", b.reshape(g, (batch, groups, outer, count)), perm=(1, 2, 0, 3))
        left = b.reshape(left, (groups, outer, many))
        found = []
        for _, element in _elements(b, b.args[0], kernel, places, b.attrs):
            right = b.op("transpose", b.reshape(element, (batch, groups, w.shape[1], count)), perm=(1, 0, 3, 2))
            one = b.op("matmul", left, b.reshape(right, (groups, many, w.shape[1])))
            found.append(b.reshape(one, (w.shape[0], w.shape[1], sympy.Integer(1))))
        while len(found) > 1:
            found = [
                b.op("concat", *part, axis=2) if len(part) > 1 else part[0]
                for part in (found[k : k + _JOINED] for k in range(0, len(found), _JOINED))
            ]
        return b.reshape(found[0], w.shape)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, w = (wide(a) for a in arrays)
        groups, kernel = attrs["groups"], w.shape[2:]
        views = _windows(xp, x, kernel, attrs)
        batch, places = x.shape[0], views.shape[2 + len(kernel) :]
        found = xp.empty((batch, w.shape[0], *places), x.dtype)
        if w.shape[1] == 1 and groups == w.shape[0]:
            # channel by channel: sums of shifted windows
            found[...] = 0
            for at in product(*map(range, kernel)):
                found += views[(slice(None), slice(None), *at)] * w[(slice(None), 0, *at)].reshape(
                    -1, *(1,) * len(kernel)
                )
            return found.astype(arrays[0].dtype, copy=False)
        inner, outer = w.shape[1] * prod(kernel), w.shape[0] // groups
        factors = w.reshape(groups, outer, inner)
        views = (
            views.reshape(batch, groups, w.shape[1], *kernel, *places) if groups == 1 else _grouped(xp, views, groups)
        )
        at_once = max(_PATCH_BYTES // max(groups * inner * prod(places) * x.itemsize, 1), 1)
        for first in range(0, batch, at_once):
            part = xp.ascontiguousarray(views[first : first + at_once])
            columns = part.reshape(part.shape[0], groups, inner, prod(places))
            found[first : first + at_once] = (factors @ columns).reshape(part.shape[0], w.shape[0], *places)
        return found.astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | None:
        x, w = operands(types)
        kernel = self._kernel(types[1])
        if not is_one(types[1].shape[1]) or types[1].shape[0] != attrs["groups"]:
            # as a product of matrices it is faster
            return None

        def element(i: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
            return x[(i[0], i[1], *_window(i[2:], r, attrs))] * w[(i[1], size(0), *r)]

        return reduction(out, [sympy.Integer(k) for k in kernel], "sum", element)


def _grouped(xp: ArrayModule, views: Any, groups: int) -> Any:
    """A view with the channels in groups."""
    batch, channels = views.shape[:2]
    strides = (views.strides[0], views.strides[1] * (channels // groups), *views.strides[1:])
    return xp.lib.stride_tricks.as_strided(views, (batch, groups, channels // groups, *views.shape[2:]), strides)


class Windows(Moving):
    """The windows of the last dims, element by element: `x[..., *space]` gives `[..., *kernel, *places]`."""

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        _positive(self.name, attrs, "kernel", "strides", "dilations")
        return attrs

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        lead = _lead(self.name, x, attrs)
        places = _places(self.name, x.shape[lead:], attrs["kernel"], attrs)
        return TensorType((*x.shape[:lead], *map(sympy.Integer, attrs["kernel"]), *places), x.dtype)

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        (x,) = types
        return _within(self.name, x.shape[_lead(self.name, x, attrs) :], attrs["kernel"], attrs)

    def view(self, xp: ArrayModule, x: Any, attrs: Attrs) -> Any:
        return _windows(xp, x, attrs["kernel"], attrs)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        rank = len(attrs["kernel"])
        lead = out.rank - 2 * rank
        return compute(out, lambda *i: x[(*i[:lead], *_window(i[lead + rank :], i[lead : lead + rank], attrs))])

    def gradient(self, b: Backward) -> Cotangents:
        (x,), g, kernel = b.types(), b.full_g(), b.attrs["kernel"]
        lead = _lead(self.name, x, b.attrs)
        axes, rank = tuple(range(lead, lead + len(kernel))), len(kernel)
        found = None
        for at in product(*map(range, kernel)):
            starts, stops = tuple(map(sympy.Integer, at)), tuple(sympy.Integer(k + 1) for k in at)
            shape = b.type(g).shape
            part = b.reshape(b.op("slice", g, axes=axes, starts=starts, stops=stops), (*shape[:lead], *shape[lead + rank :]))
            shifts = [k * d for k, d in zip(at, b.attrs["dilations"], strict=True)]
            rest = [to_dim(n - shift) for n, shift in zip(x.shape[lead:], shifts, strict=True)]
            part = _apart(b, part, b.attrs["strides"], rest, shifts)
            found = part if found is None else b.add(found, part)
        return (found,)


_POOL = (Attribute("kernel", "ints"), Attribute("strides", "ints"), Attribute("dilations", "ints"))
WINDOWS = register(Windows("windows", 1, 1, _POOL))
CONVOLUTION = register(
    Convolution(
        "convolution",
        2,
        2,
        (Attribute("strides", "ints"), Attribute("dilations", "ints"), Attribute("groups", "int", 1)),
        takes=FLOATING,
    )
)


@dataclass(frozen=True, eq=False)
class Pool(GraphOperator):
    """A reduction over windows of the last dims: `x[..., *space]` gives `[..., *places]`."""

    combiner: str = field(default="sum", kw_only=True)

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        _positive(self.name, attrs, "kernel", "strides", "dilations")
        return attrs

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        lead = _lead(self.name, x, attrs)
        return TensorType((*x.shape[:lead], *_places(self.name, x.shape[lead:], attrs["kernel"], attrs)), x.dtype)

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        (x,) = types
        return _within(self.name, x.shape[_lead(self.name, x, attrs) :], attrs["kernel"], attrs)

    def gradient(self, b: Backward) -> Cotangents:
        (x,), g, attrs = b.types(), b.full_g(), b.attrs
        space = x.shape[_lead(self.name, x, attrs) :]
        if self.combiner == "sum":
            reach = [(k - 1) * d for k, d in zip(attrs["kernel"], attrs["dilations"], strict=True)]
            ones = (1,) * len(reach)
            return (b.op("sum_pool", _apart(b, g, attrs["strides"], space, reach), **{**attrs, "strides": ones}),)
        # the first of the largest elements of a window gets all
        found, free = None, None
        places = b.type(g).shape[_lead(self.name, x, attrs) :]
        for starts, element in _elements(b, b.args[0], attrs["kernel"], places, attrs):
            here = b.op("equal", element, b.out)
            chosen = here if free is None else b.op("logical_and", here, free)
            other = b.op("logical_not", here)
            free = other if free is None else b.op("logical_and", free, other)
            rest = [to_dim(n - start) for n, start in zip(space, starts, strict=True)]
            part = _apart(b, b.where(chosen, g), attrs["strides"], rest, starts)
            found = part if found is None else b.add(found, part)
        return (found,)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x = wide(arrays[0])
        kernel = attrs["kernel"]
        views = _windows(xp, x, kernel, attrs)
        lead = (slice(None),) * (x.ndim - len(kernel))
        found: Any = None
        for at in product(*map(range, kernel)):
            part = views[(*lead, *at)]
            if found is None:
                found = part.copy()
            elif self.combiner == "sum":
                found += part
            else:
                found = xp.maximum(found, part)
        return found.astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        lead = out.rank - len(attrs["kernel"])

        def element(i: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
            return x[(*i[:lead], *_window(i[lead:], r, attrs))]

        return reduction(out, [sympy.Integer(k) for k in attrs["kernel"]], self.combiner, element)


MAX_POOL = register(Pool("max_pool", 1, 1, _POOL, takes=ORDERED, combiner="max"))
SUM_POOL = register(Pool("sum_pool", 1, 1, _POOL, takes=NUMERIC, combiner="sum"))
