"""Effects: functions that write to their first argument, for packed calls with `in_place=(0,)`.

Each returns the argument that it wrote to, so that what reads it can follow the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import DTypeError, InputError, ShapeError, UnknownOperator
from mirage.ir.annotations import Annotation, PartialTensor, partial_text
from mirage.ir.graph_operator import check_number, python_number, wide
from mirage.ir.operator import Attribute, Attrs, broadcast_partial, checked_attrs, is_array
from mirage.ir.operators.elementwise import ADD
from mirage.ir.operators.indexing import SCATTER, Scatter
from mirage.ir.operators.windows import UPDATE_SLICE, UpdateSlice, write_window
from mirage.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class InPlace:
    """An effect: `check` refuses operands of wrong annotations, `write` is its meaning for arrays."""

    name: str
    arity: int
    attributes: tuple[Attribute, ...]
    check: Callable[[str, Sequence[Annotation], Attrs], object]
    write: Callable[..., None]

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        """Canonical attributes; raises AttributeValueError as operators do."""
        return checked_attrs(self.name, self.attributes, given)

    def annotate(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        """The annotation of the result: that of the first operand. Raises ShapeError and DTypeError."""
        if len(args) != self.arity:
            raise ShapeError(f"{self.name}: takes {self.arity} operands, got {len(args)}")
        for k, a in enumerate(args):
            if not isinstance(a, TensorType | PartialTensor):
                raise ShapeError(f"{self.name}: operand {k + 1} is {a}, not a tensor; pass a tensor")
        self.check(self.name, args, attrs)
        return args[0]

    def __call__(self, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        """Write to the first array and return it; dims among the attributes are integers. Raises InputError."""
        x = arrays[0]
        if not getattr(x.flags, "writeable", True):
            raise InputError(f"{self.name}: its first argument cannot be written to; pass a copy of it")
        with np.errstate(all="ignore"):
            self.write(*arrays, **attrs)
        return x


def _fits(name: str, args: Sequence[Annotation], attrs: Attrs) -> None:
    """The second operand has to broadcast to the first, and to be of its element type."""
    x, y = args
    assert isinstance(x, TensorType | PartialTensor) and isinstance(y, TensorType | PartialTensor)
    if None not in (x.dtype, y.dtype) and y.dtype not in (x.dtype, "scalar"):
        raise DTypeError(f"{name}: {y} into {x}; cast it to {x.dtype}")
    shape = broadcast_partial(name, args)
    if shape is None or x.shape is None:
        return
    grows = len(shape) > len(x.shape) or any(None not in (a, b) and a != b for a, b in zip(shape, x.shape, strict=True))
    if grows:
        raise ShapeError(
            f"{name}: [{partial_text(y.shape)}] does not broadcast to [{partial_text(x.shape)}]; reshape it"
        )


def _addable(name: str, args: Sequence[Annotation], attrs: Attrs) -> None:
    ADD.check_elements(args)
    _fits(name, args, attrs)


def _fillable(name: str, args: Sequence[Annotation], attrs: Attrs) -> None:
    (x,) = args
    if isinstance(x, TensorType | PartialTensor) and x.dtype is not None:
        check_number(name, attrs["value"], x.dtype)


#: the effect needs of its operands what the operator does
_UPDATE = UpdateSlice("update_slice_", 2, 2, UPDATE_SLICE.attributes)


def _update_slice(x: np.ndarray, window: np.ndarray, starts: Sequence[int]) -> None:
    inside = x.ndim == window.ndim == len(starts) and x.dtype == window.dtype
    if not inside or any(s < 0 or s + n > size for s, n, size in zip(starts, window.shape, x.shape, strict=True)):
        # which takes longer than to write a row, and says what is wrong
        _UPDATE.check_run((x, window), {"starts": starts})
    # the window may be a part of what it is written to
    write_window(x, window.copy() if np.may_share_memory(x, window) else window, starts)


#: as of `_UPDATE`
_SCATTER = Scatter("scatter_", 3, 3, SCATTER.attributes[:1])


def _scatter_fits(name: str, args: Sequence[Annotation], attrs: Attrs) -> None:
    _SCATTER.annotate(args, {**attrs, "add": False})


def _scatter(x: np.ndarray, indices: np.ndarray, values: np.ndarray, axis: int) -> None:
    index: Any
    if isinstance(x, np.ndarray) and not indices.ndim and -x.shape[axis] <= indices < x.shape[axis]:
        # one slice, as in every round of a loop
        index = (*[slice(None)] * (axis % x.ndim), int(indices))
    else:
        xp: Any = np if isinstance(x, np.ndarray) else x.__array_namespace__()
        index = _SCATTER.places(xp, x, indices, axis)
    x[index] = values.copy() if np.may_share_memory(x, values) else values


def _add(x: np.ndarray, y: np.ndarray) -> None:
    _check_fit("add_", x, y)
    x[...] = (wide(x) + wide(y if is_array(y) else np.asarray(y))).astype(x.dtype, copy=False)


def _copy(x: np.ndarray, y: np.ndarray) -> None:
    _check_fit("copy_", x, y)
    x[...] = y.copy() if is_array(y) and np.may_share_memory(x, y) else y


def _check_fit(name: str, x: np.ndarray, y: np.ndarray) -> None:
    try:
        fits = np.broadcast_shapes(x.shape, getattr(y, "shape", ())) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f"{name}: an array of shape {list(y.shape)} does not broadcast to {list(x.shape)}; reshape it"
        )


def _fill(x: np.ndarray, value: Any) -> None:
    x[...] = python_number(check_number("fill_", value, x.dtype.name))


def _update_slice_fits(name: str, args: Sequence[Annotation], attrs: Attrs) -> None:
    _UPDATE.annotate(args, attrs)


#: every effect by name
EFFECTS: Mapping[str, InPlace] = {
    e.name: e
    for e in (
        InPlace("update_slice_", 2, _UPDATE.attributes, _update_slice_fits, _update_slice),
        InPlace("scatter_", 3, _SCATTER.attributes, _scatter_fits, _scatter),
        InPlace("copy_", 2, (), _fits, _copy),
        InPlace("add_", 2, (), _addable, _add),
        InPlace("fill_", 1, (Attribute("value", "number"),), _fillable, _fill),
    )
}


def get_effect(name: str) -> InPlace:
    """The effect of that name; raises UnknownOperator naming those that exist."""
    if name not in EFFECTS:
        raise UnknownOperator(f"effect {name!r} does not exist; use one of {', '.join(EFFECTS)}")
    return EFFECTS[name]
