"""Schedules for CUDA devices and the model that orders them: what fits, monotonicity, and orders that are known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.errors import ScheduleError
from mirage.ir.axes import to_axes
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cuda.device import DEVICES, CudaDevice
from mirage.kernels.cuda.model.cost import CudaModel, floor_us, held_whole, warm_inputs
from mirage.kernels.cuda.schedules.choices import Choices
from mirage.kernels.cuda.schedules.layouts import with_layouts, with_packed
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.kernels.cuda.schedules.scheduler import APART, CudaScheduler, distance
from mirage.mugraph.graph import MuGraph, Role, partial_axis
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.kernels.kernels import single_kernel
from tests.mugraph.graphs import flash_attention, flash_decoding
from tests.programs import UNLIMITED, retyped, sizes
from tests.sampled import crossed, thinned

A100, H200, B200 = DEVICES["sm_80"], DEVICES["sm_90"], DEVICES["sm_100"]
NAMES = ("gqa_decode", "rmsnorm_linear", "gated_mlp", "softmax", "lora", "moe", "layer_norm")
LARGE = {"b": 1, "s": 4096, "t": 4096, "h": 16}


@cache
def graphs(name: str, dtype: str = "float16") -> tuple[MuGraph, ...]:
    program = retyped(PROGRAMS[name].trace(), dtype)
    return tuple(generate(to_axes(program), sizes(name), SearchOptions(budget=UNLIMITED)).graphs)


@cache
def ranked(name: str, device: str = "sm_90", **at: int) -> list[tuple[float, MuGraph, CudaSchedule]]:
    """All graphs of a program that fit a device with their best schedules, fastest first."""
    bound = {**sizes(name), **at}
    known: dict[tuple[object, ...], list[object]] = {}
    found = []
    for g in graphs(name):
        try:
            best = CudaScheduler(g, bound, CudaModel(DEVICES[device]), known).best(2)  # type: ignore[arg-type]
        except ScheduleError:
            continue
        found += [(r.us, g, r.schedule) for r in best]
    return sorted(found, key=lambda item: item[0])


def matmul(dtype: str = "float16") -> MuGraph:
    """x @ w with one loop, of run-time sizes."""
    program = mi.trace(lambda x, w: x @ w, x=mi.tensor("m", "k", dtype=dtype), w=mi.tensor("k", "n", dtype=dtype))
    return single_kernel(program, k=Role.LOOP)


@pytest.mark.parametrize(("name", "device"), crossed(NAMES, ["sm_90", "sm_80", "sm_100"], step=2))
def test_schedules_fit_the_device(name: str, device: str) -> None:
    d = DEVICES[device]
    model = CudaModel(d)
    found = ranked(name, device)
    assert found
    for us, g, schedule in found:
        schedule.check(g)
        assert 0 < us < math.inf
        table = schedule.plain.axis_sizes(g, sizes(name))
        for s, node in zip(schedule.kernels, g.kernels, strict=True):
            one = model.kernel(model.work(node), Choices.of(s), table, g.dtype, warm_inputs(g, node))
            assert one.shared_bytes[0] <= d.block_shared_bytes
            assert one.registers[0] <= 255
            assert d.resident_blocks(s.num_warps, int(one.shared_bytes[0]), int(one.registers[0])) >= 1
            assert node.graph is not None
            literal = {a for a, size in g.axes.items() if size.is_Integer}
            assert dict(s.rooms).keys() == held_whole(node.graph) - literal


@pytest.mark.parametrize("name", thinned(NAMES))
def test_nothing_is_faster_than_the_memory(name: str) -> None:
    moved, flops = program_cost(to_axes(PROGRAMS[name].trace()), sizes(name))
    # the program is float32, the graphs half of that
    floor = floor_us(H200, moved / 2, flops, "float16")
    assert ranked(name)[0][0] > floor


def test_best_schedules_are_apart_in_order_and_always_the_same() -> None:
    g, bound = matmul(), {"m": 512, "k": 1024, "n": 2048}
    best = CudaScheduler(g, bound, CudaModel(H200)).best(4)
    assert best == CudaScheduler(g, bound, CudaModel(H200)).best(4)
    assert [r.us for r in best] == sorted(r.us for r in best)
    kernels = [r.schedule.kernels[0] for r in best]
    assert len(kernels) == 4
    assert all(distance(x, y) >= APART for i, x in enumerate(kernels) for y in kernels[:i])


def test_one_kernel_split_by_two_has_one_number_of_parts() -> None:
    for _, g, schedule in ranked("gqa_decode"):
        parts: dict[str, int] = {}
        for s in schedule.kernels:
            for a, n in s.splits:
                assert parts.setdefault(a, n) == n
        for s in schedule.kernels:
            for a, room in s.rooms:
                if a.endswith(".grid"):
                    assert room >= parts[a.removesuffix(".grid")]
        assert all(a in g.axes and partial_axis(a) for a in parts)


@pytest.mark.parametrize(
    "better",
    [
        {"bandwidth": 2 * H200.bandwidth},
        {"l2_bandwidth": 2 * H200.l2_bandwidth},
        {"launch_s": H200.launch_s / 2},
        {"flops": {k: 2 * v for k, v in H200.flops.items()}},
        {"l2_bytes": 2 * H200.l2_bytes},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("name", ["gqa_decode", "gated_mlp", "softmax"])
def test_no_schedule_is_slower_on_a_better_device(name: str, better: dict[str, object]) -> None:
    device: CudaDevice = replace(H200, **better)  # type: ignore[arg-type]
    for us, g, schedule in ranked(name)[:40]:
        # bytes in flight may be too few for twice the bandwidth, which is no loss either
        assert CudaModel(device).us(g, schedule, sizes(name)) <= us * (1 + 1e-9)


@pytest.mark.parametrize("dim", ["m", "k", "n"])
def test_larger_products_take_longer(dim: str) -> None:
    bound = {"m": 256, "k": 512, "n": 1024}
    for r in CudaScheduler(matmul(), bound, CudaModel(H200)).best(4):
        times = [CudaModel(H200).us(matmul(), r.schedule, {**bound, dim: bound[dim] * f}) for f in (1, 2, 4, 16)]
        assert times == sorted(times)
        assert times[-1] > times[0]


def test_a_large_product_is_near_what_tensor_cores_sustain() -> None:
    n = 8192
    us = CudaScheduler(matmul(), {"m": n, "k": n, "n": n}, CudaModel(H200)).best(1)[0].us
    floor = 2 * n**3 / H200.sustained_flops("float16") * 1e6
    assert floor < us < 1.5 * floor
    slow = CudaScheduler(matmul("float32"), {"m": n, "k": n, "n": n}, CudaModel(H200)).best(1)[0].us
    assert slow > 5 * us, "float32 is computed in full precision, without tensor cores"


def test_large_products_use_tensor_cores_and_vectors_sums() -> None:
    large = CudaScheduler(matmul(), {"m": 4096, "k": 4096, "n": 4096}, CudaModel(H200)).best(1)[0].schedule.kernels[0]
    assert large.dot
    assert large.num_warps >= 4, "a warpgroup"
    assert large.tile["m"] >= 64 and large.tile["n"] >= 64
    row = CudaScheduler(matmul(), {"m": 1, "k": 4096, "n": 4096}, CudaModel(H200)).best(1)[0].schedule.kernels[0]
    assert not row.dot
    assert row.tile["m"] == 1


def splits(schedule: CudaSchedule) -> int:
    return max((n for s in schedule.kernels for _, n in s.splits), default=1)


def test_decoding_splits_keys_over_the_grid_where_there_are_few_heads() -> None:
    """Flash decoding: with one key-value head, only that gives the multiprocessors work."""
    us, _, schedule = ranked("gqa_decode", h=1, t=32768)[0]
    assert splits(schedule) > 8
    whole = [(u, g) for u, g, s in ranked("gqa_decode", h=1, t=32768) if splits(s) == 1]
    assert us < 0.5 * whole[0][0] or len(whole[0][1].kernels) > 1
    _, _, many = ranked("gqa_decode", b=64)[0]
    assert splits(many) == 1, "there are heads enough for all multiprocessors"


def materializes(g: MuGraph) -> bool:
    """Whether a kernel writes scores [.., s, t]."""
    return any({"s", "t"} <= set(n.axes(k)) for n in g.kernels for k in range(len(n.dims)))


def test_flash_attention_beats_scores_in_memory() -> None:
    found = ranked("mha_decode", **LARGE)
    flash = min(us for us, g, _ in found if not materializes(g))
    written = min(us for us, g, _ in found if materializes(g))
    assert not materializes(found[0][1])
    assert written > 1.5 * flash


def test_a_fused_norm_beats_two_kernels() -> None:
    fused = [us for us, g, _ in ranked("rmsnorm_linear") if len(g.kernels) == 1]
    apart = [us for us, g, _ in ranked("rmsnorm_linear") if len(g.kernels) > 1]
    assert min(fused) < min(apart)


def test_devices_are_told_apart() -> None:
    best = [ranked("gated_mlp", d)[0][0] for d in ("sm_80", "sm_90", "sm_100")]
    assert best == sorted(best, reverse=True)


def test_a_schedule_serves_no_more_than_its_rooms() -> None:
    us, g, schedule = ranked("softmax")[0]
    assert held_whole(g.kernels[0].graph) == {"n"}  # type: ignore[arg-type]
    room = dict(schedule.kernels[0].rooms)["n"]
    assert room == 1024
    model = CudaModel(H200)
    assert model.us(g, schedule, {"m": 1024, "n": room}) == us
    assert model.us(g, schedule, {"m": 1024, "n": room + 1}) == math.inf
    assert model.us(g, schedule, {"m": 10**6, "n": room}) < math.inf


def test_library_calls_are_priced() -> None:
    calls = [g for g in graphs("moe") if any(n.op == "matmul" for n in g.kernel.nodes)]
    assert calls
    for g in calls:
        r = CudaScheduler(g, sizes("moe"), CudaModel(H200)).best(1)[0]
        count = sum(n.op not in ("input", "constant", "size") for n in g.kernel.nodes)
        assert r.us > 1e6 * count * H200.launch_s


@pytest.mark.parametrize("less", [{"block_shared_bytes": 256}, {"registers": 1024}, {"threads": 16}])
def test_a_device_that_is_too_small(less: dict[str, int]) -> None:
    scheduler = CudaScheduler(matmul(), {"m": 64, "k": 64, "n": 64}, CudaModel(replace(H200, **less)))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"no tiles of kernel 0 fit H200"):
        scheduler.best(1)


@pytest.mark.parametrize("bound", [{"m": 1, "k": 1, "n": 1}, {"m": 0, "k": 7, "n": 3}, {"m": 3, "k": 100003, "n": 1}])
def test_odd_sizes(bound: dict[str, int]) -> None:
    (r,) = CudaScheduler(matmul(), bound, CudaModel(A100)).best(1)
    r.schedule.check(matmul())
    assert 0 < r.us < math.inf


def test_no_more_parts_than_tiles() -> None:
    """Of the first kernel that splits the keys; later ones have as many parts."""
    kernels = [schedule.kernels for _, _, schedule in ranked("gqa_decode", t=64)]
    found = [next((s for s in several if "t" in s.split), None) for several in kernels]
    parts = [(s.split["t"], -(-64 // s.tile["t"])) for s in found if s]
    assert parts
    assert all(1 <= n <= tiles for n, tiles in parts)


# what is chosen beside tiles


def best(g: MuGraph, at: dict[str, int], device: CudaDevice = H200, count: int = 4) -> list[CudaKernelSchedule]:
    return [r.schedule.kernels[0] for r in CudaScheduler(g, at, CudaModel(device)).best(count)]


SQUARE = {"m": 4096, "k": 4096, "n": 4096}


def test_devices_get_what_they_have() -> None:
    for device, engine in ((A100, False), (H200, True), (B200, True)):
        found = best(matmul(), SQUARE, device)
        assert any(s.descriptors for s in found) is engine
        assert not all(s.descriptors for s in found), "a device is to compare both kinds of loads"
        assert engine or not any(s.swap for s in found)


def test_few_rows_swap_operands_on_newer_devices() -> None:
    few = {**SQUARE, "m": 16}
    assert best(matmul(), few)[0].swap and best(matmul(), few)[0].tile["n"] >= 64
    assert not best(matmul(), SQUARE)[0].swap


def test_rows_of_odd_bytes_have_no_descriptors() -> None:
    assert not any(s.descriptors for s in best(matmul(), {"m": 4096, "k": 4095, "n": 4095}))
    model, g = CudaModel(H200), matmul()
    s = CudaSchedule((CudaKernelSchedule((("m", 128), ("n", 128), ("k", 64)), num_warps=8, descriptors=(0, 1, 2)),))
    plain = s.without_descriptors
    odd = {"m": 4096, "k": 4095, "n": 4095}
    assert model.us(g, s, odd) == model.us(g, plain, odd), "kernels without descriptors run"
    assert model.us(g, s, SQUARE) != model.us(g, plain, SQUARE)
    assert model.us(g, plain, odd) > model.us(g, plain, SQUARE), "narrow loads"


def test_groups_of_tiles_read_less_from_memory() -> None:
    """Where neither factor fits the L2 cache."""
    small, g = replace(H200, l2_bytes=8 << 20), matmul()
    model = CudaModel(small)
    work = model.work(g.kernels[0])

    def dram(group: int, order: tuple[str, ...] = ()) -> float:
        s = CudaKernelSchedule((("m", 128), ("n", 128), ("k", 64)), num_warps=8, group=group, order=order)
        return float(model.kernel(work, Choices.of(s), {"m": 16384, "k": 4096, "n": 16384}, g.dtype).parts["dram"][0])

    assert dram(8) < 0.5 * dram(1)
    assert dram(1, ("n", "m")) == pytest.approx(dram(1), rel=0.1)
    chosen = best(g, {"m": 16384, "k": 4096, "n": 16384}, replace(small, bandwidth=1e12))[0]
    assert chosen.group > 1
    assert best(g, SQUARE)[0].group == 1, "nothing is gained"


def test_the_order_of_the_grid_follows_the_larger_factor() -> None:
    """Blocks that run together share the tall factor's tiles where that one does not fit the cache."""
    model, g = CudaModel(replace(H200, l2_bytes=4 << 20)), matmul()
    work = model.work(g.kernels[0])

    def dram(order: tuple[str, ...]) -> float:
        s = CudaKernelSchedule((("m", 128), ("n", 128), ("k", 64)), num_warps=8, order=order)
        return float(model.kernel(work, Choices.of(s), {"m": 65536, "k": 1024, "n": 1024}, g.dtype).parts["dram"][0])

    assert dram(("m", "n")) < dram(("n", "m"))


def test_constants_are_packed_where_that_is_faster() -> None:
    g, model = matmul(), CudaModel(H200)
    odd = {"m": 4096, "k": 4095, "n": 4095}
    r = CudaScheduler(g, odd, model).best(1)[0]
    found = with_packed(g, r.schedule, ("w",), odd, model)
    assert found is not None
    packed, us = found
    assert [i for i, _ in packed.kernels[0].packed] == [1]
    packed.check(g)
    assert us < r.us and us == model.us(g, packed, odd)
    assert with_packed(g, r.schedule, (), odd, model) is None
    even = CudaScheduler(g, SQUARE, model).best(1)[0]
    assert with_packed(g, even.schedule, ("w",), SQUARE, model) is None, "rows are wide already"


def test_intermediates_get_the_layout_that_is_read_fastest() -> None:
    """Of two kernels; rows of a tile along the axis that only the second one divides finely are short."""
    case = flash_decoding()
    g, bound = case.graph, {"b": 1, "h": 8, "s": 16, "t": 4096}
    model = CudaModel(H200)
    for r in CudaScheduler(g, bound, model).best(4):
        again, us = with_layouts(g, r.schedule, bound, model)
        assert us <= r.us and again.kernels[1].layouts == ()
        again.check(g)
    first, second = CudaScheduler(g, bound, model).best(1)[0].schedule.kernels
    axes = g.kernels[0].axes(0)
    narrow = CudaSchedule((replace(first, layouts=()), replace(second, tiles=tuple((a, 1) for a, _ in second.tiles))))
    _, us = with_layouts(g, narrow, bound, model)
    assert us <= model.us(g, narrow, bound)
    turned = replace(narrow, kernels=(replace(narrow.kernels[0], layouts=((0, axes[0]),)), narrow.kernels[1]))
    assert model.us(g, turned, bound) != model.us(g, narrow, bound)


@pytest.mark.parametrize("device", [A100, H200], ids=lambda d: d.arch)
def test_sums_along_rows_decide_the_order_of_large_operands(device: CudaDevice) -> None:
    """Queries are rows, whichever operand they are: a thread holds sums of few rows then."""
    g, bound = flash_attention().graph, {"b": 1, "h": 8, "s": 512, "t": 4096}
    (node,) = g.kernels
    assert node.graph is not None and node.graph.nodes[3].op == "matmul"
    turned = replace(node.graph.nodes[3], operands=node.graph.nodes[3].operands[::-1])
    body = replace(node.graph, nodes=(*node.graph.nodes[:3], turned, *node.graph.nodes[4:]))
    nodes = tuple(replace(n, graph=body) if n is node else n for n in g.kernel.nodes)
    other = replace(g, kernel=replace(g.kernel, nodes=nodes), dtype="float16")
    for graph, swap in ((replace(g, dtype="float16"), False), (other, True)):
        work, model = CudaModel(device).work(graph.kernels[0]), CudaModel(device)
        s = CudaKernelSchedule((("b", 1), ("h", 1), ("s", 16), ("t", 64)), num_warps=8)
        choices = replace(Choices.of(s), swap=None)
        table = CudaSchedule((s,)).plain.axis_sizes(graph, bound)
        assert bool(model.kernel(work, choices, table, "float16").swap[0]) is swap
