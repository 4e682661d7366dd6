"""Values as JSON, by their annotated types: how everything that is stored is written, read and checked.

| type | JSON |
| --- | --- |
| `bool`, `int`, `str`, `None`, `Literal` | as it is |
| `float` | a number, or "inf", "-inf", "nan", which JSON lacks |
| `Enum` | its value |
| `tuple`, `list` | an array |
| `Mapping[str, ...]` | an object; an array of pairs where it is annotated with `IN_ORDER` |
| a dim, a quotient | text, such as "4*n" and "1/3" |
| a dataclass | an object of its fields, without those that have their defaults |
| a dataclass that has subclasses, several dataclasses of which one is meant | the same, with the name of the class as "is" |
| a class with `from_text` | its text |
| `Json` | as it is: to be read later |
| `Any` | as it is; dims, quotients and the like as objects of one field: {"dim": "4*n"} |

What is read is of the annotated type, or a FormatError names its place: no other class is made, and nothing is evaluated as
code. `Annotated` types carry checks: functions of the value, which raise ValueError with what was expected instead. A class
with `check_stored` has the last word, with an error of its own.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import sympy

from mirage.errors import FormatError, MirageError
from mirage.folders import read_text
from mirage.ir.dims import dim_text, to_dim

T = TypeVar("T")
#: a JSON value that is neither written nor read here
Json = NewType("Json", object)
Write = Callable[[Any], Any]
Read = Callable[[Any], Any]

#: items of an array that is bounded, and characters of a name, far above what is searched
MAX_ITEMS = 1024
MAX_TEXT = 256

#: annotates mappings whose order matters: that of a JSON object may be lost
IN_ORDER = "in order"

_NUMBER = re.compile(r"-?[0-9]{1,1500}(/0*[1-9][0-9]{0,1500})?")


@dataclass(frozen=True)
class Form:
    """A kind of document, the version of its layout that this release reads, and what to do about any other."""

    name: str
    schema: int
    remedy: str

    def to_json(self, value: Any) -> dict[str, Any]:
        """The value, a dataclass, as a JSON object that says what it is."""
        return {"format": self.name, "schema": self.schema, **encode(value)}

    def from_json(self, kind: type[T], data: Any, file: str = "") -> T:
        """The value of that class in a JSON object, of a file that errors name. Raises FormatError."""
        where = f"{file}: {self.noun}" if file else self.noun
        if not self.names(data):
            raise FormatError(f"{where}: not a {self.name}; {self.remedy}")
        if data.get("schema") != self.schema:
            raise FormatError(f"{where}: schema {data.get('schema')!r} is not {self.schema}; {self.remedy}")
        rest = {k: v for k, v in data.items() if k not in ("format", "schema")}
        try:
            return decode(kind, rest, where)
        except FormatError as e:
            raise FormatError(f"{e}; {self.remedy}") from None

    @property
    def noun(self) -> str:
        """The last word of the name."""
        return self.name.split()[-1]

    def to_text(self, value: Any) -> str:
        """The value as JSON text on one line."""
        return json.dumps(self.to_json(value), separators=(",", ":"), allow_nan=False)

    def from_text(self, kind: type[T], text: str) -> T:
        """The value in a JSON text; raises FormatError."""
        try:
            return self.from_json(kind, parse_json(text))
        except ValueError as e:
            raise FormatError(f"{self.noun}: not valid JSON ({e}); {self.remedy}") from None

    def names(self, data: Any) -> bool:
        """Whether a JSON value says that it is of this kind."""
        return isinstance(data, dict) and data.get("format") == self.name


#: everything that is stored
RESULT = Form("mirage result", 7, "superoptimize the program again")
KERNEL = Form("mirage kernel", 2, "compile the program again")
RANKED_KERNEL = Form("mirage ranked kernel", 2, "compile the program again")
LOOPS = Form("mirage loops", 2, "compile the program again")
EXECUTABLE = Form("mirage executable", 3, "compile the program again")
EXPORT = Form("mirage results export", 3, "give a file written by an export of this version")
JOB = Form("mirage job", 1, "run the job again under another name")
JOB_STEP = Form("mirage job step", 1, "use the same version of the package on all machines")
TORCH_MODEL = Form("mirage torch model", 2, "compile the model again")
ONNX_MODEL = Form("mirage ONNX model", 1, "compile the model again")


def encode(value: Any, kind: Any = None) -> Any:
    """The value as a JSON value; of a type that is not told by its class if `kind` is given.

    Raises FormatError for an attribute of a class that has no JSON.
    """
    return _codec(type(value) if kind is None else kind)[0](value)


def decode(kind: type[T], data: Any, where: str) -> T:
    """The value of that type which `encode` wrote; raises FormatError, which begins with `where` and names the place."""
    try:
        found: T = _codec(kind)[1](data)
        return found
    except _Misfit as e:
        raise FormatError(f"{where}{''.join(reversed(e.path))}: {e}") from None
    except RecursionError:
        raise FormatError(f"{where}: nested too deeply") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; raises ValueError for what is not JSON, NaN and infinity included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The JSON value of a file; raises InputError where it cannot be read, FormatError where it is no JSON."""
    try:
        return parse_json(read_text(path, "a file of JSON"))
    except ValueError as e:
        raise FormatError(f"{path}: not valid JSON ({e}); write the file again") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def at_least(least: float, finite: bool = True) -> Callable[[float], None]:
    """A check of numbers, for `Annotated`."""
    return within(least, sys.float_info.max if finite else math.inf)


def within(least: float, most: float) -> Callable[[float], None]:
    """A check of numbers: from `least` to `most`."""

    def check(value: float) -> None:
        if not least <= value <= most:
            raise ValueError(f"a number of {least} to {most}")

    return check


def above_zero(value: float) -> None:
    """A check of numbers: positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError("a positive number")


#: the place of something in a list
Index: TypeAlias = Annotated[int, within(0, 999_999)]


def one_of(*values: str) -> Callable[[str], None]:
    """A check of texts."""

    def check(value: str) -> None:
        if value not in values:
            raise ValueError(f"one of {', '.join(values)}")

    return check


def few(value: Any) -> None:
    """A check of arrays and objects: at most `MAX_ITEMS` items."""
    if len(value) > MAX_ITEMS:
        raise ValueError(f"at most {MAX_ITEMS} items")


def short(value: str) -> None:
    """A check of texts: at most `MAX_TEXT` printable characters."""
    if len(value) > MAX_TEXT or not value.isprintable():
        raise ValueError(f"at most {MAX_TEXT} printable characters")


def register(kind: type, tag: str | None, write: Write, read: Read) -> None:
    """Store values of a class as what `write` makes of them; where any value may be, in an object with the field `tag`, or not.

    `read` raises ValueError with what it expected, or any MirageError.
    """

    def checked(data: Any) -> Any:
        try:
            return read(data)
        except ValueError as e:
            raise _Misfit(f"expected {e}, found {_shown(data)}") from None
        except MirageError as e:
            raise _Misfit(str(e)) from None

    _LEAVES[kind] = write, checked
    if tag is not None:
        _TAGS[tag] = kind


class _Misfit(Exception):
    """What is wrong with a JSON value; the parts of its place are added on the way up, innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def _expected(wanted: str, data: Any) -> NoReturn:
    raise _Misfit(f"expected {wanted}, found {_shown(data)}")


def _shown(data: Any) -> str:
    if isinstance(data, dict):
        return f"an object of {', '.join(sorted(map(str, data)))[:80] or 'no fields'}"
    if isinstance(data, list):
        return f"an array of {len(data)} items"
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _same(value: Any) -> Any:
    return value


def _exact(kind: type, name: str) -> Read:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            _expected(name, data)
        return data

    return read


def _write_float(value: float) -> Any:
    return float(value) if math.isfinite(value) else str(float(value))


def _read_float(data: Any) -> float:
    if type(data) in (int, float) or data in ("inf", "-inf", "nan"):
        try:
            return float(data)
        except OverflowError:
            pass
    _expected("a number", data)


def _write_any(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, tuple | list):
        return [_write_any(v) for v in value]
    if isinstance(value, sympy.Integer) and value < 0:
        # a size to infer, see `reshape`
        return int(value)
    for tag, kind in _TAGS.items():
        if isinstance(value, kind):
            return {tag: _LEAVES[kind][0](value)}
    raise FormatError(
        f"{value!r} of type {type(value).__name__} cannot be saved; use numbers, text, dims and tuples of them"
    )


def _read_any(data: Any) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return _read_items(data, _read_any)
    if len(data) != 1 or not data.keys() <= _TAGS.keys():
        _expected(f"a plain value, or an object of one of {', '.join(_TAGS)}", data)
    ((tag, value),) = data.items()
    return _LEAVES[_TAGS[tag]][1](value)


def _read_dim(data: Any) -> sympy.Expr:
    if type(data) is not str:
        raise ValueError("a dim as text")
    return to_dim(data)


def _read_number(data: Any) -> Fraction:
    if type(data) is not str or not _NUMBER.fullmatch(data):
        raise ValueError('a number such as "2" or "1/3"')
    return Fraction(data)


#: types that are no containers, and those of them that may stand for `Any`, by their tags
_LEAVES: dict[Any, tuple[Write, Read]] = {
    bool: (_same, _exact(bool, "true or false")),
    int: (_same, _exact(int, "an integer")),
    str: (_same, _exact(str, "a text")),
    NoneType: (_same, _exact(NoneType, "null")),
    float: (_write_float, _read_float),
    Any: (_write_any, _read_any),
    Json: (_same, _same),
}
_TAGS: dict[str, type] = {"float": float}
register(sympy.Expr, "dim", dim_text, _read_dim)
register(Fraction, "number", str, _read_number)


def _make(kind: Any) -> tuple[Write, Read]:
    if kind in _LEAVES:
        return _LEAVES[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = _ordered(args[0]) if IN_ORDER in args else _codec(args[0])
        return _checked(own, [check for check in args[1:] if check != IN_ORDER])
    if origin in (Union, UnionType):
        return _union(args)
    if origin is Literal:
        return _same, _literal(args)
    if origin in (tuple, list):
        return _items(origin, args)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[1])
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            named = _literal([e.value for e in kind])
            return (lambda e: e.value), (lambda data: kind(named(data)))
        if hasattr(kind, "from_text"):
            return str, _text(kind)
        if is_dataclass(kind):
            return _union(tuple(kind.__subclasses__())) if kind.__subclasses__() else _record(kind)
        if issubclass(kind, sympy.Expr):
            return _LEAVES[sympy.Expr]
    raise FormatError(f"values of type {kind} cannot be saved")


#: how values of a type are written and read
_codec: Callable[[Any], tuple[Write, Read]] = cache(_make)


def _checked(own: tuple[Write, Read], checks: Sequence[Callable[[Any], None]]) -> tuple[Write, Read]:
    write, inner = own

    def read(data: Any) -> Any:
        value = inner(data)
        try:
            for check in checks:
                check(value)
        except ValueError as e:
            _expected(str(e), data)
        except MirageError as e:
            raise _Misfit(str(e)) from None
        return value

    return write, read


def _literal(values: Any) -> Read:
    def read(data: Any) -> Any:
        # True equals 1
        if not any(data == v and type(data) is type(v) for v in values):
            _expected(f"one of {', '.join(map(str, values))}", data)
        return data

    return read


def _items(origin: type, args: tuple[Any, ...]) -> tuple[Write, Read]:
    if origin is list or args[-1] is Ellipsis:
        write_item, read_item = _codec(args[0])
        return (lambda value: [write_item(v) for v in value]), (lambda data: origin(_read_items(data, read_item)))
    codecs = [_codec(a) for a in args]

    def write(value: Any) -> Any:
        return [w(v) for (w, _), v in zip(codecs, value, strict=True)]

    def read(data: Any) -> Any:
        if type(data) is not list or len(data) != len(codecs):
            _expected(f"an array of {len(codecs)}", data)
        reads = iter(codecs)
        return _read_items(data, lambda item: next(reads)[1](item))

    return write, read


def _read_items(data: Any, read: Read) -> tuple[Any, ...]:
    if type(data) is not list:
        _expected("an array", data)
    found: list[Any] = []
    try:
        for item in data:
            found.append(read(item))
    except _Misfit as e:
        e.path.append(f"[{len(found)}]")
        raise
    return tuple(found)


def _mapping(kind: Any) -> tuple[Write, Read]:
    write_value, read_value = _codec(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict or not all(type(k) is str for k in data):
            _expected("an object", data)
        found = {}
        try:
            for key, value in data.items():
                found[key] = read_value(value)
        except _Misfit as e:
            e.path.append(f".{_shown(key)}")
            raise
        return found

    return (lambda value: {k: write_value(v) for k, v in value.items()}), read


def _ordered(kind: Any) -> tuple[Write, Read]:
    """A mapping as an array of pairs."""
    write_pairs, read_pairs = _codec(tuple[tuple[get_args(kind)], ...])  # type: ignore[misc]

    def read(data: Any) -> Any:
        found = dict(pairs := read_pairs(data))
        if len(found) < len(pairs):
            _expected("each name once", [k for k, _ in pairs])
        return found

    return (lambda value: write_pairs(value.items())), read


def _union(kinds: tuple[Any, ...]) -> tuple[Write, Read]:
    """One of several types: dataclasses say which where there are several, others are told apart by their JSON."""
    records = [k for k in kinds if is_dataclass(k) and not hasattr(k, "from_text")]
    others = [k for k in kinds if k not in records]
    classes: dict[str, Any] = {getattr(k, "__name__", ""): k for k in records}
    tagged = len(classes) > 1

    def write(value: Any) -> Any:
        for kind in others:
            if isinstance(value, _plain_type(kind)):
                return _codec(kind)[0](value)
        told = _codec(type(value))[0](value)
        return {"is": type(value).__name__, **told} if tagged else told

    def read(data: Any) -> Any:
        if type(data) is dict and classes:
            if not tagged:
                return _codec(next(iter(classes.values())))[1](data)
            name = data.get("is")
            if type(name) is not str or name not in classes:
                _expected(f'an object whose "is" is one of {", ".join(classes)}', data)
            return _codec(classes[name])[1]({k: v for k, v in data.items() if k != "is"})
        if data is None and NoneType in others:
            return None
        kinds = [k for k in others if k is not NoneType]
        for kind in kinds[:-1]:
            try:
                return _codec(kind)[1](data)
            except _Misfit:
                pass
        if kinds:
            return _codec(kinds[-1])[1](data)
        _expected(f"an object of {', '.join(classes)}", data)

    return write, read


def _plain_type(kind: Any) -> type:
    """The class of a type's values."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _plain_type(get_args(kind)[0])
    found: type = origin or (object if kind is Any else kind)
    return found


def _text(kind: Any) -> Read:
    def read(data: Any) -> Any:
        if type(data) is not str:
            _expected("a text", data)
        try:
            return kind.from_text(data)
        except MirageError as e:
            raise _Misfit(str(e)) from None

    return read


def _record(kind: Any) -> tuple[Write, Read]:
    """A dataclass."""
    known = {f.name: f for f in fields(kind) if f.init}
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    has_last_word = hasattr(kind, "check_stored")

    # only when they are needed: a class may hold itself
    @cache
    def codecs() -> dict[str, tuple[Write, Read]]:
        hints = get_type_hints(kind, include_extras=True)
        return {name: _codec(hints[name]) for name in known}

    def write(value: Any) -> Any:
        given = {n: (w, getattr(value, n)) for n, (w, _) in codecs().items()}
        return {n: w(v) for n, (w, v) in given.items() if not _is_default(v, known[n])}

    def read(data: Any) -> Any:
        if type(data) is not dict:
            _expected(f"an object of {', '.join(known)}", data)
        if data.keys() - known.keys() or required - data.keys():
            what = f"an object of {', '.join(known) or 'no fields'}"
            _expected(f"{what}, of which {', '.join(sorted(required))} must be there" if required else what, data)
        given, own = {}, codecs()
        try:
            for name, item in data.items():
                given[name] = own[name][1](item)
        except _Misfit as e:
            e.path.append(f".{name}")
            raise
        made = kind(**given)
        if has_last_word:
            made.check_stored()
        return made

    return write, read


def _is_default(value: Any, field: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return type(value) is type(default) and bool(value == default)
