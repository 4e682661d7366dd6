"""Programs of the virtual machine as JSON objects: `program_to_json` and `program_from_json` are inverse.

    {"schema": 1, "main": "main", "kernels": ["k0"], "constants": [], "functions": [{"is": "VMFunction", "name": "main",
        "code": [{"is": "MakeShape", "out": 1, "dims": [{"dim": "4*n"}], "where": "line 3"}, ...], ...}]}

Reading checks the type of every field, and evaluates nothing as code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import sympy

from mirage.errors import FormatError, MirageError
from mirage.ir.annotations import Annotation
from mirage.ir.dims import dim_text, to_dim
from mirage.ir.types import TensorType, check_dtype
from mirage.runtime import program as vm

SCHEMA = 1
_KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (*vm.Instruction.__subclasses__(), *get_args(Annotation), vm.Parameter, vm.Guard, vm.VMFunction)
}
_HINTS: Mapping[type, Mapping[str, Any]] = {kind: get_type_hints(kind) for kind in _KINDS.values()}
_NUMBER = re.compile(r"-?[0-9]{1,1500}(/[1-9][0-9]{0,1500})?")


def program_to_json(program: vm.VMProgram) -> dict[str, Any]:
    """The program as an object of JSON types; raises FormatError for an attribute of a type that has no text."""
    return {
        "schema": SCHEMA,
        "main": program.main,
        "kernels": _encode(program.kernels),
        "constants": _encode(program.constants),
        "functions": [_encode(f) for f in program],
    }


def program_from_json(data: Any) -> vm.VMProgram:
    """The program that `program_to_json` wrote; raises FormatError saying what is wrong.

    Whether its code is well formed is checked when the machine loads it.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise FormatError(
            f"a program of the virtual machine is an object of schema {SCHEMA}; compile it with this version"
        )
    try:
        functions = _field(data, "functions", tuple[vm.VMFunction, ...])
        return vm.VMProgram(
            {f.name: f for f in functions},
            _field(data, "kernels", tuple[str, ...]),
            _field(data, "constants", tuple[TensorType, ...]),
            _field(data, "main", str),
        )
    except RecursionError:
        raise FormatError("the program nests too deeply") from None


def _encode(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case Fraction():
            return {"number": str(value)}
        case sympy.Expr() if value.is_Integer and value < 0:
            # a size to infer, see `reshape`
            return int(value)
        case sympy.Expr():
            return {"dim": dim_text(value)}
        case tuple() | list():
            return [_encode(v) for v in value]
    if is_dataclass(value) and type(value).__name__ in _KINDS:
        return {"is": type(value).__name__, **{f.name: _encode(getattr(value, f.name)) for f in fields(value)}}
    raise FormatError(
        f"{value!r} of type {type(value).__name__} cannot be saved; use numbers, text, dims and tuples of them"
    )


def _field(data: Mapping[str, Any], name: str, hint: Any) -> Any:
    if name not in data:
        raise FormatError(f"{data.get('is', 'the program')} has no field {name!r}")
    value = _decode(data[name])
    if not _fits(value, hint):
        raise FormatError(
            f"{data.get('is', 'the program')}: field {name!r} is {str(data[name])[:80]}, of the wrong type"
        )
    return value


def _decode(data: Any) -> Any:
    match data:
        case None | bool() | int() | str():
            return data
        case list():
            return tuple(_decode(v) for v in data)
        case {"dim": str(text)}:
            try:
                return to_dim(text)
            except MirageError as e:
                raise FormatError(str(e)) from None
        case {"number": str(text)} if _NUMBER.fullmatch(text):
            return Fraction(text)
        case {"float": str(text)}:
            try:
                return float.fromhex(text)
            except (ValueError, OverflowError):
                raise FormatError(f"{text[:40]!r} is not a number") from None
        case {"is": str(name)} if name in _KINDS:
            return _object(_KINDS[name], data)
    raise FormatError(f"{str(data)[:80]} is not a value of a program")


def _object(kind: type, data: Mapping[str, Any]) -> Any:
    hints = _HINTS[kind]
    if unknown := sorted(data.keys() - hints.keys() - {"is"}):
        raise FormatError(f"{kind.__name__} has no field {unknown[0]!r}")
    values = {name: _field(data, name, hint) for name, hint in hints.items()}
    if issubclass(kind, get_args(Annotation)) and values.get("dtype") is not None:
        try:
            check_dtype(values["dtype"])
        except MirageError as e:
            raise FormatError(str(e)) from None
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type: classes, unions, and tuples of one type or of several."""
    if hint is Any:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, p) for p in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if parts[-1] is Ellipsis:
            return all(_fits(v, parts[0]) for v in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))
