"""The searches of a program's targets, beside the search of the program itself.

They have a share of what that search does: most differ from the program by an operator or two, but what is found to be equal may
be much larger than the program, and its search a hundred times longer. A large target is searched in pieces, of which those
that the program has, too, are searched once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, was_cut
from mirage.search.large import Found as Joined
from mirage.search.large import LargeSearch, is_large
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.search.targets import Targets, finding_targets
from mirage.search.units import Accept, Found
from mirage.verify.rules.rewritten import Rewritten
from mirage.verify.rules.saturate import MAX_SECONDS

#: the targets take one step for so many of the program's own search, but as many as `STEPS` in any case
SHARE, STEPS = 2, 4000


class Rewriting:
    """The targets of a program as equality saturation finds them, and their searches: every target's own operators in one kernel,
    and then one target after the other, the cheapest first.

    `learn` is told of every target before its graphs are found. The arguments are those of `Search`; `constants` are inputs whose
    contents never change, and `pieces` is the search of a large program in pieces.
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
        pieces: LargeSearch | None = None,
    ) -> None:
        self._sizes = dict(sizes)
        self._options = options
        self._learn = learn
        self._accept = accept
        self._safe = safe
        self._pieces = pieces
        axes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
        limit = MAX_SECONDS if options.steps is None else math.inf
        self._find = partial(finding_targets, program, axes, constants, limit)
        self._finding = self._find()
        self._targets: Targets | None = None
        self._searches: list[Search | LargeSearch] = []
        self._stopped = False
        self._cut = False
        self._found_in = 0
        self.found: list[Found | Joined] = []
        #: seconds that it has worked
        self.seconds = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the targets are known."""
        return self._targets is not None

    @property
    def done(self) -> bool:
        """Whether nothing more will be found."""
        return self._stopped or self._cut or (self.saturated and all(s.done for s in self._searches))

    @property
    def complete(self) -> bool:
        """Whether nothing more will be found, however long one looks for it."""
        return self.done and not self._stopped and (self._cut or not any(was_cut(s.stop_reason) for s in self._searches))

    @property
    def steps(self) -> int:
        """The steps that it has taken."""
        return self._found_in + sum(s.steps for s in self._searches)

    @property
    def report(self) -> str:
        """What saturation came to, and how far the searches of the targets are, in words."""
        if self._targets is None:
            return "not saturated"
        if not self._searches:
            return f"{self._targets.report}; no target"
        states = ", ".join(s.stop_reason for s in self._searches)
        why = ", as they have had their share of the search" if self._cut else ""
        return f"{self._targets.report}; {len(self._searches)} targets: {states}{why}"

    @property
    def left_out(self) -> list[str]:
        """What it did not try, if it ends here, and why, in words."""
        ended = INTERRUPTED if self._stopped else OUT_OF_TIME
        if self._targets is None:
            return [f"rules not saturated: {ended}" if self._found_in else f"rules not tried: {ended}"]
        found = [f"rules not saturated: {self._targets.cut}"] if self._targets.cut else []
        if unfinished := sum(was_cut(s.stop_reason) for s in self._searches):
            why = "they have had their share of the search" if self._cut else ended
            found.append(f"{unfinished} of {len(self._searches)} targets of rules not searched to the end: {why}")
        return found

    def waits(self, *own: Search | LargeSearch) -> bool:
        """Whether it is not its turn yet, beside the program's own searches."""
        if all(s.done for s in own):
            return False
        return not all(s.begun or s.done for s in own) or SHARE * self.steps > sum(s.steps for s in own)

    def advance(self, seconds: float, *own: Search | LargeSearch) -> None:
        """Go on for about so many seconds, or until something is found; beside the program's own searches."""
        start = time.perf_counter()
        if self._targets is None:
            self._saturate(start + seconds)
        elif all(s.done for s in own) and self.steps > max(sum(s.steps for s in own) // SHARE, STEPS):
            self._cut = True
        elif waiting := [s for s in self._searches if not s.begun] or [s for s in self._searches if not s.done]:
            if isinstance(waiting[0], Search):
                # what the program's own graphs dominate is not looked at
                waiting[0].known = [found for s in own if isinstance(s, Search) for found in s.found]
            self.found += waiting[0].advance(seconds)
        self.seconds += time.perf_counter() - start

    def _saturate(self, end: float) -> None:
        """Find the targets, until this time (a `perf_counter`) at most."""
        while True:
            self._found_in += 1
            try:
                next(self._finding)
            except StopIteration as ended:
                self._targets = ended.value
                break
            if time.perf_counter() >= end:
                return
        for target in self._targets.programs:
            if self._learn(target):
                self._searches.append(self._search(target.program))

    def _search(self, target: AxisProgram) -> Search | LargeSearch:
        # most of the pieces of a large program are its targets' pieces, too
        if self._pieces is not None or is_large(target):
            return LargeSearch(target, self._sizes, self._options, self._accept, beside=self._pieces)
        return Search(target, self._sizes, self._options, accept=self._accept, safe=self._safe)

    def interrupt(self) -> None:
        """End it."""
        self._stopped = True
        for s in self._searches:
            s.interrupt()

    def resume(self, seconds: float) -> None:
        """Go on for so many seconds more, if need be with searches that begin again."""
        self._stopped = False
        if not self.saturated:
            self._finding = self._find()
        for i, s in enumerate(self._searches):
            if isinstance(s, LargeSearch):
                s.resume(seconds)
            else:
                self._searches[i] = s.anew()
