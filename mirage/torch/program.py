"""One exported program, compiled: for arguments of one kind, at all sizes that its guards let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from mirage.errors import GuardError
from mirage.frontends.imported import Imported
from mirage.torch.caches import updated
from mirage.torch.compiled import BoundGraph, CompiledGraph
from mirage.torch.guards import Guards, Range, Shape, within
from mirage.torch.weights import Weights

#: ranges by the name of a tensor and the number of its dim
Bounds: TypeAlias = "Mapping[str, Mapping[int, Range]]"

#: sets of shapes whose program is known without another look
KNOWN = 1024


@dataclass(frozen=True)
class Layout:
    """Where inputs and outputs of a graph belong.

    Of the `inputs` of the graph, `weights` are positions of those that stay the same between calls, `state` of those that the
    program writes to and that are not given in a call, `given` of the tensors of a call, in order; `written` are those of all
    that it writes to. `caches` are the places in the result of the caches that a call is given, see
    `mirage.torch.caches.places`.
    """

    inputs: int
    weights: tuple[int, ...]
    state: tuple[int, ...]
    given: tuple[int, ...]
    written: tuple[int, ...]
    caches: tuple[str, ...] = ()


class Unflatten:
    """Makes a result, of the kind that the model gives, of its leaves."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self._leaf = spec.is_leaf()
        self._tuple = spec.type is tuple and all(s.is_leaf() for s in spec.children())

    def __call__(self, leaves: list[Any]) -> Any:
        if self._leaf:
            return leaves[0]
        return tuple(leaves) if self._tuple else pytree.tree_unflatten(leaves, self.spec)


@dataclass
class Program:
    """A compiled program with its weights.

    Calls take the tensors of a call in order and give the leaves of the result. `checked` are the sets of symbols with sizes of 0
    and 1 at which it was compared with the model, `refused` those at which it was found to differ.
    """

    graph: CompiledGraph
    layout: Layout
    guards: Guards
    weights: Weights
    state: Weights
    unflatten: Unflatten
    names: Sequence[str]
    #: the ranges of dims that it was compiled for
    bounds: Mapping[str, Range]
    random: bool = False
    #: whether its weights are stored in fewer bits than the model's
    narrow: bool = False
    #: the 16-bit types that the model computes with
    halves: frozenset[str] = frozenset()
    #: whether it chooses by numbers that it computes, as routers of experts do
    chooses: bool = False
    #: seconds of export and compilation
    seconds: Mapping[str, float] = field(default_factory=dict)
    checked: set[frozenset[tuple[str, int]]] = field(default_factory=set)
    refused: set[frozenset[tuple[str, int]]] = field(default_factory=set)
    calls: int = 0
    #: whether it is superoptimized, in words
    told: str = "not superoptimized"
    rebound: int = 0

    def __post_init__(self) -> None:
        others = [k for k in range(self.layout.inputs) if k not in self.layout.weights]
        places = {k: at for at, k in enumerate(others)}
        self._given = [places[k] for k in self.layout.given]
        self._state = [places[k] for k in self.layout.state]
        self._written = [places[k] for k in self.layout.written]
        self._count = len(others)
        self._run = self._bound()

    @property
    def imported(self) -> Imported:
        """The graph as it was imported."""
        return self.graph.imported

    def small(self, shapes: Sequence[Shape]) -> frozenset[tuple[str, int]] | None:
        """The symbols whose sizes are 0 or 1 at such shapes; None where the program does not take them."""
        sizes = self.guards.sizes(shapes)
        if sizes is None:
            return None
        found = frozenset((name, n) for name, n in sizes.items() if n < 2)
        return None if found in self.refused else found

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """The result of a call; what the model writes to is written. Raises what `Executable.__call__` raises."""
        if self.weights.changed():
            self.rebind()
        inputs: list[Any] = [None] * self._count
        for at, t in zip(self._given, tensors, strict=True):
            inputs[at] = t
        if self._state:
            self.state.note()
            for at, t in zip(self._state, self.state.tensors, strict=True):
                inputs[at] = t
        self.calls += 1
        outputs = self._run(inputs)
        if self._written:
            # torch does not see what is written to its memory, and others ask it whether a tensor is what it was
            written = (inputs[at] for at in self._written)
            torch.autograd.graph.increment_version([t for t in written if not t.is_inference()])
        return self.unflatten(outputs)

    def finished(self, result: Any, caches: Sequence[Any]) -> Any:
        """What a caller gets for the result of a call, with the caches that he passed brought up to date."""
        found, others = result if "" in self.layout.caches else (result, ())
        return updated(caches, self.layout.caches, found, others) if self.layout.caches else found

    def rebind(self) -> None:
        """Read the weights anew."""
        self.weights.note()
        self.graph.executable.forget()
        self._run = self._bound()
        self.rebound += 1

    def swap(self, graph: CompiledGraph) -> None:
        """Run another executable of the same graph from the next call on."""
        run = self._bound(graph)
        self.graph, self._run = graph, run

    def _bound(self, graph: CompiledGraph | None = None) -> BoundGraph:
        return (graph or self.graph).bind(dict(zip(self.layout.weights, self.weights.tensors, strict=True)))

    def written(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors that a call writes to."""
        if not self._written:
            return []
        self.state.note()
        inputs = dict(zip(self._given, tensors, strict=True)) | dict(zip(self._state, self.state.tensors, strict=True))
        return [inputs[at] for at in self._written]

    def signature(self) -> str:
        """Its tensors with their types, such as `input_ids: int64[s0, s1]`, and its guards."""
        main = self.imported.module.functions[self.imported.module.main]
        types = dict(zip(self.imported.inputs, (str(p.annotation) for p in main.parameters), strict=False))
        found = ", ".join(f"{n}: {types.get(k, 'unused')}" for n, k in zip(self.names, self.layout.given, strict=True))
        return found + (f", where {', '.join(map(str, self.guards.conditions))}" if self.guards.conditions else "")

    def to_json(self) -> dict[str, Any]:
        """What `described` says, and what its executable says of itself."""
        imported = self.imported
        return {
            "signature": self.signature(),
            "native": dict(imported.native),
            "fallback": dict(imported.fallback),
            "reasons": dict(imported.reasons),
            "calls": self.calls,
            "superoptimized": self.told,
            "seconds": {what: round(s, 4) for what, s in self.seconds.items()},
            "executable": self.graph.executable.to_json(),
        }

    def described(self, k: int) -> list[str]:
        """What `explain` says of it, the program of this number."""
        imported = self.imported
        native, fallback = imported.native.total(), imported.fallback.total()
        seconds = "".join(f", {what} {s:.2f} s" for what, s in self.seconds.items())
        return [
            f"program {k}: {self.signature()}",
            f"    {native} operators native, {fallback} calls of ATen's own",
            f"    {self.calls} calls; weights read {1 + self.rebound} times",
            f"    {self.told}{seconds}",
            *(f"    {n} {name}: {imported.reasons.get(name, '')}" for name, n in imported.fallback.items()),
        ]


def check_bounds(bounds: Bounds, names: Sequence[str], shapes: Sequence[Shape]) -> None:
    """Raise GuardError where a size is outside of what the user declared, naming the dim, the bound and the size."""
    for name, shape in zip(names, shapes, strict=True):
        for dim, bound in bounds.get(name, {}).items():
            if dim < len(shape) and not within(shape[dim], bound):
                low, high = bound
                wanted = f"at least {low}" if high is None else f"{low} to {high}"
                raise GuardError(
                    f"{name}: dim {dim} is {shape[dim]}, but its bounds are declared to be {wanted}; "
                    "declare larger bounds, or pass a tensor within them"
                )
