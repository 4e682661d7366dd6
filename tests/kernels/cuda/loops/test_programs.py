"""Hand-made loop programs as Triton code, under several schedules and divisions, against their meaning in float64."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.programs import inputs, programs, reduced
from tests.kernels.cuda.loops.interpret import interpret
from tests.kernels.cuda.loops.variants import Parts, compare, variants

FEW = [{"b": 2, "n": 5, "m": 7, "k": 3}, {"b": 1, "n": 1, "m": 1, "k": 1}, {"b": 1, "n": 0, "m": 4, "k": 2}]
MANY = [{"b": 3, "n": 7, "m": 33, "k": 19}, {"b": 2, "n": 3, "m": 0, "k": 5}, {"b": 2, "n": 37, "m": 5, "k": 2}]
H200 = DEVICES["sm_90"]


def check(interpreter: Interpreter, program: LoopProgram, all_sizes: list[dict[str, int]], parts: int = 1) -> None:
    hints = {s: all_sizes[0][s] for s in program.symbols}
    versions = LoopVersions(program, H200, hints, Parts(parts) if parts > 1 else None)
    for sizes in all_sizes:
        own = {s: sizes[s] for s in program.symbols}
        arrays = inputs(program, sizes)
        try:
            wanted = run_loops(program, arrays, own, "float64")
        except InputError:
            # indices into nothing
            continue
        for emitted in variants(versions, own):
            compare(interpreter, emitted, arrays, own, wanted, lambda x: 1e-2 if x.dtype.itemsize == 2 else 2e-6)


@pytest.mark.parametrize("name", programs())
def test_few_sizes(interpreter: Interpreter, name: str) -> None:
    check(interpreter, programs()[name], FEW[:1] if name in ("integers", "softmax_columns", "extremes") else FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs())
def test_more_sizes(interpreter: Interpreter, name: str) -> None:
    check(interpreter, programs()[name], [*FEW, *MANY])


@pytest.mark.parametrize("name", ["extremes", "counts", "halves", "normalized_by_all"])
def test_parts_of_reductions(interpreter: Interpreter, name: str) -> None:
    check(interpreter, programs()[name], [FEW[0], MANY[1]], parts=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs())
def test_parts_of_all_reductions(interpreter: Interpreter, name: str) -> None:
    check(interpreter, programs()[name], [*FEW, *MANY], parts=4)


@pytest.mark.parametrize("combiner", ["max", "min"])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_nan_is_the_extreme(interpreter: Interpreter, combiner: str, parts: int) -> None:
    program = reduced(combiner, "float32")
    versions = LoopVersions(program, H200, {}, Parts(parts))
    x = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)
    x[3, 2] = np.nan
    for emitted in variants(versions, {"n": 5, "m": 7}):
        (found,), _ = interpret(interpreter, emitted, [x], {"n": 5, "m": 7})
        assert np.isnan(found).all()


@pytest.mark.parametrize("parts", [1, 4])
def test_places_of_extremes(interpreter: Interpreter, parts: int) -> None:
    program = programs()["extremes"]
    versions = LoopVersions(program, H200, {}, Parts(parts))
    inf, nan = np.inf, np.nan
    rows = [[1, 3, 3, 2, 1, 1], [2, nan, 5, nan, 0, 0], [-inf] * 6, [inf] * 6, [0.0, -0.0, 0, 0, 0, 0]]
    x = np.array(rows, np.float32)
    for emitted in variants(versions, {"n": 5, "m": 6}):
        found, _ = interpret(interpreter, emitted, [x], {"n": 5, "m": 6})
        for array, wanted in zip(found, (x.max(1), x.min(1), x.argmax(1), x.argmin(1)), strict=True):
            np.testing.assert_array_equal(array, wanted)


def test_integers_wrap_around_and_round_down(interpreter: Interpreter) -> None:
    program = parse_loops("""\
def extremes(x: int32[n], y: int32[n], z: int64[n], w: int64[n]) -> (int32[n], int32[n], int32[n], int64[n], int64[n], int64[n]):
    def quotient(i0) -> int32[n]:
        return x[i0] // y[i0]
    def rest(i0) -> int32[n]:
        return x[i0] % y[i0]
    def product(i0) -> int32[n]:
        return -x[i0] * y[i0] + 7
    def wide_quotient(i0) -> int64[n]:
        return z[i0] // w[i0]
    def wide_rest(i0) -> int64[n]:
        return z[i0] % w[i0]
    def wide_product(i0) -> int64[n]:
        return z[i0] * w[i0] - z[i0]
    return quotient, rest, product, wide_quotient, wide_rest, wide_product
""")
    values = [0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 65537]
    wide = [0, 1, -1, 7, -7, 2**63 - 1, -(2**63), 2**33 + 5]
    pairs = [(a, b) for a in range(8) for b in range(8)]
    arrays = [np.array([v[p[k]] for p in pairs], t) for v, t in ((values, "i4"), (wide, "i8")) for k in (0, 1)]
    versions = LoopVersions(program, H200, {})
    wanted = run_loops(program, arrays, {"n": 64})
    for emitted in variants(versions, {"n": 64}):
        compare(interpreter, emitted, arrays, {"n": 64}, wanted, lambda x: 0)


def test_conversions_between_all_types(interpreter: Interpreter) -> None:
    program = parse_loops("""\
def conversions(x: float32[n], y: float64[n], z: int64[n], b: bool[n]) -> (int32[n], int64[n], int32[n], int64[n], bool[n], \
int32[n], float32[n], float16[n], bfloat16[n], int64[n]):
    def a0(i0) -> int32[n]:
        return int32(x[i0])
    def a1(i0) -> int64[n]:
        return int64(x[i0])
    def a2(i0) -> int32[n]:
        return int32(y[i0])
    def a3(i0) -> int64[n]:
        return int64(y[i0])
    def a4(i0) -> bool[n]:
        return bool(x[i0])
    def a5(i0) -> int32[n]:
        return int32(z[i0])
    def a6(i0) -> float32[n]:
        return float32(z[i0]) + float32(b[i0])
    def a7(i0) -> float16[n]:
        return float16(y[i0])
    def a8(i0) -> bfloat16[n]:
        return bfloat16(y[i0])
    def a9(i0) -> int64[n]:
        return int64(b[i0]) + i0
    return a0, a1, a2, a3, a4, a5, a6, a7, a8, a9
""")
    x = [
        0,
        -0.0,
        0.7,
        -0.7,
        1.5,
        -2.5,
        2**31,
        -(2**31),
        2.0**63,
        -(2.0**63),
        1e30,
        np.nan,
        np.inf,
        -np.inf,
        2147483520.0,
    ]
    z = [0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**24 + 1, 5, 6, 7, 8, 9, 10, 11]
    arrays = [np.array(x, np.float32), np.array(x), np.array(z), np.arange(15) % 2 == 0]
    own = {"n": 15}
    with np.errstate(all="ignore"):
        wanted = run_loops(program, arrays, own)
    for emitted in variants(LoopVersions(program, H200, {}), own):
        compare(interpreter, emitted, arrays, own, wanted, lambda x: 0)


def test_a_chosen_branch_alone_reads(interpreter: Interpreter) -> None:
    # the other one would be out of range: as an index, and as what is checked
    program = parse_loops("""\
def chosen(x: float32[m], ids: int64[n], mask: bool[n]) -> float32[n]:
    def out(i0) -> float32[n]:
        return x[checked(ids[i0], m, 'gather, axis 0')] if mask[i0] else x[i0] if i0 < m else -1.0
    return out
""")
    ids, mask = np.array([9, -3, 2, 100, 0, -1, 7]), np.array([0, 1, 1, 0, 1, 1, 0], bool)
    arrays, own = [np.arange(3, dtype=np.float32), ids, mask], {"n": 7, "m": 3}
    for emitted in variants(LoopVersions(program, H200, {}), own):
        compare(interpreter, emitted, arrays, own, run_loops(program, arrays, own), lambda x: 0)


def test_an_index_of_an_index_is_checked(interpreter: Interpreter) -> None:
    program = parse_loops("""\
def twice(x: float32[m], ids: int64[k], at: int32[n]) -> float32[n]:
    def out(i0) -> float32[n]:
        return x[checked(ids[checked(int64(at[i0]), k, 'inner')], m, 'outer')]
    return out
""")
    own = {"n": 4, "m": 3, "k": 2}
    x, ids = np.arange(3, dtype=np.float32), np.array([-3, 2])
    for emitted in variants(LoopVersions(program, H200, {}), own):
        arrays = [x, ids, np.array([0, 1, -2, -1], np.int32)]
        compare(interpreter, emitted, arrays, own, run_loops(program, arrays, own), lambda x: 0)
        assert emitted.checks == ("inner", "outer")
        for at, ids_, words in (([0, 5, 0, 0], [0, 1], [5, 3, 0, 0]), ([0, 1, 0, 0], [1, -4], [0, 0, -4, 4])):
            _, failures = interpret(interpreter, emitted, [x, np.array(ids_), np.array(at, np.int32)], own)
            assert failures.tolist() == words


@pytest.mark.parametrize("extent", [0, 1, 8])
def test_dims_of_known_size(interpreter: Interpreter, extent: int) -> None:
    program = parse_loops(f"""\
def known(x: float32[n, {extent}]) -> (float32[n], int64[n], float32[n, {extent}]):
    @sum
    def total(i0) -> float32[n]:
        for r0 in range({extent}):
            yield x[i0, r0] + 1.0
    @argmax
    def place(i0) -> int64[n]:
        for r0 in range({extent}):
            yield x[i0, r0]
    def out(i0, i1) -> float32[n, {extent}]:
        return x[i0, i1] - total[i0]
    return total, place, out
""")
    own = {"n": 3}
    x = np.random.default_rng(0).standard_normal((3, extent)).astype(np.float32)
    for emitted in variants(LoopVersions(program, H200, own), own):
        compare(interpreter, emitted, [x], own, run_loops(program, [x], own, "float64"), lambda x: 2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constants(interpreter: Interpreter, dtype: str) -> None:
    program = parse_loops(f"""\
def constants(x: {dtype}[n], k: int64[n], b: bool[n]) -> ({dtype}[n], {dtype}[n], {dtype}[n], int64[n], bool[n]):
    def tenth(i0) -> {dtype}[n]:
        return x[i0] * 0.1 - -1e-07
    def huge(i0) -> {dtype}[n]:
        return min(x[i0] * 0.0 + 1e+500, inf) - -inf
    def none(i0) -> {dtype}[n]:
        return {dtype}(nan) if b[i0] else {dtype}(-2.5)
    def least(i0) -> int64[n]:
        return k[i0] + -9223372036854775808
    def always(i0) -> bool[n]:
        return b[i0] == True
    return tenth, huge, none, least, always
""")
    arrays = [np.array([1, -3, 7], dtype), np.array([0, 5, -1]), np.array([True, False, True])]
    own = {"n": 3}
    with np.errstate(all="ignore"):
        wanted = run_loops(program, arrays, own)
    for emitted in variants(LoopVersions(program, H200, own), own):
        compare(interpreter, emitted, arrays, own, wanted, lambda x: 4 * float(np.finfo(x.dtype).eps))
