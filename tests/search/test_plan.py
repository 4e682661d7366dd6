"""Which plans there are: how axes are divided among kernels before any operator is chosen."""

from __future__ import annotations

import pytest

from benchmarks.programs import PROGRAMS
from mirage.search.plan import KernelPlan, Plan, plans
from tests.programs import SMALL, axes


def texts(name: str, max_kernels: int = 2) -> list[str]:
    return [str(p) for p in plans(axes(name), max_kernels)]


def test_plans_of_one_reduction() -> None:
    assert texts("matmul") == [
        "no loop",
        "loop d64",
        "no loop; no loop",
        "no loop; loop d64",
        "loop d64; no loop",
        "loop d64; loop d64",
        "loop d64 split over the grid; no loop, sums d64.grid",
    ]


def test_one_kernel() -> None:
    assert texts("matmul", 1) == ["no loop", "loop d64"]


def test_a_program_without_reductions_is_one_kernel() -> None:
    assert texts("elementwise") == ["no loop"]


def test_the_kernel_that_writes_an_axis_does_not_loop_over_it() -> None:
    found = list(plans(axes("softmax"), 2))
    assert {p.kernels[-1].loop for p in found} == {None}
    # but an earlier kernel may, as its results lack the axis
    assert {(p.kernels[0].loop, p.kernels[0].split) for p in found if len(p.kernels) == 2} == {
        (None, False),
        ("n", False),
        ("n", True),
    }


def test_joined_axes_are_never_divided() -> None:
    assert texts("concat matmul") == ["no loop"]
    assert "loop d32" in texts("concat")


@pytest.mark.parametrize("name", [*PROGRAMS, *SMALL])
def test_rules_of_all_plans(name: str) -> None:
    program = axes(name)
    found = list(plans(program, 2))
    assert len(set(found)) == len(found)
    assert [len(p.kernels) for p in found] == sorted(len(p.kernels) for p in found)
    assert [p for p in found if len(p.kernels) == 1] == list(plans(program, 1))
    for p in found:
        assert p.kernels[-1].loop not in program.output_axes()
        assert not p.kernels[-1].split
        for k in p.kernels:
            assert k.loop is None or k.loop in program.reduction_axes()
        # partial results are summed by the next kernel, and only those
        splits = [k.loop for k in p.kernels if k.split]
        assert splits == [k.partial for k in p.kernels if k.partial]


def test_parts_are_grid_loop_tile() -> None:
    loop, split = KernelPlan("t"), KernelPlan("t", split=True)
    assert Plan((KernelPlan(),)).parts() == {}
    assert Plan((loop,)).parts() == {"t": ("t.loop", "t.tile")}
    assert Plan((split, KernelPlan("d", partial="t"))).parts() == {
        "t": ("t.grid", "t.loop", "t.tile"),
        "d": ("d.loop", "d.tile"),
    }
    # an axis that one kernel splits has its grid part in all
    assert Plan((split, loop)).parts() == Plan((loop, split)).parts() == {"t": ("t.grid", "t.loop", "t.tile")}
