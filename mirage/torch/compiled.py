"""An imported graph, compiled: called with the graph's inputs, gives the graph's outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mirage.compilation import compile
from mirage.frontends.aten.fallback import to_array, to_torch
from mirage.frontends.imported import Given, Imported
from mirage.ir.annotations import ShapeType, symbols_in
from mirage.ir.types import TensorType
from mirage.runtime.executable import Executable
from mirage.torch.guards import Range, within
from mirage.torch.threads import on_torch_threads, torch_threads


class CompiledGraph:
    """A graph of ATen operators as an executable. Inputs and outputs are those of the graph, in order."""

    def __init__(
        self,
        imported: Imported,
        executable: Executable,
        constants: Collection[int] = (),
        sizes: Any = None,
    ) -> None:
        self.imported = imported
        self.executable = executable
        #: positions of inputs that never change
        self.constants = frozenset(constants)
        #: what it is tuned at, as of `mirage.compile`
        self.sizes = sizes

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs: tensors, sizes as integers. Raises what `Executable.__call__` raises."""
        return self._unbound(inputs)

    @cached_property
    def _unbound(self) -> BoundGraph:
        return BoundGraph(self, {})

    def bind(self, values: Mapping[int, Any]) -> BoundGraph:
        """The graph with the inputs at some positions given for all calls, as weights are."""
        return BoundGraph(self, values)


class BoundGraph:
    """A compiled graph some of whose inputs are given: calls take the others, in order."""

    def __init__(self, graph: CompiledGraph, values: Mapping[int, Any]) -> None:
        self._use, self._threads = torch_threads()
        imported, executable = graph.imported, graph.executable
        main = imported.module.functions[imported.module.main]
        count = len(imported.inputs)
        parameters = main.parameters[:count]
        readers = {k: _reader(p.annotation) for k, p in zip(imported.inputs, parameters, strict=True)}
        # what is computed from constants is kept by the tensor: a new array of it in each call would be another one
        readers |= {k: _same for k in graph.constants if k not in values}
        names = dict(zip(imported.inputs, (p.name for p in parameters), strict=True))
        given = {names[k]: readers[k](v) for k, v in values.items() if k in names}
        attributes = main.parameters[count : count + len(imported.attributes)]
        given |= {p.name: _reader(p.annotation)(t) for p, t in zip(attributes, imported.attributes, strict=True)}
        self._run = executable.bind(**given)
        #: place among a call's inputs, of those that the program reads, and what makes an argument of each
        places = _places(graph, values)
        self._read = [(places[k], readers[k]) for k in imported.inputs if k not in values]
        #: of these, arguments that the program writes to
        compiled = executable.program.functions[executable.program.main].parameters[:count]
        written = {k for k, p in zip(imported.inputs, compiled, strict=True) if p.in_place}
        self._written = [at for at, k in enumerate(k for k in imported.inputs if k not in values) if k in written]
        fields = getattr(main.returns, "fields", ())
        self._outputs = [_output(o, fields, places, values) for o in imported.outputs]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs; raises what `Executable.__call__` raises."""
        args = [read(inputs[at]) for at, read in self._read]
        before = self._use(self._threads)
        try:
            found = self._run(*args)
        finally:
            self._use(before)
        if self._written:
            # an input that is written to is no output: what is equal to it has memory of its own
            kept = [args[at] for at in self._written if isinstance(args[at], np.ndarray)]
            found = [_apart(r, kept) if isinstance(r, np.ndarray) else r for r in found]
        return [output(found, inputs) for output in self._outputs]


def _places(graph: CompiledGraph, values: Mapping[int, Any]) -> dict[int, int]:
    """The place among a call's inputs of each position of the graph."""
    imported = graph.imported
    last = max([*imported.inputs, *values, *(o.position or 0 for o in imported.outputs if isinstance(o, Given))], default=-1)
    return {k: at for at, k in enumerate(k for k in range(last + 1) if k not in values)}


def _output(
    o: int | Given, fields: Sequence[Any], places: Mapping[int, int], values: Mapping[int, Any]
) -> Callable[[Any, Sequence[Any]], Any]:
    """What finds an output in the results of the program and the inputs of a call."""
    if isinstance(o, int):
        if isinstance(fields[o], ShapeType):
            return lambda found, inputs: found[o][0]
        return lambda found, inputs: as_tensor(found[o])
    if o.position is None or o.position in values:
        value = o.value if o.position is None else values[o.position]
        return lambda found, inputs: value
    at = places[o.position]
    return lambda found, inputs: inputs[at]


def _apart(result: Any, arrays: Sequence[Any]) -> Any:
    return result.copy() if any(np.may_share_memory(result, a) for a in arrays) else result


def _same(x: Any) -> Any:
    return x


def _reader(annotation: Any) -> Callable[[Any], Any]:
    """What makes an argument of the program of an input of the graph."""
    if isinstance(annotation, ShapeType):
        return lambda x: (int(x),)
    return as_array if isinstance(annotation, TensorType) else _same


def as_array(x: Any) -> Any:
    """An array in the memory of a tensor, where that is possible; anything else as it is, for the program to refuse."""
    try:
        return to_array(x.detach() if x.requires_grad else x)
    except (AttributeError, RuntimeError, TypeError):
        return x


def as_tensor(x: Any) -> Any:
    """A result as a tensor of torch."""
    return x if isinstance(x, torch.Tensor) else to_torch(x)


def compiled_graph(
    imported: Imported, constants: Collection[int] = (), *, sizes: Any = None, **options: Any
) -> CompiledGraph:
    """Compile an imported graph; `constants` are positions of inputs that never change, `sizes` those to tune at, `options` the
    others of `mirage.compile`.
    """
    names = constant_names(imported, constants)
    with on_torch_threads():
        executable = compile(imported.module, constants=names, sizes=sizes, **options)
    return CompiledGraph(imported, executable, constants, sizes)


def sizes_to_tune(imported: Imported, sizes: Mapping[str, int], bounds: Mapping[str, Range]) -> dict[str, int]:
    """Sizes of an example, by dim symbol, as those to tune a graph at: not where users declare that there are no such calls."""
    main = imported.module.functions[imported.module.main]
    known = set().union(*(symbols_in(p.annotation) for p in main.parameters))
    found = {name: max(n, 1) for name, n in sizes.items() if name in known}
    return {name: n for name, n in found.items() if name not in bounds or within(n, bounds[name])}


def constant_names(imported: Imported, constants: Collection[int]) -> list[str]:
    """The names of the parameters that never change: inputs at these positions, and the graph's own tensors."""
    main = imported.module.functions[imported.module.main]
    names = [p.name for p in main.parameters]
    return [names[i] for i, k in enumerate(imported.inputs) if k in constants] + names[len(imported.inputs) :]


