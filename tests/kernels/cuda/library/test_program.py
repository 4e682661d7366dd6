"""Library versions for GPUs: plans with epilogues, and results, without a GPU where possible."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import mirage as mi
from benchmarks.programs import KERNELS, retyped
from mirage.errors import LibraryError
from mirage.frontends.attention import gqa_decode
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.functions import FUNCTIONS, ScalarFunction
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.library.cublaslt import Problem
from mirage.kernels.cuda.library.program import CudaLibraryCalls, CudaLibraryProgram
from tests.kernels.cuda.library.programs import heads, norm
from tests.kernels.cuda.memory import TOLERANCE, MemoryArrays, numbers


def _mlp(dtype: str) -> Program:
    @mi.program(
        x=mi.tensor("b", 24, dtype=dtype),
        w=mi.tensor(24, 16, dtype=dtype),
        c=mi.tensor(16, dtype=dtype),
        v=mi.tensor(16, 8, dtype=dtype),
    )
    def mlp(x: Any, w: Any, c: Any, v: Any) -> Any:
        return mi.relu(x @ w + c) @ v + 1

    return mlp.trace()


PROGRAMS = [_mlp, norm, heads]


SIZES = {"b": 3, "s": 2, "t": 5}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_plans_agree_with_float64(make: Callable[[str], Program], dtype: str) -> None:
    program = make(dtype)
    sizes = {s: SIZES[s] for s in program.symbols()}
    rng = np.random.default_rng(2)
    inputs = [numbers(rng, t.bind(sizes), dtype) / 4 for t in program.input_types]
    inputs = [x.astype(DTYPES[dtype]) for x in inputs]
    wanted = run_reference(program, [x.astype(np.float64) for x in inputs], sizes, "float64")
    library = CudaLibraryProgram(to_axes(program), MemoryArrays())
    out = [np.empty(w.shape, DTYPES[dtype]) for w in wanted]
    for found in (library(inputs, sizes), library(inputs, sizes, out)):
        for w, f in zip(wanted, found, strict=True):
            assert f.dtype == DTYPES[dtype]
            np.testing.assert_allclose(f.astype(np.float64), w, atol=TOLERANCE[dtype] * max(1, abs(w).max()))
    assert all(f is o for f, o in zip(found, out, strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_measured_programs(name: str) -> None:
    program = retyped(KERNELS[name].trace(), "float32")
    sizes = {s: 3 for s in program.symbols()}
    rng = np.random.default_rng(5)
    inputs = [numbers(rng, t.bind(sizes), "float32") for t in program.input_types]
    wanted = run_reference(program, [x.astype(np.float64) for x in inputs], sizes, "float64")[0]
    found = CudaLibraryProgram(to_axes(program), MemoryArrays())(inputs, sizes)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_functions(name: str) -> None:
    parameters = {"maximum": [Fraction(1, 2)], "clamp": [Fraction(-1, 2), Fraction(1, 2)], "pow": [Fraction(3)]}
    x = np.linspace(-2, 2, 41, dtype=np.float32)
    x = x[x > 0] if name in ("log", "sqrt", "pow") else x
    params = parameters.get(name, [])
    found = MemoryArrays().function(FUNCTIONS[name], params, np.dtype(np.float32))(x)
    wanted = FUNCTIONS[name].numpy(x.astype(np.float64), *map(float, params))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_function_that_cupy_lacks_is_named() -> None:
    own = ScalarFunction("halved twice", lambda x: x / 4, "mi_quarter")
    with pytest.raises(LibraryError, match="halved twice: CuPy has no such function"):
        MemoryArrays().function(own, [], np.dtype(np.float32))


@pytest.mark.parametrize("initial", [-np.inf, -1.0])
@pytest.mark.parametrize(("axis", "shape"), [((0,), (3, 4)), ((), (3, 4)), ((1,), (3, 0)), ((0, 1), (3, 4))])
def test_largest_elements(initial: float, axis: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = -3 * np.random.default_rng(6).random(shape, np.float32)
    wanted = np.maximum.reduce(x, axis=axis, initial=np.float32(initial))
    run = MemoryArrays().reduction(np.maximum, np.dtype(np.float32), initial)
    np.testing.assert_array_equal(run(x, axis=axis), wanted)
    out = np.empty(wanted.shape, np.float32)
    assert run(x, axis=axis, out=out) is out
    np.testing.assert_array_equal(out, wanted)


def _asked(program: Program, dtype: str) -> list[Problem]:
    arrays = MemoryArrays()
    sizes = {s: SIZES[s] for s in program.symbols()}
    inputs = [np.ones(t.bind(sizes), DTYPES[dtype]) for t in program.input_types]
    CudaLibraryProgram(to_axes(program), arrays)(inputs, sizes)
    return arrays.lt.asked


def test_bias_and_relu_become_the_epilogue() -> None:
    first, second = _asked(_mlp("float16"), "float16")
    # what the next product reads is rounded by the first one, and what the addition of 1 reads is not
    assert (first.epilogue, first.dtype, first.result) == ("RELU_BIAS", "float16", "float16")
    assert (second.epilogue, second.dtype, second.result) == ("DEFAULT", "float16", "float32")
    first, second = _asked(_mlp("float32"), "float32")
    assert (first.epilogue, first.result, second.epilogue) == ("RELU_BIAS", "float32", "DEFAULT")


def test_factors_are_read_as_stored() -> None:
    # x @ w, an output, is rounded by the product itself
    assert sorted(p.result for p in _asked(norm("bfloat16"), "bfloat16")) == ["bfloat16", "float32"]
    assert {p.dtype for p in _asked(norm("bfloat16"), "bfloat16")} == {"bfloat16"}


def test_grouped_attention_is_one_product_per_key_head() -> None:
    arrays = MemoryArrays()
    program = gqa_decode.trace()
    sizes = {"b": 1, "h": 2, "s": 1, "t": 8}
    sizes = {s: sizes[s] for s in program.symbols()}
    inputs = [np.ones(t.bind(sizes), np.float32) for t in program.input_types]
    CudaLibraryProgram(to_axes(program), arrays)(inputs, sizes)
    keys = inputs[1].shape[1]
    assert [p.a.batch for p in arrays.lt.asked] == [keys, keys]


@pytest.mark.parametrize("module", ["cupy", "nvmath.bindings.cublasLt"])
def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    def refuse(name: str) -> Any:
        if name == module:
            raise ImportError(f"No module named {name!r}")
        return MagicMock()

    monkeypatch.setattr("mirage.kernels.cuda.library.cublaslt.import_module", refuse)
    monkeypatch.setattr("mirage.kernels.cuda.library.program.import_module", refuse)
    with pytest.raises(LibraryError, match=rf"No module named '{module}'.*pip install"):
        CudaLibraryProgram(to_axes(_mlp("float32")))


def test_tensors_between_kernels_may_be_float32() -> None:
    program = _mlp("float16")
    ap = to_axes(program)
    calls = CudaLibraryCalls(ap, {}, arrays=(arrays := MemoryArrays()))
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal(t.bind(SIZES)).astype(np.float32) for t in program.input_types]
    values = calls.values(SIZES)
    for i, x in zip(calls.inputs, inputs, strict=True):
        values[i] = x
    calls.run(values, {a: evaluate(d, SIZES) for a, d in ap.axes.items()}, {})
    wanted = run_reference(program, inputs, SIZES, "float64")[0]
    found = values[calls.outputs[0]]
    assert {p.dtype for p in arrays.lt.asked} == {"float16"} and found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=4e-3 * abs(wanted).max())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_plans_on_a_gpu(cupy: Any, make: Callable[[str], Program], dtype: str) -> None:
    pytest.importorskip("nvmath", reason="needs nvmath-python")
    program = make(dtype)
    sizes = {s: SIZES[s] for s in program.symbols()}
    rng = np.random.default_rng(2)
    inputs = [(numbers(rng, t.bind(sizes), dtype) / 4).astype(DTYPES[dtype]) for t in program.input_types]
    wanted = run_reference(program, [x.astype(np.float64) for x in inputs], sizes, "float64")
    found = CudaLibraryProgram(to_axes(program))([cupy.asarray(x) for x in inputs], sizes)
    for w, f in zip(wanted, found, strict=True):
        np.testing.assert_allclose(cupy.asnumpy(f).astype(np.float64), w, atol=TOLERANCE[dtype] * max(1, abs(w).max()))
