"""Programs as JSON objects: `program_to_json` and `program_from_json` are inverse.

    {"schema": 1, "name": "f", "outputs": [1], "nodes": [
        {"op": "input", "name": "x", "dtype": "float32", "shape": ["b", "64"]},
        {"op": "sum", "inputs": [0], "attrs": {"axes": [1], "keepdims": false},
         "dtype": "float32", "shape": ["b"]}]}

Dims and numbers are text, as exact as in `mirage.ir.text`; a number is an integer or a quotient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NoReturn

from mirage.errors import FormatError, MirageError
from mirage.ir.dims import Dim, dim_text, to_dim
from mirage.ir.operator import get_operator
from mirage.ir.program import Node, Program, ProgramBuilder
from mirage.ir.types import TensorType, check_dtype

SCHEMA = 1

_NUMBER = re.compile(r"-?[0-9]{1,1500}(/[0-9]{1,1500})?")


def program_to_json(program: Program) -> dict[str, Any]:
    """The program as an object of JSON types."""
    return {
        "schema": SCHEMA,
        "name": program.name,
        "nodes": [_node_to_json(n) for n in program.nodes],
        "outputs": list(program.outputs),
    }


def _node_to_json(node: Node) -> dict[str, Any]:
    type_ = {"dtype": node.type.dtype, "shape": [dim_text(d) for d in node.type.shape]}
    if node.op == "input":
        return {"op": "input", "name": node.attr["name"], **type_}
    kinds = {a.name: a.kind for a in get_operator(node.op).attributes}
    attrs = {k: attr_to_json(kinds[k], v) for k, v in node.attrs}
    return {"op": node.op, "inputs": list(node.inputs), "attrs": attrs, **type_}


def attr_to_json(kind: str, value: Any) -> Any:
    """A canonical attribute value of a kind as a JSON value."""
    match kind:
        case "number":
            return str(value)
        case "dim":
            return dim_text(value)
        case "dims":
            return [dim_text(d) for d in value]
        case "ints":
            return list(value)
    return value


def attr_from_json(kind: str, value: Any, where: str) -> Any:
    """The attribute value that `attr_to_json` wrote; raises FormatError naming `where`."""
    match kind:
        case "number":
            text = _checked(value, str, where)
            if not _NUMBER.fullmatch(text) or int(text.partition("/")[2] or 1) == 0:
                _wrong(where, 'a number such as "2" or "1/3"', value)
            return Fraction(text)
        case "dim":
            return _dim(value, where)
        case "dims":
            # -1 is a size to infer, see `reshape`
            return tuple(-1 if d == "-1" else _dim(d, where) for d in _checked(value, list, where))
        case "ints":
            return tuple(_checked(i, int, where) for i in _checked(value, list, where))
        case "int":
            return _checked(value, int, where)
        case "bool":
            return _checked(value, bool, where)
    return _checked(value, str, where)


def program_from_json(obj: object) -> Program:
    """The program that `program_to_json` wrote.

    Raises FormatError naming the field that is missing, unknown, of the wrong type or inconsistent; types are
    inferred anew and must be the recorded ones.
    """
    program = _checked(obj, dict, "program")
    if program.get("schema") != SCHEMA:
        _wrong("program.schema", f"{SCHEMA}, the version that this release reads", program.get("schema"))
    _check_keys(program, {"schema", "name", "nodes", "outputs"}, "program")
    nodes = _checked(program["nodes"], list, "nodes")
    try:
        b = ProgramBuilder(_checked(program["name"], str, "name"))
        for i, node in enumerate(nodes):
            if _add(b, _checked(node, dict, f"nodes[{i}]"), f"nodes[{i}]", i) != i:
                raise FormatError(f"nodes[{i}]: repeats an earlier node; write each value once")
        outputs = _checked(program["outputs"], list, "outputs")
        result = b.finish([_operand(o, len(nodes), f"outputs[{k}]") for k, o in enumerate(outputs)])
    except FormatError:
        raise
    except MirageError as e:
        raise FormatError(f"program: {e}") from None
    if result.nodes != tuple(b.nodes):
        raise FormatError("nodes: inputs must come first, and every other node must be used by an output")
    return result


def _add(b: ProgramBuilder, node: Mapping[str, Any], where: str, i: int) -> int:
    name = _checked(node.get("op"), str, f"{where}.op")
    if name == "input":
        _check_keys(node, {"op", "name", "dtype", "shape"}, where)
        dtype = check_dtype(_checked(node["dtype"], str, f"{where}.dtype"))
        return b.input(_checked(node["name"], str, f"{where}.name"), TensorType(_shape(node, where), dtype))
    _check_keys(node, {"op", "inputs", "attrs", "dtype", "shape"}, where)
    inputs = [_operand(x, i, f"{where}.inputs") for x in _checked(node["inputs"], list, f"{where}.inputs")]
    try:
        kinds = {a.name: a.kind for a in get_operator(name).attributes}
    except MirageError as e:
        raise FormatError(f"{where}.op: {e}") from None
    attrs = {}
    for key, value in _checked(node["attrs"], dict, f"{where}.attrs").items():
        if key not in kinds:
            raise FormatError(f"{where}.attrs: {name} has no attribute {key!r}; it takes {', '.join(kinds) or 'none'}")
        attrs[key] = attr_from_json(kinds[key], value, f"{where}.attrs.{key}")
    index = b.op(name, *inputs, where=where, **attrs)
    recorded, inferred = TensorType(_shape(node, where), node["dtype"]), b.type(index)
    if recorded != inferred:
        raise FormatError(f"{where}: {recorded} is recorded, but {name} computes {inferred}; the file was changed")
    return index


def _shape(node: Mapping[str, Any], where: str) -> tuple[Dim, ...]:
    dims = _checked(node["shape"], list, f"{where}.shape")
    return tuple(_dim(d, f"{where}.shape[{k}]") for k, d in enumerate(dims))


def _dim(value: object, where: str) -> Dim:
    try:
        return to_dim(_checked(value, str, where))
    except FormatError:
        raise
    except MirageError as e:
        raise FormatError(f"{where}: {e}") from None


def _operand(value: object, limit: int, where: str) -> int:
    index = _checked(value, int, where)
    if not 0 <= index < limit:
        _wrong(where, f"the index of an earlier node, 0 to {limit - 1}", value)
    return int(index)


def _check_keys(obj: Mapping[str, Any], wanted: set[str], where: str) -> None:
    for key in sorted(wanted - obj.keys()):
        raise FormatError(f"{where}.{key}: is missing; expected the fields {', '.join(sorted(wanted))}")
    for unknown in obj.keys() - wanted:
        raise FormatError(f"{where}.{unknown}: is unknown; expected the fields {', '.join(sorted(wanted))}")


def _checked(value: object, kind: type, where: str) -> Any:
    """The value, of exactly that type (a bool is no int)."""
    if type(value) is not kind:
        _wrong(where, f"a JSON {_JSON_NAMES[kind]}", value)
    return value


_JSON_NAMES = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean"}


def _wrong(where: str, wanted: str, value: object) -> NoReturn:
    text = repr(value)
    raise FormatError(f"{where}: expected {wanted}, found {text if len(text) <= 80 else text[:77] + '...'}")
