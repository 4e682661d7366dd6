"""superoptimize for CUDA targets where there is no device: search, compilation, ranking by model, records, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage import cuda_result
from mirage.api import verify
from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cuda_result import CudaSuperoptimized
from mirage.errors import (
    BudgetError,
    DeviceError,
    DimError,
    FormatError,
    InputError,
    MirageError,
    NoCompilerError,
    ScheduleError,
    UnknownTarget,
    VerificationError,
)
from mirage.ir.interpret import run_reference
from mirage.kernels.cuda import compile as compiler
from mirage.kernels.cuda.device import DEVICES, present_device
from mirage.search import measure, rank
from mirage.search.accuracy import Trial, random_inputs
from mirage.search.rank import CudaDecision, CudaVersion
from mirage.search.versions import Point
from tests.api.small import Run
from tests.programs import retyped, sizes

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")
without_device = pytest.mark.skipif(present_device() is not None, reason="a CUDA device is at hand")

TARGETS = ("cuda:sm_90", "cuda:sm_80")


def gated(x: Any, w: Any, v: Any) -> Any:
    return mi.silu(x @ w) * (x @ v)


PROGRAM = mi.trace(
    gated,
    x=mi.tensor("b", 64, dtype="float16"),
    w=mi.tensor(64, "n", dtype="float16"),
    v=mi.tensor(64, "n", dtype="float16"),
)
SIZES = {"b": 16, "n": 64}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path_factory.mktemp('cuda')}/store.sqlite")


@pytest.fixture(scope="module")
def result(store: ResultStore) -> CudaSuperoptimized:
    return found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))


@pytest.fixture
def saved(result: CudaSuperoptimized, tmp_path: Path) -> Path:
    result.save(tmp_path / "r.json")
    return tmp_path / "r.json"


def found(r: Any) -> CudaSuperoptimized:
    assert isinstance(r, CudaSuperoptimized)
    return r


def text(r: CudaSuperoptimized) -> str:
    file = StringIO()
    Console(file=file, width=200).print(r.report())
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "gated_mlp", "softmax"])
def test_programs_have_verified_graphs_with_compiled_kernels(name: str, target: str) -> None:
    program = retyped(PROGRAMS[name].trace(), "float16")
    r = found(mi.superoptimize(program, target=target, sizes=sizes(name), budget=3.0, cache=False))
    assert r.target == target
    best = r.best
    assert best.candidate.certificate.equal
    assert len(best.built.kernels) == len(best.candidate.graph.kernels)
    for k in best.built.kernels:
        assert k.cubin.stat().st_size > 0
        assert k.spill_bytes == 0
        assert k.shared <= r.device.block_shared_bytes
    assert r.source.count("@triton.jit") >= len(best.built.kernels)
    assert r.floor_us < r.best_us < 1e3


def test_what_a_result_says(result: CudaSuperoptimized) -> None:
    assert result.ranked_by_model
    assert (result.target, result.sizes, result.device) == ("cuda:sm_90", SIZES, DEVICES["sm_90"])
    shown = text(result)
    for part in (
        "gated at b=16, n=64 on cuda:sm_90",
        "ranked by model: no device",
        "us modelled",
        "registers",
        "no sm_90 device",
    ):
        assert part in shown
    first = result.decision.points[0]
    assert first.sizes == SIZES
    assert result.best_us == min(first.times), "at the given sizes the fastest version runs"
    assert result.best is result.choice(SIZES)
    assert "<svg" in (result._repr_svg_() or "")
    assert verify(result, result).equal


def test_choices_serve_their_sizes(result: CudaSuperoptimized) -> None:
    for p in result.decision.points:
        version = result.choice(p.sizes)
        assert version.serves(p.sizes)
        assert version in result.decision.versions
        modelled = p.times[result.decision.at(p.sizes)]
        assert modelled < math.inf


@pytest.mark.slow
def test_the_same_search_gives_the_same_versions(result: CudaSuperoptimized) -> None:
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=30.0, cache=False))
    assert again.best.schedule == result.best.schedule
    assert again.source == result.source


@without_device
def test_a_call_without_a_device_says_what_to_do(result: CudaSuperoptimized) -> None:
    arrays = [np.zeros(t.bind(SIZES), np.float16) for t in PROGRAM.input_types]
    for call in (lambda: result(*arrays), result.profile):
        with pytest.raises(
            DeviceError, match=r"no CUDA device is at hand.*cuda:sm_90 cannot run.*reference\(\*arrays\)"
        ):
            call()


def test_the_program_itself_runs_with_numpy(result: CudaSuperoptimized) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.bind({"b": 3, "n": 5})).astype(np.float16) for t in PROGRAM.input_types]
    (wanted,) = run_reference(PROGRAM, arrays, {"b": 3, "n": 5})
    assert np.array_equal(result.reference(*arrays), wanted)
    with pytest.raises(InputError, match="takes 3 arrays"):
        result.reference(*arrays[:2])


# Records.


def compiled_again(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is compiled from now on."""
    jobs: list[object] = []
    work = compiler._work

    def noted(several: list[dict[str, Any]], scratch: Path) -> None:
        jobs.extend(several)
        work(several, scratch)

    monkeypatch.setattr(compiler, "_work", noted)
    return jobs


def test_a_hit_neither_searches_nor_compiles(
    result: CudaSuperoptimized, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = compiled_again(monkeypatch)
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert again.cache_hit
    assert again.tune_stop == "from the cache"
    assert not jobs
    assert again.decision.points == result.decision.points
    assert again.decision.tree == result.decision.tree
    assert [v.schedule for v in again.decision.versions] == [v.schedule for v in result.decision.versions]
    assert again.source == result.source
    assert "from the cache" in text(again)


def test_equal_programs_share_a_record(result: CudaSuperoptimized, store: ResultStore) -> None:
    """Under other names of the program, the inputs and the dims."""

    def other(p: Any, q: Any, r: Any) -> Any:
        return mi.silu(p @ q) * (p @ r)

    def tensor(*dims: Any) -> Any:
        return mi.tensor(*dims, dtype="float16")

    program = mi.trace(other, p=tensor("rows", 64), q=tensor(64, "width"), r=tensor(64, "width"))
    r = found(mi.superoptimize(program, target="cuda:sm_90", sizes={"rows": 16, "width": 64}, budget=3.0, cache=store))
    assert r.cache_hit and r.tune_stop == "from the cache"
    assert [p.times for p in r.decision.points] == [p.times for p in result.decision.points]
    assert set(r.sizes) == {"rows", "width"} == set(r.decision.points[-1].sizes)


@pytest.mark.usefixtures("result")
def test_another_target_is_a_miss(store: ResultStore) -> None:
    r = found(mi.superoptimize(PROGRAM, target="cuda:sm_80", sizes=SIZES, budget=2.0, cache=store))
    assert not r.cache_hit
    assert r.device == DEVICES["sm_80"]
    targets = {record.target for record in store.list()}
    assert {"cuda:sm_80", "cuda:sm_90"} <= targets
    cpu = mi.superoptimize(PROGRAM, sizes=SIZES, budget=0.5, cache=store)
    assert not cpu.cache_hit
    assert not isinstance(cpu, CudaSuperoptimized)


def test_a_damaged_record_is_a_miss(
    store: ResultStore, result: CudaSuperoptimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = store.get

    def damaged(key: str) -> dict[str, Any] | None:
        payload = get(key)
        if payload and "decision" in payload:
            payload["decision"]["versions"][0]["schedule"][0]["num_warps"] = 3
        return payload

    monkeypatch.setattr(store, "get", damaged)
    with pytest.warns(CorruptRecordWarning, match="num_warps is 3"):
        r = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=2.0, cache=store))
    assert r.tune_stop != "from the cache"
    assert r.best_us <= result.best_us * 1.5


def test_save_and_load(result: CudaSuperoptimized, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = compiled_again(monkeypatch)
    loaded = found(mi.load(saved))
    assert not jobs
    assert loaded.to_json() == result.to_json()
    assert loaded.source == result.source
    assert loaded.ranked_by_model
    assert loaded.choice({"b": 1, "n": 8}).schedule == result.choice({"b": 1, "n": 8}).schedule


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda obj: obj["decision"].pop(key)


def put(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(obj: Any) -> None:
        for key in path[:-1]:
            obj = obj[key]
        obj[path[-1]] = value

    return change


BAD: dict[str, tuple[type[MirageError], str, Callable[[dict[str, Any]], None]]] = {
    "no tree": (FormatError, "expected versions, used, tree", drop("tree")),
    "no versions": (FormatError, "versions must be a list of 1 to", put([], "decision", "versions")),
    "used": (FormatError, "used must be a number from 1", put(0, "decision", "used")),
    "a graph that is none": (FormatError, "there is no graph 99", put(99, "decision", "versions", 0, "graph")),
    "a schedule that is none": (FormatError, "CUDA schedule", put({}, "decision", "versions", 0, "schedule")),
    "a tile of 3": (
        ScheduleError,
        "powers of two",
        put({"b": 3, "n": 16, "d64": 16}, "decision", "versions", 0, "schedule", 0, "tiles"),
    ),
    "no tiles": (ScheduleError, "needs a positive tile", put({}, "decision", "versions", 0, "schedule", 0, "tiles")),
    "times": (FormatError, "us must be", put([-1.0], "decision", "points", 0, "us")),
    "device": (FormatError, "measured_on", put(5, "decision", "measured_on")),
    "sizes": (FormatError, "sizes", put({"b": -1, "n": 2}, "decision", "versions", 0, "sizes")),
    "target": (UnknownTarget, "cuda:sm_12", put("cuda:sm_12", "target")),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_are_no_results(what: str, saved: Path) -> None:
    error, message, change = BAD[what]
    obj = json.loads(saved.read_text())
    change(obj)
    saved.write_text(json.dumps(obj))
    with pytest.raises(error, match=message):
        mi.load(saved)


# Bad input.


@pytest.mark.parametrize("target", ["cuda:sm_1", "cuda:", "cuda:90", "CUDA", "cuda sm_90"])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(UnknownTarget, match="choose one of"):
        mi.superoptimize(PROGRAM, target=target, sizes=SIZES, budget=0.1, cache=False)


@pytest.mark.parametrize("sizes", [{"b": 0, "n": 64}, {"b": 16}, {"b": 16, "n": 64, "q": 1}])
def test_bad_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(DimError):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=sizes, budget=0.1, cache=False)


def test_a_choice_needs_all_sizes(result: CudaSuperoptimized) -> None:
    with pytest.raises(DimError, match="no size for n"):
        result.choice({"b": 3})


def test_sizes_that_no_version_serves(result: CudaSuperoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaVersion, "serves", lambda self, sizes: False)
    with pytest.raises(DimError, match=r"no compiled version serves b=16, n=64; superoptimize with these sizes"):
        result.choice(SIZES)


def test_whole_programs_are_for_the_cpu() -> None:
    with pytest.raises(UnknownTarget, match="whole programs are compiled for target 'cpu'"):
        mi.compile(mi.program(x=mi.tensor("n"))(lambda x: mi.relu(x)), target="cuda")


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise NoCompilerError("Triton is not installed; pip install triton")

    monkeypatch.setattr(compiler, "triton_version", missing)
    with pytest.raises(NoCompilerError, match="pip install triton"):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=0.5, cache=False)


def test_when_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise ScheduleError("refused by this test")

    monkeypatch.setattr(rank, "emit", refused)
    with pytest.raises(
        MirageError, match=r"no kernel compiles for cuda:sm_90: .*refused by this test; use target='cpu'"
    ):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=0.5, cache=False)


# With a device, or what stands for one.


class Timer:
    """Stands for `DeviceRuns`: the versions that were fastest by the model are slow, and some are wrong."""

    wrong = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.order: list[CudaVersion] = []

    def check(self, version: CudaVersion) -> str:
        self.order.append(version)
        return "its results differ" if len(self.order) <= Timer.wrong else ""

    def times(self, versions: list[CudaVersion], sizes: dict[str, int]) -> list[float]:
        return [100.0 - self.order.index(v) if v.serves(sizes) else math.inf for v in versions]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    here = replace(DEVICES["sm_90"], name="Some H200", present=True)
    monkeypatch.setattr(cuda_result, "present_device", lambda: here)
    monkeypatch.setattr(cuda_result, "DeviceRuns", Timer)
    monkeypatch.setattr(Timer, "wrong", 0)
    yield here.name


def test_a_device_measures_and_decides_again(result: CudaSuperoptimized, saved: Path, device: str) -> None:
    r = found(mi.load(saved))
    kept: list[CudaDecision] = []
    r.keep = kept.append
    slowest_by_model = r.decision.versions[-1].schedule
    r.profile()
    assert not r.ranked_by_model
    assert r.decision.measured_on == device
    assert kept == [r.decision]
    assert len(r.decision.versions) == len(result.decision.versions)
    assert r.best.schedule == slowest_by_model or not r.decision.versions[-1].serves(SIZES)
    assert r.best_us == min(r.decision.points[0].times) <= 100.0
    assert f"measured on {device}" in text(r)
    assert found(mi.load(saved)).ranked_by_model, "the file is as it was"


@pytest.mark.usefixtures("result")
def test_measurements_are_kept_under_the_name_of_the_device(
    store: ResultStore, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert again.ranked_by_model
    modelled = again.decision
    again.profile()
    here = replace(DEVICES["sm_90"], name=device, present=True)
    monkeypatch.setattr("mirage.kernels.cuda.device.present_device", lambda: here)
    measured = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert measured.decision.measured_on == device
    assert measured.decision.points == again.decision.points
    monkeypatch.setattr("mirage.kernels.cuda.device.present_device", lambda: None)
    without = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert without.ranked_by_model
    assert without.decision.points == modelled.points


def test_wrong_versions_are_left_out(saved: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    r = found(mi.load(saved))
    count = len(r.decision.versions)
    monkeypatch.setattr(Timer, "wrong", 1)
    r.profile()
    assert len(r.decision.versions) == count - 1
    assert "its results differ" in r.rejected[-1]
    monkeypatch.setattr(Timer, "wrong", count)
    with pytest.raises(VerificationError, match=f"no version runs on {device} and gives the program's results"):
        found(mi.load(saved)).profile()


def test_another_architecture_at_hand(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_result, "present_device", lambda: replace(DEVICES["sm_80"], present=True))
    with pytest.raises(
        DeviceError, match=r"the kernels are for cuda:sm_90, and A100 is sm_80; superoptimize with target='cuda:sm_80'"
    ):
        found(mi.load(saved)).profile()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("seconds", [0, -1, math.inf, "3", True])
def test_bad_seconds(result: CudaSuperoptimized, seconds: Any) -> None:
    with pytest.raises(BudgetError, match="seconds="):
        result.profile(seconds)


@pytest.mark.usefixtures("device")
def test_arrays_that_do_not_fit(saved: Path) -> None:
    r = found(mi.load(saved))
    x = np.zeros((16, 64), np.float16)
    with pytest.raises(InputError, match=r"takes 3 arrays \(x, w, v\), got 2"):
        r(x, x)
    with pytest.raises(InputError, match="input 'w' must be an array on the device"):
        r(x, [1.0], x)
    with pytest.raises(InputError, match="input 'v'"):
        r(x, x.T, np.zeros(3, np.float16))


class Cupy:
    """Stands for CuPy: arrays in main memory, and a clock (ms) that calls move on."""

    def __init__(self, *, captures: bool = True) -> None:
        self.cuda = self.runtime = self
        self.clock = 0.0
        self.captures = captures
        self.capturing: list[Callable[[], None]] | None = None
        self.asarray, self.asnumpy, self.ascontiguousarray, self.empty = (
            np.asarray,
            np.asarray,
            np.ascontiguousarray,
            np.empty,
        )

    def memGetInfo(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def Stream(self, non_blocking: bool) -> Cupy:
        return self

    get_current_stream = Event = lambda self: self.__class__.Mark(self)

    class Mark:
        def __init__(self, cupy: Cupy) -> None:
            self.cupy = cupy

        def record(self, stream: object) -> None:
            self.at = self.cupy.clock

        def synchronize(self) -> None:
            pass

    def get_elapsed_time(self, begin: Mark, end: Mark) -> float:
        return end.at - begin.at

    def __enter__(self) -> Cupy:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> Cupy:
        calls, self.capturing = self.capturing, None
        if calls is None or not self.captures:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return Graph(self, calls)  # type: ignore[return-value]

    def call(self, ms: float) -> None:
        if self.capturing is not None:
            self.capturing.append(lambda: self.call(ms))
        else:
            self.clock += ms


class Graph:
    def __init__(self, cupy: Cupy, calls: list[Callable[[], None]]) -> None:
        self.cupy, self.calls = cupy, calls

    def launch(self, stream: Cupy) -> None:
        assert stream is self.cupy
        for call in self.calls:
            call()


class Executable:
    """Stands for `CudaExecutable`: runs the program with NumPy, with an error of `wrong`, in so many ms."""

    def __init__(self, cupy: Cupy, ms: float, wrong: float = 0.0, fails: bool = False) -> None:
        self.cupy, self.ms, self.wrong, self.fails = cupy, ms, wrong, fails

    def __call__(self, inputs: Any, sizes: Any) -> list[np.ndarray]:
        if self.fails:
            raise RuntimeError("cudaErrorIllegalAddress")
        return [(y + self.wrong).astype(y.dtype) for y in run_reference(PROGRAM, inputs, sizes)]

    def bind(self, inputs: Any, sizes: Any, out: Any) -> Executable:
        if self.fails:
            raise MemoryError
        assert [x.shape for x in inputs] == [t.bind(sizes) for t in PROGRAM.input_types]
        assert [y.shape for y in out] == [t.bind(sizes) for t in PROGRAM.output_types]
        return self

    def launch(self) -> None:
        self.cupy.call(self.ms)


@pytest.mark.parametrize("captures", [True, False])
def test_versions_are_checked_and_measured(result: CudaSuperoptimized, captures: bool) -> None:
    cupy = Cupy(captures=captures)
    v = result.decision.versions[0]
    versions = [replace(v), replace(v), replace(v)]
    kinds = [Executable(cupy, 0.25), Executable(cupy, 0.5, wrong=0.5), Executable(cupy, 1.0, fails=True)]
    table = {id(one): kind for one, kind in zip(versions, kinds, strict=True)}
    runs = measure.DeviceRuns(
        cupy, PROGRAM, result.verifier.axis_program, SIZES, DEVICES["sm_90"], lambda one: table[id(one)],  # type: ignore[arg-type, return-value]
        budget=1e-6, points=1, seed=0,
    )  # fmt: skip
    found = [runs.check(one) for one in versions]
    assert found[0] == ""
    assert "its results differ from the program's at" in found[1]
    assert "cudaErrorIllegalAddress" in found[2]
    assert runs.times(versions, SIZES) == pytest.approx([250.0, 500.0, math.inf])
    assert runs.times([], SIZES) == []


def test_a_decision_prefers_versions_that_serve(result: CudaSuperoptimized) -> None:
    v = result.decision.versions[0]
    points = [Point({"b": 16, "n": 64}, (2.0, 1.0)), Point({"b": 16, "n": 4096}, (2.0, math.inf))]
    decision = CudaDecision.learnt([v, v], points, 1)
    assert decision.points[0].times == (1.0, 2.0), "the version of the given sizes comes first"
    assert decision.used == 2
    never = [*points, Point({"b": 1, "n": 1}, (math.inf, math.inf))]
    assert CudaDecision.learnt([v, v], never, 1).tree == decision.tree


def test_a_decorated_function_takes_the_sizes_of_its_first_call() -> None:
    spec = {
        name: mi.tensor(*dims, dtype="float16") for name, dims in (("x", ("b", 64)), ("w", (64, "n")), ("v", (64, "n")))
    }
    lazy = mi.superoptimized(options={"target": "cuda:sm_90", "budget": 1.0, "cache": False}, **spec)(gated)
    with pytest.raises(InputError, match="takes 3 arrays"):
        lazy(np.zeros((16, 64), np.float16))
    if present_device() is None:
        with pytest.raises(DeviceError, match="no CUDA device is at hand"):
            lazy(*(np.zeros(t.bind(SIZES), np.float16) for t in PROGRAM.input_types))
        assert found(lazy.result).sizes == SIZES


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "gated_mlp", "softmax"])
def test_on_a_device(name: str, dtype: str) -> None:
    """The first call measures; results at other sizes are about as near to float64 as NumPy's."""
    cupy = pytest.importorskip("cupy", reason="kernels are launched by CuPy; pip install cupy-cuda13x")
    program = retyped(PROGRAMS[name].trace(), dtype)
    r = found(mi.superoptimize(program, target="cuda", sizes=sizes(name), budget=15.0, cache=False))
    for bound in (sizes(name), {s: (3, 5, 2, 7)[i] for i, s in enumerate(sizes(name))}):
        inputs = random_inputs(program, bound, 0)
        trial = Trial.of("device", program, inputs, bound)
        given = [cupy.asarray(x.view(f"u{x.itemsize}")).view(x.dtype) for x in inputs]
        y = r(*given)
        out = cupy.empty_like(y)
        assert r(*given, out=out) is out
        results = [cupy.asnumpy(cupy.ascontiguousarray(a).view(f"u{y.itemsize}")).view(y.dtype) for a in (y, out)]
        assert trial.measure(lambda *_, a=results[0]: [a])[1]
        assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    device = present_device()
    assert device is not None
    assert r.decision.measured_on == device.name
    assert r.best_us < math.inf


def test_the_command_line(command: Run, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import mirage as mi\n\n\n"
        "@mi.program(x=mi.tensor('m', 64, dtype='float16'), w=mi.tensor(64, 'n', dtype='float16'), sizes={'m': 16, 'n': 64})\n"
        "def scaled(x, w):\n    return mi.relu(x @ w)\n"
    )
    base = ("superoptimize", "user.py:scaled", "--budget", "1", "--target", "cuda:sm_90")
    code, out, err = command(*base, "--json", "--save", "r.json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["target"] == "cuda:sm_90"
    assert figures["measured_on"] is None
    assert figures["limit_us"] < figures["best_us"]
    assert figures["certificate"]["equal"]
    code, out, _ = command(*base)
    assert code == 0 and "ranked by model: no device" in out
    code, out, _ = command("show", "r.json", "--source", "--svg", "r.svg")
    assert code == 0 and "@triton.jit" in out
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    code, out, err = command("verify", "user.py:scaled", "r.json")
    assert code == 0, err
