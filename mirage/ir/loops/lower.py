"""Operators, and programs of operators, as loop programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage.ir.loops.fuse import Call, fuse
from mirage.ir.loops.program import LoopProgram, extra_dims, single
from mirage.ir.loops.simplify import simplify_program
from mirage.ir.operator import Attrs, Operator, get_operator
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType


def lower_operator(op: str, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> LoopProgram | None:
    """The loop-level definition of an operator for operands `x0`, `x1`, ... of these types; None if it has none.

    Scalar constants among the operands and as a result (dtype "scalar") take the type of the other operands, float64
    where there are none.
    """
    dtype = get_operator(op).scalar_dtype(types)
    typed = [_typed(t, dtype) for t in types]
    found = get_operator(op).to_loops(typed, attrs, _typed(out, dtype))
    if found is None:
        return None
    program = found if isinstance(found, LoopProgram) else single(op, typed, found)
    asked = get_operator(op).requirements(typed, attrs)
    needs = (*program.needs, *(replace(n, what=f"{op}: {n.what}") for n in asked))
    extra = extra_dims(program.input_types, [e for _, e in program.stages], needs)
    return simplify_program(replace(program, needs=needs, dims=extra))


def _typed(type: TensorType, dtype: str) -> TensorType:
    return TensorType(type.shape, dtype) if type.dtype == "scalar" else type


def lower_program(program: Program) -> LoopProgram | None:
    """A program of operators as one loop program over its inputs; None if an operator has no loop-level definition."""
    inputs = [f"x{i}" for i in range(len(program.input_types))]
    unread = iter(inputs)
    values: list[str] = []
    calls: list[Call] = []
    for number, node in enumerate(program.nodes):
        if node.op == "input":
            values.append(next(unread))
            continue
        types = [_typed(program.nodes[i].type, program.dtype) for i in node.inputs]
        lowered = lower_operator(node.op, types, node.attr, _typed(node.type, program.dtype))
        if lowered is None:
            return None
        values.append(f"v{number}")
        calls.append(Call(lowered, tuple(values[i] for i in node.inputs), (values[-1],)))
    fused = fuse(program.name, calls, [values[i] for i in program.outputs])
    missing = tuple((n, t) for n, t in zip(inputs, program.input_types, strict=True) if n not in dict(fused.inputs))
    order = {n: k for k, n in enumerate(inputs)}
    every = tuple(sorted((*fused.inputs, *missing), key=lambda x: order[x[0]]))
    return replace(fused, inputs=every)


def lower_expansion(op: Operator, types: Sequence[TensorType], attrs: Attrs) -> LoopProgram | None:
    """An operator that is defined by others (see `Operator.expand`)."""
    b = ProgramBuilder(op.name)
    args = [b.input(f"x{i}", t) for i, t in enumerate(types)]
    result = op.expand(b, args, attrs)
    return None if result is None else lower_program(b.finish([result]))
