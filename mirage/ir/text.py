"""Programs as text, in Python's syntax; printing and parsing are inverse.

    def attend(q: float32[b, s, 64], k: float32[b, t, 64]) -> float32[b, s, t]:
        v0 = transpose(k, perm=(0, 2, 1))
        v1 = matmul(q, v0)
        v2 = constant(value=1/8)
        v3 = mul(v1, v2)
        return v3

One operator per line, applied to names, attributes by keyword. Dims are expressions over integers and names.
A number is an integer, an exact quotient such as 1/3, or a decimal such as 0.1: the nearest binary64 value.
Text is read with `ast`; nothing in it is ever executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from mirage.errors import MirageError, ParseError
from mirage.ir.dims import dim_text
from mirage.ir.operator import get_operator
from mirage.ir.program import Node, Program, ProgramBuilder
from mirage.ir.syntax import at, expected, parse_statements, read_attribute, read_type
from mirage.ir.types import TensorType, shape_text

#: longest text that is parsed, in characters
MAX_TEXT = 1_000_000


def print_program(program: Program) -> str:
    """The program as text that `parse_program` reads back to an equal one."""
    names = _value_names(program)
    params = ", ".join(f"{n}: {t}" for n, t in zip(program.input_names, program.input_types, strict=True))
    types = ", ".join(map(str, program.output_types))
    returns = types if len(program.outputs) == 1 else f"({types})"
    lines = [f"def {program.name}({params}) -> {returns}:"]
    for name, node in zip(names, program.nodes, strict=True):
        if node.op != "input":
            lines.append(f"    {name} = {_call(node, names)}")
    lines.append(f"    return {', '.join(names[i] for i in program.outputs)}")
    return "\n".join(lines) + "\n"


def _value_names(program: Program) -> list[str]:
    """Inputs keep their names; the rest are v0, v1, ... with a prefix that no input has."""
    prefix = "v"
    while any(n.startswith(prefix) and n[len(prefix) :].isdigit() for n in program.input_names):
        prefix += "v"
    names: list[str] = []
    count = 0
    for node in program.nodes:
        if node.op == "input":
            names.append(node.attr["name"])
        else:
            names.append(f"{prefix}{count}")
            count += 1
    return names


def _call(node: Node, names: list[str]) -> str:
    return f"{node.op}({', '.join([*(names[i] for i in node.inputs), *attribute_texts(node.op, node.attrs)])})"


def attribute_texts(op: str, attrs: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """The canonical attributes of an operator as text: `axis=-1`."""
    kinds = {a.name: a.kind for a in get_operator(op).attributes}
    return tuple(f"{name}={attr_text(kinds[name], value)}" for name, value in attrs)


def attr_text(kind: str, value: Any) -> str:
    """The text of a canonical attribute value of a kind."""
    match kind:
        case "number":
            return number_text(value)
        case "dim":
            return dim_text(value)
        case "ints" | "dims":
            return tuple_text(str(v) if kind == "ints" else dim_text(v) for v in value)
    return repr(value)


def tuple_text(items: Iterable[str]) -> str:
    """The items as a tuple of Python."""
    found = list(items)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def number_text(value: Fraction) -> str:
    """Exact text of a number: an integer, a decimal where that is exact in binary64, else a quotient."""
    if value.denominator < 1000 and abs(value.numerator) < 10**6:
        return str(value)
    return repr(float(value)) if Fraction(float(value)) == value else str(value)


def parse_program(text: str) -> Program:
    """The program that the text describes.

    Raises ParseError, with the line, where the text is not of the form above; and the errors of operators
    (ShapeError, UnknownOperator and others) with the line in front.
    """
    body = parse_statements(text, MAX_TEXT)
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        line = body[1].lineno if len(body) > 1 and isinstance(body[0], ast.FunctionDef) else 1
        raise ParseError(f"line {line}: expected one function, def NAME(x: float32[n], ...):")
    return _Parser(body[0]).parse()


class _Parser:
    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree
        self.builder = ProgramBuilder(tree.name)
        self.values: dict[str, int] = {}

    def parse(self) -> Program:
        self.parameters()
        *statements, last = self.tree.body
        for s in statements:
            self.assignment(s)
        if not isinstance(last, ast.Return):
            expected(last, "return NAME, ... as the last line")
        elements = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        try:
            program = self.builder.finish([self.value(e, last) for e in elements])
        except MirageError as e:
            raise at(last, e) from None
        self.check_returns(program)
        return program

    def parameters(self) -> None:
        a = self.tree.args
        if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs or a.defaults:
            expected(self.tree, "parameters of the form NAME: float32[n, 64] only")
        for p in a.args:
            if p.annotation is None:
                expected(p, f"a type, {p.arg}: float32[n, 64]")
            try:
                self.values[p.arg] = self.builder.input(p.arg, read_type(p.annotation))
            except MirageError as e:
                raise at(p, e) from None

    def assignment(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=op)) as call):
                pass
            case _:
                expected(s, "NAME = operator(NAME, ..., attribute=VALUE)")
        if target in self.values:
            raise ParseError(f"line {s.lineno}: {target!r} is assigned twice; give each value its own name")
        inputs = [self.value(x, s) for x in call.args]
        try:
            kinds = {a.name: a.kind for a in get_operator(op).attributes}
            attrs: dict[str, Any] = {}
            for k in call.keywords:
                if k.arg is None:
                    expected(s, "attributes by name, not **")
                # an unknown name is refused by the operator, whatever its value
                attrs[k.arg] = read_attribute(kinds[k.arg], k.value, k.arg) if k.arg in kinds else None
            self.values[target] = self.builder.op(op, *inputs, **attrs)
        except MirageError as e:
            raise at(s, e) from None

    def value(self, node: ast.expr | None, statement: ast.stmt) -> int:
        if not isinstance(node, ast.Name):
            expected(node or statement, "the name of a parameter or of an earlier value")
        if node.id not in self.values:
            known = ", ".join(list(self.values)[-6:]) or "none"
            raise ParseError(f"line {node.lineno}: {node.id!r} is not defined; the latest values are {known}")
        return self.values[node.id]

    def check_returns(self, program: Program) -> None:
        given = self.tree.returns
        if given is None:
            return
        try:
            types = tuple(read_type(t) for t in (given.elts if isinstance(given, ast.Tuple) else [given]))
        except MirageError as e:
            raise at(given, e) from None
        if types != program.output_types:
            raise ParseError(
                f"line {given.lineno}: the result is declared as {_types_text(types)}, "
                f"but its lines compute {_types_text(program.output_types)}; correct one of them"
            )


def _types_text(types: tuple[TensorType, ...]) -> str:
    return ", ".join(f"{t.dtype}[{shape_text(t.shape)}]" for t in types)
