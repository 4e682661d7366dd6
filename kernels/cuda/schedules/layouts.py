"""Layouts of the kernel level for a schedule on a CUDA device (Mirage, section 6): which axis of the tensors between kernels is
innermost in memory, and of the copies that constants are read from. Both are chosen as the cost model finds best.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mirage.kernels.cpu.launch.packing import is_constant
from mirage.kernels.cuda.model.cost import CudaModel
from mirage.kernels.cuda.schedules.choices import Choices
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.mugraph.graph import MuGraph

#: share of the time that another layout must save
GAIN = 0.01


def with_layouts(
    mugraph: MuGraph, schedule: CudaSchedule, sizes: Mapping[str, int], model: CudaModel
) -> tuple[CudaSchedule, float]:
    """The schedule with the layouts of results that only other kernels read, and its modelled microseconds at these sizes of
    the dim symbols. One result after the other gets the axis that is best.
    """
    best, us = schedule, model.us(mugraph, schedule, sizes)
    results = {(r.node, r.out) for r in mugraph.kernel.outputs}
    numbers = [i for i, n in enumerate(mugraph.kernel.nodes) if n.graph is not None]
    for k, (i, node) in enumerate(zip(numbers, mugraph.kernels, strict=True)):
        for out in range(len(node.dims)):
            axes = node.axes(out)
            for a in axes[:-1] if (i, out) not in results else ():
                s = best.kernels[k]
                layouts = tuple(sorted({**dict(s.layouts), out: a}.items()))
                best, us = _better(mugraph, best, us, k, replace(s, layouts=layouts), sizes, model)
    return best, us


def with_packed(
    mugraph: MuGraph, schedule: CudaSchedule, constants: Collection[str], sizes: Mapping[str, int], model: CudaModel
) -> tuple[CudaSchedule, float] | None:
    """The schedule that reads constants from packed copies where these are faster, and its modelled microseconds; None where
    none is. `constants` are names of the program's inputs.
    """
    best, us = schedule, model.us(mugraph, schedule, sizes)
    for k, node in enumerate(mugraph.kernels):
        for operand, r in enumerate(node.operands):
            axes = mugraph.kernel.nodes[r.node].axes(r.out)
            if len(axes) < 2 or not is_constant(mugraph, node, operand, constants):
                continue
            # rows of whole 16 bytes may be all that is wanted
            for a in reversed(axes):
                s = best.kernels[k]
                packed = tuple(sorted({**dict(s.packed), operand: a}.items()))
                changed = _described(mugraph, best, k, replace(s, packed=packed), sizes, model)
                best, us = _better(mugraph, best, us, k, changed, sizes, model)
    return (best, us) if any(s.packed for s in best.kernels) else None


def _better(
    mugraph: MuGraph,
    schedule: CudaSchedule,
    us: float,
    k: int,
    kernel: CudaKernelSchedule,
    sizes: Mapping[str, int],
    model: CudaModel,
) -> tuple[CudaSchedule, float]:
    """The schedule with another k-th kernel, if that is faster, or as it was."""
    changed = replace(schedule, kernels=(*schedule.kernels[:k], kernel, *schedule.kernels[k + 1 :]))
    other = model.us(mugraph, changed, sizes)
    return (changed, other) if other < us * (1 - GAIN) else (schedule, us)


def _described(
    mugraph: MuGraph, schedule: CudaSchedule, k: int, s: CudaKernelSchedule, sizes: Mapping[str, int], model: CudaModel
) -> CudaKernelSchedule:
    """A kernel that uses descriptors, with those of what is packed now."""
    if not s.descriptors:
        return s
    node = mugraph.kernels[k]
    table = schedule.plain.axis_sizes(mugraph, sizes)
    return replace(s, descriptors=model.describable(model.work(node), Choices.of(s), table, mugraph.dtype))
