"""What the passes of one compilation share: the options, the constraints of each function, the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

from mirage.compiler.constraints import Constraints
from mirage.compiler.kernels.cpu_maker import CpuKernels
from mirage.compiler.kernels.maker import KernelMaker
from mirage.ir.graph.nodes import Kernel
from mirage.ir.program import Program

#: sizes of dim symbols, in elements
Sizes = Mapping[str, int]


class Superoptimizer(Protocol):
    """Finds the fastest verified way to run a Lax subprogram, and says in words what it found. None in place of a kernel leaves
    it to the later passes, that is to libraries and fusion.

    `sizes` are sets of sizes to tune at, `constants` inputs whose contents never change, `budget` is in seconds.
    """

    def __call__(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[Kernel | None, str]: ...


@dataclass
class Subprogram:
    """What became of one Lax subprogram, for the report: its kernel, operators, and why it runs as it does."""

    kernel: str
    operators: int
    outcome: str
    seconds: float = 0.0


@dataclass
class Report:
    """What the passes did, in the words of `Executable.explain`."""

    subprograms: list[Subprogram] = field(default_factory=list)
    #: what stayed outside of kernels, and why
    fallbacks: list[str] = field(default_factory=list)
    #: seconds per pass
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Context:
    """The state of a compilation.

    `bounds` are the constraints on dims of the main function that the user gave; `constants` its parameters whose contents
    never change; `sizes` the sets of sizes of its dim symbols to tune at. `constraints` holds a store per function, which
    `collect_constraints` fills: symbols belong to functions. `deadline` is on the clock of `time.perf_counter`. `kernels` makes
    kernels for the target, which no pass knows otherwise. `printed` names the passes after which the module is printed.
    `packages` are those that the program came from, whose library functions may be called. `promise` tells of a subprogram, at
    sets of sizes and with constants as a search gets them, by how many seconds its calls may become faster at most; without it,
    that is as modelled.
    """

    bounds: Constraints = field(default_factory=Constraints)
    constants: tuple[str, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    superoptimizer: Superoptimizer | None = None
    promise: Callable[[Program, Sequence[Sizes], Sequence[str]], float] | None = None
    kernels: KernelMaker = field(default_factory=CpuKernels)
    deadline: float = float("inf")
    say: Callable[[str], None] = lambda _: None
    printed: Collection[str] = ()
    packages: tuple[str, ...] = ()
    constraints: dict[str, Constraints] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def of(self, function: str) -> Constraints:
        """The store of a function; an empty one where nothing is known."""
        return self.constraints.setdefault(function, Constraints())

    def inherit(self, function: str, caller: str) -> None:
        """A function outlined of another has its dims, under the same names, and what is known of them."""
        self.constraints[function] = self.of(caller).copy()

    def copy(self) -> Context:
        """The state from which another form of the same program can be compiled; the seconds of both are counted together."""
        report = Report(list(self.report.subprograms), list(self.report.fallbacks), self.report.seconds)
        return replace(self, constraints={name: c.copy() for name, c in self.constraints.items()}, report=report)

    @property
    def seconds_left(self) -> float:
        return max(self.deadline - time.perf_counter(), 0.0)


class Survey(Superoptimizer, Protocol):
    """What is given the subprograms instead of a search, see `surveyed`; `interrupted`: whether Ctrl-C has ended it."""

    interrupted: bool


_survey: ContextVar[Survey | None] = ContextVar("survey", default=None)


@contextmanager
def surveyed(survey: Survey) -> Iterator[None]:
    """Programs that are compiled in this block, in this thread, have their subprograms given to `survey`, whatever front end they
    come from.
    """
    token = _survey.set(survey)
    try:
        yield
    finally:
        _survey.reset(token)


def current_survey() -> Survey | None:
    """What `surveyed` has set here."""
    return _survey.get()
