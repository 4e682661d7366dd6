"""How loop programs become kernels, and kernels blocks: by dims, reads and sizes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mirage.ir.dim_values import evaluate
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.simplify import simplify_program
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.access import merged
from mirage.kernels.cuda.loops.ranges import narrow
from mirage.kernels.cuda.loops.schedule import HintedDivision, LoopSchedule
from mirage.kernels.cuda.loops.stitch import stitch
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.programs import SOFTMAX, programs, reduced

H200 = DEVICES["sm_90"]
BIG = {"b": 8, "n": 4096, "m": 4096, "k": 512}

RESIDUAL_NORM = """\
def residual_norm(x: float16[n, m], y: float16[n, m], w: float16[m]) -> (float16[n, m], float16[n, m]):
    def h(i0, i1) -> float16[n, m]:
        return x[i0, i1] + y[i0, i1]
    @sum
    def squares(i0) -> float32[n]:
        for r0 in range(m):
            yield h[i0, r0] * h[i0, r0]
    def scale(i0) -> float32[n]:
        return 1.0 / sqrt(squares[i0] / float32(m) + 1e-05)
    def out(i0, i1) -> float16[n, m]:
        return h[i0, i1] * scale[i0] * w[i1]
    return h, out
"""


def versions(name: str, **hints: int) -> LoopVersions:
    return LoopVersions(programs()[name], H200, hints or BIG)


def stages(v: LoopVersions) -> list[list[str]]:
    return [[m.name for m in k.members] for k in v.kernels]


def schedules(v: LoopVersions, sizes: Mapping[str, int] | None = None) -> tuple[LoopSchedule, ...]:
    return v.schedules(sizes or v.hints)


def test_what_shares_rows_is_one_kernel() -> None:
    assert stages(versions("masked_softmax")) == [["greatest", "total", "out"]]
    assert stages(versions("cast_layer_norm")) == [["total", "squares", "out"]]
    assert stages(versions("extremes")) == [["high", "low", "where_high", "where_low"]]
    # rows are two of the three dims, whatever their order
    assert stages(versions("softmax_columns")) == [["greatest", "total", "out"]]
    assert [d.name for _, d in versions("softmax_columns").kernels[0].rows] == ["n", "k"]


def test_an_elementwise_result_is_written_beside_what_reduces_it() -> None:
    v = LoopVersions(parse_loops(RESIDUAL_NORM), H200, BIG)
    assert stages(v) == [["h", "squares", "scale", "out"]] or stages(v) == [["h", "squares", "out"]]
    assert v.emitted(BIG).source.count("tl.load(t_x") == 1


def test_what_needs_all_of_another_stage_is_a_kernel_of_its_own() -> None:
    v = versions("normalized_by_all", n=64, m=1000)
    assert stages(v) == [["total_parts"], ["total"], ["out"]]
    # the total is a result
    assert v.workspace == 1
    # of few elements, one program does not wait for others
    assert stages(versions("normalized_by_all", n=64, m=100)) == [["total", "out"]]
    assert stages(versions("merged_heads")) == [["total"], ["out"]]
    assert versions("merged_heads").workspace == 1


def test_few_long_rows_are_divided() -> None:
    few = {"n": 4, "m": 131072}
    v = versions("masked_softmax", **few)
    assert stages(v) == [["greatest_parts"], ["greatest"], ["total_parts"], ["total"], ["out"]]
    assert [k.parts for k in v.kernels] == [32, 1, 32, 1, 1]
    # a part is of blocks, and there are as many programs as two per multiprocessor
    assert [evaluate(k.grid[0], few) for k in v.emitted(few).kernels][:2] == [4 * 32, 4]
    assert stages(versions("masked_softmax", n=4096, m=131072)) == [["greatest", "total", "out"]]


@pytest.mark.parametrize(("n", "parts"), [(1 << 10, 1), (1 << 14, 4), (1 << 30, 256)])
def test_parts_of_a_number(n: int, parts: int) -> None:
    (first, *_) = LoopVersions(reduced("sum", "float32", "n", "1"), H200, {"n": n}).kernels
    assert first.parts == parts


def test_programs_of_many_rows_count_when_columns_are_divided() -> None:
    # 64 rows each: 64 programs without parts
    v = versions("columns", n=4096, m=4096)
    assert [k.parts for k in v.kernels] == [8, 1]
    assert [k.parts for k in versions("columns", n=4096, m=1 << 16).kernels] == [1]


def test_a_vector_and_its_reductions() -> None:
    v = LoopVersions(parse_loops(SOFTMAX), H200, {"n": 1000})
    assert stages(v) == [["greatest", "total", "out"]] and schedules(v)[0].whole
    assert len(LoopVersions(parse_loops(SOFTMAX), H200, {"n": 1 << 20}).kernels) == 5


def test_loops_that_walk_as_one_are_merged() -> None:
    def groups(name: str) -> list[tuple[tuple[str, ...], ...]]:
        v = versions(name)
        return [g for k in v.kernels for g in merged(k, {t.name: t for t in v.tensors})]

    assert groups("doubled") == [(("g0", "g1"),)]
    # the mask is by two of the loops
    assert groups("causal") == [(("g0",), ("g1",), ("g2",))]
    assert groups("embedding") == [(("g0", "g1"), ("g2",))]
    assert groups("masked_softmax") == [(("g0",),), (("c0_0",),)]
    assert groups("transposed") == [(("g0",), ("g1",))]


def test_blocks() -> None:
    (s,) = schedules(versions("doubled"))
    assert (s.rows, s.num_warps) == (1024, 4)
    (s,) = schedules(versions("masked_softmax"))
    assert s.whole and s.columns == (4096,) and s.rows == 1
    # short rows: several in one program
    (s,) = schedules(versions("masked_softmax"), {"n": 4096, "m": 64})
    assert s.whole and (s.rows, s.columns) == (16, (64,))
    # long rows: in blocks
    (s,) = schedules(versions("masked_softmax"), {"n": 4096, "m": 100_000})
    assert not s.whole and (s.columns, s.num_warps) == ((4096,), 16)
    # neighbours are rows: tiles along them
    (s, *_) = schedules(versions("columns", n=512, m=1 << 16))
    assert (s.rows, s.columns) == (64, (16,)) and not s.whole
    (s,) = schedules(versions("softmax_columns", n=64, m=128, k=512))
    assert (s.rows, s.columns, s.num_warps) == (32, (128,), 16) and s.whole
    (s,) = schedules(versions("transposed"))
    assert s.second == 0 and s.seconds == s.rows == 64
    (s,) = schedules(versions("rotary", b=8, n=1024, m=64))
    assert s.second == 1 and s.seconds * s.rows == 1024
    # few elements: more programs rather than large ones
    (s,) = schedules(versions("doubled"), {"n": 16, "m": 1024})
    assert s.rows == 128 and s.num_warps == 1


@pytest.mark.parametrize("name", programs())
def test_sizes_of_0_and_1_have_schedules(name: str) -> None:
    v = versions(name)
    for size in (0, 1, 2):
        for s in v.schedules(dict.fromkeys(v.program.symbols, size)):
            assert s.rows >= 1 and s.num_warps in (1, 2, 4, 8, 16)


def test_sizes_that_a_program_cannot_have_are_no_hints() -> None:
    program = parse_loops("""\
def cut(x: float32[n]) -> float32[n - 3]:
    def out(i0) -> float32[n - 3]:
        return x[i0 + 3]
    return out
""")
    assert LoopVersions(program, H200, {"n": 1}).emitted({"n": 1}).kernels


def test_32_bit_indices_where_they_suffice() -> None:
    v = versions("doubled")
    for n, wide in ((1 << 10, False), (1 << 20, False), (1 << 21, True), (1 << 40, True)):
        assert v.emitted({"n": n, "m": 1 << 10}).index == ("i64" if wide else "i32")
    # what is computed with an index may be larger than all tensors
    program = parse_loops("""\
def steps(x: float32[n], *, k) -> int64[n]:
    def out(i0) -> int64[n]:
        return i0 * k - 5
    return out
""")
    v = LoopVersions(program, H200, {})
    kernels = stitch(simplify_program(program), HintedDivision(program, H200, {"n": 4, "k": 4}))
    assert narrow(kernels, v.tensors, {"n": 1000, "k": 1000})
    assert not narrow(kernels, v.tensors, {"n": 1000, "k": 1 << 22})
