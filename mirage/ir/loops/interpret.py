"""The meaning of loop programs with NumPy: the yardstick for analyses, fusion and generated code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.dim_values import evaluate, value_at
from mirage.ir.functions import FUNCTIONS
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import (
    Apply,
    Binary,
    Cast,
    Checked,
    Const,
    Loop,
    Read,
    Scalar,
    Select,
    Size,
    Unary,
    value_dtype,
)
from mirage.ir.types import DTYPES, ELEMENTS

_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}
_REDUCE: dict[str, Any] = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


def identity(combiner: str, dtype: str) -> int | float:
    """What a reduction of no elements of a type gives."""
    match combiner:
        case "sum" | "any" | "argmax" | "argmin":
            return 0
        case "prod" | "all":
            return 1
    least = combiner == "max"
    if dtype in DTYPES:
        return -np.inf if least else np.inf
    info = np.iinfo(ELEMENTS[dtype])
    return int(info.min if least else info.max)


def run_loops(
    program: LoopProgram, inputs: Sequence[np.ndarray], sizes: Mapping[str, int], dtype: str | None = None
) -> list[np.ndarray]:
    """The outputs for arrays of the shapes that `sizes` (dim symbol -> size) binds.

    With `dtype` ("float64") every floating-point value is computed and kept in that type; else in the types of the
    program, intermediate 16-bit results in float32. Raises InputError for a checked index that is out of range, and for
    sizes that the program cannot have.
    """
    program.check(sizes)
    run = _Run(sizes, dtype)
    for (name, type), array in zip(program.inputs, inputs, strict=True):
        run.tensors[name] = np.asarray(array).astype(run.kept(type.dtype), copy=False)
    for name, stage in program.stages:
        try:
            with np.errstate(all="ignore"):
                found = run.stage(stage)
        except InputError as e:
            raise InputError(f"{program.name}: {e}") from None
        out = ELEMENTS[stage.dtype] if name in program.outputs else ELEMENTS[value_dtype(stage.dtype)]
        run.tensors[name] = found.astype(run.kept(stage.dtype) if dtype and stage.dtype in DTYPES else out)
    return [run.tensors[o] for o in program.outputs]


class _Run:
    def __init__(self, sizes: Mapping[str, int], dtype: str | None) -> None:
        self.sizes = sizes
        self.dtype = dtype
        self.tensors: dict[str, np.ndarray] = {}

    def kept(self, dtype: str) -> np.dtype[Any]:
        """The NumPy type of a value of an element type."""
        if self.dtype is not None and dtype in DTYPES:
            return DTYPES[self.dtype]
        return ELEMENTS[dtype]

    def stage(self, stage: TensorExpr) -> np.ndarray:
        extents = {n: evaluate(d, self.sizes) for n, d in stage.extents.items()}
        shape = tuple(extents.values())
        index: dict[str, np.ndarray] = {}
        for k, (n, count) in enumerate(extents.items()):
            index[n] = np.arange(count, dtype=np.int64).reshape([-1 if j == k else 1 for j in range(len(shape))])
        value = np.broadcast_to(self.value(stage.body, index, np.True_, {}), shape)
        if not stage.reduce:
            return value
        rank = len(stage.loops)
        axes = tuple(range(rank, len(shape)))
        if prod(shape[rank:]) == 0:
            return np.full(shape[:rank], identity(stage.combiner, stage.dtype), ELEMENTS[value_dtype(stage.dtype)])
        if stage.combiner.startswith("arg"):
            return np.asarray(_REDUCE[stage.combiner](value, axis=rank))
        # sums of integers keep their type
        typed = {"dtype": value.dtype} if stage.combiner in ("sum", "prod") else {}
        return np.asarray(_REDUCE[stage.combiner](value, axis=axes, **typed))

    def value(self, x: Scalar, index: Mapping[str, np.ndarray], active: Any, memo: dict[Any, Any]) -> Any:
        """The values at all points of the loops; only those of `active` points matter, others may be anything."""
        key = (x, id(active))
        if key not in memo:
            # the condition is kept, so that its id stays its own
            memo[key] = (np.asarray(self._value(x, index, active, memo)), active)
        return memo[key][0]

    def _value(self, x: Scalar, index: Mapping[str, np.ndarray], active: Any, memo: dict[Any, Any]) -> Any:
        match x:
            case Const():
                return np.asarray(float(x.value) if x.type in DTYPES else x.value, self.kept(x.type))
            case Size():
                return np.asarray(value_at(x.dim, self.sizes), np.int64)
            case Loop():
                return index[x.name]
            case Read():
                return self.read(x, [self.value(i, index, active, memo) for i in x.index], active)
            case Checked():
                given, extent = self.value(x.index, index, active, memo), evaluate(x.extent, self.sizes)
                wrong = np.broadcast_to(
                    active & ((given < -extent) | (given >= extent)), np.broadcast(given, active).shape
                )
                if wrong.any():
                    value = np.broadcast_to(given, wrong.shape)[wrong][0]
                    raise InputError(index_message(x.where, int(value), extent))
                return np.where(given < 0, given + extent, given)
            case Select():
                condition = self.value(x.condition, index, active, memo)
                taken, other = active & condition, active & ~condition
                return np.where(
                    condition, self.value(x.then, index, taken, memo), self.value(x.orelse, index, other, memo)
                )
        values = [self.value(o, index, active, memo) for o in x.operands]
        match x:
            case Unary():
                return -values[0] if x.op == "neg" else ~values[0]
            case Binary():
                return _BINARY[x.op](*values)
            case Apply():
                found = FUNCTIONS[x.function].numpy(values[0], *(float(p) for p in x.parameters))
                return np.asarray(found, dtype=values[0].dtype)
            case Cast():
                return values[0].astype(ELEMENTS[x.to]).astype(self.kept(x.dtype))
        raise AssertionError(x)

    def read(self, x: Read, index: list[np.ndarray], active: Any) -> np.ndarray:
        tensor = self.tensors[x.tensor]
        shape = np.broadcast_shapes(*(i.shape for i in index), np.shape(active))
        safe = []
        for i, extent in zip(index, tensor.shape, strict=True):
            outside = np.broadcast_to(active & ((i < 0) | (i >= extent)), shape)
            assert not outside.any(), f"{x.tensor}: index out of range"
            safe.append(np.where(active, i, 0))
        if not tensor.size:
            return np.zeros(shape, self.kept(x.type))
        found: np.ndarray = tensor[tuple(safe)]
        return found.astype(self.kept(x.type))


def index_message(where: str, value: int, extent: int) -> str:
    """The error of an index that is out of range."""
    choice = f"{-extent} to {extent - 1}" if extent else "none: the dim is empty"
    return f"{where}: index {value} is out of range for a dim of {extent} elements; use {choice}"
