"""Reads of loop programs: shown to be within their tensors, needed of the sizes, or refused."""

from __future__ import annotations

import contextlib
import random
import re

import pytest

from mirage.compiler.loop_reads import with_reads_within
from mirage.errors import InputError, LoopError, MirageError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from tests.ir.loops.programs import TEXTS, inputs
from tests.ir.loops.random_programs import RandomProgram


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t[4 : t.index("(")])
def test_reads_that_are_within_are_shown_to_be(text: str) -> None:
    program = parse_loops(text)
    assert with_reads_within(program) == program


@pytest.mark.parametrize("seed", range(20))
def test_reads_of_fused_operators_are_shown_to_be_within(seed: int) -> None:
    program = RandomProgram(seed).program
    assert with_reads_within(program) == program


def one(body: str, parameters: str = "x: float32[n, m], ids: int64[n]", dims: str = "", shape: str = "n, m") -> LoopProgram:
    """The program of one stage over loops i0 and i1."""
    extra = f", *, {dims}" if dims else ""
    head = f"def f({parameters}{extra}) -> float32[{shape}]:\n    def out(i0, i1) -> float32[{shape}]:\n"
    return parse_loops(f"{head}        return {body}\n    return out\n")


@pytest.mark.parametrize(
    "body",
    [
        "x[i0 + 100, i1]",
        "x[i0 - 4, i1]",
        "x[i0 + 1000000000000, i1]",
        "x[-1, i1]",
        "x[n, i1]",
        "x[i0, i1 + m]",
        # the conditions do not keep it within
        "x[i0, i1 - 1] if i1 >= 0 else x[i0, i1]",
        "x[i0, i1 + 1] if i1 < m else x[i0, i1]",
        "x[i0, i1 + 1] if not i1 + 1 >= m and not i1 < 3 or i1 > 7 else x[i0, i1]",
        # data keeps nothing within
        "x[i0, i1 + 1] if ids[i0] < 3 else x[i0, i1]",
        "x[checked(ids[i0], n, 'ids') + 1, i1]",
        "x[checked(ids[i0], m, 'ids'), i1] if n > m else x[i0, i1 * i1]",
        "x[i0 // 0, i1]",
        "x[i0 * 4611686018427387904, i1]",
    ],
)
def test_reads_outside_are_refused_or_needed(body: str) -> None:
    try:
        program = with_reads_within(one(body))
    except LoopError as e:
        assert re.search(r"stage out reads within dim [01] of x: its index", str(e))
    else:
        with pytest.raises(InputError, match=r"needs .*stage out reads within dim"):
            program.check({"n": 5, "m": 5})


@pytest.mark.parametrize(
    "body",
    [
        "x[i0, i1 - 1] if i1 >= 1 else x[i0, i1]",
        "x[i0, i1 + 1] if i1 + 1 < m else x[i0, m - 1]",
        "x[i0, i1 + 1] if not (i1 + 1 >= m or i1 < 3) else x[i0, 0]",
        "x[checked(ids[i0], n, 'ids'), i1]",
        "x[(i0 * m + i1) // m, (i0 * m + i1) % m]",
        "x[n - 1 - i0, max(i1 - 1, 0)]",
    ],
)
def test_conditions_and_checks_keep_reads_within(body: str) -> None:
    program = one(body)
    assert with_reads_within(program) == program


def test_sizes_have_to_be_as_reads_need_them() -> None:
    program = with_reads_within(one("x[i0 + k, i1]", dims="k", shape="j, m", parameters="x: float32[n, m], y: float32[j]"))
    program.check({"n": 7, "m": 2, "j": 4, "k": 3})
    with pytest.raises(InputError, match=r"f: needs j \+ k <= n \(stage out reads within dim 0 of x\), but 8 > 7 at j=4, k=4"):
        program.check({"n": 7, "m": 2, "j": 4, "k": 4})


def test_choices_that_follow_one_another_are_not_all_told_apart() -> None:
    lines = ["t0 = x[i0, i1]"]
    lines += [f"t{k + 1} = t{k} if i0 < {k} else t{k} * 2.0" for k in range(60)]
    text = "\n".join(f"        {line}" for line in [*lines, "return t60"])
    head = "def f(x: float32[n, m]) -> float32[n, m]:\n    def out(i0, i1) -> float32[n, m]:\n"
    program = parse_loops(f"{head}{text}\n    return out\n")
    assert with_reads_within(program) == program


@pytest.mark.parametrize("seed", range(150))
def test_what_is_not_refused_reads_nothing_outside(seed: int) -> None:
    """Whatever numbers are in a text: at sizes that fulfil the needs, the interpreter finds no index out of range."""
    rng = random.Random(f"reads {seed}")
    text = rng.choice(TEXTS)
    numbers = [m for m in re.finditer(r"\b(?:i\d|r\d|m|n|k|\d+)\b", text) if m.start() > text.index("def", 4)]
    number = rng.choice(numbers)
    old = number.group()
    new = rng.choice(["0", "1", "2", "5", f"({old} + 1)", f"({old} - 1)", f"2 * {old}", "i0", "m"])
    try:
        program = with_reads_within(parse_loops(text[: number.start()] + new + text[number.end() :]))
    except MirageError:
        return
    for size in (1, 2, 6):
        sizes = {s: size + k for k, s in enumerate(sorted({*program.symbols, "k", "m"}))}
        try:
            program.check(sizes)
        except InputError:
            continue
        # indices in the data are out of range at times
        with contextlib.suppress(InputError):
            run_loops(program, inputs(program, sizes), sizes)
