"""The cost model: which resources a graph needs, and that more of anything never costs less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.kernels.cpu.processor import CPU_RATES
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.target import CudaTarget
from mirage.search import cost as c
from mirage.search.cost import Cost, CostModel, Place

SIZES = {"b": 256, "n": 512, "k": 1024, "t": 96}
NAMES = tuple(SIZES)
AXES = st.lists(st.sampled_from(NAMES), unique=True, max_size=4).map(tuple)
HERE = Place((), (), None)


def model(**sizes: int) -> CostModel:
    return CostModel({**SIZES, **sizes}, ["b"], 4)


def places() -> st.SearchStrategy[Place]:
    def place(parallel: tuple[str, ...], loop: str | None, split: bool) -> Place:
        loops = (loop,) if loop else ()
        return Place(tuple(a for a in parallel if a != loop), loops, loop if split else None)

    return st.builds(place, AXES, st.sampled_from([None, *NAMES]), st.booleans())


def entries(cost: Cost) -> dict[str, float]:
    """Those at the hinted sizes, by name."""
    names = ("launches", "operators", "memory", "cache", "work", "alone", "held")
    return dict(zip(names, cost.tolist(), strict=False))


# The table of resources.


def test_a_launch() -> None:
    m = model()
    assert entries(m.launch()) == dict.fromkeys(entries(m.launch()), 0) | {"launches": 1}
    assert m.total(m.launch()) == CPU_RATES.launch
    assert m.total(3 * m.launch()) == 3 * CPU_RATES.launch


def test_a_tensor_that_is_read() -> None:
    """Once from memory, by every block that needs it from a cache, and held by the block."""
    m = model()
    grid = Place(("b", "n"), ("k",), None)
    found = entries(m.transfer(("b", "k"), grid, held=True))
    assert found["memory"] == 256 * 1024
    # one column of blocks per tile of n
    assert found["cache"] == 256 * 1024 * (512 // c.GRID_TILE)
    assert found["held"] == c.GRID_TILE * c.LOOP_TILE
    assert found["launches"] == found["operators"] == found["work"] == found["alone"] == 0


def test_a_tensor_that_is_written() -> None:
    m = model()
    found = entries(m.transfer(("b", "n"), Place(("b", "n"), ("k",), None), held=False))
    assert (found["memory"], found["cache"], found["held"]) == (256 * 512, 256 * 512, 0)
    assert np.array_equal(m.written(("b", "n")), m.transfer(("b", "n"), HERE, held=False))


def test_blocks_without_an_axis_repeat() -> None:
    m = model()
    split = Place((), ("k",), "k")
    assert entries(m.transfer(("b",), split, held=False))["cache"] == 256 * c.SPLITS
    assert entries(m.transfer(("k",), split, held=False))["cache"] == 1024
    # partial results: one per split
    assert entries(m.transfer(("k.grid", "b"), split, held=False))["memory"] == 256 * c.SPLITS


def test_blocks_hold_tiles_of_the_last_two_axes() -> None:
    m = model()
    held = [entries(m.transfer(("t", "b", "n"), Place(p, (), None), held=True))["held"] for p in ((), ("t", "b", "n"))]
    assert held == [96 * 256 * 512, c.GRID_TILE * c.GRID_TILE]


def matmul(m: CostModel, x: tuple[str, ...], y: tuple[str, ...], at: Place = HERE, varying: bool = False) -> Cost:
    return m.operator("matmul", [x, y], ("b", "n"), at, varying=varying, whole=True)


def test_a_matmul_by_what_it_reuses() -> None:
    m = model()
    both, one, none = matmul(m, ("b", "k"), ("k", "n")), matmul(m, ("b", "k"), ("k",)), matmul(m, ("k",), ("k",))
    volumes = (256 * 512 * 1024, 256 * 1024, 1024)
    for found, ns, volume in zip((both, one, none), c.MATMUL_NS, volumes, strict=True):
        assert entries(found)["work"] == pytest.approx(ns * volume)
        assert entries(found)["operators"] == 1
    assert c.MATMUL_NS[0] < c.MATMUL_NS[1] < c.MATMUL_NS[2]


def test_an_operator_that_does_not_have_the_loop_axis_is_repeated() -> None:
    """In the loop it runs in every iteration; before it or after it, once."""
    m = model()
    loop = Place((), ("k",), None)
    once, each = (
        entries(m.operator("exp", [("b",)], ("b",), loop, varying=v, whole=False))["work"] for v in (False, True)
    )
    assert each == once * (1024 // c.LOOP_TILE)
    # with the axis, an iteration does its tile
    along = [
        entries(m.operator("exp", [("b", "k")], ("b", "k"), loop, varying=v, whole=False))["work"]
        for v in (False, True)
    ]
    assert along[0] == along[1]


def test_time_alone_is_shared_by_blocks_and_splits() -> None:
    m = model()
    alone = [
        entries(matmul(m, ("b", "k"), ("k", "n"), p, varying=bool(p.loops)))["alone"]
        for p in (HERE, Place(("b", "n"), (), None), Place(("b", "n"), ("k",), "k"))
    ]
    assert alone[0] == pytest.approx(alone[1] * 256 * 512)
    assert alone[1] == pytest.approx(alone[2] * c.SPLITS)


def test_elementwise_operators_by_their_work() -> None:
    m = model()
    work = {
        op: entries(m.operator(op, [("b", "n")], ("b", "n"), HERE, varying=False, whole=False))["work"]
        for op in ("relu", "exp", "sum")
    }
    assert work["exp"] > work["relu"] > 0
    assert work["sum"] == pytest.approx(c.SUM_NS * 256 * 512)


def test_a_concat_works_once_per_element_of_its_result() -> None:
    sizes = {"n": 16, "d": 256, "e": 256, "j": 512}
    m = c.CostModel(sizes, ["n"], 4)
    joined = m.operator("concat", [("n", "d"), ("n", "e")], ("n", "j"), HERE, varying=False, whole=True)
    assert entries(joined)["work"] == pytest.approx(c.SUM_NS * 16 * 512)


@given(AXES, AXES, AXES, AXES, places(), st.booleans())
def test_a_matmul_of_concats_is_two_matmuls(
    x: tuple[str, ...], y: tuple[str, ...], u: tuple[str, ...], v: tuple[str, ...], at: Place, varying: bool
) -> None:
    """Of what it computes; as an operator it is one, with one result."""
    m = model()
    both = m.operator("concat_matmul", [x, u, y, v], ("b", "n"), at, varying=varying, whole=True)
    first, second = (matmul(m, a, b, at, varying) for a, b in ((x, y), (u, v)))
    for name in ("work", "alone"):
        assert entries(both)[name] == pytest.approx(entries(first)[name] + entries(second)[name])
    assert entries(both)["operators"] == 1
    assert entries(both)["held"] == entries(first)["held"] == entries(second)["held"]


# What holds for all costs.


@given(st.sampled_from(["exp", "sum", "add", "accumulator", "concat"]), AXES, AXES, places(), st.booleans())
def test_an_operator_lowers_nothing(
    op: str, operand: tuple[str, ...], axes: tuple[str, ...], at: Place, varying: bool
) -> None:
    m = model()
    operands = [operand] * (2 if op in ("add", "concat") else 1)
    cost = m.operator(op, operands, axes, at, varying=varying, whole=not varying)
    assert (cost >= 0).all() and np.isfinite(cost).all()
    assert entries(cost)["operators"] == 1 and entries(cost)["work"] > 0
    transfer = m.transfer(axes, at, held=True)
    assert (transfer >= 0).all() and np.isfinite(transfer).all()
    before = m.launch() + transfer
    assert m.total(before + cost) > m.total(before)
    assert (m.of_kernel(before + cost) >= m.of_kernel(before)).all()


@given(AXES, st.sampled_from(NAMES), places())
def test_more_axes_cost_no_less(axes: tuple[str, ...], more: str, at: Place) -> None:
    m = model()
    wide = tuple(dict.fromkeys((*axes, more)))
    least, most = (entries(m.transfer(a, at, held=True)) for a in (axes, wide))
    assert least["memory"] <= most["memory"] and least["held"] <= most["held"]


@given(AXES, st.sampled_from(NAMES), st.integers(1, 8), places())
def test_larger_axes_cost_no_less(axes: tuple[str, ...], grown: str, factor: int, at: Place) -> None:
    small, large = model(), model(**{grown: SIZES[grown] * factor})
    assert (small.transfer(axes, at, held=True)[:7] <= large.transfer(axes, at, held=True)[:7]).all()
    least, most = (m.operator("exp", [axes], axes, at, varying=False, whole=True) for m in (small, large))
    assert (least[:7] <= most[:7]).all()


def test_answers_are_not_changed_by_their_users() -> None:
    """An operator is priced once: what is added to its price must not stay in it."""
    m = model()
    first = matmul(m, ("b", "k"), ("k", "n")).copy()
    total = m.launch()
    total = total + matmul(m, ("b", "k"), ("k", "n"))
    m.of_kernel(total)
    assert np.array_equal(matmul(m, ("b", "k"), ("k", "n")), first)


# Kernels and sizes.


def test_a_kernel_holds_too_much_or_not() -> None:
    m = model()
    cost = m.launch()
    for held, exceeded in ((c.CACHES[0], 0), (c.CACHES[0] + 1, 1), (c.CACHES[1] + 1, 2)):
        cost[6] = held
        assert entries(m.of_kernel(cost))["held"] == exceeded
    cost[1] = 7
    assert CostModel.operators(cost) == 7 and CostModel.operators(m.of_kernel(cost)) == 0
    assert cost[6] == c.CACHES[1] + 1, "the block graph's cost stays what it is"


def test_symbolic_axes_have_other_sizes() -> None:
    """Costs are compared at both; only the hinted ones order the search."""
    m = model()
    assert m.tables == [SIZES, {**SIZES, "b": 4096}]
    cost = m.transfer(("b", "k"), HERE, held=False)
    assert cost[2] == 256 * 1024 and cost[7] == 4096 * 1024
    assert m.total(cost) == pytest.approx((CPU_RATES.memory + CPU_RATES.cache) * 4 * 256 * 1024)


def test_elements_cost_what_their_bytes_cost() -> None:
    totals = {size: CostModel(SIZES, [], size) for size in (2, 4, 8)}
    moved = {size: m.total(m.transfer(("b", "k"), HERE, held=False)) for size, m in totals.items()}
    assert moved[2] == pytest.approx(moved[4] / 2) and moved[8] == pytest.approx(2 * moved[4])
    assert len({m.total(m.launch()) for m in totals.values()}) == 1


def test_fixed_axes_have_their_own_sizes_only() -> None:
    m = CostModel(SIZES, [], 4)
    assert m.tables == [SIZES] and m.length == 7
    assert len(m.launch()) == len(matmul(m, ("b", "k"), ("k", "n"))) == 7


def test_a_device_orders_the_same_costs_by_its_own_rates() -> None:
    h200 = DEVICES["sm_90"]
    here, there = model(), CostModel(SIZES, ["b"], 4, CudaTarget(h200).rates)
    work = here.operator("exp", [("b", "n")], ("b", "n"), HERE, varying=False, whole=True)
    moved = here.transfer(("b", "k"), HERE, held=False)
    for one in (here.launch(), moved, work):
        assert np.array_equal(here.launch(), there.launch())
        assert there.total(one) < here.total(one)
    assert there.total(there.launch()) == pytest.approx(2000.0)
    bytes_moved = 4 * 256 * 1024
    ns = 1e9 * bytes_moved * (1 / h200.sustained_bandwidth + 1 / h200.l2_bandwidth)
    assert there.total(there.transfer(("b", "k"), HERE, held=False)) == pytest.approx(ns)
    # what is computed matters less beside what is moved
    assert there.total(work) / there.total(moved) < here.total(work) / here.total(moved)
