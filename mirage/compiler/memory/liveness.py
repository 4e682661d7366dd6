"""Liveness over a straight line of steps: from which step to which the memory of each value is in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage.compiler.memory.buffers import Buffer
from mirage.errors import GraphError
from mirage.ir.dims import Dim


@dataclass(frozen=True)
class Step:
    """What one step does to values, by name.

    `defines` are values in memory of their own that the step writes, `uses` those that it reads. `views` are (new value,
    values whose memory it shares): reshapes, tuples and their items, arguments updated in place. `workspace` are tensors in
    use during this step only (Relax, section 4.4).
    """

    defines: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()
    workspace: tuple[str, ...] = ()


@dataclass(frozen=True)
class Liveness:
    """Lifetimes, in steps, both ends included.

    `ranges` are those of the memory of every value that some step defines, or has as workspace; `last_use` is the last step
    that names a value, itself or as a view's source (where it is defined, if it is never used). The memory in `escaping` is
    that of results.
    """

    ranges: Mapping[str, tuple[int, int]]
    last_use: Mapping[str, int]
    escaping: frozenset[str]

    def buffers(self, sizes: Mapping[str, Dim]) -> list[Buffer]:
        """The memory that can be planned: what has a size (bytes) and does not leave the function."""
        return [
            Buffer(name, sizes[name], first, last)
            for name, (first, last) in self.ranges.items()
            if name in sizes and name not in self.escaping
        ]


def analyze(steps: Sequence[Step], results: Iterable[str]) -> Liveness:
    """Liveness of the values of a straight line; names that no step defines are the function's parameters.

    Memory is in use from the step that writes it to the last that reads it, or any view of it. Raises GraphError for a value
    that is defined twice.
    """
    # value -> the values whose memory it is in
    roots: dict[str, frozenset[str]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    last_use: dict[str, int] = {}

    def define(name: str, memory: frozenset[str], at: int) -> None:
        if name in roots:
            raise GraphError(
                f"value {name!r} is defined twice, or used before its definition; give each value one name"
            )
        roots[name] = memory
        last_use[name] = at

    def use(name: str, at: int) -> frozenset[str]:
        memory = roots.setdefault(name, frozenset({name}))
        last_use[name] = at
        for root in memory & ranges.keys():
            ranges[root] = ranges[root][0], at
        return memory

    for at, step in enumerate(steps):
        for name in step.uses:
            use(name, at)
        for name in (*step.defines, *step.workspace):
            define(name, frozenset({name}), at)
            ranges[name] = at, at
        for name, sources in step.views:
            define(name, frozenset().union(*(use(s, at) for s in sources)), at)
    return Liveness(ranges, last_use, frozenset().union(*(use(r, len(steps)) for r in results)) & ranges.keys())
