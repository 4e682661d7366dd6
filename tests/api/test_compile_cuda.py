"""Whole programs for CUDA: compiled without a device, and run on one that is not there, by Triton's interpreter."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graph_models import Bert, Llama, Mixtral
from benchmarks.graph_programs import SMALL, GraphProgram, programs
from mirage.errors import DeviceError, FormatError, GuardError, InputError, MirageError, UnknownTarget
from mirage.kernels.cuda.device import find_cupy, present_device
from mirage.kernels.cuda.interpret import Interpreter
from tests.api.small import Run
from tests.kernels.cuda.fake_cupy import Interfaced
from tests.kernels.cuda.strict_lab import StrictLab, strict

__all__ = ["strict"]

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")
without_device = pytest.mark.skipif(present_device() is not None, reason="a CUDA device is at hand")

TARGET = "cuda:sm_90"
#: without a search, so that a test takes a second
QUICK: dict[str, Any] = {"without": ("superoptimize",), "target": TARGET}


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Triton's interpreter, in one process for all tests."""
    with Interpreter() as found:
        yield found


def compiled(p: GraphProgram, **options: Any) -> mi.Executable:
    return mi.compile(p.fn, p.specs, bounds=p.bounds, constants=p.constants, **{**QUICK, **options})


def placed(lab: StrictLab, arguments: list[Any]) -> list[Any]:
    return [lab.cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]


def tupled(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(
    lab: StrictLab,
    executable: mi.Executable,
    p: GraphProgram,
    count: int,
    calls: int = 1,
    seed: int = 0,
    tolerance: float = 3e-4,
) -> None:
    """Results at random sizes against float64, of as many equal calls at each."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sizes = p.random_sizes(rng)
        arguments = p.arguments(sizes, rng)
        want = p.expected([a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
        given = placed(lab, arguments)
        for _ in range(1 if p.written else calls):
            got = tupled(executable(*given))
            for g, w in zip(got, want, strict=True):
                assert isinstance(g, lab.cupy.ndarray)
                found = lab.cupy.asnumpy(g)
                scale = np.abs(w).max(initial=0) + 1e-3
                assert found.shape == w.shape and np.abs(found - w).max(initial=0) < tolerance * scale, (p.name, sizes)


@pytest.mark.parametrize("name", SMALL)
def test_one_compile_serves_all_sizes_also_after_loading(strict: StrictLab, name: str, tmp_path: Path) -> None:
    p = SMALL[name]
    executable = compiled(p)
    check(strict, executable, p, 2, calls=3)
    executable.save(tmp_path / "program.mirage")
    loaded = mi.load_executable(tmp_path / "program.mirage")
    assert loaded.target == TARGET and loaded.explain() == executable.explain()
    check(strict, loaded, p, 1, seed=1)


def test_superoptimized_programs_compute_the_same(strict: StrictLab, tmp_path: Path) -> None:
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=4.0, cache=False)
    assert "lax_kernel" in executable.explain() and "ranked by model" in executable.explain()
    check(strict, executable, p, 2)
    assert "measured on Fake H200" in executable.explain(), "versions of a search are measured on first use"
    executable.save(tmp_path / "program.mirage")
    check(strict, mi.load_executable(tmp_path / "program.mirage"), p, 1, seed=1)


def test_versions_that_a_device_refuses_leave_library_calls(strict: StrictLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kernels.cuda.strict_lab.ByModel.check", lambda *_: "its results differ")
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=2.0, cache=False)
    check(strict, executable, p, 1)
    assert "library calls, as no version runs on Fake H200" in executable.explain()


@pytest.mark.parametrize("left_out", [("libraries",), ("libraries", "fuse"), ("plan",)])
def test_optimizations_can_be_left_out(strict: StrictLab, left_out: tuple[str, ...]) -> None:
    p = SMALL["bert_encoder"]
    executable = compiled(p, without=("superoptimize", *left_out))
    check(strict, executable, p, 1)
    assert ("CuPy operators" in executable.explain()) is ("fuse" in left_out)


def test_superoptimization_in_the_background(strict: StrictLab) -> None:
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=2.0, background=True, cache=False)
    check(strict, executable, p, 1)
    assert executable.wait(60)
    check(strict, executable, p, 1)
    assert "found in the background" in executable.explain()


# CUDA graphs

SCALED = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8)}


def scaled(x: Any, w: Any) -> Any:
    return mi.softmax(mi.exp(x) @ w), x


def numbers(lab: StrictLab, *shape: int, seed: int = 0) -> Any:
    return lab.cupy.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def softmax(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    e = np.exp(np.exp(x.astype(np.float64)) @ w)
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def executable(strict: StrictLab) -> mi.Executable:
    return mi.compile(scaled, SCALED, bounds={"n": 16}, **QUICK)


def test_the_second_equal_call_is_recorded_and_the_third_replayed(strict: StrictLab, executable: mi.Executable) -> None:
    assert "the second call with equal sizes and addresses is recorded" in executable.explain()
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    streams = []
    for call in range(5):
        x[...] = call / 4
        before = len(strict.cupy.launches)
        y, _ = executable(x, w)
        streams.append([launch.stream for launch in strict.cupy.launches[before:]])
        np.testing.assert_allclose(y.get(), softmax(x.get(), w.get()), 1e-5)
    once = len(streams[0])
    assert [len(s) for s in streams] == [once, 2 * once, once, once, once]
    # 1000 is the stream of recordings, which runs everything once before
    assert streams[1] == [1000] * once + [0] * once


def test_results_belong_to_the_caller(strict: StrictLab, executable: mi.Executable) -> None:
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    results = []
    for call in range(4):
        x[...] = call / 4
        results.append((executable(x, w), softmax(x.get(), w.get()), x.get()))
    for (y, same), wanted, given in results:
        np.testing.assert_allclose(y.get(), wanted, 1e-5)
        np.testing.assert_array_equal(same.get(), given, "not the argument itself, which has changed since")


def test_other_sizes_and_addresses_replay_graphs_of_their_own(strict: StrictLab, executable: mi.Executable) -> None:
    w = numbers(strict, 8, 8, seed=1)
    arrays = [numbers(strict, n, 8, seed=n) for n in (5, 7, 5, 16, 1)]
    for _ in range(4):
        for x in arrays:
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    # through its strides, at the address of another one
    turned = arrays[0].T[:, :1].T
    assert turned.data.ptr == arrays[0].data.ptr
    np.testing.assert_allclose(executable(turned, w)[0].get(), softmax(turned.get(), w.get()), 1e-5)


def test_few_graphs_are_kept(strict: StrictLab, executable: mi.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.runtime.replay.KEPT", 2)
    w, arrays = numbers(strict, 8, 8, seed=1), [numbers(strict, n, 8, seed=n) for n in range(1, 6)]
    for _ in range(3):
        for x in arrays:
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    assert executable._device is not None
    (on,) = executable._device._streams.values()
    assert on.replays is not None and len(on.replays._graphs) == 2
    executable.release()
    np.testing.assert_allclose(executable(arrays[0], w)[0].get(), softmax(arrays[0].get(), w.get()), 1e-5)


def test_calls_that_a_device_cannot_record_run_one_by_one(strict: StrictLab, executable: mi.Executable) -> None:
    strict.cupy.fails = None
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    executable(x, w)
    strict.cupy.fails = RuntimeError("cudaErrorStreamCaptureInvalidated")
    for _ in range(3):
        np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    assert executable._device is not None
    (on,) = executable._device._streams.values()
    assert on.replays is not None and "cudaErrorStreamCaptureInvalidated" in on.replays.refused


def test_streams_have_memory_of_their_own(strict: StrictLab, executable: mi.Executable) -> None:
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    for _ in range(3):
        executable(x, w)
        with strict.cupy._stream(12):
            before = len(strict.cupy.launches)
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
            assert strict.cupy.launches[-1].stream == 12
    assert executable._device is not None
    assert {handle for _, handle in executable._device._streams} == {0, 12}
    assert len(strict.cupy.launches) > before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("select_rows", "boolean_mask is no kernel"),
        ("refinement", "how often step runs is in the data"),
        ("cache_update", "update_slice_ is a Python function"),
    ],
)
def test_explaining_says_why_there_is_no_graph(name: str, why: str) -> None:
    executable = compiled(SMALL[name])
    assert "CUDA graphs: none" in executable.explain()
    assert why in executable.explain() and why in executable.to_json()["graphs"]


def test_sizes_without_bounds_are_launched_one_by_one(strict: StrictLab) -> None:
    executable = mi.compile(scaled, SCALED, **QUICK)
    assert "sizes without bounds take memory that grows" in executable.explain()
    w = numbers(strict, 8, 8, seed=1)
    for n in (3, 40, 5, 40):
        x = numbers(strict, n, 8, seed=n)
        np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)


def test_an_index_out_of_range_is_reported_also_by_a_replayed_call(strict: StrictLab) -> None:
    specs = {"table": mi.tensor("n", 8), "ids": mi.tensor("m", dtype="int64")}
    executable = mi.compile(lambda table, ids: mi.take(table, ids, axis=0) * 2, specs, bounds={"n": 9, "m": 9}, **QUICK)
    table, ids = numbers(strict, 5, 8), strict.cupy.asarray(np.array([0, 4, -5]))
    for _ in range(3):
        np.testing.assert_array_equal(executable(table, ids).get(), table.get()[ids.get()] * 2)
    ids[1] = 5
    for _ in range(2):
        with pytest.raises(InputError, match=r"index 5 is out of range for a dim of 5 elements"):
            executable(table, ids)
    ids[1] = 1
    np.testing.assert_array_equal(executable(table, ids).get(), table.get()[ids.get()] * 2)


def test_constants_are_prepared_again_when_they_are_forgotten(strict: StrictLab) -> None:
    def products(x: Any, w: Any, v: Any) -> Any:
        return mi.exp(x @ w), mi.exp(x @ v)

    specs = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 4), "v": mi.tensor(8, 4)}
    executable = mi.compile(products, specs, bounds={"n": 512}, constants=("w", "v"), **QUICK)
    assert executable.parameters == ("x", "w", "v") and "prepare" in executable.explain()
    x, w, v = (strict.cupy.asarray(np.ones(s, np.float32)) for s in ((2, 8), (8, 4), (8, 4)))
    for _ in range(3):
        np.testing.assert_allclose(executable(x, w, v)[0].get(), np.exp(8), 1e-5)
    w[...] = 0
    executable.forget()
    np.testing.assert_array_equal(executable(x, w, v)[0].get(), 1)


# Bad input


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((5, 8), np.float32), "input 'x': ndarray is no array on a CUDA device; copy it with cupy.asarray"),
        (np.float32(1), "input 'x' has shape"),
        (1.0, "input 'x'"),
        ("text", "input 'x'"),
        (None, "input 'x'"),
    ],
)
def test_arguments_that_are_not_on_the_device(
    strict: StrictLab, executable: mi.Executable, x: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        executable(x, numbers(strict, 8, 8))


def test_arguments_that_do_not_fit(strict: StrictLab, executable: mi.Executable) -> None:
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8)
    with pytest.raises(GuardError, match="n is 17, but n <= 16 is required"):
        executable(numbers(strict, 17, 8), w)
    with pytest.raises(GuardError, match="dtype float64"):
        executable(x.astype(np.float64), w)
    with pytest.raises(InputError, match="w missing"):
        executable(x)
    with pytest.raises(InputError, match="on CUDA device 1, and the first array on 0"):
        executable(x, _moved(w))
    other = executable(x, Interfaced(np.ones((8, 8), np.float32)))[0]
    np.testing.assert_allclose(other.get(), 1 / 8, 1e-5)


def _moved(a: Any) -> Any:
    made = a.copy()
    made.on = 1
    return made


def test_what_is_updated_in_place_must_be_writable(strict: StrictLab) -> None:
    def filled(x: Any, y: Any) -> Any:
        return mi.add_(x, y)

    executable = mi.compile(filled, {"x": mi.tensor("n", 4), "y": mi.tensor("n", 4)}, **QUICK)
    x, y = numbers(strict, 3, 4), numbers(strict, 3, 4, seed=1)
    wanted = x.get() + y.get()
    assert np.array_equal(executable(x, y).get(), wanted) and np.array_equal(x.get(), wanted)
    # through strides: what was written to a copy goes to the argument
    wide = numbers(strict, 4, 6)
    part, before = wide[:3, 1:5], wide.get()
    executable(part, y)
    np.testing.assert_array_equal(part.get(), before[:3, 1:5] + y.get())
    np.testing.assert_array_equal(wide.get()[3:], before[3:])
    locked = Interfaced(np.zeros((3, 4), np.float32))
    locked.__cuda_array_interface__ = {"data": (locked.array.ctypes.data, True)}
    with pytest.raises(GuardError, match="input 'x' is updated in place, and read-only"):
        executable(locked, y)
    with pytest.raises(GuardError, match="input 'x' is updated in place, and shares memory with input 'y'"):
        executable(wide[:3, 1:5], wide[:3, :4])
    with pytest.raises(GuardError, match="input 'x' is updated in place, and shares memory with input 'y'"):
        executable(x, x)


def test_without_a_device_a_call_says_what_to_do(strict: StrictLab, executable: mi.Executable) -> None:
    strict.present = False
    for call in (lambda: executable(np.zeros(3)), executable, lambda: executable(nonsense=3)):
        with pytest.raises(
            DeviceError,
            match=r"for sm_90, and CuPy finds no CUDA device; install CuPy and a driver, or use target='cpu'",
        ):
            call()


def test_a_device_of_another_architecture(strict: StrictLab) -> None:
    executable = mi.compile(scaled, SCALED, without=("superoptimize",), target="cuda:sm_80")
    assert executable.target == "cuda:sm_80"
    message = r"compiled for sm_80, and the device at hand, Fake H200, is sm_90; compile with target='cuda:sm_90'"
    with pytest.raises(DeviceError, match=message):
        executable(numbers(strict, 5, 8), numbers(strict, 8, 8))


def test_cuda_is_the_device_at_hand(strict: StrictLab) -> None:
    executable = mi.compile(scaled, SCALED, without=("superoptimize",), target="cuda")
    assert executable.target == TARGET
    check_shape = executable(numbers(strict, 5, 8), numbers(strict, 8, 8))[0]
    assert check_shape.shape == (5, 8)


@pytest.mark.parametrize("target", ["cuda:sm_1", "cuda:90", "tpu", "CUDA"])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(UnknownTarget, match="choose one of"):
        mi.compile(scaled, SCALED, target=target)


# Files


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"target": "cuda:sm_90"', '"target": "cpu"', FormatError),
        ('"target": "cuda:sm_90"', '"target": "cuda:sm_80"', FormatError),
        ('"target": "cuda:sm_90"', '"target": "cuda:sm_1"', FormatError),
        ('"kind": "cuda_mugraph"', '"kind": "mugraph"', FormatError),
        ('\\"origin\\":\\"fused\\"', '\\"origin\\":\\"library\\"', FormatError),
        ('\\"num_warps\\":', '\\"num_warps_\\":', MirageError),
        ("mirage CUDA kernel", "a kernel", FormatError),
    ],
)
def test_altered_files_are_refused(executable: mi.Executable, old: str, new: str, error: Any, tmp_path: Path) -> None:
    executable.save(tmp_path / "a.mirage")
    with zipfile.ZipFile(tmp_path / "a.mirage") as archive:
        text = archive.read("executable.json").decode()
    assert old in text
    with zipfile.ZipFile(tmp_path / "b.mirage", "w") as archive:
        archive.writestr("executable.json", text.replace(old, new))
    with pytest.raises(error, match=r"b\.mirage"):
        mi.load_executable(tmp_path / "b.mirage")


@without_device
def test_compiling_saving_and_loading_need_no_device(tmp_path: Path) -> None:
    """With the real compiler."""
    executable = mi.compile(scaled, SCALED, bounds={"n": 16}, **QUICK)
    executable.save(tmp_path / "a.mirage")
    loaded = mi.load_executable(tmp_path / "a.mirage")
    assert loaded.explain() == executable.explain() and f"for {TARGET}" in loaded.explain()
    assert "<svg" in loaded._repr_svg_()
    with pytest.raises(DeviceError, match="CuPy finds no CUDA device"):
        loaded(np.zeros((5, 8), np.float32), np.zeros((8, 8), np.float32))


def test_the_command_line(command: Run, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import mirage as mi\n\n\n"
        "@mi.function(x=mi.tensor('n', 16), w=mi.tensor(16, 16))\n"
        "def layer(x, w):\n    return mi.softmax(x @ w)\n"
    )
    base = ("compile", "user.py:layer", "--target", TARGET, "--without", "superoptimize", "--bound", "n=8")
    code, out, err = command(*base, "--json", "--save", "a.mirage")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["target"] == TARGET and facts["graphs"].startswith("the second call")
    code, out, err = command("compile", "a.mirage")
    assert code == 0 and f"for {TARGET}" in out and "CUDA graphs: " in out, err
    code, _, err = command("compile", "user.py:layer", "--target", "cuda:sm_1")
    assert code and "choose one of" in err


def test_tensors_of_torch(strict: StrictLab, executable: mi.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a torch whose CUDA memory is main memory: they are told apart by `is_cuda` alone."""
    torch = pytest.importorskip("torch", reason="needs torch")

    class Cuda(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True

        def get_device(self) -> int:
            return 0

    class Stream:
        cuda_stream = 31

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    x, w = torch.randn(5, 8), torch.randn(8, 8)
    for t in (x, w):
        strict.cupy.memory.append((t.data_ptr(), t.nbytes))
    given = [t.as_subclass(Cuda) for t in (x, w)]
    for call in range(4):
        x.fill_(call / 4)
        y, same = executable(*given)
        assert isinstance(y, torch.Tensor) and same.data_ptr() != x.data_ptr()
        np.testing.assert_allclose(y.numpy(), softmax(x.numpy(), w.numpy()), 1e-5)
        assert torch.equal(same, x)
    assert {launch.stream for launch in strict.cupy.launches} == {31, 1000}, (
        "torch's current stream, and that of recordings"
    )
    with pytest.raises(InputError, match=r"input 'w': Tensor is not in the memory of a CUDA device.*to\('cuda'\)"):
        executable(given[0], w)
    half = mi.compile(lambda x: mi.relu(x) + 1, {"x": mi.tensor("n", dtype="bfloat16")}, **QUICK)
    z = torch.randn(7).bfloat16()
    strict.cupy.memory.append((z.data_ptr(), z.nbytes))
    found = half(z.as_subclass(Cuda))
    assert found.dtype == torch.bfloat16 and torch.equal(found, torch.relu(z) + 1)


LAYERS = {
    dtype: programs(
        Llama(hidden=32, heads=4, shared=2, head=8, ffn=48, dtype=dtype),
        Bert(hidden=32, heads=4, ffn=64, dtype=dtype),
        Mixtral(hidden=16, experts=4, ffn=24, dtype=dtype),
        batch=2,
        length=8,
        measured=False,
    )
    for dtype in ("float16", "bfloat16")
}


@pytest.mark.parametrize("without", [("superoptimize",), ("superoptimize", "libraries", "fuse")])
@pytest.mark.parametrize("dtype", LAYERS)
def test_layers_in_16_bits(strict: StrictLab, dtype: str, without: tuple[str, ...]) -> None:
    for name in ("llama_decode", "bert_encoder", "mixtral_moe"):
        p = LAYERS[dtype][name]
        check(strict, compiled(p, without=without), p, 1, calls=3, tolerance={"float16": 5e-3, "bfloat16": 4e-2}[dtype])


def test_constants_of_a_program_are_copied_once(strict: StrictLab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(40, dtype=np.float32).reshape(5, 8)
    executable = mi.compile(lambda x: mi.exp(x @ table.T) @ table, {"x": mi.tensor("n", 8)}, bounds={"n": 8}, **QUICK)
    x = numbers(strict, 3, 8) / 40
    wanted = np.exp(x.get().astype(np.float64) @ table.T) @ table
    copied: list[int] = []
    asarray = strict.cupy.asarray

    def noted(a: Any, *more: Any) -> Any:
        copied.append(a.size)
        return asarray(a, *more)

    monkeypatch.setattr(strict.cupy, "asarray", noted)
    for stream in (0, 12, 0, 12, 0):
        with strict.cupy._stream(stream):
            np.testing.assert_allclose(executable(x).get(), wanted, 1e-5)
    assert copied.count(40) == len(executable.program.constants) > 0


# On a device


@pytest.fixture
def cupy() -> Any:
    """CuPy with a device."""
    found = find_cupy()
    if found is None:
        pytest.skip("no CUDA device, or CuPy is not installed")
    return found


def on_device(cupy: Any, a: Any) -> Any:
    return cupy.asarray(a.view(f"u{a.itemsize}")).view(a.dtype) if isinstance(a, np.ndarray) else a


@pytest.mark.gpu
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("left_out", [("superoptimize",), ("superoptimize", "libraries", "fuse"), ()])
def test_programs_on_a_device(cupy: Any, name: str, left_out: tuple[str, ...]) -> None:
    p = SMALL[name]
    executable = compiled(p, target="cuda", without=left_out, budget=5.0)
    rng = np.random.default_rng(0)
    for _ in range(3):
        sizes = p.random_sizes(rng)
        arguments = p.arguments(sizes, rng)
        want = p.expected([a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
        given = [on_device(cupy, a) for a in arguments]
        for _ in range(1 if p.written else 4):
            for g, w in zip(tupled(executable(*given)), want, strict=True):
                scale = np.abs(w).max(initial=0) + 1e-3
                assert g.shape == w.shape and np.abs(g.get() - w).max(initial=0) < 1e-3 * scale, (name, sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_of_torch_on_a_device(cupy: Any, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    specs = {name: mi.tensor(*shape, dtype=dtype) for name, shape in (("x", ("n", 64)), ("w", (64, 64)))}
    executable = mi.compile(scaled, specs, bounds={"n": 64}, without=("superoptimize",), target="cuda")
    side = torch.cuda.Stream()
    for n in (1, 33, 64):
        x, w = (torch.randn(*s, device="cuda").to(getattr(torch, dtype)) / 8 for s in ((n, 64), (64, 64)))
        side.wait_stream(torch.cuda.current_stream())
        for stream in (torch.cuda.current_stream(), side):
            with torch.cuda.stream(stream):
                for call in range(4):
                    x.fill_(call / 16)
                    y, same = executable(x, w)
                    assert y.is_cuda and y.dtype == x.dtype and torch.equal(same, x)
                    wanted = torch.softmax(torch.exp(x.double()) @ w.double(), -1)
                    assert float((y.double() - wanted).abs().max()) < 0.02
            torch.cuda.synchronize()


@pytest.mark.gpu
def test_replays_do_not_launch_kernels_one_by_one(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = mi.compile(scaled, SCALED, bounds={"n": 16}, without=("superoptimize",), target="cuda")
    x, w = (cupy.asarray(np.random.default_rng(0).standard_normal(s, np.float32)) for s in ((5, 8), (8, 8)))
    for _ in range(2):
        executable(x, w)
    monkeypatch.setattr("mirage.runtime.vm.VirtualMachine.__call__", None)
    np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-4)
