"""Generated C runs clean under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer at awkward sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from tests.kernels.cpu.sanitize import BUILDS, FOREIGN, GAP, Case, Kernels
from tests.kernels.kernels import odd_tiles, single_kernel, tiles
from tests.programs import axes, kernels_only, program, retyped, sizes

#: where there is nothing to leave over, and primes below, between and above vectors
PRIMES = (1, 2, 3, 7, 13, 17, 37)
#: below and above vectors, beside what the tiles bring
FEW_PRIMES = (1, 7, 37)
#: operations of one call: sanitized code is slow
MOST_FLOPS = 2e7
L2_BYTES = 1 << 20


def awkward(
    name: str, graph: MuGraph, schedule: Schedule, rng: Random, primes: Sequence[int]
) -> Iterator[dict[str, int]]:
    """Every symbolic dim at 1, at primes, and at one less and one more than each tile along it; the others small."""
    symbols = program(name).symbols()
    tiles = {a: t for k in schedule.kernels for a, t in k.tiles}
    for s in symbols:
        own = {t for a, t in tiles.items() if a in graph.axes and str(graph.axes[a]) == s}
        for size in sorted({*primes, *(t + d for t in own for d in (-1, 0, 1) if t + d > 0)}):
            found = {x: rng.choice(PRIMES[:4]) for x in symbols} | {s: size}
            costly = program_cost(axes(name), found)[1] > MOST_FLOPS
            yield dict.fromkeys(symbols, 1) | {s: size} if costly else found
    yield dict.fromkeys(symbols, 1)


def check(
    name: str, build: str, graphs: int, best: int, dtype: str = "float32", primes: Sequence[int] = PRIMES
) -> None:
    """The best graphs of a program with their best schedules, and each with odd tiles."""
    rng = Random(name)
    found = kernels_only(name, graphs)
    assert found
    for graph in (replace(g, dtype=dtype) for g in found):
        tried: dict[Schedule, Mapping[str, int]] = dict.fromkeys(
            schedules(graph, sizes(name), L2_BYTES, 2)[:best], sizes(name)
        )
        tried[odd_tiles(graph, rng)] = {}
        for schedule, hints in tried.items():
            cases = list(awkward(name, graph, schedule, rng, primes))
            Kernels(retyped(program(name), dtype), graph, schedule, hints).check(build, cases, 3 if build == "thread" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program(name: str, build: str) -> None:
    # a second graph where sanitized code is fast
    check(name, build, 1 if build == "thread" else 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_of_16_bit_types(name: str, dtype: str) -> None:
    check(name, "address", 2, 1, dtype)


@pytest.mark.parametrize(
    ("name", "build", "dtype"), [("gated_mlp", "address", "bfloat16"), ("gqa_decode", "native", "float16")]
)
def test_a_few_of_16_bit_types(name: str, build: str, dtype: str) -> None:
    check(name, build, 1, 0, dtype, FEW_PRIMES)


#: one schedule of one graph each, every build and every kind of program among them
FEW = {
    "softmax": "native",
    "layer_norm": "address",
    "gqa_decode": "address",
    "mqa_decode": "thread",
    "lora": "address",
    "adapter_mlp": "native",
}


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    check(name, FEW[name], 1, 0, primes=FEW_PRIMES)


@pytest.mark.parametrize("build", FOREIGN)
@pytest.mark.parametrize(("name", "dtype"), [("softmax", "float64"), ("gqa_decode", "float32"), ("adapter_mlp", "bfloat16")])
def test_a_few_by_other_compilers(name: str, dtype: str, build: str) -> None:
    check(name, build, 1, 1, dtype, FEW_PRIMES)


@pytest.mark.slow
@pytest.mark.parametrize("build", FOREIGN)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_by_other_compilers(name: str, dtype: str, build: str) -> None:
    check(name, build, 1, 1, dtype)


@pytest.mark.parametrize("build", ["address", "thread"])
def test_half_of_a_symmetric_product(build: str) -> None:
    p = mi.trace(lambda x: mi.relu(x @ x.mT), x=mi.tensor("n", "k"))
    graph = single_kernel(p)
    schedule = Schedule((replace(tiles(graph, {"n": 4, "n_2": 7}).kernels[0], halved=("n", "n_2")),))
    cases = [{"n": n, "k": 5} for n in (1, 4, 7, 37)]
    Kernels(p, graph, schedule, {}).check(build, cases, 3 if build == "thread" else 0)


@pytest.mark.parametrize("build", ["address", "native"])
@pytest.mark.parametrize("vector", ["w", "d3"])
def test_pooling_of_windows_by_steps(vector: str, build: str) -> None:
    """Vectors along the places of windows, and along what is made of each."""

    def layer(x: Any, k: Any) -> Any:
        return mi.max_pool(mi.relu(mi.convolution(x, k)), (2, 2))

    p = mi.trace(layer, x=mi.tensor("b", 2, "2*h + 1", "2*w + 1"), k=mi.tensor(3, 2, 2, 2))
    graph = single_kernel(p)
    (own,) = tiles(graph, {"w": 5, "h": 2}).kernels
    cases = [{"b": 2, "h": h, "w": w} for h, w in ((1, 1), (2, 5), (3, 23))]
    block = graph.kernels[0].graph
    assert block is not None
    product = next(i for i, n in enumerate(block.nodes) if n.op == "matmul")
    Kernels(p, graph, Schedule((replace(own, vectors=((product, vector),)),)), {}).check(build, cases)


def softmax() -> tuple[Kernels, Case]:
    """A kernel of several cells, and a call of it with gaps between rows."""
    (graph,) = kernels_only("softmax", 1)
    kernels = Kernels(program("softmax"), graph, tiles(graph, 3), {})
    return kernels, Case(kernels, {"m": 40, "n": 13}, GAP)


def test_a_row_that_is_too_long() -> None:
    for build, message in (("address", "AddressSanitizer"), ("native", "")):
        kernels, case = softmax()
        case.sizes[kernels.emitted.axes.index("n")] += 1 if build == "address" else 1024
        done = kernels.run(build, [case])
        assert done.status != 0 and message in done.text


def test_scratch_that_is_too_short() -> None:
    kernels, case = softmax()
    assert "return count * sizeof(mi_real);" in kernels.emitted.source
    source = kernels.emitted.source.replace("return count *", "return count - 1 + 0 *")
    kernels.emitted = replace(kernels.emitted, source=source)
    done = kernels.run("address", [case])
    assert done.status != 0 and "heap-buffer-overflow" in done.text


@pytest.mark.parametrize("build", ["address", "native"])
def test_undefined_behaviour(build: str) -> None:
    kernels, case = softmax()
    shift = "__attribute__((constructor)) static void shift(void) { volatile int n = 40; n = 1 << n; }\n"
    kernels.emitted = replace(kernels.emitted, source=kernels.emitted.source + shift)
    done = kernels.run(build, [case])
    assert done.status != 0 and "shift exponent 40 is too large" in done.text


def test_cells_that_write_the_same_memory() -> None:
    kernels, _ = softmax()
    # long enough that a worker takes cells too, however busy the machine is
    cases = [Case(kernels, {"m": 20_000, "n": 13}, 0) for _ in range(5)]
    for case in cases:
        case.tensors[kernels.emitted.outputs[0]].strides[0] = 0
    done = kernels.run("thread", cases, threads=2)
    assert done.status != 0 and "data race" in done.text
