"""Algebraic data types of users: dataclasses as the constructors of a declared type, and the types of the prelude."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import GenericAlias, UnionType
from typing import Annotated, Any, get_args, get_origin
from weakref import WeakKeyDictionary

from mirage.errors import DataError, MirageError
from mirage.frontends.annotate import DataSpec, annotation
from mirage.ir.annotations import Annotation, CallableType, DataType, TypeVariable, parts
from mirage.ir.data import LIST, OPTION, PRELUDE, TREE, Constructor, DataDeclaration, check_declarations
from mirage.ir.graph.nodes import Construct, Match, Module
from mirage.ir.graph.patterns import Case
from mirage.ir.program import identifier


@dataclass(frozen=True)
class Nil:
    """The empty list."""


@dataclass(frozen=True)
class Cons:
    """A list: its first value, and the list of the others."""

    head: Any
    tail: Any


#: the declarations of users, the latest of each name
_DECLARED: dict[str, DataDeclaration] = dict(PRELUDE)
#: the type and the number of the constructor that a class is
_CLASSES: WeakKeyDictionary[type, tuple[str, int]] = WeakKeyDictionary()

for _name, _known in (("List", (Nil, Cons)), ("Tree", TREE.classes), ("Option", OPTION.classes)):
    for _k, _class in enumerate(_known):
        _CLASSES[_class] = (_name, _k)


List = DataSpec("List", LIST.parameters)
Tree = DataSpec("Tree", TREE.parameters)
Option = DataSpec("Option", OPTION.parameters)


def function_type(parameters: Sequence[Any], returns: Any) -> CallableType:
    """The type of a function without effects as a value: `function_type([tensor("n")], tensor("n"))`."""
    given = tuple(annotation("function_type: a parameter", p) for p in parameters)
    return CallableType(given, annotation("function_type: the result", returns))


def type_variable(name: str) -> TypeVariable:
    """Any type, the same wherever it stands in the types of a function's parameters: `List(type_variable("a"))`."""
    return TypeVariable(identifier("type variable", name))


def data(name: str, *classes: type, parameters: Sequence[str] = ()) -> DataSpec:
    """Declare a data type of values that are of one of these dataclasses: `Expr = mi.data("Expr", Number, Sum)`.

    Annotations of the fields are types: `Annotated[Any, mi.tensor(4)]` or `mi.tensor(4)`, `list[...]`, `tuple[...]`, and in text
    the name of the type itself, of another one, or of a type parameter. The result is the type of values; one with parameters is
    called with their types. Programs take and give objects of the classes. A name that is declared again is the
    latest one. Raises DataError for a class that is no dataclass, a field without a type, and what is wrong with a declaration.
    """
    local: dict[str, Any] = {n: DataSpec(n, d.parameters) for n, d in _DECLARED.items()}
    local |= {p: TypeVariable(p) for p in parameters} | {name: DataType(name, tuple(map(TypeVariable, parameters)))}
    constructors = []
    for c in classes:
        if not isinstance(c, type) or not dataclasses.is_dataclass(c):
            raise DataError(f"data {name!r}: {c!r} is no dataclass; put @dataclass(frozen=True) above the class")
        try:
            hints = inspect.get_annotations(c, eval_str=True, locals=local)
        except NameError as e:
            raise DataError(f"data {name!r}: a field of {c.__name__}: {e}; use names that are defined before") from None
        union = frozenset(classes), DataType(name, tuple(map(TypeVariable, parameters)))
        fields = []
        for f in dataclasses.fields(c):
            what = f"data {name!r}: field {f.name!r} of {c.__name__}"
            fields.append((f.name, _type(what, hints[f.name], local, union)))
        constructors.append(Constructor(c.__name__, tuple(fields)))
    made = DataDeclaration(name, tuple(parameters), tuple(constructors), tuple(classes))
    needed = {a.name for c in constructors for _, t in c.fields for a in parts(t) if isinstance(a, DataType)} - {name}
    check_declarations({n: _DECLARED[n] for n in needed if n in _DECLARED} | {name: made})
    _DECLARED[name] = made
    for k, c in enumerate(classes):
        _CLASSES[c] = (name, k)
    return DataSpec(name, tuple(parameters))


def _type(
    what: str, spec: Any, local: dict[str, Any], union: tuple[frozenset[type], DataType] | None = None
) -> Annotation:
    """The annotation that a user writes as the type of a field."""

    def inner(s: Any) -> Annotation:
        return _type(what, s, local, union)

    if isinstance(spec, str) and spec in local:
        return inner(local[spec])
    if get_origin(spec) is Annotated:
        return inner(get_args(spec)[1])
    if isinstance(spec, GenericAlias) and get_origin(spec) is list:
        return DataType("List", (inner(get_args(spec)[0]),))
    if isinstance(spec, GenericAlias) and get_origin(spec) is tuple:
        return annotation(what, tuple(map(inner, get_args(spec))))
    if isinstance(spec, UnionType) and union is not None and frozenset(get_args(spec)) == union[0]:
        return union[1]
    if isinstance(spec, TypeVariable):
        return spec
    try:
        return annotation(what, spec)
    except MirageError as e:
        raise DataError(str(e)) from None


def constructor_of(kind: type) -> tuple[DataDeclaration, int] | None:
    """The data type and the number of the constructor that a class is; None for any other class."""
    found = _CLASSES.get(kind)
    return None if found is None else (_DECLARED[found[0]], found[1])


def declared(annotations: Iterable[Annotation]) -> dict[str, DataDeclaration]:
    """The declarations of users of all data types in annotations, and in the fields of these."""
    found: dict[str, DataDeclaration] = {}
    left = [a for annotation in annotations for a in parts(annotation)]
    while left:
        a = left.pop()
        if isinstance(a, DataType) and a.name not in found and a.name in _DECLARED:
            found[a.name] = _DECLARED[a.name]
            left += [p for c in found[a.name].constructors for _, t in c.fields for p in parts(t)]
    return {name: d for name, d in found.items() if name not in PRELUDE}


def known_data() -> dict[str, DataDeclaration]:
    """All data types, those of the prelude among them."""
    return dict(_DECLARED)


def with_declarations(module: Module) -> Module:
    """The module with the declarations of the data types in it."""
    annotations = [v.annotation for f in module for v in (*f.parameters, *(b.var for b in f.bindings), f.result)]
    # those that gradients made are made or matched somewhere
    made = {b.value.data.name: b.value.data for f in module for b in f.bindings if isinstance(b.value, Construct)}
    for f in module:
        for b in f.bindings:
            cases = [c.pattern for c in b.value.clauses] if isinstance(b.value, Match) else []
            made |= {p.data.name: p.data for p in cases if isinstance(p, Case)}
    found = {n: d for n, d in made.items() if n not in PRELUDE and n not in _DECLARED} | declared(annotations)
    return replace(module, data=dict(sorted(found.items())))
