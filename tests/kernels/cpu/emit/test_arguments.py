"""Arguments that several inputs read: passed once to kernels and library calls, and counted once in the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.library import LibraryProgram
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from tests.shared import SHARED, shared

Run = Callable[[Sequence[np.ndarray], Mapping[str, int]], list[np.ndarray]]
SIZES = {"m": 9, "k": 5, "n": 7, "j": 4}


def library(name: str) -> Run:
    return LibraryProgram(to_axes(shared(name)))


def executable(name: str) -> Run:
    graph = reference_graph(to_axes(shared(name)))
    return CpuExecutable(graph, Schedule(()), analyze(graph))


RUNS = {"library": library, "executable": executable}


def arrays(name: str) -> tuple[list[np.ndarray], dict[str, int]]:
    sizes = {s: SIZES[s] for s in shared(name).symbols()}
    rng = np.random.default_rng(0)
    return [rng.standard_normal(t.bind(sizes)).astype(t.dtype) for t in shared(name).input_types], sizes


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", SHARED)
def test_one_array_per_argument(name: str, kind: str) -> None:
    inputs, sizes = arrays(name)
    wanted = run_reference(shared(name), inputs, sizes, "float64")
    # any layout, as it is read in several ways
    for given in (inputs, [np.asfortranarray(a) for a in inputs], [a.repeat(2, axis=0)[::2] for a in inputs]):
        kept = [a.copy() for a in given]
        for found, want in zip(RUNS[kind](name)(given, sizes), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-5)
        for a, before in zip(given, kept, strict=True):
            np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("kind", RUNS)
def test_errors_name_the_argument(kind: str) -> None:
    run = RUNS[kind]("gram")
    x = np.ones((3, 2), np.float32)
    with pytest.raises(InputError, match="gram: takes 1 arrays, got 2"):
        run([x, x], {"m": 3, "k": 2})
    with pytest.raises(InputError, match=r"input x has dtype float64"):
        run([x.astype(np.float64)], {"m": 3, "k": 2})
    with pytest.raises(InputError, match=r"input x has shape \(3, 2\)"):
        run([x], {"m": 4, "k": 2})


def test_the_limit_counts_an_argument_and_equal_values_once() -> None:
    sizes = {"m": 100, "k": 10, "n": 10}
    moved, flops = program_cost(to_axes(shared("gram")), sizes)
    assert moved == 4 * (100 * 10 + 100 * 100) and flops == 2 * 100 * 100 * 10
    # x @ x.T is one value, whichever rows read x again
    moved, flops = program_cost(to_axes(shared("gram squared")), sizes)
    assert moved == 4 * (100 * 10 + 100 * 100) and flops == 2 * 100 * 100 * 10 + 2 * 100**3


def test_the_limit_counts_values_of_other_arguments_or_factors_apart() -> None:
    def grams(x: Any, y: Any) -> Any:
        return x @ mi.transpose(x, (1, 0)) + y @ mi.transpose(y, (1, 0))

    program = mi.trace(grams, "f", x=mi.tensor("m", "k"), y=mi.tensor("m", "k"))
    _, flops = program_cost(to_axes(program), {"m": 3, "k": 2})
    assert flops == 2 * (2 * 3 * 3 * 2) + 3 * 3
    # twice: sums of 2 * 3 numbers, squares, sums of the squares; one sum
    _, flops = program_cost(to_axes(shared("two factorizations")), {"m": 1})
    assert flops == (6 + 3 + 3) + (6 + 2 + 2) + 1
