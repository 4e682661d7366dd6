"""Expansion of composite operators into the ones that have an axis rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy

from mirage.ir.operator import Attrs, Operator, get_operator
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType

if TYPE_CHECKING:
    from mirage.ir.arithmetic import Arithmetic


class ExpandingBuilder(ProgramBuilder):
    """A builder in which composite operators never appear: they are expanded as they are added."""

    def op(self, op: str, *inputs: int, where: str = "", **attrs: Any) -> int:
        definition = get_operator(op)
        result = definition.expand(self, inputs, definition.check_attrs(attrs))
        return super().op(op, *inputs, where=where, **attrs) if result is None else result


def expand(program: Program) -> Program:
    """The same program without composite operators."""
    b = ExpandingBuilder(program.name)
    new: list[int] = []
    for n in program.nodes:
        if n.op == "input":
            new.append(b.input(n.attr["name"], n.type))
        else:
            new.append(b.op(n.op, *(new[i] for i in n.inputs), where=n.where, **n.attr))
    return b.finish([new[i] for i in program.outputs])


def evaluate_expansion(
    op: Operator, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
) -> Any:
    """Evaluate a composite operator on arrays through its expansion at these concrete shapes."""
    from mirage.ir.interpret import evaluate_nodes

    b = ExpandingBuilder(op.name)
    ins = [b.input(f"x{i}", TensorType(tuple(sympy.Integer(n) for n in s))) for i, s in enumerate(shapes)]
    out = b.op(op.name, *ins, **attrs)
    return evaluate_nodes(b.nodes, list(args), ar, inside=True)[out]
