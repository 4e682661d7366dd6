"""Values of data types as callers have them, lists and objects of their classes, and as programs do, records.

Nothing here recurs: data may be as deep as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mirage.errors import DepthError, InputError
from mirage.ir.annotations import Annotation, CallableType, DataType, ObjectType, ReferenceType, TupleType, parts
from mirage.ir.data import CONS, LIST, NIL, DataDeclaration, Record

Known = Mapping[str, DataDeclaration]
#: what becomes of a value that is of no data type: its annotation, the value, what it is called in errors
Leaf = Callable[[Annotation, Any, str], Any]


class FunctionValue:
    """A function as a value: its last arguments, and the sizes of its extra shape parameters, are given."""

    __slots__ = ("args", "dims", "function")

    def __init__(self, function: Any, args: tuple[Any, ...], dims: tuple[int, ...]) -> None:
        self.function = function
        self.args = args
        self.dims = dims


class Reference:
    """A place that holds a value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def too_deep(calls: int, last: str) -> DepthError:
    """The error of a call of the function `last` inside of so many others."""
    return DepthError(
        f"{calls} calls are nested, the last one of {last}; let it call itself as its last step, or use a loop"
    )


def holds_data(annotation: Annotation) -> bool:
    """Whether values of an annotation have other forms for callers than for programs."""
    return any(isinstance(a, DataType) for a in parts(annotation))


#: calls that may be nested
MAX_DEPTH = 500_000
#: a value in parts: what makes it of these, and the parts, each with its annotation, and its place in errors
Opened = tuple[Callable[[tuple[Any, ...]], Any], list[tuple[Annotation, Any, str]]]
_Task = tuple[Annotation, Any, str]
#: what makes a value of its parts, how many these are, and what it is known by
_Made = tuple[Callable[[tuple[Any, ...]], Any], int, tuple[int, Annotation], Any]
_OPEN = object()


def to_value(annotation: Annotation, value: Any, known: Known, what: str, leaf: Leaf) -> Any:
    """What a program gets for what a caller passes: `leaf` gives that of all that is of no data type.

    Raises InputError, which begins with `what` and the place within, for what is not of the type.
    """
    return _rebuilt(annotation, value, what, leaf, partial(_taken, known), shared=True)


def from_value(value: Any, leaf: Callable[[Any], Any] = lambda v: v) -> Any:
    """What a caller gets for what a program returns: lists, and objects of the classes of data types that have some.

    Each is an object of its own, also where the program has one value in several places.
    """
    return _rebuilt(ObjectType(), value, "", lambda _, v, __: leaf(v), _given, shared=False)


def _rebuilt(
    annotation: Annotation, value: Any, what: str, leaf: Leaf, opened: Callable[[Annotation, Any, str], Opened | None], *,
    shared: bool,
) -> Any:  # fmt: skip
    done: list[Any] = []
    #: what is made of values with parts, which are kept beside it: `_OPEN` until all parts are there
    made: dict[tuple[int, Annotation], tuple[Any, Any]] = {}
    tasks: list[_Task | _Made] = [(annotation, value, what)]
    while tasks:
        task = tasks.pop()
        if len(task) == 4:
            make, many, key, whole = task
            taken = tuple(done[len(done) - many :])
            del done[len(done) - many :]
            done.append(make(taken))
            made[key] = whole, done[-1]
            continue
        annotation, value, what = task
        found = opened(annotation, value, what)
        if found is None:
            done.append(leaf(annotation, value, what))
            continue
        key = id(value), annotation
        known = made.get(key)
        if known is not None and known[1] is _OPEN:
            raise InputError(f"{what} is a part of itself; pass data without cycles")
        if known is not None and shared:
            done.append(known[1])
            continue
        make, inner = found
        made[key] = value, _OPEN
        tasks.append((make, len(inner), key, value))
        tasks += reversed(inner)
    return done[0]


def _taken(known: Known, annotation: Annotation, value: Any, what: str) -> Opened | None:
    match annotation:
        case TupleType(types) if holds_data(annotation):
            if not isinstance(value, tuple | list) or len(value) != len(types):
                raise InputError(f"{what} is not a tuple of {len(types)} values; pass one, {annotation}")
            return tuple, [(t, v, f"{what}, field {k}") for k, (t, v) in enumerate(zip(types, value, strict=True))]
        case DataType("List", (element,)) if isinstance(value, tuple | list):
            return linked, [(element, v, f"{what}, item {k}") for k, v in enumerate(value)]
        case DataType(name, arguments):
            data = known[name]
            if isinstance(value, Record) and value.data == data:
                index, fields = value.index, value.fields
            else:
                index = next((k for k, c in enumerate(data.classes) if isinstance(value, c)), -1)
                if index < 0:
                    wanted = "a list" if data == LIST else " or ".join(c.__name__ for c in data.classes) or "a record of it"
                    raise InputError(f"{what} is {type(value).__name__}, not {annotation}; pass {wanted}")
                fields = tuple(getattr(value, f) for f, _ in data.constructors[index].fields)
            names = [f for f, _ in data.constructors[index].fields]
            inner = [
                (a, v, f"{what}.{f}") for a, v, f in zip(data.fields(index, arguments), fields, names, strict=True)
            ]
            return partial(Record, data, index), inner
        case CallableType() | ReferenceType():
            raise InputError(f"{what} is of type {annotation}, which only programs have; pass tensors and data")
    return None


def _given(annotation: Annotation, value: Any, what: str) -> Opened | None:
    if isinstance(value, tuple):
        return tuple, [(annotation, v, "") for v in value]
    if not isinstance(value, Record):
        return None
    if value.data == LIST:
        return list, [(annotation, v, "") for v in items(value)]
    inner = [(annotation, v, "") for v in value.fields]
    if not value.data.classes:
        return partial(Record, value.data, value.index), inner
    kind = value.data.classes[value.index]
    return (lambda made: kind(*made)), inner


def linked(values: Iterable[Any]) -> Record:
    """The list of these values."""
    found = Record(LIST, NIL)
    for v in reversed(tuple(values)):
        found = Record(LIST, CONS, (v, found))
    return found


def items(value: Record) -> Iterator[Any]:
    """The values of a list."""
    while value.index == CONS:
        head, value = value.fields
        yield head
