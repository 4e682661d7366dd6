"""Sizes and schedules that are drawn for the random tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from mirage.ir.axes import AxisNode, AxisProgram, to_axes
from mirage.ir.dims import to_dim
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph, Role, partial_axis
from mirage.verify.sizes import AxisSizes, draw_schedule
from tests.verify.graphs import PAIRS, flash_decoding, norm_linear


def program(sizes: dict[str, str], *nodes: AxisNode) -> AxisProgram:
    axes = {a: to_dim(s) for a, s in sizes.items()}
    return AxisProgram("p", axes, (), nodes, (), "float32")


def join(joined: str, *parts: str) -> AxisNode:
    return AxisNode("concat", (), (), (joined,), joined=(joined, parts))


@pytest.mark.parametrize("seed", range(20))
def test_axes_take_every_small_size_and_are_independent(seed: int) -> None:
    p = program({"m": "m", "a": "64", "b": "64", "n": "n"}, AxisNode("input", (), (), ("m", "a", "b", "n")))
    tables = AxisSizes(p).draw(3, 3, Random(seed))
    for a in p.axes:
        assert sorted(t.elements[a] for t in tables)[1:] == [2, 3]


def test_axes_of_one_size_may_have_different_numbers_of_elements() -> None:
    p = program({"a": "64", "b": "64"}, AxisNode("input", (), (), ("a", "b")))
    tables = [t.elements for seed in range(5) for t in AxisSizes(p).draw(3, 3, Random(seed))]
    assert any(t["a"] != t["b"] for t in tables)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("needed", [2, 3, 5, 9])
def test_the_first_table_has_the_elements_that_are_needed(needed: int, seed: int) -> None:
    p = program({"m": "m", "n": "n", "a": "64", "two": "2"}, AxisNode("input", (), (), ("m", "n", "a", "two")))
    first, *rest = AxisSizes(p).draw(3, 6, Random(seed), {"n": needed, "a": 3, "two": 4})
    assert first.speaks_for("n", needed) == (needed <= 6) and first.elements["n"] >= min(needed, 6)
    assert first.speaks_for("a", 3) and first.elements["two"] == 2 and first.speaks_for("two", 4)
    assert all(t.elements["two"] <= 2 for t in rest)
    assert first.measure is not None and set(first.measure.axes) == {"n", "a", "two"}


@pytest.mark.parametrize("seed", range(10))
def test_joined_axes_are_as_long_as_their_parts(seed: int) -> None:
    p = program(
        {"j": "80", "a": "64", "b": "16", "c": "64", "d": "16"}, join("j", "a", "b"), join("j", "c", "d")
    )
    for t in AxisSizes(p).draw(3, 3, Random(seed)):
        n = t.elements
        assert n["j"] == n["a"] + n["b"] <= 6 and (n["c"], n["d"]) == (n["a"], n["b"])
        assert t.measure is not None and t.measure.joined == {"j": ("a", "b"), "c": ("a",), "d": ("b",)}


def test_joins_of_unrelated_parts_take_the_programs_sizes() -> None:
    p = program(
        {"j": "n+16", "a": "n", "b": "16", "c": "n+4", "d": "12"}, join("j", "a", "b"), join("j", "c", "d")
    )
    for t in AxisSizes(p).draw(3, 3, Random(1)):
        n = t.elements
        assert n["j"] == n["a"] + n["b"] == n["c"] + n["d"] and n["b"] == 16 and t.symbols == {"n": n["a"]}
        assert t.measure is None and not t.speaks_for("a", 2)


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
        return max(n for t in AxisSizes(to_axes(p)).draw(3, 3, Random(0)) for n in t.elements.values())

    assert largest(norm_linear()) == 3
