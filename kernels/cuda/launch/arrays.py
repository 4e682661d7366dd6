"""Arrays of any library on a CUDA device, read in place, and the streams that calls run on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.arguments import contiguous

#: kinds of devices as DLPack numbers them: CUDA memory, and CUDA memory that is managed
_DLPACK_CUDA = (2, 13)


@dataclass(frozen=True)
class DeviceArray:
    """Memory on a device: the address of the first element, shape and strides in elements, name of the element type, and the
    device's number. `owner` keeps the memory.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    owner: Any = field(repr=False, compare=False)

    @property
    def is_contiguous(self) -> bool:
        """Whether it has the strides of a contiguous array, where they matter."""
        together = zip(self.shape, self.strides, contiguous(self.shape), strict=True)
        return 0 in self.shape or all(n == 1 or have == want for n, have, want in together)


def is_torch(x: Any) -> bool:
    """Whether an array is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def device_of(cupy: Any, x: Any) -> int:
    """The number of the device that an array says it is on; that of CuPy's current one where it says none."""
    if is_torch(x) and x.is_cuda:
        return int(x.get_device())
    if isinstance(x, cupy.ndarray):
        return int(x.device.id)
    if hasattr(x, "__dlpack_device__") and (found := x.__dlpack_device__())[0] in _DLPACK_CUDA:
        return int(found[1])
    return int(cupy.cuda.runtime.getDevice())


def read(cupy: Any, x: Any, what: str) -> DeviceArray:
    """An array of CuPy, a CUDA tensor of torch, or anything with `__cuda_array_interface__` or DLPack, without copying.

    What such an object's own library has still to write into it is waited for, by CuPy, as these protocols say. Raises
    InputError, which begins with `what`, for anything else and for arrays in main memory.
    """
    try:
        if is_torch(x):
            return _read_torch(x, what)
        if not isinstance(x, cupy.ndarray):
            if not hasattr(x, "__cuda_array_interface__"):
                if isinstance(x, np.ndarray | np.generic) or not hasattr(x, "__dlpack__"):
                    raise InputError(
                        f"{what}: {type(x).__name__} is no array on a CUDA device; copy it with cupy.asarray"
                    )
                if x.__dlpack_device__()[0] not in _DLPACK_CUDA:
                    raise _in_main_memory(x, what)
                x = cupy.from_dlpack(x)
            else:
                x = cupy.asarray(x)
    except InputError:
        raise
    except Exception as e:
        # the object's own code runs here, and may raise anything
        raise InputError(f"{what}: {type(x).__name__} cannot be read in place ({e}); pass an array of CuPy") from e
    size = x.dtype.itemsize
    if any(s % size for s in x.strides):
        raise InputError(
            f"{what}: strides {x.strides} are no whole numbers of elements of {size} bytes; copy the array"
        )
    strides = tuple(s // size for s in x.strides)
    return DeviceArray(int(x.data.ptr), tuple(x.shape), strides, _dtype_name(x.dtype), int(x.device.id), x)


@cache
def _dtype_name(dtype: Any) -> str:
    # NumPy takes microseconds for it
    return str(dtype)


def _read_torch(x: Any, what: str) -> DeviceArray:
    if not x.is_cuda:
        raise _in_main_memory(x, what)
    x = x.detach().resolve_neg()
    strides = tuple(x.stride())
    return DeviceArray(
        x.data_ptr(), tuple(x.shape), strides, _dtype_name(x.dtype).removeprefix("torch."), x.get_device(), x
    )


def torch_layout(x: Any) -> tuple[Any, ...] | None:
    """The address, shape, strides and type of a tensor of torch; None where it is not read in place on a device: the memory of
    lazily negated tensors, which is read without its sign, is a copy.
    """
    if not x.is_cuda or x.layout is not sys.modules["torch"].strided or x.is_neg():
        return None
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def _in_main_memory(x: Any, what: str) -> InputError:
    return InputError(
        f"{what}: {type(x).__name__} is not in the memory of a CUDA device; copy it there, as with x.to('cuda')"
    )


def view(cupy: Any, a: DeviceArray, dtype: Any = None) -> Any:
    """The memory as an array of CuPy, of the NumPy type `dtype` of the same size where one is given."""
    kind = ELEMENTS[a.dtype] if dtype is None else np.dtype(dtype)
    # none of an empty array
    span = max(1 + sum((n - 1) * abs(s) for n, s in zip(a.shape, a.strides, strict=True)), 0)
    memory = cupy.cuda.UnownedMemory(a.address, span * kind.itemsize, a.owner, a.device)
    strides = tuple(s * kind.itemsize for s in a.strides)
    return cupy.ndarray(a.shape, dtype=kind, memptr=cupy.cuda.MemoryPointer(memory, 0), strides=strides)


def bits(cupy: Any, a: DeviceArray) -> Any:
    """The memory as an array of CuPy of unsigned integers, which every version copies whatever they stand for."""
    return view(cupy, a, f"u{ELEMENTS[a.dtype].itemsize}")


def empty(cupy: Any, like: Any, shape: Sequence[int], dtype: str, device: int) -> tuple[Any, DeviceArray]:
    """A new array of the library of `like`, torch or else CuPy, and what it is on the device."""
    if is_torch(like):
        torch = sys.modules["torch"]
        made = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=f"cuda:{device}")
        return made, _read_torch(made, "result")
    made = cupy.empty(tuple(shape), ELEMENTS[dtype])
    return made, read(cupy, made, "result")


def allocate(cupy: Any, like: Any, size: int, device: int) -> tuple[int, Any]:
    """The address of so many bytes, and what keeps them: memory of torch's pool for its tensors (as what its own CUDA graphs
    record must be), else of CuPy's.
    """
    if is_torch(like):
        torch = sys.modules["torch"]
        tensor = torch.empty((size,), dtype=torch.uint8, device=f"cuda:{device}")
        return tensor.data_ptr(), tensor
    memory = cupy.cuda.alloc(size)
    return int(memory.ptr), memory


@contextmanager
def memory_of(cupy: Any, like: Any, device: int) -> Iterator[None]:
    """Within it, CuPy takes its memory as `allocate` does."""
    if not is_torch(like):
        yield
        return

    def malloc(size: int) -> Any:
        address, owner = allocate(cupy, like, size, device)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, owner, device), 0)

    with cupy.cuda.using_allocator(malloc):
        yield


def stream_handle(stream: Any) -> int:
    """The cudaStream_t of a stream: one with `__cuda_stream__`, one of CuPy or torch, or the number itself.

    Raises InputError for anything else.
    """
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for name in ("ptr", "cuda_stream"):
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    raise InputError(f"stream: {type(stream).__name__} is no CUDA stream; pass one of CuPy or torch, or its handle")


def current_stream(cupy: Any, like: Any, device: int) -> int:
    """The handle of the current stream, on a device, of the library of an array: torch's, or else CuPy's."""
    if is_torch(like):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    return int(cupy.cuda.get_current_stream().ptr)


def external_stream(cupy: Any, handle: int) -> Any:
    """A stream of any library as one of CuPy."""
    return cupy.cuda.Stream.from_external(_Handle(handle))


class _Handle:
    """A stream of another library, by the protocol that CuPy reads."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@contextmanager
def on_stream(cupy: Any, like: Any, device: int, stream: Any = None) -> Iterator[int]:
    """Within it, a device and a stream are CuPy's current ones; yields the stream's handle.

    The stream is the given one, which is torch's current one, too, if `like` is a tensor of torch; else the current stream of
    the library of `like`.
    """
    with ExitStack() as stack:
        stack.enter_context(cupy.cuda.Device(device))
        if stream is None:
            handle = current_stream(cupy, like, device)
        else:
            handle = stream_handle(stream)
            if is_torch(like):
                torch = sys.modules["torch"]
                stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)))
        if stream is not None or is_torch(like):
            stack.enter_context(external_stream(cupy, handle))
        yield handle
