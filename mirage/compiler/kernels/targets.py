"""What makes kernels for which target."""

from __future__ import annotations

from mirage.compiler.kernels.cpu_maker import CpuKernels
from mirage.compiler.kernels.cuda_maker import CudaKernels
from mirage.compiler.kernels.maker import KernelMaker
from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import get_target


def kernels_for(target: str) -> KernelMaker:
    """What makes kernels for the target of that name; raises UnknownTarget."""
    machine = get_target(target)
    return CudaKernels(machine) if isinstance(machine, CudaTarget) else CpuKernels()
