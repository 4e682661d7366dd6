"""Errors against float64: what is measured, and what a kernel may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.interpret import run_reference
from mirage.search.accuracy import MAX_FLOPS, SLACK, ULPS, Trial, accuracy_trials
from mirage.search.inputs import masks, positions, positives, random_inputs, rounded_otherwise, shares
from tests.programs import program

EPS = float(np.finfo(np.float32).eps)
Change = Callable[[np.ndarray], np.ndarray]


def trial(exact: list[float], own: list[float]) -> Trial:
    return Trial("a trial", [], {}, [np.array(exact)], [np.array(own, np.float32)])


def kernel(*results: list[float]) -> Callable[..., list[np.ndarray]]:
    return lambda inputs, sizes: [np.array(r, np.float32) for r in results]


def test_errors_are_relative_to_the_largest_result() -> None:
    t = trial([1.0, -8.0, 2.0], [1.25, -8.0, 2.0])
    found, passed = t.measure(kernel([1.0, -8.0, 2.5]))
    assert (found.trial, found.kernel, found.program, passed) == ("a trial", 0.5 / 8, 0.25 / 8, True)


def test_the_worst_output_counts() -> None:
    t = Trial("two", [], {}, [np.array([1.0]), np.array([1000.0])], [np.array([1.0], np.float32)] * 2)
    t = Trial("two", [], {}, t.exact, [np.array([x], np.float32) for x in (1.5, 1000.0)])
    found, _ = t.measure(kernel([1.25], [900.0]))
    assert (found.kernel, found.program) == (0.25, 0.5)


def test_each_output_is_judged_by_its_own_program_error() -> None:
    """A large error of the program in one output excuses none in another."""
    exact, own = [np.array([1.0]), np.array([1.0])], [np.array([x], np.float32) for x in (1.5, 1.0)]
    t = Trial("two", [], {}, exact, own)
    assert t.measure(kernel([1.5], [1.0]))[1]
    assert not t.measure(kernel([1.0], [1.5]))[1]


@pytest.mark.parametrize(("factor", "passed"), [(0.9, True), (1.1, False)])
def test_what_a_kernel_may_have(factor: float, passed: bool) -> None:
    own = 1 + 1024 * EPS
    allowed = SLACK * 1024 * EPS + ULPS * EPS
    assert trial([1.0], [own]).measure(kernel([1 + factor * allowed]))[1] is passed


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_results_that_are_no_numbers_never_pass(wrong: float) -> None:
    found, passed = trial([1.0, 2.0], [1.0, 2.0]).measure(kernel([1.0, wrong]))
    assert not passed and found.kernel == np.inf and found.program == 0


def test_what_overflows_in_the_program_is_left_out() -> None:
    for t in (trial([np.inf, 2.0], [1.0, 2.0]), trial([1.0, 2.0], [np.inf, 2.0])):
        found, passed = t.measure(kernel([7.0, 2.0]))
        assert passed and found.kernel == found.program == 0


def test_a_trial_in_which_nothing_is_compared_is_failed() -> None:
    t = trial([np.nan, np.inf], [np.nan, 1.0])
    assert not t.tells and not t.measure(kernel([1.0, 1.0]))[1]
    # of every output, as another one says nothing of it
    some = Trial("two", [], {}, [np.array([1.0]), np.array([np.nan])], [np.array([1.0], np.float32)] * 2)
    assert not some.tells and not some.measure(kernel([1.0], [1.0]))[1]
    empty = trial([], [])
    assert empty.tells and empty.measure(kernel([]))[1]


def test_small_trials_compare_something_or_are_left_out() -> None:
    """A sum of exps overflows around 1000, a log of one number is undefined for half of all."""
    sizes = {"m": 64}
    for f, names in (
        (mi.log, ["the given sizes", "sizes of 1", "small sizes", "inputs around 1000"]),
        (lambda x: mi.sum(mi.exp(x), axis=0), ["the given sizes", "sizes of 1", "small sizes"]),
        (lambda x: x / (mi.relu(x) * mi.relu(-x)), ["the given sizes"]),
    ):
        p = mi.trace(f, "p", x=mi.tensor("m"))
        run = partial(run_reference, p)
        trials = accuracy_trials(p, random_inputs(p, sizes, 0), sizes, 1.0, run, 0)
        assert [t.name for t in trials] == names
        assert [t.tells for t in trials] == [True] * (len(trials) - 1) + [len(trials) > 1]
        assert all(t.measure(run)[1] is t.tells for t in trials)


def test_what_rounding_alone_may_make_overflow_is_left_out() -> None:
    """Of float16, 66,000 is no number, but a sum that is rounded on the way may stay below."""
    exact, own, found = ([v, 2.0] for v in (66_000.0, 65_500.0, np.inf))
    t = Trial("a trial", [], {}, [np.array(exact)], [np.array(own, np.float16)])
    with np.errstate(over="ignore"):
        result = np.array(found).astype(np.float16)
    assert t.measure(lambda inputs, sizes: [result])[1]
    t = Trial("a trial", [], {}, [np.array([60_000.0, 2.0])], [np.array([60_000.0, 2.0], np.float16)])
    assert not t.measure(lambda inputs, sizes: [result])[1]


def test_results_of_zero_have_absolute_errors() -> None:
    t = trial([0.0], [0.0])
    assert t.measure(kernel([0.0]))[1]
    found, passed = t.measure(kernel([0.5]))
    assert (found.kernel, passed) == (0.5, False)


def one_pass_variance(x: Any) -> Any:
    mean = mi.mean(x, axis=1, keepdims=True)
    return x / mi.sqrt(mi.mean(x * x, axis=1, keepdims=True) - mean * mean + 1)


def test_inputs_around_1000_show_cancellation() -> None:
    """Equal over the reals, and useless for data far from zero: the figures of the trial say so."""
    two_pass = mi.trace(
        lambda x: x / mi.sqrt(mi.mean(mi.square(x - mi.mean(x, axis=1, keepdims=True)), axis=1, keepdims=True) + 1),
        x=mi.tensor("m", "n"),
    )
    one_pass = mi.trace(one_pass_variance, x=mi.tensor("m", "n"))
    sizes = {"m": 3, "n": 5}

    def run(inputs: Sequence[np.ndarray], ss: Mapping[str, int]) -> list[np.ndarray]:
        return run_reference(one_pass, inputs, ss)

    trials = accuracy_trials(two_pass, random_inputs(two_pass, sizes, 0), sizes, 1.0, run, 0)
    found = {t.name: t.measure(run) for t in trials}
    assert list(found) == ["the given sizes", "sizes of 1", "small sizes", "inputs around 1000"]
    accuracy, passed = found["inputs around 1000"]
    assert not passed and accuracy.kernel > 1e-2 > 1e-4 > accuracy.program
    accuracy, passed = found["small sizes"]
    assert passed and accuracy.kernel < 1e-5


def test_large_programs_are_not_run_in_float64_at_their_sizes() -> None:
    p, sizes = program("matmul"), {"b": 2, "n": 3}
    inputs = random_inputs(p, sizes, 0)
    runs = [
        accuracy_trials(p, inputs, sizes, flops, lambda xs, ss: run_reference(p, xs, ss), 0)
        for flops in (1.0, 2 * MAX_FLOPS)
    ]
    assert [[t.in_float64 for t in trials] for trials in runs] == [[True] * 4, [False, True, True, True]]


def hidden(x: Any, mask: Any) -> Any:
    """Scores where a mask is 1, and -1e9 elsewhere."""
    return mi.softmax(x * mask + (1 - mask) * -1e9)


def test_masks_are_inputs_whose_difference_from_1_is_taken() -> None:
    m, mn = mi.tensor("m"), mi.tensor("m", "n")
    assert masks(mi.trace(hidden, x=mn, mask=mn)) == {1}
    assert masks(mi.trace(lambda x, y: x * (mi.reshape(y, ("m", 1)) - 1), x=mn, y=m)) == {1}
    for other in (lambda x: 2 - x, lambda x: 1 - mi.exp(x), lambda x: 1 + x, lambda x: x - x):
        assert not masks(mi.trace(other, x=mn))


def test_masks_are_0_or_1_in_every_trial_and_other_inputs_are_not() -> None:
    p = mi.trace(hidden, x=mi.tensor("m", "n"), mask=mi.tensor("m", "n"))
    for offset in (0.0, 1000.0):
        x, mask = random_inputs(p, {"m": 9, "n": 17}, 0, offset)
        assert set(mask.ravel()) == {0.0, 1.0} and len(set(x.ravel())) > 100


def compared(q: Any, i: Any, j: Any, i1: Any, j1: Any) -> Any:
    """Positions in two parts, of which the larger is taken times 2^20."""
    return q * mi.clamp((i1 - j1) * 2.0**20 + (i + 1 - j), 0, 1)


def test_positions_are_in_order() -> None:
    rows, columns = mi.tensor("m", 1), mi.tensor("n")
    p = mi.trace(compared, q=mi.tensor("m", "n"), i=rows, j=columns, i1=rows, j1=columns)
    assert positions(p) == {1: 1, 2: 1, 3: 2**20, 4: 2**20}
    for offset in (0.0, 1000.0):
        q, i, j, i1, j1 = random_inputs(p, {"m": 4, "n": 12}, 0, offset)
        # as far as each other, whatever their number
        np.testing.assert_array_equal(i.ravel(), [2, 5, 8, 11])
        np.testing.assert_array_equal(j, np.arange(12))
        assert not i1.any() and not j1.any() and len(set(q.ravel())) == 48
    assert random_inputs(p, {"m": 1, "n": 12}, 0)[1] == 11


@pytest.mark.parametrize(
    "other",
    [
        # a bend of what is as large as the result, of no vectors alone, and between other bounds
        lambda x, y, z: mi.clamp(x + z, 0, 1),
        lambda x, y, z: mi.clamp(mi.exp(x) + y, 0, 1) * z,
        lambda x, y, z: mi.clamp(x + y, -1, 1) * z,
    ],
)
def test_other_inputs_are_no_positions(other: Callable[..., Any]) -> None:
    assert not positions(mi.trace(other, x=mi.tensor("m", 1), y=mi.tensor("n"), z=mi.tensor("m", "n")))


def test_inputs_that_are_rounded_otherwise_are_as_near_as_can_be() -> None:
    rows, columns = mi.tensor("m", 1), mi.tensor("n")
    p = mi.trace(compared, q=mi.tensor("m", "n"), i=rows, j=columns, i1=rows, j1=columns)
    given = random_inputs(p, {"m": 4, "n": 12}, 0, 1000.0)
    q, *vectors = rounded_otherwise(p, given, 0)
    assert q.dtype == np.float64 and np.abs(q / given[0] - 1).max() == pytest.approx(np.finfo(np.float32).eps)
    assert all(np.array_equal(a, b) for a, b in zip(vectors, given[1:], strict=True)), "masks stay what they are"


def test_errors_by_chance_are_no_measure_of_others() -> None:
    """A program whose own result is right by luck may be as wrong as it is for inputs that differ in the last bit."""
    t = Trial("lucky", [], {}, [np.array([1.0])], [np.array([1.0], np.float32)])

    def off(inputs: Any, sizes: Any) -> list[np.ndarray]:
        return [np.array([1.01], np.float32)]

    assert not t.measure(off)[1]
    accuracy, passed = replace(t, nearby=[np.array([1.005])]).measure(off)
    assert passed and accuracy.program == pytest.approx(0.005)


def test_a_kernel_that_loses_what_a_mask_shows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It multiplies the term of the mask out, which is equal in exact arithmetic."""
    p, sizes = mi.trace(hidden, x=mi.tensor("m", "n"), mask=mi.tensor("m", "n")), {"m": 16, "n": 64}
    low = np.float32(-1e9)

    def library(inputs: Sequence[np.ndarray], at: Mapping[str, int]) -> list[np.ndarray]:
        return run_reference(p, list(inputs), at)

    def multiplied_out(inputs: Sequence[np.ndarray], at: Mapping[str, int]) -> list[np.ndarray]:
        x, mask = inputs
        scores = x * mask + low - low * mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return [weights / weights.sum(axis=-1, keepdims=True)]

    def passed(run: Callable[..., list[np.ndarray]]) -> list[bool]:
        return [t.measure(run)[1] for t in accuracy_trials(p, random_inputs(p, sizes, 0), sizes, 1e4, library, 0)]

    assert all(passed(library)) and not all(passed(multiplied_out))
    # this is what 0 and 1 are for
    monkeypatch.setattr("mirage.search.inputs.masks", lambda _: frozenset())
    assert all(passed(multiplied_out))


SHARES: dict[str, tuple[Callable[..., Any], set[int]]] = {
    "the logit": (lambda p, y: mi.log(p / (1 - p)) * y, {0}),
    "cross entropy of two": (lambda p, y: -mi.mean(y * mi.log(p) + (1 - y) * mi.log(1 - p)), {0}),
    "a divergence": (lambda p, y: p * mi.log(p / y) + (1 - p) * mi.log((1 - p) / (1 - y)), {0, 1}),
    "odds": (lambda p, y: y / (1 - mi.reshape(p, ("1", "m", "n"))), {0}),
    "a noised image": (lambda p, y: (y - mi.sqrt(1 - p)) / mi.sqrt(p), {0}),
    "a mask": (lambda p, y: y * p + (1 - p) * -1e9, set()),
    "a mask that is counted": (lambda p, y: mi.sum(y * p + (1 - p) * -1e9) / mi.sum(p), set()),
}


@pytest.mark.parametrize("name", SHARES)
def test_shares_are_between_0_and_1(name: str) -> None:
    fn, wanted = SHARES[name]
    p = mi.trace(fn, "shares", p=mi.tensor("m", "n"), y=mi.tensor("m", "n"))
    assert shares(p) == wanted
    for offset in (0.0, 1000.0):
        drawn = random_inputs(p, {"m": 9, "n": 17}, 0, offset)
        for k, x in enumerate(drawn):
            assert ((x > 0) & (x < 1)).all() == (k in wanted)
            assert (set(x.ravel()) == {0.0, 1.0}) == (k in masks(p) - shares(p))
        assert all(np.isfinite(r).all() for r in run_reference(p, drawn, {"m": 9, "n": 17}))


POSITIVES: dict[str, tuple[Callable[..., Any], set[int]]] = {
    "roots of weights": (lambda x, w: x @ mi.sqrt(w), {1}),
    "logarithms of rows": (lambda x, w: mi.log(x) / mi.sum(mi.sqrt(x), axis=-1, keepdims=True) @ w, {0}),
    "a step of Adam": (lambda x, w: x / (mi.sqrt(mi.sum(w, axis=0) / 8.0) + 1e-8), {1}),
    "reciprocal roots": (lambda x, w: x @ mi.rsqrt(w), {1}),
    "a power": (lambda x, w: x**1.5 @ w, {0}),
    "a power that is no product of roots": (lambda x, w: x**0.3 @ w, {0}),
    "a reciprocal power": (lambda x, w: x**-2.5 @ w, {0}),
    "a whole power": (lambda x, w: x**3.0 @ w, set()),
    "a norm": (lambda x, w: x / mi.sqrt(mi.mean(x * x, axis=-1, keepdims=True) + 1e-6) @ w, set()),
    "a root mean square": (lambda x, w: x / mi.sqrt(mi.mean(mi.square(x), axis=-1, keepdims=True)) @ w, set()),
    "a divisor that is a sum": (lambda x, w: w / mi.sum(x, axis=0, keepdims=True).mT, {0}),
    "a divisor that is a product": (lambda x, w: x / (x @ (w @ mi.relu(w.mT))), {0, 1}),
    "a softmax": (lambda x, w: mi.softmax(x) @ w, set()),
    "logarithms of sums of exps": (lambda x, w: mi.log(mi.sum(mi.exp(x), axis=-1, keepdims=True)) + x @ w, set()),
}


@pytest.mark.parametrize("name", POSITIVES)
def test_what_is_undefined_below_0_is_tried_with_positive_numbers(name: str) -> None:
    f, wanted = POSITIVES[name]
    p = mi.trace(f, x=mi.tensor("m", 64), w=mi.tensor(64, 64))
    assert positives(p) == wanted
    sizes = {"m": 3}
    inputs = random_inputs(p, sizes, 0)
    assert [bool((x > 0).all()) for x in inputs] == [k in wanted for k in range(2)]
    t = Trial.of("a trial", p, inputs, sizes)
    assert t.tells and all(c.all() for c in t.compared)
