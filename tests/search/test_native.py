"""The loop of extraction in C against the one in Python: the same ways to compute the same values, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from benchmarks.programs import PROGRAMS
from mirage.ir.axes import AxisProgram, to_axes
from mirage.search import extract, labels, native
from mirage.search.closure import Value
from mirage.search.extract import Extractor
from mirage.search.generate import generate
from mirage.search.labels import Finished, Problem
from mirage.search.native import NativeLabels
from mirage.search.options import SearchOptions
from mirage.search.space import Space
from mirage.search.steps import finish
from tests.programs import SMALL, axes, search, sizes, space
from tests.random_programs import random_program
from tests.sampled import thinned

#: labels of a problem that Python looks at too
MOST_LABELS = 500


@pytest.fixture(scope="module")
def compiled() -> NativeLabels:
    found = native.native_labels(wait=True)
    assert found is not None, "there is a C compiler where the tests run"
    return found


def problems(s: Space) -> Iterator[tuple[Problem, native.NativeDerivations]]:
    """What is extracted of a space: every tensor on every grid."""
    for extractor, closure in zip(s.composer().extractors, s.tensors.closures, strict=True):
        for t in s.tensors.all:
            for k, v in t.producers:
                if s.tensors.closures[k] is closure:
                    yield from extracted(extractor, v)


def extracted(e: Extractor, v: Value) -> Iterator[tuple[Problem, native.NativeDerivations]]:
    shared = [a for a in v.axes if a not in e.plan.loops and a not in e._joined]
    for parallel in {tuple(shared), tuple(a for a in shared if a not in e._reduced)}:
        grid = e._grid(parallel)
        yield Problem(grid.derivations, e._bitset([v]), grid.written([v]), e.limit, e.max_inputs), grid.arrays


def rows(found: list[Finished]) -> list[tuple[object, ...]]:
    return [(f.leaves, f.exps, f.cost.tolist(), f.foreign, f.derivations) for f in found]


def compared(compiled: NativeLabels, s: Space) -> int:
    """How many problems were compared."""
    count = 0
    for problem, arrays in problems(s):
        found, looked = finish(compiled.finished(problem, arrays))
        if looked <= MOST_LABELS:
            again, looked_again = finish(labels.finished(problem))
            assert rows(found) == rows(again) and looked == looked_again
            count += 1
    return count


@pytest.mark.parametrize("name", thinned([*PROGRAMS, *(n for n in SMALL if n != "self division")]))
def test_measured_and_small_programs(compiled: NativeLabels, name: str) -> None:
    assert compared(compiled, space(name))


@pytest.mark.parametrize("name", ["gqa_decode", "lora", "softmax"])
def test_what_takes_too_long_is_left_out(compiled: NativeLabels, name: str) -> None:
    fewer = 0
    for problem, arrays in problems(space(name)):
        every, looked = finish(compiled.finished(problem, arrays))
        if not every or looked > MOST_LABELS:
            continue
        times = [sum(problem.derivations.times[d] for d in f.derivations) for f in every]
        bounded = replace(problem, most=1.001 * min(times))
        found, looked = finish(compiled.finished(bounded, arrays))
        again, looked_again = finish(labels.finished(bounded))
        assert rows(found) == rows(again) and looked == looked_again
        assert rows(found) == [row for row, time in zip(rows(every), times, strict=True) if time <= bounded.most]
        fewer += len(found) < len(every)
    assert fewer


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(compiled: NativeLabels, seed: int) -> None:
    program: AxisProgram = to_axes(random_program(Random(seed), 2 + seed % 3))
    s = Space(program, dict.fromkeys(program.axes, 16), SearchOptions(max_kernels=1, max_values=10))
    finish(s.close())
    compared(compiled, s)


def test_steps_do_not_change_it(compiled: NativeLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, arrays = max(problems(space("gqa_decode")), key=lambda pair: finish(compiled.finished(*pair))[1])
    whole, looked = finish(compiled.finished(problem, arrays))
    monkeypatch.setattr(native, "STEP", 1)
    steps = compiled.finished(problem, arrays)
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            assert rows(end.value[0]) == rows(whole) and end.value[1] == looked
            break
    assert count == looked - 1


def test_a_step_is_bounded_by_what_it_compares_too(compiled: NativeLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label of a value with many derivations, in long fronts, is more work than one of another."""
    problem, arrays = max(problems(space("gqa_decode")), key=lambda pair: finish(compiled.finished(*pair))[1])
    _, looked = finish(compiled.finished(problem, arrays))
    monkeypatch.setattr(native, "STEP", looked)
    assert sum(1 for _ in compiled.finished(problem, arrays)) > 1


def test_it_may_be_left(compiled: NativeLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "STEP", 1)
    freed: list[int] = []
    free = compiled._free

    def noted(state: int) -> None:
        freed.append(state)
        free(state)

    monkeypatch.setattr(compiled, "_free", noted)
    steps = compiled.finished(*next(problems(space("gqa_decode"))))
    next(steps)
    steps.close()
    assert len(freed) == 1


def test_more_values_than_words_have_bits(compiled: NativeLabels) -> None:
    """Sets of values are as wide as the closure is large."""
    s = space("qknorm_attention")
    assert max(len(c.values) for c in s.tensors.closures) > 128


@pytest.mark.parametrize("name", ["gqa_decode", "lora"])
def test_a_search_without_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(name)
    monkeypatch.setattr(extract, "native_labels", lambda: None)
    again = generate(axes(name), sizes(name))
    assert [str(g) for g in again.graphs] == [str(g) for g in whole.graphs]
    assert again.costs == whole.costs


def test_it_takes_over_as_soon_as_it_is_there(compiled: NativeLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search("gqa_decode")
    asked = 0

    def later() -> NativeLabels | None:
        nonlocal asked
        asked += 1
        return compiled if asked > 20 and asked % 2 else None

    monkeypatch.setattr(extract, "native_labels", later)
    monkeypatch.setattr(labels, "STEP", 4)
    again = generate(axes("gqa_decode"), sizes("gqa_decode"))
    assert [str(g) for g in again.graphs] == [str(g) for g in whole.graphs]
    assert asked > 20


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(native, "_native", native._Native())
    assert native.native_labels(wait=True) is None
