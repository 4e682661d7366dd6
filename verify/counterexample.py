"""Counterexamples in floats: inputs for which two programs, or a program and a muGraph, have different results.

Both run in float64 at the program's own literal sizes, on intervals (`mirage.verify.intervals`), so that no rounding is taken
for a difference. Elements in which either may be undefined are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

import numpy as np

from mirage.ir.axes import AxisProgram, read_arguments
from mirage.ir.dims import evaluate as dim_value
from mirage.ir.interpret import evaluate
from mirage.ir.moves import moved_in
from mirage.ir.program import Program, allowed
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.verify.intervals import Interval, IntervalArithmetic, apart
from mirage.verify.sizes import draw_schedule

#: elements of a tensor, above which nothing is tried
MAX_ELEMENTS = 1 << 20

#: what is run over intervals
Side = Callable[[Sequence[Interval], IntervalArithmetic], list[Interval]]

#: by name, what inputs are made of normal numbers
_INPUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal inputs": lambda x: x,
    "positive inputs": np.abs,
    "negative inputs": lambda x: -np.abs(x),
    "inputs with zeros": lambda x: np.where(np.abs(x) < 0.7, 0.0, x),
    "large inputs": lambda x: 1000.0 * x,
}


def counterexample(a: Program | AxisProgram, b: Program | MuGraph, seed: int = 0) -> str:
    """The first inputs found, in words, for which `b` is not `a`; "" where there are none among those that are tried.

    The inputs of both have the same shapes, in the same order.
    """
    other = "other program" if isinstance(b, Program) else "graph"
    for sizes in _sizes(a, seed):
        if found := difference_at(_side(a, sizes, seed), _side(b, sizes, seed), _shapes(a, sizes), sizes, other, seed):
            return found
    return ""


def difference_at(
    a: Side, b: Side, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int], other: str, seed: int
) -> str:
    """The first inputs of these shapes, in words, for which `b`, called `other`, is not `a`, the program at these sizes."""
    for name, make in _INPUTS.items():
        rng = np.random.default_rng(seed)
        inputs = [make(rng.standard_normal(shape)) for shape in shapes]
        ar = IntervalArithmetic(sizes)
        with np.errstate(all="ignore"):
            results = [side([ar.exactly(x) for x in inputs], ar) for side in (a, b)]
        for k, (x, y) in enumerate(zip(*results, strict=True)):
            wrong = apart(x, y)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                values = [float((r.lo + r.hi)[at] / 2) for r in (x, y)]
                where = ", ".join(f"{s}={n}" for s, n in sizes.items())
                return (
                    f"output {k}{list(at)} is {values[0]!r} for the program and {values[1]!r} for the {other} in float64, "
                    f"for {name} of seed {seed}{f' at {where}' if where else ''}"
                )
    return ""


def _sizes(a: Program | AxisProgram, seed: int) -> Iterator[dict[str, int]]:
    rng = Random(f"counterexample {seed}")
    symbols = a.symbols() if isinstance(a, Program) else _axis_symbols(a)
    for low, high in ((2, 3), (1, 1), (2, 5)):
        sizes = {s: rng.randint(low, high) for s in symbols}
        if isinstance(a, Program):
            sizes = allowed(a, sizes)
        if _elements(a, sizes) <= MAX_ELEMENTS:
            yield sizes
        if not symbols:
            return


def _axis_symbols(a: AxisProgram) -> list[str]:
    return sorted({s.name for d in a.axes.values() for s in d.free_symbols})


def _elements(a: Program | AxisProgram, sizes: Mapping[str, int]) -> int:
    if isinstance(a, Program):
        return max(math.prod(n.type.bind(sizes)) for n in a.nodes)
    axes = {x: dim_value(d, sizes) for x, d in a.axes.items()}
    return max(math.prod(axes[x] for x in (*n.axes, *n.reduce)) for n in a.nodes)


def _shapes(a: Program | AxisProgram, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    if isinstance(a, Program):
        return [t.bind(sizes) for t in a.input_types]
    shapes: dict[str, tuple[int, ...]] = {}
    for x in a.inputs:
        shapes.setdefault(x.argument, tuple(math.prod(dim_value(a.axes[v], sizes) for v in d) for d in x.dims))
    return list(shapes.values())


def _side(x: Program | AxisProgram | MuGraph, sizes: Mapping[str, int], seed: int) -> Side:
    if isinstance(x, Program):
        return lambda inputs, ar: evaluate(x, inputs, ar)
    if isinstance(x, AxisProgram):
        graph, schedule = reference_graph(x), Schedule(())
    else:
        axes = {v: dim_value(d, sizes) for v, d in x.axes.items()}
        graph, schedule = x, draw_schedule(x, axes, Random(f"counterexample {seed}"))[0]

    def side(inputs: Sequence[Interval], ar: IntervalArithmetic) -> list[Interval]:
        read = read_arguments(graph.name, graph.inputs, list(inputs), partial(moved_in, ar))
        return run_mugraph(graph, schedule, read, ar)

    return side
