"""CuPy on a device that is not there: arrays in main memory, and kernels of `examples` that Python runs.

A launch unpacks the bytes of its arguments as the driver would, by the signature that the kernel was compiled with.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mirage.ir.types import DTYPES
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.compile.kernels import CompiledKernel

H200 = {
    "MultiProcessorCount": 132,
    "MaxSharedMemoryPerMultiprocessor": 233472,
    "MaxSharedMemoryPerBlockOptin": 232448,
    "MaxRegistersPerMultiprocessor": 65536,
    "MaxThreadsPerMultiProcessor": 2048,
    "L2CacheSize": 62914560,
}
_TYPES: dict[str, np.dtype] = {"i32": np.dtype(np.int32), "i64": np.dtype(np.int64)}


class FakeArray(np.ndarray):
    """An array of the fake device."""

    on: int = 0
    mem: Any = None

    def __new__(cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, on: int = 0) -> FakeArray:
        if memptr is None:
            made = super().__new__(cls, shape, dtype, strides=strides)
        else:
            assert memptr.mem.device_id >= 0
            size = max(memptr.mem.ptr + memptr.mem.size - memptr.ptr, 1)
            raw = (ctypes.c_byte * size).from_address(memptr.ptr)
            made = super().__new__(cls, shape, dtype, buffer=raw, strides=strides)
            # an array keeps its memory
            made.mem = memptr.mem
        made.on = on if memptr is None else memptr.mem.device_id
        return made

    def __array_finalize__(self, other: Any) -> None:
        self.on = getattr(other, "on", 0)

    @property
    def data(self) -> Any:
        low, high = np.lib.array_utils.byte_bounds(self)
        memory = SimpleNamespace(ptr=low, size=high - low, owner=self, device_id=self.on)
        return Pointer(memory, self.ctypes.data - low)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.on)


class Pointer:
    """A place in memory, which it keeps."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.mem, self.ptr - self.mem.ptr + offset)


@dataclass
class Launched:
    """One launch as it was recorded: the values of the arguments by name, and the two last addresses."""

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: dict[str, int]
    scratch: tuple[int, int]
    stream: int
    device: int


class FakeCupy:
    """The parts of CuPy that launching uses. `launches` records every kernel; `streams` is what is current."""

    ndarray: type[FakeArray] = FakeArray

    def __init__(self, attributes: Mapping[str, int] = H200) -> None:
        self.launches: list[Launched] = []
        self.loaded: list[Path] = []
        self.opted: dict[str, int] = {}
        self.compiled: dict[Path, tuple[CompiledKernel, Request]] = {}
        self.fails: Exception | None = None
        #: kernels that are being recorded; milliseconds that the device has worked, and those of one launch
        self.recording: list[Callable[[], None]] | None = None
        self.clock, self.milliseconds = 0.0, 1.0
        self.order: list[str] = []
        #: what runs kernels, the functions of this module by default; (address, bytes) of all memory
        self.runner: Callable[[Launched, Request], None] | None = None
        self.memory: list[tuple[int, int]] = []
        self._current = threading.local()
        self.allocated: list[int] = []
        #: bytes of the device's memory that are free
        self.free = 1 << 40
        runtime = SimpleNamespace(
            getDevice=lambda: self.device,
            memGetInfo=lambda: (self.free, 1 << 40),
            getDeviceCount=lambda: 2,
            getDeviceProperties=lambda i: {"name": b"Fake H200"},
            memcpyDeviceToDevice=3,
            memcpyAsync=self._copy,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=self._device,
            Stream=_Streams(self),
            Event=lambda: _Event(self),
            get_elapsed_time=lambda start, end: end.at - start.at,
            MemoryPool=lambda: SimpleNamespace(malloc=lambda size: self._alloc(size)),
            using_allocator=lambda allocator: self._using(allocator),
            get_current_stream=lambda: _Stream(self, self.stream),
            alloc=self._alloc,
            UnownedMemory=lambda ptr, size, owner, device_id: SimpleNamespace(
                ptr=ptr, size=size, owner=owner, device_id=device_id
            ),
            MemoryPointer=Pointer,
        )
        self.attributes, self.capability = attributes, "90"

    @property
    def device(self) -> int:
        return int(getattr(self._current, "device", 0))

    @property
    def stream(self) -> int:
        return int(getattr(self._current, "stream", 0))

    def _device(self, index: int) -> Any:
        return _Entered(
            lambda: self._entered("device", index),
            id=index,
            attributes=self.attributes,
            compute_capability=self.capability,
        )

    def _stream(self, handle: int) -> _Stream:
        return _Stream(self, handle)

    @contextmanager
    def _using(self, allocator: Any) -> Iterator[None]:
        self.order.append("own memory")
        yield
        self.order.append("shared memory")

    @contextmanager
    def _entered(self, what: str, value: int) -> Iterator[None]:
        before = getattr(self, what)
        setattr(self._current, what, value)
        try:
            yield
        finally:
            setattr(self._current, what, before)

    def _alloc(self, size: int) -> Any:
        self.allocated.append(size)
        # neither zeros nor aligned
        held = np.full(size + 8, 0x5A, np.uint8)
        self.memory.append((held.ctypes.data, held.nbytes))
        return SimpleNamespace(ptr=held.ctypes.data + 8, held=held)

    def _copy(self, to: int, address: int, size: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (3, self.stream) and self.recording is None
        ctypes.memmove(to, address, size)

    def empty(self, shape: Sequence[int], dtype: Any) -> FakeArray:
        made = self.ndarray(tuple(shape), dtype, on=self.device)
        made.view(np.ndarray).reshape(-1).view(np.uint8)[...] = 0x5A
        # that of an empty array may be given to kernels, too
        self.memory.append((made.ctypes.data, max(made.nbytes, 8)))
        return made

    def zeros(self, shape: Sequence[int], dtype: Any) -> FakeArray:
        made = self.empty(shape, dtype)
        made[...] = 0
        return made

    def asarray(self, x: Any, on: int = 0) -> FakeArray:
        if hasattr(x, "__cuda_array_interface__"):
            x = x.array
        elif not isinstance(x, FakeArray):
            # from main memory to the device's
            x = np.array(x)
        made = np.asarray(x).view(self.ndarray)
        made.on = on
        low, high = np.lib.array_utils.byte_bounds(made)
        self.memory.append((low, max(high - low, 8)))
        return made

    def from_dlpack(self, x: Any) -> FakeArray:
        return self.asarray(x.array)

    def asnumpy(self, x: FakeArray) -> np.ndarray:
        return np.array(x)

    def ascontiguousarray(self, x: FakeArray) -> FakeArray:
        return np.ascontiguousarray(x).view(self.ndarray)

    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        return np.broadcast_to(x, shape)

    def RawModule(self, *, path: str) -> Any:
        if self.fails is not None:
            raise self.fails
        self.loaded.append(Path(path))
        kernel, request = self.compiled[Path(path).parent]
        return SimpleNamespace(get_function=lambda name: _Function(self, kernel, request, name))


class _Entered:
    """What may be current again and again."""

    ptr: int

    def __init__(self, context: Callable[[], Any], **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._context = context
        self._entered: list[Any] = []

    def __enter__(self) -> Any:
        self._entered.append(self._context())
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class _Stream(_Entered):
    def __init__(self, cupy: FakeCupy, handle: int) -> None:
        super().__init__(lambda: cupy._entered("stream", handle), ptr=handle)
        self._cupy = cupy

    def record(self) -> _Event:
        return _Event(self._cupy)

    def wait_event(self, event: _Event) -> None:
        self._cupy.order.append("wait")

    def synchronize(self) -> None:
        self._cupy.order.append("synchronize")

    def begin_capture(self) -> None:
        self._cupy.recording = []

    def end_capture(self) -> Any:
        recorded, self._cupy.recording = self._cupy.recording or [], None
        if self._cupy.fails is not None:
            raise self._cupy.fails

        def launch(stream: _Stream | None = None) -> None:
            with stream or _Stream(self._cupy, self._cupy.stream):
                for kernel in recorded:
                    kernel()

        return SimpleNamespace(launch=launch)


class _Streams:
    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy

    def __call__(self, non_blocking: bool) -> _Stream:
        assert non_blocking, "the default stream cannot be captured, and others wait for it"
        return _Stream(self._cupy, 1000)

    def from_external(self, stream: Any) -> _Stream:
        return _Stream(self._cupy, stream.__cuda_stream__()[1])


class _Event:
    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.at = 0.0

    def record(self, stream: _Stream) -> None:
        assert stream.ptr == self._cupy.stream
        self.at = self._cupy.clock

    def synchronize(self) -> None:
        self._cupy.order.append("event")


class _Function:
    def __init__(self, cupy: FakeCupy, kernel: CompiledKernel, request: Request, name: str) -> None:
        assert name == kernel.name
        self._cupy, self._kernel, self._request = cupy, kernel, request
        self._shared = 49152

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._shared = self._cupy.opted[self._kernel.name] = value

    def __call__(self, grid: Any, block: Any, arguments: Sequence[Any], *, shared_mem: int) -> None:
        cupy, request = self._cupy, self._request
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "a launch that the driver refuses"
        kinds = [*request.signature.items(), ("global scratch", "*"), ("profile scratch", "*")]
        data = b"".join(np.asarray(a).tobytes() for a in arguments)
        values, at = {}, 0
        for name, kind in kinds:
            dtype: np.dtype = _TYPES.get(kind, np.dtype(np.uint64))
            values[name] = int(np.frombuffer(data[at : at + dtype.itemsize], dtype)[0])
            at += dtype.itemsize
        assert at == len(data) and len(kinds) == len(arguments), "as many bytes as the kernel takes"
        scratch = values.pop("global scratch"), values.pop("profile scratch")
        for name in request.divisible:
            assert values[name] % 16 == 0, f"{name} was promised to be a multiple of 16"
        if cupy.recording is not None:
            cupy.recording.append(lambda: self(grid, block, arguments, shared_mem=shared_mem))
            return
        cupy.clock += cupy.milliseconds
        launched = Launched(self._kernel, grid, block, shared_mem, values, scratch, cupy.stream, cupy.device)
        cupy.launches.append(launched)
        (cupy.runner or _by_hand)(launched, request)


def _by_hand(launched: Launched, request: Request) -> None:
    KERNELS[request.function](launched.values, request)


def memory(address: int, shape: Sequence[int], strides: Sequence[int], kind: str) -> np.ndarray:
    """The elements that a kernel sees at an address; strides in elements, `kind` as in a signature."""
    dtype = {"*fp32": DTYPES["float32"], "*fp16": DTYPES["float16"], "*bf16": DTYPES["bfloat16"]}[kind]
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))
    low = sum((n - 1) * min(s, 0) for n, s in zip(shape, strides, strict=True))
    raw = (ctypes.c_byte * (span * dtype.itemsize)).from_address(address + low * dtype.itemsize)
    steps = [s * dtype.itemsize for s in strides]
    return np.ndarray(tuple(shape), dtype, memoryview(raw).cast("B"), -low * dtype.itemsize, steps)


def _scale(v: Mapping[str, int], r: Request) -> None:
    shape, s = (v["m"], v["n"]), r.signature
    x = memory(v["x"], shape, (v["x_stride"], v["x_step"]), s["x"])
    w = memory(v["w"], shape[1:], (1,), s["w"])
    memory(v["y"], shape, (v["y_stride"], 1), s["y"])[...] = x * w


def _matmul(v: Mapping[str, int], r: Request) -> None:
    m, n, k, s = v["m"], v["n"], v["k"], r.signature
    x = memory(v["x"], (m, k), (v["x_stride"], 1), s["x"]).astype(np.float32)
    y = memory(v["y"], (k, n), (v["y_stride"], 1), s["y"]).astype(np.float32)
    memory(v["z"], (m, n), (v["z_stride"], 1), s["z"])[...] = x @ y


def _partial_sums(v: Mapping[str, int], r: Request) -> None:
    x, length = memory(v["x"], (v["n"],), (1,), r.signature["x"]), v["length"]
    parts = memory(v["parts"], (8,), (1,), "*fp32")
    parts[...] = [x[i * length : (i + 1) * length].astype(np.float32).sum() for i in range(8)]


def _add_up(v: Mapping[str, int], r: Request) -> None:
    memory(v["y"], (1,), (1,), r.signature["y"])[...] = memory(v["parts"], (8,), (1,), "*fp32").sum()


KERNELS: dict[str, Callable[[Mapping[str, int], Request], None]] = {
    "scale": _scale,
    "matmul": _matmul,
    "partial_sums": _partial_sums,
    "add_up": _add_up,
}


class Interfaced:
    """Another library's array, by one of the protocols."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] | None = None) -> None:
        self.array = array
        if device is None:
            self.__cuda_array_interface__: Any = {}
        else:
            self.__dlpack_device__ = lambda: device
            self.__dlpack__ = lambda **_: None
