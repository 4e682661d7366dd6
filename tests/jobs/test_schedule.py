"""Which task gets the next step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.jobs.schedule import ALPHA, Queue, TaskState, spent
from mirage.jobs.task import Failed, Lost, Task
from tests.jobs.fakes import done, task


def state(t: Task, *rounds: float, library: float = 200.0, seconds: float = 1.0) -> TaskState:
    """A task that was searched, with rounds of these latencies."""
    found = TaskState(t)
    found.take(done(t, "search"))
    for us in rounds:
        found.take(done(t, library_us=library, best_us=us, seconds=seconds))
    return found


def chosen(*states: TaskState, kind: str = "tune", budget: float | None = None, seed: int = 0) -> str:
    found = Queue(states, budget=budget, seed=seed).peek(kind)  # type: ignore[arg-type]
    return found.task.name if found else ""


def test_every_task_has_a_round_before_any_has_a_second_one() -> None:
    assert chosen(state(task("a", weight=1000.0), 100.0), state(task("b"))) == "b"


def test_nothing_is_tuned_that_was_not_searched() -> None:
    a = TaskState(task("a"))
    assert chosen(a) == ""
    assert chosen(a, kind="search") == "a"
    assert chosen(state(task("a")), kind="search") == ""


def test_the_estimate_is_the_gain_per_second_and_what_is_left() -> None:
    found = state(task("a", weight=3.0), 100.0, 80.0, 60.0, seconds=2.0)
    # 40 us in the last two rounds, of 4 s; 60 us are left after 6 s
    assert found.estimate == pytest.approx(3.0 * (ALPHA * 40 / 4 + (1 - ALPHA) * 60 / 6))


def test_the_larger_weight_is_first_and_the_larger_gain() -> None:
    assert chosen(state(task("a"), 100.0), state(task("b", weight=2.0), 100.0)) == "b"
    assert chosen(state(task("a"), 100.0, 99.0), state(task("b"), 180.0, 99.0)) == "b"


def test_time_given_makes_others_come_first() -> None:
    a, b = state(task("a"), 100.0), state(task("b"), 90.0)
    assert chosen(a, b) == "a"
    a.take(done(a.task, library_us=200.0, best_us=100.0))
    assert chosen(a, b) == "b"


def test_a_task_with_a_step_under_way_has_no_other() -> None:
    a, b = state(task("a"), 100.0), state(task("b"), 1.0)
    queue = Queue([a, b], budget=None, seed=0)
    assert queue.begin(a, 10.0) == "tune"
    assert queue.peek() is b
    queue.begin(b, 10.0)
    assert queue.peek() is None
    queue.end(a, "tune", 10.0, 9.0)
    assert queue.peek() is a


def test_the_budget_ends_rounds_but_not_the_first_one() -> None:
    a, b = state(task("a"), 100.0), state(task("b"))
    assert chosen(a, b, budget=1.0) == "b"
    b.take(done(b.task, best_us=1.0))
    assert spent([a, b]) == 2.0
    assert chosen(a, b, budget=2.0) == ""
    assert chosen(a, b, budget=2.1) == "a"


def test_rounds_under_way_are_of_the_budget() -> None:
    a, b = state(task("a"), 100.0), state(task("b"), 90.0)
    queue = Queue([a, b], budget=3.0, seed=0)
    queue.begin(a, 1.0)
    assert queue.peek() is None
    # it took less than it was given
    queue.end(a, "tune", 1.0, 0.5)
    assert queue.peek() is a


def test_targets_and_kinds_are_apart() -> None:
    a, b, c = state(task("a"), 100.0), state(task("b", target="cuda"), 10.0), TaskState(task("c", target="cuda"))
    queue = Queue([a, b, c], budget=None, seed=0)
    assert queue.peek("tune") is a
    assert queue.peek("tune", "cuda") is b
    assert queue.peek("search", "cpu") is None
    assert queue.peek("search") is c


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.1, 100)), max_size=8), st.randoms(use_true_random=False))
def test_the_queue_gives_all_tasks_in_the_order_of_their_estimates(given: list[tuple[float, float]], rng: random.Random) -> None:
    states = [state(task(f"t{k}", weight=w), us) for k, (us, w) in enumerate(given)]
    queue = Queue(states, budget=None, seed=0)
    # some that had a step meanwhile, and wait again
    for _ in range(3):
        if (top := queue.peek()) is not None:
            queue.begin(top, 1.0)
            top.take(done(top.task, library_us=200.0, best_us=rng.uniform(1, 100)))
            queue.end(top, "tune", 1.0, 1.0)
    found = []
    while (top := queue.peek()) is not None:
        queue.begin(top, 1.0)
        found.append(top)
    assert len(found) == sum(not s.done for s in states)
    assert [s.estimate for s in found] == sorted((s.estimate for s in found), reverse=True)


@pytest.mark.parametrize(
    ("limits", "why"),
    [({"rounds": 2}, "all rounds"), ({"budget": 2.0}, "budget spent"), ({"rounds": 3, "budget": 2.5}, "")],
)
def test_the_limits_of_a_task(limits: dict[str, float], why: str) -> None:
    assert state(task("a", **limits), 100.0, 50.0).done == why


def test_rounds_without_a_gain_end_a_task() -> None:
    assert state(task("a"), 100.0, 50.0, 50.0, 50.0).done == ""
    assert state(task("a"), 100.0, 50.0, 50.0, 50.0, 49.9).done == "no gain"
    assert state(task("a"), 100.0, 50.0, 50.0, 50.0, 40.0).done == ""


def test_latencies_are_in_proportion_to_the_library_and_never_rise() -> None:
    found = TaskState(task("a"))
    found.take(done(found.task, library_us=200.0, best_us=100.0))
    # a machine that is twice as busy
    found.take(done(found.task, library_us=400.0, best_us=160.0))
    found.take(done(found.task, library_us=200.0, best_us=150.0))
    assert found.latencies == [100.0, 80.0, 80.0]
    assert found.ratio == 2.5


def test_a_choice_that_is_slower_than_the_one_that_is_kept() -> None:
    found = state(task("a"), 100.0)
    assert found.is_slower(done(found.task, library_us=200.0, best_us=200.0))
    assert not found.is_slower(done(found.task, library_us=400.0, best_us=200.0))
    assert not TaskState(found.task).is_slower(done(found.task, library_us=200.0, best_us=200.0))


def test_a_failure_ends_a_task_and_a_later_step_takes_it_back() -> None:
    found = state(task("a"), 100.0)
    found.take(Failed(task=found.task.key, kind="tune", ended=1.0, error="no", attempts=3))
    assert found.done == "failed"
    found.take(done(found.task, best_us=1.0))
    assert found.done == ""
    found.take(Lost(task=found.task.key, ended=1.0))
    assert (found.searched, found.rounds, found.done) == (None, [], "")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.1, 100)), min_size=2, max_size=6), st.integers(0, 5))
def test_the_choice_is_a_function_of_the_measurements_and_the_seed(given: list[tuple[float, float]], seed: int) -> None:
    states = [state(task(f"t{k}", weight=w), us) for k, (us, w) in enumerate(given)]
    first = chosen(*states, seed=seed)
    assert first == chosen(*reversed(states), seed=seed)
    best = max(states, key=lambda s: s.estimate)
    assert next(s for s in states if s.task.name == first).estimate == best.estimate


def test_the_seed_orders_what_is_equal() -> None:
    states = [state(task(f"t{k}"), 100.0) for k in range(8)]
    assert len({chosen(*states, seed=seed) for seed in range(20)}) > 1
