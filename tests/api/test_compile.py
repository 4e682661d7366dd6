"""Whole programs: compiled once, called at any sizes, saved, loaded in another process."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL, GraphProgram
from mirage import compilation, subprograms
from mirage.compiler import choice
from mirage.compiler.build import OPTIMIZATIONS, PIPELINE
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.passes import superoptimize
from mirage.errors import (
    BudgetError,
    CacheError,
    DimError,
    FormatError,
    GuardError,
    InputError,
    MirageError,
    ParseError,
    SearchError,
    SettingError,
    ShapeError,
    TraceError,
    UnknownTarget,
)
from tests import forks
from tests.api.archives import members, saved_with, write
from tests.api.small import BUDGET, PARTS, Judge, check_parts, limit_tuning, parts, races_by
from tests.kernels.kernels import in_threads
from tests.sampled import thinned
from tests.work import ByHand

#: without a search, so that a test takes a second
QUICK: dict[str, Any] = {"without": ("superoptimize",)}


def compiled(p: GraphProgram, **options: Any) -> mi.Executable:
    return mi.compile(p.fn, p.specs, bounds=p.bounds, constants=p.constants, **{**QUICK, **options})


@functools.cache
def quick(name: str) -> mi.Executable:
    """A program of `SMALL`, compiled once for all tests."""
    return compiled(SMALL[name])


def copies(arguments: list[Any]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


def check_numbers(executable: mi.Executable, p: GraphProgram, count: int, seed: int = 0) -> None:
    """Results at random sizes against the float64 yardstick."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sizes = p.random_sizes(rng)
        arguments = p.arguments(sizes, rng)
        want = p.expected(arguments)
        got = executable(*copies(arguments))
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            scale = np.abs(w).max(initial=0) + 1e-3
            assert g.shape == w.shape and np.abs(g - w).max(initial=0) < 3e-4 * scale, (p.name, sizes)


@pytest.mark.parametrize("name", thinned(SMALL))
def test_one_compile_serves_all_sizes_also_after_loading(name: str, tmp_path: Path) -> None:
    p, executable = SMALL[name], quick(name)
    check_numbers(executable, p, 20)
    executable.save(tmp_path / "program.mirage")
    check_numbers(mi.load_executable(tmp_path / "program.mirage"), p, 3, seed=1)


@pytest.mark.parametrize("name", thinned(["mixtral_moe", "two_functions", "llama_decode"], 3))
def test_superoptimized_programs_compute_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_tuning(monkeypatch.setattr)
    races_by(Judge("full", "found", "fused"), monkeypatch.setattr)
    p = SMALL[name]
    executable = compiled(p, without=(), budget=4 * BUDGET)
    assert "lax_kernel" in executable.explain()
    check_numbers(executable, p, 20)
    executable.save(tmp_path / "program.mirage")
    check_numbers(mi.load_executable(tmp_path / "program.mirage"), p, 5, seed=1)


def test_where_no_time_is_left_nothing_is_made_for_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprograms, "MIN_BUDGET", float("inf"))
    monkeypatch.setattr(superoptimize, "_LEAST_SECONDS", float("inf"))
    for name in ("form_of", "superoptimize"):
        monkeypatch.setattr(subprograms, name, lambda *_, **__: pytest.fail("takes time"))
    executable = mi.compile(parts, PARTS, budget=BUDGET, cache=False)
    check_parts(executable)
    assert executable.explain().count("libraries and fusion without a search, for which no time was left") == 2


def test_a_search_comes_before_what_is_made_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    budgets: list[float] = []

    def search(*_: Any, budget: float, **__: Any) -> Any:
        done.append("search")
        budgets.append(budget)
        raise SearchError("none")

    def form_of(*arguments: Any) -> mi.Executable:
        done.append("form")
        return choice.form_of(*arguments)

    monkeypatch.setattr(subprograms, "superoptimize", search)
    monkeypatch.setattr(subprograms, "form_of", form_of)
    races_by(Judge("fused"), monkeypatch.setattr)
    executable = mi.compile(parts, PARTS, budget=2 * BUDGET, cache=False)
    check_parts(executable)
    # the plain forms tell what is searched first, the fused ones come after the search
    assert done == ["form", "form", *["search", "form"] * 2]
    assert max(budgets) < 2 * BUDGET
    assert executable.explain().count("fused without a search, as one found nothing that can be compiled (none)") == 2


def test_what_a_search_leaves_is_the_next_ones_and_what_is_recalled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three subprograms with 100 s each: of one a search takes 30, one is recalled, of one a search takes 180."""
    clock, budgets = ByHand(), list[float]()
    outcomes = iter([(30.0, False), (0.0, True), (180.0, False), (0.0, False)])

    def search(*_: Any, budget: float, **__: Any) -> Any:
        budgets.append(budget)
        seconds, hit = next(outcomes)
        clock.sleep(seconds)
        return SimpleNamespace(interrupted=False, cache_hit=hit, best="", stats=SimpleNamespace(stop_reason=""))

    monkeypatch.setattr(subprograms, "time", clock)
    monkeypatch.setattr(subprograms, "superoptimize", search)
    # the forms beside what is found are not made elsewhere than on the host
    kernels = SimpleNamespace(on_host=False, target="cpu", superoptimized=lambda result: result)
    searches = subprograms.Searches(cast(Any, kernels), False, 0, lambda _: None)
    for _ in range(4):
        searches(mi.trace(mi.relu, x=mi.tensor("n")), [{"n": 4}], [], 100.0)
    assert budgets == pytest.approx([100.0, 170.0, 170.0, 90.0], abs=0.1)


@pytest.mark.parametrize("complete", [True, False])
def test_the_fused_form_takes_part_where_a_search_left_time(complete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that was cut has begun with it, and has measured it."""
    clock, raced = ByHand(), list[set[str]]()

    def search(*_: Any, budget: float, **__: Any) -> Any:
        clock.sleep(1.0 if complete else budget)
        return SimpleNamespace(interrupted=False, cache_hit=False, best="", stats=SimpleNamespace(stop_reason=""))

    def judge(forms: Mapping[str, Any], *_: Any, **__: Any) -> str:
        raced.append(set(forms))
        return "found"

    monkeypatch.setattr(subprograms, "time", clock)
    monkeypatch.setattr(subprograms, "superoptimize", search)
    monkeypatch.setattr(subprograms, "form_of", lambda *_: None)
    monkeypatch.setattr(subprograms, "fastest", judge)
    kernels = SimpleNamespace(on_host=True, target="cpu", superoptimized=lambda _: "found", fused=lambda *_, **__: "fused")
    searches = subprograms.Searches(cast(Any, kernels), False, 0, lambda _: None)
    assert searches(mi.trace(mi.relu, x=mi.tensor("n")), [{"n": 4}], [], 100.0)[0] is cast(Any, "found")
    assert raced == [{"plain", "found", "fused"} if complete else {"plain", "found"}]


def test_subprograms_for_which_there_is_too_little_time_have_what_others_leave() -> None:
    shares = {"large": 6.0, "middle": 3.0, "small": 1.0}
    assert superoptimize._budgets(shares, 100.0) == {"large": 60.0, "middle": 30.0, "small": 10.0}
    assert superoptimize._budgets(shares, 18.0) == {"large": 12.0, "middle": 6.0, "small": 0.0}
    assert superoptimize._budgets(shares, 1.0) == {"large": 1.0, "middle": 0.0, "small": 0.0}


@pytest.mark.parametrize("wanted", ["found", "fused", "plain"])
def test_the_fastest_form_of_a_subprogram_runs(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    # of the whole program, what was chosen for each subprogram
    judge = Judge("full", wanted)
    races_by(judge, monkeypatch.setattr)
    executable = mi.compile(parts, PARTS, budget=2 * BUDGET, cache=False)
    check_parts(executable)
    subprograms = [{"found", "fused", "plain"}] * 2
    # with the plain forms alone, there is nothing more to decide
    program = {"found": ["full", "plain"], "fused": ["full", "plain", "found"]}
    assert [set(a) for a in judge.asked[:2]] == subprograms
    assert judge.asked[2:] == ([program[wanted]] if wanted in program else [])
    text = executable.explain()
    said = {"found": "times as fast as the library; complete", "fused": "fused, which was measured to be faster than"}
    assert text.count(said.get(wanted, "libraries and fusion, which were measured to be faster than")) == 2


def causal(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[1]
    seen = mi.arange(0, n) <= mi.reshape(mi.arange(0, n), (n, 1))
    return mi.softmax(mi.where(seen, q @ mi.transpose(k, (0, 2, 1)), -1e9), axis=-1) @ v


CAUSAL = {name: mi.tensor(2, "n", 8) for name in "qkv"}


def check_causal(run: Any) -> None:
    for n in (1, 5, 70):
        q, k, v = (np.random.default_rng(seed).standard_normal((2, n, 8), np.float32) for seed in range(3))
        scores = np.where(np.tri(n, dtype=bool), q.astype(np.float64) @ k.swapaxes(1, 2), -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(run(q, k, v), shares / shares.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", ["full", "plain"])
def test_masks_race_where_nothing_that_was_found_is_used(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks written for the search, even what libraries make of the program is another one."""
    limit_tuning(monkeypatch.setattr)
    races_by(lambda forms, *_, **more: wanted if "full" in forms else "plain", monkeypatch.setattr)
    executable = mi.compile(causal, CAUSAL, sizes={"n": 24}, budget=2 * BUDGET, cache=False)
    check_causal(executable)
    assert ("the kernels that searches found are not used" in executable.explain()) == (wanted == "plain")
    assert ("clamp" in executable.explain()) == (wanted == "full")


def test_a_mask_of_positions_is_computed_in_the_kernel_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    races_by(Judge("full", "found"), monkeypatch.setattr)
    executable = mi.compile(causal, CAUSAL, sizes={"n": 24}, budget=2 * BUDGET, cache=False)
    check_causal(executable)
    (kernel,) = [k for k in executable.kernels.values() if isinstance(k, MuGraphKernel)]
    assert any(n.op == "clamp" for n in kernel.program)
    # beside queries, keys and values, it is given vectors
    assert sorted(t.rank for t in kernel.program.input_types) == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("wanted", ["full", "plain", "found"])
def test_the_fastest_form_of_a_program_runs(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    races_by(lambda forms, *_, **more: wanted if "full" in forms else "fused", monkeypatch.setattr)
    executable = mi.compile(parts, PARTS, budget=2 * BUDGET, cache=False)
    check_parts(executable)
    text = executable.explain()
    assert ("the kernels that searches found are not used" in text) == (wanted == "plain")
    assert ("lax_kernel" in text) == (wanted != "plain")
    assert "superoptimize" in executable.facts.seconds


@pytest.mark.parametrize("most", [10**6, 100])
def test_programs_with_packed_weights_race_unless_these_are_large(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    monkeypatch.setattr(compilation, "RACED_BYTES", most)
    judge = Judge("found")
    races_by(judge, monkeypatch.setattr)
    specs = {"x": mi.tensor("n", 64), "w": mi.tensor(64, 64)}
    executable = mi.compile(lambda x, w: mi.softmax(x) @ w, specs, constants=["w"], budget=2 * BUDGET, cache=False)
    x, w = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((5, 64), (64, 64)))
    shares = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(executable(x, w), shares / shares.sum(1, keepdims=True) @ w, atol=1e-5)
    assert judge.asked[0] == ["plain", "fused", "found"] and "lax_kernel" in executable.explain()
    # the form without a search packs the weights for its product
    assert judge.asked[1:] == ([["full", "plain"]] if most > 4 * 64 * 64 else [])


@pytest.mark.parametrize("rows", [2, 1])
def test_a_program_is_tried_with_rows_that_integers_choose(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are 0 and some are 1, but where the program refuses 1."""
    limit_tuning(monkeypatch.setattr)
    chosen: list[set[int]] = []

    def judge(forms: Mapping[str, mi.Executable], arguments: Any, *_: Any, **__: Any) -> str:
        if "full" in forms:
            chosen.extend(set(i.tolist()) for _, i, _ in arguments)
            assert all(len(form(*given)) == len(given[1]) for form in forms.values() for given in arguments)
        return "full" if "full" in forms else "found"

    races_by(judge, monkeypatch.setattr)
    specs = {"x": mi.tensor(rows, 8), "i": mi.tensor("n", dtype="int64"), "w": mi.tensor(8, 8)}
    mi.compile(lambda x, i, w: mi.softmax(mi.take(x, i, axis=0) @ w), specs, budget=BUDGET, cache=False)
    assert chosen == [{0, 1} if rows == 2 else {0}]


def test_a_program_whose_calls_have_effects_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    judge = Judge("found")
    races_by(judge, monkeypatch.setattr)
    called: list[int] = []

    def note(x: np.ndarray) -> tuple[()]:
        called.append(1)
        return ()

    mi.register_packed("tests.noted", note)

    def noted(x: Any, w: Any) -> Any:
        y = mi.softmax(x @ w)
        mi.call_packed("tests.noted", y, result=())
        return y

    executable = mi.compile(noted, {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8)}, budget=BUDGET, cache=False)
    assert not called and all("full" not in forms for forms in judge.asked)
    executable(np.ones((2, 8), np.float32), np.ones((8, 8), np.float32))
    assert called == [1]


@pytest.mark.parametrize("left_out", [(), *((name,) for name in OPTIMIZATIONS), tuple(OPTIMIZATIONS)])
def test_every_optimization_can_be_left_out(left_out: tuple[str, ...]) -> None:
    p = SMALL["llama_prefill"]
    executable = compiled(p, without=("superoptimize", *left_out))
    check_numbers(executable, p, 4)


LOADING = """
import sys
from pathlib import Path
import numpy as np
import mirage as mi
for file in sorted(Path(sys.argv[1]).glob("*.mirage")):
    executable = mi.load_executable(file)
    with np.load(file.with_suffix(".npz")) as arrays:
        args = [arrays[f"arg{k}"] for k in range(len(executable.parameters))]
        got = executable(*(tuple(map(int, a)) if a.dtype == "uint8" else a for a in args))
        for k, g in enumerate(got if isinstance(got, tuple) else (got,)):
            assert np.array_equal(g, arrays[f"result{k}"]), (file.name, k)
    print(file.stem)
"""


@pytest.mark.slow
def test_another_process_gets_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for p in SMALL.values():
        executable = quick(p.name)
        arguments = p.arguments(p.random_sizes(rng), rng)
        got = executable(*copies(arguments))
        # shapes as an element type that no program here has
        arrays = [np.array(a, np.uint8) if isinstance(a, tuple) else a for a in arguments]
        results = got if isinstance(got, tuple) else (got,)
        named: dict[str, Any] = {f"arg{k}": a for k, a in enumerate(arrays)} | {
            f"result{k}": r for k, r in enumerate(results)
        }
        np.savez(tmp_path / f"{p.name}.npz", **named)
        executable.save(tmp_path / f"{p.name}.mirage")
    run = forks.run(LOADING, str(tmp_path))
    assert (run.returncode, run.stdout.split()) == (0, sorted(SMALL)), run.stderr


def double(x: Any) -> Any:
    return mi.exp(x) * 2


TWICE = {"x": mi.tensor("n", 4)}


def test_arguments_by_name_and_arrays_of_torch() -> None:
    torch = pytest.importorskip("torch")
    executable = mi.compile(double, TWICE, **QUICK)
    x = torch.randn(3, 4)
    got = executable(x=x)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, torch.exp(x) * 2)


def test_several_threads_call_one_executable() -> None:
    p, executable = SMALL["bert_encoder"], quick("bert_encoder")
    in_threads(lambda seed: check_numbers(executable, p, 8, seed))


def test_constants_are_prepared_again_when_they_are_forgotten() -> None:
    def scaled(x: Any, w: Any, v: Any) -> Any:
        return mi.exp(x @ w), mi.exp(x @ v)

    specs = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 4), "v": mi.tensor(8, 4)}
    executable = mi.compile(scaled, specs, constants=("w", "v"), **QUICK)
    assert executable.parameters == ("x", "w", "v") and "prepare" in executable.explain()
    x, w, v = (np.ones(s, np.float32) for s in ((2, 8), (8, 4), (8, 4)))
    executable(x, w, v)
    w[:] = 0
    executable.forget()
    np.testing.assert_array_equal(executable(x, w, v)[0], 1)


def test_memory_between_calls_is_given_back() -> None:
    def chain(x: Any, w: Any, v: Any) -> Any:
        return mi.sort(mi.sort(x @ (w @ v), axis=0) @ (w @ v), axis=1)

    specs = {"x": mi.tensor("n", 64), "w": mi.tensor(64, 32), "v": mi.tensor(32, 64)}
    run = mi.compile(chain, specs, bounds={"n": 50}, constants=("w", "v"), without=("superoptimize",), cache=False)
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(s, np.float32) for s in ((50, 64), (64, 32), (32, 64)))
    assert run.idle_bytes == 0
    first = run(x, w, v)
    # what prepared the constants keeps none
    assert run.idle_bytes == run.memory_plan["chain"].arena > 0
    run.release()
    assert run.idle_bytes == 0
    assert np.array_equal(run(x, w, v), first)
    assert run.idle_bytes > 0


def test_a_bound_is_a_guard() -> None:
    executable = mi.compile(double, TWICE, bounds={"n": (2, 6)}, **QUICK)
    assert executable(np.zeros((6, 4), np.float32)).shape == (6, 4)
    with pytest.raises(GuardError, match=r"n is 7, but n <= 6 is required"):
        executable(np.zeros((7, 4), np.float32))
    with pytest.raises(GuardError, match=r"n is 1, but n >= 2 is required"):
        executable(np.zeros((1, 4), np.float32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), "x missing"),
        ((np.zeros((2, 4), np.float32),) * 2, "takes 1 arguments"),
        ((np.zeros((2, 5), np.float32),), "5"),
        ((np.zeros(4, np.float32),), "rank|shape"),
        ((np.zeros((2, 4)),), "float64"),
        (("text",), "not an array"),
        ((None,), "not an array"),
    ],
)
def test_wrong_arguments_are_named(arrays: tuple[Any, ...], message: str) -> None:
    executable = mi.compile(double, TWICE, **QUICK)
    with pytest.raises(InputError, match=message):
        executable(*arrays)


def test_wrong_names_of_arguments() -> None:
    executable = mi.compile(double, TWICE, **QUICK)
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(InputError, match="no argument 'y'"):
        executable(y=x)
    with pytest.raises(InputError, match="given twice"):
        executable(x, x=x)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bounds": {"k": 3}}, DimError, "'k' is not a dim"),
        ({"bounds": {"n": -1}}, DimError, "n"),
        ({"bounds": {"n": (5, 2)}}, DimError, "swap"),
        ({"bounds": 7}, DimError, "mapping"),
        ({"sizes": {"m": 3}}, DimError, "'m' is not a dim"),
        ({"sizes": {"n": 0}}, DimError, "n=0"),
        ({"sizes": {"n": "many"}}, DimError, "many"),
        ({"sizes": [{"n": k} for k in range(1, 12)]}, DimError, "11 sets"),
        ({"sizes": 5}, DimError, "mapping"),
        ({"constants": ("w",)}, InputError, "constant 'w' is not an input; the inputs are x"),
        ({"constants": "x"}, InputError, "not a collection of names"),
        ({"constants": None}, InputError, "not a collection of names"),
        ({"cache": "results.sqlite"}, CacheError, "not a results store"),
        ({"without": None}, InputError, "collection"),
        ({"budget": 0}, BudgetError, "budget"),
        ({"budget": "long"}, BudgetError, "budget"),
        ({"target": "tpu"}, UnknownTarget, "tpu"),
        ({"without": ("magic",)}, InputError, "magic"),
        ({"without": "fuse"}, InputError, "collection"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: type[MirageError], message: str) -> None:
    with pytest.raises(error, match=message):
        mi.compile(double, TWICE, **{**QUICK, **options})


def branches(x: Any) -> Any:
    if x > 0:
        return x
    return -x


def mismatched(x: Any) -> Any:
    return x @ x


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (5, TraceError, "not a program"),
        ("def main(x: float32[n]):\n    y = nonsense(x)\n    return y\n", MirageError, "line 2.*nonsense"),
        ("import os", ParseError, "line 1"),
        (branches, TraceError, r"test_compile.py:\d+: if x > 0"),
        (mismatched, ShapeError, r"test_compile.py:\d+: return x @ x"),
    ],
)
def test_programs_outside_of_the_ir_name_the_line(program: Any, error: type[MirageError], message: str) -> None:
    with pytest.raises(error, match=message):
        mi.compile(program, TWICE if callable(program) else None, **QUICK)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04 nothing"])
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "program.mirage"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"program\.mirage"):
        mi.load_executable(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mirage executable", "something else"),
        ('"schema": 3', '"schema": 99'),
        ('"signature"', '"signatures"'),
        ("CallKernel", "CallAnything"),
        ('"kind": "loops"', '"kind": "python"'),
        ("float32[n, 4]", "exec('1')"),
        ("seconds", "moments"),
    ],
)
def test_altered_files_are_refused(old: str, new: str, tmp_path: Path) -> None:
    def gather(x: Any, i: Any) -> Any:
        return mi.take(x, i, axis=0) * 2

    executable = mi.compile(gather, {"x": mi.tensor("n", 4), "i": mi.tensor("m", dtype="int64")}, **QUICK)
    file = saved_with(executable, old, new, tmp_path)
    with pytest.raises(MirageError, match=r"b\.mirage"):
        mi.load_executable(file)


@pytest.mark.parametrize("part", ["dims", "outputs"])
@pytest.mark.parametrize("change", [lambda items: items[:-1], lambda items: [*items, *items[-1:]]])
def test_calls_that_do_not_fit_their_kernels_are_refused(part: str, change: Any, tmp_path: Path) -> None:
    mi.compile(double, TWICE, **QUICK).save(tmp_path / "a.mirage")
    contents = members(tmp_path / "a.mirage")
    head = json.loads(contents["executable.json"])
    (call,) = (i for f in head["program"]["functions"].values() for i in f["code"] if part in i and "kernel" in i)
    call[part] = change(call[part])
    write(tmp_path / "b.mirage", contents | {"executable.json": json.dumps(head).encode()})
    with pytest.raises(FormatError, match=r"b\.mirage.*kernel.*results, not"):
        mi.load_executable(tmp_path / "b.mirage")


def test_files_of_the_other_kind_say_which_function_reads_them(tmp_path: Path) -> None:
    mi.compile(double, TWICE, **QUICK).save(tmp_path / "a.mirage")
    with pytest.raises(FormatError, match="load_executable"):
        mi.load(tmp_path / "a.mirage")
    with pytest.raises(InputError, match="cannot be read"):
        mi.load_executable(tmp_path / "absent.mirage")
    with pytest.raises(InputError, match="cannot be written"):
        mi.compile(double, TWICE, **QUICK).save(tmp_path / "absent" / "a.mirage")


def test_explaining_says_what_became_of_each_part() -> None:
    p = SMALL["select_rows"]
    text = compiled(p, without=(), budget=3.0).explain()
    for part in ("select_rows(x: float32[n, d]", "guards", "kernels", "fused into", "memory", "compiled in"):
        assert part in text


def test_modules_are_printed_after_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MIRAGE_PRINT_AFTER", "cse, fuse")
    mi.compile(double, TWICE, **QUICK)
    printed = capsys.readouterr().err
    assert printed.index("# after cse") < printed.index("# after fuse") and "def double(x: float32[n, 4])" in printed
    monkeypatch.setenv("MIRAGE_PRINT_AFTER", "polish")
    with pytest.raises(SettingError, match=r"polish.*canonicalize"):
        mi.compile(double, TWICE, **QUICK)


def test_every_pass_has_a_file_of_its_own() -> None:
    folder = Path(mi.__file__).parent / "compiler" / "passes"
    assert all((folder / f"{p.__module__.rpartition('.')[2]}.py").is_file() for p in PIPELINE)
