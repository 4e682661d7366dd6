"""Whole programs on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL
from mirage.kernels.cuda.device import find_cupy
from tests.api.cuda_programs import SCALED, compiled, scaled, softmax, tupled

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")


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
