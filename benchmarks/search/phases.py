"""Where the time of a search and of its verification goes: clocks around the functions of each phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from mirage.mugraph.degree import SafetyCheck
from mirage.search import generate
from mirage.search.assemble import Assembler
from mirage.search.compose import Composer
from mirage.search.extract import Extractor
from mirage.search.space import Space
from mirage.search.tensors import Tensors
from mirage.verify import equivalence
from mirage.verify.tester import RandomTester

OTHER = "other"
#: phase -> the function that it is; of a search, then of its verification
PHASES: dict[str, tuple[Any, str]] = {
    "set-up": (Space, "__init__"),
    "closures": (Tensors, "run"),
    "composition": (Composer, "compose"),
    "extraction": (Extractor, "choices"),
    "assembly": (Assembler, "graph"),
    "safety": (SafetyCheck, "safe"),
    "merging": (generate, "undominated"),
    "proofs": (equivalence, "compare_graph"),
    "random tests": (RandomTester, "run"),
}


class Clock:
    """Seconds per phase, each without those of the phases within it; `OTHER` for all outside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*PHASES, OTHER), 0.0)
        self._open = [OTHER]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time (and that of each item, of a generator) noted as that phase."""

        def items(found: Iterator[Any]) -> Generator[Any, None, Any]:
            while True:
                with self.phase(name):
                    try:
                        item = next(found)
                    except StopIteration as end:
                        return end.value
                yield item

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                result = function(*args, **kwargs)
            return items(result) if isinstance(result, Iterator) else result

        return run


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """Seconds per phase of what runs in the block, in this process; complete at its end."""
    clock = Clock()
    with ExitStack() as stack:
        for name, (owner, attribute) in PHASES.items():
            timed = clock.timed(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, timed))
        try:
            yield clock.seconds
        finally:
            clock._turn()
