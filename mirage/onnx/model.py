"""Compiled ONNX models."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

from mirage.compilation import compile as compile_module
from mirage.errors import InputError
from mirage.frontends.onnx.files import checked_model, load_model
from mirage.frontends.onnx.importer import ImportedModel, import_model
from mirage.frontends.onnx.values import SMALL
from mirage.ir.types import TensorType
from mirage.onnx.programs import CompiledPrograms, Program, Values, key_of
from mirage.onnx.saved import save
from mirage.remember import remember

#: sets of values that decide shapes, for which there are programs of their own
MAX_PROGRAMS = 8


class CompiledModel(CompiledPrograms):
    """An ONNX model, compiled for all sizes of its dims.

    Inputs whose values decide shapes or attributes are part of a program: there is one for each of up to 8 sets of their values,
    made at the first call with them; beyond, operators that need them run in ONNX's reference evaluator.
    """

    def __init__(self, model: ModelProto, name: str, options: Mapping[str, Any]) -> None:
        initialized = {t.name for t in model.graph.initializer} | {
            s.values.name for s in model.graph.sparse_initializer
        }
        given = [i for i in model.graph.input if i.name not in initialized]
        imported = import_model(model)
        inputs = [i.name for i in given]
        super().__init__(
            name, inputs, [o.name for o in model.graph.output], [n for n in inputs if n in imported.needed],
            [i.name for i in given if i.type.WhichOneof("value") == "optional_type"],
        )  # fmt: skip
        self._model = model
        self._options = dict(options)
        self._imported = imported
        if not self.deciding:
            self._general = self._compiled(imported)

    def _program(self, values: Values) -> Program:
        if not self.deciding:
            return super()._program(values)
        small = all(x.size <= SMALL for x in values)
        found = self._programs.get(key_of(values)) if small else None
        if found is None:
            if small and len(self._programs) < MAX_PROGRAMS:
                # the caller may write to its arrays
                values = tuple(map(np.array, values))
                known = self._checked(dict(zip(self.deciding, values, strict=True)))
                made = self._compiled(import_model(self._model, known), values)
                return remember(self._programs, key_of(values), made, MAX_PROGRAMS)
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

    def _compiled(self, imported: ImportedModel, values: Values | None = None) -> Program:
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
        return Program(imported, compile_module(imported.module, constants=constants, **options), values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the programs with their weights to one file, which `mirage.onnx.load` reads in any process, without the model.

        Raises InputError where there are no programs, as inputs that decide shapes have no values before a call, or if the file
        cannot be written.
        """
        if not self.programs:
            deciding = ", ".join(self.deciding)
            raise InputError(
                f"{self.name}: there is no program to save; call it before, as programs are made for the values of {deciding}"
            )
        save(path, self)


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
