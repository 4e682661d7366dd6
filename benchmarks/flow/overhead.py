"""What the way from PyTorch to compiled code costs: a call of ATen's own within a program, a call of a small graph, an import."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.flow.exported import exported, ours
from benchmarks.peers.peers import inference
from benchmarks.tables import Table
from benchmarks.timing import each
from mirage.frontends.aten.importer import import_graph

#: calls of which the time is taken together, and how often
_CALLS, _ROUNDS = 200, 30
#: operators of the graphs that are imported
NODES = (1_000, 3_000, 10_000)
#: calls of ATen's own in a row
_FALLBACKS = 50


@dataclass(frozen=True)
class OverheadRow:
    """`ours` and what it is compared with, `other`, in microseconds of the fastest calls; imports of `count` nodes in seconds."""

    what: str
    unit: str
    count: int
    ours: float
    other: float
    compared_with: str


class _Chain(nn.Module):  # type: ignore[misc]
    """Operators in a row; `step` is one of them."""

    def __init__(self, step: Callable[[Any], Any], count: int) -> None:
        super().__init__()
        self.step, self.count = step, count

    def forward(self, x: Any) -> Any:
        for _ in range(self.count):
            x = self.step(x)
        return x


class _Small(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.relu(x) + 1


def measure(say: Callable[[str], None]) -> list[OverheadRow]:
    """The rows: a fallback, a small graph, and imports of growing graphs."""
    rows = [_small(), _fallback()]
    for count in NODES:
        rows.append(_import(count))
        say(f"{count} nodes: imported in {rows[-1].ours:.2f} s")
    return rows


def _fastest(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of the fastest calls of each, taking turns."""
    found = [float("inf")] * len(runs)
    for run in runs:
        run()
    for _ in range(_ROUNDS):
        found = [min(f, each(run, _CALLS)) for f, run in zip(found, runs, strict=True)]
    return found


def _small() -> OverheadRow:
    """A graph of two small operators: a call, and one of what `torch.compile` makes of it."""
    model, x = _Small(), torch.ones(8)
    mine = ours(model, [x], without=("superoptimize",))
    with inference():
        peer = torch.compile(model, dynamic=True)
        own, other = _fastest([lambda: mine.model(x), lambda: peer(x)])
    return OverheadRow("a call of a graph of small operators", "us", 1, own, other, "torch.compile")


def _fallback() -> OverheadRow:
    """An operator that only ATen computes: in our program, and called directly."""
    step, x = torch.special.i0e, torch.ones(8)
    chain, single = (ours(_Chain(step, n), [x], without=("superoptimize",)).model for n in (_FALLBACKS + 1, 1))
    with torch.inference_mode():
        many, one, direct = _fastest([lambda: chain(x), lambda: single(x), lambda: step(x)])
    return OverheadRow("an operator that falls back", "us", 1, (many - one) / _FALLBACKS, direct, "the operator itself")


def _import(count: int) -> OverheadRow:
    """The import of a graph of so many operators, and its export by torch."""
    start = time.perf_counter()
    program = exported(_Chain(lambda x: torch.sin(x) * 2, count // 2), [torch.ones(3, 5)])
    middle = time.perf_counter()
    import_graph(program.graph_module)
    return OverheadRow("an import", "s", count, time.perf_counter() - middle, middle - start, "the export")


def overhead_table(rows: Sequence[OverheadRow]) -> Table:
    lines = [
        [r.what, str(r.count), f"{r.ours:.2f} {r.unit}", f"{r.other:.2f} {r.unit}", r.compared_with] for r in rows
    ]
    return Table(["what", "nodes", "ours", "other", "compared with"], lines)
