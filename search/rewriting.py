"""The searches of a program's targets, beside the search of the program itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.search.targets import Targets, find_targets
from mirage.search.units import Accept, Found
from mirage.verify.rules.rewritten import Rewritten
from mirage.verify.rules.saturate import MAX_SECONDS


class Rewriting:
    """The targets of a program as equality saturation finds them, and their searches, one after the other.

    `learn` is told of every target before its graphs are found. The arguments are those of `Search`; `constants` are inputs whose
    contents never change. The first call of `advance` saturates, the second one has every target's own operators in one kernel.
    """

    def __init__(
        self,
        program: AxisProgram,
        sizes: Mapping[str, int],
        options: SearchOptions,
        learn: Callable[[Rewritten], bool],
        *,
        constants: Collection[str] = (),
        accept: Accept | None = None,
        safe: bool = False,
    ) -> None:
        self._program = program
        self._sizes = dict(sizes)
        self._options = options
        self._learn = learn
        self._constants = constants
        self._accept = accept
        self._safe = safe
        self._targets: Targets | None = None
        self._searches: list[Search] = []
        self._stopped = False
        self.found: list[Found] = []
        #: seconds that it has worked
        self.seconds = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the targets are known."""
        return self._targets is not None

    @property
    def opened(self) -> bool:
        """Whether every target's own operators in one kernel were looked at."""
        return self.saturated and all(s.finished for s in self._searches)

    @property
    def done(self) -> bool:
        """Whether nothing more will be found."""
        return self._stopped or (self.saturated and all(s.done for s in self._searches))

    @property
    def report(self) -> str:
        """What saturation came to, and how far the searches of the targets are, in words."""
        if self._targets is None:
            return "not saturated"
        if not self._searches:
            return f"{self._targets.report}; no target"
        states = ", ".join(s.stop_reason for s in self._searches)
        return f"{self._targets.report}; {len(self._searches)} targets: {states}"

    def advance(self, seconds: float) -> None:
        """Go on for about so many seconds, or until something is found."""
        start = time.perf_counter()
        if self._targets is None:
            axes = {a: evaluate(d, self._sizes) for a, d in self._program.axes.items()}
            limit = MAX_SECONDS if self._options.steps is None else math.inf
            self._targets = find_targets(self._program, axes, self._constants, limit)
            for target in self._targets.programs:
                if self._learn(target):
                    self._searches.append(
                        Search(target.program, self._sizes, self._options, accept=self._accept, safe=self._safe)
                    )
        else:
            waiting = [s for s in self._searches if not s.finished] or [s for s in self._searches if not s.done]
            if waiting:
                self.found += waiting[0].advance(seconds)
        self.seconds += time.perf_counter() - start

    def interrupt(self) -> None:
        """End it."""
        self._stopped = True
        for s in self._searches:
            s.interrupt()

    def resume(self) -> None:
        """Go on, if need be with searches that begin again."""
        self._stopped = False
        self._searches = [s.anew() for s in self._searches]
