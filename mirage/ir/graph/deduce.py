"""Forward deduction of annotations, one expression at a time (Relax, section 4.1).

A call of a function is deduced from its signature alone: symbols of the parameters are matched with the dims of the
arguments, and what they say of the result is substituted. What cannot be known is unknown, and checked at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage.errors import GraphError, MirageError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    PartialShape,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
    TypeVariable,
    map_dims,
    parts,
    substitute_types,
    symbols_in,
)
from mirage.ir.dims import Dim, symbols_of
from mirage.ir.dims import substitute as substitute_dim
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.fit import join, match_dims, solve_dims
from mirage.ir.graph.nodes import (
    CallValue,
    Closure,
    Constant,
    Construct,
    Expr,
    Function,
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
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType

Functions = Mapping[str, Function]


def deduce(expr: Expr, functions: Functions) -> Annotation:
    """The annotation of an expression; `functions` are those that it may call. What has an operand of no value never returns.

    Raises GraphError where a call does not fit its callee, and what operators raise (ShapeError and others).
    """
    if isinstance(expr, Var | Constant | ShapeValue):
        return expr.annotation
    if any(isinstance(a.annotation, NeverType) for a in expr.args):
        return NeverType()
    match expr:
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
        case Construct():
            return _construct(expr)
        case Match():
            return _match(expr, functions)
        case Closure(name, args, dims):
            return closure_type(_callee(functions, name), [a.annotation for a in args], dims)
        case CallValue((called, *args)):
            return value_result(called.annotation, [a.annotation for a in args], "call of a value")
        case ReferenceCall():
            return _reference(expr)
    raise GraphError(f"{type(expr).__name__}: not an expression of a graph")


def settled(expr: Expr) -> Expr:
    """The expression with the attributes that its operands tell filled in; raises what operators raise."""
    if not isinstance(expr, OpCall) or any(isinstance(a.annotation, NeverType) for a in expr.args):
        return expr
    attrs = tuple(get_operator(expr.op).settle_attrs([a.annotation for a in expr.args], dict(expr.attrs)).items())
    return expr if attrs == expr.attrs else replace(expr, attrs=attrs)


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


def _construct(expr: Construct) -> Annotation:
    data, constructor = expr.data, expr.data.constructors[expr.index]
    what = f"{constructor.name} of {data.name}"
    if len(expr.args) != len(constructor.fields):
        many = f"{len(expr.args)} values for {len(constructor.fields)} fields"
        raise GraphError(f"{what}: {many}; pass one for each: {constructor}")
    types: dict[str, Annotation] = {}
    for (name, wanted), a in zip(constructor.fields, expr.args, strict=True):
        if isinstance(a.annotation, TensorType | PartialTensor) and a.annotation.dtype == "scalar":
            raise GraphError(f"{what}: field {name!r}: {a.annotation} has no element type of its own; cast it")
        match_dims(wanted, a.annotation, {}, f"{what}: field {name!r}", types)
    return DataType(data.name, tuple(types.get(p, NeverType()) for p in data.parameters))


def _match(expr: Match, functions: Functions) -> Annotation:
    if not expr.args or not expr.clauses:
        raise GraphError("match: no value to match, or no clause; pass both")
    handed_on = [a.annotation for a in expr.args[1:]]
    found: Annotation = NeverType()
    for c in expr.clauses:
        callee = _callee(functions, c.function)
        given = [*pattern_types(c.pattern, expr.args[0].annotation), *handed_on]
        # what cannot be matched, as a cell of an empty list, is not computed
        if any(isinstance(a, NeverType) for a in given):
            continue
        result = signature_result(callee, given, expr.dims)
        found = join(found, result, f"match: the clauses before {c.pattern} and that one")
    return found


def pattern_types(pattern: Pattern, given: Annotation) -> list[Annotation]:
    """The annotations of what a pattern binds in values of an annotation; raises GraphError where it can match none of them."""
    match pattern, given:
        case Bind(), _:
            return [given]
        case (Case(fields=inner) | Fields(inner)), NeverType():
            return [a for p in inner for a in pattern_types(p, given)]
        case Case(data, index, inner), DataType(name, arguments) if name == data.name:
            wanted = data.fields(index, arguments)
            if len(wanted) != len(inner):
                raise GraphError(
                    f"match: the pattern {pattern} has {len(inner)} fields, and the constructor {len(wanted)}: "
                    f"{data.constructors[index]}; write a pattern for each"
                )
            return [a for p, w in zip(inner, wanted, strict=True) for a in pattern_types(p, w)]
        case Fields(inner), TupleType(types) if len(types) == len(inner):
            return [a for p, t in zip(inner, types, strict=True) for a in pattern_types(p, t)]
        case (Case() | Fields()), _:
            kind = pattern.data.name if isinstance(pattern, Case) else f"a tuple of {len(pattern.fields)} fields"
            raise GraphError(f"match: the pattern {pattern} is for {kind}, and the value is {given}; use patterns of its type")
    return []


def closure_type(callee: Function, captured: Sequence[Annotation], dims: Sequence[Dim]) -> CallableType:
    """The annotation of a function as a value whose last parameters are captured.

    Dims that neither these nor `dims` tell are unknown in it: they may differ between calls. Raises GraphError.
    """
    what = f"closure of {callee.name}"
    open_ = len(callee.parameters) - len(captured)
    if open_ < 0:
        raise GraphError(f"{what}: {len(captured)} captured values for {len(callee.parameters)} parameters; pass at most so many")
    _check_dims(callee, dims, what)
    values: dict[str, Dim] = dict(zip(callee.dims, dims, strict=True))
    types: dict[str, Annotation] = {}
    _bind(callee.parameters[open_:], captured, values, types, what)
    for a in (*(p.annotation for p in callee.parameters), callee.returns):
        if unknown := {t.name for t in parts(a) if isinstance(t, TypeVariable)} - types.keys():
            raise GraphError(
                f"{what}: nothing tells its type {sorted(unknown)[0]!r}: a value is of one type; make it of a function that has "
                "types in its signature, or that captures what tells them"
            )

    def known(annotation: Annotation) -> Annotation:
        return substitute_types(map_dims(annotation, lambda d: _known(d, values)), types)

    given = tuple(known(p.annotation) for p in callee.parameters[:open_])
    return CallableType(given, known(callee.returns), is_pure_function(callee))


def value_result(called: Annotation, given: Sequence[Annotation], what: str) -> Annotation:
    """The annotation of what a function that is a value returns; raises GraphError where the call does not fit it."""
    if not isinstance(called, CallableType):
        raise GraphError(f"{what}: {called} is not a function; pass a closure or a parameter of type Callable")
    if called.parameters is not None:
        values: dict[str, Dim] = {}
        if len(called.parameters) != len(given):
            wanted = f"{called}, which takes {len(called.parameters)}"
            raise GraphError(f"{what}: {len(given)} arguments for {wanted}; pass one for each")
        for k, (p, a) in enumerate(zip(called.parameters, given, strict=True)):
            # its dims are those of the caller
            match_dims(p, a, values, f"{what}: argument {k}")
    return called.returns


def _reference(expr: ReferenceCall) -> Annotation:
    given = [a.annotation for a in expr.args]
    match expr.kind, given:
        case "new", [value]:
            return ReferenceType(value)
        case "read", [ReferenceType(value)]:
            return value
        case "write", [ReferenceType(held), value]:
            match_dims(held, value, {}, "write of a reference: the value")
            return given[0]
    text = ", ".join(map(str, given)) or "nothing"
    raise GraphError(f"reference: {expr.kind!r} of {text}; new takes a value, read a reference, write a reference and a value")


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


def signature_result(callee: Function, given: Sequence[Annotation], dims: Sequence[Dim]) -> Annotation:
    """The annotation of a call's result, from the callee's signature; raises GraphError where the call does not fit."""
    what = f"call of {callee.name}"
    if len(given) != len(callee.parameters):
        raise GraphError(f"{what}: {len(given)} arguments for {len(callee.parameters)} parameters; pass one for each")
    _check_dims(callee, dims, what)
    values: dict[str, Dim] = dict(zip(callee.dims, dims, strict=True))
    types: dict[str, Annotation] = {}
    _bind(callee.parameters, given, values, types, what)
    return substitute_types(map_dims(callee.returns, lambda d: _known(d, values)), types)


def _check_dims(callee: Function, dims: Sequence[Dim], what: str) -> None:
    if len(dims) != len(callee.dims):
        raise GraphError(f"{what}: {len(dims)} shape arguments, it takes {len(callee.dims)} ({', '.join(callee.dims)})")


def _bind(
    parameters: Sequence[Var], given: Sequence[Annotation], values: dict[str, Dim], types: dict[str, Annotation], what: str
) -> None:
    """Match arguments with parameters: bind their symbols and type variables."""
    for parameter, argument in zip(parameters, given, strict=True):
        match_dims(parameter.annotation, argument, values, f"{what}: argument {parameter.name!r}", types)
    for parameter, argument in zip(parameters, given, strict=True):
        solve_dims(parameter.annotation, argument, values)


def _known(dim: Dim, values: Mapping[str, Dim]) -> Dim | None:
    return substitute_dim(dim, values) if symbols_of(dim) <= values.keys() else None


def located(error: MirageError, where: str) -> MirageError:
    """The error with the user's line or the binding in front, unless it names one already."""
    text = str(error)
    return error if not where or text.startswith(where) else type(error)(f"{where}: {text}")


def new_symbols(annotation: Annotation, known: set[str]) -> set[str]:
    """The dim symbols that a match_cast to this annotation introduces."""
    return symbols_in(annotation) - known
