"""What a search for safe graphs refuses before it is made, against the analysis of whole graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from benchmarks.programs import PROGRAMS
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.degree import SafetyCheck, analyze, program_is_stable
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.search.assemble import Assembler
from mirage.search.compose import Kernel
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.search.space import Space
from mirage.search.steps import finish
from mirage.verify.safety import offered
from tests.programs import axes, program, sizes, space
from tests.random_programs import random_program
from tests.sampled import thinned

#: graphs of a program that are compared
MOST = 60


def compared(s: Space, rng: Random) -> tuple[int, int]:
    """How many graphs are safe, and how many are not, by both."""
    check, assembler, outputs = SafetyCheck(), Assembler(s.program), s.tensors.outputs()
    counts = [0, 0]

    def accept(kernels: list[Kernel]) -> Sequence[MuGraph]:
        graph = assembler.graph(kernels, outputs)
        for g in {id(g): g for g in (graph, with_predefined(graph))}.values():
            safe = check.safe(g)
            assert safe == analyze(g).safe, g
            counts[safe] += 1
        # what is refused dominates nothing, so that others are found
        return [graph] if check.safe(graph) and rng.random() < 0.5 else []

    for _ in s.composer().compose(1, 3, accept):
        if sum(counts) >= MOST:
            break
    return counts[1], counts[0]


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_measured_programs(name: str) -> None:
    safe, unsafe = compared(space(name, max_kernels=3), Random(0))
    assert safe
    if name in ("gqa_decode", "qknorm_attention"):
        assert unsafe


@pytest.mark.parametrize("ten", thinned(range(4)))
def test_random_programs(ten: int) -> None:
    counts = [0, 0]
    for seed in range(10 * ten, 10 * ten + 10):
        p = to_axes(random_program(Random(seed), 2 + seed % 3))
        s = Space(p, dict.fromkeys(p.axes, 16), SearchOptions(max_kernels=2, max_values=10))
        finish(s.close())
        for k, n in enumerate(compared(s, Random(seed))):
            counts[k] += n
    assert sum(counts)


@pytest.mark.parametrize("name", ["gqa_decode", "mha_decode", "softmax", "softmax matmul", "neg", "two outputs"])
def test_all_that_may_be_offered_is_found(name: str) -> None:
    given: Program = program(name)
    every = generate(axes(name), sizes(name), accept=partial(offered, given))
    safe = generate(axes(name), sizes(name), safe=program_is_stable(given))
    assert [str(g) for g in safe.graphs] == [str(g) for g in every.graphs]
    assert safe.graphs


def test_an_unstable_program_has_graphs_that_are_not_safe() -> None:
    assert not program_is_stable(program("neg"))
    assert not generate(axes("neg"), sizes("neg"), safe=True).graphs
    assert generate(axes("neg"), sizes("neg")).graphs
