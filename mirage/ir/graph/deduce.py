"""Forward deduction of annotations, one expression at a time (Relax, section 4.1).

A call of a function is deduced from its signature alone: symbols of the parameters are matched with the dims of the
arguments, and what they say of the result is substituted. What cannot be known is unknown, and checked at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from mirage.errors import GraphError, MirageError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    ObjectType,
    PartialShape,
    PartialTensor,
    ShapeType,
    TupleType,
    map_dims,
    symbols_in,
    tensor_annotation,
)
from mirage.ir.dims import Dim, divide, symbol, symbols_of
from mirage.ir.dims import substitute as substitute_dim
from mirage.ir.graph.nodes import (
    Constant,
    Expr,
    Function,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    MatchCast,
    OpCall,
    PackedCall,
    ShapeCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType

Functions = Mapping[str, Function]


def deduce(expr: Expr, functions: Functions) -> Annotation:
    """The annotation of an expression; `functions` are those that it may call.

    Raises GraphError where a call does not fit its callee, and what operators raise (ShapeError and others).
    """
    match expr:
        case Var() | Constant() | ShapeValue():
            return expr.annotation
        case OpCall(op, args, attrs):
            return get_operator(op).annotate([a.annotation for a in args], dict(attrs))
        case FunctionCall(name, args, dims):
            return signature_result(_callee(functions, name), [a.annotation for a in args], dims)
        case KernelCall(out=out) | LibraryCall(out=out):
            return out[0] if len(out) == 1 else TupleType(out)
        case PackedCall(annotation=annotation) | MatchCast(annotation=annotation):
            return annotation
        case MakeTuple(args):
            return TupleType(tuple(a.annotation for a in args))
        case TupleItem((value,), index):
            return _item(value.annotation, index)
        case ShapeOf((value,)):
            return ShapeType(shape_of(value.annotation, "shape_of"))
        case ShapeCall(rank=rank):
            return ShapeType((None,) * rank)
        case If(args, then, orelse, dims):
            if not args:
                raise GraphError("if_else: no condition; pass a bool tensor of rank 0 as the first operand")
            _scalar(args[0].annotation, ("bool",), "if_else: the condition")
            given = [a.annotation for a in args[1:]]
            results = [signature_result(_callee(functions, f), given, dims) for f in (then, orelse)]
            return join(results[0], results[1], f"if_else: {then} and {orelse}")
        case Loop():
            return _loop(expr, functions)
    raise GraphError(f"{type(expr).__name__}: not an expression of a graph")


def settled(expr: Expr) -> Expr:
    """The expression with the attributes that its operands tell filled in; raises what operators raise."""
    if not isinstance(expr, OpCall):
        return expr
    attrs = get_operator(expr.op).settle_attrs([a.annotation for a in expr.args], dict(expr.attrs))
    return replace(expr, attrs=tuple(attrs.items()))


def _callee(functions: Functions, name: str) -> Function:
    if name not in functions:
        known = ", ".join(functions) or "none"
        raise GraphError(f"call of {name!r}: no such function in the module; its functions are {known}")
    return functions[name]


def _item(annotation: Annotation, index: int) -> Annotation:
    if not isinstance(annotation, TupleType):
        raise GraphError(f"item {index} of {annotation}: not a tuple")
    if not 0 <= index < len(annotation.fields):
        raise GraphError(f"item {index} of {annotation}: it has {len(annotation.fields)} fields; count from 0")
    return annotation.fields[index]


def shape_of(annotation: Annotation, what: str) -> PartialShape | None:
    """The shape of a tensor as far as it is known; raises GraphError, which begins with `what`, for anything else."""
    match annotation:
        case TensorType(shape) | PartialTensor(shape):
            return shape
    raise GraphError(f"{what}: {annotation} is not a tensor")


def _scalar(annotation: Annotation, dtypes: tuple[str, ...], what: str) -> None:
    """Raises GraphError, which begins with `what`, for what cannot be a tensor of rank 0 of one of these element types."""
    fits = isinstance(annotation, TensorType | PartialTensor) and annotation.shape in (None, ())
    if not fits or annotation.dtype not in (None, *dtypes):  # type: ignore[union-attr]
        raise GraphError(f"{what} is {annotation}, not {dtypes[0]}[()]; pass a tensor of rank 0 of that type")


def _loop(expr: Loop, functions: Functions) -> Annotation:
    body = _callee(functions, expr.body)
    given = [a.annotation for a in expr.args]
    if expr.count is None:
        if not given:
            raise GraphError("loop: no count; pass a dim, or an int64 tensor of rank 0 as the first operand")
        _scalar(given.pop(0), ("int64", "int32"), "loop: the count")
    if not 0 <= expr.carried <= len(given):
        raise GraphError(f"loop: {expr.carried} carried values of {len(given)} operands; pass all of them")
    index = TensorType((), "int64")
    carried = given[: expr.carried]
    after: Annotation = carried[0] if len(carried) == 1 else TupleType(tuple(carried))

    def one_round(given_to: Annotation) -> Annotation:
        fields = given_to.fields if isinstance(given_to, TupleType) and len(carried) != 1 else (given_to,)
        return signature_result(body, [index, *fields, *given[expr.carried :]], expr.dims)

    while True:
        result = one_round(after)
        joined = join(after, result, f"loop: what goes into and comes out of {expr.body}")
        if joined == after:
            return after
        # the next round takes what this one returns; each loses a dim or is the last
        one_round(result)
        after = joined


def join(a: Annotation, b: Annotation, what: str) -> Annotation:
    """What is known of a value that is one of two; raises GraphError where they cannot be one value."""
    match a, b:
        case (TensorType() | PartialTensor()), (TensorType() | PartialTensor()):
            if a.dtype != b.dtype and a.dtype is not None and b.dtype is not None:
                raise GraphError(f"{what}: results {a} and {b} differ in element type; cast one of them")
            dtype = a.dtype if a.dtype == b.dtype else None
            return tensor_annotation(_join_shapes(a.shape, b.shape), dtype)
        case ShapeType(x), ShapeType(y):
            return ShapeType(_join_shapes(x, y))
        case TupleType(x), TupleType(y) if len(x) == len(y):
            return TupleType(tuple(join(p, q, what) for p, q in zip(x, y, strict=True)))
        case CallableType(), CallableType() if a == b:
            return a
    if type(a) is not type(b) or isinstance(a, TupleType):
        raise GraphError(f"{what}: results {a} and {b} are of different kinds; return the same kind")
    return a


def _join_shapes(x: PartialShape | None, y: PartialShape | None) -> PartialShape | None:
    if x is None or y is None or len(x) != len(y):
        return None
    return tuple(p if p == q else None for p, q in zip(x, y, strict=True))


def match_dims(pattern: Annotation, given: Annotation, values: dict[str, Dim], what: str) -> None:
    """Match an argument with a parameter: bind the parameter's symbols to dims in `values`.

    A dim expression over symbols that other dims bind is left to the check at run time, unless both sides are numbers.
    Raises GraphError, which begins with `what`, where the argument cannot fit.
    """
    match pattern, given:
        case (TensorType() | PartialTensor()), (TensorType() | PartialTensor()):
            if pattern.dtype and given.dtype and given.dtype not in (pattern.dtype, "scalar"):
                raise GraphError(f"{what} is {given}, not {pattern}; cast it to {pattern.dtype}")
            _match_shape(pattern.shape, given.shape, values, f"{what} is {given}, not {pattern}")
        case ShapeType(x), ShapeType(y):
            _match_shape(x, y, values, f"{what} is {given}, not {pattern}")
        case TupleType(x), TupleType(y) if len(x) == len(y):
            for p, q in zip(x, y, strict=True):
                match_dims(p, q, values, what)
        case _ if type(pattern) is not type(given) or isinstance(pattern, TupleType):
            raise GraphError(f"{what} is {given}, not {pattern}; pass a value of that kind")


def _match_shape(
    pattern: PartialShape | None, given: PartialShape | None, values: dict[str, Dim], problem: str
) -> None:
    if pattern is None or given is None:
        return
    if len(pattern) != len(given):
        raise GraphError(f"{problem}: rank {len(given)} instead of {len(pattern)}; reshape it")
    for i, (p, q) in enumerate(zip(pattern, given, strict=True)):
        if p is None or q is None:
            continue
        if isinstance(p, sympy.Symbol):
            bound = values.setdefault(p.name, q)
            if bound.is_Integer and q.is_Integer and bound != q:
                raise GraphError(f"{problem}: dim {i} is {q}, but {p} is {bound} here; make them equal")
        elif p.is_Integer and q.is_Integer and p != q:
            raise GraphError(f"{problem}: dim {i} is {q} instead of {p}")


def signature_result(callee: Function, given: Sequence[Annotation], dims: Sequence[Dim]) -> Annotation:
    """The annotation of a call's result, from the callee's signature; raises GraphError where the call does not fit."""
    what = f"call of {callee.name}"
    if len(given) != len(callee.parameters):
        raise GraphError(f"{what}: {len(given)} arguments for {len(callee.parameters)} parameters; pass one for each")
    if len(dims) != len(callee.dims):
        raise GraphError(f"{what}: {len(dims)} shape arguments, it takes {len(callee.dims)} ({', '.join(callee.dims)})")
    values: dict[str, Dim] = dict(zip(callee.dims, dims, strict=True))
    for parameter, argument in zip(callee.parameters, given, strict=True):
        match_dims(parameter.annotation, argument, values, f"{what}: argument {parameter.name!r}")
    for parameter, argument in zip(callee.parameters, given, strict=True):
        solve_dims(parameter.annotation, argument, values)
    return map_dims(callee.returns, lambda d: substitute_dim(d, values) if symbols_of(d) <= values.keys() else None)


def solve_dims(pattern: Annotation, given: Annotation, values: dict[str, Dim]) -> None:
    """Bind the symbols that stand in a parameter as a part of an expression only: 2*n in the place of 6*m says n = 3*m."""
    match pattern, given:
        case TupleType(x), TupleType(y):
            for p, q in zip(x, y, strict=True):
                solve_dims(p, q, values)
        case ((TensorType(a) | PartialTensor(a)), (TensorType(b) | PartialTensor(b))) | (ShapeType(a), ShapeType(b)):
            for dim, size in zip(a or (), b or (), strict=False):
                if dim is not None and size is not None:
                    _solve_dim(dim, size, values)


def _solve_dim(dim: Dim, size: Dim, values: dict[str, Dim]) -> None:
    new = symbols_of(dim) - values.keys()
    if len(new) != 1:
        return
    unknown = symbol(new.pop())
    if not dim.is_polynomial(unknown) or sympy.degree(dim, unknown) != 1:
        return
    factor, rest = (substitute_dim(c, values) for c in sympy.Poly(dim, unknown).all_coeffs())
    value = divide(sympy.expand(size - rest), factor)
    if value is not None:
        values[unknown.name] = value


def check_cast(given: Annotation, wanted: Annotation, what: str) -> None:
    """Raises GraphError where a value of one annotation can never be matched with another; an object may be anything."""
    if not isinstance(given, ObjectType):
        match_dims(wanted, given, {}, what)


def located(error: MirageError, where: str) -> MirageError:
    """The error with the user's line or the binding in front, unless it names one already."""
    text = str(error)
    return error if not where or text.startswith(where) else type(error)(f"{where}: {text}")


def new_symbols(annotation: Annotation, known: set[str]) -> set[str]:
    """The dim symbols that a match_cast to this annotation introduces."""
    return symbols_in(annotation) - known
