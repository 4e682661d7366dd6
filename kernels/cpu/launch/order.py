"""Elements in order, running sums, and elements written where positions say, in C (csrc/order.c), where NumPy takes longer.

Programs call `cpu.topk`, `cpu.sort`, `cpu.argsort`, `cpu.cumsum`, `cpu.scatter` and `cpu.put_along_axis`, each the operator of
that name; `unique`, whose result has a size that only the run tells, stays an operator. What C lacks is NumPy's: other element
types, values that broadcast, and the sorting of many elements, which NumPy does with vectors.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from mirage.errors import MirageError
from mirage.ir.operator import get_operator
from mirage.ir.operators.indexing import outside
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher

Arrays: TypeAlias = Sequence[np.ndarray]

#: statuses of order.c
_NO_MEMORY, _OUTSIDE = 1, 2
#: element types by their numbers there
_DTYPES = ("float32", "float64", "int32", "int64")
#: elements that are sorted here, at most: of more, what a call of NumPy takes beside its work is less than what its vectors save
_MOST = 512


class _Arguments(ctypes.Structure):
    """`ordered` of order.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "at", "given", "values", "places")),
        *((name, ctypes.c_int64) for name in ("outer", "count", "inner", "kept", "wrong")),
        *((name, ctypes.c_int) for name in ("dtype", "descending", "wide", "along", "one", "add", "itemsize")),
    )


#: arguments without addresses, and the names of the tensors' addresses, inputs and then outputs; None where C lacks it
_Prepared: TypeAlias = "tuple[_Arguments, tuple[str, ...]] | None"


def _rows(x: np.ndarray, axis: int) -> _Arguments:
    axis %= x.ndim
    args = _Arguments(itemsize=x.itemsize, dtype=_DTYPES.index(x.dtype.name) if x.dtype.name in _DTYPES else -1)
    args.outer, args.count, args.inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    return args


def _are(arrays: Arrays, shape: Sequence[int], *dtypes: Any) -> bool:
    """Whether arrays are of that shape, and of these types: C asks no more."""
    return all(a.shape == tuple(shape) and a.dtype == t for a, t in zip(arrays, dtypes, strict=True))


def _topk(inputs: Arrays, outputs: Arrays, *, axis: int, largest: bool) -> _Prepared:
    (x,) = inputs
    args, axis = _rows(x, axis), axis % x.ndim
    args.kept, args.descending = outputs[0].shape[axis], largest
    fits = args.kept <= args.count and _are(outputs, (*x.shape[:axis], args.kept, *x.shape[axis + 1 :]), x.dtype, np.int64)
    return (args, ("x", "values", "places")) if args.dtype >= 0 and fits else None


def _sort(inputs: Arrays, outputs: Arrays, *, axis: int, descending: bool) -> _Prepared:
    return _sorted(inputs[0], outputs, axis, descending, "values", inputs[0].dtype)


def _argsort(inputs: Arrays, outputs: Arrays, *, axis: int, descending: bool) -> _Prepared:
    return _sorted(inputs[0], outputs, axis, descending, "places", np.int64)


def _sorted(x: np.ndarray, outputs: Arrays, axis: int, descending: bool, result: str, dtype: Any) -> _Prepared:
    args = _rows(x, axis)
    args.kept, args.descending = args.count, descending
    fits = args.dtype >= 0 and x.size <= _MOST and _are(outputs, x.shape, dtype)
    return (args, ("x", result)) if fits else None


def _cumsum(inputs: Arrays, outputs: Arrays, *, axis: int) -> _Prepared:
    (x,) = inputs
    args = _rows(x, axis)
    return (args, ("x", "values")) if args.dtype >= 0 and _are(outputs, x.shape, x.dtype) else None


def _scatter(inputs: Arrays, outputs: Arrays, *, axis: int, add: bool, along: bool = False) -> _Prepared:
    x, at, given = inputs
    args, axis = _rows(x, axis), axis % x.ndim
    args.add, args.along, args.one, args.wide = add, along, given.size == 1, at.dtype == np.int64
    there = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    args.kept = at.size
    if along:
        args.kept = at.shape[axis]
        there = (*x.shape[:axis], args.kept, *x.shape[axis + 1 :])
        if at.shape != there:
            return None
    whole = args.one or given.shape == there
    typed = (args.dtype >= 0 or not add) and at.dtype in (np.int32, np.int64)
    fits = whole and typed and given.dtype == x.dtype and _are(outputs, x.shape, x.dtype)
    return (args, ("x", "at", "given", "values")) if fits else None


#: by the operator's name, what gives the arguments, and the function of C
_OPERATORS: Mapping[str, tuple[Callable[..., _Prepared], str]] = {
    "topk": (_topk, "mi_order"),
    "sort": (_sort, "mi_order"),
    "argsort": (_argsort, "mi_order"),
    "cumsum": (_cumsum, "mi_sums"),
    "scatter": (_scatter, "mi_scatter"),
    "put_along_axis": (functools.partial(_scatter, along=True), "mi_scatter"),
}


@functools.cache
def _function(name: str) -> Any:
    found = getattr(toolchain.library("order"), name)
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return found


def _error(op: str, axis: int, args: _Arguments, status: int) -> Exception:
    if status == _OUTSIDE:
        return outside(op, axis, args.wrong, args.count)
    return MirageError(f"{op}: there is no memory for {args.count} elements in order; use smaller sizes")


def _run(op: str, inputs: Arrays, outputs: Arrays, **attrs: Any) -> None:
    """What programs call as `cpu.` and the operator's name: of C-contiguous arrays; `k` of topk is that of the outputs.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, and what the operator does.
    """
    arguments, function = _OPERATORS[op]
    # a number may stand for a tensor of one element
    inputs = [a if isinstance(a, np.ndarray) else np.asarray(a, inputs[0].dtype) for a in inputs]
    prepared = arguments(inputs, outputs, **attrs)
    if prepared is None:
        if op == "topk":
            attrs["k"] = outputs[0].shape[attrs["axis"]]
        found = get_operator(op).run(list(inputs), attrs, {})
        for out, value in zip(outputs, found if isinstance(found, tuple) else (found,), strict=True):
            out[...] = value
        return
    args, names = prepared
    for name, array in zip(names, (*inputs, *outputs), strict=True):
        setattr(args, name, address(array))
    if status := _function(function)(ctypes.addressof(args), None, 1):
        raise _error(op, attrs["axis"], args, status)


def _prepare(op: str, inputs: Arrays, outputs: Arrays, **attrs: Any) -> Launch | None:
    """The launch of that call for tensors like these, inputs and then outputs; None where C lacks it, or for a number among them.
    Fails as the call does.
    """
    arguments, function = _OPERATORS[op]
    prepared = arguments(inputs, outputs, **attrs) if all(isinstance(a, np.ndarray) for a in inputs) else None
    if prepared is None:
        return None
    args, names = prepared
    return _launch(op, attrs["axis"], function, args, {name: place for place, name in enumerate(names)})


def _launch(op: str, axis: int, function: str, args: _Arguments, places: Mapping[str, int]) -> Launch:
    """The launch with these arguments, and the places of the tensors whose addresses are among them, by name."""
    pointers = tuple((field(args, name), place) for name, place in places.items())
    error = functools.partial(_error, op, axis, args)
    return Launch(launcher(_function(function)), ctypes.addressof(args), pointers, error, args)


def unique(arrays: Arrays, attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> np.ndarray:
    """What the operator `unique` gives for an array of NumPy. Raises as `_run`."""
    row = np.ascontiguousarray(arrays[0]).reshape(-1)
    values = np.empty_like(row)
    prepared = _sort([row], [values], axis=0, descending=False)
    if prepared is None:
        return get_operator("unique").run(list(arrays), attrs, sizes)  # type: ignore[no-any-return]
    args, _ = prepared
    args.x, args.values = address(row), address(values)
    if status := _function("mi_unique")(ctypes.addressof(args), None, 1):
        raise _error("unique", 0, args, status)
    return values[: args.kept]


def prepare_scatter(given: Arrays, *, axis: int) -> Launch | None:
    """The launch of the effect `scatter_` for tensors like these: what it writes to, positions and values. None where C lacks it,
    or values may be another view of what they are written to. Nothing is written where a position is wrong.
    """
    x, _, values = given
    found = _scatter(given, [x], axis=axis, add=False)
    if found is None or values.size == x.size or not x.flags.writeable:
        return None
    return _launch("scatter_", axis, "mi_scatter", found[0], {"x": 0, "at": 1, "given": 2, "values": 0})


def prepare_copy(given: Arrays) -> Launch | None:
    """The launch of the effect `copy_` for tensors like these; None where the second one is broadcast."""
    to, x = given
    if not isinstance(x, np.ndarray) or x.shape != to.shape or x.dtype != to.dtype or not to.flags.writeable:
        return None
    args = _Arguments(itemsize=x.itemsize, outer=1, count=x.size, inner=1)
    return _launch("copy_", 0, "mi_copy", args, {"values": 0, "x": 1})


#: the effects that may be launched, and what prepares them
EFFECTS: Mapping[str, Callable[..., Launch | None]] = {"copy_": prepare_copy, "scatter_": prepare_scatter}
#: the functions that programs may call without registering them, and what prepares launches of them
FUNCTIONS: Mapping[str, Callable[..., None]] = {f"cpu.{op}": functools.partial(_run, op) for op in _OPERATORS}
PREPARED: Mapping[str, Callable[..., Launch | None]] = {f"cpu.{op}": functools.partial(_prepare, op) for op in _OPERATORS}
