"""Targets: what kernels are made for, as all that chooses, keeps and runs them sees it.

A target is one folder of `mirage/kernels` with a module `target`, or an entry point of the group "mirage.targets" of another
package. Its first name, such as "cuda" of "cuda:sm_90", is that of the folder or of the entry point; the module, or what the
entry point loads, has `find`, which gives the target of a whole name, or raises UnknownTarget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from mirage.errors import MirageError, UnknownTarget
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.decision import Limit
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

#: the answers and the kernels of a target whose model decides
RANKED, RANKED_KERNELS = "mirage.results.ranked", "mirage.compiler.kernels.ranked_maker"
#: the group of entry points
GROUP = "mirage.targets"
#: the targets of this package, and what they can be called
OWN = {"cpu": ("cpu",), "cuda": ("cuda", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100")}


@dataclass(frozen=True)
class Rates:
    """What the entries of a cost weigh: ns to start a kernel, to run one operator of a block at all, per byte that a kernel reads
    or writes in memory, and in a cache, and per ns of operators on one core of a processor.
    """

    launch: float
    operator: float
    memory: float
    cache: float
    work: float


@dataclass(frozen=True)
class Scheduled:
    """A graph with a schedule of its target, which was chosen for `sizes` (dim symbol -> elements); `maximum` is
    `analyze(graph)`, `us` what the target's model says of it at these sizes. `library` is the one that computes its predefined
    operators.
    """

    graph: MuGraph
    maximum: RunningMaximum
    schedule: Any
    sizes: Mapping[str, int]
    us: float = 0.0
    library: str = ""

    @property
    def pair(self) -> tuple[int, Any]:
        """Which graph, by identity, with which schedule."""
        return id(self.graph), self.schedule


class Executable(Protocol):
    """The kernels of a graph."""

    @property
    def source(self) -> str:
        """Their code."""

    def __call__(self, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        """The results for arrays of the shapes that `sizes` (dim symbol -> elements) binds, in `out` if given."""

    def forget(self) -> None:
        """Drop packed copies of constants."""


@dataclass(frozen=True)
class Made:
    """Kernels that serve sizes within all `limits`; `make` gives them, each time the same."""

    make: Callable[[], Any]
    limits: tuple[Limit, ...] = ()


#: makes kernels, see `Target.made`
Make: TypeAlias = Callable[[Sequence[Scheduled], Collection[str]], list[Made | MirageError]]


class Tuning(Protocol):
    """The schedules and kernels of a program's graphs, while versions are chosen among them. `libraries` are those that compute
    predefined operators.
    """

    @property
    def libraries(self) -> Sequence[str]: ...

    def at(
        self, graphs: Sequence[tuple[MuGraph, RunningMaximum]], sizes: Mapping[str, int]
    ) -> tuple[list[Scheduled], list[tuple[MuGraph, MirageError]]]:
        """Schedules of graphs at these sizes, the fastest first as the model has it, and why some have none."""

    def us(self, graph: MuGraph, schedule: Any, sizes: Mapping[str, int], executable: Any = None) -> float:
        """Modelled microseconds of a call; what `executable`, its kernels, tell is taken for the model's guess."""

    def is_limited(self, graph: MuGraph) -> bool:
        """Whether a schedule serves sizes up to some only."""

    def is_hopeless(self, w: Scheduled) -> bool:
        """Whether it is known that its kernels cannot be made."""

    def made(self, work: Sequence[Scheduled]) -> list[tuple[Scheduled, Made | MirageError]]:
        """As `Target.made`, each with the schedule that its kernels have."""


class Target(Protocol):
    """What kernels are made for. `name` is such as "cuda:sm_90"; `rates` weigh the costs of a search. What was tuned is kept
    under the names `machines`, the preferred ones first. `answers` is the module whose `superoptimize` and `result_from_json`
    give results, `kernels` the one whose `maker` makes kernels of whole programs: `RANKED` and `RANKED_KERNELS`, where the model
    of the target decides among versions. `on_host`: kernels take NumPy's arrays, and run in this process.
    """

    @property
    def answers(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def machines(self) -> Sequence[str]: ...

    @property
    def kernels(self) -> str: ...

    @property
    def on_host(self) -> bool: ...

    @property
    def note(self) -> str:
        """A sentence for reports: where the figures of the machine are from."""

    def floor_us(self, moved: int, flops: int, dtype: str) -> float:
        """Microseconds that so many bytes and operations take in any case."""

    def report(self, program: AxisProgram, executable: Any) -> Sequence[tuple[str, str]]:
        """What there is to say of the kernels of a program, for its report."""

    def schedule_from_json(self, obj: Any) -> Any:
        """A schedule, a dataclass, of its JSON value (`mirage.ir.codec`); its `check(graph)` raises ScheduleError for one of
        another graph. Raises FormatError for anything else.
        """

    def renamed(self, schedule: Any, axes: Mapping[str, str]) -> Any:
        """A schedule with its axes renamed."""

    def check_at_hand(self, name: str) -> None:
        """Raises DeviceError where the kernel of that name cannot run here."""

    def arithmetic(self) -> type[FloatArithmetic]:
        """That of the target's arrays."""

    def library(self, program: AxisProgram) -> Callable[..., list[Any]]:
        """A program as calls of the target's libraries, called with inputs and sizes; raises LibraryError without them."""

    def loops(self, program: LoopProgram, hints: Mapping[str, int]) -> Any:
        """A loop program as a kernel of a whole program; `hints` are typical sizes."""

    def finish(self, kernels: Iterable[Any]) -> None:
        """Do at once what was put off when these were made, such as starting a compiler."""

    def tuning(self, program: AxisProgram, constants: Collection[str]) -> Tuning:
        """What versions of a program are chosen from."""

    def made(self, work: Sequence[Scheduled], constants: Collection[str]) -> list[Made | MirageError]:
        """The kernels of graphs with these schedules, side by side, or why there are none. Kernels may keep packed copies of the
        arguments `constants` only.
        """


def get_target(name: str) -> Target:
    """The target of that name, as this machine is now: "cpu", "cuda", an architecture such as "cuda:sm_90", of which there need
    not be a device, or one of another package.

    Raises UnknownTarget with the choices.
    """
    first = name.partition(":")[0] if isinstance(name, str) else ""
    if first in OWN:
        return cast(Target, import_module(f"mirage.kernels.{first}.target").find(name))
    others = {e.name: e for e in _of_other_packages()}
    if first in others:
        return cast(Target, others[first].load().find(name))
    raise unknown(name)


def _of_other_packages() -> EntryPoints:
    # of which the metadata of all installed packages are read, and what reads them is large itself
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def unknown(name: str) -> UnknownTarget:
    """The error for a name that no target has, with the choices."""
    known = [n for names in OWN.values() for n in names] + sorted(e.name for e in _of_other_packages())
    return UnknownTarget(f"target {name!r} does not exist; choose one of {', '.join(known)}")
