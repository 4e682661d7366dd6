"""What operators of graphs refuse: the error names the operator, what it got, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import AttributeValueError, DimError, DTypeError, InputError, MirageError, ShapeError, TraceError
from mirage.ir.annotations import Annotation, ObjectType, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import symbol, to_dim
from mirage.ir.operator import get_operator
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import TensorType, tensor

FLOATS, INTEGERS, BOOLEANS, BYTES = (tensor("n", "m", dtype=t) for t in ("float32", "int64", "bool", "int8"))
ROW = tensor("m")
INDICES = tensor("k", dtype="int64")
SCALAR = TensorType((), "scalar")
SHAPE = ShapeType((symbol("n"), symbol("m")))

Bad = tuple[str, list[Annotation], dict[str, Any], type[MirageError], list[str]]

COMPARISON: list[Bad] = [
    ("equal", [FLOATS, INTEGERS], {}, DTypeError, ["float32, int64", "convert"]),
    ("less", [FLOATS, tensor("m", "n")], {}, ShapeError, ["[n, m] and [m, n]", "do not broadcast"]),
    ("less", [BOOLEANS, BOOLEANS], {}, DTypeError, ["operand 1 is bool[n, m]", "cast it first"]),
    ("greater", [FLOATS], {}, ShapeError, ["takes 2 operands, got 1"]),
    ("logical_and", [FLOATS, BOOLEANS], {}, DTypeError, ["operand 1 is float32[n, m]", "it takes bool"]),
    ("logical_not", [INTEGERS], {}, DTypeError, ["operand 1 is int64"]),
    ("isnan", [INTEGERS], {}, DTypeError, ["operand 1 is int64", "float32"]),
    ("where", [FLOATS, FLOATS, FLOATS], {}, DTypeError, ["the condition is float32[n, m]", "compare"]),
    ("where", [BOOLEANS, FLOATS, INTEGERS], {}, DTypeError, ["float32, int64"]),
    ("where", [BOOLEANS, SCALAR, SCALAR], {}, DTypeError, ["both values are numbers", "mirage.full"]),
    ("where", [BOOLEANS, FLOATS, tensor("k", "m")], {}, ShapeError, ["[k, m]"]),
    ("equal", [FLOATS, SHAPE], {}, ShapeError, ["operand 2 is Shape[n, m], not a tensor"]),
    ("not_equal", [ObjectType(), FLOATS], {}, ShapeError, ["operand 1 is Object"]),
    ("equal", [PartialTensor((None, symbol("n"), symbol("m"))), tensor("m", 3)], {}, ShapeError, ["do not broadcast"]),
]

NUMERIC: list[Bad] = [
    ("exp", [INTEGERS], {}, DTypeError, ["operand 1 is int64[n, m]", "cast it first"]),
    ("div", [INTEGERS, INTEGERS], {}, DTypeError, ["int64", "cast it first"]),
    ("add", [BOOLEANS, BOOLEANS], {}, DTypeError, ["bool[n, m]", "cast it first"]),
    ("add", [INTEGERS, FLOATS], {}, DTypeError, ["float32, int64"]),
    ("add", [BYTES, BYTES], {}, DTypeError, ["operand 1 is int8[n, m]; cast it first"]),
    ("less", [BYTES, INTEGERS], {}, DTypeError, ["int64, int8", "convert"]),
    ("matmul", [INTEGERS, INTEGERS], {}, DTypeError, ["cast it first"]),
    ("softmax", [INTEGERS], {}, DTypeError, ["softmax", "cast it first"]),
    ("mean", [INTEGERS], {"axes": 0}, DTypeError, ["mean", "cast it first"]),
    ("floor_divide", [FLOATS, FLOATS], {}, DTypeError, ["it takes int32, int64"]),
    ("remainder", [INTEGERS, tensor("n", "m", dtype="int32")], {}, DTypeError, ["int32, int64"]),
    ("elementwise_max", [BOOLEANS, BOOLEANS], {}, DTypeError, ["bool[n, m]"]),
    ("elementwise_min", [FLOATS, tensor("k")], {}, ShapeError, ["[n, m] and [k]"]),
    ("sign", [FLOATS, FLOATS], {}, ShapeError, ["takes 1 operands, got 2"]),
    ("floor", [INTEGERS], {}, DTypeError, ["floor", "cast it first"]),
]

CAST: list[Bad] = [
    ("cast", [FLOATS], {}, AttributeValueError, ["'dtype' is missing"]),
    ("cast", [FLOATS], {"dtype": "int4"}, AttributeValueError, ["'int4' is not supported", "int64, bool"]),
    ("cast", [FLOATS], {"dtype": 32}, AttributeValueError, ["dtype=32 is wrong"]),
    ("cast", [FLOATS], {"to": "int32"}, AttributeValueError, ["unknown attribute 'to'"]),
    ("cast", [SHAPE], {"dtype": "int64"}, ShapeError, ["is Shape[n, m], not a tensor"]),
]

REDUCTION: list[Bad] = [
    ("sum", [BYTES], {"axes": 0}, DTypeError, ["int8[n, m]; cast it first"]),
    ("max", [FLOATS], {"axes": (2,)}, ShapeError, ["axis 2 is out of range", "rank 2"]),
    ("max", [FLOATS], {}, AttributeValueError, ["'axes' is missing"]),
    ("min", [FLOATS], {"axes": (0, -2)}, ShapeError, ["(0, -2) name a dim twice"]),
    ("min", [BOOLEANS], {"axes": 0}, DTypeError, ["bool[n, m]"]),
    ("prod", [FLOATS], {"axes": "n"}, AttributeValueError, ["expected an integer"]),
    ("any", [FLOATS], {"axes": 0}, DTypeError, ["float32[n, m]", "it takes bool"]),
    ("all", [INTEGERS], {"axes": 0}, DTypeError, ["int64[n, m]"]),
    ("any", [BOOLEANS], {"axes": 0, "keepdims": "yes"}, AttributeValueError, ["expected True or False"]),
    ("argmax", [tensor()], {"axis": 0}, ShapeError, ["rank 0"]),
    ("argmax", [FLOATS], {"axis": -3}, ShapeError, ["axis -3"]),
    ("argmin", [FLOATS], {"axis": (0, 1)}, AttributeValueError, ["expected an integer"]),
    ("cumsum", [FLOATS], {"axis": 5}, ShapeError, ["cumsum: axis 5"]),
    ("cumsum", [BOOLEANS], {"axis": 0}, DTypeError, ["bool[n, m]"]),
]

INDEXING: list[Bad] = [
    ("take", [FLOATS, FLOATS], {}, DTypeError, ["the indices are float32[n, m]", "cast them to int64"]),
    ("take", [FLOATS, SCALAR], {}, DTypeError, ["the indices are scalar"]),
    ("take", [FLOATS, INDICES], {"axis": 2}, ShapeError, ["take: axis 2"]),
    ("take", [tensor(), INDICES], {}, ShapeError, ["rank 0"]),
    ("take", [FLOATS], {}, ShapeError, ["takes 2 operands"]),
    ("take_along_axis", [FLOATS, INDICES], {}, ShapeError, ["[n, m] and indices [k]", "one rank"]),
    ("take_along_axis", [FLOATS, tensor("k", 2, dtype="int64")], {}, ShapeError, ["[n, 1] and [k, 1]"]),
    ("take_along_axis", [FLOATS, BOOLEANS], {}, DTypeError, ["the indices are bool"]),
    ("scatter", [FLOATS, INDICES, INTEGERS], {}, ShapeError, ["values [n, m] do not fit the elements [k, m]"]),
    ("scatter", [FLOATS, INDICES, tensor("k", "m", dtype="float64")], {}, DTypeError, ["float32, float64"]),
    ("scatter", [FLOATS, INDICES, tensor(2, "k", "m")], {}, ShapeError, ["[2, k, m] do not fit"]),
    ("scatter", [BOOLEANS, INDICES, BOOLEANS], {"add": True}, DTypeError, ["add=True", "cast it"]),
    ("scatter", [FLOATS, INDICES, ROW], {"add": 1}, AttributeValueError, ["expected True or False"]),
    ("put_along_axis", [tensor(1, "m"), tensor("n", "k", dtype="int64"), FLOATS], {}, ShapeError, ["broadcast [1, m]"]),
    (
        "put_along_axis",
        [FLOATS, tensor("n", "k", dtype="int64"), FLOATS],
        {},
        ShapeError,
        ["do not fit the elements [n, k]"],
    ),
]

WINDOWS: list[Bad] = [
    ("slice", [FLOATS], {"axes": 0, "starts": 1, "stops": ("n + 1",)}, ShapeError, ["n + 1 <= n", "axis 0"]),
    ("slice", [FLOATS], {"axes": 0, "starts": 3, "stops": 2}, ShapeError, ["3 <= 2", "not behind the stop"]),
    ("slice", [FLOATS], {"axes": 0, "starts": -1, "stops": 2}, DimError, ["starts=-1", "negative"]),
    (
        "slice",
        [FLOATS],
        {"axes": (0, 1), "starts": 1, "stops": 2},
        AttributeValueError,
        ["1 starts, 1 stops", "per axis"],
    ),
    (
        "slice",
        [FLOATS],
        {"axes": 0, "starts": 1, "stops": 2, "steps": (0,)},
        AttributeValueError,
        ["not all positive", "flip"],
    ),
    ("slice", [FLOATS], {"axes": (0, 0), "starts": (1, 1), "stops": (2, 2)}, ShapeError, ["name a dim twice"]),
    ("slice", [tensor(4)], {"axes": 0, "starts": 0, "stops": 5}, ShapeError, ["5 <= 4"]),
    ("pad", [FLOATS], {"low": 1, "high": (1, 1)}, ShapeError, ["1 values of low for [n, m]", "one per dim"]),
    ("pad", [FLOATS], {"low": (1, 1), "high": (0, 0, 0)}, ShapeError, ["3 values of high"]),
    ("pad", [INTEGERS], {"low": (1, 1), "high": (0, 0), "value": 0.5}, DTypeError, ["0.5 is no int64"]),
    ("pad", [FLOATS], {"low": (-1, 0), "high": (0, 0)}, DimError, ["low=(-1, 0)", "negative"]),
    ("update_slice", [FLOATS, ROW], {"starts": (0, 0)}, ShapeError, ["window [m] of [n, m]", "rank 2"]),
    ("update_slice", [FLOATS, FLOATS], {"starts": (0, 1)}, ShapeError, ["m + 1 <= m", "axis 1"]),
    ("update_slice", [FLOATS, FLOATS], {"starts": 0}, ShapeError, ["1 starts for [n, m]"]),
    ("update_slice", [FLOATS, INTEGERS], {"starts": (0, 0)}, DTypeError, ["float32, int64"]),
    ("broadcast_to", [FLOATS], {"shape": ("m", "n")}, ShapeError, ["[n, m] to [m, n]"]),
    ("broadcast_to", [FLOATS], {"shape": ("m",)}, ShapeError, ["[n, m] to [m]"]),
    ("broadcast_to", [tensor(2)], {"shape": (3,)}, ShapeError, ["[2] to [3]"]),
    ("flip", [FLOATS], {"axes": 2}, ShapeError, ["flip: axis 2"]),
]

CREATION: list[Bad] = [
    ("full", [], {"shape": ("n",)}, AttributeValueError, ["'value' is missing"]),
    ("full", [], {"shape": ("n",), "value": 0.5, "dtype": "int32"}, DTypeError, ["0.5 is no int32"]),
    ("full", [], {"shape": ("n",), "value": 2, "dtype": "bool"}, DTypeError, ["2 is no bool"]),
    ("full", [], {"shape": ("n",), "value": 2**40, "dtype": "int32"}, DTypeError, ["is no int32"]),
    ("full", [], {"shape": (-1,), "value": 0}, DimError, ["shape=(-1,)", "negative"]),
    ("full", [], {"shape": (2.5,), "value": 0}, DimError, ["2.5"]),
    ("full", [], {"shape": 2, "value": float("nan")}, AttributeValueError, ["finite"]),
    ("full", [FLOATS], {"shape": 2, "value": 0}, ShapeError, ["takes 0 operands, got 1"]),
    ("arange", [], {"stop": "n", "step": 0}, AttributeValueError, ["step=0 is not positive"]),
    ("arange", [], {"stop": "n", "dtype": "bool"}, AttributeValueError, ["'bool' is not one of numbers"]),
    ("arange", [], {"stop": "n", "start": "n + 2"}, ShapeError, ["n + 2 <= n"]),
    ("dim_value", [], {"dim": "n -"}, DimError, ["n -"]),
]

DATA_DEPENDENT: list[Bad] = [
    ("sort", [BOOLEANS], {}, DTypeError, ["bool[n, m]"]),
    ("sort", [FLOATS], {"axis": 2}, ShapeError, ["sort: axis 2"]),
    ("argsort", [tensor()], {}, ShapeError, ["rank 0"]),
    ("argsort", [FLOATS], {"descending": 1}, AttributeValueError, ["expected True or False"]),
    ("topk", [FLOATS], {}, AttributeValueError, ["'k' is missing"]),
    ("grouped_matmul", [FLOATS, FLOATS, INDICES], {}, ShapeError, ["[n, m] and w [n, m]", "[g, k, n]"]),
    ("grouped_matmul", [FLOATS, tensor("k", "n", 4), INDICES], {}, ShapeError, ["x [n, m] and w [k, n, 4]"]),
    ("grouped_matmul", [FLOATS, tensor("g", "m", 4), INDICES], {}, ShapeError, ["ends [k]", "one end per matrix"]),
    ("grouped_matmul", [FLOATS, tensor("k", "m", 4), tensor("k")], {}, DTypeError, ["ends are of float32"]),
    ("grouped_matmul", [INTEGERS, tensor("k", "m", 4), INDICES], {}, DTypeError, ["x is of int64 and w of float32"]),
    ("topk", [tensor(3)], {"k": 4}, ShapeError, ["4 <= 3", "k is within"]),
    ("topk", [FLOATS], {"k": "m + 1"}, ShapeError, ["m + 1 <= m"]),
    ("topk", [FLOATS], {"k": 2, "axis": 3}, ShapeError, ["axis 3"]),
    ("unique", [TupleType((FLOATS,))], {}, ShapeError, ["not a tensor"]),
    ("nonzero", [FLOATS, FLOATS], {}, ShapeError, ["takes 1 operands"]),
    ("boolean_mask", [FLOATS, FLOATS], {}, DTypeError, ["the mask is float32[n, m]"]),
    ("boolean_mask", [FLOATS, tensor("m", dtype="bool")], {}, ShapeError, ["mask [m] of [n, m]"]),
    ("boolean_mask", [FLOATS, tensor(dtype="bool")], {}, ShapeError, ["at least one"]),
]

SHAPE_OPERANDS: list[Bad] = [
    ("reshape_to", [FLOATS, FLOATS], {}, ShapeError, ["operand 2 is float32[n, m], not a shape"]),
    ("reshape_to", [SHAPE, SHAPE], {}, ShapeError, ["operand 1 is Shape[n, m], not a tensor"]),
    ("reshape_to", [FLOATS], {}, ShapeError, ["takes 2 operands"]),
    ("reshape_to", [tensor(2, 3), ShapeType((to_dim(5),))], {}, ShapeError, ["6 elements cannot become 5"]),
    ("broadcast_to_shape", [tensor(2), ShapeType((to_dim(3),))], {}, ShapeError, ["[2] to [3]"]),
    ("broadcast_to_shape", [FLOATS, ShapeType((None,))], {}, ShapeError, ["[n, m] to [_]"]),
    ("broadcast_to_shape", [FLOATS, INTEGERS], {}, ShapeError, ["not a shape"]),
    ("full_of", [FLOATS], {"value": 1}, ShapeError, ["operand 1 is float32[n, m], not a shape"]),
    ("full_of", [SHAPE], {}, AttributeValueError, ["'value' is missing"]),
    ("full_of", [SHAPE], {"value": 0.5, "dtype": "int64"}, DTypeError, ["0.5 is no int64"]),
]

ALL = [*COMPARISON, *NUMERIC, *CAST, *REDUCTION, *INDEXING, *WINDOWS, *CREATION, *DATA_DEPENDENT, *SHAPE_OPERANDS]


@pytest.mark.parametrize(("op", "args", "attrs", "error", "parts"), ALL)
def test_refusals(
    op: str, args: list[Annotation], attrs: dict[str, Any], error: type[MirageError], parts: list[str]
) -> None:
    definition = get_operator(op)
    with pytest.raises(error) as e:
        definition.annotate(args, definition.check_attrs(attrs))
    assert str(e.value).startswith(op)
    for part in parts:
        assert part in str(e.value)


X = np.arange(12.0, dtype=np.float32).reshape(4, 3)
MATRICES = np.ones((2, 3, 5), np.float32)

#: operator, operands, attributes, sizes, what the message says
RUNS: list[tuple[str, list[Any], dict[str, Any], dict[str, int], list[str]]] = [
    ("take", [X, np.array([4])], {}, {}, ["take: axis 0: index 4", "4 elements", "-4 to 3"]),
    ("take", [X, np.array([[0], [-5]])], {}, {}, ["index -5"]),
    ("take", [X[:0], np.array([0])], {}, {}, ["index 0 is outside of a dim of 0"]),
    ("take_along_axis", [X, np.array([[3]] * 4)], {}, {}, ["take_along_axis: axis 1: index 3"]),
    ("scatter", [X, np.array([9]), X[:1]], {}, {}, ["scatter: axis 0: index 9"]),
    ("put_along_axis", [X, np.array([[-4]] * 4), X[:, :1]], {}, {}, ["index -4"]),
    ("slice", [X], {"axes": 0, "starts": 1, "stops": ("t",)}, {"t": 5}, ["[4, 3]", "5 <= 4", "axis 0"]),
    ("slice", [X], {"axes": 0, "starts": ("t",), "stops": (2,)}, {"t": 3}, ["3 <= 2"]),
    ("update_slice", [X, X[:2]], {"starts": ("t", 0)}, {"t": 3}, ["[4, 3] and [2, 3]", "5 <= 4"]),
    ("topk", [X], {"k": "t"}, {"t": 4}, ["4 <= 3"]),
    ("grouped_matmul", [X, MATRICES, np.array([3, 5])], {}, {}, ["groups of 4 rows have to be 0 to 4"]),
    ("grouped_matmul", [X, MATRICES, np.array([3, 2])], {}, {}, ["none before the last"]),
    ("grouped_matmul", [X, MATRICES, np.array([-1, 2])], {}, {}, ["have to be 0 to 4"]),
    ("arange", [], {"stop": "t", "start": 3}, {"t": 2}, ["3 <= 2"]),
    ("reshape_to", [X, (5, 2)], {}, {}, ["[4, 3] to [5, 2]", "12 elements cannot become 10"]),
    ("broadcast_to_shape", [X, (2, 3)], {}, {}, ["[4, 3] to [2, 3]"]),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "sizes", "parts"), RUNS)
def test_refusals_at_run_time(
    op: str, arrays: list[Any], attrs: dict[str, Any], sizes: dict[str, int], parts: list[str]
) -> None:
    definition = get_operator(op)
    with pytest.raises(InputError, match=op) as e:
        definition.run(arrays, definition.check_attrs(attrs), sizes)
    for part in parts:
        assert part in str(e.value)


@pytest.mark.parametrize(("number", "dtype"), [(0.5, "int64"), (2**31, "int32"), (float("nan"), "int64"), (2, "bool")])
def test_numbers_that_an_integer_type_lacks(number: float, dtype: str) -> None:
    op = get_operator("equal")
    with pytest.raises(DTypeError, match=f"equal: .* is no {dtype}"):
        op.run([np.zeros(3, dtype), number], {}, {})


def test_programs_are_of_floating_point_tensors() -> None:
    b = ProgramBuilder("f")
    x = b.input("ids", tensor("n", dtype="int64"))
    with pytest.raises(DTypeError, match=r"f: input 'ids' is int64; only float32, .*: cast it"):
        b.finish([b.op("add", x, x)])


def test_programs_are_of_operators_that_can_be_superoptimized() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("n"))
    with pytest.raises(TraceError, match=r"line 3: f: min cannot be superoptimized; compile .* with mirage\.compile"):
        b.finish([b.op("min", x, axes=(0,), where="line 3")])
    with pytest.raises(ShapeError, match=r"topk: its result, Tuple.*, is not one tensor of known shape"):
        b.op("topk", x, k=0)
