"""A program by CUTLASS kernels, in the configuration that the model prefers, with library calls for what they leave."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mirage.errors import LibraryError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.program import Program
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.gemm.gemm import configs
from mirage.kernels.cuda.gemm.launch import Gemms
from mirage.kernels.cuda.gemm.model import calls_us
from mirage.kernels.cuda.gemm.plan import CutlassProgram
from mirage.kernels.library import NUMPY, Arrays


def cutlass_program(
    program: Program, sizes: Mapping[str, int], device: CudaDevice, arrays: Arrays | None = None
) -> CutlassProgram:
    """The program with its kernels, compiled; its other calls are those of `arrays`, by default CuPy's.

    Raises LibraryError where no kernel serves these sizes, NoCompilerError where one is neither in the cache nor to be compiled,
    CompilerError where one is rejected.
    """
    axis_program = to_axes(program)
    extents = {a: evaluate(d, sizes) for a, d in axis_program.axes.items()}
    plans = {c: CutlassProgram(axis_program, Gemms(c, device), NUMPY).plan for c in configs(device)}
    times = {c: calls_us(p, extents, program.dtype, device, {}) for c, p in plans.items() if p.steps}
    best = min(times, key=lambda c: times[c], default=None)
    if best is None or times[best] == inf:
        raise LibraryError(f"{program.name}: no CUTLASS kernel serves a product of it at these sizes")
    gemms = Gemms(best, device)
    gemms.compile([s.gemm for s in plans[best].steps])
    return CutlassProgram(axis_program, gemms, arrays)
