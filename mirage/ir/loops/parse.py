"""Loop programs from text: the inverse of `mirage.ir.loops.text`, which describes the form.

Text is read with `ast`; nothing in it is ever executed. Errors name the line.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TypeVar

from mirage.errors import MirageError, ParseError
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.loops.program import COMBINERS, LoopProgram, TensorExpr
from mirage.ir.loops.scalars import (
    Loop,
    Operand,
    Scalar,
    apply,
    binary,
    cast,
    checked,
    constant,
    logical_not,
    negative,
    select,
    size,
)
from mirage.ir.loops.text import CONNECTIVES, OPERATORS, RELATIONS
from mirage.ir.requirements import AtMost
from mirage.ir.syntax import at, elements, expected, parse_statements, read_dim, read_type
from mirage.ir.types import ELEMENTS, TensorType

T = TypeVar("T")

#: longest text that is parsed, in characters
MAX_TEXT = 1_000_000


def parse_loops(text: str) -> LoopProgram:
    """The program that the text describes.

    Raises ParseError, with the line, where the text is not of the form, and LoopError where the program is wrong.
    """
    match parse_statements(text, MAX_TEXT):
        case [ast.FunctionDef() as tree, *rest] if len(rest) <= 1:
            try:
                program = _Parser(tree).parse()
            except RecursionError:
                raise ParseError("line 1: expected expressions without deep nesting; name their parts") from None
            return replace(program, operators="".join(text.splitlines(True)[tree.end_lineno :]) if rest else "")
    raise ParseError("line 1: expected one function, def NAME(x0: float32[n], ...):, and its operators as another one")


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
            expected(self.tree, "def NAME(x0: float32[n], ..., *, extra_dim, ...):")
        for p in a.args:
            if p.annotation is None or p.arg in self.tensors:
                expected(p, "parameters NAME: float32[n, 64], each name once")
            self.tensors[p.arg] = read_type(p.annotation)
        inputs = tuple(self.tensors.items())
        *stages, last = self.tree.body
        needs: list[AtMost] = []
        for s in stages:
            if isinstance(s, ast.Assert):
                needs.append(_need(s))
                continue
            if not isinstance(s, ast.FunctionDef):
                expected(s, "def STAGE(i0, ...) -> float32[n]:")
            expression = _located(s, partial(self.stage, s))
            if s.name in self.tensors:
                expected(s, "another name: it is defined already")
            self.tensors[s.name] = expression.type
            self.stages.append((s.name, expression))
        match last:
            case ast.Return(value=ast.Name(id=name)):
                outputs: tuple[str, ...] = (name,)
            case ast.Return(value=ast.Tuple(elts=names)) if all(isinstance(e, ast.Name) for e in names):
                outputs = tuple(e.id for e in names if isinstance(e, ast.Name))
            case _:
                expected(last, "return STAGE, ... as the last line")
        dims = tuple(p.arg for p in a.kwonlyargs)
        program = _located(
            last, lambda: LoopProgram(self.tree.name, inputs, dims, tuple(self.stages), outputs, tuple(needs))
        )
        returns = self.tree.returns
        types = () if returns is None else tuple(map(read_type, elements(returns)))
        if types != program.output_types:
            expected(self.tree, f"the types of the outputs, -> {', '.join(map(str, program.output_types))}")
        return program

    def stage(self, s: ast.FunctionDef) -> TensorExpr:
        if s.returns is None or len(s.decorator_list) > 1:
            expected(s, "def STAGE(i0, ...) -> float32[n]: after one @COMBINER at most")
        type = read_type(s.returns)
        loops = tuple(p.arg for p in s.args.args)
        reduce: list[tuple[str, Dim]] = []
        body = s.body
        while True:
            match body:
                case [
                    ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[n]), body=inner)
                ]:
                    reduce.append((name, read_dim(n)))
                    body = inner
                case _:
                    break
        combiner = ""
        if reduce:
            match s.decorator_list:
                case [ast.Name(id=combiner)] if combiner in COMBINERS:
                    pass
                case _:
                    expected(s, f"@COMBINER before a reduction, one of {', '.join(COMBINERS)}")
        dims = [*type.shape, *(d for _, d in reduce)]
        self.names = {n: size(symbol(n)) for d in dims for n in symbols_of(d)}
        self.names |= {n: Loop(n) for n in (*loops, *(r for r, _ in reduce))}
        for line in body[:-1]:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self.typed(self.value(value), line)
                case _:
                    expected(line, "NAME = EXPRESSION")
        match body[-1]:
            case ast.Return(value=ast.expr() as value) if not reduce:
                pass
            case ast.Expr(value=ast.Yield(value=ast.expr() as value)) if reduce:
                pass
            case _:
                expected(body[-1], "yield EXPRESSION in a reduction, else return EXPRESSION")
        result = self.typed(self.value(value), body[-1])
        return TensorExpr(type.shape, type.dtype, loops, result, tuple(reduce), combiner)

    def typed(self, value: _Value, where: ast.AST) -> Scalar:
        if isinstance(value, Scalar):
            return value
        expected(where, "a number with its type, such as float32(2.0)")

    def value(self, e: ast.expr) -> _Value:
        match e:
            case ast.Constant(value=bool() as value):
                return constant(value, "bool")
            case ast.Constant(value=int() | float() as value):
                # a number beyond all floats reads as inf
                return value if value in (math.inf, -math.inf) else Fraction(value)
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
                return Operand(name, self.tensors[name])[tuple(self.index(x) for x in elements(i))]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                operand = self.value(x)
                return negative(operand) if isinstance(operand, Scalar) else -operand
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return logical_not(self.typed(self.value(x), x))
            case ast.BinOp(left=x, op=op, right=y):
                a, b = self.value(x), self.value(y)
                if isinstance(op, ast.Div) and isinstance(a, Fraction) and isinstance(b, Fraction) and b:
                    return a / b
                return self.binary(_name(OPERATORS, op, e), a, b, e)
            case ast.Compare(left=x, ops=[relation], comparators=[y]):
                return self.binary(_name(RELATIONS, relation, e), self.value(x), self.value(y), e)
            case ast.BoolOp(op=connective, values=[first, *rest]):
                found = self.value(first)
                for x in rest:
                    found = self.binary(_name(CONNECTIVES, connective, e), found, self.value(x), e)
                return found
            case ast.IfExp(test=condition, body=then, orelse=orelse):
                a, b = self.value(then), self.value(orelse)
                if not isinstance(a, Scalar) and not isinstance(b, Scalar):
                    self.typed(a, e)
                return select(self.typed(self.value(condition), e), a, b)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, args, e)
        expected(e, "an expression over reads, loops, dims and numbers")

    def call(self, name: str, args: Sequence[ast.expr], e: ast.expr) -> Scalar:
        match name, args:
            case "dim", [d]:
                return size(read_dim(d))
            case "checked", [i, n, ast.Constant(value=str() as where)]:
                return checked(self.index(i), read_dim(n), where)
            case (("max" | "min"), [x, y]):
                return self.binary(name, self.value(x), self.value(y), e)
            case _, [x] if name in ELEMENTS:
                value = self.value(x)
                return cast(value, name) if isinstance(value, Scalar) else constant(value, name)
            case _, [x, *parameters]:
                numbers = [self.value(p) for p in parameters]
                if not all(isinstance(p, Fraction) for p in numbers):
                    expected(e, f"numbers as parameters of {name}")
                return apply(name, self.typed(self.value(x), e), *(p for p in numbers if isinstance(p, Fraction)))
        expected(e, "a function of a value")

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
            return _located(s, lambda: AtMost(read_dim(small), read_dim(large), what))
    expected(s, 'assert DIM <= DIM, "what it is needed for"')


def _name(table: Mapping[str, ast.AST], op: ast.AST, where: ast.AST) -> str:
    for name, kind in table.items():
        if isinstance(op, type(kind)):
            return name
    expected(where, "one of + - * / // % < <= > >= == != and or")


def _located(node: ast.stmt | ast.expr, make: Callable[[], T]) -> T:
    """What `make` gives; its errors with the node's line in front."""
    try:
        return make()
    except MirageError as e:
        raise at(node, e) from None
