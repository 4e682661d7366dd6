"""What follows from constants alone is computed in float64, in blocks, and rounded once."""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.launch import wide
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.kernels.kernels import in_threads
from tests.mugraph.split import twice_split

T = mi.tensor
#: half a unit in the last place, relative to the number
HALF = 2.0**-24

#: per name, a program of x and constants, the shapes of all, and what is computed of the constants
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Callable[..., Any]]] = {
    "gain": (lambda x, g, w: (x * g) @ w, [(2, 12), (12,), (12, 20)], lambda g, w: g[:, None] * w),
    "two gains": (
        lambda x, g, w, h: ((x * g) @ w) * h,
        [(2, 12), (12,), (12, 20), (20,)],
        lambda g, w, h: g[:, None] * w * h,
    ),
    "sum of weights": (lambda x, a, b: x @ a + x @ b, [(2, 12), (12, 20), (12, 20)], lambda a, b: a + b),
    "sum over an axis": (lambda x, w: x * w.sum(1), [(2, 12), (12, 40)], lambda w: w.sum(1)),
    "sum over both axes": (lambda x, w: x * w.sum(), [(2, 12), (12, 40)], lambda w: w.sum()),
    "product": (lambda x, a, c: (x @ a) @ c, [(2, 12), (12, 40), (40, 3)], lambda a, c: a @ c),
}


def executables(case: str, dtype: str = "float32") -> list[CpuExecutable]:
    """The searched graphs that compute something once."""
    function, shapes, _ = CASES[case]
    specs: dict[str, Any] = {
        n: T(*s, dtype=dtype) for n, s in zip(inspect.signature(function).parameters, shapes, strict=True)
    }
    program, constants = to_axes(mi.trace(function, **specs)), tuple(specs)[1:]
    found = generate(program, {}, SearchOptions(constants=constants, budget=600)).graphs
    graphs = [g for g in found if computed_once(g, constants, analyze(g))]
    return [CpuExecutable(g, default_schedule(g, {}, 1 << 20), analyze(g), {}, constants) for g in graphs]


@pytest.fixture(scope="module")
def searched() -> dict[str, list[CpuExecutable]]:
    return {case: executables(case) for case in CASES}


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of magnitudes from 1e-4 to 1e4 and either sign."""
    return (10 ** rng.uniform(-4, 4, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def wanted(case: str, constants: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(CASES[case][2](*(c.astype(np.float64) for c in constants)))


def kept(exe: CpuExecutable, like: np.ndarray) -> list[np.ndarray]:
    """What was kept, as arrays of a shape that they may be transposed to."""
    return [k if k.shape == like.shape else k.T for k in exe.packed() if k.size == like.size]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(CASES)), st.integers(0, 1 << 30), st.sampled_from([1, 100, 1 << 18]))
def test_values_are_rounded_once(searched: dict[str, list[CpuExecutable]], case: str, seed: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    x, *constants = (values(rng, s) for s in CASES[case][1])
    exact = wanted(case, constants)
    # sums of terms of either sign have the errors of float64
    most = HALF * np.abs(exact) + 2.0**-46 * wanted(case, [np.abs(c) for c in constants])
    assert searched[case]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "BLOCK", block)
        for exe in searched[case]:
            exe([x, *constants], {})
            found = kept(exe, exact)
            assert found
            assert all(np.all(np.abs(k - exact) <= most) for k in found)
            exe.forget()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["two gains", "sum over an axis", "product"])
def test_16_bit_constants(case: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, *constants = (rng.uniform(0.5, 1, s).astype(DTYPES[dtype]) for s in CASES[case][1])
    exact = wanted(case, constants)
    found = executables(case, dtype)
    assert found
    for exe in found[:3]:
        exe([x, *constants], {})
        for k in kept(exe, exact):
            # what is between kernels of float16 is stored in float32
            assert k.dtype == DTYPES["float32" if dtype == "float16" else dtype]
            ulp = 2.0**-8 if dtype == "bfloat16" else 2.0**-24
            assert np.all(np.abs(k.astype(np.float64) - exact) <= ulp * (1 + 1e-5) * np.abs(exact))


@pytest.mark.parametrize("case", list(CASES))
def test_strided_and_unaligned_constants(searched: dict[str, list[CpuExecutable]], case: str) -> None:
    rng = np.random.default_rng(2)
    x, *constants = (values(rng, s) for s in CASES[case][1])
    strided = [np.repeat(c, 2, axis=-1)[..., ::2] for c in constants]
    turned = [np.array(c.T, order="C").T for c in constants]
    unaligned = [np.frombuffer(b"0" + c.tobytes(), np.uint8)[1:].view(np.float32).reshape(c.shape) for c in constants]
    exe = searched[case][0]
    exe([x, *constants], {})
    (first, *_) = exe.packed()
    for others in (strided, turned, unaligned):
        exe.forget()
        exe([x, *others], {})
        assert np.array_equal(exe.packed()[0], first)
    exe.forget()


def test_partial_results_are_the_first_part() -> None:
    case = twice_split()
    program = to_axes(case.program)
    x, gate, up = (x.argument for x in program.inputs)
    m, n, k = (case.sizes[a] for a in "mnk")
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (k, n))]
    plain = CpuExecutable(case.graph, case.schedule, analyze(case.graph), case.sizes)
    once = CpuExecutable(case.graph, case.schedule, analyze(case.graph), case.sizes, (x, gate))
    assert up not in (x, gate) and len(once.emitted.once) == 1
    assert np.allclose(once(arrays, case.sizes)[0], plain(arrays, case.sizes)[0], rtol=1e-4, atol=1e-5)
    (parts,) = once.packed()
    assert np.array_equal(parts.sum(0), parts[0]) and parts[0].any()


def test_predefined_operators_are_computed_once_without_a_compiler() -> None:
    # numbers that only they read go along
    program = to_axes(mi.trace(lambda x, a, c: x @ (a * 2 + c), x=T(2, 4), a=T(4, 6), c=T(4, 6)))
    graph = reference_graph(program)
    exe = CpuExecutable(graph, default_schedule(graph, {}, 1 << 20), analyze(graph), {}, ("a", "c"))
    rng = np.random.default_rng(4)
    x, a, c = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4), (4, 6), (4, 6)))
    for _ in range(2):
        assert np.allclose(exe([x, a, c], {})[0], x @ (a * 2 + c), atol=1e-5)
    assert len(exe.packed()) == 1 and len(exe.emitted.stages) == 1


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (2, 3, 0), (0, 3, 2)])
def test_empty_constants(m: int, k: int, n: int) -> None:
    program = to_axes(mi.trace(lambda x, a, b: x @ (a + b), x=T("m", "k"), a=T("k", "n"), b=T("k", "n")))
    graph = reference_graph(program)
    exe = CpuExecutable(
        graph, default_schedule(graph, {"m": 2, "k": 3, "n": 3}, 1 << 20), analyze(graph), {}, ("a", "b")
    )
    x, a = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    assert np.array_equal(exe([x, a, a], {"m": m, "k": k, "n": n})[0], x @ (2 * a))


def test_weights_in_turns_from_several_threads(searched: dict[str, list[CpuExecutable]]) -> None:
    exe = searched["two gains"][0]
    rng = np.random.default_rng(5)
    shapes = CASES["two gains"][1]
    layers = [[rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(4)]
    expected = [CASES["two gains"][0](*layer) for layer in layers]

    def work(seed: int) -> None:
        for i in range(40):
            layer = (seed + i) % 4
            assert np.allclose(exe(layers[layer], {})[0], expected[layer], rtol=1e-4, atol=1e-4)
            if i % 16 == seed % 16:
                exe.forget()

    in_threads(work)
    exe.forget()


def test_large_weights_are_not_copied_as_a_whole() -> None:
    program = to_axes(mi.trace(lambda x, g, w, h: (x * g) @ w * h, x=T(1, 1024), g=T(1024), w=T(1024, 2048), h=T(2048)))
    options = SearchOptions(constants=("g", "w", "h"), budget=600)
    graph = next(g for g in generate(program, {}, options).graphs if computed_once(g, options.constants, analyze(g)))
    exe = CpuExecutable(graph, default_schedule(graph, {}, 1 << 20), analyze(graph), {}, options.constants)
    x, g, w, h = (np.ones(s, np.float32) for s in ((1, 1024), (1024,), (1024, 2048), (2048,)))
    tracemalloc.start()
    try:
        exe([x, g, w, h], {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # what is kept is in large pages, which are not traced
    assert peak < w.nbytes


def test_what_is_forgotten_is_held_by_nothing(searched: dict[str, list[CpuExecutable]]) -> None:
    exe = searched["gain"][0]
    rng = np.random.default_rng(6)
    x, g, w = (values(rng, s) for s in CASES["gain"][1])
    exe([x, g, w], {})
    g *= 3
    exe.forget()
    assert not any(
        a is not None for shape in exe._shapes.values() for fs in shape.frames.values() for f in fs for a in f.own
    )
    exe([x, g, w], {})
    assert np.array_equal(kept(exe, w)[0], g[:, None] * w)
    exe.forget()
