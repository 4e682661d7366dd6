"""Compiled models in files: their programs, weights, and what calls and results look like; nothing of a file is run as code."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import torch

from mirage.compilation import KERNEL_KINDS
from mirage.errors import FormatError, InputError, MirageError
from mirage.folders import path_of, save_file
from mirage.frontends.aten.importer import Given, Imported
from mirage.ir.graph.parse import parse_module
from mirage.runtime.executable import DAMAGED, digest, executable_from_bytes
from mirage.torch.arguments import PLAIN, Key, dtype_name
from mirage.torch.compiled import CompiledGraph
from mirage.torch.guards import guards_from_json
from mirage.torch.program import Layout, Program, Unflatten
from mirage.torch.programs import CompiledPrograms
from mirage.torch.trees import spec_from_json, spec_to_json
from mirage.torch.weights import Weights

FORMAT, SCHEMA = "mirage torch model", 1
_HEAD, _DIGEST = "model.json", "digest"


def save(path: str | os.PathLike[str], programs: Sequence[tuple[Key, Program]], name: str) -> None:
    """Write programs with the kinds of arguments that they are for; raises InputError where that cannot be."""
    if not programs:
        raise InputError(f"{name}: there is no program to save; call the compiled model before, under torch.no_grad()")
    tensors = _Tensors()
    members: dict[str, bytes] = {}
    told = []
    for k, (key, program) in enumerate(programs):
        told.append(_program_to_json(key, program, tensors))
        members[f"programs/{k}"] = program.graph.executable.to_bytes()
    for k, t in enumerate(tensors.found):
        members[f"tensors/{k}"] = _bytes(t)
    head = {"format": FORMAT, "schema": SCHEMA, "name": name, "programs": told, "tensors": tensors.to_json()}
    members = {_HEAD: json.dumps(head).encode(), **members}
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for member, content in (*members.items(), (_DIGEST, digest(members).encode())):
            archive.writestr(member, content)
    save_file(path, memory.getvalue())


class _Tensors:
    """Tensors by number, each once."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._places: dict[int, int] = {}

    def add(self, tensors: Sequence[Any]) -> list[int]:
        for t in tensors:
            if id(t) not in self._places:
                self._places[id(t)] = len(self.found)
                self.found.append(t)
        return [self._places[id(t)] for t in tensors]

    def to_json(self) -> list[Any]:
        return [[dtype_name(t.dtype), list(t.shape)] for t in self.found]


def _bytes(t: Any) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if t.numel() else b""


def _dtype(name: Any) -> Any:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise FormatError(f"{name!r} is no element type")
    return found


def _program_to_json(key: Key, program: Program, tensors: _Tensors) -> dict[str, Any]:
    imported, layout = program.imported, program.layout
    program.weights.note()
    program.state.note()
    return {
        "key": _key_to_json(key),
        "module": str(imported.module),
        "inputs": imported.inputs,
        "attributes": tensors.add(imported.attributes),
        "outputs": [o if isinstance(o, int) else {"position": o.position, "value": _plain(o.value)} for o in imported.outputs],
        "native": dict(imported.native),
        "fallback": dict(imported.fallback),
        "reasons": imported.reasons,
        "layout": [layout.inputs, layout.weights, layout.state, layout.given, layout.written],
        "weights": tensors.add(program.weights.tensors),
        "state": tensors.add(program.state.tensors),
        "guards": program.guards.to_json(),
        "result": spec_to_json(program.unflatten.spec),
        "names": list(program.names),
        "random": program.random,
        "checked": [sorted(c) for c in program.checked],
        "told": program.told,
    }


def _plain(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return {"dtype": dtype_name(x)}
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": str(x)}
    if not isinstance(x, PLAIN):
        raise InputError(f"a result of the model is a {type(x).__name__}, which cannot be saved")
    return x


def _plain_from_json(x: Any) -> Any:
    match x:
        case {"dtype": str() as name}:
            return _dtype(name)
        case {"float": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case None | bool() | int() | float() | str():
            return x
    raise FormatError(f"{x!r} is no plain value")


def _key_to_json(key: Key) -> Any:
    count, names, *items = key
    return [count, list(names), [_item_to_json(x) for x in items]]


def _item_to_json(item: Any) -> Any:
    first = item[0]
    if isinstance(first, torch.dtype):
        return {"tensor": [dtype_name(first), item[1]]}
    if isinstance(first, type):
        return {"value": _plain(item[1])}
    return {"tree": spec_to_json(first), "leaves": [_item_to_json(x) for x in item[1:]]}


def _key_from_json(data: Any) -> Key:
    count, names, items = data
    return int(count), tuple(map(str, names)), *(_item_from_json(x) for x in items)


def _item_from_json(item: Any) -> Any:
    match item:
        case {"tensor": [name, int() as rank]}:
            return _dtype(name), rank
        case {"value": value}:
            plain = _plain_from_json(value)
            return type(plain), plain
        case {"tree": tree, "leaves": [*leaves]}:
            return spec_from_json(tree), *(_item_from_json(x) for x in leaves)
    raise FormatError(f"{item!r} is no kind of argument")


def load(path: str | os.PathLike[str]) -> CompiledPrograms:
    """A compiled model that `CompiledModel.save` wrote: its kernels are verified again and compiled for this machine.

    Nothing of the file is run as code. Results are of the classes of the model where these are registered as pytrees in this
    process, as they are once they are imported, else dicts. Raises InputError if the file cannot be read, FormatError if it is
    no compiled model, altered or damaged, VerificationError if a kernel does not compute what it stands for.
    """
    path = path_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            head = json.loads(archive.read(_HEAD))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise FormatError("not a compiled model; pass a file that save() wrote")
            if head.get("schema") != SCHEMA:
                raise FormatError(f"schema {head.get('schema')!r} is not {SCHEMA}; compile the model again")
            members = {name: archive.read(name) for name in archive.namelist() if name != _DIGEST}
            if archive.read(_DIGEST) != digest(members).encode():
                raise FormatError("altered, or damaged, since it was saved; compile the model again")
        tensors = [_tensor(members[f"tensors/{k}"], *t) for k, t in enumerate(head["tensors"])]
        programs = [
            _program_from_json(data, members[f"programs/{k}"], tensors) for k, data in enumerate(head["programs"])
        ]
        return CompiledPrograms(str(head["name"]), programs)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); pass a file that save() wrote") from None
    except MirageError as e:
        raise type(e)(f"{path}: {e}") from None
    except DAMAGED as e:
        raise FormatError(f"{path}: not a compiled model, or damaged ({e}); compile the model again") from None


def _tensor(content: bytes, name: Any, shape: Any) -> Any:
    dtype, shape = _dtype(name), [int(n) for n in shape]
    if len(content) != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise FormatError(f"a tensor of {name}{shape} has {len(content)} bytes")
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)


def _program_from_json(data: Mapping[str, Any], executable: bytes, tensors: Sequence[Any]) -> tuple[Key, Program]:
    module = parse_module(str(data["module"]), KERNEL_KINDS)
    outputs = [_output_from_json(o) for o in data["outputs"]]
    imported = Imported(
        module, [int(k) for k in data["inputs"]], [tensors[k] for k in data["attributes"]], outputs,
        Counter(data["native"]), Counter(data["fallback"]), dict(data["reasons"]),
    )  # fmt: skip
    inputs, *places = data["layout"]
    layout = Layout(int(inputs), *(tuple(int(k) for k in p) for p in places))
    graph = CompiledGraph(imported, executable_from_bytes(executable, KERNEL_KINDS), layout.weights)
    result = spec_from_json(data["result"])
    _check(imported, graph, layout, result.num_leaves)
    program = Program(
        graph, layout, guards_from_json(data["guards"]), Weights(None, [(None, tensors[k]) for k in data["weights"]]),
        Weights(None, [(None, tensors[k]) for k in data["state"]]), Unflatten(result), [str(n) for n in data["names"]], {},
        bool(data["random"]), told=str(data["told"]),
    )  # fmt: skip
    program.checked |= {frozenset((str(n), int(s)) for n, s in small) for small in data["checked"]}
    return _key_from_json(data["key"]), program


def _output_from_json(o: Any) -> int | Given:
    if isinstance(o, int):
        return o
    return Given(None if o["position"] is None else int(o["position"]), _plain_from_json(o["value"]))


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
        and len(imported.outputs) == len(layout.written) + leaves
        and all(k in {*layout.state, *layout.given} for k in layout.written)
        and all(
            0 <= o < results if isinstance(o, int) else o.position is None or o.position in every for o in imported.outputs
        )
    )
    if not sound:
        raise FormatError("a program whose parts do not fit together; compile the model again")
