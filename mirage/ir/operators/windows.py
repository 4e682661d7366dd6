"""Windows of tensors: slices, padding, writing a window, and the operators that only arrange elements anew."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from mirage.errors import AttributeValueError, AxisError, ShapeError
from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.dims import Dim, to_dim
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import GraphOperator, Moving, check_number, filled, steps_between
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import Scalar, cast, constant, logical_and, select, size
from mirage.ir.operator import Attribute, Attrs, register, same_dtype
from mirage.ir.operators.contraction import normalize_axes
from mirage.ir.requirements import AtMost, at_most, needs
from mirage.ir.types import TensorType, is_one, shape_text


class Slice(Moving):
    """Every `steps[k]`-th element from `starts[k]` to below `stops[k]` along dim `axes[k]`; other dims whole.

    Starts and stops are dims, counted from 0: they are not cut to the size, so 0 <= start <= stop <= size has to hold.
    """

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        steps = attrs["steps"] = attrs["steps"] or (1,) * len(attrs["axes"])
        counts = {len(attrs[key]) for key in ("axes", "starts", "stops", "steps")}
        if len(counts) > 1:
            raise AttributeValueError(
                f"slice: axes={attrs['axes']} with {len(attrs['starts'])} starts, {len(attrs['stops'])} stops and "
                f"{len(steps)} steps; give one of each per axis"
            )
        if any(s < 1 for s in steps):
            raise AttributeValueError(f"slice: steps={steps} are not all positive; flip the tensor to go backwards")
        return attrs

    def _windows(self, rank: int, attrs: Attrs) -> dict[int, tuple[Any, Any, int]]:
        axes = normalize_axes("slice", attrs["axes"], rank)
        return dict(zip(axes, zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True), strict=True))

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        shape = list(x.shape)
        for axis, (start, stop, step) in self._windows(x.rank, attrs).items():
            shape[axis] = steps_between(start, stop, step)
        return TensorType(tuple(shape), x.dtype)

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        (x,) = types
        found = []
        for axis, (start, stop, _) in self._windows(x.rank, attrs).items():
            found.append(at_most(0, start, f"the start along axis {axis} is not negative"))
            found.append(at_most(start, stop, f"the start along axis {axis} is not behind the stop"))
            found.append(at_most(stop, x.shape[axis], f"the stop along axis {axis} is within the dim"))
        return needs(*found)

    def view(self, xp: ArrayModule, x: Any, attrs: Attrs) -> Any:
        windows = self._windows(x.ndim, attrs)
        return x[tuple(slice(*windows[k]) if k in windows else slice(None) for k in range(x.ndim))]

    def gradient(self, b: Backward) -> Cotangents:
        (x,) = b.types()
        windows = self._windows(x.rank, b.attrs)
        found = b.full_g()
        for axis, (start, stop, step) in windows.items():
            if step != 1:
                shape = b.type(found).shape
                whole = b.zeros(TensorType((*shape[:axis], x.shape[axis], *shape[axis + 1 :]), x.dtype))
                places = b.op("arange", start=start, stop=stop, step=step)
                found = b.op("scatter", whole, places, found, axis=axis)
        low = [windows[k][0] if k in windows and windows[k][2] == 1 else to_dim(0) for k in range(x.rank)]
        high = [
            to_dim(d - windows[k][1]) if k in windows and windows[k][2] == 1 else to_dim(0) for k, d in enumerate(x.shape)
        ]
        if any(n != 0 for n in (*low, *high)):
            found = b.op("pad", found, low=tuple(low), high=tuple(high))
        return (found,)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        windows = self._windows(out.rank, attrs)

        def at(axis: int, i: Scalar) -> Scalar:
            if axis not in windows:
                return i
            start, _, step = windows[axis]
            return _shifted(i * step if step != 1 else i, start)

        return compute(out, lambda *i: x[tuple(at(k, v) for k, v in enumerate(i))])


def _shifted(i: Scalar, by: Dim) -> Scalar:
    return i if by == 0 else i + size(by)


SLICE = register(
    Slice(
        "slice",
        1,
        1,
        (
            Attribute("axes", "ints"),
            Attribute("starts", "dims"),
            Attribute("stops", "dims"),
            Attribute("steps", "ints", ()),
        ),
    )
)


def _inside(i: Sequence[Scalar], starts: Sequence[Dim], shape: Sequence[Dim], whole: Sequence[Dim]) -> Scalar | None:
    """Whether an element lies in the window of a shape at these starts; None where the window is the whole."""
    conditions = []
    for v, start, n, total in zip(i, starts, shape, whole, strict=True):
        if start != 0:
            conditions.append(v >= size(start))
        if to_dim(start + n) != total:
            conditions.append(v < size(to_dim(start + n)))
    return reduce(logical_and, conditions) if conditions else None


def _before(i: Sequence[Scalar], starts: Sequence[Dim]) -> tuple[Scalar, ...]:
    return tuple(v if start == 0 else v - size(start) for v, start in zip(i, starts, strict=True))


def _per_dim(op: str, what: str, given: Sequence[Any], x: TensorType) -> None:
    if len(given) != x.rank:
        raise ShapeError(f"{op}: {len(given)} {what} for [{shape_text(x.shape)}]; give one per dim")


def _cut(b: Backward, x: Any, starts: Sequence[Dim], shape: Sequence[Dim]) -> Any:
    """The window of a shape that begins at these places."""
    stops = tuple(to_dim(start + n) for start, n in zip(starts, shape, strict=True))
    return b.op("slice", x, axes=tuple(range(len(stops))), starts=tuple(starts), stops=stops) if stops else x


class Pad(Moving):
    """`low[k]` elements `value` before and `high[k]` behind along each dim k."""

    @property
    def copies(self) -> bool:
        return True

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        _per_dim("pad", "values of low", attrs["low"], x)
        _per_dim("pad", "values of high", attrs["high"], x)
        check_number("pad", attrs["value"], x.dtype)
        sides = zip(x.shape, attrs["low"], attrs["high"], strict=True)
        return TensorType(tuple(to_dim(d + low + high) for d, low, high in sides), x.dtype)

    def view(self, xp: ArrayModule, x: Any, attrs: Attrs) -> Any:
        shape = [low + n + high for low, n, high in zip(attrs["low"], x.shape, attrs["high"], strict=True)]
        found = filled(xp, shape, check_number("pad", attrs["value"], x.dtype.name))
        write_window(found, x, attrs["low"])
        return found

    def check_read(self, attrs: Attrs) -> None:
        if attrs["value"] != 0:
            raise AxisError(
                f"pad with {attrs['value']}: a kernel reads zeros around a tensor, and nothing else; "
                "pad it in a program of its own"
            )

    def gradient(self, b: Backward) -> Cotangents:
        return (_cut(b, b.full_g(), b.attrs["low"], b.type(b.args[0]).shape),)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        # a cast rounds the value as the elements are
        value = cast(constant(attrs["value"], out.dtype), out.dtype)

        def element(*i: Scalar) -> Scalar:
            inside = _inside(i, attrs["low"], types[0].shape, out.shape)
            read = x[_before(i, attrs["low"])]
            return read if inside is None else select(inside, read, value)

        return compute(out, element)


PAD = register(
    Pad("pad", 1, 1, (Attribute("low", "dims"), Attribute("high", "dims"), Attribute("value", "number", Fraction(0))))
)


class UpdateSlice(GraphOperator):
    """A copy of `x` in which the window that begins at `starts` holds `window`; it has to lie within `x`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, window = types
        same_dtype(self.name, types)
        if window.rank != x.rank:
            raise ShapeError(
                f"{self.name}: a window [{shape_text(window.shape)}] of [{shape_text(x.shape)}]; reshape it to rank {x.rank}"
            )
        _per_dim(self.name, "starts", attrs["starts"], x)
        return x

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        x, window = types
        found = []
        for axis, (n, m, start) in enumerate(zip(x.shape, window.shape, attrs["starts"], strict=True)):
            found.append(at_most(0, start, f"the start along axis {axis} is not negative"))
            found.append(at_most(start + m, n, f"the end of the window along axis {axis} is within the dim"))
        return needs(*found)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, window = arrays
        found = x.copy()
        write_window(found, window, attrs["starts"])
        return found

    def gradient(self, b: Backward) -> Cotangents:
        g, starts, window = b.full_g(), b.attrs["starts"], b.type(b.args[1])
        around = b.op("update_slice", g, b.zeros(window), starts=starts) if b.wanted[0] else None
        return around, _cut(b, g, starts, window.shape) if b.wanted[1] else None

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        x, window = operands(types)

        def element(*i: Scalar) -> Scalar:
            inside = _inside(i, attrs["starts"], types[1].shape, out.shape)
            read = window[_before(i, attrs["starts"])]
            return read if inside is None else select(inside, read, x[i])

        return compute(out, element)


def write_window(x: Any, window: Any, starts: Sequence[int]) -> None:
    """Write a window of an array in place."""
    x[tuple(slice(start, start + n) for start, n in zip(starts, window.shape, strict=True))] = window


UPDATE_SLICE = register(UpdateSlice("update_slice", 2, 2, (Attribute("starts", "dims"),)))


class BroadcastTo(GraphOperator):
    """`x` under a shape that its dims broadcast to, as `numpy.broadcast_to`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        shape = attrs["shape"]
        given = shape[len(shape) - x.rank :]
        if len(shape) < x.rank or any(not is_one(d) and d != n for d, n in zip(x.shape, given, strict=True)):
            raise ShapeError(
                f"broadcast_to: [{shape_text(x.shape)}] to [{shape_text(shape)}]: each of the last dims must be equal, or "
                "1 in the tensor"
            )
        return TensorType(shape, x.dtype)

    def gradient(self, b: Backward) -> Cotangents:
        return b.to_operands((b.g,))

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return xp.broadcast_to(arrays[0], attrs["shape"]).copy()

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        return compute(out, lambda *i: x.broadcast(i))


BROADCAST_TO = register(BroadcastTo("broadcast_to", 1, 1, (Attribute("shape", "dims"),)))


class Flip(GraphOperator):
    """The elements in reverse order along `axes`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        normalize_axes("flip", attrs["axes"], types[0].rank)
        return types[0]

    def gradient(self, b: Backward) -> Cotangents:
        return (b.op("flip", b.g, axes=b.attrs["axes"]),)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return xp.flip(arrays[0], attrs["axes"]).copy()

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        axes = normalize_axes("flip", attrs["axes"], out.rank)

        def at(axis: int, i: Scalar) -> Scalar:
            return size(out.shape[axis]) - 1 - i if axis in axes else i

        return compute(out, lambda *i: x[tuple(at(k, v) for k, v in enumerate(i))])


FLIP = register(Flip("flip", 1, 1, (Attribute("axes", "ints"),)))
