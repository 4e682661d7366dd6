"""Loop programs as text, in Python's syntax; `mirage.ir.loops.parse` reads it back.

    def softmax(x0: float32[n, m]) -> float32[n, m]:
        @max
        def largest(i0) -> float32[n]:
            for r0 in range(m):
                yield x0[i0, r0]
        ...
        def out(i0, i1) -> float32[n, m]:
            t0 = x0[i0, i1] - largest[i0]
            return exp(t0) / total[i0]
        return out

One function per stage, from the indices of an element to its value; a reduction combines what its loops yield. Names
such as `t0` are values that are used several times. Extra dims follow a `*`; `dim(2*n)` is a dim as a value. A number
takes the type of what it is combined with, or is written `float32(2.0)`. What sizes have to fulfil is written before the
stages: `assert k <= n, "slice: the stop is within the dim"`. The operators that the program stands for may follow, as a
function of the graph IR (`mirage.ir.graph.text`). Text is read with `ast`; nothing in it is ever executed.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from fractions import Fraction

from mirage.ir.dims import dim_text
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import (
    ARITHMETIC,
    COMPARISONS,
    EXTREMES,
    LOGICAL,
    Apply,
    Binary,
    Cast,
    Checked,
    Const,
    Loop,
    Read,
    Scalar,
    Select,
    Size,
    Unary,
)
from mirage.ir.loops.traverse import walk
from mirage.ir.trees import expression

#: an expression as deep as this is given a name: Python reads no text that is nested without bound
_DEEPEST = 16

#: what operators of expressions are in Python's syntax, for printing and parsing
OPERATORS: dict[str, ast.operator] = {
    "add": ast.Add(),
    "sub": ast.Sub(),
    "mul": ast.Mult(),
    "div": ast.Div(),
    "floordiv": ast.FloorDiv(),
    "mod": ast.Mod(),
}
RELATIONS: dict[str, ast.cmpop] = {
    "lt": ast.Lt(),
    "le": ast.LtE(),
    "gt": ast.Gt(),
    "ge": ast.GtE(),
    "eq": ast.Eq(),
    "ne": ast.NotEq(),
}
CONNECTIVES: dict[str, ast.boolop] = {"and": ast.And(), "or": ast.Or()}
assert OPERATORS.keys() == ARITHMETIC.keys() and RELATIONS.keys() == COMPARISONS.keys()
assert tuple(CONNECTIVES) == LOGICAL


def print_loops(program: LoopProgram) -> str:
    """The program as text that `parse_loops` reads back to an equal one."""
    parameters = [f"{n}: {t}" for n, t in program.inputs]
    parameters += ["*", *program.dims] if program.dims else []
    types = ", ".join(map(str, program.output_types))
    returns = types if len(program.outputs) == 1 else f"({types})"
    used = {*program.symbols, *(n for n, _ in program.inputs), *(n for n, _ in program.stages)}
    used |= {loop for _, s in program.stages for loop in s.extents}
    prefix = "t"
    while any(n.startswith(prefix) and n[len(prefix) :].isdigit() for n in used):
        prefix += "t"
    lines = [f"def {program.name}({', '.join(parameters)}) -> {returns}:"]
    lines += [f"    assert {dim_text(n.small)} <= {dim_text(n.large)}, {n.what!r}" for n in program.needs]
    for name, stage in program.stages:
        lines += [f"    {line}" for line in _stage_lines(name, stage, prefix)]
    lines.append(f"    return {', '.join(program.outputs)}")
    return "\n".join(lines) + "\n" + program.operators


def _stage_lines(name: str, stage: TensorExpr, prefix: str) -> list[str]:
    lines = [f"@{stage.combiner}"] if stage.reduce else []
    lines.append(f"def {name}({', '.join(stage.loops)}) -> {stage.type}:")
    for depth, (loop, extent) in enumerate(stage.reduce):
        lines.append(f"{'    ' * (depth + 1)}for {loop} in range({dim_text(extent)}):")
    indent = "    " * (len(stage.reduce) + 1)
    printer = _Printer(stage.body, prefix)
    lines += [f"{indent}{line}" for line in printer.lines]
    lines.append(f"{indent}{'yield' if stage.reduce else 'return'} {printer.result}")
    return lines


class _Printer:
    """An expression as assignments to names and a result."""

    def __init__(self, body: Scalar, prefix: str) -> None:
        uses = Counter(o for n in walk(body) for o in n.operands)
        self.lines: list[str] = []
        done: dict[Scalar, ast.expr] = {}
        depths: dict[Scalar, int] = {}
        for n in walk(body):
            printed = self.print(n, done)
            depths[n] = 1 + max((depths[o] for o in n.operands), default=0)
            if n is not body and n.operands and (uses[n] > 1 or depths[n] > _DEEPEST):
                name = f"{prefix}{len(self.lines)}"
                self.lines.append(f"{name} = {ast.unparse(printed)}")
                printed, depths[n] = ast.Name(name), 1
            done[n] = printed
        self.result = ast.unparse(done[body])

    def print(self, n: Scalar, done: dict[Scalar, ast.expr]) -> ast.expr:
        def together(*operands: Scalar) -> list[ast.expr]:
            """Operands of one type: numbers among them need none of their own."""
            bare = any(not isinstance(o, Const) for o in operands)
            return [_literal(o) if bare and isinstance(o, Const) else done[o] for o in operands]

        def index(i: Scalar) -> ast.expr:
            return _literal(i) if isinstance(i, Const) else done[i]

        match n:
            case Const():
                return _literal(n) if n.dtype == "bool" else _call(n.dtype, _literal(n))
            case Size():
                return ast.Name(n.dim.name) if n.dim.is_Symbol else _call("dim", expression(dim_text(n.dim)))
            case Loop():
                return ast.Name(n.name)
            case Read():
                at = [index(i) for i in n.index]
                return ast.Subscript(
                    ast.Name(n.tensor), at[0] if len(at) == 1 else ast.Tuple(at, ast.Load()), ast.Load()
                )
            case Checked():
                return _call("checked", index(n.index), expression(dim_text(n.extent)), ast.Constant(n.where))
            case Unary():
                return ast.UnaryOp(ast.USub() if n.op == "neg" else ast.Not(), done[n.x])
            case Binary():
                left, right = together(n.left, n.right)
                if n.op in RELATIONS:
                    return ast.Compare(left, [RELATIONS[n.op]], [right])
                if n.op in CONNECTIVES:
                    return ast.BoolOp(CONNECTIVES[n.op], [left, right])
                return _call(n.op, left, right) if n.op in EXTREMES else ast.BinOp(left, OPERATORS[n.op], right)
            case Select():
                then, orelse = together(n.then, n.orelse)
                return ast.IfExp(done[n.condition], then, orelse)
            case Apply():
                return _call(n.function, done[n.x], *(_number(p) for p in n.parameters))
            case Cast():
                return _call(n.to, done[n.x])
        raise AssertionError(n)


def _call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name), list(args), [])




def _number(value: Fraction) -> ast.expr:
    if Fraction(float(value)) == value:
        return ast.Constant(float(value))
    return ast.BinOp(ast.Constant(value.numerator), ast.Div(), ast.Constant(value.denominator))


def _literal(c: Const) -> ast.expr:
    match c.value:
        case float():
            sign = c.value < 0
            name: ast.expr = ast.Name("nan" if math.isnan(c.value) else "inf")
            return ast.UnaryOp(ast.USub(), name) if sign else name
        case Fraction():
            return _number(c.value)
    return ast.Constant(c.value)
