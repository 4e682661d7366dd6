"""Sizes and schedules that are drawn for the random tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from mirage.ir.axes import AxisNode, AxisProgram, to_axes
from mirage.ir.dims import to_dim
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph, Role, partial_axis
from mirage.verify.sizes import AxisSizes, draw_schedule, factor_axes
from tests.verify.graphs import PAIRS, flash_decoding, norm_linear


def program(sizes: dict[str, str], *nodes: AxisNode) -> AxisProgram:
    axes = {a: to_dim(s) for a, s in sizes.items()}
    return AxisProgram("p", axes, (), nodes, (), "float32")


def join(joined: str, *parts: str) -> AxisNode:
    return AxisNode("concat", (), (), (joined,), joined=(joined, parts))


def size(dim: str) -> AxisNode:
    return AxisNode("size", (), (("dim", to_dim(dim)),), ())


@pytest.mark.parametrize("seed", range(20))
def test_axes_take_every_small_size_and_are_independent(seed: int) -> None:
    p = program({"m": "m", "a": "64", "b": "64", "n": "n"}, AxisNode("input", (), (), ("m", "a", "b", "n")))
    tables = AxisSizes(p).draw(3, 3, Random(seed))
    for a in p.axes:
        assert sorted(t[a] for t in tables)[1:] == [2, 3]


def test_axes_of_one_size_may_differ() -> None:
    p = program({"a": "64", "b": "64"}, AxisNode("input", (), (), ("a", "b")))
    assert any(t["a"] != t["b"] for t in AxisSizes(p).draw(3, 3, Random(0)))


@pytest.mark.parametrize("seed", range(20))
def test_axes_under_a_mean_have_the_size_it_divides_by(seed: int) -> None:
    p = program(
        {"m": "m", "a": "64", "b": "64", "n": "n"}, size("64*n"), AxisNode("input", (), (), ("a", "n"))
    )
    sizes = AxisSizes(p)
    for t in sizes.draw(3, 3, Random(seed)):
        assert t["a"] == t["b"]
        assert sizes.value(to_dim("64*n"), t, 0) == t["a"] * t["n"]


def test_sizes_of_no_axis_are_arbitrary_but_consistent() -> None:
    sizes = AxisSizes(program({"m": "m"}))
    free = to_dim("k")
    assert sizes.value(free, {"m": 2}, 0) == sizes.value(free, {"m": 3}, 0) > 1
    assert sizes.value(free, {"m": 2}, 0) != sizes.value(free, {"m": 2}, 1)
    assert sizes.value(to_dim(12), {"m": 2}, 0) == 12


@pytest.mark.parametrize("seed", range(10))
def test_joined_axes_are_as_long_as_their_parts(seed: int) -> None:
    p = program(
        {"j": "80", "a": "64", "b": "16", "c": "16", "d": "64"}, join("j", "a", "b"), join("j", "c", "d")
    )
    for t in AxisSizes(p).draw(3, 3, Random(seed)):
        assert t["j"] == t["a"] + t["b"] == t["c"] + t["d"]
        assert t["j"] <= 6


def test_joins_of_unrelated_parts_take_the_programs_sizes() -> None:
    p = program(
        {"j": "n+16", "a": "n", "b": "16", "c": "n+4", "d": "12"}, join("j", "a", "b"), join("j", "c", "d")
    )
    for t in AxisSizes(p).draw(3, 3, Random(1)):
        assert t["j"] == t["a"] + t["b"] == t["c"] + t["d"]
    assert any(t["b"] == 16 for t in AxisSizes(p).draw(3, 3, Random(1)))


def test_factors_of_a_dim() -> None:
    axes = {a: to_dim(s) for a, s in {"b": "b", "h": "h", "d8": "8", "d4": "4"}.items()}
    assert factor_axes(to_dim("8*h"), axes) == ("h", "d8")
    assert factor_axes(to_dim("32*b"), axes) == ("b", "d8", "d4")
    assert factor_axes(to_dim("16"), axes) is None
    assert factor_axes(to_dim("1"), axes) == ()


@pytest.mark.parametrize("make", [g for _, g in PAIRS])
@pytest.mark.parametrize("seed", range(10))
def test_schedules_bind_everything_and_stay_small(make: Callable[[], MuGraph], seed: int) -> None:
    graph = make()
    rng = Random(seed)
    schedule, sizes = draw_schedule(graph, {a: rng.randint(1, 3) for a in graph.axes}, rng)
    schedule.check(graph)
    for k, n in zip(schedule.kernels, graph.kernels, strict=True):
        assert n.graph is not None
        cells = 1
        for a, role in n.graph.roles:
            count = k.bounds(n.graph, a, sizes[a])[0]
            cells *= count if role is Role.PARALLEL else 1
            if role is Role.SPLIT:
                assert sizes[partial_axis(a)] == count
        assert cells <= 4


def test_schedules_exercise_grids_loops_and_tails() -> None:
    graph = flash_decoding()
    seen: set[tuple[str, int]] = set()
    for seed in range(40):
        schedule, sizes = draw_schedule(graph, dict.fromkeys(graph.axes, 3), Random(seed))
        first = schedule.kernels[0]
        seen.add(("grid", first.tile["h"] < 3))
        seen.add(("tail", 3 % first.tile["h"] > 0))
        seen.add(("split", sizes["t.grid"]))
    assert seen == {(w, v) for w in ("grid", "tail") for v in (True, False)} | {("split", 2), ("split", 3)}


def test_literal_sizes_of_a_program_are_shrunk() -> None:
    def largest(p: Program) -> int:
        return max(n for t in AxisSizes(to_axes(p)).draw(3, 3, Random(0)) for n in t.values())

    assert largest(norm_linear()) == 3
