"""Folds and scans over lists of tensors that are alike run as loops, all others item by item: with the same results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import FormatError, GuardError, InputError
from mirage.runtime import list_loops
from mirage.runtime import program as vm
from mirage.runtime.check import check_program
from mirage.runtime.list_loops import LoopOverList
from tests.frontends.graph.functional_programs import MODELS, arguments, flat, in_float64

#: without C, which takes longer to compile than to run
PLAIN = ("fuse", "libraries")
VECTORS = {"xs": mi.List(mi.tensor("n")), "h": mi.tensor("n")}


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each loop got."""
    found: list[int] = []
    run = LoopOverList.run

    def counted(self: LoopOverList, columns: list[Any], args: list[Any]) -> Any:
        found.append(len(columns))
        return run(self, columns, args)

    monkeypatch.setattr(LoopOverList, "run", counted)
    return found


def vectors(*sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(len(sizes))
    return [rng.standard_normal(n).astype(np.float32) for n in sizes]


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "mlp", "char_rnn"])
def test_models(name: str, loops: list[int]) -> None:
    fn, specs, wanted = MODELS[name]
    run = mi.compile(fn, specs, without=PLAIN)
    for steps in (0, 1, list_loops.FEWEST - 1, list_loops.FEWEST, 9):
        args = arguments(np.random.default_rng(steps), name, steps=steps)
        loops.clear()
        for f, w in zip(flat(run(*args)), flat(wanted(*in_float64(args))), strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
        assert bool(loops) == (steps >= list_loops.FEWEST)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "mlp", "char_rnn"])
def test_all_rounds_are_in_c(name: str, loops: list[int], rounds_in_c: list[int]) -> None:
    fn, specs, wanted = MODELS[name]
    run = mi.compile(fn, specs)
    for seed, steps in ((1, 70), (2, 70), (3, 5)):
        args = arguments(np.random.default_rng(seed), name, steps=steps)
        for f, w in zip(flat(run(*args)), flat(wanted(*in_float64(args))), strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-3, atol=1e-4)
    assert len(loops) == 3 and rounds_in_c == [70, 70, 5]


def test_a_state_that_is_another_before_goes_round_by_round(loops: list[int], rounds_in_c: list[int]) -> None:
    """What a scan keeps of a round is to be in memory of its own."""

    def program(xs: Any, a: Any, b: Any) -> Any:
        return mi.scan(lambda state, x: (state[1], state[0] + x), (a, b), xs)

    v = mi.tensor("n")
    run = mi.compile(program, {"xs": mi.List(v), "a": v, "b": v})
    xs, a, b = vectors(*[3] * 5), np.zeros(3, np.float32), np.ones(3, np.float32)
    for _ in range(2):
        state = a, b
        for found, x in zip(run(xs, a, b), xs, strict=True):
            state = state[1], state[0] + x
            for f, w in zip(found, state, strict=True):
                np.testing.assert_allclose(f, w, rtol=1e-5)
    assert len(loops) == 2 and not rounds_in_c


def test_items_of_several_shapes_go_one_by_one(loops: list[int]) -> None:
    def total(xs: Any, h: Any) -> Any:
        return mi.fold(lambda h, x: h + x.sum(), h, xs)

    run = mi.compile(total, {"xs": mi.List(mi.tensor(None)), "h": mi.tensor()}, without=PLAIN)
    xs = vectors(3, 4, 3, 3)
    np.testing.assert_allclose(run(xs, np.float32(1)), 1 + sum(x.sum() for x in xs), rtol=1e-5)
    assert not loops


def test_large_items_are_not_stacked(loops: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {"xs": mi.List(mi.tensor(1, "n")), "h": mi.tensor(1, "n"), "w": mi.tensor("n", "n")}

    def program(xs: Any, h: Any, w: Any) -> Any:
        return mi.fold(lambda h, x: h + mi.tanh(x @ w), h, xs)

    run = mi.compile(program, specs, without=PLAIN)
    xs, h, w = [x[None] for x in vectors(*[5] * 4)], np.ones((1, 5), np.float32), np.eye(5, dtype=np.float32)
    wanted = h + sum(np.tanh(x) for x in xs)
    np.testing.assert_allclose(run(xs, h, w), wanted, rtol=1e-5)
    assert loops == [1]
    # one by one then, as products of all items would need a copy of them
    monkeypatch.setattr(list_loops, "MOST_BYTES", 16)
    run = mi.compile(program, specs, without=PLAIN)
    np.testing.assert_allclose(run(xs, h, w), wanted, rtol=1e-5)
    assert loops == [1]
    # those that are read where they lie may be of any size
    run = mi.compile(lambda xs, h: mi.fold(lambda h, x: h * x, h, xs), VECTORS, without=PLAIN)
    np.testing.assert_allclose(run([x[0] for x in xs], h[0]), np.prod(xs, 0)[0], rtol=1e-5)
    assert loops == [1, 1]


def test_tuples_of_tensors(loops: list[int]) -> None:
    def program(pairs: Any, state: Any, w: Any) -> Any:
        def step(state: Any, pair: Any) -> Any:
            (a, (b, c)), (x, k) = state, pair
            return a + x * w, (b - x, c + k)

        return mi.scan(step, state, pairs), mi.fold(step, state, pairs)

    v = mi.tensor("n")
    specs = {"pairs": mi.List((v, mi.tensor(dtype="int64"))), "state": (v, (v, mi.tensor(dtype="int64"))), "w": v}
    run, plain = (mi.compile(program, specs, without=(*PLAIN, *more)) for more in ((), ("loops",)))
    pairs = [(x, np.int64(k)) for k, x in enumerate(vectors(*[3] * 6))]
    ones = np.ones(3, np.float32)
    given = pairs, (ones, (ones, np.int64(2))), 2 * ones
    assert all(f.over_list is None for f in plain.program)
    scanned, folded = run(*given)
    assert loops == [2, 2] and len(scanned) == 6
    for f, w in zip(flat([*scanned, folded]), flat([*plain(*given)[0], plain(*given)[1]]), strict=True):
        assert f.dtype == w.dtype
        np.testing.assert_allclose(f, w, rtol=1e-5)
    assert loops == [2, 2]


def test_results_belong_to_the_caller() -> None:
    run = mi.compile(lambda xs, h: mi.scan(lambda h, x: h + x, h, xs), VECTORS, without=PLAIN)
    xs, h = vectors(*[4] * 5), np.zeros(4, np.float32)
    first = run(xs, h)
    assert not any(np.may_share_memory(a, b) for k, a in enumerate(first) for b in [*first[:k], *xs, h])
    before = [a.copy() for a in first]
    for a, b in zip(run(xs, h), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lists_within_lists(loops: list[int]) -> None:
    run = mi.compile(
        lambda xss, h: mi.map(lambda xs: mi.fold(lambda h, x: mi.tanh(h + x), h, xs), xss),
        {"xss": mi.List(mi.List(mi.tensor("n"))), "h": mi.tensor("n")}, without=PLAIN,
    )  # fmt: skip
    xss, h = [vectors(*[2] * k) for k in (0, 4, 2, 5)], np.ones(2, np.float32)
    for f, xs in zip(run(xss, h), xss, strict=True):
        w = h
        for x in xs:
            w = np.tanh(w + x)
        np.testing.assert_allclose(f, w, rtol=1e-5)
    assert loops == [1, 1]


def test_steps_that_call_for_the_stack_are_no_loops() -> None:
    def program(xs: Any, h: Any) -> Any:
        return mi.fold(lambda h, x: mi.fold(lambda g, y: g * y, h, [x, x]), h, xs)

    run = mi.compile(program, VECTORS, without=PLAIN)
    xs = vectors(*[2] * 4)
    np.testing.assert_allclose(run(xs, np.ones(2, np.float32)), np.prod(xs, 0) ** 2, rtol=1e-5)


def test_what_is_wrong_has_its_name() -> None:
    def program(xs: Any, h: Any, k: Any) -> Any:
        return mi.fold(lambda h, x: h + mi.take(x, k, axis=0), h, xs)

    run = mi.compile(program, {"xs": mi.List(mi.tensor("n")), "h": mi.tensor(), "k": mi.tensor(dtype="int64")}, without=PLAIN)
    xs = vectors(*[3] * 4)
    np.testing.assert_allclose(run(xs, np.float32(0), np.int64(2)), sum(x[2] for x in xs), rtol=1e-5)
    with pytest.raises(InputError, match="index"):
        run(xs, np.float32(0), np.int64(3))
    with pytest.raises(GuardError, match=r"input 'xs', item 2 has shape \[2\]"):
        run([*xs[:2], xs[2][:2]], np.float32(0), np.int64(0))


def test_saved_programs(tmp_path: Path, loops: list[int]) -> None:
    run = mi.compile(lambda xs, h: mi.scan(lambda h, x: h + x, h, xs), VECTORS, without=PLAIN)
    run.save(tmp_path / "scan.mirage")
    again = mi.load_executable(tmp_path / "scan.mirage")
    xs, h = vectors(*[4] * 5), np.zeros(4, np.float32)
    np.testing.assert_allclose(again(xs, h)[-1], sum(xs), rtol=1e-5)
    assert loops == [1]


def test_loops_are_checked() -> None:
    program = mi.compile(lambda xs, h: mi.fold(lambda h, x: h + x, h, xs), VECTORS, without=PLAIN).program
    name, f = next((n, f) for n, f in program.functions.items() if f.over_list is not None)
    assert f.over_list is not None
    check_program(program)
    own = f.over_list.function
    forms = [vm.OverList(wrong, False) for wrong in ("nothing", program.main, name)]
    forms += [vm.OverList(own, False, "nothing", (-1,)), vm.OverList(own, False, own, (-1,)), vm.OverList(own, False, own, (2,))]
    for form in forms:
        bad = {**program.functions, name: replace(f, over_list=form)}
        with pytest.raises(FormatError, match="no loop over its list"):
            check_program(replace(program, functions=bad))
    loop = program.functions[f.over_list.function]
    short = {**program.functions, loop.name: replace(loop, parameters=loop.parameters[1:])}
    with pytest.raises(FormatError):
        check_program(replace(program, functions=short))
