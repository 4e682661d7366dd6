"""Of several compiled forms of one program, the fastest runs of those that are nowhere slower than the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compilation import race_seconds
from mirage.compiler import choice
from mirage.compiler.arguments import trial_sets
from mirage.compiler.choice import PLAIN, alone, fastest, form_of
from mirage.compiler.kernels.cpu_maker import CpuKernels
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.kernels.profile import Timing
from mirage.runtime.executable import Executable
from tests.api.small import arrays, check

PROGRAM = mi.trace(lambda x, w: mi.relu(x @ w), "f", x=mi.tensor("b", 8), w=mi.tensor(8, 4))
SIZES = [{"b": 1}, {"b": 16}]


def forms() -> dict[str, Executable]:
    kernel = MuGraphKernel.of_library(PROGRAM)
    return {name: form_of(PROGRAM, k, SIZES, ("w",), CpuKernels()) for name, k in (("found", kernel), (PLAIN, None))}


def choose(
    monkeypatch: pytest.MonkeyPatch, us: Callable[[str, int], float], median: Callable[[str, int], float] | None = None
) -> str:
    """The choice between two forms that take so long for so many rows at least, and in the median, both of which run."""

    def interleave(runs: Mapping[str, Any], **_: Any) -> dict[str, Timing]:
        rows = {run._run.args[0].shape[0] for run in runs.values()}
        assert len(rows) == 1 and all(run.nanoseconds() > 0 for run in runs.values())
        return {name: Timing(us(name, *rows), (median or us)(name, *rows), 1) for name in runs}

    monkeypatch.setattr(choice, "interleave", interleave)
    return fastest(forms(), [arrays(PROGRAM, sizes) for sizes in SIZES], 1e9, "neither")


def test_the_faster_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("found", PLAIN):
        assert choose(monkeypatch, lambda name, _, wanted=wanted: 1.0 if name == wanted else 2.0) == wanted  # type: ignore[misc]


def test_what_is_slower_at_some_sizes_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    # 9 times as fast at one size, a little slower at the other
    times = {("found", 1): 1.0, (PLAIN, 1): 9.0, ("found", 16): 110.0, (PLAIN, 16): 100.0}
    assert choose(monkeypatch, lambda name, rows: times[name, rows]) == PLAIN
    # measurements of the same differ by as much
    times["found", 16] = 101.0
    assert choose(monkeypatch, lambda name, rows: times[name, rows]) == "found"


def test_a_gain_that_measurements_differ_by_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for us, wanted in ((99.0, PLAIN), (97.0, "found")):
        assert choose(monkeypatch, lambda name, _, us=us: us if name == "found" else 100.0) == wanted  # type: ignore[misc]


def test_a_median_that_was_disturbed_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    least = {("found", 1): 1.0, (PLAIN, 1): 9.0, ("found", 16): 99.0, (PLAIN, 16): 100.0}
    slow = {**least, ("found", 16): 300.0}
    assert choose(monkeypatch, lambda name, rows: least[name, rows], lambda name, rows: slow[name, rows]) == "found"
    # but it counts where everything is compared
    slow["found", 16] = 30_000.0
    assert choose(monkeypatch, lambda name, rows: least[name, rows], lambda name, rows: slow[name, rows]) == PLAIN


def test_without_time_for_a_race_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interleave(runs: Mapping[str, Any], *, seconds: float, min_runs: int, **_: Any) -> dict[str, Timing]:
        raced.append(seconds)
        return dict.fromkeys(runs, Timing(1.0, 1.0, 1))

    def wall_ns(fn: Callable[[], object]) -> int:
        fn()
        return 10**9

    monkeypatch.setattr(choice, "interleave", interleave)
    monkeypatch.setattr(choice, "wall_ns", wall_ns)
    inputs = [arrays(PROGRAM, sizes) for sizes in SIZES]
    # a call that is not timed and one that is, of each of two forms at each of two sets of sizes, a second each
    for seconds, races in ((7.9, []), (8.0, [2.0, 2.0])):
        raced: list[float] = []
        assert fastest(forms(), inputs, seconds, otherwise="neither") == ("neither" if not races else PLAIN)
        # half of the time: the least number of rounds may take twice as long
        assert raced == races


def test_every_form_computes_the_program() -> None:
    for form in forms().values():
        for sizes in SIZES:
            inputs = arrays(PROGRAM, sizes)
            check(PROGRAM, [form(*inputs)], inputs, sizes)


def test_a_race_leaves_no_memory_behind() -> None:
    made = forms()
    assert fastest(made, [arrays(PROGRAM, sizes) for sizes in SIZES], 10.0, PLAIN) in made
    assert all(form.idle_bytes == 0 for form in made.values())


def test_a_subprogram_is_given_the_dims_that_its_inputs_do_not_tell() -> None:
    """The rows of all sequences, which a whole program knows the numbers of."""

    def rows(x: Any, sizes: Any) -> Any:
        return mi.relu(x * 2) + sizes

    p = mi.trace(rows, "rows", x=mi.tensor("b*s", 8), sizes=mi.tensor(8))
    main = alone(p).functions["rows"]
    assert [v.name for v in main.parameters] == ["x", "sizes", "sizes1"] and str(main.parameters[-1].annotation) == "Shape[b, s]"
    arguments = trial_sets(main, [{"b": 2, "s": 3}])
    assert arguments is not None and arguments[0][-1] == (2, 3)
    for kernel in (None, MuGraphKernel.of_library(p)):
        form = form_of(p, kernel, [{"b": 2, "s": 3}], (), CpuKernels())
        x, added, _ = arguments[0]
        np.testing.assert_allclose(form(*arguments[0]), np.maximum(2 * x, 0) + added, rtol=1e-6)
    assert len(alone(PROGRAM).functions["f"].parameters) == 2


@pytest.mark.parametrize(
    ("took", "calls"), [(choice.LONG_NS, 1 + 1), (choice.TURN_NS, 1 + 2), (1, 1 + 1 + choice.TURN_CALLS)]
)
def test_long_calls_are_not_repeated(took: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def wall_ns(fn: Callable[[], object]) -> int:
        fn()
        return took

    monkeypatch.setattr(choice, "settle", lambda: None)
    monkeypatch.setattr(choice, "wall_ns", wall_ns)
    turns = choice._Turns(lambda: made.append(1))
    turns()
    assert turns.nanoseconds() == took and len(made) == calls


@pytest.mark.parametrize(
    ("call", "budget", "seconds"),
    [
        (0.0, 60.0, 0.0),  # nothing can be called
        (0.001, 60.0, 0.5),  # 500 calls
        (0.02, 60.0, 3.0),  # as many as fit into the small share
        (0.2, 60.0, 4.0),  # 20 calls
        (2.0, 60.0, 12.0),  # as many as fit into the large share
    ],
)
def test_whole_programs_race_for_many_short_calls_or_few_long_ones(call: float, budget: float, seconds: float) -> None:
    assert race_seconds(call, budget) == pytest.approx(seconds)
