"""Reshapes of which only a run knows whether there are as many elements: views, where the shape is of known dims."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.errors import GuardError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.runtime.executable import Executable

PRODUCT = """
def main(x: float32[n, a, b], w: float32[6, 3]):
    with dataflow():
        y = relu(x)
        r = reshape_to(y, [n, 6])
        z = matmul(r, w)
    return z
"""
ALONE = """
def main(x: float32[n, a]):
    r = reshape_to(x, [n, 2, 3])
    return r
"""
TWICE = """
def main(x: float32[n, a]):
    with dataflow():
        y = neg(x)
        r = reshape_to(y, [n, 2, 3])
        s = reshape(r, shape=(n, 3, 2))
    return s
"""
#: what is written later does not show in what was read before
WRITTEN = """
def main(o: float32[n, a], i: int64[()], v: float32[a]):
    r = reshape_to(o, [n, 2, 3])
    e = packed["scatter_", float32[n, a], in_place[0]](o, i, v, axis=0)
    return r
"""


def compiled(text: str) -> Executable:
    found = compile_program(parse_module(text), without=("superoptimize",), cache=False)
    assert isinstance(found, Executable)
    return found


def kinds(run: Executable) -> list[str]:
    return [type(i).__name__ for i in run.program.functions[run.program.main].code]


@pytest.mark.parametrize("text", [PRODUCT, ALONE, TWICE, WRITTEN])
def test_a_reshape_is_a_view(text: str) -> None:
    run, rng = compiled(text), np.random.default_rng(0)
    assert kinds(run).count("CallOperator") == (1 if text is WRITTEN else 0)
    for n in (1, 5, 3) if text is WRITTEN else (1, 5, 0, 3):
        shapes = [(n, 2, 3), (6, 3)] if text is PRODUCT else [(n, 6)]
        args = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        if text is WRITTEN:
            args += [np.array(n - 1), np.ones(6, np.float32)]
        wanted = run_module(parse_module(text), [a.copy() for a in args])
        given = [a.copy() for a in args]
        found = run(*given)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        found[...] = 7
        if text is not WRITTEN:
            np.testing.assert_array_equal(given[0], args[0])


@pytest.mark.parametrize(("text", "shapes"), [(PRODUCT, [(4, 5, 1), (6, 3)]), (ALONE, [(4, 7)]), (TWICE, [(2, 5)])])
def test_other_numbers_of_elements_are_refused(text: str, shapes: list[tuple[int, ...]]) -> None:
    run = compiled(text)
    with pytest.raises(GuardError, match=r"elements|required"):
        run(*(np.zeros(s, np.float32) for s in shapes))
