"""Sizes of the dim symbols of every function, from those of the main function: where subprograms are tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage.compiler.context import Sizes
from mirage.errors import MirageError
from mirage.ir.annotations import symbols_in
from mirage.ir.dims import Dim, evaluate, symbols_of
from mirage.ir.graph.effects import callees
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.nodes import Call, Constant, Function, FunctionCall, If, Loop, Module, ShapeValue
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import symbols_used
from mirage.ir.types import TensorType

#: elements along a dim that nothing is known of
DEFAULT_SIZE = 128


def sizes_of_functions(module: Module, main: Sequence[Sizes]) -> dict[str, list[dict[str, int]]]:
    """Per function, a set of sizes of its symbols for each set of the main function's; only functions that are called.

    A symbol that only a run can know, as a match_cast introduces it, is `DEFAULT_SIZE`.
    """
    found: dict[str, list[dict[str, int]]] = {module.main: [dict(s) for s in main]}
    for name in reversed(callees_first(module)):
        if name not in found:
            continue
        function = module.functions[name]
        for sizes in found[name]:
            for s in sorted(_symbols(function) - sizes.keys()):
                sizes[s] = DEFAULT_SIZE
        for b in function.bindings:
            for callee in () if isinstance(b.value, Constant | ShapeValue) else callees(b.value):
                target = module.functions[callee]
                reached = found.setdefault(callee, [])
                for sizes in found[name]:
                    new = _reached(b.value, target, sizes)  # type: ignore[arg-type]
                    if new not in reached:
                        reached.append(new)
    return found


def _symbols(function: Function) -> set[str]:
    found = set(function.dims)
    for p in function.parameters:
        found |= symbols_in(p.annotation)
    for b in function.bindings:
        found |= symbols_used(b.value) | symbols_in(b.var.annotation)
    return found


def _reached(call: Call, callee: Function, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the callee's symbols that follow from the call's arguments."""
    given = [a.annotation for a in call.args]
    match call:
        case FunctionCall(dims=dims):
            pass
        case If(dims=dims):
            given = given[1:]
        case Loop(dims=dims, count=count):
            given = [TensorType((), "int64"), *(given if count is not None else given[1:])]
        case _:
            return {}
    values: dict[str, Dim] = dict(zip(callee.dims, dims, strict=True))
    for p, a in zip(callee.parameters, given, strict=True):
        match_dims(p.annotation, a, values, callee.name)
    found: dict[str, int] = {}
    for name, dim in values.items():
        if symbols_of(dim) <= sizes.keys():
            try:
                found[name] = evaluate(dim, sizes)
            except MirageError:
                continue
    return found
