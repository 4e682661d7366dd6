"""Convolutions for CUDA, superoptimized and within whole programs, against float64: by Triton's interpreter, or on a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.interpret import run_reference
from mirage.kernels.cuda.device import find_cupy
from tests.api.cuda_programs import TARGET, executable, interpreter
from tests.api.small import BUDGET
from tests.kernels.cuda.strict_lab import StrictLab, strict
from tests.sampled import thinned

__all__ = ["executable", "interpreter", "strict"]

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")
T = mi.tensor


@mi.program(x=T("b", 4, "h", 7), k=T(8, 4, 3, 3), bias=T(8, 1, 1), sizes={"b": 1, "h": 6})
def padded(x: Any, k: Any, bias: Any) -> Any:
    return mi.relu(mi.convolution(x, k, padding=1) + bias)


@mi.program(x=T("b", 4, 9, 9), k=T(8, 4, 3, 3), sizes={"b": 1})
def apart(x: Any, k: Any) -> Any:
    return mi.convolution(x, k, strides=2) * 2


@mi.program(x=T("b", 4, "h", 9), k=T(8, 4, 3, 3), sizes={"b": 1, "h": 8})
def inside(x: Any, k: Any) -> Any:
    """With a dim that is none at sizes of 1."""
    return mi.relu(mi.convolution(x, k))


@pytest.fixture(params=["strict", pytest.param("device", marks=pytest.mark.gpu)])
def cupy(request: pytest.FixtureRequest) -> Any:
    """CuPy with a device, or what stands for it."""
    if request.param == "strict":
        lab: StrictLab = request.getfixturevalue("strict")
        return lab.cupy
    found = find_cupy()
    if found is None:
        pytest.skip("no CUDA device, or CuPy is not installed")
    return found


def agrees(cupy: Any, run: Any, arrays: list[Any], wanted: Any) -> None:
    for _ in range(3):
        found = cupy.asnumpy(run(*map(cupy.asarray, arrays)))
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("program", thinned([padded, apart, inside], 3, 2), ids=lambda p: p.name)
def test_found_kernels_read_windows(cupy: Any, program: Any) -> None:
    traced = program.trace()
    fast = mi.superoptimize(program, target=TARGET, budget=BUDGET, cache=False)
    assert fast.certificate.proof == "proved" and fast.best.candidate is not None
    rng = np.random.default_rng(0)
    for sizes in ({"b": 1, "h": 6}, {"b": 3, "h": 5}):
        sizes = {s: sizes[s] for s in traced.symbols()}
        arrays = [rng.standard_normal(t.bind(sizes)).astype(np.float32) for t in traced.input_types]
        (wanted,) = run_reference(traced, arrays, sizes, "float64")
        agrees(cupy, fast, arrays, wanted)


@pytest.mark.slow
def test_programs_have_them_in_kernels_with_what_follows(cupy: Any) -> None:
    def network(x: Any, k: Any, more: Any, bias: Any) -> Any:
        y = mi.relu(mi.convolution(x, k, padding=1, strides=2) + bias)
        return mi.relu(mi.convolution(y, more, padding=1) + y)

    specs = {"x": T("b", 4, 8, 8), "k": T(8, 4, 3, 3), "more": T(8, 8, 3, 3), "bias": T(8, 1, 1)}
    run = mi.compile(network, specs, target=TARGET, budget=BUDGET, cache=False, constants=["k", "more", "bias"], sizes={"b": 1})
    assert run.explain().count("3 operators, 1 kernel") == 2
    rng = np.random.default_rng(0)
    x, k, more, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 8, 8), (8, 4, 3, 3), (8, 8, 3, 3), (8, 1, 1)))
    wanted = mi.compile(network, specs, without=("superoptimize",))(x, k, more, bias)
    agrees(cupy, run, [x, k, more, bias], wanted)


def test_tensors_of_torch_give_tensors_of_torch(strict: StrictLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a torch whose CUDA memory is main memory, also where zeros around the first argument make it an array of CuPy."""
    torch = pytest.importorskip("torch", reason="needs torch")

    class Cuda(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True

        def get_device(self) -> int:
            return 0

    def known(t: Any) -> Any:
        strict.cupy.memory.append((t.data_ptr(), t.nbytes))
        return t.as_subclass(Cuda)

    made: list[Any] = []
    real = torch.empty

    def empty(shape: Any, *, dtype: Any, device: str) -> Any:
        made.append(known(real(shape, dtype=dtype)))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=31))
    fast = mi.superoptimize(padded, target=TARGET, budget=BUDGET, cache=False)
    x, k, bias = (torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in ((1, 4, 6, 7), (8, 4, 3, 3), (8, 1, 1)))
    wanted = torch.relu(torch.conv2d(x, k, padding=1) + bias)
    monkeypatch.setattr(torch, "empty", empty)
    taken: list[Any] = []
    using = strict.cupy.cuda.using_allocator

    def noted(allocator: Any) -> Any:
        taken.append(allocator)
        return using(allocator)

    monkeypatch.setattr(strict.cupy.cuda, "using_allocator", noted)
    found = fast(*map(known, (x, k, bias)))
    assert any(found is t for t in made)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    (malloc,) = set(taken)
    memory = malloc(64)
    assert memory.mem.owner is made[-1] and memory.ptr == made[-1].data_ptr() and made[-1].nbytes == 64
