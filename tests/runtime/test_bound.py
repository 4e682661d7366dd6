"""Arguments that are given once: calls with the others are as calls with all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GuardError, InputError
from mirage.ir.types import tensor
from mirage.runtime.executable import Executable
from mirage.runtime.program import CallKernel, MakeTensor, Return
from tests.runtime.machines import ADD, function, machine

N = tensor("n")


def added() -> Any:
    code = MakeTensor(2, None, 0, N.shape, "float32"), CallKernel(ADD, (0, 1), (2,)), Return(2)
    return machine(function({"x": N, "y": N}, *code))


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_a_bound_argument_is_used_at_its_place() -> None:
    x, y = floats(3), floats(3, seed=1)
    m = added()
    assert np.array_equal(m.bound({1: y})(x), m(x, y))
    assert np.array_equal(m.bound({0: x})(y), m(x, y))
    assert np.array_equal(m.bound({0: x, 1: y})(), m(x, y))


def test_a_bound_argument_is_checked_when_it_is_given_and_the_others_in_calls() -> None:
    m = added()
    with pytest.raises(GuardError, match="input 'y' has dtype"):
        m.bound({1: np.ones(3)})
    bound = m.bound({1: floats(3)})
    with pytest.raises(GuardError, match="dim 0 is 3"):
        bound(floats(4))
    with pytest.raises(InputError, match=r"takes 1 arguments \(x\), got 2"):
        bound(floats(3), floats(3))


def layered(x: Any, w: Any, b: Any) -> Any:
    return mi.relu(x @ w.mT + b) @ w


@pytest.fixture(scope="module")
def executable() -> Executable:
    specs = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8), "b": mi.tensor(8)}
    return mi.compile(layered, specs, constants=("w", "b"), without=("superoptimize",))


def test_an_executable_binds_its_constants(executable: Executable) -> None:
    w, b = floats(8, 8), floats(8, seed=1)
    run = executable.bind(w=w, b=b)
    for n in (0, 1, 5):
        x = floats(n, 8, seed=2)
        assert np.array_equal(run(x), executable(x, w, b))


def test_some_constants_may_be_bound(executable: Executable) -> None:
    x, w, b = floats(4, 8), floats(8, 8, seed=1), floats(8, seed=2)
    assert np.array_equal(executable.bind(b=b)(x, w), executable(x, w, b))


def test_what_is_bound_may_be_written_after_forgetting(executable: Executable) -> None:
    x, w, b = floats(4, 8), floats(8, 8, seed=1), floats(8, seed=2)
    executable.bind(w=w, b=b)(x)
    w[:] = 0
    executable.forget()
    assert np.array_equal(executable.bind(w=w, b=b)(x), np.zeros((4, 8), np.float32))


def test_names_that_are_no_arguments_are_refused(executable: Executable) -> None:
    with pytest.raises(InputError, match="no argument 'weight'; the arguments are x, w, b"):
        executable.bind(weight=floats(8, 8))


def test_arguments_that_are_updated_in_place_may_be_bound() -> None:
    def step(total: Any, x: Any) -> Any:
        return mi.add_(total, x)

    run = mi.compile(step, {"total": mi.tensor("n"), "x": mi.tensor("n")}, without=("superoptimize",))
    total = np.zeros(3, np.float32)
    bound = run.bind(total=total)
    bound(np.ones(3, np.float32))
    bound(np.ones(3, np.float32))
    assert total.tolist() == [2, 2, 2]
    with pytest.raises(GuardError, match="shares memory"):
        bound(total)


def test_an_argument_that_is_updated_in_place_shares_no_memory_with_bound_ones() -> None:
    def step(total: Any, a: Any, b: Any) -> Any:
        return mi.add_(total, a * b)

    run = mi.compile(step, {name: mi.tensor("n") for name in ("total", "a", "b")}, without=("superoptimize",))
    memory = np.ones(12, np.float32)
    # bound ones may share memory with each other
    bound = run.bind(a=memory[:4], b=memory[2:6])
    total = memory[6:10]
    bound(total)
    assert total.tolist() == [2, 2, 2, 2] and memory[:6].tolist() == [1] * 6
    for start, name in ((0, "a"), (3, "[ab]"), (5, "b")):
        with pytest.raises(GuardError, match=f"input 'total' is updated in place, and shares memory with input '{name}'"):
            bound(memory[start : start + 4])
    every_other = memory[::2][:4]
    with pytest.raises(GuardError, match="input 'total' is updated in place, and shares memory with input 'a'"):
        bound(every_other)
