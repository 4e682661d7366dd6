"""Reductions of windows, with what is behind the edges of a tensor: side by side, as vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cpu.loops.emit import emit
from mirage.kernels.cpu.loops.kernel import LoopKernel


def pooling(
    combiner: str, kernel: tuple[int, int], steps: tuple[int, int], gaps: tuple[int, int], low: tuple[int, int], blank: str
) -> LoopProgram:
    """Windows of x[b, n, m], as many places as p and q, with blanks around x."""
    rows = f"i1 * {steps[0]} + r0 * {gaps[0]} - {low[0]}"
    columns = f"i2 * {steps[1]} + r1 * {gaps[1]} - {low[1]}"
    return parse_loops(f"""\
def pooled(x: float32[b, n, m], *, p, q) -> float32[b, p, q]:
    @{combiner}
    def out(i0, i1, i2) -> float32[b, p, q]:
        for r0 in range({kernel[0]}):
            for r1 in range({kernel[1]}):
                t0 = {rows}
                t1 = {columns}
                yield x[i0, t0, t1] if t0 >= 0 and t0 < n and t1 >= 0 and t1 < m else {blank}
    return out
""")


def check(program: LoopProgram, sizes: dict[str, int], seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((sizes["b"], sizes["n"], sizes["m"]), np.float32)
    x.flat[seed % max(x.size, 1) :: 97] = np.nan
    found = np.empty((sizes["b"], sizes["p"], sizes["q"]), np.float32)
    LoopKernel(program)([x], sizes, [found])
    (wanted,) = run_loops(program, [x], sizes, "float64")
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5, err_msg=f"{program.to_text()} {sizes}")


@pytest.mark.parametrize("seed", range(24))
def test_windows_of_any_kind(seed: int) -> None:
    draw = np.random.default_rng(seed)

    def pair(low: int, high: int) -> tuple[int, int]:
        return int(draw.integers(low, high)), int(draw.integers(low, high))

    kernel, steps, gaps = pair(1, 6), pair(1, 5), pair(1, 3)
    combiner, blank = [("max", "-inf"), ("min", "inf"), ("sum", "0.0"), ("max", "-3.0")][int(draw.integers(4))]
    program = pooling(combiner, kernel, steps, gaps, pair(0, 4), blank)
    for _ in range(3):
        # places beyond the tensor on both sides, lines shorter and longer than vectors
        sizes: dict[str, Any] = {"b": int(draw.integers(1, 3)), "n": int(draw.integers(1, 9)), "m": int(draw.integers(1, 150))}
        sizes["p"] = int(draw.integers(1, 7))
        sizes["q"] = int(draw.integers(1, sizes["m"] // steps[1] + 5))
        check(program, sizes, seed)


def test_vectors_of_places_read_every_other_element() -> None:
    cell = emit(pooling("max", (3, 3), (2, 2), (1, 1), (1, 1), "-inf")).text.split("static void cell_0")[1]
    assert "mi_load_strided(" in cell and "mi_hmaximum" not in cell


def test_sums_of_long_or_single_rows_stay_vectors_of_their_elements() -> None:
    for kernel, shape in (((2, 9), "b, p, q"), ((1, 5), "b, p, 3")):
        text = pooling("sum", kernel, (1, 1), (1, 1), (0, 0), "0.0").to_text().replace("b, p, q", shape)
        assert "mi_hsum" in emit(parse_loops(text.replace(", q)", ")") if "3" in shape else text)).text
