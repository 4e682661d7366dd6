"""Algebraic data types: declarations, the prelude, and values of them.

A declaration has type parameters and constructors; a value is a `Record`, of one of the constructors and with its fields. A field
may be of the type itself, so lists and trees are values, too (Relay, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirage.errors import DataError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    TypeVariable,
    parts,
    substitute_types,
    symbols_in,
)
from mirage.ir.program import identifier


@dataclass(frozen=True)
class Constructor:
    """One form of the values of a data type: names and annotations of its fields."""

    name: str
    fields: tuple[tuple[str, Annotation], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}: {a}' for name, a in self.fields)})"


@dataclass(frozen=True)
class DataDeclaration:
    """A data type: its type parameters, and its constructors, one at least.

    `classes` are the Python classes, one per constructor, as which callers give and get values; without, these are records.
    """

    name: str
    parameters: tuple[str, ...]
    constructors: tuple[Constructor, ...]
    classes: tuple[type, ...] = field(default=(), compare=False, repr=False)

    def fields(self, index: int, arguments: tuple[Annotation, ...]) -> tuple[Annotation, ...]:
        """The annotations of a constructor's fields in a value whose type has these arguments."""
        types = dict(zip(self.parameters, arguments, strict=True))
        return tuple(substitute_types(a, types) for _, a in self.constructors[index].fields)

    def check(self, known: Mapping[str, DataDeclaration]) -> None:
        """Raises DataError unless the declaration is well-formed beside all that are `known`, this one among them."""
        _type_name("data type", self.name)
        for p in self.parameters:
            if not identifier("type parameter", p)[0].islower():
                raise DataError(f"{self.name}: type parameter {p!r} begins with a capital; use a name such as a")
        if len(set(self.parameters)) != len(self.parameters):
            raise DataError(f"{self.name}: type parameters {', '.join(self.parameters)} repeat a name; use each once")
        if not self.constructors:
            raise DataError(f"{self.name}: it has no constructor, and so no value; give it one")
        for c in self.constructors:
            _type_name("constructor", c.name)
            names = [identifier("field", name) for name, _ in c.fields]
            if len(set(names)) != len(names):
                raise DataError(f"{self.name}: fields {', '.join(names)} of {c.name} repeat a name; use each once")
            for name, a in c.fields:
                self._check_field(f"{self.name}: field {name!r} of {c.name}", a, known)
        if not any(_is_finite(c, self, known, ()) for c in self.constructors):
            raise DataError(
                f"{self.name}: every constructor takes a {self.name}, so that no value can ever be made; add one without"
            )

    def _check_field(self, what: str, annotation: Annotation, known: Mapping[str, DataDeclaration]) -> None:
        check_types(what, annotation, known)
        for a in parts(annotation):
            if isinstance(a, TypeVariable) and a.name not in self.parameters:
                given = ", ".join(self.parameters) or "none"
                raise DataError(f"{what}: {a.name!r} is no type parameter of {self.name}, which has {given}; declare it")
        if symbols := sorted(symbols_in(annotation)):
            raise DataError(
                f"{what} is {annotation}: a declaration has no dim {symbols[0]!r}; use _ for a size that differs between values, "
                "or a type parameter for the whole field"
            )


def check_types(what: str, annotation: Annotation, known: Mapping[str, DataDeclaration]) -> None:
    """Raises DataError, which begins with `what`, for a data type that is not declared, or has another number of parameters."""
    for a in parts(annotation):
        if isinstance(a, DataType):
            if a.name not in known:
                raise DataError(f"{what}: there is no data type {a.name!r}; the data types are {', '.join(known)}")
            wanted = known[a.name].parameters
            if len(wanted) != len(a.arguments):
                names = f" ({', '.join(wanted)})" if wanted else ""
                raise DataError(
                    f"{what}: {a} has {len(a.arguments)} type arguments, and {a.name} takes {len(wanted)}{names}; "
                    "give one for each"
                )


def _type_name(what: str, name: str) -> None:
    if not identifier(what, name)[0].isupper() or name in RESERVED:
        why = "is taken" if name in RESERVED else "does not begin with a capital"
        raise DataError(f"{what} {name!r} {why}; use a name such as Tree")


def _is_finite(
    constructor: Constructor, of: DataDeclaration, known: Mapping[str, DataDeclaration], within: tuple[str, ...]
) -> bool:
    """Whether a constructor has values that need none of the types around it."""
    needed = [a for _, field_type in constructor.fields for a in _needed(field_type)]
    if any(a.name in (*within, of.name) for a in needed):
        return False
    inside = (*within, of.name)
    return all(any(_is_finite(c, known[a.name], known, inside) for c in known[a.name].constructors) for a in needed)


def _needed(annotation: Annotation) -> list[DataType]:
    """The data types of which a value of this annotation holds a value in any case."""
    if isinstance(annotation, DataType):
        return [annotation]
    return [] if isinstance(annotation, CallableType) else [a for a in parts(annotation) if isinstance(a, DataType)]


#: names of annotations that are no data types
RESERVED = frozenset(
    {"Tensor", "Shape", "Object", "Tuple", "Callable", "Effectful", "Never", "Ref", "Dim", "True", "False", "None"}
)


class Record:
    """A value of a data type: `index` is the number of its constructor."""

    __slots__ = ("data", "fields", "index")

    def __init__(self, data: DataDeclaration, index: int, fields: tuple[Any, ...] = ()) -> None:
        self.data = data
        self.index = index
        self.fields = fields

    @property
    def constructor(self) -> Constructor:
        return self.data.constructors[self.index]

    def __repr__(self) -> str:
        # a list is as deep as it is long
        shown = ["..." if isinstance(f, Record) and f.fields else str(f) for f in self.fields]
        return f"{self.constructor.name}({', '.join(shown)})"


_A = TypeVariable("a")


@dataclass(frozen=True)
class Leaf:
    """A tree of one value."""

    value: Any


@dataclass(frozen=True)
class Rose:
    """A tree: a value, and a list of trees below it."""

    value: Any
    children: list[Leaf | Rose]


@dataclass(frozen=True)
class Some:
    """A value that is there."""

    value: Any


@dataclass(frozen=True)
class Nothing:
    """A value that is not there."""


LIST = DataDeclaration(
    "List", ("a",), (Constructor("Nil"), Constructor("Cons", (("head", _A), ("tail", DataType("List", (_A,))))))
)
TREE = DataDeclaration(
    "Tree",
    ("a",),
    (
        Constructor("Leaf", (("value", _A),)),
        Constructor("Rose", (("value", _A), ("children", DataType("List", (DataType("Tree", (_A,)),))))),
    ),
    (Leaf, Rose),
)
OPTION = DataDeclaration("Option", ("a",), (Constructor("Nothing"), Constructor("Some", (("value", _A),))), (Nothing, Some))

#: what every module has
PRELUDE: Mapping[str, DataDeclaration] = {d.name: d for d in (LIST, TREE, OPTION)}

NIL, CONS = 0, 1


def check_declarations(own: Mapping[str, DataDeclaration]) -> dict[str, DataDeclaration]:
    """All data types of a module that declares these, the prelude among them; raises DataError for a wrong declaration."""
    for name, d in own.items():
        if name != d.name:
            raise DataError(f"data type {d.name} stands in the module as {name!r}; use its name")
        if name in PRELUDE and d != PRELUDE[name]:
            raise DataError(f"data type {name!r} is one of the prelude; give yours another name")
    known = {**PRELUDE, **own}
    constructors_of(known)
    for d in own.values():
        d.check(known)
    return known


def constructors_of(known: Mapping[str, DataDeclaration]) -> dict[str, tuple[DataDeclaration, int]]:
    """The constructors of data types, by name; raises DataError for a name that two have."""
    found: dict[str, tuple[DataDeclaration, int]] = {}
    for d in known.values():
        for k, c in enumerate(d.constructors):
            if c.name in found:
                raise DataError(f"{d.name}: constructor {c.name!r} is one of {found[c.name][0].name}, too; rename one of them")
            found[c.name] = (d, k)
    return found
