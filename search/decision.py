"""Versions of a program, and the decision which of them runs at which sizes, whatever the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from mirage.drawing.show import Displayed
from mirage.errors import DimError
from mirage.ir.codec import at_least, one_of
from mirage.ir.dims import evaluate, sizes_text
from mirage.kernels.decision import Limit, Sizes, Tree, decide, leaves, relabel
from mirage.kernels.profile import Timing
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.thread import with_threads
from mirage.search.candidates import Candidate
from mirage.search.decide import learn

#: compiled versions that run at most: as many as a decision tree has leaves
MAX_VERSIONS = 8
#: the latency of what was not measured
UNMEASURED = Timing(math.inf, math.inf, 0)


Kind: TypeAlias = Annotated[str, one_of("mugraph", "library", "reference")]


@dataclass(frozen=True)
class Version(Displayed, drawn_by="mirage.search.draw"):
    """A way to run a program: "mugraph", which is a candidate's kernels, "library" or "reference".

    `timing` is its latency at the first of the given sizes, `UNMEASURED` where a model ranks versions. It serves sizes within all
    `limits`.
    """

    kind: Kind
    timing: Timing = UNMEASURED
    candidate: Candidate | None = None
    limits: tuple[Limit, ...] = ()

    @property
    def graph(self) -> MuGraph | None:
        """The muGraph down to its thread graphs; None of a library version."""
        return with_threads(self.candidate.graph, self.candidate.maximum) if self.candidate else None

    @property
    def schedule(self) -> Any:
        """The schedule of its kernels, of the target's own class; None of a library version."""
        return self.candidate.schedule if self.candidate else None

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes (dim symbol -> elements) that its schedule was chosen for."""
        return self.candidate.sizes if self.candidate else {}

    @property
    def executable(self) -> Any:
        """Its kernels, made when they are first asked for; None of a library version."""
        return self.candidate.executable if self.candidate else None

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the kernels compute the program at these sizes (dim symbol -> elements)."""
        return all(evaluate(x.value, sizes) <= x.most for x in self.limits)

    def __str__(self) -> str:
        if self.candidate is None:
            return f"{self.kind} (NumPy)"
        count = len(self.candidate.graph.kernels)
        kernels = f"{count} kernel{'s' * (count != 1)}" if count else "library calls"
        tuned = sizes_text(self.sizes)
        return f"{kernels} ({self.candidate.graph.origin})" + f", for {tuned}" * bool(tuned)


@dataclass(frozen=True)
class Point:
    """Sizes (dim symbol -> elements), and the latency of every version there in us: infinite where it was not measured, or does
    not serve the sizes.
    """

    sizes: Sizes
    times: tuple[Annotated[float, at_least(0, finite=False)], ...]


@dataclass(frozen=True)
class Decision:
    """Which of `versions`, those of the leaves of `tree` first, runs at which sizes. `points` are what it was learnt from.

    `measured_on` is the name of the device that their times are of, empty for the processor at hand and for a model's.
    """

    versions: Sequence[Version]
    tree: Tree
    points: tuple[Point, ...]
    measured_on: str = ""

    @staticmethod
    def learnt(versions: Sequence[Version], points: Sequence[Point], wanted: int, measured_on: str = "") -> Decision:
        """The decision of least regret; at the first `wanted` points the fastest version runs."""
        table = [p for p in points if min(p.times) < math.inf]
        symbols = list(points[0].sizes)
        tree = learn(symbols, [p.sizes for p in table], [p.times for p in table], wanted=wanted)
        used = list(dict.fromkeys([decide(tree, points[0].sizes), *(v for _, v in leaves(tree))]))
        order = [*used, *(k for k in range(len(versions)) if k not in used)]
        renumbered = tuple(Point(p.sizes, tuple(p.times[k] for k in order)) for p in points)
        tree = relabel(tree, {k: i for i, k in enumerate(order)})
        return Decision(tuple(versions[k] for k in order), tree, renumbered, measured_on)

    @property
    def used(self) -> int:
        """How many versions leaves run: the first ones."""
        return 1 + max(v for _, v in leaves(self.tree))

    def number(self, sizes: Mapping[str, int]) -> int:
        """The number of the version that runs at these sizes: the tree's, or the first one that serves them.

        Raises DimError where none does.
        """
        order: tuple[int, ...] = (decide(self.tree, sizes), *range(len(self.versions)))
        for k in order:
            if self.versions[k].serves(sizes):
                return k
        raise DimError(f"no compiled version serves {sizes_text(sizes)}; superoptimize with these sizes among `sizes`")

    def at(self, sizes: Mapping[str, int]) -> Version:
        """The version that runs at these sizes; raises DimError where none does."""
        return self.versions[self.number(sizes)]
