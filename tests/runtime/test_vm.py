"""The virtual machine: every instruction, whose memory results are in, errors, and calls at the same time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mirage.errors import GuardError, InputError, MirageError
from mirage.ir.annotations import ObjectType, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import to_dim
from mirage.ir.types import ELEMENTS, TensorType, tensor
from mirage.runtime.packed import register_library, register_packed
from mirage.runtime.program import (
    AllocStorage,
    CallFunction,
    CallKernel,
    CallLibrary,
    CallOperator,
    CallPacked,
    Free,
    GetItem,
    Guard,
    If,
    Loop,
    MakeShape,
    MakeTensor,
    MakeTuple,
    MatchShape,
    Reshape,
    Return,
    ShapeOf,
)
from mirage.runtime.vm import VirtualMachine
from tests.kernels.kernels import call_from_threads
from tests.runtime.machines import ADD, DOUBLE, FILL, KERNELS, Arrays, dims, double, function, machine, program

N = tensor("n")
F32 = np.float32


def first_above(x: np.ndarray, limit: float = 0.0) -> np.ndarray:
    return x[x > limit]


def write_row(cache: np.ndarray, row: np.ndarray, at: np.ndarray) -> np.ndarray:
    cache[int(at)] = row
    return cache


def matmul(inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...], scale: int = 1) -> None:
    np.matmul(inputs[0], inputs[1] * F32(scale), out=outputs[0])


register_packed("test.above", first_above)
register_packed("test.write_row", write_row)
register_packed("test.same", lambda x: x)
register_packed("test.parts", lambda x: [x[1:], x.T, np.float32(2), "text"])
register_packed("test.addresses", lambda *arrays: tuple(a.ctypes.data for a in arrays))
register_packed("test.half", lambda shape: tuple(n // 2 for n in shape))
register_library("test.matmul", matmul)


def ramp(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def quadruple(**more: Any) -> VirtualMachine:
    """4x + x, by way of two tensors in storages that grow."""
    code = [
        AllocStorage(0, to_dim("4*n")),
        AllocStorage(1, to_dim("4*n")),
        MakeTensor(1, 0, 0, dims("n"), "float32"),
        CallKernel(DOUBLE, (0,), (1,)),
        MakeTensor(2, 1, 0, dims("n"), "float32"),
        CallKernel(DOUBLE, (1,), (2,)),
        Free((1,)),
        MakeTensor(3, None, 0, dims("n"), "float32"),
        CallKernel(ADD, (2, 0), (3,)),
        Return(3),
    ]
    return machine(function({"x": N}, *code, **more))


def test_one_load_serves_all_sizes_and_results_are_the_callers() -> None:
    run = quadruple()
    results = {n: run(ramp(n)) for n in (7, 3, 0, 100, 8)}
    for n, y in results.items():
        assert np.array_equal(y, 5 * ramp(n)) and y.flags.owndata
    assert run.idle_bytes == 2 * 400
    run.release()
    assert run.idle_bytes == 0
    assert np.array_equal(run(ramp(5)), 5 * ramp(5))


def static() -> VirtualMachine:
    """5x in an arena for n <= 64, where the two tensors have their places."""
    code = [
        AllocStorage(0, to_dim(256), 64),
        AllocStorage(1, to_dim(64), 0),
        MakeTensor(1, 0, 0, dims("n"), "float32"),
        MakeTensor(2, 1, 0, dims(16), "float32"),
        CallKernel(FILL, (), (1,), dims("3*n"), (2,)),
        MakeTensor(3, None, 0, dims("n"), "float32"),
        CallKernel(ADD, (0, 1), (3,)),
        Return(3),
    ]
    guards = (Guard(to_dim("n"), "<=", to_dim(64), "bounds['n']"),)
    return machine(function({"x": N}, *code, arena=320, guards=guards))


def test_a_static_arena_never_grows_and_kernels_get_dims_and_workspace() -> None:
    run = static()
    for n in (64, 1, 30):
        assert np.array_equal(run(ramp(n)), ramp(n) + 3 * n)
        assert run.idle_bytes == 320
    with pytest.raises(
        GuardError, match=r"main: n is 65, but n <= 64 is required \(bounds\['n'\]\); n=65 is dim 0 of input 'x'"
    ):
        run(ramp(65))


def test_tensors_in_arenas_start_at_cache_lines() -> None:
    code = [
        AllocStorage(0, to_dim(64), 64),
        AllocStorage(1, to_dim("4*n")),
        MakeTensor(1, 0, 0, dims(), "float32"),
        MakeTensor(2, 1, 0, dims("n"), "float32"),
        CallPacked(3, "test.addresses", (1, 2)),
        Return(3),
    ]
    run = machine(function({"x": N}, *code, arena=128))
    assert [at % 64 for n in (3, 200) for at in run(ramp(n))] == [0] * 4


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_all_element_types(dtype: str) -> None:
    code = [
        AllocStorage(0, to_dim("8*n")),
        MakeTensor(1, 0, 0, dims("n"), dtype),
        CallKernel(ADD, (0, 0), (1,)),
        MakeTensor(2, None, 0, dims("n"), dtype),
        CallKernel(ADD, (1, 0), (2,)),
        Return(2),
    ]
    x = ramp(9, dtype=ELEMENTS[dtype])
    found = machine(function({"x": TensorType(dims("n"), dtype)}, *code))(x)
    assert found.dtype == x.dtype and np.array_equal(found, x + x + x)


def test_a_function_with_an_extra_dim_in_the_callers_memory() -> None:
    """As in Figure 8 of Relax."""
    inner = function(
        {"x": tensor("2*n")},
        AllocStorage(0, to_dim(256), 0),
        MakeTensor(1, 0, 0, dims("n"), "float32"),
        CallKernel(FILL, (), (1,), dims("n"), (1,)),
        MakeTensor(2, None, 0, dims("n"), "float32"),
        CallKernel(DOUBLE, (1,), (2,)),
        Return(2),
        name="inner",
        extra=("n",),
        arena=256,
    )

    def outer(memory: int | None) -> VirtualMachine:
        storage = [] if memory is None else [AllocStorage(memory, to_dim(320), 64)]
        made = MakeTensor(1, None, 0, dims("2*n"), "float32")
        code = [*storage, made, CallFunction(2, "inner", (1,), dims("n"), memory), Return(2)]
        return machine(function({"x": N}, *code, arena=384 if storage else 0), inner)

    for memory in (None, 3):
        run = outer(memory)
        for n in (4, 5, 4):
            assert np.array_equal(run(ramp(n)), np.full(n, 2 * n))
        assert run.idle_bytes == (384 if memory else 256)


def test_a_call_checks_the_callees_signature() -> None:
    inner = function({"x": tensor("2*m")}, MakeTensor(1, None, 0, dims("m"), "float32"), Return(1), name="inner")
    run = machine(function({"x": tensor("n")}, CallFunction(1, "inner", (0,), where="line 7"), Return(1)), inner)
    assert run(ramp(4)).shape == (2,)
    with pytest.raises(GuardError, match=r"inner: input 'x', dim 0: no size of m makes 2\*m equal 5") as e:
        run(ramp(5))
    assert e.value.__notes__ == [
        "in function 'main', line 7: r1 = CallFunction(function='inner', args=[0], dims=[], memory=None)"
    ]


def branches() -> VirtualMachine:
    def times(name: str, kernel: int) -> Any:
        made = MakeTensor(1, None, 0, dims("n"), "float32")
        return function({"x": N}, made, CallKernel(kernel, (0, 0)[: 2 - kernel], (1,)), Return(1), name=name)

    same = function({"x": N}, Return(0), name="same")
    return machine(
        function({"p": tensor(dtype="bool"), "x": N}, If(2, 0, "twice", "same", (1,)), Return(2)),
        times("twice", DOUBLE),
        same,
    )


def test_if_takes_one_branch() -> None:
    run, x = branches(), ramp(4)
    assert np.array_equal(run(np.array(True), x), 2 * x)
    assert np.array_equal(run(True, x), 2 * x)
    other = run(np.array(False), x)
    # the branch gives its argument back, which the caller does not own
    assert np.array_equal(other, x) and not np.shares_memory(other, x)
    with pytest.raises(GuardError, match=r"input 'p' has shape \[1\], but must be bool\[\(\)\]"):
        run(np.array([True]), x)


def power(count: dict[str, Any], parameters: dict[str, Any]) -> VirtualMachine:
    body = function(
        {"i": tensor(dtype="int64"), "x": N, "y": N},
        MakeTensor(3, None, 0, dims("n"), "float32"),
        CallKernel(ADD, (1, 2), (3,)),
        Return(3),
        name="body",
    )
    at = len(parameters)
    return machine(function(parameters, Loop(at, "body", (0,), (0,), **count), Return(at)), body)


def test_a_loop_runs_as_often_as_a_dim_or_a_tensor_says() -> None:
    run = power({"count": to_dim("n - 1")}, {"x": N})
    for n in (1, 2, 5):
        assert np.array_equal(run(ramp(n)), n * ramp(n))
    run = power({"times": 1, "bound": to_dim("n")}, {"x": N, "k": tensor(dtype="int64")})
    for k in (0, 3):
        found = run(ramp(3), k)
        assert np.array_equal(found, (k + 1) * ramp(3))
    with pytest.raises(GuardError, match=r"main: a loop is to run 4 times, and its bound n is 3 here"):
        run(ramp(3), np.int64(4))


def test_a_loop_carries_several_values_and_counts() -> None:
    """Fibonacci numbers, and the sum of the indices."""
    at = tensor(dtype="int64")
    body = function(
        {"i": at, "a": at, "b": at, "s": at},
        CallOperator(4, "add", (1, 2)),
        CallOperator(5, "add", (3, 0)),
        MakeTuple(6, (2, 4, 5)),
        Return(6),
        name="body",
    )
    main = function({"a": at, "b": at}, Loop(2, "body", (0, 1, 0), count=to_dim(10)), Return(2))
    assert [int(x) for x in machine(main, body)(0, 1)] == [55, 89, 45]


def data_dependent(guards: tuple[Guard, ...] = ()) -> VirtualMachine:
    """The elements above 0, twice, in a storage whose size only the data say."""
    code = [
        CallPacked(1, "test.above", (0,), (("limit", 0.0),), where="line 3"),
        MatchShape(1, tensor("m"), "kept", where="line 4"),
        AllocStorage(0, to_dim("4*m")),
        MakeTensor(2, 0, 0, dims("m"), "float32"),
        CallKernel(DOUBLE, (1,), (2,)),
        MakeTensor(3, None, 0, dims("m", 1), "float32"),
        Reshape(4, 2, dims("m", 1)),
        CallKernel(ADD, (4, 4), (3,)),
        MakeShape(5, dims("m", "n - m", "n")),
        MakeTuple(6, (3, 5)),
        Return(6),
    ]
    return machine(function({"x": N}, *code, guards=guards))


def test_match_binds_dims_that_data_decide() -> None:
    run = data_dependent()
    for x in (ramp(6) - 2, ramp(4), -ramp(3)):
        y, shape = run(x)
        kept = x[x > 0]
        assert np.array_equal(y, 4 * kept[:, None])
        assert shape == (len(kept), len(x) - len(kept), len(x))


def test_matches_that_bind_nothing_check_what_is_known() -> None:
    code = [
        MatchShape(0, tensor("n"), "x"),
        MatchShape(1, tensor("m"), "y"),
        MatchShape(1, tensor("n - 1"), "y"),
        Return(1),
    ]
    run = machine(function({"x": N, "y": PartialTensor()}, *code))
    assert np.array_equal(run(ramp(4), ramp(3)), ramp(3))
    with pytest.raises(GuardError, match=r"value 'y' has shape \[4\]: dim 0 is 4, but n - 1 is 3 here \(n=4\)"):
        run(ramp(4), ramp(4))


def test_a_guard_on_data_names_value_dim_and_line() -> None:
    run = data_dependent((Guard(to_dim("m"), "%", to_dim(2), "pairs"), Guard(to_dim("n"), ">=", to_dim("m"))))
    assert run(ramp(5))[1] == (4, 1, 5)
    with pytest.raises(
        GuardError,
        match=r"main, line 4: m is 3, but m is a multiple of 2 is required \(pairs\); m=3 is dim 0 of value 'kept'",
    ):
        run(ramp(4))


def test_a_match_that_fails() -> None:
    def check(annotation: Any) -> VirtualMachine:
        return machine(function({"x": PartialTensor()}, MatchShape(0, annotation, "x", where="line 2"), Return(0)))

    assert check(tensor("m", "m"))(ramp(2, 2)).shape == (2, 2)
    with pytest.raises(
        GuardError, match=r"main, line 2: value 'x' has shape \[2, 3\]: dim 1 is 3, but m is 2 here \(m=2\)"
    ):
        check(tensor("m", "m"))(ramp(2, 3))
    with pytest.raises(GuardError, match=r"value 'x' has shape \[2\], but must be float32\[m, m\]; match the rank"):
        check(tensor("m", "m"))(ramp(2))
    with pytest.raises(GuardError, match=r"value 'x' has dtype float64, but must be float32\[\.\.\.\]"):
        check(PartialTensor(None, "float32"))(ramp(2, dtype=np.float64))


def test_a_match_makes_arrays_of_other_libraries_arrays_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    register_packed("test.torch", lambda x: torch.from_numpy(x).reshape(2, -1).T + 1)
    code = [CallPacked(1, "test.torch", (0,)), MatchShape(1, tensor("k", 2), "y"), Return(1)]
    found = machine(function({"x": N}, *code))(ramp(6))
    assert type(found) is np.ndarray and found.flags.c_contiguous
    assert np.array_equal(found, ramp(2, 3).T + 1)


def cache() -> VirtualMachine:
    """A row written to a cache, which is the result."""
    parameters = {"cache": tensor("t", "d"), "row": tensor("d"), "at": tensor(dtype="int64")}
    return machine(
        function(parameters, CallPacked(3, "test.write_row", (0, 1, 2), in_place=(0,)), Return(3), in_place=["cache"])
    )


def test_an_argument_is_updated_in_place_also_where_it_is_strided() -> None:
    run, row = cache(), np.ones(3, F32)
    whole = np.zeros((4, 3), F32)
    assert run(whole, row, 2) is whole
    assert whole[2].tolist() == [1, 1, 1] and whole.sum() == 3
    wide = np.zeros((4, 6), F32)
    found = run(wide[:, ::2], row, 1)
    assert wide[1].tolist() == [1, 0, 1, 0, 1, 0] and wide.sum() == 3 == found.sum()
    whole.flags.writeable = False
    for fixed in (whole, whole[::2]):
        with pytest.raises(GuardError, match="main: input 'cache' is updated in place, and read-only"):
            run(fixed, row, 1)


def _strided(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a[::2], a[1::2]


#: why one is not updated with the other
WITH_Y, INSIDE = "shares memory with input 'y'; pass a copy of one of them", "parts of it share memory; pass a copy"


@pytest.mark.parametrize(
    ("views", "why"),
    [
        (_strided, ""),
        (lambda a: (a[:5], a[5:]), ""),
        (lambda a: (a[5:], a[:5]), ""),
        (lambda a: (a[:0], a[:0]), ""),
        (lambda a: (a, a), WITH_Y),
        (lambda a: (a[:5], a[2:7]), WITH_Y),
        (lambda a: (a[2:7], a[:5]), WITH_Y),
        (lambda a: (a[::2], a[:5]), WITH_Y),
        (lambda a: (a[:5], a[::2]), WITH_Y),
        (lambda a: (a[::-1], a), WITH_Y),
        (lambda a: (a[::2], a[::2]), WITH_Y),
        (lambda a: (np.lib.stride_tricks.as_strided(a, (5,), (0,)), np.ones(5, F32)), INSIDE),
    ],
)
def test_memory_of_an_argument_that_is_updated_is_its_own(views: Any, why: str) -> None:
    m = machine(function({"x": N, "y": N}, CallPacked(2, "add_", (0, 1), in_place=(0,)), Return(2), in_place=["x"]))
    x, y = views(np.arange(10, dtype=F32))
    if why:
        before = x.copy()
        with pytest.raises(GuardError) as e:
            m(x, y)
        assert str(e.value) == f"main: input 'x' is updated in place, and {why}"
        np.testing.assert_array_equal(x, before)
    else:
        want = x + y
        m(x, y)
        np.testing.assert_array_equal(x, want)


def test_tensors_in_an_argument_that_is_updated_are_apart() -> None:
    pair = TupleType((N, N))
    code = [GetItem(2, 0, 0), CallPacked(3, "add_", (2, 1), in_place=(0,)), Return(3)]
    m = machine(function({"pair": pair, "y": N}, *code, in_place=["pair"]))
    a, y = np.arange(10, dtype=F32), np.ones(5, F32)
    m((a[:5], a[5:]), y)
    assert a.tolist() == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    with pytest.raises(GuardError, match=f"input 'pair' is updated in place, and {INSIDE}"):
        m((a[:5], a[4:9]), y)
    # what is only read may be there twice
    both = machine(function({"x": N, "y": N, "z": N}, CallPacked(3, "add_", (0, 1), in_place=(0,)), Return(3), in_place=["x"]))
    assert both(a[:5], y, y).tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", [2**63, 10**30])
def test_sizes_beyond_int64_are_refused(size: int) -> None:
    m = machine(function({"s": ShapeType(dims("n"))}, Return(0)))
    assert m((2**62,)) == (2**62,)
    with pytest.raises(GuardError, match=f"main: input 's' is .{size}.; sizes are at most"):
        m((size,))


@pytest.mark.parametrize(("dtype", "value"), [("int32", 2**31), ("int32", -(2**40)), ("int64", 2**63), ("int64", 10**30)])
def test_numbers_beyond_a_type_are_refused(dtype: str, value: int) -> None:
    m = machine(function({"x": TensorType((), dtype)}, Return(0)))
    assert m(7) == 7
    with pytest.raises(GuardError, match=f"main: input 'x' is {value}, which {dtype}"):
        m(value)


def test_results_never_share_memory_with_what_the_caller_or_the_program_keeps() -> None:
    weights, x = ramp(3), ramp(4)
    main = function({"x": N}, MakeTuple(2, (0, 0, 1)), Return(2), constants=((1, 0),))
    run = VirtualMachine(program(main, constants=(tensor(3),)), list(KERNELS.values()), [weights])
    found = run(x)
    for k, (a, want) in enumerate(zip(found, (x, x, weights), strict=True)):
        assert np.array_equal(a, want) and a.flags.writeable
        assert not any(np.shares_memory(a, b) for b in (x, weights, *found[:k]))
    # nor do the program's constants with the array that it was loaded with
    weights[:] = 7
    assert run(x)[2].tolist() == [0, 1, 2]


def test_what_python_functions_return() -> None:
    run = machine(
        function(
            {"x": tensor("n", "m")}, CallPacked(1, "test.same", (0,)), CallPacked(2, "test.parts", (1,)), Return(2)
        )
    )
    x = ramp(3, 2)
    rows, columns, number, text = run(x)
    assert np.array_equal(rows, x[1:]) and np.array_equal(columns, x.T) and columns.flags.c_contiguous
    assert number.dtype == F32 and number.shape == () and text == "text"
    assert not np.shares_memory(rows, x)


def test_library_functions_write_results_in_place_and_get_sizes() -> None:
    code = [
        MakeTensor(2, None, 0, dims("m", "k"), "float32"),
        CallLibrary("test.matmul", (0, 1), (2,), (("scale", to_dim("m - n")),)),
        Return(2),
    ]
    run = machine(function({"a": tensor("m", "n"), "b": tensor("n", "k")}, *code))
    a, b = ramp(5, 3), ramp(3, 2)
    assert np.array_equal(run(a, b), 2 * (a @ b))


def test_operators_run_in_numpy() -> None:
    code = [
        CallOperator(1, "reshape", (0,), (("shape", dims("n", 2, "m // 2")),)),
        CallOperator(2, "sum", (1,), (("axes", (2,)), ("keepdims", False))),
        CallOperator(3, "exp", (2,)),
        Return(3),
    ]
    run = machine(function({"x": tensor("n", "m")}, *code))
    x = ramp(3, 4) * F32(100)
    with np.errstate(all="raise"):
        found = run(x)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, np.exp(x.reshape(3, 2, 2).sum(2)))


def test_shapes_are_values() -> None:
    code = [
        ShapeOf(2, 0),
        CallPacked(3, "test.half", (2,)),
        MatchShape(3, ShapeType(dims("p", "q")), "half"),
        MakeShape(4, dims("p + q", "a*n")),
        MakeTuple(5, (2, 3, 4)),
        Return(5),
    ]
    run = machine(function({"x": tensor("n", "m"), "s": ShapeType((*dims("a"), None))}, *code))
    assert run(ramp(4, 9), (3, 5)) == ((4, 9), (2, 4), (6, 12))
    assert run(ramp(4, 9), [np.int64(3), 5])[2] == (6, 12)
    for wrong, message in [
        ((3,), r"input 's' is \[3\], but must be Shape\[a, _\]"),
        ((3, -1), r"\[3, -1\]; sizes are 0"),
    ]:
        with pytest.raises(GuardError, match=message):
            run(ramp(4, 9), wrong)
    with pytest.raises(InputError, match="input 's' is 3, not a shape"):
        run(ramp(4, 9), 3)


def test_tuples_and_opaque_objects() -> None:
    pair = TupleType((N, TupleType((tensor("n", "m"), ObjectType()))))
    code = [
        GetItem(1, 0, 1),
        GetItem(2, 1, 1),
        GetItem(3, 1, 0),
        MakeShape(4, dims("n", "m")),
        MakeTuple(5, (2, 3, 4)),
        Return(5),
    ]
    run = machine(function({"p": pair}, *code))
    it = object()
    found = run((ramp(2), [ramp(2, 3)[:, ::-1], it]))
    assert found[0] is it and np.array_equal(found[1], ramp(2, 3)[:, ::-1]) and found[2] == (2, 3)
    with pytest.raises(GuardError, match=r"input 'p'\[1\]\[0\] has shape \[3, 3\]: dim 0 is 3, but n is 2 here"):
        run((ramp(2), (ramp(3, 3), it)))
    with pytest.raises(InputError, match=r"input 'p'\[1\] is not a tuple of 2 values"):
        run((ramp(2), ramp(2, 2)))


@pytest.mark.parametrize(
    "x", [ramp(8)[::2], ramp(8)[::-1], np.zeros(17, np.uint8)[1:].view(F32), np.broadcast_to(F32(1), 4)]
)
def test_arguments_of_any_layout(x: np.ndarray) -> None:
    before = x.copy()
    assert np.array_equal(quadruple()(x), 5 * before) and np.array_equal(x, before)


def test_arguments_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    assert np.array_equal(quadruple()(torch.arange(4, dtype=torch.float32)), 5 * ramp(4))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((), InputError, r"main: takes 1 arguments \(x\), got 0"),
        (([1.0],), InputError, "input 'x': list is not an array"),
        (
            (ramp(3, dtype=np.float64),),
            GuardError,
            r"input 'x' has dtype float64, but must be float32\[n\]; convert it",
        ),
        ((ramp(3).astype(">f4"),), GuardError, "input 'x' has dtype >f4"),
        ((ramp(3, 1),), GuardError, r"input 'x' has shape \[3, 1\], but must be float32\[n\]; match the rank"),
        ((3.0,), InputError, "input 'x': float is not an array"),
    ],
)
def test_arguments_that_do_not_fit(args: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quadruple()(*args)


def test_after_an_interrupt_or_an_error_calls_are_right() -> None:
    raised: list[type[BaseException]] = []

    def twice(inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
        if raised:
            outputs[0][...] = -1
            raise raised.pop()
        double(inputs, outputs, dims, workspace)

    run = VirtualMachine(quadruple().program, list({**KERNELS, "double": twice}.values()))
    for kind in (KeyboardInterrupt, ZeroDivisionError):
        assert np.array_equal(run(ramp(4)), 5 * ramp(4))
        raised.append(kind)
        with pytest.raises(kind):
            run(ramp(4))
        assert np.array_equal(run(ramp(5)), 5 * ramp(5))


def test_errors_of_python_functions_name_the_line() -> None:
    def fail(x: np.ndarray) -> None:
        raise RuntimeError("no")

    register_packed("test.fail", fail)
    run = machine(function({"x": N}, CallPacked(1, "test.fail", (0,), where="model.py, line 9"), Return(1)))
    with pytest.raises(RuntimeError, match="no") as e:
        run(ramp(1))
    assert e.value.__notes__[0].startswith("in function 'main', model.py, line 9: r1 = CallPacked(")


def test_calls_from_several_threads() -> None:
    run = quadruple()
    call_from_threads(lambda seed, n: np.array_equal(run(ramp(n) + F32(seed)), 5 * (ramp(n) + F32(seed))))
    fixed = static()
    call_from_threads(lambda seed, n: np.array_equal(fixed(ramp(n) + F32(seed)), ramp(n) + F32(seed) + 3 * n))


def test_a_program_may_call_itself_by_way_of_python() -> None:
    runs: list[VirtualMachine] = []

    def again(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, runs[0](x[:-1])]) if len(x) else x

    register_packed("test.again", again)
    code = [
        AllocStorage(0, to_dim("4*n")),
        MakeTensor(1, 0, 0, dims("n"), "float32"),
        CallKernel(DOUBLE, (0,), (1,)),
        CallPacked(2, "test.again", (1,)),
        CallPacked(3, "test.above", (1,), (("limit", -1),)),
        MakeTuple(4, (2, 3)),
        GetItem(5, 4, 0),
        Return(5),
    ]
    runs.append(machine(function({"x": N}, *code)))
    # each level doubles what it got from the one above it
    assert runs[0](np.ones(3, F32)).tolist() == [2] * 3 + [4] * 2 + [8]


@pytest.mark.parametrize("wanted", ["n**10", "n**15"])
def test_sizes_for_which_there_is_no_memory(wanted: str) -> None:
    with pytest.raises(MirageError, match="no memory for float32"):
        machine(function({"x": N}, MakeTensor(1, None, 0, dims(wanted), "float32"), Return(1)))(ramp(18))
    grown, planned = AllocStorage(0, to_dim(wanted)), AllocStorage(0, to_dim(64), 0)
    for storage, arena in ((grown, 0), (planned, 1 << 62)):
        run = machine(function({"x": N}, storage, MakeTensor(1, 0, 0, dims(1), "float32"), Return(0), arena=arena))
        with pytest.raises(MirageError, match=r"no memory for [0-9]+ bytes of intermediate tensors"):
            run(ramp(18))


def test_large_results_and_many_shapes() -> None:
    run = quadruple()
    for n in range(600):
        run(ramp(n))
    big = np.ones(9 << 20, F32)
    assert np.array_equal(run(big), 5 * big)
