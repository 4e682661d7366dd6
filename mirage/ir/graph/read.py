"""Expressions of graph modules from syntax trees, the inverse of printing them in `mirage.ir.graph.text`."""

from __future__ import annotations

import ast
import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mirage.errors import MirageError, ParseError
from mirage.ir.data import Constructor, DataDeclaration
from mirage.ir.dims import Dim
from mirage.ir.graph.nodes import (
    Atom,
    CallValue,
    Clause,
    Closure,
    Constant,
    Construct,
    Expr,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    OpCall,
    PackedCall,
    ReferenceCall,
    ShapeCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern, Wildcard
from mirage.ir.operator import Operator, get_operator
from mirage.ir.operators.in_place import EFFECTS, InPlace
from mirage.ir.program import AttrItems
from mirage.ir.syntax import at, elements, expected, literal, read_annotation, read_attribute, read_dim, read_number
from mirage.ir.types import ELEMENTS, TensorType


class Scope(dict[str, Var]):
    """Variables by name, and the constructors of the data types that the module has."""

    def __init__(self, constructors: Mapping[str, tuple[DataDeclaration, int]]) -> None:
        super().__init__()
        self.constructors = constructors

    def constructor(self, node: ast.expr, name: str) -> tuple[DataDeclaration, int]:
        """The constructor of a name, its data type and number."""
        if name not in self.constructors:
            known = ", ".join(self.constructors)
            raise ParseError(f"line {node.lineno}: there is no constructor {name!r}; the constructors are {known}")
        return self.constructors[name]


#: the forms that name functions of the module in brackets
CALLS = frozenset({"call", "if_else", "loop", "match", "closure"})


def read_atom(node: ast.expr, scope: Scope) -> Atom:
    """An operand: the name of a variable, a constant, or a shape in brackets."""
    match node:
        case ast.Name(id=name):
            if name not in scope:
                known = ", ".join(list(scope)[-6:]) or "none"
                raise ParseError(f"line {node.lineno}: {name!r} is not defined; the latest variables are {known}")
            return scope[name]
        case ast.List(elts=dims):
            return ShapeValue(tuple(map(read_dim, dims)))
        case ast.Call(func=ast.Subscript(value=ast.Name(id=dtype))) if dtype in ELEMENTS:
            return _constant(node)
    expected(node, "a variable, a constant such as float32[2](1.0, 2.0), or a shape such as [n, 4]")


def read_expression(node: ast.expr, scope: Scope) -> Expr:
    """What stands on the right of a binding."""
    match node:
        case ast.Attribute(value=value, attr="shape"):
            return ShapeOf((read_atom(value, scope),))
        case ast.Tuple(elts=fields):
            return MakeTuple(tuple(read_atom(f, scope) for f in fields))
        case ast.Call(func=ast.Name(id=name)) if name[0].isupper():
            data, index = scope.constructor(node, name)
            _keywords(node, none=True)
            return Construct(data, index, _atoms(node, scope))
        case ast.Call(func=ast.Name(id=op)):
            return _operator(op, node, scope)
        case ast.Call(func=ast.Subscript(value=ast.Name(id=form), slice=index)) if form in _FORMS:
            return _FORMS[form](node, index.elts if isinstance(index, ast.Tuple) and index.elts else [index], scope)
        case ast.Call(func=ast.Subscript(value=ast.Name(id=form))) if form not in ELEMENTS:
            expected(
                node, f"one of the forms {', '.join(_FORMS)}, or a constant of an element type, before the brackets"
            )
    return read_atom(node, scope)


def _operator(op: str, call: ast.Call, scope: Scope) -> OpCall:
    args = tuple(read_atom(a, scope) for a in call.args)
    try:
        return OpCall(op, args, _declared(get_operator(op), call))
    except MirageError as e:
        raise at(call, e) from None


def _declared(operator: Operator | InPlace, call: ast.Call) -> AttrItems:
    """The attributes of an operator or effect."""
    kinds = {a.name: a.kind for a in operator.attributes}
    # an unknown name is refused by the operator, whatever its value
    given = {k: read_attribute(kinds[k], v, k) if k in kinds else None for k, v in _keywords(call).items()}
    try:
        return tuple(operator.check_attrs(given).items())
    except MirageError as e:
        raise at(call, e) from None


def _keywords(call: ast.Call, *known: str, none: bool = False) -> dict[str, ast.expr]:
    """The keyword arguments; only those `known`, where some are named; with `none`, no keyword is right."""
    found: dict[str, ast.expr] = {}
    for k in call.keywords:
        if none:
            expected(call, "no keywords")
        if k.arg is None or (known and k.arg not in known):
            expected(call, f"no keywords but {', '.join(known)}" if known else "keywords by name, not **")
        found[k.arg] = k.value
    return found


def _constant(call: ast.Call) -> Constant:
    assert isinstance(call.func, ast.Subscript)
    type_ = read_annotation(call.func)
    if not isinstance(type_, TensorType) or not all(d.is_Integer for d in type_.shape) or call.keywords:
        expected(call, "a constant with sizes, such as float32[2](1.0, 2.0)")
    shape = tuple(int(d) for d in type_.shape)
    dtype, count = ELEMENTS[type_.dtype], math.prod(shape)
    match call.args:
        case [ast.Constant(value=str() as text)]:
            array = _decoded(call, text, dtype, count)
        case [ast.Constant(value=v)] if v is ...:
            raise ParseError(
                f"line {call.lineno}: the data of this constant was left out; print the module without elide"
            )
        case args:
            values = [literal(a) for a in args]
            if len(values) != count:
                raise ParseError(f"line {call.lineno}: {len(values)} elements for {type_}, which has {count}")
            array = np.array([_element(call, v, dtype) for v in values], dtype)
    array = array.reshape(shape)
    array.setflags(write=False)
    return Constant(array, type_)


def _decoded(call: ast.Call, text: str, dtype: np.dtype, count: int) -> np.ndarray:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ParseError(f"line {call.lineno}: the data of this constant is not base64") from None
    if len(data) != count * dtype.itemsize:
        raise ParseError(f"line {call.lineno}: {len(data)} bytes of data for {count} elements of {dtype.name}")
    if dtype.kind == "b" and not set(data) <= {0, 1}:
        raise ParseError(f"line {call.lineno}: the data of this constant has bytes that are no bool, 0 or 1")
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)


def _element(call: ast.Call, value: Any, dtype: np.dtype) -> Any:
    kinds: tuple[type, ...] = {"b": (bool,), "i": (int,)}.get(dtype.kind, (int, float))
    fits = isinstance(value, kinds) and (dtype.kind == "b" or not isinstance(value, bool))
    if fits and dtype.kind == "i":
        fits = np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    if not fits:
        raise ParseError(f"line {call.lineno}: {value!r} is no element of {dtype.name}")
    try:
        return dtype.type(value)
    except OverflowError:
        raise ParseError(f"line {call.lineno}: {value!r} is no element of {dtype.name}") from None


def read_free(node: ast.expr) -> Any:
    """The value of an attribute that no operator declares: a number, text, a dim, True or False, or a tuple of those."""
    if isinstance(node, ast.Tuple):
        return tuple(map(read_free, node.elts))
    value = literal(node)
    if value is None:
        value = read_number(node)
    return read_dim(node) if value is None else value


def _dims(keywords: dict[str, ast.expr]) -> tuple[Dim, ...]:
    return tuple(map(read_dim, elements(keywords["dims"]))) if "dims" in keywords else ()


def _tensors(nodes: list[ast.expr]) -> tuple[TensorType, ...]:
    found = []
    for node in nodes:
        annotation = read_annotation(node)
        if not isinstance(annotation, TensorType):
            expected(node, "the type of a tensor without unknown dims, such as float32[n, 4]")
        found.append(annotation)
    return tuple(found)


def _atoms(call: ast.Call, scope: Scope) -> tuple[Atom, ...]:
    return tuple(read_atom(a, scope) for a in call.args)


def _one(call: ast.Call, scope: Scope) -> tuple[Atom]:
    if len(call.args) != 1 or call.keywords:
        expected(call, "one operand in parentheses")
    return (read_atom(call.args[0], scope),)


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        expected(node, "the name of a function or kernel of the module")
    return node.id


def _text(node: ast.expr) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        expected(node, 'the name of a registered function in quotes, such as "gemm"')
    return node.value


def _number(node: ast.expr) -> int:
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        expected(node, "a number such as 0")
    return node.value


def _free(call: ast.Call) -> AttrItems:
    return tuple((k, read_free(v)) for k, v in _keywords(call).items())


def _call(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 1:
        expected(call, "call[FUNCTION](...)")
    return FunctionCall(_name(index[0]), _atoms(call, scope), _dims(_keywords(call, "dims")))


def _if_else(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 2 or not call.args:
        expected(call, "if_else[THEN, ELSE](condition, ...)")
    return If(_atoms(call, scope), _name(index[0]), _name(index[1]), _dims(_keywords(call, "dims")))


def _loop(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    keywords = _keywords(call, "count", "bound", "dims")
    match call.args:
        case [*first, ast.Tuple(elts=carried), ast.Tuple(elts=invariant)] if len(index) == 1 and (
            len(first) == (0 if "count" in keywords else 1)
        ):
            args = tuple(read_atom(a, scope) for a in (*first, *carried, *invariant))
            count, bound = (read_dim(keywords[k]) if k in keywords else None for k in ("count", "bound"))
            return Loop(_name(index[0]), args, len(carried), count, bound, _dims(keywords))
    expected(call, "loop[BODY]((carried, ...), (invariant, ...), count=n), or a variable as the count in front")


def _match_cast(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    assert isinstance(call.func, ast.Subscript)
    return MatchCast(_one(call, scope), read_annotation(call.func.slice))


def _item(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 1:
        expected(call, "item[INDEX](value)")
    return TupleItem(_one(call, scope), _number(index[0]))


def _kernel(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    keywords = _keywords(call, "dims", "workspace")
    workspace = _tensors(elements(keywords["workspace"])) if "workspace" in keywords else ()
    return KernelCall(_name(index[0]), _atoms(call, scope), _tensors(index[1:]), _dims(keywords), workspace)


def _library(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    return LibraryCall(_text(index[0]), _atoms(call, scope), _tensors(index[1:]), _free(call))


def _packed(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    match index:
        case [name, result]:
            written: list[ast.expr] = []
        case [name, result, ast.Subscript(value=ast.Name(id="in_place"), slice=positions)]:
            written = elements(positions)
        case _:
            expected(call, 'packed["NAME", ANNOTATION](...) or packed["NAME", ANNOTATION, in_place[0]](...)')
    function, in_place = _text(name), tuple(map(_number, written))
    attrs = _declared(EFFECTS[function], call) if function in EFFECTS else _free(call)
    return PackedCall(function, _atoms(call, scope), read_annotation(result), attrs, in_place)


def _shape_function(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 2 or call.keywords:
        expected(call, 'shape_function["NAME", RANK](...)')
    return ShapeCall(_text(index[0]), _atoms(call, scope), _number(index[1]))


def _match(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    clauses: list[Clause] = []
    for i in index:
        if not isinstance(i, ast.Slice) or i.lower is None or i.upper is None or i.step is not None:
            expected(call, "match[PATTERN: FUNCTION, ...](value, ...)")
        clauses.append(Clause(read_pattern(i.lower, scope), _name(i.upper)))
    if not call.args:
        expected(call, "match[PATTERN: FUNCTION, ...](value, ...)")
    return Match(_atoms(call, scope), tuple(clauses), _dims(_keywords(call, "dims")))


def read_pattern(node: ast.expr, scope: Scope) -> Pattern:
    """A pattern: `_`, a name, a constructor or a tuple of patterns."""
    match node:
        case ast.Name(id="_"):
            return Wildcard()
        case ast.Name(id=name):
            return Bind(name)
        case ast.Tuple(elts=fields):
            return Fields(tuple(read_pattern(f, scope) for f in fields))
        case ast.Call(func=ast.Name(id=name), args=fields, keywords=[]):
            data, index = scope.constructor(node, name)
            return Case(data, index, tuple(read_pattern(f, scope) for f in fields))
    expected(node, "a pattern: _, a name, a constructor such as Cons(x, _), or a tuple of patterns")


def _closure(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 1:
        expected(call, "closure[FUNCTION](captured, ...)")
    return Closure(_name(index[0]), _atoms(call, scope), _dims(_keywords(call, "dims")))


def _apply(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    if len(index) != 1:
        expected(call, "apply[VARIABLE](argument, ...)")
    _keywords(call, none=True)
    return CallValue((read_atom(index[0], scope), *_atoms(call, scope)))


def _reference(call: ast.Call, index: list[ast.expr], scope: Scope) -> Expr:
    kinds = [i.id for i in index if isinstance(i, ast.Name)]
    if len(kinds) != 1 or kinds[0] not in ("new", "read", "write"):
        expected(call, "reference[new](value), reference[read](reference) or reference[write](reference, value)")
    _keywords(call, none=True)
    return ReferenceCall(kinds[0], _atoms(call, scope))


def read_declaration(tree: ast.ClassDef) -> DataDeclaration:
    """A data type: its parameters in parentheses, and a constructor a line."""
    form = "class NAME(a, ...): with lines def CONSTRUCTOR(field: a, ...): ..."
    if tree.keywords or tree.decorator_list or not all(isinstance(b, ast.Name) for b in tree.bases):
        expected(tree, form)
    constructors = []
    for s in tree.body:
        match s:
            case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=v))], decorator_list=[], returns=None) if v is ...:
                a = s.args
                if a.vararg or a.kwarg or a.posonlyargs or a.defaults or a.kwonlyargs or not all(f.annotation for f in a.args):
                    expected(s, "fields of the form value: a")
                fields = tuple((f.arg, read_annotation(f.annotation)) for f in a.args if f.annotation)
                constructors.append(Constructor(s.name, fields))
            case _:
                expected(s, form)
    return DataDeclaration(tree.name, tuple(b.id for b in tree.bases if isinstance(b, ast.Name)), tuple(constructors))


_FORMS: dict[str, Callable[[ast.Call, list[ast.expr], Scope], Expr]] = {
    "call": _call,
    "if_else": _if_else,
    "loop": _loop,
    "match_cast": _match_cast,
    "item": _item,
    "kernel": _kernel,
    "library": _library,
    "packed": _packed,
    "shape_function": _shape_function,
    "match": _match,
    "closure": _closure,
    "apply": _apply,
    "reference": _reference,
}
