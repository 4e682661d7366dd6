"""Scalar functions in Triton code, against NumPy in float64, and for what is not finite."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir import functions as fns
from mirage.ir.functions import FUNCTIONS
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import compute, operands, single
from mirage.ir.loops.scalars import apply
from mirage.ir.types import tensor
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.kernels.cuda.loops.interpret import interpret

EDGES = [
    0,
    -0.0,
    1,
    -1,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-30,
    -1e-30,
    3e-4,
    0.1,
    0.24,
    0.26,
    0.49,
    0.51,
    5,
    20,
    50,
    80,
    87,
    88,
]
EDGES += [88.7, 89, 100, -5, -20, -80, -87, -88, -100, -103, -104, -200, 1e10, -1e10, np.inf, -np.inf, np.nan, 7.3e6]
EDGES += [4194303.5, 8388607.5, 0.49999997, 1e300, -1e300]
POWERS = [Fraction(p) for p in ("1/2", "-1/2", "3", "-2", "5/2", "-7/2", "-1/3", "2/3", "0")]
PARAMETERS: dict[str, list[tuple[Fraction, ...]]] = {
    "clamp": [(Fraction(-1), Fraction(21, 10))],
    "maximum": [(Fraction(1, 3),)],
    "pow": [(p,) for p in POWERS],
}
#: largest errors in units of the last place: tails, as the interpreter's fma rounds twice, and powers by logarithms
ULPS = {"gauss_cdf": 24.0, "pow": 128.0}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(interpreter: Interpreter, name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        x = np.concatenate([np.array(EDGES).astype(dtype), (4 * rng.standard_normal(150)).astype(dtype)])
    t = tensor("n", dtype=dtype)
    (operand,) = operands([t])
    own = {"n": len(x)}
    limits = np.finfo(dtype)
    for parameters in PARAMETERS.get(name, [()]):
        program = single("function", [t], compute(t, lambda i, p=parameters: apply(name, operand[i], *p)))
        (found,), _ = interpret(interpreter, LoopVersions(program, DEVICES["sm_90"], own).emitted(own), [x], own)
        with np.errstate(all="ignore"):
            exact = np.asarray(FUNCTIONS[name].numpy(x.astype(np.float64), *map(float, parameters)))
            wanted = exact.astype(dtype)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
        finite = np.isfinite(wanted)
        # further in its tail than 6, a distribution need not be exact
        finite &= (x > -6) if name == "gauss_cdf" else True
        error = np.abs(found[finite].astype(np.float64) - exact[finite])
        scale = np.maximum(np.abs(exact[finite]), limits.tiny) * float(limits.eps)
        assert (error / scale).max() <= ULPS.get(name, 2.0), (parameters, x[finite][(error / scale).argmax()])


def test_every_function_is_tested_with_its_parameters() -> None:
    assert {fns.CLAMP.name, fns.MAXIMUM.name, fns.POW.name} == PARAMETERS.keys()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_keep_nan(interpreter: Interpreter, dtype: str) -> None:
    program = parse_loops(f"""\
def extremes(x: {dtype}[n], y: {dtype}[n]) -> ({dtype}[n], {dtype}[n], {dtype}[n]):
    def high(i0) -> {dtype}[n]:
        return max(x[i0], y[i0])
    def low(i0) -> {dtype}[n]:
        return min(x[i0], y[i0])
    def above(i0) -> {dtype}[n]:
        return max(x[i0], 0.1)
    return high, low, above
""")
    x, y = np.array([1, np.nan, 3, -1, np.inf], dtype), np.array([2, 0, np.nan, -2, np.nan], dtype)
    own = {"n": 5}
    emitted = LoopVersions(program, DEVICES["sm_90"], own).emitted(own)
    found, _ = interpret(interpreter, emitted, [x, y], own)
    for array, wanted in zip(
        found, (np.maximum(x, y), np.minimum(x, y), np.maximum(x, x.dtype.type(0.1))), strict=True
    ):
        np.testing.assert_array_equal(array, wanted)
