"""Patterns of matches: what they bind, and whether clauses cover all cases and each is reached.

Coverage is that of Maranget, "Warnings for pattern matching", 2007: a row of patterns is useful behind others if it matches a
value that none of them does. What is left over is shown as a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mirage.errors import ClauseError
from mirage.ir.data import DataDeclaration, Record


@dataclass(frozen=True)
class Wildcard:
    """Any value, which is dropped."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True)
class Bind:
    """Any value, which the clause's function gets; the name is for readers."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Case:
    """A value of one constructor of a data type whose fields match."""

    data: DataDeclaration
    index: int
    fields: tuple[Pattern, ...] = ()

    def __str__(self) -> str:
        return f"{self.data.constructors[self.index].name}({', '.join(map(str, self.fields))})"


@dataclass(frozen=True)
class Fields:
    """A tuple whose fields match."""

    fields: tuple[Pattern, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))}{',' if len(self.fields) == 1 else ''})"


Pattern: TypeAlias = Wildcard | Bind | Case | Fields


def names(pattern: Pattern) -> list[str]:
    """The names that a pattern binds, in order."""
    match pattern:
        case Bind(name):
            return [name]
        case Case(fields=fields) | Fields(fields):
            return [n for f in fields for n in names(f)]
    return []


def bound(pattern: Pattern, value: Any, found: list[Any]) -> bool:
    """Whether a value matches; appends what the pattern binds."""
    match pattern:
        case Wildcard():
            return True
        case Bind():
            found.append(value)
            return True
        case Case(index=index, fields=fields):
            assert isinstance(value, Record)
            return value.index == index and all(bound(p, v, found) for p, v in zip(fields, value.fields, strict=True))
        case Fields(fields):
            return all(bound(p, v, found) for p, v in zip(fields, value, strict=True))


_ANY = Wildcard()
Row: TypeAlias = tuple[Pattern, ...]


def check_clauses(patterns: Sequence[Pattern]) -> None:
    """Raises ClauseError where patterns leave a case out, or one is never reached."""
    if (left := missing(patterns)) is not None:
        raise ClauseError(f"match: no clause for {left}; add one")
    if (k := unreached(patterns)) is not None:
        raise ClauseError(f"match: the clause for {patterns[k]} is never reached, behind those before it; remove it")


def missing(patterns: Sequence[Pattern]) -> Pattern | None:
    """A pattern of values that none of the patterns matches; None where they match all."""
    found = _useful([(p,) for p in patterns], (_ANY,))
    return None if found is None else found[0]


def unreached(patterns: Sequence[Pattern]) -> int | None:
    """The number of the first pattern that only matches what those before it do; None where each is of use."""
    for k, p in enumerate(patterns):
        if _useful([(q,) for q in patterns[:k]], (p,)) is None:
            return k
    return None


def _useful(rows: list[Row], row: Row) -> Row | None:
    """Patterns of values that `row` matches and none of `rows` does; None where there are none."""
    if not row:
        return None if rows else ()
    first, rest = row[0], row[1:]
    if isinstance(first, Case | Fields):
        return _within(rows, first, first.fields, rest)
    heads = [r[0] for r in rows]
    group = next((h for h in heads if isinstance(h, Fields)), None)
    if group is not None:
        return _within(rows, group, (_ANY,) * len(group.fields), rest)
    cases = {h.index: h for h in heads if isinstance(h, Case)}
    data = next((h.data for h in cases.values()), None)
    if data is not None and len(cases) == len(data.constructors):
        for k in range(len(data.constructors)):
            if (found := _within(rows, cases[k], (_ANY,) * len(cases[k].fields), rest)) is not None:
                return found
        return None
    found = _useful([r[1:] for r in rows if isinstance(r[0], Wildcard | Bind)], rest)
    if found is None:
        return None
    if data is None:
        return (_ANY, *found)
    other = next(k for k in range(len(data.constructors)) if k not in cases)
    return (Case(data, other, (_ANY,) * len(data.constructors[other].fields)), *found)


def _within(rows: list[Row], head: Case | Fields, fields: Row, rest: Row) -> Row | None:
    """As `_useful`, for values of the form of `head`, with these patterns of its fields and of the rest."""
    many = len(head.fields)
    inside: list[Row] = []
    for r in rows:
        match r[0]:
            case Wildcard() | Bind():
                inside.append(((_ANY,) * many) + r[1:])
            case Case(index=index, fields=own) if isinstance(head, Case) and index == head.index:
                inside.append(own + r[1:])
            case Fields(own) if isinstance(head, Fields):
                inside.append(own + r[1:])
    found = _useful(inside, (*fields, *rest))
    if found is None:
        return None
    made = Case(head.data, head.index, found[:many]) if isinstance(head, Case) else Fields(found[:many])
    return (made, *found[many:])
