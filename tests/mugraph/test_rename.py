"""What was found for one program serves every program of the same structure."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from mirage.errors import GraphError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.ir.canonical import canonical_key
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.rename import rename_mugraph, rename_schedule
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.mugraph.validate import validate
from tests.ir.programs import rewritten
from tests.mugraph.graphs import CASES, flash_attention, gated


@pytest.mark.parametrize("name", CASES)
def test_a_stored_graph_computes_the_same_under_other_names(name: str) -> None:
    case = CASES[name]()
    p = to_axes(case.program)
    key = canonical_key(p)
    stored = rename_mugraph(case.graph, key.renaming, key.program)
    validate(stored)
    stored_schedule = rename_schedule(case.schedule, key.renaming.axes)

    other, given = rewritten(p, Random(1))
    found = canonical_key(other)
    assert found.text == key.text
    back = found.renaming.inverse()
    graph = rename_mugraph(stored, back, other)
    validate(graph)
    assert graph.inputs == other.inputs and graph.outputs == other.outputs and dict(graph.axes) == other.axes

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.bind(case.sizes)) for t in case.program.input_types]
    want = run_mugraph(case.graph, case.schedule, inputs, FloatArithmetic(case.sizes))
    sizes = {given.symbols[s]: n for s, n in case.sizes.items()}
    moved = [x for _, x in sorted(zip(given.inputs, inputs, strict=True), key=lambda pair: pair[0])]
    got = run_mugraph(graph, rename_schedule(stored_schedule, back.axes), moved, FloatArithmetic(sizes))
    assert given.then(found.renaming) == key.renaming
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_there_and_back_is_the_same_graph() -> None:
    graph = flash_attention().graph
    p = to_axes(flash_attention().program)
    key = canonical_key(p)
    there = rename_mugraph(graph, key.renaming, key.program)
    back = rename_mugraph(there, key.renaming.inverse(), p)
    assert back.kernel == graph.kernel and back.axes == graph.axes and back.inputs == graph.inputs


def test_a_graph_of_another_program_is_refused() -> None:
    key = canonical_key(to_axes(gated().program))
    other, _ = rewritten(to_axes(gated().program), Random(0))
    with pytest.raises(GraphError, match="are not those of program other"):
        rename_mugraph(gated().graph, key.renaming, other)


def test_packed_inputs_keep_their_operands_and_rename_their_axes() -> None:
    schedule = Schedule((KernelSchedule((("m", 4), ("n", 8)), packed=((1, "n"), (2, "n"))),))
    renamed = rename_schedule(schedule, {"m": "a0", "n": "a1"})
    assert renamed == Schedule((KernelSchedule((("a0", 4), ("a1", 8)), packed=((1, "a1"), (2, "a1"))),))
    assert rename_schedule(renamed, {"a0": "m", "a1": "n"}) == schedule
