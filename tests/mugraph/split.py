"""A muGraph whose two matmuls are split along the same axis, in kernels of their own."""

from __future__ import annotations

from mirage.ir.axes import to_axes
from mirage.mugraph.graph import Ref
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.mugraph.graphs import Case, P, S, W, accumulate, block, gated_program, kernel, mugraph, node, one, reads

MN = ("m", "n")
SPLIT_SIZES = {"m": 3, "n": 7, "k": 11}


def twice_split() -> Case:
    """A gated MLP: each matmul in a kernel that splits k over the grid; a third one sums the parts of both."""
    program = gated_program()
    p = to_axes(program)
    x, w = (v.dims for v in p.inputs[:2])
    parts = one("k.grid", *MN)

    body = block([*reads(x, w), node("matmul", (0, 1), MN, reduce=("k",)), accumulate(2, "k", MN)], (3,), m=P, n=P, k=S)
    last = block(
        [
            *reads(parts, parts),
            node("sum", (0,), MN, reduce=("k.grid",)),
            node("sum", (1,), MN, reduce=("k.grid",)),
            node("silu", (2,), MN),
            node("mul", (4, 3), MN),
        ],
        (5,),
        m=P, n=P, k_grid=W,
    )  # fmt: skip
    kernels = [
        kernel(body, (Ref(0), Ref(1)), parts),
        kernel(body, (Ref(0), Ref(2)), parts),
        kernel(last, (Ref(3), Ref(4)), p.outputs[0].dims),
    ]
    schedule = Schedule(
        (
            KernelSchedule((("m", 2), ("n", 3), ("k", 2)), (("k", 3),)),
            KernelSchedule((("m", 1), ("n", 5), ("k", 4)), (("k", 3),)),
            KernelSchedule((("m", 2), ("n", 3))),
        )
    )
    return Case(program, mugraph(p, kernels, Ref(5), name="twice_split"), schedule, SPLIT_SIZES)
