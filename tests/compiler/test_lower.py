"""Lowered programs: what Python functions give is checked, and memory is planned around calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.lower import lower
from mirage.errors import GuardError, InputError
from mirage.runtime import program as vm
from mirage.runtime.packed import register_library, register_packed
from mirage.runtime.vm import VirtualMachine

X = np.arange(5, dtype=np.float32)


@pytest.mark.parametrize(
    ("give", "error", "message"),
    [
        (lambda x: x[:2], GuardError, r"value 'v0' has shape \[2\]: dim 0 is 2, but n is 5 here"),
        (lambda x: x.astype(np.float64), GuardError, r"value 'v0' has dtype float64, but must be float32\[n\]"),
        (lambda x: x[None], GuardError, r"value 'v0' has shape \[1, 5\], but must be float32\[n\]"),
        (lambda x: None, InputError, r"value 'v0': NoneType is not an array"),
    ],
)
def test_results_of_packed_functions_are_checked(give: Any, error: type[Exception], message: str) -> None:
    answers = [lambda x: x[::-1], give]
    name = f"test.lower.{message}".replace("\\", "")
    register_packed(name, lambda x: answers[0](x))

    def f(x: Any) -> Any:
        return mi.exp(mi.call_packed(name, x, result=mi.tensor("n"))) + x

    run = mi.compile(f, {"x": mi.tensor("n")}, without=["superoptimize"], cache=False)
    assert np.allclose(run(X), np.exp(X[::-1]) + X)
    answers.pop(0)
    with pytest.raises(error, match=rf"f, test_lower\.py:[0-9]+.*: {message}"):
        run(X)


def test_results_of_shape_functions_are_checked() -> None:
    answers: list[Any] = [(3,), (1, 2), (-1,), "three"]
    register_packed("test.lower.shape", lambda shape: answers[0])

    def f(x: Any) -> Any:
        return mi.match_cast(mi.call_shape("test.lower.shape", mi.shape_of(x), rank=1), mi.shape("m"))

    run = mi.compile(f, {"x": mi.tensor("n")}, cache=False)
    assert run(X) == (3,)
    for error, message in (
        (GuardError, "match the rank"),
        (GuardError, "sizes are 0 or more"),
        (InputError, "not a shape"),
    ):
        answers.pop(0)
        with pytest.raises(error, match=rf"f, test_lower\.py:[0-9]+.*: value 'v1' .*{message}"):
            run(X)


def test_memory_of_arguments_is_kept_while_a_branch_may_have_given_it_back() -> None:
    """One branch gives its argument back, another one a tensor of its own; later tensors overwrite neither."""

    def f(x: Any, w: Any, p: Any) -> Any:
        h = mi.exp(x) @ w
        g = mi.cond(p, lambda h, w: mi.tanh(h @ w), lambda h, w: h, h, w)
        return mi.loop(2, lambda i, s, w: mi.tanh(s @ w), g, invariant=(w,)) @ w + g

    spec = {
        "x": mi.tensor("n", 8, dtype="float64"),
        "w": mi.tensor(8, 8, dtype="float64"),
        "p": mi.tensor(dtype="bool"),
    }
    run = mi.compile(f, spec, bounds={"n": 64}, without=["superoptimize"], cache=False)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8))
    for n in (64, 1, 20):
        x = rng.standard_normal((n, 8))
        for p in (True, False):
            h = np.exp(x) @ w
            g = np.tanh(h @ w) if p else h
            assert np.allclose(run(x, w, np.array(p)), np.tanh(np.tanh(g @ w) @ w) @ w + g)
    # the branch's tensors are in the arena of the caller: a second function needs no memory of its own
    plans = run.memory_plan
    assert plans["f"].arena >= 2 * 64 * 8 * 8 and plans["then"].arena == 64 * 8 * 8


def test_a_result_that_a_function_allocates_keeps_no_argument_alive() -> None:
    def f(x: Any, p: Any) -> Any:
        return mi.cond(p, lambda h: mi.exp(h) @ h, lambda h: mi.tanh(h) @ h, mi.exp(x) @ x)

    spec = {"x": mi.tensor("n", "n"), "p": mi.tensor(dtype="bool")}
    run = mi.compile(f, spec, bounds={"n": 16}, without=["superoptimize"], cache=False)
    # the branches' argument is planned, though the result of the branch is that of the function
    assert run.memory_plan["f"].arena >= 2 * 16 * 16 * 4


def chain(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = mi.call_library("test.lower.matmul", x, w, out=mi.tensor("n", 8))
    return x


def test_code_with_and_without_a_plan() -> None:
    register_library("test.lower.matmul", lambda inputs, outputs: np.matmul(inputs[0], inputs[1], out=outputs[0]))
    module = mi.trace_module(chain, {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8)})
    bounded = Context(constraints={"chain": from_bounds({"n": 32})})
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((20, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    for context, planned, arena, storages in (
        (bounded, True, 2 * 32 * 8 * 4, []),
        (Context(), True, 0, ["32*n", "32*n"]),
        (bounded, False, 0, []),
    ):
        lowered = lower(module, context, planned=planned)
        memory = lowered.plans["chain"]
        assert (memory.arena, list(map(str, memory.storages))) == (arena, storages)
        run = VirtualMachine(lowered.code)
        assert np.allclose(run(x, w), x @ w @ w @ w @ w, rtol=1e-4)
        assert run.idle_bytes == arena + len(storages) * 20 * 8 * 4


def test_only_the_results_among_what_a_kernel_writes_are_out_of_the_plan() -> None:
    def f(x: Any, w: Any) -> Any:
        kept = mi.cos(x)
        return kept, mi.repeat(kept, 3, axis=0) @ w

    spec = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8)}
    run = mi.compile(f, spec, bounds={"n": 64}, without=["superoptimize"], cache=False)
    # the kernel writes both, and the repeated one is dropped in the call
    writes = [i for i in run.program.functions["f"].code if isinstance(i, vm.CallKernel)]
    assert [len(i.outputs) for i in writes] == [2]
    made = [i for i in run.program.functions["f"].code if isinstance(i, vm.MakeTensor)]
    assert len(made) == 3 and sum(i.storage is None for i in made) == 2
    assert run.memory_plan["f"].arena == 3 * 64 * 8 * 4
    rng = np.random.default_rng(0)
    x, w = np.float32(rng.standard_normal((5, 8))), np.float32(rng.standard_normal((8, 8)))
    for found, expected in zip(run(x, w), (np.cos(x), np.repeat(np.cos(x), 3, 0) @ w), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
