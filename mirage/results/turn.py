"""Whose turn it is to search: of several callers with one question, one searches, and the others have its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from mirage.cache import Holder, Lease
from mirage.progress import Step
from mirage.results.recall import Memory
from mirage.results.result import WAITED
from mirage.results.work import Request
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME

R = TypeVar("R")
Found = TypeVar("Found", covariant=True)

#: seconds between two looks at what another process has found
POLL_S = 0.1
#: share of the budget that is left for the answer of another process, which is verified and compiled here
LAST_SHARE = 0.1


@contextmanager
def held(memory: Memory | None, anchors: Sequence[Mapping[str, int]], machine: str) -> Iterator[None]:
    """Has the lease of a choice meanwhile, if nobody else has it: who goes on with a result of its own waits for nobody."""
    lease = memory.store.acquire(memory.choice_key(anchors, machine)) if memory is not None else None
    if not isinstance(lease, Lease):
        yield
        return
    with lease:
        yield


class Recall(Protocol[Found]):
    """The answer that is kept, where as much was done for it as the request asks for; with the reason of an `end`, whatever
    is kept, if it has kernels.
    """

    def __call__(self, end: str = "") -> Found | None: ...


def in_turn(request: Request, machine: str, recall: Recall[R], search: Callable[[float], R]) -> R:
    """The answer to a request: as it is kept, or as another process finds it meanwhile, or what `search` finds, which is
    told how many seconds of the budget were waited for another process: what a slow store takes is not among them.

    Only who has the lease of the choice for these sizes on this machine searches; it is released afterwards. Where another
    process has it until the budget is spent, the answer is what that has found by then, and the search of this process without
    one.

    Raises KeyboardInterrupt for an interrupt before anything was found.
    """
    memory = request.memory
    if memory is None:
        return search(0.0)
    key, waited = memory.choice_key(request.anchors, machine), 0.0
    if (found := recall()) is not None:
        return found
    seen = memory.seen(key)
    lease = memory.store.acquire(key)
    if isinstance(lease, Holder):
        holder, told, begun = lease, "", time.perf_counter()
        try:
            while isinstance(lease, Holder):
                if time.perf_counter() - request.begun > (1 - LAST_SHARE) * request.budget:
                    end = f"{OUT_OF_TIME}, {WAITED} {holder}"
                    return found if (found := recall(end)) is not None else search(time.perf_counter() - begun)
                if told != str(holder):
                    told = str(holder)
                    request.say(Step("waiting", f"for the search of {holder}"))
                time.sleep(POLL_S)
                if (checksum := memory.store.checksum(key)) != seen:
                    seen = checksum
                    request.say(Step("waiting", f"for the search of {holder}, which has found more"))
                    if (found := recall()) is not None:
                        return found
                lease = memory.store.holder(key) or memory.store.acquire(key)
                holder = lease if isinstance(lease, Holder) else holder
        except KeyboardInterrupt:
            if (found := recall(f"{INTERRUPTED}, {WAITED} {holder}")) is None:
                raise
            return found
        waited = time.perf_counter() - begun
    with lease:
        # somebody else may have finished between the last look and the lease
        if memory.store.checksum(key) != seen and (found := recall()) is not None:
            return found
        return search(waited)
