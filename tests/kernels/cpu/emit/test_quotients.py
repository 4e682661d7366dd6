"""Quotients by what a whole row shares: as good as a division, for divisors that have no normal inverse, too."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.interpret import run_reference
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import DTYPES, tensor
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from tests.kernels.kernels import single_kernel, tiles

COLUMNS = 37


def quotients(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Those of a kernel that reads each y[m, 1] once for a row of x[m, n]."""
    b = ProgramBuilder("quotient")
    operands = [b.input(name, tensor("m", n, dtype=x.dtype.name)) for name, n in (("x", "n"), ("y", 1))]
    graph = single_kernel(b.finish([b.op("div", *operands)]))
    exe = CpuExecutable(graph, tiles(graph, 4), analyze(graph))
    assert "mi_quotient(" in exe.source
    (found,) = exe([x, y], {"m": x.shape[0], "n": x.shape[1]})
    return found


def test_a_row_is_divided_by_once_and_multiplied_with_the_inverse() -> None:
    b = ProgramBuilder("quotient")
    graph = single_kernel(b.finish([b.op("div", b.input("x", tensor("m", "n")), b.input("y", tensor("m", 1)))]))
    lines = CpuExecutable(graph, tiles(graph, 4), analyze(graph)).source.splitlines()
    marks = ("for (long i_m", "mi_divisor_of(", "MI_W <=", "mi_quotient(", "mi_quotient(")
    # a loop over rows, the inverse, and the two loops over columns
    assert [next(m for m in marks if m in s) for s in lines if any(m in s for m in marks)] == list(marks)
    assert not any(" / v" in s for s in lines)


#: bits of the exponent, and of the fraction
FORMATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}


def extremes(dtype: str) -> np.ndarray:
    """Numbers of all sizes and both signs, subnormal ones and those that have a subnormal inverse among them."""
    exponent, fraction = FORMATS[dtype]
    most = 2 ** (exponent - 1) - 1
    powers = [
        1 - most - fraction,
        -most - 2,
        *range(-most, 3 - most),
        -most // 2,
        -1,
        0,
        1,
        most // 2,
        *range(most - 2, most + 1),
    ]
    found = [2.0**p * f for p in powers for f in (1.0, 1.25, 1.75)]
    return np.array([*found, *(-f for f in found)]).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_any_divisor_that_is_no_zero_gives_the_quotient(dtype: str) -> None:
    y = extremes(dtype)
    x = np.broadcast_to(np.resize(y, COLUMNS * 3), (len(y), COLUMNS * 3)).copy()
    with np.errstate(all="ignore"):
        got = quotients(x, y[:, None]).astype(np.longdouble)
        want = x.astype(np.longdouble) / y[:, None].astype(np.longdouble)
        exponent, fraction = FORMATS[dtype]
        least, most = (np.longdouble(2) ** p for p in (2 - 2 ** (exponent - 1) - fraction, 2 ** (exponent - 1)))
        finite = np.abs(want) < most / 4
        # a unit in the last place and a half, or of the subnormal numbers
        assert (np.abs(got - want)[finite] <= np.maximum(1.5 * 2.0**-fraction * np.abs(want), least)[finite]).all()
        assert np.isinf(got[np.abs(want) > 2 * most]).all()
    assert (np.signbit(got) == np.signbit(want))[np.abs(want) > least].all()
    assert finite.mean() > 0.5 and not finite.all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_zeros_infinities_and_nan_divide_as_numpy_has_them(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    y = np.array([0.0, np.inf, -np.inf, np.nan, tiny, -tiny, np.finfo(dtype).max], DTYPES[dtype])
    x = np.resize(np.array([0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, tiny], DTYPES[dtype]), (len(y), 7 * 5))
    with np.errstate(all="ignore"):
        want = x / y[:, None]
    np.testing.assert_array_equal(quotients(x, y[:, None]), want)


def test_a_row_is_divided_by_its_own_subnormal_sum() -> None:
    b = ProgramBuilder("normalised")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("div", x, b.op("sum", x, axes=(1,), keepdims=True))])
    graph = single_kernel(p)
    exe = CpuExecutable(graph, tiles(graph, 2), analyze(graph))
    sizes = {"m": 3, "n": 20}
    given = np.full((3, 20), 1e-41, np.float32)
    (want,) = run_reference(p, [given.astype(np.float64)], sizes, "float64")
    (got,) = exe([given], sizes)
    np.testing.assert_allclose(got, want, rtol=1e-5)
