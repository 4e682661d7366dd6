"""Compiled graphs whose weights are inputs of every call, as Dynamo lifts them: these are bound once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.torch.compiled import BoundGraph, CompiledGraph
from mirage.torch.guards import Range
from mirage.torch.layout import arranged
from mirage.torch.weights import address, version


@dataclass(frozen=True)
class _Bound:
    """The graph with one set of constants, what was seen of these, and references that drop it with the first that ends."""

    run: BoundGraph
    versions: list[int]
    addresses: list[int]
    references: list[weakref.ref[Any]]


class LiftedGraph:
    """A compiled graph, called with a list of all inputs, which it empties: AOTAutograd's boxed convention.

    Constants are known by their identities. A change of one is seen by the counter of writes that torch keeps of each tensor, and
    by its address; what depends on it is computed again. A graph that several modules share, such as the layers of a model, keeps
    what it made of the weights of each for as long as these live. `outputs` are fake tensors with the strides of eager mode;
    `views` makes of the outputs those that are given.
    """

    _boxed_call = True

    def __init__(
        self,
        graph: CompiledGraph,
        inputs: int,
        outputs: Sequence[Any],
        views: Callable[[Sequence[Any]], Sequence[Any]] | None,
        bounds: Mapping[str, Range],
    ) -> None:
        self.graph = graph
        self.bounds = bounds
        #: what became of its superoptimization
        self.told = ""
        self._fixed = sorted(graph.constants)
        self._others = [k for k in range(inputs) if k not in graph.constants]
        self._sets: dict[tuple[int, ...], _Bound] = {}
        self._views = views
        self._arranged = [(k, arrange) for k, x in enumerate(outputs) if (arrange := arranged(x)) is not None]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The outputs; raises what `Executable.__call__` raises."""
        given = [inputs[k] for k in self._fixed]
        others = [inputs[k] for k in self._others]
        inputs.clear()
        found = self._sets.get(tuple(map(id, given)))
        if found is None or list(map(version, given)) != found.versions or list(map(address, given)) != found.addresses:
            found = self._bind(given, changed=found is not None)
        outputs = found.run(others)
        for k, arrange in self._arranged:
            outputs[k] = arrange(outputs[k])
        return outputs if self._views is None else list(self._views(outputs))

    def swap(self, graph: CompiledGraph) -> None:
        """Run another executable of the same graph from the next call on."""
        # what a call binds while this goes on is of either
        self.graph, self._sets = graph, {}

    def _bind(self, given: list[Any], changed: bool) -> _Bound:
        if changed:
            self.graph.executable.forget()
        key = tuple(map(id, given))
        # an identity may be that of another tensor once the first one is gone
        sets = self._sets
        references = [weakref.ref(t, lambda _: sets.pop(key, None)) for t in given]
        run = self.graph.bind(dict(zip(self._fixed, given, strict=True)))
        found = _Bound(run, list(map(version, given)), list(map(address, given)), references)
        sets[key] = found
        return found
