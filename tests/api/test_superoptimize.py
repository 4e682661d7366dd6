"""What a superoptimization answers: its call, graphs, evidence, files, and that it can be repeated."""

from __future__ import annotations

import functools
import io
import json
import math
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import mirage as mi
from mirage import api
from mirage.cache import ResultStore
from mirage.errors import FormatError, GraphError, InputError, MirageError, VerificationError
from mirage.ir.codec import decode, encode
from mirage.ir.functions import FUNCTIONS
from mirage.ir.interpret import run_reference
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.decision import Split
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing, score
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.results.cpu.result import Superoptimized
from mirage.search.candidates import Candidate
from mirage.search.decision import Decision, Point, Version
from mirage.verify import equivalence
from mirage.verify.certificate import Certificate
from mirage.verify.proof import Comparison
from mirage.verify.tester import Outcome, RandomTester
from tests import forks
from tests.api.small import BUDGET, adapter, arrays, check, loaded, rows, several
from tests.kernels.kernels import in_threads


@functools.cache
def result() -> Superoptimized:
    return mi.superoptimize(adapter, budget=BUDGET, cache=False)


@functools.cache
def softmax() -> Superoptimized:
    return mi.superoptimize(rows, budget=BUDGET, cache=False)


def figures(r: Superoptimized) -> list[tuple[Any, Any]]:
    # which kernels are fastest depends on the machine
    ordered = sorted(r.graphs, key=lambda c: (c.cost, str(c.graph)))
    return [(encode(c.graph), certified(r, c).checks[0]) for c in ordered]


def certified(r: Superoptimized, c: Candidate) -> Certificate:
    """The evidence of a graph with both checks."""
    return r.verifier.confirm(c.graph, c.certificate)


# The answer.


@pytest.mark.parametrize("sizes", [{"b": 1, "n": 1}, {"b": 7, "n": 33}, {"b": 65, "n": 2}, {"b": 3, "n": 5}])
def test_a_call_at_other_sizes(sizes: dict[str, int]) -> None:
    inputs = arrays(adapter.trace(), sizes, seed=sizes["b"])
    found = result()(*inputs)
    assert isinstance(found, np.ndarray)
    check(result().program, [found], inputs, sizes)


def test_several_results_are_a_tuple() -> None:
    r = mi.superoptimize(several, budget=0.5, cache=False)
    inputs = arrays(r.program, {"m": 9, "n": 17})
    found = r(*inputs)
    assert isinstance(found, tuple)
    check(r.program, found, inputs, {"m": 9, "n": 17})


def test_graphs_are_ranked_and_best_is_the_fastest() -> None:
    r = result()
    assert len(r.graphs) >= 3
    timed = [score(c.timing) for c in r.graphs if c.timing is not None and c.executable is not None]
    first = [score(c.timing) for c in r.graphs[:3] if c.timing is not None]
    assert first == sorted(first)
    assert all(c.timing is None for c in r.graphs[len(timed) :])
    assert score(r.best.timing) <= min([*first, *(score(t) for t in r.baselines.values())])
    assert set(r.baselines) == {"reference", "library"}
    if r.best.kind == "mugraph":
        assert r.best.candidate == r.graphs[0]
        assert r.best.graph is not None
        validate(r.best.graph)
    else:
        assert r.best.graph is None


def test_every_kernel_that_may_be_called_was_checked_twice() -> None:
    r = result()
    assert any(c.executable is not None for c in r.graphs)
    for c in r.graphs:
        assert r.verifier.is_confirmed(c.graph) == (c.executable is not None)
    for v in r.versions:
        assert v.candidate is None or len(v.candidate.certificate.checks) == 2
    assert len(r.certificate.checks) == 2


def test_proved_graphs_are_tested_only_where_they_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[MuGraph] = []
    run = RandomTester.run

    def noted(self: RandomTester, graph: MuGraph) -> Outcome:
        tested.append(graph)
        return run(self, graph)

    monkeypatch.setattr(RandomTester, "run", noted)
    r = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    assert all(c.certificate.proof == "proved" for c in r.graphs)
    returned = {id(v.candidate.graph) for v in r.versions if v.candidate}
    assert returned <= {id(g) for g in tested}
    # the leader of a race is tested while the next kernels are compiled
    assert len(tested) < 2 * len(r.graphs)


def test_a_graph_without_a_proof_is_tested_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: set[int] = set()
    run, build = RandomTester.run, CpuExecutable.__init__

    def noted(self: RandomTester, graph: MuGraph) -> Outcome:
        tested.add(id(graph))
        return run(self, graph)

    def compiled(self: CpuExecutable, graph: MuGraph, *arguments: Any, **options: Any) -> None:
        assert id(graph) in tested
        build(self, graph, *arguments, **options)

    monkeypatch.setattr(RandomTester, "run", noted)
    monkeypatch.setattr(CpuExecutable, "__init__", compiled)
    monkeypatch.setattr(equivalence, "compare_graph", lambda *_: Comparison("not proved", None))
    r = mi.superoptimize(rows, budget=BUDGET, cache=False)
    assert r.certificate.proof == "not proved" and r.best.candidate is not None


def test_a_second_check_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is returned, and no tuned choice is kept."""
    run = RandomTester.run

    def disagree(self: RandomTester, graph: MuGraph) -> Outcome:
        outcome = run(self, graph)
        return outcome if self.seed == 0 else replace(outcome, check=replace(outcome.check, difference="output 0"))

    monkeypatch.setattr(RandomTester, "run", disagree)
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    with pytest.raises(VerificationError, match=r"different in the second \(seeds 0 and \d+\): output 0"):
        mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert all(record.best_us is None for record in store.list())


def test_errors_are_reported_beside_those_of_the_program() -> None:
    r = result()
    assert [a.trial for a in r.accuracy][:4] == ["the given sizes", "sizes of 1", "small sizes", "inputs around 1000"]
    for a in r.accuracy:
        assert 0 <= a.kernel < 1e-5 and 0 <= a.program < 1e-5
    for c in r.graphs:
        assert bool(c.accuracy) == (c.executable is not None)
    file = io.StringIO()
    Console(width=200, file=file).print(r.report())
    for a in r.accuracy:
        line = next(line for line in file.getvalue().splitlines() if f"error to float64, {a.trial} " in line)
        assert f" {a.kernel:.1e}, program {a.program:.1e} " in line


def test_errors_of_a_library_version_are_measured_too() -> None:
    library = Version("library", Timing(1e-3, 1e-3, 1))
    r = replace(result(), decision=Decision((library,), 0, ()))
    assert r.best == library
    assert [a.trial for a in r.accuracy] == [a.trial for a in result().graphs[0].accuracy][:4]
    assert [a.program for a in r.accuracy] == [a.program for a in result().graphs[0].accuracy][:4]


def test_certificates_are_those_of_the_program() -> None:
    r = result()
    for c in r.graphs:
        assert c.certificate.equal
        bound = certified(r, c).error_bound
        assert bound is not None and bound <= 2.0**-40
        assert api.verify(r.program, c.graph).equal
    assert r.certificate.equal
    assert r.certificate.proof == "proved"


def test_source_is_c_that_names_its_kernels() -> None:
    for c in result().graphs:
        if c.executable is not None:
            assert "mirage_run" in c.executable.source
            assert c.executable.source.count("{") == c.executable.source.count("}")
            break
    else:
        raise AssertionError("nothing was compiled")
    assert result().source


def test_report_renders() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(result().report())
    text = console.export_text()
    for word in (
        "adapter at b=3, n=5 on cpu",
        "search",
        "verify",
        "tune",
        "best:",
        "reference",
        "library",
        "physical limit",
        "b=3, n=5, and all of these 4096",
    ):
        assert word in text
    assert "nan" not in text


def test_drawing() -> None:
    for r in (result(), softmax()):
        drawing = r._repr_svg_()
        assert (drawing is None) == (r.best.kind != "mugraph")
        assert drawing is None or drawing.startswith("<svg")


def test_progress_is_told() -> None:
    told: list[str] = []
    mi.superoptimize(rows, budget=BUDGET, cache=False, progress=told.append)
    for word in ("searching", "1 graphs", "kernels compiled", "the fastest takes"):
        assert any(word in t for t in told), word


# Repeating.


def test_the_same_seed_gives_the_same_graphs_and_certificates() -> None:
    again = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    assert result().stats.stop_reason == "complete" == again.stats.stop_reason
    assert figures(again) == figures(result())


def test_another_seed_gives_other_tests_of_the_same_graphs() -> None:
    other = mi.superoptimize(adapter, budget=BUDGET, cache=False, seed=1)
    assert [g for g, _ in figures(other)] == [g for g, _ in figures(result())]
    assert all(a.seed != b.seed for (_, a), (_, b) in zip(figures(other), figures(result()), strict=True))


def test_worker_processes_find_the_same_graphs() -> None:
    with ProcessPoolExecutor(2, mp_context=forks.context()) as executor:
        parallel = mi.superoptimize(adapter, budget=10 * BUDGET, cache=False, executor=executor)
    # units in workers do not know what others have found, and also find graphs that these dominate
    assert {structure_key(c.graph) for c in result().graphs} <= {structure_key(c.graph) for c in parallel.graphs}


# Threads, interrupts.


def test_two_threads_call_one_result() -> None:
    r = result()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for k in range(40):
                sizes = {"b": 1 + (seed + k) % 5, "n": 1 + k % 21}
                inputs = arrays(r.program, sizes, seed=k)
                runs: list[Any] = [r._run, *(c.executable for c in r.graphs if c.executable is not None)]
                for run in runs:
                    check(r.program, run(inputs, sizes), inputs, sizes)
                check(r.program, [r(*inputs)], inputs, sizes)
        except BaseException as e:
            errors.append(e)

    in_threads(work, 2)
    assert not errors


# Files.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "adapter.json"
    result().save(path)
    return path


def test_saved_and_loaded(saved: Path) -> None:
    again = loaded(saved)
    assert again.program == result().program
    assert again.sizes == result().sizes
    assert again.best.kind == result().best.kind
    assert again.best.timing == result().best.timing
    assert figures(again) == figures(result())
    assert again.to_json() == result().to_json()
    sizes = {"b": 6, "n": 9}
    inputs = arrays(again.program, sizes)
    check(again.program, [again(*inputs)], inputs, sizes)


def test_loaded_in_another_process(saved: Path) -> None:
    script = """
import sys, numpy as np, mirage as mi
r = mi.load(sys.argv[1])
x, w, v = np.ones((2, 8), np.float32), np.ones((8, 3), np.float32), np.ones((3, 8), np.float32)
assert (r(x, w, v) == np.maximum(x @ w, 0) @ v + x).all()
print(r.best.kind, len(r.graphs))
"""
    done = forks.run(script, str(saved))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [result().best.kind, str(len(result().graphs))]


def test_no_partial_file_is_left(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        result().save(tmp_path / "no" / "folder.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        result().save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def rewrite(saved: Path, to: Path, change: Callable[[Any], None]) -> Path:
    obj = json.loads(saved.read_text())
    change(obj)
    to.write_text(json.dumps(obj))
    return to


def another_function(obj: Any) -> None:
    """The graph adds where it multiplied, everywhere else it is sound."""
    text = json.dumps(obj["graphs"][0]["graph"])
    assert '"op": "relu"' in text
    obj["graphs"][0]["graph"] = json.loads(text.replace('"op": "relu"', '"op": "square"'))
    decode(MuGraph, obj["graphs"][0]["graph"], "muGraph")


def test_an_altered_graph_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="does not compute adapter"):
        mi.load(rewrite(saved, tmp_path / "x.json", another_function))


@pytest.mark.parametrize("name", ["tiles", "splits"])
@pytest.mark.parametrize("size", [0, -1, 10**6, 10**18, 10**30])
def test_altered_schedules_are_refused_or_right(saved: Path, tmp_path: Path, name: str, size: int) -> None:
    def change(obj: Any) -> None:
        for g in obj["graphs"]:
            for k in g.get("schedule", {"kernels": []})["kernels"]:
                k[name] = [[axis, size] for axis, _ in k.get(name, [])]

    try:
        r = mi.load(rewrite(saved, tmp_path / "x.json", change))
        sizes = {"b": 3, "n": 5}
        inputs = arrays(r.program, sizes)
        for c in r.graphs:
            if c.executable is not None:
                check(r.program, c.executable(inputs, sizes), inputs, sizes)
    except MirageError:
        pass


NO_RESULTS = ["", "x", "[]", "3", "{}", "null", '{"format": "mirage result"}', "NaN", "[" * 100_000, "\x00", '{"a": 1']


@pytest.mark.parametrize("text", NO_RESULTS, ids=range(len(NO_RESULTS)))
def test_other_files_are_format_errors(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FormatError):
        mi.load(tmp_path / "x.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        mi.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        mi.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(FormatError):
        mi.load(tmp_path / "binary")


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    3,
    10**400,
    1e308,
    -0.5,
    "",
    "x",
    "*/ int x; /*",
    "../../x",
    "\u0000",
    [],
    {},
    [[]],
    ["b"],
]


def damage(obj: Any, rng: random.Random) -> Any:
    """The object with one value, at a random depth, replaced, dropped or doubled."""
    if isinstance(obj, dict) and obj and rng.random() < 0.9:
        key = rng.choice(list(obj))
        if rng.random() < 0.1:
            return {k: v for k, v in obj.items() if k != key}
        return {k: damage(v, rng) if k == key else v for k, v in obj.items()}
    if isinstance(obj, list) and obj and rng.random() < 0.9:
        i = rng.randrange(len(obj))
        if rng.random() < 0.1:
            return obj[:i] + obj[i + 1 :]
        if rng.random() < 0.1:
            return [*obj, obj[i]]
        return [damage(v, rng) if k == i else v for k, v in enumerate(obj)]
    return rng.choice(VALUES)


@functools.cache
def short() -> dict[str, Any]:
    """A saved result of one graph, which runs for up to four rows."""
    c = next(c for c in softmax().graphs if c.executable is not None)
    assert c.timing is not None
    versions = Version("mugraph", c.timing, c), Version("library", c.timing)
    decision = Decision(versions, Split(("m",), 4, 0, 1), (Point({"m": 3, "n": 5}, (1.0, math.inf)),))
    return replace(softmax(), graphs=[c], decision=decision).to_json()


def load_damaged(obj: Any, path: Path) -> None:
    path.write_text(json.dumps(obj))
    try:
        r = loaded(path)
    except MirageError:
        return
    # what loads is right; the program itself may have been altered
    sizes = {s: 3 for s in r.program.symbols()}
    inputs = arrays(r.program, sizes)
    with np.errstate(all="ignore"):
        found = r._run(inputs, sizes)
        for f, w in zip(found, run_reference(r.program, inputs, sizes), strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-3, atol=1e-5)


def test_what_is_damaged_loads(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(short()))
    assert len(mi.load(tmp_path / "x.json").versions) == 2


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_is_a_mirage_error_or_harmless(tmp_path: Path, seed: int) -> None:
    load_damaged(damage(json.loads(json.dumps(short())), random.Random(seed)), tmp_path / "x.json")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 1500))
def test_much_random_damage(tmp_path: Path, seed: int) -> None:
    load_damaged(damage(json.loads(json.dumps(short())), random.Random(seed)), tmp_path / "x.json")


@given(cut=st.floats(0, 1, exclude_max=True))
def test_truncated_files(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    text = json.dumps(short())
    path = tmp_path_factory.getbasetemp() / "truncated.json"
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(FormatError):
        mi.load(path)


def test_names_of_the_package_are_not_its_modules() -> None:
    for name in ("superoptimize", "superoptimized", "load", "verify", "Superoptimized", "trace", "program"):
        assert callable(getattr(mi, name)), name


# The decorator, and verification of two programs.


def test_decorator_superoptimizes_at_the_first_call() -> None:
    @mi.superoptimized(x=mi.tensor("m", "n"), options={"budget": 0.5, "cache": False})
    def double(x: Any) -> Any:
        return mi.sum(x * 2.0, axis=1)

    assert double.result is None
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(double(x), (x * 2).sum(axis=1))
    first = double.result
    assert first is not None
    assert first.sizes == {"m": 3, "n": 4}
    np.testing.assert_allclose(double(x[:2]), (x * 2).sum(axis=1)[:2])
    assert double.result is first
    with pytest.raises(InputError, match="input 'x'"):
        double(x[0])


def test_decorated_functions_and_empty_first_arrays() -> None:
    lazy = mi.superoptimized(options={"budget": 0.3, "cache": False})(rows)
    with pytest.raises(InputError, match="input 'x' has dtype"):
        lazy(np.ones((2, 2)))
    assert lazy.result is None
    assert lazy(np.ones((0, 4), np.float32)).shape == (0, 4)


def test_verify_tells_equal_from_different_programs() -> None:
    x, y = mi.tensor("m", "n"), mi.tensor("n")
    a = mi.trace(lambda x, y: (x + y) * 2.0, name="a", x=x, y=y)
    b = mi.trace(lambda x, y: y * 2.0 + x * 2.0, name="b", x=x, y=y)
    c = mi.trace(lambda x, y: x + y * 2.0, name="c", x=x, y=y)
    equal = mi.verify(a, b)  # type: ignore[operator]
    assert equal.equal
    assert equal.proof == "proved"
    different = mi.verify(a, c)  # type: ignore[operator]
    assert not different.equal
    assert different.verdict == "different" and different.counterexample
    assert different.proof != "proved"


def test_verify_takes_results_functions_and_graphs() -> None:
    r = result()
    graph = reference_graph(r.verifier.axis_program)
    for a, b in ((r, r), (adapter, r), (r, graph), (graph, adapter), (adapter, adapter), (r, adapter), (graph, graph)):
        assert api.verify(a, b).equal
    with pytest.raises((InputError, GraphError)):
        api.verify(adapter, rows)
    with pytest.raises((InputError, GraphError)):
        api.verify(rows, graph)


# Programs of their own kind.


@pytest.mark.parametrize(
    "fn", [lambda x: x, lambda x: x.mT, lambda x: mi.repeat(x, 3, axis=0), lambda x: mi.reshape(x, "m*n")]
)
def test_without_a_graph_the_library_or_the_reference_answers(fn: Callable[[Any], Any]) -> None:
    r = mi.superoptimize(mi.trace(fn, x=mi.tensor("m", "n")), sizes={"m": 3, "n": 4}, budget=0.3, cache=False)
    assert r.graphs == []
    assert r.best.kind in ("library", "reference")
    assert r.certificate.equal
    assert r.source == str(r.program)
    inputs = arrays(r.program, {"m": 5, "n": 2})
    np.testing.assert_array_equal(r(*inputs), run_reference(r.program, inputs, {"m": 5, "n": 2})[0])
    r.report()


@functools.cache
def own_operators() -> tuple[str, str]:
    """A smooth step by definition, and one with a scalar function and C of its own."""
    sigmoid = FUNCTIONS["sigmoid"]
    mi.elementwise(
        "api_step",
        lambda al, x, slope: al.mul(x, al.function(sigmoid, al.mul(al.constant(slope), x))),
        attributes=[mi.Attribute("slope", "number", 1)],
    )
    cube = mi.register_function(
        "api_cube",
        lambda x: x * x * x,
        c_source="#define mi_fn_api_cube(x) ((x) * (x) * (x))\n",
    )
    mi.elementwise("api_cubed", lambda al, x: al.add(al.function(cube, x), al.constant(Fraction(1, 3))))
    return "api_step", "api_cubed"


@pytest.mark.parametrize("which", [0, 1])
def test_operators_of_the_user_end_to_end(which: int) -> None:
    name = own_operators()[which]
    attrs = {"slope": Fraction(3, 2)} if which == 0 else {}
    program = mi.trace(
        lambda x, w: mi.sum(mi.apply(name, x @ w, **attrs), axis=1), x=mi.tensor("b", 16), w=mi.tensor(16, "n")
    )
    r = mi.superoptimize(program, sizes={"b": 4, "n": 8}, budget=2 * BUDGET, cache=False)
    tested = 0
    for c in r.graphs:
        if c.executable is not None:
            for sizes in ({"b": 1, "n": 1}, {"b": 5, "n": 19}):
                inputs = arrays(program, sizes)
                check(program, c.executable(inputs, sizes), inputs, sizes)
                tested += 1
    assert tested >= 2, r.rejected
    x, w = arrays(program, {"b": 3, "n": 4})
    z = (x @ w).astype(np.float64)
    wanted = z / (1 + np.exp(-1.5 * z)) if which == 0 else z**3 + 1 / 3
    np.testing.assert_allclose(r(x, w), wanted.sum(axis=1), rtol=1e-4, atol=1e-4)
    assert math.isfinite(r.best.timing.median_us)


def test_the_smallest_budget_is_answered_without_a_kernel() -> None:
    r = mi.superoptimize(rows, budget=0.001, cache=False)
    assert r.best.kind != "mugraph" and r.compiled == 0
    assert r.tune_stop.startswith("budget spent before a kernel was compiled")
    assert r.graphs and all(c.executable is None for c in r.graphs)


def test_a_softmax_beside_a_plain_exp_does_not_overflow() -> None:
    p = mi.trace(lambda x, y: (mi.softmax(x), mi.exp(y)), "both", x=mi.tensor("m", "n"), y=mi.tensor("m"))
    r = mi.superoptimize(p, sizes={"m": 16, "n": 64}, budget=4, cache=False)
    rng = np.random.default_rng(0)
    x = 1000 * rng.standard_normal((16, 64)).astype(np.float32)
    y = rng.standard_normal(16).astype(np.float32)
    sizes = {"m": 16, "n": 64}
    expected = r.reference([x, y], sizes)
    kernels = [c.executable for c in r.graphs if c.executable is not None]
    assert kernels
    library = LibraryProgram(r.verifier.axis_program)
    for results in (r(x, y), library([x, y], sizes), *(k([x, y], sizes) for k in kernels)):
        for found, e in zip(results, expected, strict=True):
            np.testing.assert_allclose(found, e, rtol=1e-5, atol=1e-7)
