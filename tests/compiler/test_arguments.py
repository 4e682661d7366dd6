"""Arguments that a program can be tried with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler import arguments
from mirage.compiler.arguments import trial_arguments, trial_sets
from mirage.ir.graph.nodes import Function

SPECS = {
    "x": mi.tensor("n", 4), "i": mi.tensor("m", dtype="int64"), "keep": mi.tensor("n", dtype="bool"), "s": mi.shape("t"),
    "pair": (mi.tensor("n"), mi.tensor("n")),
}  # fmt: skip
SIZES = {"n": 3, "m": 2, "t": 7}


def gather(x: Any, i: Any, keep: Any, s: Any, pair: Any) -> Any:
    (t,) = s
    return mi.take(x, i, axis=0) * t, mi.where(keep, pair[0], pair[1])


def main(specs: dict[str, Any], fn: Any = gather) -> Function:
    module = mi.trace_module(fn, specs)
    return module.functions[module.main]


def test_a_program_runs_with_them() -> None:
    found = trial_arguments(main(SPECS), SIZES)
    assert found is not None
    x, i, keep, s, pair = found
    assert x.shape == (3, 4) and x.dtype == np.float32 and x.std() > 0
    assert i.tolist() == [0, 0] and keep.all() and s == (7,) and [p.shape for p in pair] == [(3,), (3,)]
    first, second = mi.compile(gather, SPECS, without=("superoptimize",))(*found)
    np.testing.assert_allclose(first, 7 * x[[0, 0]])
    assert np.array_equal(second, pair[0])


def test_they_are_the_same_every_time() -> None:
    first, second = (trial_arguments(main(SPECS), SIZES, 1) for _ in range(2))
    assert first is not None and second is not None
    assert all(np.array_equal(a, b) for a, b in zip(first[:3], second[:3], strict=True))


def test_integers_up_to_a_number() -> None:
    labels = main({"x": mi.tensor("n", 4), "i": mi.tensor("n", dtype="int32")}, lambda x, i: mi.take(x, i, axis=0))
    found = trial_arguments(labels, {"n": 64}, 1)
    assert found is not None and found[1].dtype == np.int32 and sorted(set(found[1].tolist())) == [0, 1]


def test_what_has_a_fixed_shape_is_drawn_once() -> None:
    weights = main({"x": mi.tensor("n", 4), "w": mi.tensor(4, 4)}, lambda x, w: x @ w)
    found = trial_sets(weights, [{"n": 2}, {"n": 3}])
    assert found is not None
    (x, w), (y, v) = found
    assert w is v and x.shape == (2, 4) and y.shape == (3, 4)


@pytest.mark.parametrize("unknown", [mi.tensor(None, 4), mi.tensor(...), mi.shape(None)])
def test_types_that_do_not_say_enough_have_none(unknown: Any) -> None:
    assert trial_arguments(main({"x": mi.tensor("n"), "y": unknown}, lambda x, y: x), {"n": 3}) is None


def test_what_is_too_large_for_the_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial_arguments(main(SPECS), SIZES) is not None
    monkeypatch.setattr(arguments, "memory_bytes", lambda: 100)
    assert trial_arguments(main(SPECS), SIZES) is None
