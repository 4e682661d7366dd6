"""Reductions to one number in parts, which threads share."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.nests import nests
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.loops.share import shared_reductions
from tests.ir.loops.programs import SOFTMAX, programs, reduced


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
def test_parts_make_the_whole(combiner: str, dtype: str) -> None:
    program = reduced(combiner, dtype)
    shared = shared_reductions(program)
    assert len(shared.stages) == 2 and shared.outputs == program.outputs
    assert shared.output_types == program.output_types and shared.symbols == program.symbols
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (31, 2), (32, 3), (33, 1), (100, 2), (0, 3), (3, 0)):
        x = rng.uniform(0.9, 1.1, (n, m))
        wanted, found = (run_loops(p, [x], {"n": n, "m": m}, "float64")[0] for p in (program, shared))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_loop_of_unknown_extent_is_shared_else_the_longest() -> None:
    unknown = shared_reductions(reduced("sum", "float32", n="8")).stages[0][1]
    assert [str(d) for _, d in unknown.reduce] == ["8", "(m + 31) // 32"]
    known = shared_reductions(reduced("sum", "float32", n="8", m="64000")).stages[0][1]
    assert [int(d) for _, d in known.reduce] == [8, 2000]


@pytest.mark.parametrize(
    "program",
    [
        # short
        reduced("sum", "float32", n="8", m="1024"),
        # C compilers vectorize the plain loop
        reduced("sum", "int64"),
        # rows enough to share
        programs()["masked_softmax"],
        programs()["doubles"],
    ],
    ids=lambda p: p.name,
)
def test_others_stay_as_they_are(program: LoopProgram) -> None:
    assert shared_reductions(program) is program


def test_a_vector_leaves_the_nest_of_its_reductions() -> None:
    program = parse_loops(SOFTMAX)
    assert len(nests(program)) == 1
    shared = shared_reductions(program)
    found = nests(shared, vectors=False)
    assert [n.stages for n in found] == [(n,) for n, _ in shared.stages]


def test_names_are_its_own() -> None:
    program = parse_loops("""\
def f(part: float32[out_parts]) -> float32[()]:
    @sum
    def out() -> float32[()]:
        for r0 in range(out_parts):
            yield part[r0]
    return out
""")
    shared = shared_reductions(program)
    assert [n for n, _ in shared.stages] == ["out_parts_", "out"]
    assert shared.stages[0][1].loops == ("part_",)
