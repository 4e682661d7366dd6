"""Programs with data, recursion and functions as values, compiled: they compute what the interpreter and NumPy do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import DepthError, FormatError, GraphError, GuardError, InputError
from mirage.ir.graph.check import check
from mirage.ir.graph.functional import functional
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from mirage.ir.graph.values import linked
from mirage.runtime import program as vm
from mirage.runtime.vm import VirtualMachine
from tests.frontends.graph import functional_programs as programs
from tests.frontends.graph.functional_programs import MODELS, Number, Product, Sum, arguments, in_float64, value
from tests.ir.graph import functional as texts
from tests.random_functional import flat, random_arguments, random_functional
from tests.sampled import thinned

#: without C, which takes longer to compile than to run
PLAIN = ("fuse", "libraries")
ONES = np.ones(3, np.float32)


def same(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    """Two results are of the same form, and their arrays close."""
    for a, b in zip(flat(found), flat(wanted), strict=True):
        if isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def compared(name: str, without: tuple[str, ...] = ()) -> None:
    fn, specs, wanted = MODELS[name]
    run = mi.compile(fn, specs, without=without)
    for seed in range(3):
        args = arguments(np.random.default_rng(seed), name, steps=2 * seed + 1)
        same(programs.flat(run(*args)), programs.flat(wanted(*in_float64(args))), 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    compared(name, PLAIN)


def test_kernels_within() -> None:
    compared("rnn")
    assert any(isinstance(i, vm.CallKernel) for f in mi.compile(*MODELS["rnn"][:2]).program for i in f.code)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_with_kernels(name: str) -> None:
    compared(name)


def interpreted_and_compiled(seed: int, depth: int) -> None:
    module = random_functional(seed, depth)
    check(module)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    args = random_arguments(seed)
    same(mi.compile(module, without=PLAIN)(*args), run_module(module, args))


@pytest.mark.parametrize("seed", thinned(range(15), 2))
def test_random_programs(seed: int) -> None:
    interpreted_and_compiled(seed, 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_programs(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        interpreted_and_compiled(seed, 2 + seed % 3)


@pytest.mark.parametrize("name", ["SUM", "COUNT", "MAP", "EVEN"])
def test_texts(name: str) -> None:
    examples: dict[str, list[Any]] = {
        "SUM": [[ONES, 2 * ONES], ONES],
        "COUNT": [np.int64(4)],
        "MAP": [[ONES, 2 * ONES], 3 * ONES],
        "EVEN": [np.int64(6)],
    }
    args = examples[name]
    module = parse_module(getattr(texts, name))
    same(mi.compile(module, without=PLAIN)(*args), run_module(module, args))


def test_only_what_needs_it_is_stacked() -> None:
    module = mi.trace_module(lambda x: mi.cond(x.sum() > 0, lambda: x, lambda: -x), {"x": mi.tensor("n")})
    assert not functional(module)
    assert functional(parse_module(texts.SUM)) == {"main", "total", "empty", "more"}


def test_values_of_users_classes() -> None:
    run = mi.compile(value, without=PLAIN)
    number = Number(np.ones(2, np.float32))
    assert (run(Sum(number, Product([number, Sum(number, number)]))) == 3).all()

    def doubled(e: Any) -> Any:
        return Sum(e, e)

    # arrays of a result are its own
    found = mi.compile(doubled, {"e": programs.Expr}, without=PLAIN)(number)
    arrays = [found.left.value, found.right.value, number.value]
    assert isinstance(found, Sum) and not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])


def test_functions_as_values_and_effects() -> None:
    vector = mi.tensor("n")

    @mi.function(f=mi.function_type([vector], vector), x=vector)
    def twice(f: Any, x: Any) -> Any:
        return f(f(x))

    def program(x: Any, y: Any) -> Any:
        r = mi.ref(x)
        mi.write(r, twice(lambda v: v * y + x.shape[0], mi.read(r)))
        return mi.read(r), mi.loop(3, lambda i, s: twice(lambda v: v + y, s), x)

    module = mi.trace_module(program, {"x": vector, "y": vector})
    args = [ONES, 2 * ONES]
    same(mi.compile(module, without=PLAIN)(*args), run_module(module, args))


def test_sizes_that_only_functions_know() -> None:
    @mi.function(x=mi.tensor("2*n"), k=mi.tensor(dtype="int64"))
    def folded(x: Any, k: Any) -> Any:
        return mi.cond(k <= 0, lambda: x.reshape("n", 2).sum(1), lambda: folded(x + 1, k - 1))

    module = mi.trace_module(lambda x, k: folded(x, k), {"x": mi.tensor("2*m"), "k": mi.tensor(dtype="int64")})
    args = [np.arange(6, dtype=np.float32), np.int64(2)]
    same(mi.compile(module, without=PLAIN)(*args), run_module(module, args))


def test_deep_calls() -> None:
    one = np.ones(1, np.float32)
    assert mi.compile(texts.SUM, without=PLAIN)([one] * 5_000, 0 * one) == 5_000
    assert len(mi.compile(texts.COUNT, without=PLAIN)(np.int64(5_000))) == 5_000


@pytest.mark.slow
def test_very_deep_calls() -> None:
    one = np.ones(1, np.float32)
    run = mi.compile(texts.SUM)
    assert run([one] * 100_000, 0 * one) == 100_000
    with pytest.raises(DepthError, match="500000 calls are nested, the last one of total"):
        run([one] * 600_000, 0 * one)
    # last calls need no room
    assert len(mi.compile(texts.COUNT)(np.int64(1_000_000))) == 1_000_000


def test_calls_that_are_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    run = mi.compile(texts.SUM, without=PLAIN)
    monkeypatch.setattr("mirage.runtime.machine.MAX_DEPTH", 100)
    with pytest.raises(DepthError, match="100 calls are nested") as e:
        run([ONES] * 1_000, ONES)
    assert any("in function" in note for note in e.value.__notes__)
    # what the machine keeps is whole
    assert (run([ONES] * 10, ONES) == 11).all()


def test_what_does_not_fit_is_refused() -> None:
    run = mi.compile(texts.SUM, without=PLAIN)
    for args, error, message in [
        (([ONES, np.ones(4, np.float32)], ONES), GuardError, r"input 'xs', item 1 has shape \[4\]: dim 0 is 4, but n is 3"),
        (([ONES], np.ones(2, np.float32)), GuardError, "input 'zero' has shape"),
        (([ONES.astype(np.float64)], ONES), GuardError, "input 'xs', item 0 has dtype float64"),
        ((ONES, ONES), InputError, "input 'xs' is ndarray, not List.*; pass a list"),
        ((ONES,), InputError, "zero missing"),
    ]:
        with pytest.raises(error, match=message):
            run(*args)


def test_saved_programs(tmp_path: Path) -> None:
    args = [[ONES, 2 * ONES], 3 * ONES]
    run = mi.compile(texts.MAP)
    run.save(tmp_path / "map.mirage")
    same(mi.load_executable(tmp_path / "map.mirage")(*args), run(*args))
    mi.compile(value, without=PLAIN).save(tmp_path / "value.mirage")
    again = mi.load_executable(tmp_path / "value.mirage")
    # the classes of users are not in the file: values are records
    number = mi.Record(again.program.data[0], 0, (np.ones(2, np.float32),))
    assert (again(mi.Record(again.program.data[0], 1, (number, number))) == 2).all()
    with pytest.raises(InputError, match="is Number, not Expr; pass a record of it"):
        again(Number(np.ones(2, np.float32)))


def test_many_threads() -> None:
    run = mi.compile(texts.SUM, without=PLAIN)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: run([k * ONES] * 50, 0 * ONES), range(20)))
    assert [float(a[0]) for a in found] == [50.0 * k for k in range(20)]


def test_lists_may_be_linked_already() -> None:
    assert (mi.compile(texts.SUM, without=PLAIN)(linked([ONES, ONES]), ONES) == 3).all()


def test_tensors_that_others_may_hold_are_not_written_to() -> None:
    def program(xs: Any, x: Any) -> Any:
        mi.add_(x, 1)
        return mi.map(lambda v: v + x, xs)

    with pytest.raises(GraphError, match=r"mi.add_\(x, 1\): program: .*: a tensor is written to in place"):
        mi.compile(program, {"xs": mi.List(mi.tensor("n")), "x": mi.tensor("n")})


def test_functions_with_effects_of_their_own() -> None:
    vector = mi.tensor("n")

    @mi.function(x=vector)
    def filled(x: Any) -> Any:
        made = mi.zeros(x.shape)
        return mi.add_(mi.add_(made, x), 1)

    def program(xs: Any) -> Any:
        return mi.map(lambda v: filled(v) + v, xs)

    module = mi.trace_module(program, {"xs": mi.List(vector)})
    same(mi.compile(module, without=PLAIN)([ONES, 2 * ONES]), run_module(module, [[ONES, 2 * ONES]]))


def test_it_explains() -> None:
    run = mi.compile(texts.CHOSEN, without=PLAIN)
    told = run.explain()
    assert "function main: 1 branches, 1 calls of values, 1 constructors" in told
    assert "function twice: 1 functions, 1 closures" in told
    assert run.to_json()["functions"]["once"] == {"closures": 1}
    same(run(np.asarray(True), ONES, [ONES]), [2 * ONES, ONES])
    assert run._repr_svg_()


def test_some_arguments_may_be_given_for_all_calls() -> None:
    run = mi.compile(texts.MAP, without=PLAIN).bind(w=2 * ONES)
    assert (run([ONES])[0] == 2).all()


def test_devices_are_refused() -> None:
    with pytest.raises(InputError, match=r"main: functions that call themselves.*run on processors only, not on cuda:sm_90"):
        mi.compile(texts.SUM, target="cuda:sm_90")


NIL = vm.VMFunction("main", (), (vm.MakeClosure(0, "main", ()), vm.Return(0)), 1)
WRONG = [
    ((vm.MakeClosure(0, "other", ()), vm.Return(0)), "there is no function 'other'"),
    ((vm.MakeClosure(0, "main", (3,)), vm.Return(0)), "r3 is used before it is written"),
    ((vm.MakeClosure(0, "main", ()), vm.Return(1)), "r1 is used before it is written"),
    ((vm.MakeClosure(5, "main", ()), vm.Return(5)), "is no register"),
    ((vm.MakeClosure(0, "main", ()),), "the last instruction is not a Return"),
    ((vm.MakeClosure(0, "main", ()), vm.MakeTensor(1, None, 0, (), "float32"), vm.Return(0)), "has no such instruction"),
]


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_code_is_checked(k: int) -> None:
    code, message = WRONG[k]
    VirtualMachine(vm.VMProgram({"main": NIL}))
    with pytest.raises(FormatError, match=message):
        VirtualMachine(vm.VMProgram({"main": vm.VMFunction("main", (), code, 2)}))
