"""The table of all operators in `docs/operators.md`: `python -m benchmarks.operator_table` writes it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import with_end
from mirage.ir.annotations import Annotation, ShapeType
from mirage.ir.dims import symbol
from mirage.ir.loops.analysis import pattern_kind
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import ANY_ELEMENT, FLOATING, NUMERIC, ORDERED, REGISTRY, Attribute, Operator
from mirage.ir.operators.in_place import EFFECTS
from mirage.ir.types import ELEMENTS, INTEGERS, TensorType, tensor

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"

_N, _M = symbol("n"), symbol("m")
_X, _INDICES = tensor("n", "m"), tensor("n", "m", dtype="int64")
_MASK = tensor("n", "m", dtype="bool")

#: operands of an application, where they are not all `[n, m]`; a second element type is of indices, masks, conditions
_OPERANDS: Mapping[str, Sequence[Annotation]] = {
    "where": [_MASK, _X, _X],
    "matmul": [_X, tensor("m", "k")],
    "concat_matmul": [_X, tensor("n", "k"), tensor("m", "h"), tensor("k", "h")],
    "grouped_matmul": [_X, tensor("g", "m", "k"), tensor("g", dtype="int64")],
    "take": [_X, _INDICES],
    "take_along_axis": [_X, _INDICES],
    "scatter": [_X, _INDICES, tensor("n", "m", "m")],
    "put_along_axis": [_X, _INDICES, _X],
    "boolean_mask": [_X, _MASK],
    "update_slice": [tensor("n + 1", "m"), _X],
    "broadcast_to": [tensor("n", 1)],
    "reshape_to": [_X, ShapeType((_M, _N))],
    "broadcast_to_shape": [_X, ShapeType((_N, _M))],
    "full_of": [ShapeType((_N, _M))],
    "convolution": [tensor("n", 4, "m + 2"), tensor(8, 4, 3)],
    "max_pool": [tensor("n", "m + 2")],
    "sum_pool": [tensor("n", "m + 2")],
    "quantize": [_X, tensor("m")],
    "sim_quantize": [_X, tensor("m")],
    "dequantize": [tensor("n", "m", dtype="int8"), tensor("m")],
    "quantized_convolution": [tensor("b", 4, "n", dtype="int8"), tensor("o", 4, 3, dtype="int8"), tensor("o")],
    "quantized_matmul": [tensor("n", "m", dtype="int8"), tensor("m", "k", dtype="int8"), tensor("k")],
}
#: values of required attributes, by name
_VALUES: Mapping[str, Any] = {
    "axis": 1,
    "axes": (1,),
    "dilations": (1,),
    "dim": "n",
    "dtype": "float64",
    "exponent": 3,
    "high": (1, 0),
    "hi": 1,
    "k": 1,
    "kernel": (3,),
    "lo": 0,
    "low": (0, 1),
    "perm": (1, 0),
    "shape": ("n", "m"),
    "starts": (1,),
    "stop": "n",
    "strides": (1,),
    "stops": ("m + 1",),
    "times": 2,
    "value": 0,
}
#: attributes of an application where these do not fit
_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "reshape": {"shape": ("m", "n")},
    "slice": {"axes": (0,), "starts": (1,), "stops": ("n",)},
    "update_slice": {"starts": (1, 0)},
    "scatter": {"axis": 0},
    "quantized_convolution": {"strides": (1,), "dilations": (1,), "low": (0,), "high": (0,)},
}

_ELEMENTS = {
    ANY_ELEMENT: "any", ORDERED: "any but bool", NUMERIC: "numbers", FLOATING: "floating-point", frozenset(INTEGERS): "integers"
}  # fmt: skip


def example(op: Operator) -> tuple[Sequence[Annotation], dict[str, Any]]:
    """Operands and attributes that the operator takes."""
    given = _OPERANDS.get(op.name)
    if given is None:
        dtype = next(t for t in ELEMENTS if t in op.takes)
        given = [tensor("n", "m", dtype=dtype)] * op.min_arity
    attrs = _ATTRIBUTES.get(op.name) or {a.name: _VALUES[a.name] for a in op.attributes if a.required}
    return given, op.check_attrs(attrs)


def kind(op: Operator) -> str:
    """The pattern kind that the analysis finds for an application of the operator."""
    args, attrs = example(op)
    out = op.annotate(args, attrs)
    types = [a for a in args if isinstance(a, TensorType)]
    program = None
    if isinstance(out, TensorType) and len(types) == len(args):
        program = lower_operator(op.name, types, attrs, out)
    return "opaque" if program is None else pattern_kind(program).name.lower().replace("_", "-")


def _attributes(attributes: Sequence[Attribute]) -> str:
    # a default of None is an attribute that may be left out
    return ", ".join(f"`{a.name}`" if a.required else f"`{a.name}={a.default}`" for a in attributes)


def _row(op: Operator) -> str:
    count = str(op.min_arity) if op.min_arity == op.max_arity else f"{op.min_arity} to {op.max_arity}"
    elements = _ELEMENTS.get(op.takes, ", ".join(sorted(op.takes))) if op.max_arity else ""
    return f"| `{op.name}` | {count} | {elements} | {_attributes(op.attributes)} | {'yes' if op.lax else ''} | {kind(op)} |"


def tables() -> Iterator[str]:
    """The lines of the page's tables: every operator that the package registers, and every effect."""
    yield "| operator | operands | of elements | attributes | superoptimized | kind |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in sorted(n for n, op in REGISTRY.items() if op.built_in):
        yield _row(REGISTRY[name])
    yield ""
    yield "| effect | operands | attributes |"
    yield "| --- | --- | --- |"
    for e in EFFECTS.values():
        yield f"| `{e.name}` | {e.arity} | {_attributes(e.attributes)} |"


def written(page: str) -> str:
    """The page with the tables, which stand at its end, made anew."""
    return with_end(page, "## All operators", tables())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
