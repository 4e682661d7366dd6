"""Launching on a fake device: arguments, workspaces, layouts, streams, threads, errors; and on the real one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage.errors import CompilerError, DeviceError, InputError
from mirage.ir.types import DTYPES
from mirage.kernels.cuda import device as devices
from mirage.kernels.cuda.emitted import DeviceOutput
from mirage.kernels.cuda.launch import loaded
from mirage.kernels.decision import Limit
from tests.kernels.cuda import examples
from tests.kernels.cuda.fake_cupy import FakeArray, Interfaced
from tests.kernels.cuda.lab import Lab, from_gpu, on_gpu, real

SIZES = {"m": 3, "n": 20}


def test_results(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    x, w = lab.random(3, 20), lab.random(20, seed=1)
    (y,) = run([x, w], SIZES)
    np.testing.assert_array_equal(y, x * w)
    assert isinstance(y, FakeArray) and y.dtype == np.float32
    assert run.source == examples.SCALE


def test_a_launch(lab: Lab) -> None:
    lab.metadata = {"shared": 100_000, "num_warps": 8}
    run = lab.executable(examples.scale(block=16))
    x, w = lab.random(3, 20), lab.random(20)
    (y,) = run([x, w], SIZES)
    (launched,) = lab.cupy.launches
    assert launched.grid == (2, 3, 1) and launched.block == (256, 1, 1), "warps are those of the compiled kernel"
    assert launched.shared == 100_000 and lab.cupy.opted == {"scale": 100_000}
    assert launched.values == {
        "x": x.data.ptr,
        "w": w.data.ptr,
        "y": y.data.ptr,
        "m": 3,
        "n": 20,
        "x_stride": 20,
        "x_step": 1,
        "y_stride": 20,
    }
    assert launched.scratch == (0, 0)
    run([x, w], SIZES)
    assert len(lab.cupy.loaded) == 1, "loaded once"


def test_little_shared_memory_needs_no_attribute(lab: Lab) -> None:
    lab.metadata = {"shared": 49152}
    lab.executable(examples.scale())([lab.random(3, 20), lab.random(20)], SIZES)
    assert lab.cupy.opted == {} and lab.cupy.launches[0].shared == 49152


def test_scratch_of_every_block(lab: Lab) -> None:
    lab.metadata = {"global_scratch_size": 384, "profile_scratch_size": 128, "num_ctas": 2}
    lab.executable(examples.scale(block=16))([lab.random(3, 20), lab.random(20)], SIZES)
    (launched,) = lab.cupy.launches
    assert launched.grid == (4, 3, 1)
    first, second = launched.scratch
    assert first % 256 == second % 256 == 0
    assert second - first >= 2 * 3 * 2 * 384
    (size,) = lab.cupy.allocated
    assert size >= 2 * 3 * 2 * (384 + 128)


def test_tensors_between_kernels(lab: Lab) -> None:
    run = lab.executable(examples.total("bfloat16"), "bfloat16", n=1000)
    x = lab.random(1000, dtype="bfloat16")
    (y,) = run([x], {"n": 1000})
    assert y.shape == () and y.dtype == DTYPES["bfloat16"]
    assert float(y) == pytest.approx(x.astype(np.float64).sum(), rel=1e-2)
    first, second = lab.cupy.launches
    assert first.values["parts"] == second.values["parts"] != second.values["y"]
    assert first.values["parts"] % 256 == 0 and first.values["length"] == 125


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_strides_are_read_in_place(lab: Lab, dtype: str) -> None:
    run = lab.executable(examples.scale(dtype), dtype)
    base, w = lab.random(40, 6, dtype=dtype), lab.random(20, dtype=dtype)
    for x in (base[::2, ::2].T, base[::-2, ::2].T[:, :], base[:20, :3].T):
        (y,) = run([x, w], SIZES)
        np.testing.assert_array_equal(y, x * w)
        assert lab.cupy.launches[-1].values["x"] == x.data.ptr
    repeated = np.broadcast_to(base[0, :1], (3, 20)).view(FakeArray)
    np.testing.assert_array_equal(run([repeated, w], SIZES)[0], repeated * w)
    assert lab.cupy.allocated == [], "nothing was copied"


def test_an_input_with_distant_neighbours_is_copied(lab: Lab) -> None:
    run = lab.executable(examples.matmul("float16"), "float16", m=4, n=6, k=5)
    sizes = {"m": 4, "n": 6, "k": 5}
    x, y = lab.random(5, 4, dtype="float16").T, lab.random(5, 6, dtype="float16")
    (z,) = run([x, y], sizes)
    np.testing.assert_allclose(z.astype(np.float64), x.astype(np.float64) @ y.astype(np.float64), rtol=2e-3, atol=1e-3)
    values = lab.cupy.launches[0].values
    assert values["x"] != x.data.ptr and values["x_stride"] == 5 and values["y"] == y.data.ptr
    one = lab.random(1, 5, dtype="float16")[:, ::5]
    run([one, y[:1]], {"m": 1, "n": 6, "k": 1})
    assert lab.cupy.launches[1].values["x"] == one.data.ptr, "one element has no neighbours"


def test_out(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    x, w, out = lab.random(3, 20), lab.random(20), lab.cupy.empty((3, 20), np.float32)
    (y,) = run([x, w], SIZES, out=[out])
    assert y is out and lab.cupy.launches[0].values["y"] == out.data.ptr
    np.testing.assert_array_equal(out, x * w)


def test_out_of_other_strides_is_filled_by_a_copy(lab: Lab) -> None:
    run = lab.executable(examples.scale("bfloat16"), "bfloat16")
    x, w = lab.random(3, 20, dtype="bfloat16"), lab.random(20, dtype="bfloat16")
    wide = lab.cupy.zeros((20, 6), DTYPES["bfloat16"])
    out = wide[:, ::2].T
    assert run([x, w], SIZES, out=[out])[0] is out
    np.testing.assert_array_equal(wide[:, ::2].T, x * w)
    assert not wide[:, 1::2].any(), "and nothing else is written"


def test_results_that_are_rearranged(lab: Lab) -> None:
    """The product transposed with a new dim, twice; the product itself; and an input."""
    e = examples.scale()
    turned = DeviceOutput(2, (("n",), ("k",), ("m",)), (examples.N, examples.K, examples.M))
    flat = DeviceOutput(2, (("m", "n"),), (examples.M * examples.N,))
    given = DeviceOutput(1, (("m",), ("n",)), (examples.M, examples.N))
    e = replace(e, outputs=(turned, *e.outputs, turned, flat, given), axes={**e.axes, "k": examples.K})
    sizes = {**SIZES, "k": 2}
    x, w = lab.random(3, 20), lab.random(20)
    first, y, second, third, fourth = lab.executable(e, "float32", **sizes)([x, w], sizes)
    np.testing.assert_array_equal(y, x * w)
    want = np.broadcast_to((x * w).T[:, None, :], (20, 2, 3))
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, want)
    assert not np.may_share_memory(first, second)
    np.testing.assert_array_equal(third, (x * w).reshape(-1))
    np.testing.assert_array_equal(fourth, np.broadcast_to(w, (3, 20)))
    assert lab.cupy.launches[0].values["y"] == y.data.ptr, "the one in the tensor's order is written in place"


def test_one_argument_that_two_inputs_read(lab: Lab) -> None:
    e = examples.scale()
    square = replace(e, tensors=(e.tensors[0], replace(e.tensors[0], name="w"), e.tensors[2]))
    x = lab.random(1, 20)
    run = lab.executable(square)
    first, second = run.mugraph.inputs
    run.mugraph = replace(run.mugraph, inputs=(first, replace(second, argument=first.name)))
    np.testing.assert_array_equal(run([x], {"m": 1, "n": 20})[0], x * x)
    with pytest.raises(InputError, match="takes 1 arrays, got 2"):
        run([x, x], {"m": 1, "n": 20})


def test_empty_arrays(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    (y,) = run([lab.random(0, 20), lab.random(20)], {"m": 0, "n": 20})
    assert y.shape == (0, 20) and lab.cupy.launches == []


def test_empty_arrays_are_copied_nowhere(lab: Lab) -> None:
    """A transposed input that a kernel wants contiguous, and results that it does not write itself."""
    e = examples.matmul("float32")
    turned = DeviceOutput(2, (("n",), ("m",)), (examples.N, examples.M))
    run = lab.executable(replace(e, outputs=(turned,)), "float32", m=4, n=6, k=5)
    for m, n, k in ((0, 6, 5), (4, 0, 5), (4, 6, 0)):
        x, y = lab.random(k, m).T, lab.random(k, n)
        (z,) = run([x, y], {"m": m, "n": n, "k": k})
        np.testing.assert_array_equal(z, np.zeros((n, m)))
    assert [one.values["k"] for one in lab.cupy.launches] == [0]


# ---- variants for alignments ----


def test_alignment_decides_which_kernel_runs(lab: Lab) -> None:
    run = lab.executable(examples.scale(), m=4, n=32)
    assert lab.requests[0].divisible == {"x", "w", "y", "n", "x_stride", "y_stride"}
    base = lab.random(5, 64)
    w = lab.random(33)
    at = -base.data.ptr // 4 % 4  # elements to the next multiple of 16 bytes
    sizes = {"m": 4, "n": 32}
    for x, v in ((base[:4, at : at + 32], w[:32]), (base[:4, at + 1 : at + 33], w[1:33])):
        (y,) = run([x, v], sizes)
        np.testing.assert_array_equal(y, x * v)
        promised = next(r for k, r in lab.cupy.compiled.values() if k == lab.cupy.launches[-1].kernel).divisible
        assert ("x" in promised) == (x.data.ptr % 16 == 0) and ("w" in promised) == (v.data.ptr % 16 == 0)
    assert {r.function for r in lab.requests} == {"scale"}
    count = len(lab.requests)
    run([base[:4, at : at + 32], w[:32]], sizes)
    assert len(lab.requests) == count, "each is compiled, and planned, once"


def test_plans_are_bounded(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    for n in range(1, 200):
        run([lab.random(1, n), lab.random(n)], {"m": 1, "n": n})
    assert len(run._plans) <= 64
    assert len(lab.cupy.loaded) <= 4


# ---- arrays of other libraries, and streams ----


def test_protocols(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    x, w = lab.random(3, 20), lab.random(20)
    want = np.asarray(x * w)
    for device in (None, (2, 0), (13, 0)):
        (y,) = run([Interfaced(x, device), Interfaced(w, device)], SIZES)
        assert isinstance(y, FakeArray)
        np.testing.assert_array_equal(y, want)
        assert lab.cupy.launches[-1].values["x"] == x.data.ptr


@pytest.mark.parametrize("bad", [np.ones((3, 20), np.float32), [[1.0]], 1.0, None, Interfaced(np.ones(3), (1, 0))])
def test_arrays_in_main_memory(lab: Lab, bad: Any) -> None:
    run = lab.executable(examples.scale())
    with pytest.raises(InputError, match=r"example: input x: \w+ is (no array on|not in the memory of) a CUDA"):
        run([bad, lab.random(20)], SIZES)
    with pytest.raises(InputError, match=r"example: out\[0\]"):
        run([lab.random(3, 20), lab.random(20)], SIZES, out=[bad])
    assert lab.cupy.launches == []


def test_an_object_whose_protocol_fails(lab: Lab) -> None:
    class Broken:
        @property
        def __cuda_array_interface__(self) -> Any:
            return {}

        @property
        def array(self) -> Any:
            raise ValueError("moved away")

    with pytest.raises(InputError, match="Broken cannot be read in place \\(moved away\\)"):
        lab.executable(examples.scale())([Broken(), lab.random(20)], SIZES)


class OtherStream:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class TorchStream:
    cuda_stream = 77


@pytest.mark.parametrize(("stream", "handle"), [(None, 5), (OtherStream(42), 42), (TorchStream(), 77), (9, 9), (0, 0)])
def test_streams(lab: Lab, stream: Any, handle: int) -> None:
    run = lab.executable(examples.scale())
    with lab.cupy._stream(5):
        run([lab.random(3, 20), lab.random(20)], SIZES, stream=stream)
        assert lab.cupy.launches[0].stream == handle
        assert lab.cupy.stream == 5, "and what was current is current again"


@pytest.mark.parametrize("stream", ["default", -1, True, object()])
def test_no_streams(lab: Lab, stream: Any) -> None:
    with pytest.raises(InputError, match="no CUDA stream"):
        lab.executable(examples.scale())([lab.random(3, 20), lab.random(20)], SIZES, stream=stream)
    assert lab.cupy.launches == []


def test_tensors_of_torch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a torch whose CUDA memory is main memory: they are told apart by `is_cuda` alone."""
    torch = pytest.importorskip("torch", reason="needs torch")
    entered: list[int] = []

    class Cuda(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True

        def get_device(self) -> int:
            return 0

    class Stream:
        def __init__(self, handle: int = 31, device: int = 0) -> None:
            self.cuda_stream = handle

        def __enter__(self) -> None:
            entered.append(self.cuda_stream)

        def __exit__(self, *error: Any) -> None:
            entered.append(-self.cuda_stream)

    real = torch.empty

    def empty(shape: Any, *, dtype: Any, device: str) -> Any:
        assert device == "cuda:0"
        return real(shape, dtype=dtype).as_subclass(Cuda)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: s)
    lab.metadata = {"global_scratch_size": 128}
    run = lab.executable(examples.scale("bfloat16"), "bfloat16")
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).bfloat16().T.requires_grad_().as_subclass(Cuda)
    w = torch.arange(20).bfloat16().as_subclass(Cuda)
    (y,) = run([x, w], SIZES)
    assert isinstance(y, Cuda) and y.dtype == torch.bfloat16
    assert torch.equal(y.as_subclass(torch.Tensor), (x * w).detach().as_subclass(torch.Tensor))
    assert lab.cupy.launches[0].values["x"] == x.data_ptr() and lab.cupy.launches[0].stream == 31
    assert entered == [] and lab.cupy.allocated == [], "memory is of torch's pool"
    run([x, w], SIZES, stream=12)
    assert lab.cupy.launches[1].stream == 12 and entered == [12, -12], "it is torch's current stream, too"
    with pytest.raises(InputError, match=r"input w: Tensor is not in the memory of a CUDA device.*to\('cuda'\)"):
        run([x, w.as_subclass(torch.Tensor)], SIZES)


# ---- bound calls, threads ----


def test_a_bound_call_runs_again_on_new_contents(lab: Lab) -> None:
    e = examples.matmul("float32")
    run = lab.executable(e, "float32", m=4, n=6, k=5)
    x, y = lab.random(5, 4).T, lab.random(5, 6)
    bound = run.bind([x, y], {"m": 4, "n": 6, "k": 5})
    assert lab.cupy.launches == []
    for seed in range(3):
        x[...] = np.random.default_rng(seed).standard_normal(x.shape)
        bound.launch()
        np.testing.assert_allclose(bound.results[0], x @ y, rtol=1e-5, atol=1e-5)
    assert len({tuple(one.values.items()) for one in lab.cupy.launches}) == 1
    assert len(lab.cupy.allocated) == 1


def test_calls_from_many_threads(lab: Lab) -> None:
    run = lab.executable(examples.total(), n=100)
    failures: list[Any] = []

    def call(seed: int) -> None:
        for i in range(30):
            n = 50 + (seed * 7 + i) % 40
            x = lab.random(n, seed=seed)
            with lab.cupy._stream(seed):
                (y,) = run([x], {"n": n})
            if abs(float(y) - np.asarray(x, np.float64).sum()) > 1e-4:
                failures.append((seed, n))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == [] and len(lab.cupy.launches) == 6 * 30 * 2
    by_stream = {(one.stream, one.values["parts"]) for one in lab.cupy.launches}
    assert {s for s, _ in by_stream} == set(range(6))


# ---- errors ----


def test_wrong_arrays(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    x, w = lab.random(3, 20), lab.random(20)
    cases: list[tuple[list[Any], Mapping[str, int], str]] = [
        ([x], SIZES, "takes 2 arrays, got 1"),
        ([x, w.astype(np.float64).view(FakeArray)], SIZES, "input w has dtype float64, not float32"),
        ([x, w[:19]], SIZES, r"input w has shape \(19,\), but the sizes make it \(20,\)"),
        ([x[0], w], SIZES, r"input x has shape \(20,\)"),
        ([x, lab.cupy.asarray(np.asarray(w), on=1)], SIZES, "input w is on CUDA device 1, and the first array on 0"),
    ]
    for inputs, sizes, message in cases:
        with pytest.raises(InputError, match=f"example: ?{message}|example: takes"):
            run(inputs, sizes)
    outs: list[tuple[list[Any], str]] = [
        ([], r"out has 0 arrays; pass 1"),
        ([lab.random(20, 3)], r"out\[0\] has shape \(20, 3\)"),
        ([lab.random(3, 20, dtype="float16")], r"out\[0\] has dtype float16"),
        ([np.broadcast_to(lab.random(20), (3, 20)).view(FakeArray)], r"out\[0\] is broadcast"),
    ]
    for out, message in outs:
        with pytest.raises(InputError, match=message):
            run([x, w], SIZES, out=out)
    assert lab.cupy.launches == []


def test_strides_that_are_no_whole_elements(lab: Lab) -> None:
    packed = np.zeros(3 * 20 * 5 + 8, np.uint8)
    odd = np.ndarray((3, 20), np.float32, packed.data, strides=(100, 5)).view(FakeArray)
    with pytest.raises(InputError, match=r"input x: strides \(100, 5\) are no whole numbers of elements of 4 bytes"):
        lab.executable(examples.scale())([odd, lab.random(20)], SIZES)


def test_sizes_without_room(lab: Lab) -> None:
    run = lab.executable(replace(examples.scale(), limits=(Limit("n", examples.N, 64),)))
    assert run.serves({"m": 1, "n": 64}) and not run.serves({"m": 1, "n": 65})
    with pytest.raises(InputError, match="axis n has 65 elements, and this schedule has room for 64"):
        run([lab.random(1, 65), lab.random(65)], {"m": 1, "n": 65})


def test_no_device(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lab.executable(examples.scale())
    monkeypatch.setattr(devices, "find_cupy", lambda: None)
    monkeypatch.setattr(loaded, "find_cupy", lambda: None)
    with pytest.raises(DeviceError, match=r"example: compiled for sm_90, and CuPy finds no CUDA device.*target='cpu'"):
        run([lab.random(3, 20), lab.random(20)], SIZES)


def test_a_device_of_another_architecture(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    lab.cupy.capability = "80"
    with pytest.raises(DeviceError, match=r"compiled for sm_90, .* Fake H200, is sm_80; .*target='cuda:sm_80'"):
        run([lab.random(3, 20), lab.random(20)], SIZES)


def test_a_cubin_that_does_not_load(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    lab.cupy.fails = RuntimeError("CUDA_ERROR_INVALID_IMAGE")
    with pytest.raises(CompilerError, match=r"kernel scale: .*CUDA_ERROR_INVALID_IMAGE.*delete its folder"):
        run([lab.random(3, 20), lab.random(20)], SIZES)


# ---- on a device ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (130, 70, 50), (1, 33, 1000), (512, 512, 512)])
def test_products_on_the_device(cupy: Any, dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    run = real(examples.matmul(dtype), dtype, m=512, n=512, k=512)
    x, y = on_gpu(cupy, m, k, dtype=dtype), on_gpu(cupy, k, n, dtype=dtype, seed=1)
    (z,) = run([x, y], {"m": m, "n": n, "k": k})
    want = from_gpu(x) @ from_gpu(y)
    scale = np.abs(want).max()
    assert np.abs(from_gpu(z) - want).max() < {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype] * scale


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_layouts_on_the_device(cupy: Any, dtype: str) -> None:
    run = real(examples.scale(dtype), dtype, **SIZES)
    base, w = on_gpu(cupy, 41, 7, dtype=dtype), on_gpu(cupy, 20, dtype=dtype)
    for x in (base[:40:2, :6:2].T, base[40:0:-2, :3].T, base[1:21, 1:4].T):
        (y,) = run([x, w], SIZES)
        np.testing.assert_allclose(from_gpu(y), from_gpu(cupy.ascontiguousarray(x)) * from_gpu(w), rtol=1e-2)
    out, x = on_gpu(cupy, 20, 3, dtype=dtype).T, base[:20, :3].T
    run([x, w], SIZES, out=[out])
    want = from_gpu(cupy.ascontiguousarray(x)) * from_gpu(w)
    np.testing.assert_allclose(from_gpu(cupy.ascontiguousarray(out)), want, rtol=1e-2)


@pytest.mark.gpu
def test_two_kernels_on_the_device_and_another_stream(cupy: Any) -> None:
    run = real(examples.total(), "float32", n=1 << 20)
    x = on_gpu(cupy, 1 << 20)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        (y,) = run([x], {"n": 1 << 20})
    stream.synchronize()
    assert float(y) == pytest.approx(from_gpu(x).sum(), abs=1e-1)
    (again,) = run([x], {"n": 1 << 20}, stream=stream)
    stream.synchronize()
    assert float(again) == float(y)


@pytest.mark.gpu
def test_torch_on_the_device(cupy: Any) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    run = real(examples.scale("bfloat16"), "bfloat16", **SIZES)
    x, w = torch.randn(20, 3, device="cuda").bfloat16().T, torch.randn(20, device="cuda").bfloat16()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (y,) = run([x, w], SIZES)
    side.synchronize()
    assert y.is_cuda and torch.equal(y, x * w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (static,) = run([x, w], SIZES)
    x.copy_(torch.randn(3, 20, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(static, x * w)
