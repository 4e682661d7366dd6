"""Gradients in traced functions: `grad`, `value_and_grad` and `vjp` make functions of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from mirage.errors import GradientError
from mirage.frontends.data import constructor_of, known_data
from mirage.frontends.functions import GraphFunction
from mirage.frontends.graph import GraphTrace, graph_trace
from mirage.frontends.proxy import Proxy, Traced, apply, caller, located
from mirage.frontends.spec import TensorFunction
from mirage.frontends.trace import program_name
from mirage.ir.annotations import Annotation, DataType, TupleType, TypeVariable
from mirage.ir.dims import symbol
from mirage.ir.graph.cotangents import float_leaves, is_float
from mirage.ir.graph.duals import Duals
from mirage.ir.graph.gradient import Differentiation
from mirage.ir.graph.gradient_tape import Taped, needs_tape
from mirage.ir.graph.nodes import Atom, Function, FunctionCall
from mirage.ir.types import TensorType

#: names of parameters, or one of them
Wrt: TypeAlias = str | Sequence[str] | None
#: the parameter of `vjp` beside those of the function
COTANGENT = "cotangent"


def grad(f: Callable[..., Any], wrt: Wrt = None) -> Callable[..., Any]:
    """A function of the same parameters that returns the gradients of `f`, whose result is a floating-point scalar.

    `wrt` names the parameters by which; the default are all whose tensors are of floating-point types. The gradient by one
    parameter is returned by itself, those by several as a tuple in the order of `wrt`; each is of its parameter's shape and
    element type. `f` is a Python function, or one under `mirage.function` or `mirage.program`; what it uses of the functions
    around it counts as constant. Call the gradient in a traced function, or give it to `mirage.compile`.

    Raises GradientError for what is no function or parameter; where it is traced, for a result that is no scalar, a parameter
    that is no floating-point tensor, and for operators and effects that have no gradient, with the user's line.
    """
    return _differentiated("grad", f, wrt, value=False)


def value_and_grad(f: Callable[..., Any], wrt: Wrt = None) -> Callable[..., Any]:
    """As `grad`, a function that returns a pair: what `f` returns, and the gradients."""
    return _differentiated("value_and_grad", f, wrt, value=True)


def vjp(f: Callable[..., Any], wrt: Wrt = None) -> Callable[..., Any]:
    """As `value_and_grad` for any result: a function of the parameters of `f`, and by name of the `cotangent` of its result.

    The cotangent is what some scalar's derivative by the result is, of its shape and element type; the function returns the
    result and that scalar's gradients: the products of the cotangent with the Jacobian.
    """
    return _differentiated("vjp", f, wrt, value=True, seeded=True)


def stop_gradient(x: Proxy) -> Proxy:
    """`x`, which gradients take for a constant."""
    return apply("stop_gradient", x)


def _differentiated(name: str, f: Any, wrt: Wrt, *, value: bool, seeded: bool = False) -> Callable[..., Any]:
    if not callable(f):
        raise GradientError(f"{name}: {f!r} is not a function; pass a Python function, or one under mirage.function")
    plain = f.fn if isinstance(f, GraphFunction | TensorFunction) else f
    try:
        signature = inspect.signature(plain)
    except (TypeError, ValueError):
        raise GradientError(f"{name}: {f!r} has no signature to read; wrap it in a Python function") from None
    label = program_name(plain)
    names = (wrt,) if isinstance(wrt, str) else None if wrt is None else tuple(wrt)
    _check_names(name, label, names, signature)

    if seeded and COTANGENT in signature.parameters:
        raise GradientError(f"{name}: {label} has a parameter {COTANGENT!r}; rename it")

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        if seeded and COTANGENT not in kwargs:
            raise GradientError(f"{name} of {label}: no cotangent; pass it by name, cotangent=...")
        seed = kwargs.pop(COTANGENT) if seeded else None
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise GradientError(f"{name} of {label}: {e}; pass what {label} takes") from None
        bound.apply_defaults()
        return _recorded(name, label, f, bound.arguments, names, seed, value=value, seeded=seeded)

    differentiated.__name__ = differentiated.__qualname__ = f"{label}_{name}"
    differentiated.__doc__ = getattr(plain, "__doc__", None)
    more = [inspect.Parameter(COTANGENT, inspect.Parameter.KEYWORD_ONLY)] if seeded else []
    parameters = [*signature.parameters.values(), *more]
    differentiated.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    if isinstance(f, GraphFunction | TensorFunction) and not seeded:
        return replace(f, name=differentiated.__name__, fn=differentiated)
    return differentiated


def _check_names(name: str, label: str, names: Sequence[str] | None, signature: inspect.Signature) -> None:
    for parameter in names or ():
        if parameter not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise GradientError(f"{name}: wrt={parameter!r} is no parameter of {label}; they are {known}")
    if names is not None and (not names or len(set(names)) < len(names)):
        raise GradientError(f"{name}: wrt={tuple(names)!r} of {label}; name at least one parameter, and each once")


def _is_value(x: Any) -> bool:
    """Whether an argument is a value of the graph, and no constant of Python."""
    if isinstance(x, tuple | list):
        return any(map(_is_value, x))
    return isinstance(x, Traced | np.ndarray) or constructor_of(type(x)) is not None


def _recorded(
    name: str,
    label: str,
    f: Callable[..., Any],
    arguments: Mapping[str, Any],
    wrt: Sequence[str] | None,
    cotangent: Any,
    *,
    value: bool,
    seeded: bool,
) -> Any:
    """Record `f` as a function of its own, differentiate that, and call what comes of it."""
    t = graph_trace(name)
    where = caller()
    what = f"{name} of {label}"
    values = {p: x for p, x in arguments.items() if _is_value(x) or p in (wrt or ())}
    constants = {p: x for p, x in arguments.items() if p not in values}
    atoms = {p: t.value(f"{what}: argument {p!r}", x) for p, x in values.items()}
    with located():
        positions = _positions(what, {p: a.annotation for p, a in atoms.items()}, wrt)

    def body(*xs: Any) -> Any:
        return f(**dict(zip(atoms, xs, strict=True)), **constants)

    parameters = _parameters(t, {p: a.annotation for p, a in atoms.items()})
    inside, result = t.inner(label, body, parameters)
    captured, dims = t.close([(inside, result)], [len(atoms)])
    functions = t.module.builder.functions
    primal = functions.pop(inside.name)
    with located():
        _check_result(what, primal, seeded)
    own = Differentiation(functions, t.module.reserve)
    by_tape = needs_tape(primal, own)
    made_by = Taped(own, Duals(functions, t.module.reserve, known_data())) if by_tape else own
    with located():
        made = made_by.gradient(primal, positions, t.module.reserve(f"{label}_{name}"), seeded=seeded, value=value)
    t.module.builder.add(made)
    seeds: tuple[Atom, ...] = ()
    if seeded:
        seeds = (t.value(f"{what}: the cotangent", cotangent, made.parameters[-1].annotation),)
    call = FunctionCall(made.name, (*atoms.values(), *captured, *seeds), tuple(map(symbol, dims)))
    return t.wrap(t.emit(call, where))


def _parameters(t: GraphTrace, annotations: Mapping[str, Annotation]) -> Mapping[str, Annotation]:
    """The parameters under names that no dim has."""
    if t.scope.isdisjoint(annotations):
        return annotations
    return {f"arg{k}": a for k, a in enumerate(annotations.values())}


def _positions(what: str, annotations: Mapping[str, Annotation], wrt: Sequence[str] | None) -> list[int]:
    """The positions of the parameters by which gradients are asked for."""
    names = list(annotations)
    if wrt is None:
        found = [k for k, a in enumerate(annotations.values()) if _all_float(a)]
        if not found:
            kinds = ", ".join(f"{p}: {a}" for p, a in annotations.items()) or "none"
            raise GradientError(f"{what}: no argument is a floating-point tensor; they are {kinds}")
        return found
    for p in wrt:
        if not _all_float(annotations[p]):
            raise GradientError(
                f"{what}: {p!r} is {annotations[p]}; only floating-point tensors have gradients: leave it out of wrt"
            )
    return [names.index(p) for p in wrt]


def _all_float(a: Annotation, within: frozenset[str] = frozenset()) -> bool:
    """Whether all tensors of a value are of floating-point types, and it is of nothing else."""
    match a:
        case TupleType(fields):
            return bool(fields) and all(_all_float(f, within) for f in fields)
        case DataType(name, arguments):
            own = [t for c in known_data()[name].constructors for _, t in c.fields] if name not in within else []
            return all(_all_float(t, within | {name}) for t in (*arguments, *own))
    return is_float(a) or isinstance(a, TypeVariable)


def _check_result(what: str, primal: Function, seeded: bool) -> None:
    found = primal.returns
    if seeded:
        if not _all_float(found):
            raise GradientError(f"{what}: it returns {found}; return floating-point tensors alone")
    elif not isinstance(found, TensorType) or found.shape != () or not float_leaves(found):
        raise GradientError(
            f"{what}: it returns {found}, not a floating-point scalar; reduce it with .sum() or .mean(), or use mirage.vjp"
        )
