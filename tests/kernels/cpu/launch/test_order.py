"""Order, running sums and scattered elements in C, against their meaning in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.launch import order
from mirage.runtime import program as vm

NAN = np.array([[2.0, np.nan, -np.inf, 0.0, np.nan, -0.0, 2.0], [np.inf, 1.0, 1.0, 1.0, 0.5, 0.5, -7.0]])
NUMBERS = ["float32", "float64", "int32", "int64", "bfloat16"]


def compare(op: str, *inputs: np.ndarray, **attrs: Any) -> None:
    """The function of programs against the operator."""
    found = get_operator(op).run(list(inputs), attrs, {})
    wanted = found if isinstance(found, tuple) else (found,)
    outputs = [np.empty(w.shape, w.dtype) for w in wanted]
    given = {name: value for name, value in attrs.items() if name != "k"}
    order.FUNCTIONS[f"cpu.{op}"]([np.ascontiguousarray(x) for x in inputs], outputs, **given)
    for a, b in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def in_c(op: str, *inputs: np.ndarray, **attrs: Any) -> bool:
    """Whether the function has a launch for arrays like these."""
    out = np.empty(inputs[0].shape, np.int64 if op == "argsort" else inputs[0].dtype)
    return order.PREPARED[f"cpu.{op}"](inputs, (out,), **attrs) is not None


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_the_first_of_equal_elements_come_first(dtype: str, largest: bool) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (3, 5, 9)).astype(ELEMENTS[dtype])
    for k, axis in ((0, -1), (1, -1), (2, 1), (5, 1), (9, 2), (3, 0)):
        compare("topk", x, k=k, axis=axis, largest=largest)
    compare("topk", x[:0], k=2, axis=-1, largest=largest)


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_is_the_largest(dtype: str, down: bool) -> None:
    x = NAN.astype(dtype)
    for k in range(8):
        compare("topk", x, k=k, axis=-1, largest=down)
    for op in ("sort", "argsort"):
        compare(op, x, axis=1, descending=down)
        compare(op, np.tile(x, 20), axis=1, descending=down)


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("count", [1, 16, 17, 64, 65, 85, 86])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_rows_of_all_lengths_are_sorted(dtype: str, count: int, down: bool) -> None:
    x = np.random.default_rng(count).integers(-99, 99, (2, count, 3)).astype(ELEMENTS[dtype])
    for op in ("sort", "argsort"):
        compare(op, x, axis=1, descending=down)
        compare(op, np.tile(x[0], (5, 1)), axis=0, descending=down)
    for k in ((count + 1) // 2, count):
        compare("topk", np.tile(x, (1, 7, 1)), k=k, axis=1, largest=down)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_those_of_all_before(dtype: str, axis: int) -> None:
    x = (1e8 * np.random.default_rng(0).standard_normal((4, 5, 6))).astype(ELEMENTS[dtype])
    compare("cumsum", x, axis=axis)
    compare("cumsum", x[:, :0], axis=axis)


def test_sums_of_whole_numbers_go_around() -> None:
    compare("cumsum", np.full(4, 2**31 - 1, np.int32), axis=0)
    compare("cumsum", np.full(4, 2**63 - 1), axis=0)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("dtype", [*NUMBERS, "float16", "int8"])
def test_elements_are_written_where_positions_say(dtype: str, add: bool, index: type[Any]) -> None:
    rng = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return rng.integers(-9, 9, shape).astype(ELEMENTS[dtype])

    x = some(4, 5, 6)
    for axis in (0, 1, 2, -1):
        at = rng.integers(-x.shape[axis], x.shape[axis], (2, 3)).astype(index)
        there = (*x.shape[: axis % 3], 2, 3, *x.shape[axis % 3 + 1 :])
        for values in (some(*there), some(), some(1), some(there[-1])):
            compare("scatter", x, at, values, axis=axis, add=add)
        shape = list(x.shape)
        shape[axis] = 7
        along = rng.integers(-x.shape[axis], x.shape[axis], shape).astype(index)
        compare("put_along_axis", x, along, some(*shape), axis=axis, add=add)
        compare("put_along_axis", x, along[:1] if axis else along, some(), axis=axis, add=add)
    compare("scatter", x, np.zeros(0, index), some(4, 0, 6), axis=1, add=add)


def test_what_is_in_c() -> None:
    x, at = np.zeros((3, 4), np.float32), np.zeros(2, np.int64)
    assert in_c("scatter", x, at, np.zeros((2, 4), np.float32), axis=0, add=True)
    assert in_c("cumsum", x, axis=0)
    assert in_c("sort", x, axis=0, descending=False) and in_c("argsort", x, axis=0, descending=False)
    # values that broadcast along one dim only, bits that are no numbers of C, and more than NumPy sorts faster
    assert not in_c("scatter", x, at, np.zeros(4, np.float32), axis=0, add=True)
    assert not in_c("cumsum", x.astype(np.float16), axis=0)
    assert not in_c("sort", np.zeros((27, 19), np.float32), axis=0, descending=False)


def test_memory_of_another_size_is_not_written_to() -> None:
    """Programs come from files, too."""
    x, at = np.zeros((3, 4), np.float32), np.zeros((2, 4), np.int64)
    short, ints = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.int32)
    for out in (short, ints):
        for op, inputs, attrs in (
            ("cumsum", (x,), {"axis": 0}),
            ("sort", (x,), {"axis": 0, "descending": False}),
            ("argsort", (x,), {"axis": 0, "descending": False}),
            ("scatter", (x, at[0], x[0, 0]), {"axis": 0, "add": True}),
            ("put_along_axis", (x, at, np.zeros((2, 4), np.float32)), {"axis": 0, "add": True}),
        ):
            given: Any = inputs
            assert order.PREPARED[f"cpu.{op}"](given, (out,), **attrs) is None
    assert order.PREPARED["cpu.topk"]([x], (short, np.zeros((3, 4), np.int64)), axis=0, largest=True) is None


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_position_outside_is_an_error(index: type[Any]) -> None:
    for at in (3, -4):
        with pytest.raises(InputError, match=rf"axis 1: index {at} is outside of a dim of 3 elements"):
            compare_only("scatter", np.zeros((2, 3)), np.array([0, at], index), np.zeros(()), axis=1, add=False)


def compare_only(op: str, *inputs: np.ndarray, **attrs: Any) -> None:
    """The function alone, where the operator raises, too."""
    order.FUNCTIONS[f"cpu.{op}"](inputs, [np.empty_like(inputs[0])], **attrs)


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(InputError, match="k is within the dim"):
        order.FUNCTIONS["cpu.topk"]([NAN], [np.empty((2, 8)), np.empty((2, 8), np.int64)], axis=-1, largest=True)


def _routed(x: Any) -> Any:
    values, places = mi.topk(x, 2, axis=1)
    flat = mi.reshape(places, (-1,))
    ones = mi.full((4,), 0, dtype="int64")
    counts = mi.scatter(ones, flat, mi.full((), 1, dtype="int64"), axis=0, add=True)
    return values, mi.sort(flat, axis=0), mi.argsort(flat, axis=0), mi.cumsum(counts, axis=0)


@pytest.mark.parametrize("calls", [1, 4])
def test_programs_call_them(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("NumPy is not asked")

    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    wanted = np.argsort(-x, 1, kind="stable")[:, :2].reshape(-1)
    run = mi.compile(_routed, {"x": mi.tensor("n", 4)}, cache=False)
    code = run.program.functions[run.program.main].code
    assert sum(isinstance(i, vm.CallLibrary) and i.function.startswith("cpu.") for i in code) == 5
    for op in ("topk", "sort", "argsort", "scatter", "cumsum"):
        monkeypatch.setattr(type(get_operator(op)), "compute", refused)
    for _ in range(calls):
        values, in_order, positions, sums = run(x)
    np.testing.assert_array_equal(values, -np.sort(-x, 1)[:, :2])
    np.testing.assert_array_equal(in_order, np.sort(wanted))
    np.testing.assert_array_equal(positions, np.argsort(wanted, kind="stable"))
    np.testing.assert_array_equal(sums, np.cumsum(np.bincount(wanted, minlength=4)))


def test_a_launch_says_which_position_is_outside() -> None:
    run = mi.compile(
        lambda x, at: mi.scatter(x, at, x * 2, axis=0), {"x": mi.tensor("n"), "at": mi.tensor("n", dtype="int64")}, cache=False
    )
    x, at = np.arange(3, dtype=np.float32), np.array([2, 0, 1])
    for _ in range(4):
        np.testing.assert_array_equal(run(x, at), [2.0, 4.0, 0.0])
    with pytest.raises(InputError, match="scatter: axis 0: index 7 is outside of a dim of 3 elements"):
        run(x, np.array([2, 7, 1]))
    np.testing.assert_array_equal(run(x, at), [2.0, 4.0, 0.0])


def test_effects_that_c_lacks() -> None:
    x, at = np.zeros((4, 3), np.float32), np.array([1, 2])
    assert order.prepare_scatter([x, at, np.ones((2, 3), np.float32)], axis=0) is not None
    assert order.prepare_copy([x, np.ones((4, 3), np.float32)]) is not None
    # perhaps a view of the same memory, another type, and what is broadcast
    assert order.prepare_scatter([x, np.arange(4), x], axis=0) is None
    assert order.prepare_scatter([x, at, np.ones((2, 3))], axis=0) is None
    assert order.prepare_copy([x, np.ones((4, 3))]) is None
    assert order.prepare_copy([x, np.ones(3, np.float32)]) is None
    x.flags.writeable = False
    assert order.prepare_scatter([x, at, np.ones((2, 3), np.float32)], axis=0) is None
    assert order.prepare_copy([x, np.ones((4, 3), np.float32)]) is None


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(0,), (1,), (5, 3), (400,), (600,)])
def test_distinct_elements(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(ELEMENTS[dtype])
    found = order.unique([x], {}, {})
    np.testing.assert_array_equal(found, get_operator("unique").run([x], {}, {}))
    assert found.dtype == x.dtype


def test_distinct_elements_have_one_nan() -> None:
    for x in (NAN, NAN.astype(np.float32), NAN[:, ::2]):
        found = order.unique([x], {}, {})
        np.testing.assert_array_equal(found, np.unique(x))
        assert np.isnan(found).sum() == 1


def test_distinct_elements_of_a_program() -> None:
    run = mi.compile(lambda x: mi.unique(x), {"x": mi.tensor("n", dtype="int64")})
    for x in (np.array([3, 1, 3, 2]), np.array([], np.int64)):
        np.testing.assert_array_equal(run(x), np.unique(x))
