"""Loop programs as text, in Python's syntax; printing and parsing are inverse.

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
stages: `assert k <= n, "slice: the stop is within the dim"`. Text is read with `ast`; nothing in it is ever
executed.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import NoReturn, TypeVar

from mirage.errors import MirageError, ParseError
from mirage.ir.dims import Dim, dim_text, symbol, symbols_of, to_dim
from mirage.ir.loops.program import COMBINERS, LoopProgram, TensorExpr
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
    Operand,
    Read,
    Scalar,
    Select,
    Size,
    Unary,
    apply,
    binary,
    cast,
    checked,
    constant,
    logical_not,
    negative,
    select,
    size,
    walk,
)
from mirage.ir.requirements import AtMost
from mirage.ir.types import ELEMENTS, TensorType, check_dtype

T = TypeVar("T")

#: longest text that is parsed, in characters
MAX_TEXT = 1_000_000
#: an expression as deep as this is given a name: Python reads no text that is nested without bound
_DEEPEST = 16

_OPERATORS: dict[str, ast.operator] = {
    "add": ast.Add(),
    "sub": ast.Sub(),
    "mul": ast.Mult(),
    "div": ast.Div(),
    "floordiv": ast.FloorDiv(),
    "mod": ast.Mod(),
}
_RELATIONS: dict[str, ast.cmpop] = {
    "lt": ast.Lt(),
    "le": ast.LtE(),
    "gt": ast.Gt(),
    "ge": ast.GtE(),
    "eq": ast.Eq(),
    "ne": ast.NotEq(),
}
_CONNECTIVES: dict[str, ast.boolop] = {"and": ast.And(), "or": ast.Or()}
assert _OPERATORS.keys() == ARITHMETIC.keys() and _RELATIONS.keys() == COMPARISONS.keys()
assert tuple(_CONNECTIVES) == LOGICAL


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
    return "\n".join(lines) + "\n"


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
                return ast.Name(n.dim.name) if n.dim.is_Symbol else _call("dim", _parsed(dim_text(n.dim)))
            case Loop():
                return ast.Name(n.name)
            case Read():
                at = [index(i) for i in n.index]
                return ast.Subscript(
                    ast.Name(n.tensor), at[0] if len(at) == 1 else ast.Tuple(at, ast.Load()), ast.Load()
                )
            case Checked():
                return _call("checked", index(n.index), _parsed(dim_text(n.extent)), ast.Constant(n.where))
            case Unary():
                return ast.UnaryOp(ast.USub() if n.op == "neg" else ast.Not(), done[n.x])
            case Binary():
                left, right = together(n.left, n.right)
                if n.op in _RELATIONS:
                    return ast.Compare(left, [_RELATIONS[n.op]], [right])
                if n.op in _CONNECTIVES:
                    return ast.BoolOp(_CONNECTIVES[n.op], [left, right])
                return _call(n.op, left, right) if n.op in EXTREMES else ast.BinOp(left, _OPERATORS[n.op], right)
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


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


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


def parse_loops(text: str) -> LoopProgram:
    """The program that the text describes.

    Raises ParseError, with the line, where the text is not of the form above, and LoopError where the program is wrong.
    """
    if len(text) > MAX_TEXT:
        raise ParseError(f"loop program of {len(text)} characters; at most {MAX_TEXT} are parsed")
    try:
        body = ast.parse(text).body
        if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
            raise ParseError("line 1: expected one function, def NAME(x0: float32[n], ...):")
        return _Parser(body[0]).parse()
    except SyntaxError as e:
        raise ParseError(f"line {e.lineno or 1}: {e.msg}; expected Python syntax") from None
    except (ValueError, MemoryError, RecursionError):
        raise ParseError("line 1: expected Python syntax without null characters or deep nesting") from None


#: a value, or a number that has no type yet
_Value = Scalar | Fraction | float


class _Parser:
    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree
        self.tensors: dict[str, TensorType] = {}
        self.names: dict[str, Scalar] = {}
        self.stages: list[tuple[str, TensorExpr]] = []

    def parse(self) -> LoopProgram:
        a = self.tree.args
        if a.vararg or a.kwarg or a.posonlyargs or a.defaults or any(a.kw_defaults) or self.tree.decorator_list:
            _expected(self.tree, "def NAME(x0: float32[n], ..., *, extra_dim, ...):")
        for p in a.args:
            if p.annotation is None or p.arg in self.tensors:
                _expected(p, "parameters NAME: float32[n, 64], each name once")
            self.tensors[p.arg] = _type(p.annotation)
        inputs = tuple(self.tensors.items())
        *stages, last = self.tree.body
        needs: list[AtMost] = []
        for s in stages:
            if isinstance(s, ast.Assert):
                needs.append(_need(s))
                continue
            if not isinstance(s, ast.FunctionDef):
                _expected(s, "def STAGE(i0, ...) -> float32[n]:")
            expression = _at(s, partial(self.stage, s))
            if s.name in self.tensors:
                _expected(s, "another name: it is defined already")
            self.tensors[s.name] = expression.type
            self.stages.append((s.name, expression))
        match last:
            case ast.Return(value=ast.Name(id=name)):
                outputs: tuple[str, ...] = (name,)
            case ast.Return(value=ast.Tuple(elts=elements)) if all(isinstance(e, ast.Name) for e in elements):
                outputs = tuple(e.id for e in elements if isinstance(e, ast.Name))
            case _:
                _expected(last, "return STAGE, ... as the last line")
        dims = tuple(p.arg for p in a.kwonlyargs)
        program = _at(
            last, lambda: LoopProgram(self.tree.name, inputs, dims, tuple(self.stages), outputs, tuple(needs))
        )
        returns = self.tree.returns
        types = returns.elts if isinstance(returns, ast.Tuple) else [returns]
        if tuple(_type(t) for t in types if t is not None) != program.output_types:
            _expected(self.tree, f"the types of the outputs, -> {', '.join(map(str, program.output_types))}")
        return program

    def stage(self, s: ast.FunctionDef) -> TensorExpr:
        if s.returns is None or len(s.decorator_list) > 1:
            _expected(s, "def STAGE(i0, ...) -> float32[n]: after one @COMBINER at most")
        type = _type(s.returns)
        loops = tuple(p.arg for p in s.args.args)
        reduce: list[tuple[str, Dim]] = []
        body = s.body
        while True:
            match body:
                case [
                    ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[n]), body=inner)
                ]:
                    reduce.append((name, to_dim(ast.unparse(n))))
                    body = inner
                case _:
                    break
        combiner = ""
        if reduce:
            match s.decorator_list:
                case [ast.Name(id=combiner)] if combiner in COMBINERS:
                    pass
                case _:
                    _expected(s, f"@COMBINER before a reduction, one of {', '.join(COMBINERS)}")
        dims = [*type.shape, *(d for _, d in reduce)]
        self.names = {n: size(symbol(n)) for d in dims for n in symbols_of(d)}
        self.names |= {n: Loop(n) for n in (*loops, *(r for r, _ in reduce))}
        for line in body[:-1]:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self.typed(self.value(value), line)
                case _:
                    _expected(line, "NAME = EXPRESSION")
        match body[-1]:
            case ast.Return(value=ast.expr() as value) if not reduce:
                pass
            case ast.Expr(value=ast.Yield(value=ast.expr() as value)) if reduce:
                pass
            case _:
                _expected(body[-1], "yield EXPRESSION in a reduction, else return EXPRESSION")
        result = self.typed(self.value(value), body[-1])
        return TensorExpr(type.shape, type.dtype, loops, result, tuple(reduce), combiner)

    def typed(self, value: _Value, where: ast.AST) -> Scalar:
        if isinstance(value, Scalar):
            return value
        _expected(where, "a number with its type, such as float32(2.0)")

    def value(self, e: ast.expr) -> _Value:
        match e:
            case ast.Constant(value=bool() as value):
                return constant(value, "bool")
            case ast.Constant(value=int() | float() as value):
                return Fraction(value)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name(id="nan"):
                return math.nan
            case ast.Name(id=name):
                # a dim that only the body uses, and not the shape
                return size(symbol(name))
            case ast.Subscript(value=ast.Name(id=name), slice=i) if name in self.tensors:
                elements = i.elts if isinstance(i, ast.Tuple) else [i]
                return Operand(name, self.tensors[name])[tuple(self.index(x) for x in elements)]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                operand = self.value(x)
                return negative(operand) if isinstance(operand, Scalar) else -operand
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return logical_not(self.typed(self.value(x), x))
            case ast.BinOp(left=x, op=op, right=y):
                a, b = self.value(x), self.value(y)
                if isinstance(op, ast.Div) and isinstance(a, Fraction) and isinstance(b, Fraction) and b:
                    return a / b
                return self.binary(_name(_OPERATORS, op, e), a, b, e)
            case ast.Compare(left=x, ops=[relation], comparators=[y]):
                return self.binary(_name(_RELATIONS, relation, e), self.value(x), self.value(y), e)
            case ast.BoolOp(op=connective, values=[first, *rest]):
                found = self.value(first)
                for x in rest:
                    found = self.binary(_name(_CONNECTIVES, connective, e), found, self.value(x), e)
                return found
            case ast.IfExp(test=condition, body=then, orelse=orelse):
                a, b = self.value(then), self.value(orelse)
                if not isinstance(a, Scalar) and not isinstance(b, Scalar):
                    self.typed(a, e)
                return select(self.typed(self.value(condition), e), a, b)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, args, e)
        _expected(e, f"an expression over reads, loops, dims and numbers, not {ast.unparse(e)[:40]!r}")

    def call(self, name: str, args: Sequence[ast.expr], e: ast.expr) -> Scalar:
        match name, args:
            case "dim", [d]:
                return size(to_dim(ast.unparse(d)))
            case "checked", [i, n, ast.Constant(value=str() as where)]:
                return checked(self.index(i), to_dim(ast.unparse(n)), where)
            case (("max" | "min"), [x, y]):
                return self.binary(name, self.value(x), self.value(y), e)
            case _, [x] if name in ELEMENTS:
                value = self.value(x)
                return cast(value, name) if isinstance(value, Scalar) else constant(value, name)
            case _, [x, *parameters]:
                numbers = [self.value(p) for p in parameters]
                if not all(isinstance(p, Fraction) for p in numbers):
                    _expected(e, f"numbers as parameters of {name}")
                return apply(name, self.typed(self.value(x), e), *(p for p in numbers if isinstance(p, Fraction)))
        _expected(e, f"a function of a value, not {ast.unparse(e)[:40]!r}")

    def index(self, e: ast.expr) -> Scalar:
        value = self.value(e)
        return value if isinstance(value, Scalar) else constant(value, "int64")

    def binary(self, op: str, a: _Value, b: _Value, where: ast.AST) -> Scalar:
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            self.typed(a, where)
        return binary(op, a, b)


def _need(s: ast.Assert) -> AtMost:
    match s:
        case ast.Assert(
            test=ast.Compare(left=small, ops=[ast.LtE()], comparators=[large]), msg=ast.Constant(value=str() as what)
        ):
            return _at(s, lambda: AtMost(to_dim(ast.unparse(small)), to_dim(ast.unparse(large)), what))
    _expected(s, 'assert DIM <= DIM, "what it is needed for"')


def _name(table: Mapping[str, ast.AST], op: ast.AST, where: ast.AST) -> str:
    for name, kind in table.items():
        if isinstance(op, type(kind)):
            return name
    _expected(where, "one of + - * / // % < <= > >= == != and or")


def _type(e: ast.expr) -> TensorType:
    match e:
        case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
            elements = shape.elts if isinstance(shape, ast.Tuple) else [shape]
            return _at(e, lambda: TensorType(tuple(to_dim(ast.unparse(d)) for d in elements), check_dtype(dtype)))
    _expected(e, "a type such as float32[n, 64]")


def _at(where: ast.AST, make: Callable[[], T]) -> T:
    """What `make` gives; its errors with the line in front."""
    try:
        return make()
    except ParseError:
        raise
    except MirageError as e:
        raise type(e)(f"line {getattr(where, 'lineno', 1)}: {e}") from None


def _expected(where: ast.AST, what: str) -> NoReturn:
    raise ParseError(f"line {getattr(where, 'lineno', 1)}: expected {what}")
