"""Random programs that use a few tensors again and again, and the same program written in another way."""

from __future__ import annotations

from random import Random

from mirage.errors import ShapeError
from mirage.ir.axes import AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.canonical import Renaming
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor


def shared_program(rng: Random, operators: int = 5) -> Program:
    """Matmuls, transposes, sums and elementwise operators over a few tensors that are used again and again."""
    b = ProgramBuilder("shared")
    shapes = [("m", "k"), ("m", "m"), ("k", "k"), ("k", 2), ("m",)]
    values = [b.input(f"x{i}", tensor(*rng.choice(shapes))) for i in range(rng.randint(1, 2))]
    for _ in range(operators):
        x, y = rng.choice(values), rng.choice(values)
        rank = len(b.type(x).shape)
        match rng.randrange(7):
            case 0:
                values.append(b.op(rng.choice(["exp", "square"]), x))
            case 1 if rank == 2:
                values.append(b.op("transpose", x, perm=(1, 0)))
            case 2 if rank == 2:
                values.append(
                    b.op(rng.choice(["sum", "mean"]), x, axes=(rng.randrange(2),), keepdims=rng.random() < 0.5)
                )
            case 3 if rank == 1:
                size = b.type(x).shape[0]
                values.append(b.op("reshape", x, shape=rng.choice([(size, 1), (1, size)])))
            case 4 if rank == 2:
                values.append(b.op("softmax", x, axis=rng.randrange(2)))
            case 5 | 6:
                try:
                    values.append(b.op(rng.choice(["matmul", "matmul", "add", "mul"]), x, y))
                except ShapeError:
                    continue
    return b.finish(values[-1:] + rng.sample(values, rng.randrange(2)))


def rewritten(p: AxisProgram, rng: Random) -> tuple[AxisProgram, Renaming]:
    """The program with other names, inputs in another order, and values computed in another order."""
    symbols = sorted({s.name for d in p.axes.values() for s in d.free_symbols})
    names = rng.sample([f"q{i}" for i in range(50)], len(symbols))
    order = rng.sample(range(len(p.inputs)), len(p.inputs))
    axes = rng.sample(list(p.axes), len(p.axes))
    new_axes = dict(zip(axes, rng.sample([f"b{i}" for i in range(80)], len(axes)), strict=True))
    at = {k: new for new, k in enumerate(order)}
    r = Renaming(new_axes, dict(zip(symbols, names, strict=True)), tuple(at[k] for k in range(len(order))))
    inputs = [i for i, n in enumerate(p.nodes) if n.op == "input"]
    sequence = [inputs[k] for k in order]
    rest = [i for i in range(len(p.nodes)) if i not in inputs]
    while rest:
        i = rng.choice([i for i in rest if set(p.nodes[i].operands) <= set(sequence)])
        rest.remove(i)
        sequence.append(i)
    place = {i: k for k, i in enumerate(sequence)}

    def rename(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new_axes[a] for a in names)

    def node(i: int) -> AxisNode:
        n = p.nodes[i]
        attrs = n.attrs
        if n.op == "input":
            attrs = (("name", f"z{place[i]}"),)
        if n.op == "size":
            attrs = (("dim", r.dim(n.attr["dim"])),)
        joined = None if n.joined is None else (new_axes[n.joined[0]], rename(n.joined[1]))
        kept = tuple(a for a in new_axes.values() if a in rename(n.axes))
        return AxisNode(n.op, tuple(place[j] for j in n.operands), attrs, kept, rename(n.reduce)[::-1], joined)

    first = {p.inputs[i].argument: f"z{k}" for k, i in reversed(list(enumerate(order)))}
    found = AxisProgram(
        "other",
        {new: r.dim(p.axes[a]) for a, new in new_axes.items()},
        tuple(
            AxisInput(f"z{k}", tuple(rename(d) for d in p.inputs[i].dims), first[p.inputs[i].argument])
            for k, i in enumerate(order)
        ),
        tuple(node(i) for i in sequence),
        tuple(AxisOutput(place[o.value], tuple(rename(d) for d in o.dims)) for o in p.outputs),
        p.dtype,
    )
    return found, r
