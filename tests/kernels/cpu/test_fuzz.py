"""Random programs of up to 8 operators, at random sizes and strides, against float64.

Each is run by the library and as compiled muGraphs: as kernels of operators that follow each other, and, for a part of
them, as the search fuses it; with random schedules, for every vector width of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.kernels.library import LibraryProgram
from mirage.kernels.separate import with_separate_exps
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.kernels.cpu.csrc.micro import MACHINE_FLAGS
from tests.kernels.cpu.decisions import all_decided
from tests.kernels.kernels import as_exact, odd_tiles, random_cut
from tests.random_programs import random_program, random_sizes, strided_inputs

#: most operators of a program
OPERATORS = 8
#: one program of so many is searched, for so many seconds: what is found by then differs, as the message tells
SEARCHED, SEARCH_S = 7, 0.3
#: algebra may trade accuracy for speed, which tuning rejects, not the search
SEARCH_SLACK = 1e3


def plain(g: MuGraph) -> int:
    """How many exps subtract no maximum."""
    return len(analyze(g).plain)


def graphs(p: Program, seed: int, rng: Random) -> list[tuple[MuGraph, float]]:
    """MuGraphs of a program, and how much less exact than the program each may be."""
    ap = to_axes(p)
    # kernels of an exp alone share no maximum, and overflow where the program does not
    most = plain(reference_graph(with_separate_exps(ap)))
    cuts = [g for g in (random_cut(p, rng, OPERATORS) for _ in range(3)) if plain(g) <= most]
    found = [(g, 1.0) for g in cuts[:1]]
    if seed % SEARCHED == 0:
        searched = generate(ap, random_sizes(rng, p), SearchOptions(budget=SEARCH_S, max_kernels=3)).graphs
        searched = [g for g in searched if plain(g) <= most]
        found += [(g, SEARCH_SLACK) for g in rng.sample(searched, min(2, len(searched)))]
        found.append((reference_graph(with_separate_exps(ap)), 1.0))
    return found


def schedule(g: MuGraph, p: Program, rng: Random) -> Schedule:
    found = rng.choice(schedules(g, random_sizes(rng, p), 1 << 20, 2)) if rng.random() < 0.3 else odd_tiles(g, rng)
    return all_decided(g, found, random_sizes(rng, p), rng) if rng.random() < 0.3 else found


def wrong(seed: int) -> str:
    """What is wrong with the versions of the seed's program; "" if nothing is."""
    rng = Random(seed)
    p = random_program(rng, 1 + seed % OPERATORS, rng.choice(list(DTYPES)))
    versions: list[tuple[str, float, LibraryProgram | CpuExecutable]] = [("library", 1.0, LibraryProgram(to_axes(p)))]
    for g, slack in graphs(p, seed, rng):
        s = schedule(g, p, rng)
        exe = CpuExecutable(g, s, analyze(g), random_sizes(rng, p), constants=p.input_names)
        versions.append((f"{g}\n{s}", slack, exe))
    rng = Random(f"inputs {seed}")
    for _ in range(3):
        sizes = random_sizes(rng, p)
        inputs = strided_inputs(rng, p, sizes)
        before = [x.copy() for x in inputs]
        for name, slack, run in versions:
            with np.errstate(all="ignore"):
                message = as_exact(p, run(inputs, sizes), inputs, sizes, slack)
            if message or not all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True)):
                strides = [(x.shape, x.strides) for x in inputs]
                return f"seed {seed}: {message or 'an input has changed'}\n{p}\n{name}\n{sizes} {strides}"
    return ""


def check(seeds: Sequence[int], flags: str) -> None:
    """No program of these seeds is wrong; several are compiled at once."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("MIRAGE_CFLAGS", f"-Og {flags}")
        found = [message for message in pool.map(wrong, seeds) if message]
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("flags", MACHINE_FLAGS)
def test_a_few(flags: str) -> None:
    # programs of its own for each width, of every number of operators
    check(range(MACHINE_FLAGS.index(flags), 12, len(MACHINE_FLAGS)), flags)


@pytest.mark.slow
@pytest.mark.parametrize("flags", MACHINE_FLAGS)
@pytest.mark.parametrize("hundred", range(1, 8))
def test_many(hundred: int, flags: str) -> None:
    # each width has programs of its own: 2,100 on a machine with AVX-512
    first = 1000 * hundred + 100 * MACHINE_FLAGS.index(flags)
    check(range(first, first + 100), flags)


def end_to_end(seed: int) -> str:
    """`superoptimize` with hardly any time for it: right whatever it chooses."""
    rng = Random(seed)
    p = random_program(rng, 1 + seed % OPERATORS, rng.choice(list(DTYPES)))
    result = mi.superoptimize(p, sizes=random_sizes(rng, p), budget=1.0, cache=False)
    for _ in range(4):
        sizes = random_sizes(rng, p)
        inputs = strided_inputs(rng, p, sizes)
        with np.errstate(all="ignore"):
            got = result(*inputs)
            found = got if isinstance(got, tuple) else (got,)
            message = as_exact(p, found, inputs, sizes, SEARCH_SLACK)
        if message:
            return f"seed {seed}: {message}\n{p}\n{result.best.graph}\n{sizes} {[x.strides for x in inputs]}"
    return ""


def test_few_end_to_end() -> None:
    assert not [m for m in map(end_to_end, range(5_000_003, 5_000_006)) if m]


@pytest.mark.slow
@pytest.mark.parametrize("ten", range(3))
def test_more_end_to_end(ten: int) -> None:
    assert not [m for m in map(end_to_end, range(6_000_000 + 10 * ten, 6_000_010 + 10 * ten)) if m]
