"""Kernels for the processor: muGraphs and loop programs as C code, NumPy and BLAS as libraries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mirage.compiler.kernels.fused import fused_kernel
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kernels.mugraph import MuGraphKernel, kernel_from_text
from mirage.ir.program import Program
from mirage.kernels.cpu.tuning import machine_model
from mirage.kernels.target import Target, get_target
from mirage.results.cpu.result import Superoptimized


class CpuKernels(KernelMaker):
    """See `KernelMaker`."""

    def __init__(self, machine: Target | None = None) -> None:
        super().__init__(machine or get_target("cpu"))

    def superoptimized(self, result: Superoptimized) -> MuGraphKernel:
        return MuGraphKernel.of_result(result)

    def from_text(self, text: str) -> MuGraphKernel:
        return kernel_from_text(text)

    def fused(
        self,
        program: Program,
        hints: Sequence[Mapping[str, int]],
        *,
        bounds: Mapping[str, int] | None = None,
        constants: Collection[str] = (),
    ) -> MuGraphKernel | None:
        def make() -> MuGraphKernel | None:
            return fused_kernel(program, hints, machine_model(), bounds=bounds, constants=constants)

        if self.kept is None:
            return make()
        sizes = [*map(dict, hints), dict(bounds or {})]
        parts = [str([sorted(at.items()) for at in sizes]), str([name in constants for name in program.input_names])]
        return self.kept.get(program, parts, make)

    def library(self, program: Program) -> MuGraphKernel:
        return MuGraphKernel.of_library(program)


maker = CpuKernels
