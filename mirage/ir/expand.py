"""Expansion of composite operators into the ones that have an axis rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy

from mirage.ir.gradient import Backward, Cotangents, Value
from mirage.ir.operator import Attrs, Operator, get_operator
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType

if TYPE_CHECKING:
    from mirage.ir.arithmetic import Arithmetic


@dataclass(frozen=True)
class _Made:
    """What a node was made of: an operator, or windows of the windows ... of its result."""

    operator: Operator
    args: Sequence[int]
    attrs: Attrs
    windows: tuple[Attrs, ...] = ()


class ExpandingBuilder(ProgramBuilder):
    """A builder in which composite operators never appear: they are expanded as they are added.

    Windows of what operators compute become what these compute of windows, where they have a rule for that.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._made: dict[int, _Made] = {}

    def op(self, op: str, *inputs: int, where: str = "", **attrs: Any) -> int:
        definition = get_operator(op)
        checked = definition.check_attrs(attrs)
        made = _Made(definition, inputs, checked)
        result = definition.expand(self, inputs, checked)
        if result is None and op == "windows" and (of := self._made_of(inputs[0])) is not None:
            made = replace(of, windows=(*of.windows, checked))
            result = of.operator.of_windows(self, of.args, of.attrs, made.windows)
        if result is None:
            return super().op(op, *inputs, where=where, **attrs)
        if type(made.operator).of_windows is not Operator.of_windows:
            self._made.setdefault(result, made)
        return result

    def _made_of(self, i: int) -> _Made | None:
        n = self.nodes[i]
        return self._made.get(i) or (None if n.op == "input" else _Made(get_operator(n.op), n.inputs, n.attr))


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


def operator_gradient(op: Operator, b: Backward) -> Cotangents:
    """The cotangents of the operands of an operator: by its own rule, or by those of what it expands into.

    Raises GradientError where there is neither.
    """
    if type(op).gradient is not Operator.gradient or type(op).expand is Operator.expand:
        return op.gradient(b)
    program = ProgramBuilder(op.name)
    inputs = [program.input(f"x{i}", t) for i, t in enumerate(b.types())]
    out = op.expand(program, inputs, b.attrs)
    assert out is not None
    nodes = program.nodes[: out + 1]
    values: list[Value] = list(b.args)
    for n in nodes[len(values) : out]:
        values.append(b.op(n.op, *(values[i] for i in n.inputs), **n.attr))
    values.append(b.out)
    wanted = list(b.wanted)
    for n in nodes[len(wanted) :]:
        wanted.append(any(wanted[i] for i in n.inputs))
    found: list[Value | None] = [None] * len(nodes)
    found[out] = b.g
    for k in reversed(range(len(inputs), len(nodes))):
        n, g = nodes[k], found[k]
        if g is None or not wanted[k]:
            continue
        step = Backward(b, [values[i] for i in n.inputs], values[k], n.attr, g, [wanted[i] for i in n.inputs])
        for i, cotangent in zip(n.inputs, operator_gradient(get_operator(n.op), step), strict=True):
            if cotangent is not None and wanted[i]:
                before = found[i]
                found[i] = cotangent if before is None else b.add(before, cotangent)
    return found[: len(inputs)]
