"""The gradient of every operator is what differences of its results say, at sizes 0 and 1, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from mirage.errors import GradientError
from mirage.ir.annotations import TupleType
from mirage.ir.functions import FUNCTIONS, register_function
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.check import check
from mirage.ir.graph.cotangents import is_float
from mirage.ir.graph.gradient import Differentiation
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall, TupleItem
from mirage.ir.graph.traverse import determined, symbols_used
from mirage.ir.operator import REGISTRY, elementwise, get_operator
from mirage.ir.types import DTYPES, TensorType, tensor
from tests.ir.cases import CASES as LAX
from tests.ir.cases import SIZES as LAX_SIZES
from tests.ir.operators.cases import CASES, SIZES, Case
from tests.ir.operators.test_meaning import holds

#: elements by which differences are taken
TRIED = 10
#: operators of floating-point tensors that have no gradient
NONE = {"unique", "dequantize", "quantized_convolution", "quantized_matmul", "sim_quantize"}
#: where the arguments lie of functions that are not defined everywhere
DOMAINS: Mapping[str, tuple[float, float]] = {
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.1, 3), "log1p": (-0.5, 2),
    "log2": (0.2, 3), "log10": (0.2, 3), "power": (0.2, 3), "fmod": (0.2, 3), "pow": (0.2, 3), "tan": (-1, 1),
}  # fmt: skip


def module_of(op: str, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Module:
    """A function that applies an operator, and returns the one floating-point result.

    Dims that the operands do not tell come from further parameters.
    """
    module = ModuleBuilder()
    b = FunctionBuilder("apply", module.functions)
    args = tuple(b.parameter(f"x{k}", t) for k, t in enumerate(types))
    call = OpCall(op, args, tuple(get_operator(op).check_attrs(attrs).items()))
    for name in sorted(symbols_used(call) - determined(types)):
        b.parameter(f"size_{name}", tensor(name, dtype="bool"))
    out = b.emit(call)
    if isinstance(out.annotation, TupleType):
        out = b.emit(TupleItem((out,), 0))
    module.add(b.finish(out))
    return module.finish("apply")


def back_of(module: Module) -> Module:
    """The function of a cotangent and the arguments that gives the gradients by all floating-point ones."""
    functions = dict(module.functions)
    f = functions[module.main]
    wrt = [k for k, p in enumerate(f.parameters) if is_float(p.annotation)]
    names = iter(f"made_{k}" for k in range(1000))
    made = Differentiation(functions, lambda hint: f"{hint}_{next(names)}").gradient(
        f, wrt, "back", seeded=True, value=False
    )
    found = Module({**functions, "back": made}, main="back")
    check(found)
    return found


def assert_gradients(module: Module, arrays: Sequence[np.ndarray], step: float = 1e-6) -> None:
    """The gradients of a function are those of central differences, by up to `TRIED` elements of every argument."""
    arrays = [a.astype(np.float64) if a.dtype.name in DTYPES else a for a in arrays]
    result = run_module(module, arrays, wide=True)
    cotangent = np.random.default_rng(1).standard_normal(np.shape(result))
    found = run_module(back_of(module), [*arrays, cotangent], wide=True)
    by = [k for k, a in enumerate(arrays) if a.dtype == np.float64]
    for g, k in zip(found if len(by) > 1 else (found,), by, strict=True):
        assert g.shape == arrays[k].shape
        expected = g.copy()
        for at in tried(g.shape):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[k][at] += sign * step
                sides.append((run_module(module, moved, wide=True) * cotangent).sum())
            expected[at] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(g, expected, rtol=1e-5, atol=1e-6)


def further(module: Module, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """The arguments that tell dims alone."""
    names = [p.name.removeprefix("size_") for p in module.functions[module.main].parameters if p.name.startswith("size_")]
    return [np.zeros(sizes[name], bool) for name in names]


def tried(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The places of some elements, the same ones each time."""
    places = list(np.ndindex(*shape))
    return places if len(places) <= TRIED else Random(0).sample(places, TRIED)


def numbers(op: str, shape: Sequence[int], seed: int) -> np.ndarray:
    low, high = DOMAINS.get(op, (-2, 2))
    return np.random.default_rng(seed).uniform(low, high, tuple(shape))


def has_gradient(case: Case) -> bool:
    out = get_operator(case.op).annotate(case.types, get_operator(case.op).check_attrs(case.attrs))
    first = out.fields[0] if isinstance(out, TupleType) else out
    others = {*NONE, "boolean_mask", "stop_gradient"}
    return is_float(first) and any(t.dtype in DTYPES for t in case.types) and case.op not in others


@pytest.mark.parametrize("case", [c for c in CASES if has_gradient(c)], ids=str)
def test_of_operators_of_graphs(case: Case) -> None:
    module = module_of(case.op, case.types, case.attrs)
    tried = 0
    for seed, sizes in enumerate(SIZES):
        if holds(case, sizes):
            arrays = [
                numbers(case.op, a.shape, seed + 10 * k) if t.dtype in DTYPES else a
                for k, (t, a) in enumerate(zip(case.types, case.arrays(sizes, seed), strict=True))
            ]
            assert_gradients(module, [*arrays, *further(module, sizes)])
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("case", [c for c in LAX if c.dims], ids=str)
def test_of_operators_of_programs(case: Any) -> None:
    types = [tensor(*dims) for dims in case.dims]
    module = module_of(case.op, types, case.attrs)
    for sizes in (LAX_SIZES, dict.fromkeys(LAX_SIZES, 1)):
        arrays = [numbers(case.op, t.bind(sizes), k) for k, t in enumerate(types)]
        arrays = [np.abs(a) + 0.1 if case.positive else a for a in arrays]
        assert_gradients(module, [*arrays, *further(module, sizes)])


def test_every_operator_of_floats_has_a_case_or_none() -> None:
    tried = {c.op for c in CASES} | {c.op for c in LAX}
    shapes = {"reshape_to", "broadcast_to_shape", "full_of"}
    assert {name for name, op in REGISTRY.items() if op.built_in} - shapes <= tried
    for c in CASES:
        if c.op in NONE and any(t.dtype in DTYPES for t in c.types):
            with pytest.raises(GradientError, match=f"{c.op} has no gradient.*mirage.stop_gradient"):
                back_of(module_of(c.op, c.types, c.attrs))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("prod", {"axes": (1,)}), ("prod", {"axes": (0, 1), "keepdims": True}), ("cumprod", {"axis": 1})],
)
def test_of_products_with_zeros(op: str, attrs: Mapping[str, Any]) -> None:
    x = np.array([[0.5, 0, 2, -3], [0, 4, 0, 1], [1, 2, 3, 4]])
    assert_gradients(module_of(op, [tensor("n", "m")], attrs), [x])


def gradient(op: str, *arrays: Any, g: Any = 1.0, **attrs: Any) -> Any:
    given = [np.asarray(a, np.float64) for a in arrays]
    types = [tensor(*(f"d{n}" for n in a.shape), dtype="float64") for a in given]
    module = module_of(op, types, attrs)
    out = run_module(module, given)
    return run_module(back_of(module), [*given, np.broadcast_to(np.asarray(g, np.float64), out.shape).copy()])


def test_ties() -> None:
    np.testing.assert_array_equal(gradient("max", [[1, 3, 3]], axes=(1,)), [[0, 0.5, 0.5]])
    np.testing.assert_array_equal(gradient("min", [[1, 1, 3]], axes=(0, 1)), [[0.5, 0.5, 0]])
    for g in gradient("elementwise_max", [1.0, 2], [1.0, 2]):
        np.testing.assert_array_equal(g, [0.5, 0.5])
    # one of a window gets all, as in PyTorch
    window = {"kernel": (2,), "strides": (2,), "dilations": (1,)}
    np.testing.assert_array_equal(gradient("max_pool", [[2, 2, 1, 3]], **window), [[1, 0, 0, 1]])


def test_where_functions_bend() -> None:
    # those that PyTorch takes
    np.testing.assert_array_equal(gradient("relu", [-1.0, 0, 1]), [0, 0, 1])
    np.testing.assert_array_equal(gradient("abs", [-1.0, 0, 1]), [-1, 0, 1])
    np.testing.assert_array_equal(gradient("clamp", [-1.0, 0, 1, 2], lo=0, hi=1), [0, 1, 1, 0])
    np.testing.assert_array_equal(gradient("maximum", [-1.0, 0, 1], value=0), [0, 1, 1])
    # a cotangent that is not finite goes nowhere where the result is a constant
    np.testing.assert_array_equal(gradient("relu", [-1.0], g=np.inf), [0])


def test_a_softmax_of_large_numbers() -> None:
    x = np.array([[1000.0, 999, -1000]])
    y = np.exp(x - x.max())
    y /= y.sum()
    g = np.array([[1.0, 2, 3]])
    np.testing.assert_allclose(gradient("softmax", x, g=g, axis=-1), y * (g - (g * y).sum()))
    np.testing.assert_allclose(gradient("log_softmax", x, g=g, axis=-1), g - y * g.sum())


def test_an_operator_of_a_user_needs_the_derivatives_of_its_functions_alone() -> None:
    fn = register_function(
        "test_cube", lambda x: x**3, backward=lambda b, g, x, y: b.mul(g, b.mul(3, b.mul(x, x)))
    )
    plain = register_function("test_plain", lambda x: x)
    elementwise("test_cube_times", lambda al, x, y: al.div(al.function(fn, al.add(x, y)), y), arity=2)
    elementwise("test_plain_once", lambda al, x: al.function(plain, x))
    try:
        shapes: list[tuple[int | str, ...]] = [("n", "m"), ("n", 1)]
        with pytest.raises(GradientError, match=r"'test_cube'.*needs its values.*mirage.elementwise"):
            back_of(module_of("test_cube_times", [tensor("n"), tensor("n")], {}))
        elementwise("test_cube", lambda al, x: al.function(fn, x))
        module = module_of("test_cube_times", [tensor(*s) for s in shapes], {})
        assert_gradients(module, [numbers("log2", (3, 4), 0), numbers("log2", (3, 1), 1)])
        with pytest.raises(GradientError, match=r"scalar function 'test_plain' has no derivative.*backward="):
            back_of(module_of("test_plain_once", [tensor("n")], {}))
    finally:
        del FUNCTIONS["test_cube"], FUNCTIONS["test_plain"]
        for name in ("test_cube", "test_cube_times", "test_plain_once"):
            REGISTRY.pop(name, None)


def test_of_powers() -> None:
    for exponent in (0, 1, 2, 3, Fraction(1, 2), Fraction(-3, 2), -1, Fraction(7, 3), 11):
        module = module_of("pow", [tensor("n")], {"exponent": exponent})
        assert_gradients(module, [numbers("pow", (5,), 3)])
