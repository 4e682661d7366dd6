"""Compiled kernels on the device at hand: found, checked, and loaded once."""

from __future__ import annotations

import threading
from typing import Any

from mirage.errors import CompilerError, DeviceError
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import CudaDevice, find_cupy, present_device

#: bytes of shared memory per block beyond which a kernel must ask for it (CUDA C++ Programming Guide, "Shared Memory")
_SHARED_UNASKED = 48 << 10


def cupy_at_hand(name: str, device: CudaDevice, instead: str) -> Any:
    """CuPy, for a kernel `name` that was compiled for a device.

    Raises DeviceError where there is no device at hand, or one of another architecture: `instead` (a verb) with its target.
    """
    cupy, here = find_cupy(), present_device()
    if cupy is None or here is None:
        raise DeviceError(
            f"{name}: compiled for {device.arch}, and CuPy finds no CUDA device; install CuPy and a driver, or use target='cpu'"
        )
    if here.arch != device.arch:
        raise DeviceError(
            f"{name}: compiled for {device.arch}, and the device at hand, {here.name}, is {here.arch}; "
            f"{instead} with target='{here.target}'"
        )
    return cupy


class LoadedKernels:
    """Functions of compiled kernels, each loaded once per device. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, CompiledKernel], Any] = {}

    def get(self, cupy: Any, device: int, kernel: CompiledKernel) -> Any:
        """The kernel's function on CuPy's current device, which has this number.

        Raises CompilerError where the driver does not load it.
        """
        key = device, kernel
        with self._lock:
            if key not in self._functions:
                self._functions[key] = _load(cupy, kernel)
            return self._functions[key]


def _load(cupy: Any, kernel: CompiledKernel) -> Any:
    path = kernel.cubin
    try:
        function = cupy.RawModule(path=str(path)).get_function(kernel.name)
        if kernel.shared > _SHARED_UNASKED:
            function.max_dynamic_shared_size_bytes = kernel.shared
    except RuntimeError as e:
        # CuPy's errors of the driver
        raise CompilerError(
            f"kernel {kernel.name}: the driver does not load {path} ({e}); delete its folder, and it is compiled again"
        ) from e
    return function
