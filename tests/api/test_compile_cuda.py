"""Whole programs for CUDA: compiled without a device, and run on one that is not there, by Triton's interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL, TINY, programs
from mirage.drawing.show import picture
from mirage.errors import DeviceError, FormatError, GuardError, InputError, MirageError, UnknownTarget
from mirage.kernels.cuda.device import present_device
from tests.api.archives import saved_with
from tests.api.cuda_programs import (
    QUICK,
    SCALED,
    TARGET,
    check,
    compiled,
    executable,
    interpreter,
    numbers,
    scaled,
    softmax,
)
from tests.api.small import BUDGET, Run
from tests.kernels.cuda.fake_cupy import Interfaced
from tests.kernels.cuda.strict_lab import StrictLab, strict

__all__ = ["executable", "interpreter", "strict"]

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")
#: layers that Triton's interpreter takes seconds for
SLOW = (
    "bert_encoder", "llama_prefill", "llama_decode", "gemma_decode", "whisper_decode", "gpt2_decode", "mixtral_routed",
)  # fmt: skip
without_device = pytest.mark.skipif(present_device() is not None, reason="a CUDA device is at hand")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SMALL])
def test_one_compile_serves_all_sizes_also_after_loading(strict: StrictLab, name: str, tmp_path: Path) -> None:
    p = SMALL[name]
    executable = compiled(p)
    check(strict, executable, p, 2, calls=3)
    executable.save(tmp_path / "program.mirage")
    loaded = mi.load_executable(tmp_path / "program.mirage")
    assert loaded.target == TARGET and loaded.explain() == executable.explain()
    check(strict, loaded, p, 1, seed=1)


@pytest.mark.slow
def test_superoptimized_programs_compute_the_same(strict: StrictLab, tmp_path: Path) -> None:
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=BUDGET, cache=False)
    assert "lax_kernel" in executable.explain() and "ranked by model" in executable.explain()
    check(strict, executable, p, 2)
    assert "measured on Fake H200" in executable.explain(), "versions of a search are measured on first use"
    executable.save(tmp_path / "program.mirage")
    check(strict, mi.load_executable(tmp_path / "program.mirage"), p, 1, seed=1)


def test_versions_that_a_device_refuses_leave_library_calls(strict: StrictLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kernels.cuda.strict_lab.ByModel.check", lambda *_: "its results differ")
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=BUDGET, cache=False)
    check(strict, executable, p, 1)
    assert "library calls, as no version runs on Fake H200" in executable.explain()


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [("libraries",), ("libraries", "fuse"), ("plan",)])
def test_optimizations_can_be_left_out(strict: StrictLab, left_out: tuple[str, ...]) -> None:
    p = SMALL["bert_encoder"]
    executable = compiled(p, without=("superoptimize", *left_out))
    check(strict, executable, p, 1)
    assert ("CuPy operators" in executable.explain()) is ("fuse" in left_out)


@pytest.mark.slow
def test_superoptimization_in_the_background(strict: StrictLab) -> None:
    p = SMALL["mixtral_moe"]
    executable = compiled(p, without=(), budget=4 * BUDGET, background=True, cache=False)
    check(strict, executable, p, 1)
    assert executable.wait(8 * BUDGET)
    check(strict, executable, p, 1)
    assert "found in the background" in executable.explain()


LAYERS = {
    dtype: programs(TINY.of(dtype), batch=2, length=8, measured=False) for dtype in ("float16", "bfloat16")
}


@pytest.mark.slow
@pytest.mark.parametrize("without", [("superoptimize",), ("superoptimize", "libraries", "fuse")])
@pytest.mark.parametrize("dtype", LAYERS)
def test_layers_in_16_bits(strict: StrictLab, dtype: str, without: tuple[str, ...]) -> None:
    for name in ("llama_decode", "bert_encoder", "mixtral_moe"):
        p = LAYERS[dtype][name]
        check(strict, compiled(p, without=without), p, 1, calls=3, tolerance={"float16": 5e-3, "bfloat16": 4e-2}[dtype])


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
    moved = _moved(w)
    for _ in range(3):
        # when it is recorded and replayed, too
        with pytest.raises(InputError, match="on CUDA device 1, and the first array on 0"):
            executable(x, moved)
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
        ('"kind": "ranked"', '"kind": "mugraph"', FormatError),
        ('\\"origin\\":\\"fused\\"', '\\"origin\\":\\"library\\"', FormatError),
        ('\\"tiles\\":', '\\"tiles_\\":', MirageError),
        ("mirage ranked kernel", "a kernel", FormatError),
    ],
)
def test_altered_files_are_refused(executable: mi.Executable, old: str, new: str, error: Any, tmp_path: Path) -> None:
    file = saved_with(executable, old, new, tmp_path)
    with pytest.raises(error, match=r"b\.mirage"):
        mi.load_executable(file)


@without_device
def test_compiling_saving_and_loading_need_no_device(tmp_path: Path) -> None:
    """With the real compiler."""
    executable = mi.compile(scaled, SCALED, bounds={"n": 16}, **QUICK)
    executable.save(tmp_path / "a.mirage")
    loaded = mi.load_executable(tmp_path / "a.mirage")
    assert loaded.explain() == executable.explain() and f"for {TARGET}" in loaded.explain()
    assert "<svg" in picture(loaded)
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
