"""Constant inputs packed for the kernels: equal results, and copies that live as long as their arrays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage.errors import ScheduleError
from mirage.ir.codec import decode, encode
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels import copies
from mirage.kernels.cpu.emit.matmul import STREAM_ROWS
from mirage.kernels.cpu.launch import packing
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.memory import LINE, address
from mirage.kernels.cpu.launch.packing import packed_variants
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.schedule import Schedule
from tests.kernels.kernels import bound, error, in_threads, random_inputs, single_kernel, tiles
from tests.sampled import crossed

SIZES = {"b": 3, "e": 2, "n": 45, "k": 37}
CONSTANTS = ("w", "v")


def plain(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("b", "k", dtype=t)), b.input("w", tensor("k", "n", dtype=t))
    return [b.op("matmul", b.op("rms_norm", x), w)]


def gated(b: ProgramBuilder, t: str) -> list[int]:
    x = b.input("x", tensor("b", "k", dtype=t))
    w, v = b.input("w", tensor("k", "n", dtype=t)), b.input("v", tensor("k", "n", dtype=t))
    return [b.op("mul", b.op("silu", b.op("matmul", x, w)), b.op("matmul", x, v))]


def transposed(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("b", "k", dtype=t)), b.input("w", tensor("n", "k", dtype=t))
    return [b.op("matmul", x, b.op("transpose", w, perm=(1, 0)))]


def experts(b: ProgramBuilder, t: str) -> list[int]:
    x, w = b.input("x", tensor("e", "b", "k", dtype=t)), b.input("w", tensor("e", "k", "n", dtype=t))
    return [b.op("matmul", x, w)]


def merged(b: ProgramBuilder, t: str) -> list[int]:
    """Dims that are products of axes."""
    x, w = b.input("x", tensor("b", 3, "k", dtype=t)), b.input("w", tensor("3*k", "n", dtype=t))
    return [b.op("matmul", b.op("reshape", x, shape=("b", "3*k")), w)]


def literal(b: ProgramBuilder, t: str) -> list[int]:
    """A size that is known when the kernel is printed, and smaller than some tiles."""
    x, w = b.input("x", tensor("b", 24, dtype=t)), b.input("w", tensor(24, 20, dtype=t))
    return [b.op("matmul", x, w)]


BUILD: dict[str, tuple[Callable[[ProgramBuilder, str], list[int]], dict[str, Role]]] = {
    "plain": (plain, {}),
    "gated": (gated, {}),
    "gated and looped": (gated, {"k": Role.LOOP}),
    "transposed": (transposed, {}),
    "transposed and looped": (transposed, {"k": Role.LOOP}),
    "experts": (experts, {}),
    "merged": (merged, {}),
    "literal": (literal, {}),
}


def make(name: str, dtype: str = "float32") -> tuple[Program, MuGraph]:
    build, roles = BUILD[name]
    b = ProgramBuilder(name.replace(" ", "_"))
    p = b.finish(build(b, dtype))
    return p, single_kernel(p, **roles)


def packed(graph: MuGraph, tile: int, wide: str = "n") -> Schedule:
    """All constants packed, with tiles of this size along `wide` (or the literal axis), and of 2 elsewhere."""
    axis = next(a for a in graph.axes if a in (wide, "d20"))
    (first, *_) = packed_variants(graph, tiles(graph, {**dict.fromkeys(graph.axes, 2), axis: tile}), CONSTANTS, SIZES)
    return first


def executable(graph: MuGraph, tile: int = 16) -> CpuExecutable:
    return CpuExecutable(graph, packed(graph, tile), analyze(graph), SIZES, CONSTANTS)


@pytest.mark.parametrize(("name", "dtype"), crossed(BUILD, ["float32", "float64", "bfloat16"]))
def test_equal_at_awkward_sizes(name: str, dtype: str) -> None:
    program, graph = make(name, dtype)
    exe = executable(graph, 8)
    assert all(f"operand {j} packed" in exe.source for j, _ in exe.schedule.kernels[0].packed)
    for n in (1, 7, 8, 9, 45):
        for k in (1, 37):
            sizes = {s: {**SIZES, "n": n, "k": k}[s] for s in program.symbols()}
            inputs = random_inputs(program, sizes, seed=n)
            want = run_reference(program, inputs, sizes, "float64")
            for given in (inputs, [np.asfortranarray(a) for a in inputs], [a[::-1].copy()[::-1] for a in inputs]):
                assert error(exe(given, sizes), want) < bound(dtype), (sizes, exe.schedule)


@pytest.mark.parametrize("tile", [2, 5, 20, 64])
@pytest.mark.parametrize("name", ["literal", "plain"])
def test_tiles_of_any_size(name: str, tile: int) -> None:
    program, graph = make(name)
    (operand,) = (j for j, x in enumerate(graph.inputs) if x.argument == "w")
    schedule = tiles(graph, tile)
    axis = graph.inputs[operand].axes[-1]
    schedule = Schedule((replace(schedule.kernels[0], packed=((operand, axis),)),))
    sizes = {s: SIZES[s] for s in program.symbols()}
    inputs = random_inputs(program, sizes)
    exe = CpuExecutable(graph, schedule, analyze(graph), sizes, ["w"])
    assert error(exe(inputs, sizes), run_reference(program, inputs, sizes, "float64")) < 2e-5


def test_blocks_are_contiguous_and_padded_with_zeros() -> None:
    order = ("k", "n")
    found = packing.Packing(1, 3, order, 4)
    w = np.arange(15.0).reshape(3, 5)
    copy = found.pack(w, order, {"k": 3, "n": 5})
    np.testing.assert_array_equal(copy, [w[:, :4], np.pad(w[:, 4:], ((0, 0), (0, 3)))])
    assert address(copy) % LINE == 0
    # element (i, 4 * tile + j) is at 4 * tile * strides[1] + i * strides[0] + j
    assert found.strides({"k": 3, "n": 5}) == [4, 3]
    np.testing.assert_array_equal(copy, found.pack(w.T, ("n", "k"), {"k": 3, "n": 5}))


def test_what_a_block_reads_is_one_piece_of_memory() -> None:
    """Of a weight whose columns are heads and elements, a block with one head reads the columns of that, which are apart."""
    b = ProgramBuilder("heads")
    x, w = b.input("x", tensor("b", "k")), b.input("w", tensor("k", "4*d"))
    y = b.op("reshape", b.op("matmul", x, w), shape=("b", 4, "d"))
    program = b.finish([b.op("mul", y, b.input("s", tensor(4, 1)))])
    graph, sizes = single_kernel(program), {"b": 3, "k": 2048, "d": 640}
    (number,) = (i for i, y in enumerate(graph.inputs) if y.argument == "w")
    rows, heads, elements = graph.inputs[number].axes
    whole = tiles(graph, {heads: 1, elements: 640, "b": 3})
    found = packed_variants(graph, whole, ["w"], sizes)
    assert found
    for s in found:
        exe = CpuExecutable(graph, s, analyze(graph), sizes, ["w"])
        (p,) = exe.emitted.packed
        assert p.axes == (heads, rows, elements)
        inputs = random_inputs(program, sizes)
        assert error(exe(inputs, sizes), run_reference(program, inputs, sizes, "float64")) < bound("float32")


@pytest.mark.parametrize(
    ("rows", "width"), [(1, 128), (2, 128), (3, 64), (4, 64), (5, 48), (8, 48), (16, 48), (32, 48), (33, 48), (128, 48)]
)
def test_panels_are_as_wide_as_register_blocks(rows: int, width: int) -> None:
    program, graph = make("plain")
    axis = graph.inputs[1].axes[-1]
    sizes = {"b": rows, "k": 300, "n": 1000}
    whole = tiles(graph, {"b": rows, axis: 1000})
    (first, *_) = packed_variants(graph, whole, ["w"], sizes)
    assert first.kernels[0].tile[axis] == width and first.kernels[0].packed == ((1, axis),)
    exe = CpuExecutable(graph, first, analyze(graph), sizes, ["w"])
    assert ("mi_gemm_stream" in exe.source) == (rows <= STREAM_ROWS)
    for b in (1, rows, rows + 1):
        inputs = random_inputs(program, {**sizes, "b": b}, seed=b)
        want = run_reference(program, inputs, {**sizes, "b": b}, "float64")
        assert error(exe(inputs, {**sizes, "b": b}), want) < bound("float32")


@pytest.mark.parametrize(("k", "copied"), [(300, True), (1100, False)])
def test_small_inputs_are_copied_into_large_pages_as_they_are(k: int, copied: bool) -> None:
    program, graph = make("plain")
    axis = graph.inputs[1].axes[-1]
    sizes = {"b": 40, "k": k, "n": 1000}
    variants = packed_variants(graph, tiles(graph, {"b": 40, axis: 1000}), ["w"], sizes)
    whole = [s for s in variants if s.kernels[0].tile[axis] == 1000]
    assert [s.kernels[0].packed for s in whole] == [((1, axis),)] * copied
    for s in whole:
        exe = CpuExecutable(graph, s, analyze(graph), sizes, ["w"])
        inputs = random_inputs(program, sizes)
        assert error(exe(inputs, sizes), run_reference(program, inputs, sizes, "float64")) < bound("float32")


def test_two_kernels_share_a_copy_of_the_same_form() -> None:
    _, graph = make("gated")
    exe = executable(graph)
    assert len(exe.emitted.packed) == 2
    (kernel,) = exe.schedule.kernels
    assert packed_variants(graph, Schedule((replace(kernel, packed=()),)), (), SIZES) == []
    assert packed_variants(graph, tiles(graph, 1), CONSTANTS, SIZES) == []


# Schedules that do not fit.


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (((2, "n"),), "operand 2 is packed, but it has 2"),
        (((-1, "n"),), "operand -1 is packed"),
        (((0, "n"),), "operand 0 is packed along n"),
        (((1, "k"),), "operand 1 is packed along k"),
        (((1, "n"), (1, "n")), "packed twice"),
        (((1, "z"),), "operand 1 is packed along z"),
    ],
)
def test_impossible_packings_are_refused(pairs: Any, message: str) -> None:
    _, graph = make("plain")
    schedule = tiles(graph, 8)
    with pytest.raises(ScheduleError, match=message):
        Schedule((replace(schedule.kernels[0], packed=pairs),)).check(graph)


def test_tiles_of_one_are_not_packed() -> None:
    _, graph = make("plain")
    schedule = Schedule((replace(tiles(graph, 1).kernels[0], packed=((1, "n"),)),))
    with pytest.raises(ScheduleError, match="tiles of 2 or more"):
        schedule.check(graph)


def test_only_constants_are_packed() -> None:
    _, graph = make("gated")
    with pytest.raises(ScheduleError, match="packs v, which is not constant"):
        CpuExecutable(graph, packed(graph, 16), analyze(graph), SIZES, ["w", "x"])


def test_schedules_as_json() -> None:
    _, graph = make("gated")
    schedule = packed(graph, 16)
    assert decode(Schedule, encode(schedule), "schedule") == schedule


# Copies.


def run(exe: CpuExecutable, x: np.ndarray, w: Any) -> np.ndarray:
    """The one result for x and w, by the way of prepared calls."""
    sizes = {"b": x.shape[0], "k": x.shape[1], "n": w.shape[1]}
    out = np.empty((sizes["b"], sizes["n"]), x.dtype)
    view = np.asarray(w)
    call = exe.bind(sizes, [x.strides, view.strides, out.strides])
    assert call is not None
    call.run([address(x), address(view), address(out)], [x, w])
    return out


def count(exe: CpuExecutable) -> int:
    (copies,) = exe._copies
    return len(copies)


def case() -> tuple[CpuExecutable, np.ndarray, np.ndarray]:
    program, graph = make("plain")
    x, w = random_inputs(program, {s: SIZES[s] for s in program.symbols()})
    x /= np.sqrt(np.mean(np.square(x), axis=1, keepdims=True))
    return executable(graph), x, w


def test_an_array_is_packed_once_until_it_is_forgotten() -> None:
    exe, x, w = case()
    for times in (1, 2):
        want = x @ w
        np.testing.assert_allclose(run(exe, x, w), want, rtol=1e-3, atol=1e-4)
        w *= 2
        # the user's error, which shows that the copy is read
        np.testing.assert_allclose(run(exe, x[:2], w), want[:2], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(exe([x, w], {"b": 3, "k": 37, "n": 45})[0], want, rtol=1e-3, atol=1e-4)
        assert count(exe) == 1, times
        exe.forget()
        assert count(exe) == 0


def test_another_array_at_the_same_address_is_packed_anew() -> None:
    exe, x, w = case()
    memory = bytearray(w.nbytes)
    addresses = set()
    for factor in (1, 3, 7):
        other = np.frombuffer(memory, np.float32).reshape(w.shape)
        other[...] = factor * w
        addresses.add(address(other))
        np.testing.assert_allclose(run(exe, x, other), factor * (x @ w), rtol=1e-3, atol=1e-3)
        del other
        gc.collect()
        assert count(exe) == 0
    assert len(addresses) == 1


def test_views_of_one_array_share_a_copy() -> None:
    exe, x, w = case()
    layers = np.stack([w, 2 * w, 3 * w])
    for _ in range(2):
        for i in range(3):
            np.testing.assert_allclose(run(exe, x, layers[i]), (i + 1) * (x @ w), rtol=1e-3, atol=1e-3)
    assert count(exe) == 3
    # another layout at the same address
    square = np.ascontiguousarray(w[:, :37])
    for view in (square, square.T):
        np.testing.assert_allclose(run(exe, x, view), x @ view, rtol=1e-3, atol=1e-3)
    assert count(exe) == 5
    del layers, square, view
    gc.collect()
    assert count(exe) == 0


def test_copies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LIMIT", 2)
    exe, x, w = case()
    weights = [i * w for i in range(5)]
    for _ in range(2):
        for i, v in enumerate(weights):
            np.testing.assert_allclose(run(exe, x, v), i * (x @ w), rtol=1e-3, atol=1e-3)
            assert count(exe) <= 2


def test_arrays_that_last_for_one_call_leave_nothing() -> None:
    """A misaligned array is copied for the call, and another library's exported anew: neither is confused with the next."""
    exe, x, w = case()
    sizes = {"b": 3, "k": 37, "n": 45}
    raw = np.empty(w.nbytes + 1, np.uint8)
    for factor in (1, 2):
        odd = raw[1:].view(np.float32).reshape(w.shape)
        odd[...] = factor * w
        np.testing.assert_allclose(exe([x, odd], sizes)[0], factor * (x @ w), rtol=1e-3, atol=1e-3)
        exe.forget()
        exported = np.from_dlpack(factor * w)
        np.testing.assert_allclose(
            exe([x, exported], sizes, given=[x, object()])[0], factor * (x @ w), rtol=1e-3, atol=1e-3
        )
        del exported
        gc.collect()
        assert count(exe) == 0


def test_torch_tells_of_changes() -> None:
    torch = pytest.importorskip("torch")
    exe, x, w = case()
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()), requires_grad=False)
    np.testing.assert_allclose(run(exe, x, parameter), x @ w, rtol=1e-3, atol=1e-3)
    parameter.mul_(2)
    np.testing.assert_allclose(run(exe, x, parameter), 2 * (x @ w), rtol=1e-3, atol=1e-3)
    # tensors that are made for every call
    np.testing.assert_allclose(run(exe, x, parameter[:]), 2 * (x @ w), rtol=1e-3, atol=1e-3)
    assert count(exe) == 1
    with torch.inference_mode():
        np.testing.assert_allclose(run(exe, x, torch.from_numpy(3 * w)), 3 * (x @ w), rtol=1e-3, atol=1e-3)
    del parameter
    gc.collect()
    assert count(exe) == 0


def test_calls_from_several_threads_with_their_own_and_shared_arrays() -> None:
    exe, x, w = case()
    shared = w.copy()
    failures: list[int] = []

    def work(seed: int) -> None:
        for i in range(20):
            own = (seed * 20 + i) * w
            for v, factor in ((own, seed * 20 + i), (shared, 1)):
                if not np.allclose(run(exe, x, v), factor * (x @ w), rtol=1e-3, atol=1e-2):
                    failures.append(seed)
            if i == 10:
                exe.forget()

    in_threads(work)
    assert not failures
