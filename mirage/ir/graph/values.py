"""Values of data types as callers have them, lists and objects of their classes, and as programs do, records.

Nothing here recurs: data may be as deep as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

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
#: where a value is, for errors: the whole, and behind it the number of an item or the name of a field
Where: TypeAlias = "str | tuple[Where, int | str]"
#: what becomes of a value that is of no data type: its annotation, the value, where it is
Leaf = Callable[[Annotation, Any, Where], Any]
_OPEN = object()


def where_text(where: Where) -> str:
    """Where a value is, in words."""
    found: list[str] = []
    while isinstance(where, tuple):
        where, part = where
        found.append(f", item {part}" if isinstance(part, int) else part)
    return where + "".join(reversed(found))


class _Form:
    """How values of an annotation are taken: tensors and the like by `Leaf`, the others by their parts."""

    __slots__ = ("annotation", "cases", "classes", "data", "fields", "kind")

    def __init__(self, annotation: Annotation, kind: str) -> None:
        self.annotation, self.kind = annotation, kind
        #: of a tuple: its fields, with what stands for each in errors; of a list: its items
        self.fields: list[tuple[_Form, str]] = []
        self.data: DataDeclaration = LIST
        #: the constructor that a class is
        self.classes: dict[type, int] = {}
        #: fields of each constructor that has been met: form, what stands for it in errors, name
        self.cases: dict[int, list[tuple[_Form, str, str]]] = {}


class Taker:
    """Takes values of callers as programs have them, with the data types that are `known`. May be used for many values."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._forms: dict[Annotation, _Form] = {}

    def take(self, annotation: Annotation, value: Any, what: str, leaf: Leaf) -> Any:
        """What a program gets for what a caller passes: `leaf` gives that of all that is of no data type.

        Raises InputError, which begins with `what` and the place within, for what is not of the type.
        """
        done: list[Any] = []
        #: what is made of values with parts, which are kept beside it: `_OPEN` until all parts are there
        made: dict[tuple[int, int], tuple[Any, Any]] = {}
        tasks: list[Any] = [(self._form(annotation), value, what)]
        while tasks:
            task = tasks.pop()
            if len(task) == 4:
                make, many, key, whole = task
                parts = tuple(done[len(done) - many :])
                del done[len(done) - many :]
                found = make(parts)
                made[key] = whole, found
                done.append(found)
                continue
            form, value, where = task
            if form.kind == "leaf":
                done.append(leaf(form.annotation, value, where))
                continue
            key = id(value), id(form)
            met = made.get(key)
            if met is not None:
                if met[1] is _OPEN:
                    raise InputError(f"{where_text(where)} is a part of itself; pass data without cycles")
                done.append(met[1])
                continue
            if form.kind == "list" and form.fields[0][0].kind == "leaf" and type(value) is list:
                # most lists are of tensors
                item = form.fields[0][0].annotation
                found = linked([leaf(item, v, (where, k)) for k, v in enumerate(value)])
                made[key] = value, found
                done.append(found)
                continue
            make, inner = self._opened(form, value, where)
            if all([t[0].kind == "leaf" for t in inner]):
                found = make(tuple([leaf(f.annotation, v, at) for f, v, at in inner]))
                made[key] = value, found
                done.append(found)
                continue
            made[key] = value, _OPEN
            tasks.append((make, len(inner), key, value))
            inner.reverse()
            tasks += inner
        return done[0]

    def _form(self, annotation: Annotation) -> _Form:
        found = self._forms.get(annotation)
        if found is not None:
            return found
        match annotation:
            case TupleType(types):
                found = self._forms[annotation] = _Form(annotation, "tuple")
                text = ", field {}" if holds_data(annotation) else "[{}]"
                found.fields = [(self._form(t), text.format(k)) for k, t in enumerate(types)]
            case DataType(name, arguments):
                found = self._forms[annotation] = _Form(annotation, "list" if name == LIST.name else "data")
                if name == LIST.name:
                    found.fields = [(self._form(arguments[0]), "")]
                found.data = self._known[name]
                found.classes = {c: k for k, c in enumerate(found.data.classes)}
            case CallableType() | ReferenceType():
                found = self._forms[annotation] = _Form(annotation, "refused")
            case _:
                found = self._forms[annotation] = _Form(annotation, "leaf")
        return found

    def _opened(self, form: _Form, value: Any, where: Where) -> tuple[Callable[[tuple[Any, ...]], Any], list[Any]]:
        """What makes a value of its parts, and these: each with its form, and where it is."""
        if form.kind == "refused":
            raise InputError(f"{where_text(where)} is of type {form.annotation}, which only programs have; pass tensors and data")
        if form.kind == "tuple":
            if not isinstance(value, tuple | list) or len(value) != len(form.fields):
                many = f"{len(form.fields)} values; pass one, {form.annotation}"
                raise InputError(f"{where_text(where)} is not a tuple of {many}")
            return tuple, [(f, v, (where, name)) for (f, name), v in zip(form.fields, value, strict=True)]
        if form.kind == "list" and isinstance(value, tuple | list):
            item = form.fields[0][0]
            return linked, [(item, v, (where, k)) for k, v in enumerate(value)]
        data = form.data
        if isinstance(value, Record) and value.data == data:
            index, given = value.index, value.fields
            case = self._case(form, index)
        else:
            index = form.classes.get(type(value), -1)
            if index < 0:
                index = next((k for k, c in enumerate(data.classes) if isinstance(value, c)), -1)
            if index < 0:
                wanted = "a list" if data == LIST else " or ".join(c.__name__ for c in data.classes) or "a record of it"
                raise InputError(f"{where_text(where)} is {type(value).__name__}, not {form.annotation}; pass {wanted}")
            case = self._case(form, index)
            given = tuple([getattr(value, name) for _, _, name in case])
        inner = [(f, v, (where, text)) for (f, text, _), v in zip(case, given, strict=True)]
        return partial(Record, data, index), inner

    def _case(self, form: _Form, index: int) -> list[tuple[_Form, str, str]]:
        found = form.cases.get(index)
        if found is None:
            assert isinstance(form.annotation, DataType)
            types = form.data.fields(index, form.annotation.arguments)
            names = [name for name, _ in form.data.constructors[index].fields]
            found = form.cases[index] = [(self._form(t), f".{n}", n) for t, n in zip(types, names, strict=True)]
        return found


def to_value(annotation: Annotation, value: Any, known: Known, what: str, leaf: Callable[[Annotation, Any, str], Any]) -> Any:
    """As `Taker.take`, of one value; `leaf` gets the place in words."""
    return Taker(known).take(annotation, value, what, lambda a, v, where: leaf(a, v, where_text(where)))


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
