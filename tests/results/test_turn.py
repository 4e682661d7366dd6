"""Of several callers with one question, one searches: the others wait for its answer, as long as they can and it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.cache import CallStore, ResultStore, StoreWarning
from mirage.cache.database import Database
from mirage.kernels.target import get_target
from mirage.results import turn
from mirage.results.recall import Memory
from mirage.results.turn import held, in_turn
from mirage.results.work import Request
from mirage.search.options import SearchOptions
from mirage.search.units import Units
from mirage.verify.equivalence import Verifier
from tests.api.small import BUDGET, adapter, limit_tuning
from tests.work import ByHand

SIZES = [{"b": 3, "n": 5}]
MACHINE = "a machine"


def foreign(number: int) -> str:
    """An owner on another machine: alive until its lease expires."""
    return f"elsewhere\nboot:pid\n{number}\n1\n{'0' * 16}"


class Clock(ByHand):
    """Calls `then` with every sleep, beside moving on."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[float], None] = lambda now: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.then(self.now)


class Asked:
    """A request, with what it recalls and searches instead of results: texts."""

    def __init__(self, url: str, clock: Clock, budget: float = 10.0, cached: bool = True) -> None:
        verifier = Verifier(adapter.trace())
        target = get_target("cpu")
        self.said: list[str] = []
        self.store = ResultStore(url)
        memory = Memory(CallStore(self.store), verifier.axis_program, target) if cached else None
        self.request = Request(
            verifier, SIZES, target, SearchOptions(), budget=budget, memory=memory, say=self.said.append, begun=clock.now
        )
        self.key = memory.choice_key(SIZES, MACHINE) if memory else ""
        self.database = Database(url)
        self.searched: list[float] = []
        self.recalled: list[str] = []
        #: what is kept, and whether it is enough
        self.kept, self.enough = "", False

    def recall(self, end: str = "") -> str | None:
        self.recalled.append(end)
        # as one that reads the record does
        memory = self.request.memory
        if memory is not None and (checksum := memory.store.checksum(self.key)):
            memory._seen[self.key] = checksum
        return (self.kept or None) if self.enough or end else None

    def search(self, waited: float) -> str:
        self.searched.append(waited)
        return "searched"

    def keep(self, text: str, enough: bool) -> None:
        """As another process does it."""
        self.kept, self.enough = text, enough
        checksum = self.store.checksum(self.key)
        assert self.store.put(
            self.key, {"text": text}, program="p", target="cpu", dtype="float32", best_us=None, replaces=checksum
        )

    def answer(self) -> str:
        return in_turn(self.request, MACHINE, self.recall, self.search)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(turn, "time", found)
    monkeypatch.setattr("mirage.cache.database.clock", lambda _: found.now)
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared.sqlite"


@pytest.fixture
def asked(url: str, clock: Clock) -> Asked:
    return Asked(url, clock)


def test_what_is_kept_and_enough_is_the_answer_and_no_lease_is_taken(asked: Asked) -> None:
    asked.keep("kept", enough=True)
    asked.database.acquire(asked.key, foreign(1), 20.0)
    assert asked.answer() == "kept"
    assert not asked.searched and not asked.said


def test_who_comes_first_searches_with_the_lease_and_gives_it_up(asked: Asked) -> None:
    def search(waited: float) -> str:
        assert asked.store.holder(asked.key) is not None
        return asked.search(waited)

    assert in_turn(asked.request, MACHINE, asked.recall, search) == "searched"
    assert asked.searched == [0.0]
    assert asked.store.holder(asked.key) is None

    def fail(_: float) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_turn(asked.request, MACHINE, asked.recall, fail)
    assert asked.store.holder(asked.key) is None


def test_who_comes_second_has_the_answer_of_the_first(asked: Asked, clock: Clock) -> None:
    asked.database.acquire(asked.key, foreign(1), 1000.0 / 10)

    def then(now: float) -> None:
        if now > 1:
            asked.keep("enough" if now > 2 else f"kept at {now}", enough=now > 2)

    clock.then = then
    assert asked.answer() == "enough"
    assert not asked.searched
    first, *more = asked.said
    assert first == "waiting: for the search of process 1 of elsewhere", "once, however often it looks"
    assert more and set(more) == {f"{first}, which has found more"}


def test_a_record_that_has_not_changed_is_not_read_again(asked: Asked, clock: Clock) -> None:
    asked.keep("too little", enough=False)
    asked.database.acquire(asked.key, foreign(1), 100.0)
    asked.answer()
    assert [end for end in asked.recalled if not end] == [""]


def test_who_has_waited_goes_on_where_the_first_ended_too_early(asked: Asked, clock: Clock) -> None:
    asked.database.acquire(asked.key, foreign(1), 100.0)

    def then(now: float) -> None:
        if now > 3:
            asked.keep("too little", enough=False)
            asked.database.release(asked.key, foreign(1))
            clock.then = lambda _: None

    clock.then = then
    assert asked.answer() == "searched"
    assert asked.searched == [pytest.approx(3.0, abs=0.2)]
    assert asked.store.holder(asked.key) is None


def test_what_a_slow_store_takes_is_not_waited_for_another_process(asked: Asked, clock: Clock) -> None:
    """Else what was kept would say that less than the budget was spent, and an equal call would search again."""
    recall = asked.recall

    def slow(end: str = "") -> str | None:
        clock.sleep(3.0)
        return recall(end)

    assert in_turn(asked.request, MACHINE, slow, asked.search) == "searched"
    assert asked.searched == [0.0]


def test_a_first_that_died_is_waited_for_until_its_lease_expires(asked: Asked, clock: Clock) -> None:
    asked.database.acquire(asked.key, foreign(1), 5.0)
    assert asked.answer() == "searched"
    assert asked.searched == [pytest.approx(5.0, abs=0.2)]


@pytest.mark.parametrize("kept", ["", "so far"])
def test_at_the_deadline_what_is_kept_is_the_answer_or_a_search_without_the_lease(
    asked: Asked, clock: Clock, kept: str
) -> None:
    asked.database.acquire(asked.key, foreign(1), 100.0)
    if kept:
        asked.keep(kept, enough=False)
    assert asked.answer() == (kept or "searched")
    assert asked.recalled[-1] == "budget spent, waiting for the search of process 1 of elsewhere"
    assert asked.searched == ([] if kept else [pytest.approx(9.0, abs=0.2)])
    assert clock.now == pytest.approx(9.0, abs=0.2), "the rest is for the answer"
    assert str(asked.store.holder(asked.key)) == "process 1 of elsewhere"


@pytest.mark.parametrize("kept", ["", "so far"])
def test_an_interrupt_while_waiting_gives_what_is_kept_or_is_raised(asked: Asked, clock: Clock, kept: str) -> None:
    asked.database.acquire(asked.key, foreign(1), 100.0)
    if kept:
        asked.keep(kept, enough=False)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    clock.then = interrupt
    if kept:
        assert asked.answer() == kept
        assert asked.recalled[-1].startswith("interrupted, waiting for")
    else:
        with pytest.raises(KeyboardInterrupt):
            asked.answer()
    assert not asked.searched


def test_without_a_store_everybody_searches(url: str, clock: Clock) -> None:
    assert Asked(url, clock, cached=False).answer() == "searched"


def test_a_store_that_fails_is_not_waited_for(asked: Asked, tmp_path: Path) -> None:
    asked.database.acquire(asked.key, foreign(1), 100.0)
    (tmp_path / "shared.sqlite").unlink()
    (tmp_path / "shared.sqlite").mkdir()
    with pytest.warns(StoreWarning, match="nothing is recalled or kept"):
        assert asked.answer() == "searched"
    assert asked.searched == [0.0]


def test_who_goes_on_with_a_result_of_its_own_waits_for_nobody(asked: Asked) -> None:
    memory = asked.request.memory
    with held(memory, SIZES, MACHINE):
        holder = asked.store.holder(asked.key)
        assert holder is not None
        with held(memory, SIZES, MACHINE):
            assert asked.store.holder(asked.key) is not None
        assert asked.store.holder(asked.key) is not None, "it is still the first one's"
    assert asked.store.holder(asked.key) is None
    with held(None, SIZES, MACHINE):
        pass


def test_two_that_superoptimize_one_program_search_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stops until the second one says that it waits; names and the order of inputs differ."""
    limit_tuning(monkeypatch.setattr)
    ran: list[str] = []
    run = Units.run

    def noted(self: Units, unit: str, *most: float) -> Any:
        ran.append(unit)
        found: Any = run(self, unit, *most)
        return found

    monkeypatch.setattr(Units, "run", noted)
    searching, waiting = threading.Event(), threading.Event()
    results: dict[str, mi.Superoptimized] = {}

    def first(line: str) -> None:
        searching.set()
        assert waiting.wait(600)

    def other(w: Any, rows: Any, v: Any) -> Any:
        return mi.relu(rows @ w) @ v + rows

    renamed = mi.trace(other, w=mi.tensor(8, "rank"), rows=mi.tensor("m", 8), v=mi.tensor("rank", 8))

    def second(line: str) -> None:
        if line.startswith("waiting"):
            waiting.set()

    def call(name: str, program: Any, sizes: dict[str, int], progress: Callable[[str], None]) -> None:
        try:
            store = ResultStore(url)
            results[name] = mi.superoptimize(program, sizes=sizes, budget=BUDGET, cache=store, progress=progress)
        finally:
            searching.set()
            waiting.set()

    one = threading.Thread(target=call, args=["first", adapter, SIZES[0], first])
    two = threading.Thread(target=call, args=["second", renamed, {"m": 3, "rank": 5}, second])
    one.start()
    assert searching.wait(600)
    two.start()
    one.join()
    two.join()
    assert not results["first"].cache_hit
    assert results["second"].cache_hit and results["second"].tune_stop == "from the cache"
    assert len(ran) == len({*ran}), "no unit was searched twice"
    assert [str(v.kind) for v in results["second"].versions] == [str(v.kind) for v in results["first"].versions]


