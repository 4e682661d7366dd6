"""The race of large programs against partitions by hand: every version computes the program, and is told of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.large import Llama
from benchmarks.search import by_hand
from benchmarks.search.by_hand import LIBRARY, NUMPY, WHOLE
from mirage.errors import InputError, VerificationError
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import program_is_stable
from mirage.search.large import LargeSearch
from mirage.search.options import SearchOptions
from mirage.search.stream import Search

LAYER = Llama(width=8, heads=4, kv_heads=2, head=4, hidden=12)
PROGRAMS = {name: replace(f, sizes={"row": f.sizes["row"]}) for name, f in LAYER.programs().items()}


def test_every_version_is_in_the_race() -> None:
    said: list[str] = []
    rows = list(by_hand.measure(["mlp_block"], [0.1], 0.01, said.append, PROGRAMS, LAYER.by_hand()))
    partitions = LAYER.by_hand()["mlp_block"]
    assert [r.version for r in rows] == [WHOLE, *partitions, LIBRARY, NUMPY]
    assert [r.parts for r in rows] == [1, *map(len, partitions.values()), 1, 1]
    assert rows[0].ratio == 1.0 and all(r.modelled_us > 0 and r.min_us > 0 for r in rows)
    assert said[-1].startswith("mlp_block, {'b': 1, 's': 1}, 0.1 s: whole 1.00, ")
    table = by_hand.by_hand_table(rows)
    assert [cells[3] for cells in table.rows] == [r.version for r in rows]


def test_a_wrong_version_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    run = by_hand._Answer.run
    monkeypatch.setattr(by_hand._Answer, "run", lambda self, arrays: run(self, arrays) + np.float32(1))
    with pytest.raises(VerificationError, match="whole differs from the library"):
        list(by_hand.measure(["mlp_block"], [0.1], 0.01, programs=PROGRAMS, partitions=LAYER.by_hand()))


def test_names() -> None:
    with pytest.raises(InputError, match="no large program is named mlp; choose from mlp_block"):
        list(by_hand.measure(["mlp"]))


@pytest.mark.parametrize("name", ["mlp_block", "attention_block"])
def test_the_whole_is_modelled_to_be_as_fast_as_any_partition(name: str) -> None:
    """With as many steps for the whole as for all parts together."""
    layer = Llama(width=256, heads=8, kv_heads=2, head=32, hidden=704)
    sizes, steps = {"b": 1, "s": 128}, 600
    whole = LargeSearch(to_axes(layer.programs()[name].trace()), sizes, SearchOptions(steps=steps))
    best = min(found.cost for found in whole if found.graphs)
    for about, parts in layer.by_hand()[name].items():
        costs = []
        for part in parts:
            program = part.program
            search = Search(to_axes(program), {s: sizes[s] for s in program.symbols()}, safe=program_is_stable(program))
            while not search.done and search.steps < steps // len(parts):
                search.advance(0.0)
            costs.append(min(f.cost for f in search.found))
        assert best <= sum(costs), about
