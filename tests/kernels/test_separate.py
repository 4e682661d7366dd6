"""Softmaxes along different axes of one tensor: an exp, and a maximum, for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.library import LibraryProgram
from mirage.kernels.separate import with_separate_exps
from mirage.mugraph.reference import reference_graph
from mirage.verify.proof import prove
from tests.kernels.kernels import error, random_inputs
from tests.mugraph.graphs import attention_program

T = mi.tensor("m", "n")


def dual(x: Any) -> Any:
    return mi.softmax(x, axis=0) * mi.softmax(x, axis=1)


def three_ways(x: Any) -> Any:
    both = mi.exp(x)
    return dual(x) + both / mi.sum(both, axis=(0, 1), keepdims=True)


def exps(p: AxisProgram) -> int:
    return sum(n.op == "exp" for n in p.nodes)


@pytest.mark.parametrize(("fn", "count"), [(dual, 2), (three_ways, 3)])
def test_each_softmax_keeps_its_own_maximum(fn: Callable[[Any], Any], count: int) -> None:
    program = mi.trace(fn, "f", x=T)
    p = to_axes(program)
    assert exps(p) == 1
    separate = with_separate_exps(p)
    assert exps(separate) == count
    assert prove(p, reference_graph(separate)) == "proved"
    run = LibraryProgram(p)
    for m, n in [(1, 1), (2, 3), (13, 17)]:
        sizes = {"m": m, "n": n}
        inputs = random_inputs(program, sizes)
        assert error(run(inputs, sizes), run_reference(program, inputs, sizes, "float64")) < 1e-6


def test_rows_far_below_the_largest_element_do_not_vanish() -> None:
    program = mi.trace(dual, "dual", x=T)
    sizes = {"m": 5, "n": 6}
    (x,) = random_inputs(program, sizes)
    x += 1000 * np.arange(5, dtype=np.float32)[:, None]
    want = run_reference(program, [x], sizes, "float64")
    # rounding of the logits themselves is 1e-4
    assert error(LibraryProgram(to_axes(program))([x], sizes), want) < 1e-3
    assert want[0].max() > 0.1


@pytest.mark.parametrize(
    "program",
    [
        attention_program(),
        mi.trace(mi.softmax, "softmax", x=T),
        mi.trace(lambda x: mi.softmax(x) + 2 * mi.softmax(x), "twice", x=T),
        # its scale matters, so nothing is subtracted
        mi.trace(lambda x: mi.exp(x) + mi.softmax(x, axis=0), "plain", x=T),
    ],
    ids=lambda p: p.name,
)
def test_one_exp_is_enough_for_one_kind_of_rows(program: Program) -> None:
    p = to_axes(program)
    assert with_separate_exps(p) is p
