"""Compiled loop programs against their meaning in float64."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.parse import parse_loops
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.loops.programs import SOFTMAX, inputs, programs, reduced
from tests.sampled import thinned

#: every dim at 1, at 0, and sizes below, between and above those of vectors, and of cells
SIZES = [
    dict(b=2, n=5, m=7, k=3),
    dict(b=1, n=1, m=1, k=1),
    dict(b=3, n=37, m=131, k=67),
    dict(b=1, n=3, m=20011, k=2),
    dict(b=1, n=5003, m=3, k=5),
    dict(b=2, n=0, m=4, k=3),
    dict(b=2, n=3, m=0, k=2),
    dict(b=0, n=3, m=5, k=0),
]
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1.6e-2}


def outputs(kernel: LoopKernel, sizes: dict[str, int]) -> list[np.ndarray]:
    types = kernel.program.output_types
    return [np.full(t.bind(sizes), 77).astype(ELEMENTS[t.dtype]) for t in types]


def run(kernel: LoopKernel, arrays: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
    own = {s: sizes[s] for s in kernel.program.symbols}
    out = outputs(kernel, own)
    kernel(arrays, own, out)
    return out


def check(kernel: LoopKernel, arrays: list[np.ndarray], sizes: dict[str, int]) -> None:
    """The kernel gives what the program means in float64, or the same error."""
    own = {s: sizes[s] for s in kernel.program.symbols}
    try:
        wanted = run_loops(kernel.program, arrays, own, "float64")
    except InputError as e:
        with pytest.raises(InputError, match=re.escape(str(e))):
            run(kernel, arrays, sizes)
        return
    found = run(kernel, arrays, sizes)
    coarsest = max((TOLERANCE[t.dtype] for t in kernel.program.input_types if t.dtype in TOLERANCE), default=1e-6)
    for a, w, t in zip(found, wanted, kernel.program.output_types, strict=True):
        message = f"{kernel.program}\n{sizes}"
        if t.dtype in DTYPES:
            tolerance = max(coarsest, TOLERANCE[t.dtype])
            np.testing.assert_allclose(a.astype(np.float64), w, rtol=tolerance, atol=tolerance, err_msg=message)
        else:
            np.testing.assert_array_equal(a, w, message)


@pytest.mark.parametrize("name", thinned(programs()))
def test_agrees_with_float64(name: str) -> None:
    kernel = LoopKernel(programs()[name])
    for sizes in SIZES:
        check(kernel, inputs(kernel.program, sizes), sizes)


def test_what_a_variable_holds_is_read_in_branches() -> None:
    """It has no memory, from which the branch would be loaded."""
    kernel = LoopKernel(programs()["beside_reductions"])
    for sizes in SIZES[:5]:
        check(kernel, inputs(kernel.program, sizes), sizes)


def padded(a: np.ndarray) -> np.ndarray:
    """The same array with gaps between its rows, rows in reverse order."""
    if not a.ndim:
        return a
    wide = np.full((*(2 * n + 1 for n in a.shape[:-1]), a.shape[-1] + 3), 1).astype(a.dtype)
    view = wide[tuple([slice(1, 2 * n + 1, 2) for n in a.shape[:-1]] + [slice(1, a.shape[-1] + 1)])]
    view = view[::-1] if a.ndim > 1 else view
    view[...] = a
    return view


@pytest.mark.parametrize("name", ["rotary", "masked_softmax", "take_along", "columns", "keep_ones", "halves"])
def test_reads_through_strides(name: str) -> None:
    kernel = LoopKernel(programs()[name])
    for sizes in SIZES[:3]:
        check(kernel, [padded(a) for a in inputs(kernel.program, sizes)], sizes)


def test_copies_inputs_whose_rows_are_not_contiguous() -> None:
    kernel = LoopKernel(programs()["masked_softmax"])
    x, mask = inputs(kernel.program, sizes := dict(n=6, m=11))
    check(kernel, [np.asfortranarray(x), np.repeat(mask, 2, axis=1)[:, ::2]], sizes)
    shifted = np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    check(kernel, [shifted, mask], sizes)


def test_nan_is_the_extreme() -> None:
    kernel = LoopKernel(programs()["extremes"])
    for count in (1, 5, 40, 200):
        for place in {0, count // 2, count - 1}:
            x = np.random.default_rng(0).standard_normal((2, count)).astype(np.float32)
            x[1, place] = np.nan
            x[1, (place + 3) % count] = np.nan
            check(kernel, [x], dict(n=2, m=count))


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_integer_arithmetic_wraps_around(value: int) -> None:
    kernel = LoopKernel(programs()["integers"])
    x = np.full((3, 5), value)
    y = np.array([[-1, 0, 1, -(2**31), 2**31 - 1]] * 3, np.int32)
    check(kernel, [x, y], dict(n=3, m=5))


@pytest.mark.parametrize(("place", "index"), [((0, 0), 9), ((1, 6), -10), ((0, 3), 2**62)])
def test_index_out_of_range(place: tuple[int, int], index: int) -> None:
    kernel = LoopKernel(programs()["embedding"])
    table, ids = inputs(kernel.program, sizes := dict(b=2, n=7, m=40, k=9))
    ids[place] = index
    with pytest.raises(
        InputError, match=f"embedding: gather, axis 0: index {index} is out of range for a dim of 9 elem"
    ):
        run(kernel, [table, ids], sizes)
    # the kernel can be called again
    ids[place] = -9
    check(kernel, [table, ids], sizes)


def test_wrong_arguments() -> None:
    kernel = LoopKernel(programs()["masked_softmax"])
    (x, mask), sizes = inputs(kernel.program, dict(n=4, m=6)), dict(n=4, m=6)
    out = np.empty((4, 6), np.float32)
    wrong: list[tuple[list[np.ndarray], dict[str, int], list[np.ndarray], str]] = [
        ([x], sizes, [out], "got 1 inputs; it takes 2"),
        ([x, mask], dict(n=4), [out], "no size for m"),
        ([x, mask], dict(n=4, m=5), [out], "input x is float32[4, 6], not float32[4, 5]"),
        ([x.astype(np.float64), mask], sizes, [out], "input x is float64"),
        ([x, mask.astype(np.int32)], sizes, [out], "input mask is int32"),
        ([x, mask], sizes, [], "out is nothing; pass contiguous writable arrays float32[4, 6]"),
        ([x, mask], sizes, [out.T], "out is float32[6, 4]"),
        ([x, mask], sizes, [np.asfortranarray(out)], "out is float32[4, 6]"),
        ([x, mask], sizes, [np.broadcast_to(out, (4, 6))], "out is float32[4, 6]"),
    ]
    for arrays, given, results, message in wrong:
        with pytest.raises(InputError, match=re.escape(message)):
            kernel(arrays, given, results)
    with pytest.raises(InputError, match="workspace is float32"):
        kernel([x, mask], sizes, [out], [out])


def test_workspace_is_given_or_allocated() -> None:
    kernel = LoopKernel(programs()["normalized_by_all"])
    arrays = inputs(kernel.program, sizes := dict(n=30, m=50))
    workspace = kernel.workspace(sizes)
    # the tensor between the nests, and the parts of its sum
    assert workspace == [((30, 50), np.dtype("float32")), ((32,), np.dtype("float32"))]
    given, own = outputs(kernel, sizes), outputs(kernel, sizes)
    kernel(arrays, sizes, given, [np.full(shape, np.nan, dtype) for shape, dtype in workspace])
    kernel(arrays, sizes, own)
    np.testing.assert_array_equal(given[0], own[0])


def test_several_threads_at_once() -> None:
    kernel = LoopKernel(programs()["masked_softmax"])
    cases = [(s, inputs(kernel.program, s, seed)) for seed, s in enumerate([dict(n=64, m=301), dict(n=3, m=70)] * 4)]

    def calls(case: tuple[dict[str, int], list[np.ndarray]]) -> None:
        for _ in range(50):
            check(kernel, case[1], case[0])

    with ThreadPoolExecutor(len(cases)) as executor:
        list(executor.map(calls, cases))


def test_names_of_other_scripts_and_of_c() -> None:
    text = """\
def naïve(α: float32[ñ, int], β: float32[ñ, int], row_e: float32[ñ]) -> float32[ñ, int]:
    @max
    def e(long, γ) -> float32[ñ, 1]:
        for δ in range(int):
            yield α[long, δ] * β[long, δ]
    def out(long, register) -> float32[ñ, int]:
        return e[long, 0] - α[long, register] + row_e[long]
    return out
"""
    kernel = LoopKernel(parse_loops(text))
    check(kernel, inputs(kernel.program, sizes := {"ñ": 5, "int": 40}), sizes)


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">=", "==", "!="])
def test_booleans_have_an_order(relation: str) -> None:
    program = parse_loops(f"""\
def chosen(a: bool[n], b: bool[n], x: float32[n]) -> float32[n]:
    def out(i0) -> float32[n]:
        return x[i0] if a[i0] {relation} b[i0] else 0.0
    return out
""")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2, 37).astype(bool) for _ in range(2))
    check(LoopKernel(program), [a, b, rng.standard_normal(37).astype(np.float32)], {"n": 37})


def test_a_vector_and_its_reductions_run_on_several_threads() -> None:
    kernel = LoopKernel(parse_loops(SOFTMAX))
    rng = np.random.default_rng(0)
    for n in (0, 1, 31, 33, 1000, 20_011, 600_001):
        check(kernel, [rng.standard_normal(n).astype(np.float32)], {"n": n})
    assert kernel.source.count("row_cells * s.column_cells, threads") == 6


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
def test_reductions_to_one_number(combiner: str, dtype: str) -> None:
    kernel = LoopKernel(reduced(combiner, dtype))
    rng = np.random.default_rng(0)
    for n, m in ((1, 5003), (5003, 1), (0, 7), (40, 1000), (33, 0)):
        # products of signs are exact
        x = rng.choice([-1.0, 1.0], (n, m)) if combiner == "prod" else rng.uniform(0, 1 / (n * m or 1), (n, m))
        check(kernel, [x.astype(ELEMENTS[dtype])], {"n": n, "m": m})
        if n * m:
            x[-1, -1] = np.nan
            (found,) = run(kernel, [x.astype(ELEMENTS[dtype])], {"n": n, "m": m})
            assert np.isnan(found).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_by_any_divisor(dtype: str) -> None:
    program = parse_loops(f"""\
def quotients(x: {dtype}[n, m], y: {dtype}[n]) -> {dtype}[n, m]:
    def out(i0, i1) -> {dtype}[n, m]:
        return x[i0, i1] / y[i0]
    return out
""")
    limits = np.finfo(dtype)
    least, most, middle = limits.smallest_subnormal, limits.max, limits.dtype.type(0.7)
    y = np.array([least, 3 * least, limits.tiny, -1e-5, middle, 7, most / 3, -most, np.inf, np.nan, 0, -0.0], dtype)
    row = np.array([0, least, -limits.tiny, 1e-5, middle, -3, most / 7, most, np.inf, np.nan], dtype)
    (found,) = run(LoopKernel(program), [np.tile(row, (len(y), 2)), y], {"n": len(y), "m": 2 * len(row)})
    with np.errstate(all="ignore"):
        wanted = np.tile(row, (len(y), 2)) / y[:, None]
    np.testing.assert_allclose(found, wanted, rtol=4 * float(limits.eps), atol=2 * float(least))
