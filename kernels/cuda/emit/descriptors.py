"""Tensor descriptors of a kernel (`tl.make_tensor_descriptor`): blocks of a tensor that the hardware of sm_90 and later moves.

The copy engine (TMA) fills what is past the end of an axis with zeros, and stores nothing there: such loads and stores need no
masks, no addresses per element, and no registers on their way to shared memory (PTX ISA, "cp.async.bulk.tensor"). Elsewhere
Triton turns them into loads and stores through pointers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage.errors import ScheduleError
from mirage.kernels.cuda.emit.plan import BlockPlan, Tensor
from mirage.kernels.cuda.emit.values import Dims, Group
from mirage.kernels.cuda.emitted import DIVISIBILITY

#: dims of a descriptor (Triton's tl.make_tensor_descriptor; cuTensorMapEncodeTiled has 5 at most)
LEAST, MOST = 2, 5


@dataclass(frozen=True)
class Descriptor:
    """How a block tensor is described: the tensor's axes that are dims of the descriptor, in the tensor's order, and those of
    which the block sees one element, whose positions go to the address. `dims` are those of the block, a dim per group.
    """

    axes: tuple[str, ...]
    fixed: Mapping[str, str]
    dims: Dims


def plan_operand(plan: BlockPlan, operand: int) -> Descriptor | str:
    """The descriptor of an operand of a kernel, or why there is none."""
    return _plan(plan, plan.inputs[operand], {})


def plan_result(plan: BlockPlan, result: int) -> Descriptor | str:
    """The descriptor of a result of a kernel, or why there is none."""
    tensor = plan.outputs[result]
    if held := [a for a in tensor.axes if a in plan.space.rooms]:
        return f"the block puts it together along {held[0]}"
    return _plan(plan, tensor, {p: f"g_{plan.names[a]}" for p, a in plan.partial().items() if p in tensor.axes})


def _plan(plan: BlockPlan, tensor: Tensor, fixed: Mapping[str, str]) -> Descriptor | str:
    """`fixed` gives the positions of blocks along axes that the block graph does not have, those of partial results."""
    group_of = {a: g for g in plan.space.groups for a in g}
    axes = tuple(a for a in tensor.axes if a in group_of)
    single = [a for a in tensor.axes if a not in group_of and a not in fixed]
    if moving := [a for a in single if a in plan.graph.loop]:
        return f"a loop along {moving[0]} sees one element at a time"
    if not LEAST <= len(axes) <= MOST:
        return f"descriptors have {LEAST} to {MOST} dims, and the block has {len(axes)} of this tensor"
    if tensor.unit < 0 or tensor.dims[tensor.unit][-1] != axes[-1]:
        return "the block sees one element along its contiguous axis"
    if plan.space.tiles[axes[-1]] * tensor.dtype.itemsize < DIVISIBILITY:
        return f"the tile of {axes[-1]} has less than {DIVISIBILITY} bytes"
    groups = list(dict.fromkeys(group_of[a] for a in axes))
    if [a for g in groups for a in g] != list(axes):
        return "axes that are one dim of block tensors are apart in memory"
    return Descriptor(axes, {**fixed, **dict.fromkeys(single, "")}, tuple((Group(g),) for g in groups))


def describable(plan: BlockPlan) -> tuple[int, ...]:
    """The operands of a kernel, and then its results, that descriptors can describe (`CudaKernelSchedule.descriptors`)."""
    read = sorted(
        {n.attr["index"] for i, n in enumerate(plan.graph.nodes) if n.op == "input" and i not in plan.block.computed}
    )
    found = [k for k in read if isinstance(plan_operand(plan, k), Descriptor)]
    count = len(plan.inputs)
    return (*found, *(count + k for k in range(len(plan.outputs)) if isinstance(plan_result(plan, k), Descriptor)))


def check_descriptor(plan: BlockPlan, found: Descriptor | str, what: str) -> Descriptor:
    """Raises ScheduleError where there is no descriptor."""
    if isinstance(found, str):
        raise ScheduleError(
            f"kernel {plan.number}: {what} has no tensor descriptor: {found}; leave it out of descriptors"
        )
    return found
