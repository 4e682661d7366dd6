"""Functions that take any types, as they are used: each use has types, and dims of its own (monomorphization)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage.errors import GraphError
from mirage.frontends.graph import GraphTrace
from mirage.frontends.proxy import Traced, located
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    ObjectType,
    TypeVariable,
    substitute_types,
    symbols_in,
    without_symbols,
)
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.monomorphic import variables_in
from mirage.ir.graph.nodes import Atom, Closure


def polymorphic(specs: Mapping[str, Annotation]) -> bool:
    """Whether the types of parameters have type variables."""
    return any(map(variables_in, specs.values()))


def types_of_use(
    t: GraphTrace, name: str, specs: Mapping[str, Annotation], values: Mapping[str, Any]
) -> tuple[dict[str, Annotation], dict[str, Atom]]:
    """What the type variables of a function are where it is called with these values, and the atoms of these.

    Python functions come last: the types of the others tell those of their parameters. Raises GraphError where two arguments
    tell different types, or nothing tells one.
    """
    types: dict[str, Annotation] = {}
    atoms: dict[str, Atom] = {}
    later = {p for p, x in values.items() if callable(x) and not isinstance(x, Traced) and p in specs}
    for p in (*(p for p in specs if p not in later), *(p for p in specs if p in later)):
        what, spec = f"call of {name}: argument {p!r}", specs[p]
        wanted = _filled(spec, types)
        if p in later and isinstance(spec, CallableType) and spec.parameters is not None:
            with located():
                for a in spec.parameters:
                    if unknown := sorted(variables_in(a) - types.keys()):
                        raise GraphError(
                            f"{what}: nothing tells its type {unknown[0]!r}; pass a value of that type, too, or "
                            "mirage.closure(fn, mirage.tensor(...), ...)"
                        )
            given = tuple(_filled(a, types) for a in spec.parameters)
            atoms[p] = t.value(what, values[p], CallableType(given, ObjectType()))
            # what it returns of these: as a value, it may be called with other dims
            found: Annotation = CallableType(given, _returned(t, atoms[p]))
        else:
            atoms[p] = t.value(what, values[p], None if isinstance(wanted, TypeVariable) else wanted)
            found = atoms[p].annotation
        with located():
            match_dims(spec, found, {}, what, types)
    return types, atoms


def _returned(t: GraphTrace, closure: Atom) -> Annotation:
    """What the function returns that a closure was just made of, in dims that are known where it was."""
    made = t.function.definition(closure)
    assert made is not None and isinstance(made.value, Closure)
    returns = t.module.builder.functions[made.value.function].returns
    return without_symbols(returns, symbols_in(returns) - t.scope)


def _filled(a: Annotation, types: Mapping[str, Annotation]) -> Annotation:
    """The annotation with the types that are known."""
    return substitute_types(a, {n: types.get(n, TypeVariable(n)) for n in variables_in(a)})
