"""Library plans with CUTLASS kernels: which epilogues they recognise, what they launch, and when they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.programs import KERNELS, retyped
from mirage.frontends.attention import attention
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.gemm.operator import CutlassCalls
from mirage.kernels.cuda.library.program import CudaLibraryProgram
from tests.kernels.cuda.gemm.gemms import MemoryGemms
from tests.kernels.cuda.memory import TOLERANCE, MemoryArrays, numbers

SIZES = {"b": 3, "s": 16, "t": 24, "n": 16}


def _program(make: Callable[..., Any], dtype: str, **inputs: tuple[Any, ...]) -> Program:
    return mi.program(**{k: mi.tensor(*v, dtype=dtype) for k, v in inputs.items()})(make).trace()


def silu(x: Any, w: Any, r: Any) -> Any:
    return mi.silu(x @ w) + r


def gelu(x: Any, w: Any, c: Any) -> Any:
    return mi.gelu(x @ w + c)


def norm(x: Any, g: Any, w: Any) -> Any:
    return mi.rms_norm(x, g) @ w


def scaled(x: Any, w: Any) -> Any:
    return x @ w * mi.rsqrt(mi.mean(x * x, axis=-1, keepdims=True) + 0.01)


def gated(x: Any, w: Any, v: Any) -> Any:
    return mi.silu(x @ w) * (x @ v)


def twice(x: Any, w: Any) -> Any:
    y = mi.relu(x @ w)
    return y, y * 2


def heads(q: Any, k: Any, v: Any) -> Any:
    return attention(q, mi.repeat(k, 2, axis=1), mi.repeat(v, 2, axis=1))


X, W, V = ("b", 24), (24, 16), (24, 16)
CASES: dict[Callable[..., Any], Mapping[str, tuple[Any, ...]]] = {
    silu: {"x": X, "w": W, "r": ("b", 16)},
    gelu: {"x": X, "w": W, "c": (16,)},
    norm: {"x": X, "g": (24,), "w": W},
    scaled: {"x": X, "w": W},
    gated: {"x": X, "w": W, "v": V},
    twice: {"x": X, "w": W},
    heads: {"q": ("b", 4, "s", 8), "k": ("b", 2, "t", 8), "v": ("b", 2, "t", 8)},
}


def _run(program: Program, sizes: Mapping[str, int], gemms: MemoryGemms) -> CudaLibraryProgram:
    """Run a program, and compare it with float64."""
    dtype = program.input_types[0].dtype
    rng = np.random.default_rng(2)
    inputs = [(numbers(rng, t.bind(sizes), dtype) / 4).astype(DTYPES[dtype]) for t in program.input_types]
    wanted = run_reference(program, [x.astype(np.float64) for x in inputs], sizes, "float64")
    run = CudaLibraryProgram(to_axes(program), MemoryArrays(), partial(CutlassCalls, gemms=gemms))
    out = [np.empty(w.shape, DTYPES[dtype]) for w in wanted]
    for found in (run(inputs, sizes), run(inputs, sizes, out)):
        for w, f in zip(wanted, found, strict=True):
            assert f.dtype == DTYPES[dtype]
            np.testing.assert_allclose(f.astype(np.float64), w, atol=TOLERANCE[dtype] * np.abs(w).max(initial=1))
    return run


def _symbols(program: Program) -> dict[str, int]:
    return {s: SIZES[s] for s in program.symbols()}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_plans_agree_with_float64(make: Callable[..., Any], dtype: str) -> None:
    program = _program(make, dtype, **CASES[make])
    gemms = MemoryGemms()
    _run(program, _symbols(program), gemms)
    assert gemms.launched


@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_without_kernels(make: Callable[..., Any]) -> None:
    """Kernels that cannot be compiled are library calls."""
    program = _program(make, "float16", **CASES[make])
    _run(program, _symbols(program), MemoryGemms(present=False))


@pytest.mark.parametrize(
    "sizes",
    [{"b": 1, "k": 12, "n": 16}, {"b": 3, "k": 16, "n": 9}, {"b": 0, "k": 16, "n": 16}, {"b": 2, "k": 0, "n": 8}],
)
def test_sizes_that_no_kernel_takes(sizes: dict[str, int]) -> None:
    program = _program(silu, "float16", x=("b", "k"), w=("k", "n"), r=("b", "n"))
    gemms = MemoryGemms()
    _run(program, sizes, gemms)
    assert not gemms.launched


def _epilogues(make: Callable[..., Any], dtype: str = "float16") -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Per launch the type of its result, the functions of its epilogue, and its operands: along what they differ, their type."""
    program = _program(make, dtype, **CASES[make])
    gemms = MemoryGemms()
    _run(program, _symbols(program), gemms)
    first = gemms.launched[: len(gemms.launched) // 2]
    kinds = {(True, True): "elements", (True, False): "rows", (False, True): "columns"}
    return [
        (g.result, [s[0] for s in g.epilogue.steps],
         [(kinds[o[1] > 0, o[2] > 0], t) for o, t in zip(call.operands, g.epilogue.operands, strict=True)])
        for g, call in first
    ]  # fmt: skip


def test_silu_and_residual_are_one_kernel() -> None:
    assert _epilogues(silu) == [("float16", ["sigmoid", "multiply", "add"], [("elements", "float16")])]
    assert _epilogues(silu, "bfloat16") == [("bfloat16", ["sigmoid", "multiply", "add"], [("elements", "bfloat16")])]


def test_exact_gelu_and_bias_are_one_kernel() -> None:
    ((result, functions, operands),) = _epilogues(gelu)
    assert result == "float16" and "gauss_cdf" in functions and operands == [("columns", "float16")]


def test_the_factor_of_a_norm_is_one_number_per_row() -> None:
    ((result, functions, operands),) = _epilogues(scaled)
    assert result == "float16" and functions == ["multiply"] and operands == [("rows", "float32")]


def test_both_products_of_a_gate() -> None:
    """One leaves its SiLU in float32, the other one multiplies by it."""
    assert _epilogues(gated) == [
        ("float32", ["sigmoid", "multiply"], []),
        ("float16", ["multiply"], [("elements", "float32")]),
    ]


def test_a_value_that_is_read_twice_ends_an_epilogue() -> None:
    ((result, functions, _),) = _epilogues(twice)
    assert result == "float32" and functions == ["relu"]


def test_orders_in_memory() -> None:
    """Factors that are contiguous along rows or columns are read as they are."""

    def product(x: Any, w: Any) -> Any:
        return mi.transpose(x) @ mi.transpose(w)

    program = _program(product, "float16", x=(16, 8), w=(24, 16))
    gemms = MemoryGemms()
    _run(program, {}, gemms)
    gemm, call = gemms.launched[0]
    assert not gemm.a_by_depth and gemm.b_by_depth
    assert (call.rows, call.columns, call.depth) == (8, 24, 16) and call.a[1:] == (8, 0) and call.b[1:] == (16, 0)


def test_a_shared_operand_of_a_batch() -> None:
    def shifted(x: Any, w: Any, c: Any, s: Any) -> Any:
        return (x @ w + c) * s

    program = _program(shifted, "float16", x=("b", 8, 16), w=("b", 16, 24), c=(8, 24), s=("b", 1, 1))
    gemms = MemoryGemms()
    _run(program, {"b": 3}, gemms)
    gemm, call = gemms.launched[0]
    assert call.batch == 3 and [o[1:] for o in call.operands] == [(24, 1, 0), (0, 0, 1)]
    assert gemm.epilogue.operands == ("float16", "float16")


def test_other_types_are_library_calls() -> None:
    program = _program(silu, "float32", **CASES[silu])
    gemms = MemoryGemms()
    run = _run(program, {"b": 8}, gemms)
    assert not gemms.launched and run.program.dtype == "float32"


@pytest.mark.parametrize("name", KERNELS)
def test_measured_programs(name: str) -> None:
    program = retyped(KERNELS[name].trace(), "float16")
    gemms = MemoryGemms()
    _run(program, {s: 8 for s in program.symbols()}, gemms)
    assert bool(gemms.launched) == any(n.op == "matmul" for n in to_axes(program).nodes)
