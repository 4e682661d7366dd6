"""The referee of races: each known way to cheat in a benchmark of kernels is planted once, and refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import fairness
from benchmarks.fairness import Inputs, Referee, aligned, difference
from benchmarks.timing import Cold, race
from mirage.ir.samples import DRAWN
from mirage.kernels import profile

#: makes a version: a function of no arguments that computes a program for arrays, wherever these lie
Maker = Callable[..., Callable[[], Any]]


def program(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Softmax of the rows of a product."""
    scores = x @ w
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


def honest(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: program(x, w)


def honest_given(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
    out = np.empty((x.shape[0], w.shape[1]), np.float32)

    def run() -> np.ndarray:
        out[...] = program(x, w)
        return out

    return run


def packed(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
    """What is allowed of weights."""
    mine = np.asfortranarray(w)
    return lambda: program(x, mine)


def arrays(rows: int = 6, columns: int = 40, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [aligned(rng.standard_normal(shape, np.float32) / 4) for shape in ((rows, 24), (24, columns))]


def referee_of(given: list[np.ndarray], seed: int = 0) -> Referee:
    """A referee where the second array is a weight."""
    return Referee(
        Inputs(given, [True, False], seed),
        lambda: ([program(*(a.astype(np.float64) for a in given))], [program(*given)]),
    )


def examined(*cheats: Maker, given: list[np.ndarray] | None = None) -> dict[str, str]:
    """Who is refused where these are examined after honest versions, and why."""
    given = arrays() if given is None else given
    referee = referee_of(given)
    makers: tuple[Maker, ...] = (honest, honest_given, packed, *cheats)
    referee.examine_all({make.__name__: make(*given) for make in makers})
    return referee.refused


def refused(cheat: Maker) -> str:
    """Why a cheat is refused: it alone is, before a race; and in a race, hot and cold, whatever else it was told of it."""
    (name, reason), *others = examined(cheat).items()
    assert name == cheat.__name__ and not others
    for cold in (False, True):
        given, copied = arrays(), arrays(seed=1)
        referee = referee_of(given)
        makers: tuple[Maker, ...] = (honest, honest_given, cheat)
        copies = Cold(lambda: None, {make.__name__: make(*copied) for make in makers}) if cold else None
        race({make.__name__: make(*given) for make in makers}, seconds=0.0, cold=copies, referee=referee)
        assert list(referee.refused) == [name]
    return reason


def test_honest_versions_are_not_refused() -> None:
    given = arrays()
    referee = referee_of(given)
    referee.examine_all({make.__name__: make(*given) for make in (honest, honest_given, packed)})
    assert not referee.refused
    assert referee.given == {"honest": False, "honest_given": True, "packed": False}


# ---- stale and cached results ----


def test_a_result_that_is_kept_for_all_calls() -> None:
    def kept(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        found = program(x, w)
        return lambda: found.copy()

    assert "differs from float64" in refused(kept)


def test_a_result_that_is_kept_by_the_address_of_the_inputs() -> None:
    memory: dict[int, np.ndarray] = {}

    def cached(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            key = x.ctypes.data
            if key not in memory:
                memory[key] = program(x, w)
            return memory[key].copy()

        return run

    assert "differs from float64" in refused(cached)


def test_a_result_that_is_kept_by_a_part_of_the_values() -> None:
    """Calls that follow one another have nearly the same values."""

    def sampled(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        memory: dict[float, np.ndarray] = {}

        def run() -> np.ndarray:
            key = float(x[0, 0])
            if key not in memory:
                memory[key] = program(x, w)
            return memory[key].copy()

        return run

    (reason,) = examined(sampled).values()
    assert "differs from float64" in reason


# ---- results that are not computed ----


def test_a_result_in_the_memory_of_the_yardstick() -> None:
    """Whatever has the shape of a result, somewhere in memory, is returned: there is no right one before all are taken."""

    def thief(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        shape, own = (x.shape[0], w.shape[1]), np.zeros((x.shape[0], w.shape[1]), np.float32)

        def run() -> np.ndarray:
            # arrays alone are not tracked: they are what others hold
            held = [v for o in gc.get_objects() if type(o) in (dict, list, tuple) for v in _values(o)]
            found = [a for a in held if type(a) is np.ndarray and a.shape == shape and a.dtype == np.float32]
            others = [a for a in found if a is not own]
            return (others[-1] if others else own).copy()

        return run

    (reason,) = examined(thief).values()
    assert "differs from float64" in reason


def _values(holder: Any) -> list[Any]:
    return list(holder.values()) if isinstance(holder, dict) else list(holder)


def test_the_memory_of_another_version() -> None:
    given = arrays()
    other = honest_given(*given)
    out = other()
    referee = referee_of(given)
    referee.examine_all({"honest": other, "thief": lambda: out})
    assert list(referee.refused) == ["thief"] and "differs from float64 by nan" in referee.refused["thief"]


def test_a_rest_in_fresh_memory() -> None:
    def nothing(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: np.empty((x.shape[0], w.shape[1]), np.float32)

    def nothing_given(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        out = program(x, w)
        return lambda: out

    assert set(examined(nothing, nothing_given)) == {"nothing", "nothing_given"}
    assert "differs from float64" in refused(nothing_given)


def test_a_result_in_the_memory_of_an_argument() -> None:
    def alias(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            x[:, :24] = program(x, w)[:, :24]
            return x

        return run

    (reason,) = examined(alias).values()
    assert "in the memory of its arguments" in reason


def test_arguments_that_are_written_to() -> None:
    """Others are not refused for it: what was there is put back."""

    def simpler(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            found = program(x, w)
            x[...] = 0.0
            return found

        return run

    def scaled(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            w[0] += 1.0
            return program(x, w)

        return run

    def last(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: program(x, w)

    found = examined(simpler, scaled, last)
    assert set(found) == {"simpler", "scaled"}
    assert "writes to its arguments" in found["simpler"] and "writes to its arguments" in found["scaled"]


# ---- work that is skipped ----


def test_work_that_is_skipped_for_the_measured_sizes() -> None:
    """Wrong where it is measured, or where it isn't: both are examined."""

    def wrong_there(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            found = program(x, w)
            if x.shape[0] == 6:
                found[-1] = found[0]
            return found

        return run

    def right_there_only(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            found = np.zeros((x.shape[0], w.shape[1]), np.float32)
            found[:, :40] = program(x, w[:, :40])
            return found

        return run

    assert list(examined(wrong_there, right_there_only)) == ["wrong_there"]
    assert list(examined(wrong_there, right_there_only, given=arrays(5, 43))) == ["right_there_only"]


def test_work_that_is_skipped_for_the_measured_values() -> None:
    """The values that are examined have another mean and deviation than those that are timed."""

    def small_scores(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            # a polynomial is exp for the scores of the first inputs
            s = np.clip(x @ w, -1.0, 1.0)
            powers = 1 + s * (1 + s / 2 * (1 + s / 3 * (1 + s / 4 * (1 + s / 5 * (1 + s / 6 * (1 + s / 7))))))
            found: np.ndarray = powers / powers.sum(-1, keepdims=True)
            return found

        return run

    assert "differs from float64" in refused(small_scores)


def test_constants_that_are_folded_from_the_inputs() -> None:
    def folded(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        largest = (x @ w).max(-1, keepdims=True)
        sums = np.exp(x @ w - largest).sum(-1, keepdims=True)
        return lambda: np.exp(x @ w - largest) / sums

    assert "differs from float64" in refused(folded)


# ---- narrower types ----


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_narrower_types(dtype: Any) -> None:
    import ml_dtypes

    narrow = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype

    def operands(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        half = w.astype(narrow).astype(np.float32)
        return lambda: program(x.astype(narrow).astype(np.float32), half)

    def one_weight(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        half = w.astype(narrow).astype(np.float32)
        return lambda: program(x, half)

    assert "differs from float64" in refused(operands)
    assert "differs from float64" in refused(one_weight)


def test_results_of_another_type() -> None:
    def wider(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: program(x, w).astype(np.float64)

    def shorter(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: program(x, w)[:-1]

    found = examined(wider, shorter)
    assert "float64[6, 40] and float32[6, 40]" in found["wider"]
    assert "float32[5, 40] and float32[6, 40]" in found["shorter"]


# ---- time that is not the version's own ----


def test_a_result_that_is_there_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done by a thread that goes on when the call has returned: here, when the referee waits for it."""
    returned, threads = threading.Event(), list[threading.Thread]()

    def settle() -> bool:
        returned.set()
        for t in threads:
            t.join()
        returned.clear()
        return True

    def later(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
        out = np.zeros((x.shape[0], w.shape[1]), np.float32)

        def work() -> None:
            returned.wait()
            out[...] = program(x, w)

        def run() -> np.ndarray:
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            return out

        return run

    monkeypatch.setattr(fairness, "settle", settle)
    (reason,) = examined(later).values()
    assert "differs from float64" in reason


def test_a_lazy_result() -> None:
    class Lazy:
        """As an array of JAX that nobody waits for."""

        def __init__(self, work: Callable[[], np.ndarray]) -> None:
            self.work = work

        def is_ready(self) -> bool:
            return False

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return self.work()

    def lazy(x: np.ndarray, w: np.ndarray) -> Callable[[], Lazy]:
        return lambda: Lazy(lambda: program(x, w))

    assert "returns before its result is there" in refused(lazy)


def test_a_result_that_is_computed_when_it_is_read() -> None:
    class Unknown:
        def __init__(self, work: Callable[[], np.ndarray]) -> None:
            self.work = work

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return self.work()

    def unknown(x: np.ndarray, w: np.ndarray) -> Callable[[], Unknown]:
        return lambda: Unknown(lambda: program(x, w))

    assert "returns before its result is there" in refused(unknown)


def test_threads_that_spin_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's time of the process is what tells, as other processes do not change it."""

    class Clock:
        """Moved by sleeping; a thread of the process that spins takes as long on a processor."""

        now = used = 0.0
        spinning = 0.0

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            self.used += self.spinning * seconds

        def monotonic(self) -> float:
            return self.now

        def process_time(self) -> float:
            return self.used

    clock = Clock()
    monkeypatch.setattr(profile, "time", clock)

    def version(spinning: float) -> Maker:
        def made(x: np.ndarray, w: np.ndarray) -> Callable[[], np.ndarray]:
            def run() -> np.ndarray:
                clock.spinning = spinning
                return program(x, w)

            return run

        made.__name__ = f"spins on {spinning:g}"
        return made

    found = examined(version(1.0), version(0.5), version(0.1), version(0.0))
    assert set(found) == {"spins on 1", "spins on 0.5"}
    assert all("threads go on" in reason for reason in found.values())


# ---- inputs ----


def test_values_never_come_twice() -> None:
    given = arrays()
    inputs = Inputs(given, [True, False], 0)
    weight, seen = given[1].copy(), set[bytes]()
    for _ in range(5):
        inputs.renew()
        seen.add(given[0].tobytes())
        for _ in range(3):
            inputs.vary()
            seen.add(given[0].tobytes())
        inputs.restore()
        assert given[0].tobytes() in seen
    assert len(seen) == 5 * 4
    np.testing.assert_array_equal(given[1], weight)


def test_large_arrays_are_filled() -> None:
    x = aligned(np.zeros((3, DRAWN), np.float32))
    Inputs([x], [True], 0).renew(scale=2.0, offset=0.5)
    assert (x != 0).all() and 1.7 < x.std() < 2.3 and 0.4 < x.mean() < 0.6
    assert not (x[0] == x[1][::-1]).all()


def test_aligned() -> None:
    for n in range(1, 5):
        x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        found = aligned(x)
        assert found.ctypes.data % 64 == 0 and found.flags.c_contiguous and found.flags.writeable
        np.testing.assert_array_equal(found, x)


def test_differences() -> None:
    exact, own = [np.array([1.0, -4.0])], [np.array([1.0, -4.0], np.float32)]
    assert difference(own, exact, own) == ""
    assert "1.0e+00 of the largest element" in difference([np.array([1.0, 0.0], np.float32)], exact, own)
    assert "nan" in difference([np.array([np.nan, -4.0], np.float32)], exact, own)
    # the rest of a difference, beside what was subtracted
    rest = [np.array([1e-9], np.float32)]
    assert difference([*own, *rest], [*exact, np.zeros(1)], [*own, np.zeros(1, np.float32)]) == ""
    assert "float64" in difference(rest, [np.zeros(1)], [np.zeros(1, np.float32)])
    integers = [np.array([1, 2])]
    assert difference(integers, integers, integers) == ""
    assert "exact type" in difference([np.array([1, 3])], integers, integers)
    assert "other types" in difference([], integers, integers)
