"""What a search may do: impossible options, and limits that follow the program."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.programs import PROGRAMS
from mirage.errors import SearchError
from mirage.search.options import SLACK, Limits, SearchOptions
from tests.programs import SMALL, axes

NUMBERS = ("max_kernels", "max_operators", "max_inputs", "max_results", "max_loops", "max_values")


def test_the_defaults_are_possible() -> None:
    SearchOptions().check()


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", math.nan])
@pytest.mark.parametrize("name", NUMBERS)
def test_impossible_numbers(name: str, value: Any) -> None:
    if name == "max_loops" and value == 0 and type(value) is int:
        SearchOptions(max_loops=0).check()
        return
    with pytest.raises(SearchError, match=rf"^{name}={value!r} must be a whole number of at least"):
        SearchOptions(**{name: value}).check()


@pytest.mark.parametrize("name", ["max_kernels", "max_loops", "max_values"])
def test_numbers_that_must_be_given(name: str) -> None:
    with pytest.raises(SearchError, match=f"{name}=None"):
        SearchOptions(**{name: None}).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, 0.0, -1.0, math.nan, True, "1", None])
def test_impossible_budgets(budget: Any) -> None:
    with pytest.raises(SearchError, match=f"budget={budget!r} must be a positive number of seconds"):
        SearchOptions(budget=budget).check()


@pytest.mark.parametrize("budget", [1, 0.001, math.inf])
def test_possible_budgets(budget: float) -> None:
    SearchOptions(budget=budget).check()


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, "1"])
def test_impossible_steps(steps: Any) -> None:
    SearchOptions(steps=1).check()
    with pytest.raises(SearchError, match=f"steps={steps!r} must be a whole number of at least 1"):
        SearchOptions(steps=steps).check()


@pytest.mark.parametrize("name", [*PROGRAMS, *SMALL])
def test_limits_follow_the_program(name: str) -> None:
    """The fused program fits: its operators, an accumulator per reduction, its inputs and its outputs."""
    program = axes(name)
    compute = [n for n in program.nodes if n.op not in ("input", "constant", "size")]
    limits = Limits.of(program, SearchOptions())
    assert limits.kernels == SearchOptions().max_kernels
    assert limits.operators == len(compute) + sum(bool(n.reduce) for n in compute) + SLACK
    assert limits.inputs == max(4, len(program.inputs))
    assert limits.results == max(2, len(program.outputs))
    assert limits.loops == SearchOptions().max_loops


def test_limits_of_attention() -> None:
    limits = Limits.of(axes("gqa_decode"), SearchOptions())
    assert str(limits) == "5 kernels of 11 operators, 4 inputs and 2 results, 2 loop axes"
    assert asdict(limits) == {"kernels": 5, "operators": 11, "inputs": 4, "results": 2, "loops": 2}


def test_given_limits_are_taken() -> None:
    given = SearchOptions(max_kernels=3, max_operators=4, max_inputs=1, max_results=1, max_loops=0)
    assert Limits.of(axes("gqa_decode"), given) == Limits(3, 4, 1, 1, 0)
