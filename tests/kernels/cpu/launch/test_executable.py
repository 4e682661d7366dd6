"""Compiled muGraphs equal their programs: every node kind, awkward sizes, strides, special values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage.errors import InputError, ScheduleError
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import DTYPES, tensor
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.cpu.check import check
from tests.kernels.kernels import bound, call_from_threads, error, random_inputs, single_kernel, tiles
from tests.mugraph.graphs import CASES, Case, flash_attention, flash_decoding, gated
from tests.programs import retyped
from tests.sampled import crossed

W, L = Role.WHOLE, Role.LOOP
BUILD: dict[str, tuple[Callable[[ProgramBuilder, str], list[int]], dict[str, Role]]] = {}


def program(**roles: Role) -> Callable[[Callable[[ProgramBuilder, str], list[int]]], None]:
    def add(build: Callable[[ProgramBuilder, str], list[int]]) -> None:
        BUILD[build.__name__] = build, roles

    return add


@program()
def rms_norm_matmul(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("m", "k", dtype=t)), b.input("w", tensor("k", "n", dtype=t))
    return [b.op("matmul", b.op("rms_norm", x), w)]


@program()
def softmax_rows(b: ProgramBuilder, t: str) -> list[int]:
    return [b.op("softmax", b.input("x", tensor("m", "n", dtype=t)))]


@program(n=L)
def sum_of_exponents(b: ProgramBuilder, t: str) -> list[int]:
    x, y = b.input("x", tensor("m", "n", dtype=t)), b.input("y", tensor("m", "n", dtype=t))
    e = b.op("exp", b.op("neg", b.op("square", x)))
    over = b.op("sum", e, axes=(1,))
    return [b.op("div", b.op("sum", b.op("mul", e, y), axes=(1,)), over)]


@program()
def layer_norm(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", "n", dtype=t))
    return [b.op("layer_norm", x, b.input("w", tensor("n", dtype=t)), b.input("c", tensor("n", dtype=t)))]


@program()
def adapter(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", 48, dtype=t))
    w1, w2 = b.input("w1", tensor(48, 16, dtype=t)), b.input("w2", tensor(16, 48, dtype=t))
    return [b.op("add", b.op("matmul", b.op("relu", b.op("matmul", x, w1)), w2), x)]


@program(k=L)
def lora(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("m", "k", dtype=t)), b.input("w", tensor("k", "n", dtype=t))
    a, c = b.input("a", tensor("k", 4, dtype=t)), b.input("c", tensor(4, "n", dtype=t))
    return [b.op("add", b.op("matmul", x, w), b.op("matmul", b.op("matmul", x, a), c))]


@program(k=L)
def gated_mlp(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", "k", dtype=t))
    w, u = b.input("w", tensor("k", "n", dtype=t)), b.input("u", tensor("k", "n", dtype=t))
    return [b.op("mul", b.op("silu", b.op("matmul", x, w)), b.op("matmul", x, u))]


@program(k=L)
def second_transposed(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("m", "k", dtype=t)), b.input("w", tensor("n", "k", dtype=t))
    return [b.op("matmul", x, b.op("transpose", w, perm=(1, 0)))]


@program()
def both_transposed(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("k", "m", dtype=t)), b.input("w", tensor("n", "k", dtype=t))
    return [b.op("matmul", b.op("transpose", x, perm=(1, 0)), b.op("transpose", w, perm=(1, 0)))]


@program()
def sums_of_all_kinds(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", "n", "k", dtype=t))
    silu = b.op("sum", b.op("silu", x), axes=(0, 1, 2))
    return [b.op("sum", b.op("exp", x), axes=(0,)), b.op("sum", b.op("square", x), axes=(0, 2)), silu]


@program()
def joined(b: ProgramBuilder, t: str) -> list[int]:
    x, y = b.input("x", tensor("m", "n", dtype=t)), b.input("y", tensor("m", 5, dtype=t))
    return [b.op("concat", x, b.op("gelu", y), x, axis=1)]


@program(k=L)
def batched(b: ProgramBuilder, t: str) -> list[int]:
    x, y = (
        b.input("x", tensor("b", "h", "m", "k", dtype=t)),
        b.input("y", tensor("b", "h", "k", "n", dtype=t)),
    )
    return [b.op("matmul", x, y)]


@program()
def two_contracted_axes(b: ProgramBuilder, t: str) -> list[int]:
    x, y = b.input("x", tensor("b", "m", 3, "k", dtype=t)), b.input("y", tensor(3, "k", "n", dtype=t))
    return [b.op("matmul", b.op("reshape", x, shape=("b", "m", "3*k")), b.op("reshape", y, shape=("3*k", "n")))]


@program()
def vectors(b: ProgramBuilder, t: str) -> list[int]:
    x, y = b.input("x", tensor("m", "k", dtype=t)), b.input("y", tensor("k", 1, dtype=t))
    return [b.op("matmul", x, y), b.op("matmul", b.op("transpose", y, perm=(1, 0)), y)]


@program()
def mean_of_all(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", "n", dtype=t))
    mean = b.op("mean", x, axes=(0, 1), keepdims=True)
    return [b.op("sub", x, mean), mean]


@program()
def elementwise(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("m", "n", dtype=t))
    unary = [b.op(o, x) for o in ("tanh", "sigmoid", "relu", "neg", "gelu")]
    power = b.op("pow", b.op("square", x), exponent=Fraction(3, 10))
    clamp, maximum = b.op("clamp", x, lo=-0.5, hi=0.25), b.op("maximum", x, value=0.1)
    # a transposed result, and an input as a result
    return [*unary, power, clamp, maximum, b.op("transpose", b.op("exp", x), perm=(1, 0)), x, x]


def build(name: str, dtype: str) -> tuple[Program, MuGraph]:
    make, roles = BUILD[name]
    b = ProgramBuilder(name)
    p = b.finish(make(b, dtype))
    return p, single_kernel(p, **roles)


@pytest.mark.parametrize(("name", "dtype"), crossed(BUILD, DTYPES))
def test_single_kernels_at_awkward_sizes(name: str, dtype: str) -> None:
    p, graph = build(name, dtype)
    exe = CpuExecutable(graph, tiles(graph, 7), analyze(graph), {"k": 512})
    for m, n, k in [(1, 1, 1), (13, 17, 3), (7, 14, 49), (40, 33, 65)]:
        sizes = {"b": 2, "h": 3, "m": m, "n": n, "k": k}
        inputs = random_inputs(p, sizes)
        found = error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64"))
        assert found < bound(dtype), (sizes, found)


@pytest.mark.parametrize("tile", [1, 16, 100])
@pytest.mark.parametrize("name", ["rms_norm_matmul", "batched", "sums_of_all_kinds", "lora", "joined"])
def test_tiles_of_one_vector_and_larger_than_the_tensor(name: str, tile: int) -> None:
    p, graph = build(name, "float32")
    check(p, graph, tiles(graph, tile), {"b": 1, "h": 2, "m": 18, "n": 33, "k": 20})


@pytest.mark.parametrize(("name", "dtype"), crossed(CASES, DTYPES))
def test_shared_cases(name: str, dtype: str) -> None:
    case = CASES[name]()
    check(retyped(case.program, dtype), replace(case.graph, dtype=dtype), case.schedule, case.sizes)


ATTENTION = [flash_attention, flash_decoding]


def attention(make: Callable[[], Case], tile: int = 16, splits: int = 3) -> tuple[Case, CpuExecutable]:
    case = make()
    schedule = tiles(case.graph, {"b": 1, "h": 1, "s": 2, "t": tile, "d8": 3, "d64_2": 50}, splits)
    return case, CpuExecutable(case.graph, schedule, analyze(case.graph), {"b": 1, "h": 8, "s": 1, "t": 4096})


@pytest.mark.parametrize("make", ATTENTION)
@pytest.mark.parametrize("scale", [1, 1e4])
def test_attention_with_huge_logits(make: Callable[[], Case], scale: float) -> None:
    case, exe = attention(make)
    for s, t in [(1, 1), (3, 2), (2, 67), (5, 200)]:
        sizes = {"b": 2, "h": 3, "s": s, "t": t}
        inputs = random_inputs(case.program, sizes)
        inputs[0] *= np.float32(scale)
        # logits are exact to about 1e-7 of their size, and that error is in the exponent
        found = error(exe(inputs, sizes), run_reference(case.program, inputs, sizes, "float64"))
        assert found < (1e-6 if scale == 1 else 2e-2), (sizes, found)


@pytest.mark.parametrize("make", ATTENTION)
def test_without_a_running_maximum_the_same_logits_overflow(make: Callable[[], Case]) -> None:
    case = make()
    exe = CpuExecutable(case.graph, case.schedule, RunningMaximum((), "", (), {}), case.sizes)
    inputs = random_inputs(case.program, case.sizes)
    assert error(exe(inputs, case.sizes), run_reference(case.program, inputs, case.sizes, "float64")) < 1e-6
    inputs[0] *= np.float32(1e4)
    assert not np.isfinite(exe(inputs, case.sizes)[0]).all()


@pytest.mark.parametrize("make", ATTENTION)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_spoil_only_their_row(make: Callable[[], Case], value: float) -> None:
    case, exe = attention(make)
    sizes = {"b": 1, "h": 2, "s": 3, "t": 70}
    inputs = random_inputs(case.program, sizes)
    inputs[0][0, 5, 1, 3] = value
    (got,), (want,) = exe(inputs, sizes), run_reference(case.program, inputs, sizes, "float64")
    assert np.isnan(want[0, 5, 1]).all()
    assert error([got], [want]) < 1e-6


@pytest.mark.parametrize("make", ATTENTION)
def test_masked_keys(make: Callable[[], Case]) -> None:
    """Logits of -inf in whole tiles, at the start and at the end: no NaN."""
    case, exe = attention(make)
    sizes = {"b": 1, "h": 1, "s": 1, "t": 200}
    inputs = random_inputs(case.program, sizes)
    inputs[0][:] = np.abs(inputs[0])
    inputs[1][0, 0, :100, 0] = -np.inf
    inputs[1][0, 0, 150:, 0] = -np.inf
    assert error(exe(inputs, sizes), run_reference(case.program, inputs, sizes, "float64")) < 1e-6
    assert np.isfinite(exe(inputs, sizes)[0]).all()


def test_strided_reversed_and_read_only_inputs() -> None:
    case, exe = attention(flash_attention)
    sizes = {"b": 2, "h": 2, "s": 3, "t": 37}
    inputs = random_inputs(case.program, sizes)
    want = run_reference(case.program, inputs, sizes, "float64")
    q, k, v = inputs
    q = np.ascontiguousarray(q.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    k = np.ascontiguousarray(k[:, :, ::-1])[:, :, ::-1]
    v = np.asfortranarray(v)
    assert k.strides[2] < 0 and not v.flags.c_contiguous
    for a in (q, k, v):
        a.flags.writeable = False
    assert error(exe([q, k, v], sizes), want) < 1e-6
    raw = np.zeros(q.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(q.shape)
    odd[...] = q
    assert not odd.flags.aligned
    assert error(exe([odd, k, v], sizes), want) < 1e-6


def test_results_in_given_arrays_of_any_strides() -> None:
    case, exe = attention(flash_decoding)
    sizes = {"b": 2, "h": 2, "s": 3, "t": 37}
    inputs = random_inputs(case.program, sizes)
    want = run_reference(case.program, inputs, sizes, "float64")
    for out in (np.empty(want[0].shape, np.float32), np.empty(want[0].T.shape, np.float32).T):
        (got,) = exe(inputs, sizes, [out])
        assert got is out
        assert error([out], want) < 1e-6


def test_bad_arrays_are_refused() -> None:
    case, exe = attention(flash_attention)
    inputs = random_inputs(case.program, case.sizes)
    with pytest.raises(InputError, match="takes 3 arrays, got 2"):
        exe(inputs[:2], case.sizes)
    with pytest.raises(InputError, match="input k has shape"):
        exe([inputs[0], inputs[1][:, :, :2], inputs[2]], case.sizes)
    with pytest.raises(InputError, match="input q has dtype float64"):
        exe([inputs[0].astype(np.float64), *inputs[1:]], case.sizes)
    with pytest.raises(InputError, match="pass writable arrays"):
        exe(inputs, case.sizes, [np.empty(3, np.float32)])


def test_graphs_and_schedules_that_do_not_fit_are_refused() -> None:
    case = gated()
    with pytest.raises(ScheduleError, match="needs a positive tile"):
        CpuExecutable(case.graph, Schedule((KernelSchedule(),)), analyze(case.graph), case.sizes)


def test_sizes_of_zero() -> None:
    case = gated()
    exe = CpuExecutable(case.graph, case.schedule, analyze(case.graph), case.sizes)
    for sizes in ({"m": 0, "n": 3, "k": 2}, {"m": 3, "n": 3, "k": 0}):
        inputs = random_inputs(case.program, sizes)
        assert error(exe(inputs, sizes), run_reference(case.program, inputs, sizes)) == 0


def test_each_kernel_of_a_call_is_timed() -> None:
    graph = flash_decoding().graph
    sizes = flash_decoding().sizes
    exe = CpuExecutable(graph, tiles(graph, 8), analyze(graph), sizes)
    inputs = random_inputs(flash_decoding().program, sizes)
    call = exe.prepared(inputs, sizes)
    assert len(graph.kernels) == 2
    found = pool.kernel_seconds(call, 2)
    assert found is not None and len(found) == 2 and min(found) > 0.0
    # of another number of kernels it is not known which is which
    assert pool.kernel_seconds(call, 1) is None and pool.kernel_seconds(call, 3) is None

    def fail() -> None:
        call()
        raise ValueError("no kernel")

    with pytest.raises(ValueError, match="no kernel"):
        pool.kernel_seconds(fail, 2)
    again = pool.kernel_seconds(call, 2)
    assert again is not None and len(again) == 2


def test_contracted_axes_that_follow_on_one_another_are_one() -> None:
    """Heads and their elements, in attention's output product; a view whose heads are apart is read by its strides."""
    b = ProgramBuilder("output")
    x, w = b.input("x", tensor("m", 4, "d")), b.input("w", tensor("4*d", "n"))
    p = b.finish([b.op("matmul", b.op("reshape", x, shape=("m", "4*d")), w)])
    graph = single_kernel(p)
    for tile in (3, 64):
        for d in (1, 5, 40):
            sizes = {"m": 7, "d": d, "n": 33}
            exe = CpuExecutable(graph, tiles(graph, tile), analyze(graph), sizes)
            inputs = random_inputs(p, sizes)
            want = run_reference(p, inputs, sizes, "float64")
            assert error(exe(inputs, sizes), want) < bound("float32")
            apart = np.empty((7, 4, d + 3), np.float32)[..., :d]
            apart[...] = inputs[0]
            assert error(exe([apart, inputs[1]], sizes), want) < bound("float32")
    # one call of the micro-kernel where they do
    assert any("* " in line.split("(")[1].split(",")[1] for line in exe.source.splitlines() if "mi_gemm_outer(" in line)


def test_calls_from_several_threads() -> None:
    case, exe = attention(flash_decoding)

    def right(seed: int, t: int) -> bool:
        sizes = {"b": 1, "h": 2, "s": 1, "t": t}
        inputs = random_inputs(case.program, sizes, seed)
        return error(exe(inputs, sizes), run_reference(case.program, inputs, sizes)) <= 1e-5

    call_from_threads(right)
