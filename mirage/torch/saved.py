"""Compiled models in files: their programs, weights, and what calls and results look like; nothing of a file is run as code."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch.utils import _pytree as pytree

from mirage.compilation import KERNEL_KINDS
from mirage.errors import FormatError, InputError
from mirage.folders import path_of, save_file
from mirage.frontends.imported import Given, Imported
from mirage.ir.codec import TORCH_MODEL, Index, at_least, register
from mirage.ir.graph.parse import parse_module
from mirage.runtime import archive
from mirage.runtime.executable import executable_from_bytes
from mirage.torch.arguments import PLAIN, Key, dtype_name
from mirage.torch.caches import register_caches
from mirage.torch.compiled import CompiledGraph
from mirage.torch.guards import Guards
from mirage.torch.program import Layout, Program, Unflatten
from mirage.torch.programs import CompiledPrograms
from mirage.torch.trees import spec_from_json, spec_to_json
from mirage.torch.weights import Weights

_KINDS = {kind.__name__: kind for kind in PLAIN}


@dataclass(frozen=True)
class _StoredTensor:
    dtype: torch.dtype
    shape: tuple[Annotated[int, at_least(0)], ...]


@dataclass(frozen=True)
class _StoredProgram:
    """A program, whose tensors are numbers of those of the file."""

    key: Key
    module: str
    inputs: tuple[int, ...]
    attributes: tuple[Index, ...]
    outputs: tuple[int | Given, ...]
    native: Mapping[str, int]
    fallback: Mapping[str, int]
    reasons: Mapping[str, str]
    layout: Layout
    weights: tuple[Index, ...]
    state: tuple[Index, ...]
    guards: Guards
    result: pytree.TreeSpec
    names: tuple[str, ...]
    random: bool
    checked: tuple[tuple[tuple[str, int], ...], ...]
    told: str


@dataclass(frozen=True)
class _Stored:
    """The head of a saved model."""

    name: str
    programs: tuple[_StoredProgram, ...]
    tensors: tuple[_StoredTensor, ...]


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError("the name of an element type")
    return found


def _kind(name: Any) -> type:
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"one of {', '.join(_KINDS)}")
    return _KINDS[name]


register(torch.dtype, "dtype", dtype_name, _dtype)
register(type, "type", lambda kind: kind.__name__, _kind)
register(pytree.TreeSpec, "tree", spec_to_json, spec_from_json)


def save(path: str | os.PathLike[str], programs: Sequence[tuple[Key, Program]], name: str) -> None:
    """Write programs with the kinds of arguments that they are for; raises InputError where that cannot be."""
    if not programs:
        raise InputError(f"{name}: there is no program to save; call the compiled model before, under torch.no_grad()")
    tensors = _Tensors()
    stored = tuple(_store(key, program, tensors) for key, program in programs)
    members = {f"programs/{k}": program.graph.executable.to_bytes() for k, (_, program) in enumerate(programs)}
    members |= {f"tensors/{k}": _bytes(t) for k, t in enumerate(tensors.found)}
    head = _Stored(name, stored, tuple(_StoredTensor(t.dtype, tuple(t.shape)) for t in tensors.found))
    save_file(path, archive.pack(TORCH_MODEL, head, members))


class _Tensors:
    """Tensors by number, each once."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._places: dict[int, int] = {}

    def add(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        for t in tensors:
            if id(t) not in self._places:
                self._places[id(t)] = len(self.found)
                self.found.append(t)
        return tuple(self._places[id(t)] for t in tensors)


def _bytes(t: Any) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if t.numel() else b""


def _store(key: Key, program: Program, tensors: _Tensors) -> _StoredProgram:
    imported = program.imported
    program.weights.note()
    program.state.note()
    return _StoredProgram(
        key, str(imported.module), tuple(imported.inputs), tensors.add(imported.attributes), tuple(imported.outputs),
        imported.native, imported.fallback, imported.reasons, program.layout, tensors.add(program.weights.tensors),
        tensors.add(program.state.tensors), program.guards, program.unflatten.spec, tuple(program.names),
        program.random, tuple(tuple(sorted(c)) for c in program.checked), program.told,
    )  # fmt: skip


def load(path: str | os.PathLike[str]) -> CompiledPrograms:
    """A compiled model that `CompiledModel.save` wrote: its kernels are verified again and compiled for this machine.

    Nothing of the file is run as code. Results are of the classes of the model where these are registered as pytrees in this
    process, as they are once they are imported, else dicts. Raises InputError if the file cannot be read, FormatError if it is
    no compiled model, altered or damaged, VerificationError if a kernel does not compute what it stands for.
    """
    path = path_of(path)
    register_caches()
    with archive.reading(TORCH_MODEL, path):
        head, members = archive.unpack(TORCH_MODEL, _Stored, path)
        tensors = [_tensor(members[f"tensors/{k}"], t) for k, t in enumerate(head.tensors)]
        programs = [_restore(p, members[f"programs/{k}"], tensors) for k, p in enumerate(head.programs)]
        return CompiledPrograms(head.name, programs)


def _tensor(content: bytes, t: _StoredTensor) -> Any:
    if len(content) != math.prod(t.shape) * t.dtype.itemsize:
        raise FormatError(f"a tensor of {t.dtype}{list(t.shape)} has {len(content)} bytes")
    found = torch.frombuffer(bytearray(content), dtype=t.dtype) if content else torch.empty(0, dtype=t.dtype)
    return found.reshape(t.shape)


def _restore(stored: _StoredProgram, executable: bytes, tensors: Sequence[Any]) -> tuple[Key, Program]:
    module, layout = parse_module(stored.module, KERNEL_KINDS), stored.layout
    imported = Imported(
        module, list(stored.inputs), [tensors[k] for k in stored.attributes], list(stored.outputs),
        Counter(stored.native), Counter(stored.fallback), dict(stored.reasons),
    )  # fmt: skip
    graph = CompiledGraph(imported, executable_from_bytes(executable, KERNEL_KINDS), layout.weights)
    _check(imported, graph, layout, stored.result.num_leaves)
    _check_key(stored.key)
    program = Program(
        graph, layout, stored.guards, Weights(None, [(None, tensors[k]) for k in stored.weights]),
        Weights(None, [(None, tensors[k]) for k in stored.state]), Unflatten(stored.result), list(stored.names), {},
        stored.random, told=stored.told,
    )  # fmt: skip
    program.checked |= {frozenset(small) for small in stored.checked}
    return stored.key, program


def _check_key(key: Key) -> None:
    """Raise FormatError for what is no key of `arguments.split`."""

    def is_item(item: Any) -> bool:
        match item:
            case (torch.dtype(), int()):
                return True
            case (type() as kind, value):
                return type(value) is kind
            case (pytree.TreeSpec(), *leaves):
                return all(map(is_item, leaves))
        return False

    match key:
        case (int(), [*names], *items) if all(isinstance(n, str) for n in names) and all(map(is_item, items)):
            return
    raise FormatError("the kind of arguments of a program is none; compile the model again")


def _check(imported: Imported, graph: CompiledGraph, layout: Layout, leaves: int) -> None:
    """Raise FormatError where the parts of a program do not fit together."""
    main = imported.module.functions[imported.module.main]
    results = len(getattr(main.returns, "fields", ()))
    every = sorted([*layout.weights, *layout.state, *layout.given])
    sound = (
        len(set(every)) == len(every)
        and all(0 <= k < layout.inputs for k in every)
        and set(imported.inputs) <= set(every)
        and len(main.parameters) == len(imported.inputs) + len(imported.attributes)
        and [p.name for p in main.parameters] == list(graph.executable.parameters)
        and len(imported.outputs) == leaves
        and all(k in {*layout.state, *layout.given} for k in layout.written)
        and all(
            0 <= o < results if isinstance(o, int) else o.position is None or o.position in every for o in imported.outputs
        )
    )
    if not sound:
        raise FormatError("a program whose parts do not fit together; compile the model again")
