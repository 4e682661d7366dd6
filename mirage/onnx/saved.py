"""Compiled models in files: their programs and weights, which load without onnx; nothing of a file is run as code."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from mirage.compilation import KERNEL_KINDS
from mirage.errors import FormatError, InputError
from mirage.folders import path_of, save_file
from mirage.frontends.imported import Given, Imported
from mirage.ir.codec import ONNX_MODEL, Index, at_least, parse_json, register
from mirage.ir.graph.nodes import Var
from mirage.ir.graph.parse import parse_module
from mirage.ir.types import TensorType
from mirage.onnx.programs import CompiledPrograms, Program
from mirage.runtime import archive
from mirage.runtime.executable import executable_from_bytes


@dataclass(frozen=True)
class _StoredArray:
    """An array of numbers, as its bytes, or of strings, which is of the type "object", as JSON."""

    dtype: np.dtype
    shape: tuple[Annotated[int, at_least(0)], ...]


@dataclass(frozen=True)
class _Constant:
    """An output that is an array of the file."""

    array: Index


@dataclass(frozen=True)
class _StoredProgram:
    """A program, whose arrays are numbers of those of the file; `values` are of inputs that decide shapes, if it is for these."""

    module: str
    inputs: tuple[Index, ...]
    attributes: tuple[Index, ...]
    outputs: tuple[int | Given | _Constant, ...]
    native: Mapping[str, int]
    fallback: Mapping[str, int]
    reasons: Mapping[str, str]
    values: tuple[Index, ...] | None


@dataclass(frozen=True)
class _Stored:
    """The head of a saved model."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    deciding: tuple[str, ...]
    optional: tuple[str, ...]
    programs: tuple[_StoredProgram, ...]
    arrays: tuple[_StoredArray, ...]


def _dtype(name: Any) -> np.dtype:
    """The element type of a name: one of NumPy's numbers, those of ml_dtypes, or "object"."""
    try:
        found = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError):
        found = None
    if found is None or found.name != name or not (found.kind in "biufcO" or found.type.__module__ == "ml_dtypes"):
        raise ValueError("the name of an element type")
    return found


register(np.dtype, None, lambda dtype: dtype.name, _dtype)


class _Arrays:
    """Arrays by number, each once."""

    def __init__(self) -> None:
        self.found: list[np.ndarray] = []
        self._places: dict[int, int] = {}

    def add(self, array: Any) -> int:
        if id(array) not in self._places:
            self._places[id(array)] = len(self.found)
            self.found.append(array)
        return self._places[id(array)]


def save(path: str | os.PathLike[str], model: CompiledPrograms) -> None:
    """Write the programs of a model; raises InputError where that cannot be."""
    arrays = _Arrays()
    programs = tuple(_store(p, arrays) for p in model.programs)
    members = {f"programs/{k}": p.executable.to_bytes() for k, p in enumerate(model.programs)}
    members |= {f"arrays/{k}": _bytes(model.name, x) for k, x in enumerate(arrays.found)}
    head = _Stored(
        model.name, model.inputs, model.outputs, model.deciding, tuple(sorted(model.optional)), programs,
        tuple(_StoredArray(x.dtype, x.shape) for x in arrays.found),
    )  # fmt: skip
    save_file(path, archive.pack(ONNX_MODEL, head, members))


def _store(program: Program, arrays: _Arrays) -> _StoredProgram:
    imported = program.imported
    outputs = tuple(
        _Constant(arrays.add(o.value)) if isinstance(o, Given) and o.position is None else o for o in imported.outputs
    )
    values = None if program.values is None else tuple(map(arrays.add, program.values))
    return _StoredProgram(
        str(imported.module), tuple(imported.inputs), tuple(map(arrays.add, imported.attributes)), outputs, imported.native,
        imported.fallback, imported.reasons, values,
    )  # fmt: skip


def _bytes(name: str, array: np.ndarray) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    if not all(isinstance(x, str) for x in array.flat):
        raise InputError(f"{name}: a constant that is neither of numbers nor of strings cannot be saved")
    return json.dumps([*array.flat]).encode()


def load(path: str | os.PathLike[str]) -> CompiledPrograms:
    """A compiled model that `CompiledModel.save` wrote: its kernels are verified again and compiled for this machine.

    Nothing of the file is run as code. onnx need not be installed where no operator runs in its reference evaluator. Raises
    InputError if the file cannot be read, FormatError if it is no compiled model, altered or damaged, VerificationError if a
    kernel does not compute what it stands for, UnknownFunction where onnx is needed.
    """
    path = path_of(path)
    with archive.reading(ONNX_MODEL, path):
        head, members = archive.unpack(ONNX_MODEL, _Stored, path)
        _check_names(head)
        arrays = [_array(members[f"arrays/{k}"], a) for k, a in enumerate(head.arrays)]
        programs = [_restore(head, p, members[f"programs/{k}"], arrays) for k, p in enumerate(head.programs)]
        return CompiledPrograms(head.name, head.inputs, head.outputs, head.deciding, head.optional, programs)


def _check_names(head: _Stored) -> None:
    """Raise FormatError where names of inputs do not fit together."""
    if len({*head.inputs}) != len(head.inputs) or not {*head.deciding, *head.optional} <= {*head.inputs}:
        raise FormatError("names of inputs that do not fit together; compile the model again")


def _array(content: bytes, a: _StoredArray) -> np.ndarray:
    count = math.prod(a.shape)
    if a.dtype == object:
        texts = parse_json(content)
        if not isinstance(texts, list) or len(texts) != count or not all(isinstance(x, str) for x in texts):
            raise FormatError(f"an array of strings {list(a.shape)} has other elements")
        found = np.empty(count, object)
        found[:] = texts
        return found.reshape(a.shape)
    if len(content) != count * a.dtype.itemsize:
        raise FormatError(f"an array of {a.dtype.name}{list(a.shape)} has {len(content)} bytes")
    return np.frombuffer(content, a.dtype).reshape(a.shape)


def _restore(head: _Stored, stored: _StoredProgram, executable: bytes, arrays: Sequence[np.ndarray]) -> Program:
    outputs = [Given(value=arrays[o.array]) if isinstance(o, _Constant) else o for o in stored.outputs]
    imported = Imported(
        parse_module(stored.module, KERNEL_KINDS), list(stored.inputs), [arrays[k] for k in stored.attributes], outputs,
        Counter(stored.native), Counter(stored.fallback), dict(stored.reasons),
    )  # fmt: skip
    run = executable_from_bytes(executable, KERNEL_KINDS)
    main = imported.module.functions[imported.module.main]
    results, given = len(getattr(main.returns, "fields", ())), len(stored.inputs) + len(stored.attributes)
    sound = (
        all(k < len(head.inputs) for k in stored.inputs)
        and [p.name for p in main.parameters] == list(run.parameters)
        # a program that reads nothing has a parameter nevertheless
        and len(main.parameters) == max(given, 1)
        and all(map(_fits, imported.attributes, main.parameters[len(stored.inputs) :]))
        and len(outputs) == len(head.outputs)
        and len(head.deciding if stored.values is None else stored.values) == len(head.deciding)
        and all(0 <= o < results if isinstance(o, int) else _is_given(o, len(head.inputs)) for o in outputs)
    )
    if not sound:
        raise FormatError("a program whose parts do not fit together; compile the model again")
    values = None if stored.values is None else tuple(arrays[k] for k in stored.values)
    return Program(imported, run, values)


def _fits(weights: np.ndarray, parameter: Var) -> bool:
    """Whether weights are of the type of their parameter."""
    type_ = parameter.annotation
    return not isinstance(type_, TensorType) or (weights.dtype.name == type_.dtype and weights.shape == type_.shape)


def _is_given(output: Given, inputs: int) -> bool:
    """Whether it is an array, or one of so many inputs."""
    return isinstance(output.value, np.ndarray) if output.position is None else 0 <= output.position < inputs
