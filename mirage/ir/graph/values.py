"""Values of data types as callers have them, lists and objects of their classes, and as programs do, records.

Nothing here recurs: data may be as deep as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mirage.errors import DepthError, InputError
from mirage.ir.annotations import Annotation, CallableType, DataType, ReferenceType, TupleType, parts
from mirage.ir.data import CONS, LIST, NIL, DataDeclaration, Record

Known = Mapping[str, DataDeclaration]


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
class Where:
    """Where a value is, for errors: `part` of another place, or a whole."""

    __slots__ = ("of", "part")

    def __init__(self, part: str, of: Where | None = None) -> None:
        self.part = part
        self.of = of

    def __str__(self) -> str:
        found: list[str] = []
        where: Where | None = self
        while where is not None:
            found.append(where.part)
            where = where.of
        return "".join(reversed(found))


#: what becomes of a value that is of no data type: its annotation, the value, where it is
Leaf = Callable[[Annotation, Any, Where], Any]
_OPEN = object()


def to_value(annotation: Annotation, value: Any, known: Known, what: str, leaf: Leaf) -> Any:
    """What a program gets for what a caller passes: `leaf` gives that of all that is of no data type, of those `known`.

    Raises InputError, which begins with `what` and the place within, for what is not of the type.
    """
    done: list[Any] = []
    #: what is made of values with parts, which are kept beside it: `_OPEN` until all parts are there
    made: dict[tuple[int, Annotation], tuple[Any, Any]] = {}
    tasks: list[Any] = [(annotation, value, Where(what))]
    while tasks:
        task = tasks.pop()
        if len(task) == 4:
            make, many, key, whole = task
            found = make(tuple(done[len(done) - many :]))
            del done[len(done) - many :]
            made[key] = whole, found
            done.append(found)
            continue
        annotation, value, where = task
        if not isinstance(annotation, DataType | TupleType | CallableType | ReferenceType):
            done.append(leaf(annotation, value, where))
            continue
        key = id(value), annotation
        if key not in made:
            make, inner = _opened(annotation, value, where, known)
            made[key] = value, _OPEN
            tasks.append((make, len(inner), key, value))
            tasks += reversed(inner)
        elif made[key][1] is _OPEN:
            raise InputError(f"{where} is a part of itself; pass data without cycles")
        else:
            done.append(made[key][1])
    return done[0]


def _opened(annotation: Annotation, value: Any, where: Where, known: Known) -> tuple[Callable[[tuple[Any, ...]], Any], list[Any]]:
    """What makes a value of its parts, and these: each with its annotation, and where it is."""
    if isinstance(annotation, TupleType):
        if not isinstance(value, tuple | list) or len(value) != len(annotation.fields):
            many = f"{len(annotation.fields)} values; pass one, {annotation}"
            raise InputError(f"{where} is not a tuple of {many}")
        text = ", field {}" if holds_data(annotation) else "[{}]"
        fields = zip(annotation.fields, value, strict=True)
        return tuple, [(t, v, Where(text.format(k), where)) for k, (t, v) in enumerate(fields)]
    if not isinstance(annotation, DataType):
        raise InputError(f"{where} is of type {annotation}, which only programs have; pass tensors and data")
    data = known[annotation.name]
    if data == LIST and isinstance(value, tuple | list):
        return linked, [(annotation.arguments[0], v, Where(f", item {k}", where)) for k, v in enumerate(value)]
    if isinstance(value, Record) and value.data == data:
        index, given = value.index, value.fields
    else:
        found = next((k for k, c in enumerate(data.classes) if isinstance(value, c)), None)
        if found is None:
            wanted = "a list" if data == LIST else " or ".join(c.__name__ for c in data.classes) or "a record of it"
            raise InputError(f"{where} is {type(value).__name__}, not {annotation}; pass {wanted}")
        index = found
        given = tuple([getattr(value, name) for name, _ in data.constructors[index].fields])
    if not 0 <= index < len(data.constructors) or len(given) != len(data.constructors[index].fields):
        raise InputError(f"{where} is constructor {index} of {annotation} with {len(given)} fields, which there is not")
    names = [f".{name}" for name, _ in data.constructors[index].fields]
    types = data.fields(index, annotation.arguments)
    return partial(Record, data, index), [(t, v, Where(n, where)) for t, v, n in zip(types, given, names, strict=True)]


def from_value(value: Any, leaf: Callable[[Any], Any] = lambda v: v) -> Any:
    """What a caller gets for what a program returns: lists, and objects of the classes of data types that have some.

    Each is an object of its own, also where the program has one value in several places. Raises InputError for a part of itself.
    """
    done: list[Any] = []
    open_: set[int] = set()
    tasks: list[Any] = [value]
    while tasks:
        task = tasks.pop()
        if type(task) is _Made:
            parts = done[len(done) - task.many :]
            del done[len(done) - task.many :]
            done.append(task.make(parts))
            open_.discard(task.key)
            continue
        found = _given(task)
        if found is None:
            done.append(leaf(task))
            continue
        if id(task) in open_:
            raise InputError("a result is a part of itself; return data without cycles")
        make, inner = found
        open_.add(id(task))
        tasks.append(_Made(make, len(inner), id(task)))
        tasks += reversed(inner)
    return done[0]


class _Made:
    """What makes a value of its last parts, and what it is known by."""

    __slots__ = ("key", "make", "many")

    def __init__(self, make: Callable[[list[Any]], Any], many: int, key: int) -> None:
        self.make, self.many, self.key = make, many, key


def _given(value: Any) -> tuple[Callable[[list[Any]], Any], list[Any]] | None:
    if isinstance(value, tuple):
        return tuple, list(value)
    if not isinstance(value, Record):
        return None
    if value.data is LIST or value.data == LIST:
        return list, list(items(value))
    inner = list(value.fields)
    if not value.data.classes:
        return (lambda made: Record(value.data, value.index, tuple(made))), inner
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
