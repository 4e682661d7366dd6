"""Programs of the search as modules."""

from __future__ import annotations

from typing import Any

import numpy as np

import mirage as mi
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.programs import module_of
from mirage.ir.interpret import run_reference


def both(x: Any, w: Any) -> Any:
    y = mi.softmax(x @ w * 0.5)
    return y, mi.mean(y, axis=0)


def test_a_program_is_a_module_of_one_function() -> None:
    program = mi.trace(both, x=mi.tensor("n", 4), w=mi.tensor(4, "m"))
    module = module_of(program)
    check(module)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal((4, 5)).astype(np.float32)
    for got, want in zip(run_module(module, [x, w]), run_reference(program, [x, w], {"n": 3, "m": 5}), strict=True):
        np.testing.assert_array_equal(got, want)


def test_programs_compile() -> None:
    program = mi.trace(both, x=mi.tensor("n", 4), w=mi.tensor(4, "m"))
    executable = mi.compile(program, without=("superoptimize",))
    x, w = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    np.testing.assert_allclose(executable(x, w)[0], 0.2, rtol=1e-6)
