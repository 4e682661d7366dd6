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
    NeverType,
    ObjectType,
    TypeVariable,
    map_dims,
    parts,
    substitute_types,
    symbols_in,
    without_symbols,
)
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.nodes import Atom, Closure


def polymorphic(specs: Mapping[str, Annotation]) -> bool:
    """Whether the types of parameters have type variables."""
    return any(map(variables_in, specs.values()))


def variables_in(annotation: Annotation) -> set[str]:
    """Names of the type variables."""
    return {a.name for a in parts(annotation) if isinstance(a, TypeVariable)}


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


def own_dims(types: Mapping[str, Annotation], taken: set[str]) -> tuple[dict[str, Annotation], str]:
    """The types with dims of the function's own, none of which is `taken`, and a key that uses of the same types share.

    A dim that is a symbol keeps its name, where that is free.
    """
    names: dict[Dim, Dim] = {}
    symbols = {s for a in types.values() for s in symbols_in(a)}

    def own(d: Dim) -> Dim:
        if symbols_of(d) and d not in names:
            free = d.is_Symbol and d.name not in taken
            fresh = (f"d{k}" for k in range(1 << 16) if f"d{k}" not in taken | symbols)
            names[d] = d if free else symbol(next(n for n in fresh if symbol(n) not in names.values()))
        return names.get(d, d)

    def numbered(d: Dim) -> Dim:
        return symbol(f"k{list(names.values()).index(d)}") if d in names.values() else d

    found = {n: map_dims(a, own) for n, a in types.items()}
    return found, ", ".join(f"{n}={map_dims(a, numbered)}" for n, a in sorted(found.items()))


def grows(before: Mapping[str, Annotation], now: Mapping[str, Annotation]) -> str | None:
    """A type variable whose type is, now, one around what it was before; None where there is none."""
    for n, a in now.items():
        was = before.get(n)
        if was is not None and not isinstance(was, NeverType) and _shape(was) in map(_shape, list(parts(a))[1:]):
            return n
    return None


def _shape(a: Annotation) -> Annotation:
    return map_dims(a, lambda _: None)

