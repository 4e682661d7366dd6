"""CUTLASS kernels of one configuration on the device at hand, on CuPy's current stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mirage.errors import CompilerError, NoCompilerError, ScheduleError
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked
from mirage.kernels.cuda.device import CudaDevice, find_cupy
from mirage.kernels.cuda.gemm.compile import compile_gemms
from mirage.kernels.cuda.gemm.gemm import Gemm, GemmCall, GemmConfig
from mirage.kernels.cuda.launch.loaded import LoadedKernels


class Gemms:
    """Kernels of a configuration for a device, compiled when they are first asked for. May be used from several threads."""

    def __init__(self, config: GemmConfig, device: CudaDevice) -> None:
        self.config = config
        self.device = device
        self._lock = threading.Lock()
        self._compiled: dict[Gemm, CompiledKernel | None] = {}
        self._loaded = LoadedKernels()

    def compile(self, gemms: Sequence[Gemm]) -> tuple[CompiledKernel, ...]:
        """These kernels.

        Raises NoCompilerError where one is not in the cache and nvidia-cutlass-dsl is not installed, CompilerError where one is
        rejected, ScheduleError where the device has less shared memory than one needs.
        """
        kernels = checked(compile_gemms(gemms, self.device), self.device)
        with self._lock:
            self._compiled.update(zip(gemms, kernels, strict=True))
        return kernels

    def launch(self, gemm: Gemm, call: GemmCall, held: Sequence[Any]) -> bool:
        """Enqueue a kernel on the arrays `held`, whose addresses are in `call`; False where there is no such kernel."""
        kernel = self._kernel(gemm)
        if kernel is None:
            return False
        cupy = find_cupy()
        assert cupy is not None and held
        function = self._loaded.get(cupy, cupy.cuda.runtime.getDevice(), kernel)
        function(call.grid(gemm.config), (gemm.config.threads, 1, 1), call.arguments(), shared_mem=kernel.shared)
        return True

    def _kernel(self, gemm: Gemm) -> CompiledKernel | None:
        with self._lock:
            known = gemm in self._compiled
        if not known:
            try:
                self.compile([gemm])
            except (CompilerError, NoCompilerError, ScheduleError):
                # neither in the cache nor to be compiled here: the library computes it
                with self._lock:
                    self._compiled[gemm] = None
        return self._compiled[gemm]
