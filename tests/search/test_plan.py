"""Which plans there are: how one kernel divides axes before any operator is chosen."""

from __future__ import annotations

import pytest

from benchmarks.programs import PROGRAMS
from mirage.search.plan import KernelPlan, axis_parts, dividable, kernel_plans
from tests.programs import SMALL, axes


def texts(name: str, max_loops: int = 2) -> list[str]:
    return [str(p) for p in kernel_plans(axes(name), max_loops)]


def test_plans_of_one_reduction() -> None:
    assert texts("matmul") == ["no loop", "loop d64", "loop d64 split over the grid"]


def test_no_loops() -> None:
    assert texts("matmul", 0) == ["no loop"]


def test_a_program_without_reductions_has_no_loops() -> None:
    assert texts("elementwise") == ["no loop"]


def test_joined_axes_are_never_divided() -> None:
    assert texts("concat matmul") == ["no loop"]
    assert "loop d32" in texts("concat")


def test_axes_that_one_operator_reduces_are_looped_over_together() -> None:
    assert texts("frobenius") == [
        "no loop",
        *("loop b", "loop b split over the grid", "loop n", "loop n split over the grid"),
        *("loop b, n", "loop b split over the grid, n", "loop b, n split over the grid"),
    ]
    assert texts("frobenius", 1) == texts("frobenius")[:5]
    # those of two matmuls are not
    assert not any("," in text for text in texts("chain"))


@pytest.mark.parametrize("name", [*PROGRAMS, *SMALL])
def test_rules_of_all_plans(name: str) -> None:
    program = axes(name)
    found = kernel_plans(program, 2)
    assert found[0] == KernelPlan()
    assert len(set(found)) == len(found) == len(set(map(str, found)))
    counts = [len(p.loops) for p in found]
    assert counts == sorted(counts)
    assert [p for p in found if len(p.loops) < 2] == kernel_plans(program, 1)
    together = [set(n.reduce) for n in program.nodes]
    for p in found:
        assert set(p.loops) <= set(dividable(program)) <= set(program.reduction_axes())
        assert p.split is None or p.split in p.loops
        assert len(p.loops) < 2 or any(set(p.loops) <= reduced for reduced in together)
    # every choice of loops comes without a split, and with each of its axes split
    for loops in {p.loops for p in found}:
        assert {p.split for p in found if p.loops == loops} == {None, *loops}


@pytest.mark.parametrize("name", [*PROGRAMS, *SMALL])
def test_parts_are_grid_loop_tile(name: str) -> None:
    parts = axis_parts(axes(name))
    assert tuple(parts) == dividable(axes(name))
    assert all(found == (f"{a}.grid", f"{a}.loop", f"{a}.tile") for a, found in parts.items())
