"""Compiled ONNX models."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

from mirage.compilation import compile as compile_module
from mirage.errors import InputError
from mirage.frontends.imported import Given
from mirage.frontends.onnx.fallback import listed
from mirage.frontends.onnx.files import checked_model, load_model
from mirage.frontends.onnx.importer import ImportedModel, import_model
from mirage.frontends.onnx.values import SMALL
from mirage.ir.types import TensorType
from mirage.remember import remember
from mirage.runtime.executable import Executable

#: sets of values that decide shapes, for which there are programs of their own
MAX_PROGRAMS = 8


class Program:
    """One imported model, compiled, with its weights."""

    def __init__(self, imported: ImportedModel, executable: Executable) -> None:
        self.imported = imported
        self.executable = executable
        given = dict(zip(imported.weights, imported.attributes, strict=True))
        if not imported.inputs and len(executable.parameters) > len(given):
            # a program that reads nothing has a parameter nevertheless
            given[executable.parameters[0]] = ()
        self._run = executable.bind(**given)

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """The outputs for all inputs of the model, in order. Raises what `Executable.__call__` raises."""
        found = self._run(*(inputs[k] for k in self.imported.inputs))
        return tuple(self._output(o, found, inputs) for o in self.imported.outputs)

    def _output(self, o: int | Given, found: Any, inputs: list[Any]) -> Any:
        if isinstance(o, int):
            return listed(found[o])
        return o.value if o.position is None else inputs[o.position]


class CompiledModel:
    """An ONNX model, compiled for all sizes of its dims.

    Inputs whose values decide shapes or attributes are part of a program: there is one for each of up to 8 sets of their values,
    made at the first call with them; beyond, operators that need them run in ONNX's reference evaluator.
    """

    def __init__(self, model: ModelProto, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._model = model
        self._options = dict(options)
        initialized = {t.name for t in model.graph.initializer} | {
            s.values.name for s in model.graph.sparse_initializer
        }
        given = [i for i in model.graph.input if i.name not in initialized]
        #: names of what calls take and give, in order
        self.inputs = tuple(i.name for i in given)
        self.outputs = tuple(o.name for o in model.graph.output)
        self._optional = {i.name for i in given if i.type.WhichOneof("value") == "optional_type"}
        imported = import_model(model)
        #: names of the inputs whose values decide shapes
        self.deciding = tuple(n for n in self.inputs if n in imported.needed)
        self._imported = imported
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._general: Program | None = None
        if not self.deciding:
            self._general = self._compiled(imported)

    @property
    def programs(self) -> list[Program]:
        """The programs that there are."""
        return [*self._programs.values(), *([self._general] if self._general else [])]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The model's result for arrays in the order of its inputs, or by name: one output, or a tuple of them.

        Raises InputError for what does not fit, GuardError, which names the dim, for sizes that contradict each other, and what
        importing the model for values that decide shapes raises.
        """
        if len(args) > len(self.inputs):
            raise InputError(
                f"{self.name}: {len(args)} inputs, and it takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        given = dict(zip(self.inputs, args, strict=False))
        if twice := [n for n in named if n in given]:
            raise InputError(f"{self.name}: input {twice[0]!r} is given twice; give it in order or by name")
        found = self.run({**given, **named})
        return found[0] if len(found) == 1 else found

    def run(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All outputs for inputs by name. Raises what calls raise."""
        if unknown := [n for n in inputs if n not in self.inputs]:
            raise InputError(f"{self.name}: there is no input {unknown[0]!r}; the inputs are {', '.join(self.inputs)}")
        if missing := [n for n in self.inputs if n not in inputs and n not in self._optional]:
            raise InputError(f"{self.name}: no input {missing[0]!r}; the inputs are {', '.join(self.inputs)}")
        return self._program(inputs)([inputs.get(n) for n in self.inputs])

    def _program(self, inputs: Mapping[str, Any]) -> Program:
        if not self.deciding:
            assert self._general is not None
            return self._general
        values = {n: np.asarray(inputs[n]) for n in self.deciding}
        key = tuple((x.dtype.str, x.shape, x.tobytes()) for x in values.values() if x.size <= SMALL)
        found = self._programs.get(key) if len(key) == len(values) else None
        if found is None:
            if len(key) == len(values) and len(self._programs) < MAX_PROGRAMS:
                made = self._compiled(import_model(self._model, self._checked(values)))
                return remember(self._programs, key, made, MAX_PROGRAMS)
            if self._general is None:
                self._general = self._compiled(self._imported)
            found = self._general
        return found

    def _checked(self, values: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Values that decide shapes, of the types that the model says."""
        main = self._imported.module.functions[self._imported.module.main]
        for k, p in zip(self._imported.inputs, main.parameters, strict=False):
            name, annotation = self.inputs[k], p.annotation
            if name in values and isinstance(annotation, TensorType):
                x = values[name]
                if x.dtype.name != annotation.dtype or x.ndim != annotation.rank:
                    raise InputError(f"{self.name}: input {name!r} is {x.dtype.name}{list(x.shape)}, not {annotation}")
        return values

    def _compiled(self, imported: ImportedModel) -> Program:
        main = imported.module.functions[imported.module.main]
        types = {p.name: p.annotation for p in main.parameters}
        constants = [n for n in imported.weights if isinstance(types[n], TensorType)]
        options = self._options
        if options.get("bounds"):
            known = {s for p in main.parameters if isinstance(p.annotation, TensorType) for s in p.annotation.symbols()}
            options = {
                **options,
                "bounds": {n: b for n, b in options["bounds"].items() if n in known or not self.deciding},
            }
        return Program(imported, compile_module(imported.module, constants=constants, **options))

    def explain(self) -> str:
        """The programs, and what of them runs in ONNX's reference evaluator."""
        lines = [f"{self.name}: inputs {', '.join(self.inputs) or 'none'}; outputs {', '.join(self.outputs)}"]
        if self.deciding:
            lines.append(
                f"one program for each set of values of {', '.join(self.deciding)}: {len(self._programs)} so far"
            )
        for program in self.programs:
            imported = program.imported
            lines += [
                f"{imported.native.total()} operators native, {imported.fallback.total()} calls of the reference evaluator",
                *(f"    {n} {op}: {imported.reasons.get(op, '')}" for op, n in imported.fallback.items()),
                program.executable.explain().rstrip(),
            ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """What `explain` says, as data."""
        programs = [
            {
                "native": dict(p.imported.native),
                "fallback": dict(p.imported.fallback),
                "reasons": dict(p.imported.reasons),
                "executable": p.executable.to_json(),
            }
            for p in self.programs
        ]
        return {"inputs": self.inputs, "outputs": self.outputs, "deciding": self.deciding, "programs": programs}

    def __repr__(self) -> str:
        return f"CompiledModel({self.name})"


def compile(model: Any, *, constants: Collection[str] = (), specs: Any = None, **options: Any) -> Any:
    """A model, or a file of one, compiled: called with arrays in the order of its inputs, or by name.

    Its initializers are constants. Dims have the names that the model gives them; `bounds` and `sizes` are by these, `options` as
    of `mirage.compile`. Raises InputError for an option that has no meaning for it and a file that cannot be read, FormatError
    for what is no valid model, UnsupportedNode, which lists all nodes that cannot be compiled.
    """
    if specs is not None or constants:
        what = "specs" if specs is not None else "constants"
        raise InputError(f"{what} has no meaning for a model: its types are known, and its initializers are constants")
    if isinstance(model, ModelProto):
        return CompiledModel(checked_model(model, "model"), model.graph.name or "model", options)
    return CompiledModel(load_model(model), os.path.basename(os.fspath(model)), options)
