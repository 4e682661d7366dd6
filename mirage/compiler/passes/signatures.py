"""What a call asks of its callee's signature: values of the callee's dim symbols, and arguments that need a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.ir.annotations import Annotation, at_least, substitute_dims, symbols_in
from mirage.ir.dims import Dim
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.nodes import Function, FunctionCall, If, Loop, MatchCast, Module
from mirage.ir.graph.traverse import signature_symbols
from mirage.ir.types import TensorType


@dataclass(frozen=True)
class Fit:
    """How arguments fit a signature.

    `values` are the callee's dim symbols in the caller's dims; `wanted` the annotations of the parameters in these;
    `unchecked` the positions of the arguments that are not known to fit at every size; `open` the callee's symbols that
    nothing but the arguments at run time determines.
    """

    values: Mapping[str, Dim]
    wanted: tuple[Annotation, ...]
    unchecked: tuple[int, ...]
    open: frozenset[str]


def fit(callee: Function, given: Sequence[Annotation], dims: Sequence[Dim]) -> Fit:
    """How arguments of these annotations fit a callee; raises GraphError where they never do."""
    values: dict[str, Dim] = dict(zip(callee.dims, dims, strict=True))
    for p, a in zip(callee.parameters, given, strict=True):
        match_dims(p.annotation, a, values, f"call of {callee.name}: argument {p.name!r}")
    wanted = tuple(substitute_dims(p.annotation, values) for p in callee.parameters)
    own = [symbols_in(p.annotation) - values.keys() for p in callee.parameters]
    unchecked = tuple(i for i, (w, a) in enumerate(zip(wanted, given, strict=True)) if own[i] or not at_least(w, a))
    return Fit(values, wanted, unchecked, frozenset(signature_symbols(callee) - values.keys()))


def call_fits(call: FunctionCall | If | Loop, functions: Mapping[str, Function]) -> list[tuple[Function, Fit]]:
    """How the arguments of a call fit each function that it may call; a loop's as they are before the first round."""
    args = [a.annotation for a in call.args]
    match call:
        case FunctionCall(function=name, dims=dims):
            names = [name]
        case If(then=then, orelse=orelse, dims=dims):
            names, args = [then, orelse], args[1:]
        case Loop(body=name, count=count, dims=dims):
            names, args = [name], [TensorType((), "int64"), *(args if count is not None else args[1:])]
    return [(functions[n], fit(functions[n], args, dims)) for n in names]


def has_checks(function: Function, functions: Mapping[str, Function]) -> bool:
    """Whether a call of a function may fail at run time: by a cast in it, or by a call whose arguments may not fit."""
    return any(
        isinstance(b.value, MatchCast)
        or (isinstance(b.value, FunctionCall | If | Loop) and call_may_fail(b.value, functions))
        for b in function.bindings
    )


def call_may_fail(call: FunctionCall | If | Loop, functions: Mapping[str, Function]) -> bool:
    """Whether a call checks anything at run time, so that it has to stay even where nothing uses its result."""
    if isinstance(call, Loop) and (call.bound is not None or call.count is None):
        return True
    return any(f.unchecked or has_checks(callee, functions) for callee, f in call_fits(call, functions))


def calls_by_callee(module: Module) -> dict[str, list[tuple[Function, FunctionCall | If | Loop]]]:
    """The calls of each function of a module, with the functions that they are in."""
    found: dict[str, list[tuple[Function, FunctionCall | If | Loop]]] = {name: [] for name in module.functions}
    for f in module:
        for b in f.bindings:
            match b.value:
                case FunctionCall(function=name) | Loop(body=name):
                    found[name].append((f, b.value))
                case If(then=then, orelse=orelse):
                    for name in dict.fromkeys((then, orelse)):
                        found[name].append((f, b.value))
    return found
