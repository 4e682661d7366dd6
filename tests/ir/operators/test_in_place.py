"""Effects: what they write, that they return what they wrote to, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    InputError,
    MirageError,
    ShapeError,
    UnknownOperator,
)
from mirage.ir.annotations import Annotation, ObjectType, PartialTensor
from mirage.ir.operators.in_place import EFFECTS, get_effect
from mirage.ir.types import ELEMENTS, tensor

FLOATS, INTEGERS = tensor("n", "m"), tensor("n", "m", dtype="int64")


def zeros() -> np.ndarray:
    return np.zeros((3, 4), np.float32)


def test_every_effect_returns_what_it_wrote_to() -> None:
    x = zeros()
    assert get_effect("update_slice_")(x, np.ones((2, 2), np.float32), starts=(1, 2)) is x
    np.testing.assert_array_equal(x, [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    assert get_effect("add_")(x, np.arange(4, dtype=np.float32)) is x
    np.testing.assert_array_equal(x[:2], [[0, 1, 2, 3], [0, 1, 3, 4]])
    assert get_effect("copy_")(x, np.full((3, 1), 5, np.float32)) is x
    np.testing.assert_array_equal(x, np.full((3, 4), 5))
    assert get_effect("fill_")(x, value=0) is x
    np.testing.assert_array_equal(x, zeros())
    assert get_effect("scatter_")(x, np.array([-1, 0]), np.array([[7], [8], [9]], np.float32), axis=1) is x
    np.testing.assert_array_equal(x, [[7, 0, 0, 7], [8, 0, 0, 8], [9, 0, 0, 9]])
    assert set(EFFECTS) == {"update_slice_", "scatter_", "add_", "copy_", "fill_"}


@pytest.mark.parametrize(("axis", "at"), [(0, 1), (-1, 2), (1, -4)])
def test_one_slice(axis: int, at: int) -> None:
    x, wanted = zeros(), zeros()
    values = np.arange(1, 1 + x.shape[1 - axis % 2], dtype=np.float32)
    get_effect("scatter_")(x, np.array(at), values, axis=axis)
    np.moveaxis(wanted, axis, 0)[at] = values
    np.testing.assert_array_equal(x, wanted)
    for outside in (x.shape[axis], -x.shape[axis] - 1):
        with pytest.raises(InputError, match=f"index {outside} is outside"):
            get_effect("scatter_")(x, np.array(outside), values, axis=axis)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_any_element_type(dtype: str) -> None:
    x = np.zeros(4, ELEMENTS[dtype])
    get_effect("fill_")(x, value=1)
    get_effect("update_slice_")(x, np.zeros(1, x.dtype), starts=(2,))
    np.testing.assert_array_equal(x.astype(float), [1, 1, 0, 1])


def test_sums_of_16_bit_numbers_round_once() -> None:
    x = np.full(1, 256, ELEMENTS["bfloat16"])
    get_effect("add_")(x, np.full(1, 3, x.dtype))
    assert float(x[0]) == 260


@pytest.mark.parametrize("name", ["update_slice_", "copy_", "add_"])
def test_what_is_written_may_be_a_part_of_its_target(name: str) -> None:
    x = np.arange(8.0)
    window = x[:7] if name == "update_slice_" else x[::-1]
    expected = {
        "update_slice_": [0, 0, 1, 2, 3, 4, 5, 6],
        "copy_": [7, 6, 5, 4, 3, 2, 1, 0],
        "add_": [7] * 8,
    }[name]
    get_effect(name)(x, window, **({"starts": (1,)} if name == "update_slice_" else {}))
    np.testing.assert_array_equal(x, expected)


REFUSED: list[tuple[str, list[Annotation], dict[str, Any], type[MirageError], list[str]]] = [
    ("update_slice_", [FLOATS, FLOATS], {"starts": (0, 1)}, ShapeError, ["m + 1 <= m"]),
    ("update_slice_", [FLOATS, tensor("m")], {"starts": (0, 0)}, ShapeError, ["window [m] of [n, m]"]),
    ("update_slice_", [FLOATS, INTEGERS], {"starts": (0, 0)}, DTypeError, ["float32, int64"]),
    ("scatter_", [FLOATS, INTEGERS, FLOATS], {"axis": 2}, ShapeError, ["axis 2"]),
    ("scatter_", [FLOATS, tensor("k", dtype="int64"), tensor("k", "n")], {"axis": 0}, ShapeError, ["values [k, n]"]),
    ("scatter_", [FLOATS, FLOATS, FLOATS], {"axis": 0}, DTypeError, ["cast them to int64"]),
    ("update_slice_", [FLOATS, FLOATS], {}, AttributeValueError, ["'starts' is missing"]),
    ("update_slice_", [FLOATS, FLOATS], {"starts": (0, -1)}, DimError, ["negative"]),
    ("copy_", [FLOATS, INTEGERS], {}, DTypeError, ["int64[n, m] into float32[n, m]", "cast it to float32"]),
    ("copy_", [tensor("m"), FLOATS], {}, ShapeError, ["[n, m] does not broadcast to [m]"]),
    ("copy_", [tensor(1), tensor(3)], {}, ShapeError, ["[3] does not broadcast to [1]"]),
    ("copy_", [FLOATS], {}, ShapeError, ["takes 2 operands, got 1"]),
    ("add_", [tensor("n", dtype="bool"), tensor("n", dtype="bool")], {}, DTypeError, ["bool[n]", "cast it"]),
    ("add_", [FLOATS, tensor("k")], {}, ShapeError, ["[n, m] and [k]"]),
    ("add_", [FLOATS, ObjectType()], {}, ShapeError, ["operand 2 is Object, not a tensor"]),
    ("fill_", [INTEGERS], {"value": 0.5}, DTypeError, ["0.5 is no int64"]),
    ("fill_", [INTEGERS], {"values": 1}, AttributeValueError, ["unknown attribute 'values'"]),
]


@pytest.mark.parametrize(("name", "args", "attrs", "error", "parts"), REFUSED)
def test_refusals(
    name: str, args: list[Annotation], attrs: dict[str, Any], error: type[MirageError], parts: list[str]
) -> None:
    effect = get_effect(name)
    with pytest.raises(error, match=name.rstrip("_")) as e:
        effect.annotate(args, effect.check_attrs(attrs))
    for part in parts:
        assert part in str(e.value)


def test_annotation_of_what_is_written_to() -> None:
    some = PartialTensor((None, None), "float32")
    assert get_effect("copy_").annotate([some, tensor("m")], {}) == some
    assert get_effect("add_").annotate([PartialTensor(), FLOATS], {}) == PartialTensor()


def test_refusals_at_run_time() -> None:
    x = np.zeros((3, 4))
    with pytest.raises(InputError, match=r"update_slice_ of \[3, 4\] and \[2, 4\]: needs 4 <= 3"):
        get_effect("update_slice_")(x, np.ones((2, 4)), starts=(2, 0))
    with pytest.raises(InputError, match=r"add_: an array of shape \[3\] does not broadcast to \[3, 4\]"):
        get_effect("add_")(x, np.ones(3))
    with pytest.raises(InputError, match=r"copy_: an array of shape \[2, 3, 4\]"):
        get_effect("copy_")(x, np.ones((2, 3, 4)))
    x.setflags(write=False)
    with pytest.raises(InputError, match="fill_: its first argument cannot be written to; pass a copy"):
        get_effect("fill_")(x, value=1)
    with pytest.raises(UnknownOperator, match="effect 'clear_' does not exist; use one of update_slice_, scatter_, copy_"):
        get_effect("clear_")


def test_scatter_refuses_positions_outside_of_the_dim() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(InputError, match="scatter_: axis 0: index 3 is outside of a dim of 3 elements"):
        get_effect("scatter_")(x, np.array([0, 3]), np.ones((2, 4), np.float32), axis=0)
    assert not x.any()


def test_scatter_of_a_part_of_its_target() -> None:
    x = np.arange(4.0)
    get_effect("scatter_")(x, np.array([1, 2, 3]), x[:3], axis=0)
    np.testing.assert_array_equal(x, [0, 0, 1, 2])
