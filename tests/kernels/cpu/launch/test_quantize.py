"""Numbers as whole ones, bit for bit as their operator has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import LibraryError, MirageError
from mirage.ir.graph.interpret import run_module
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.launch import quantize as module
from mirage.kernels.cpu.launch.quantize import library, prepare

OPERATOR = get_operator("quantize")


def wanted(x: np.ndarray, scale: float, zero: int, dtype: str) -> Any:
    given = [x, np.float32(scale).reshape(()), np.array(zero, dtype)]
    return OPERATOR.run(given, OPERATOR.check_attrs({"dtype": dtype}), {})


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 113), ("int8", -5), ("int16", 0), ("uint16", 40000)])
def test_all_sizes_halves_and_what_is_out_of_range(dtype: str, zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_threads", lambda: 3)
    for n in (1, 15, 16, 17, 63, 1000, 50_001):
        x = np.random.default_rng(n).uniform(-400, 400, n).astype(np.float32)
        x[:: max(n // 50, 1)] = np.arange(len(x[:: max(n // 50, 1)]), dtype=np.float32) * 0.25
        x[-1] = np.inf if n % 2 else -np.inf
        for scale in (0.5, 0.037, 1e-30):
            out = np.empty(n, dtype)
            library([x], [out], scale=float(np.float32(scale)), zero=zero)
            np.testing.assert_array_equal(out, wanted(x, scale, zero, dtype))


def test_nothing_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        mi_quantize = staticmethod(lambda *_: -1)

    none = np.empty((0, 3), np.float32)
    library([none], [none.astype(np.uint8)], scale=1.0)
    assert prepare([none], [none.astype(np.uint8)], scale=1.0) is None
    monkeypatch.setattr(module, "_library", Failing)
    with pytest.raises(MirageError, match="no memory to quantize"):
        library([np.ones(3, np.float32)], [np.ones(3, np.uint8)], scale=1.0)


def test_compiled_with_one_scale_and_several() -> None:
    """One that is known is the function's; others are fused."""
    several = np.array([0.1, 0.2, 0.3], np.float32)

    def fn(x: Any) -> Any:
        one = mi.apply("quantize", mi.tanh(x), np.array([0.01], np.float32), np.array([3], np.uint8), dtype="uint8")
        return one, mi.apply("quantize", x, several, dtype="int8")

    traced = mi.trace_module(fn, {"x": mi.tensor("n", 3)})
    run = mi.compile(traced, without=("superoptimize",), cache=False)
    assert str(run.program).count("'cpu.quantize'") == 1
    x = np.random.default_rng(0).standard_normal((70, 3), np.float32)
    for _ in range(3):
        for found, right in zip(run(x), run_module(traced, [x]), strict=True):
            assert np.abs(found.astype(int) - right.astype(int)).max() <= 1


@pytest.mark.parametrize("x", [np.zeros((3, 5), np.float32), np.zeros((3, 4))])
def test_what_does_not_fit_is_an_error(x: np.ndarray) -> None:
    """Programs come from files, too."""
    for call in (library, prepare):
        with pytest.raises(LibraryError, match="does not quantize to"):
            call((x,), (np.zeros((3, 4), np.int8),), scale=1.0)
