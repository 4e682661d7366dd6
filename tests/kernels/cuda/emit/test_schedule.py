"""Choices of a CUDA schedule beside tiles: what they print, that results stay the same, and what machine code they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from benchmarks.programs import PROGRAMS
from mirage.errors import ScheduleError
from mirage.ir.dims import evaluate
from mirage.kernels.cuda.arguments import typical
from mirage.kernels.cuda.compile.functions import Request, request
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit, with_descriptors
from mirage.kernels.cuda.model.cost import CudaModel
from mirage.kernels.cuda.schedules.layouts import with_layouts
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.kernels.cuda.schedules.scheduler import CudaScheduler
from tests.kernels.cuda.simple import error, simple_schedule
from tests.mugraph.graphs import CASES
from tests.mugraph.loops import CASES as LOOPS
from tests.mugraph.split import twice_split
from tests.programs import retyped, search

pytest.importorskip("triton", reason="Triton compiles the kernels: pip install 'triton>=3.5'")

K = CudaKernelSchedule
HAND = {**{name: make() for name, make in CASES.items()}, **LOOPS, "twice_split": twice_split()}
GATED = CudaSchedule((K((("m", 64), ("n", 64), ("k", 64)), num_warps=4, num_stages=3),))
FEW_ROWS = CudaSchedule((K((("m", 16), ("n", 64), ("k", 64)), num_warps=4, num_stages=3),))
SIZES = {"m": 256, "n": 4096, "k": 4096}


def changed(schedule: CudaSchedule, **fields: Any) -> CudaSchedule:
    return CudaSchedule(tuple(replace(k, **fields) for k in schedule.kernels))


DESCRIBED = changed(GATED, descriptors=(0, 1, 2, 3))
COMPILED = {
    "plain": GATED,
    "described": DESCRIBED,
    "grouped": changed(DESCRIBED, group=8, order=("n", "m")),
    "packed": changed(GATED, packed=((1, "k"), (2, "n")), descriptors=(0, 1, 2)),
    "few rows": changed(FEW_ROWS, swap=True, descriptors=(0, 1, 2)),
}


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[str, str], CompiledKernel]:
    """By schedule and architecture, in one go."""
    requests: dict[tuple[str, str], Request] = {}
    for name, schedule in COMPILED.items():
        emitted = emit(replace(HAND["gated"].graph, dtype="float16"), schedule)
        (aligned,) = typical(emitted, SIZES)
        for arch, device in DEVICES.items():
            requests[name, arch] = request(emitted, emitted.kernels[0], device, aligned)
    found = {}
    for key, kernel in zip(requests, compile_all(list(requests.values())), strict=True):
        assert isinstance(kernel, CompiledKernel), (key, kernel)
        assert not kernel.spill_bytes, key
        found[key] = kernel
    return found


# tensor descriptors


#: those whose tensors have descriptors of many kinds: several axes in a dim, partial results, concatenation
FEW = ("gated", "flash_attention", "flash_decoding", "split_lora", "joined", "twice_split")


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in HAND])
def test_descriptors_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    """At sizes whose rows are whole 16 bytes, with tails everywhere; at others, the kernels without them run."""
    case = HAND[name]
    whole = {s: n if s in ("b", "h") else 4 * n + 4 for s, n in case.sizes.items()}
    for sizes in (whole, case.sizes, dict.fromkeys(case.sizes, 1)):
        schedule = with_descriptors(case.graph, simple_schedule(case.graph, sizes))
        assert error(interpreter, case.program, case.graph, schedule, sizes) < 16


def test_most_graphs_have_descriptors() -> None:
    found = {}
    for name, case in HAND.items():
        schedule = with_descriptors(case.graph, simple_schedule(case.graph, dict.fromkeys(case.sizes, 64)))
        found[name] = sum(len(k.descriptors) for k in schedule.kernels)
        text = emit(case.graph, schedule).source
        assert text.count("tl.make_tensor_descriptor") == found[name]
        assert ("descriptors of" in text) is bool(found[name])
    assert found["gated"] == 4, "three operands and the result"
    assert found["flash_attention"] >= 3
    assert sum(n > 0 for n in found.values()) > len(found) / 2


@pytest.mark.parametrize("arch", DEVICES)
def test_descriptors_are_the_copy_engines_where_there_is_one(
    kernels: dict[tuple[str, str], CompiledKernel], arch: str
) -> None:
    plain, described = kernels["plain", arch], kernels["described", arch]
    newer = arch != "sm_80"
    assert ("cp.async.bulk.tensor" in described.ptx) is newer
    assert "cp.async.bulk.tensor" not in plain.ptx
    assert described.global_scratch_size == (4 * 128 if newer else 0)
    assert described.global_scratch_align == (128 if newer else 1)
    assert ("cp.async.bulk.tensor" in kernels["packed", arch].ptx) is newer
    if arch == "sm_90":
        assert "wgmma" in described.ptx
        assert described.registers < plain.registers, "no addresses, and nothing on its way to shared memory"


def test_what_has_no_descriptor_says_why() -> None:
    gated = HAND["gated"].graph
    few = CudaSchedule((K((("m", 64), ("n", 4), ("k", 64))),))
    with pytest.raises(
        ScheduleError, match=r"operand 1 has no tensor descriptor: the tile of n has less than 16 bytes"
    ):
        emit(replace(gated, dtype="float16"), changed(few, descriptors=(1,)))
    assert with_descriptors(replace(gated, dtype="float16"), few).kernels[0].descriptors == (0,)
    single = CudaSchedule((K((("m", 1), ("n", 64), ("k", 64)), dot=False),))
    with pytest.raises(ScheduleError, match=r"operand 0 .* 2 to 5 dims, and the block has 1"):
        emit(gated, changed(single, descriptors=(0,)))


def test_the_fallback_has_no_descriptors() -> None:
    emitted = emit(HAND["gated"].graph, changed(GATED, descriptors=(0, 1, 3)))
    assert emitted.fallback is not None
    assert "descriptor" not in emitted.fallback.source
    assert emit(HAND["gated"].graph, GATED).fallback is None
    assert [d.tensor for d in emitted.described] == [0, 1, 3]


# the order of tiles


@pytest.mark.parametrize("name", ("gated", "flash_attention", "flash_decoding", "split_lora", "twice_split"))
def test_grouped_tiles_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    case = HAND[name]
    sizes = {s: n if s in ("b", "h") else 5 * n for s, n in case.sizes.items()}
    schedule = simple_schedule(case.graph, sizes)
    for group in (2, 3):
        kernels = []
        for k, node in zip(schedule.kernels, case.graph.kernels, strict=True):
            assert node.graph is not None
            order = (*node.graph.grid[::-1],)
            kernels.append(replace(k, group=group if len(order) > 1 else 1, order=order))
        assert error(interpreter, case.program, case.graph, CudaSchedule(tuple(kernels)), sizes) < 16


def test_grouped_tiles_compile(kernels: dict[tuple[str, str], CompiledKernel]) -> None:
    assert "groups of 8 tiles" in emit(HAND["gated"].graph, COMPILED["grouped"]).source
    assert "wgmma" in kernels["grouped", "sm_90"].ptx


# layouts


@pytest.mark.parametrize("name", ("gated", "flash_attention", "lora", "joined", "library"))
def test_packed_inputs_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    case = HAND[name]
    for sizes in (case.sizes, dict.fromkeys(case.sizes, 1)):
        schedule = simple_schedule(case.graph, sizes)
        for last in (0, -1):
            kernels = []
            for k, node in zip(schedule.kernels, case.graph.kernels, strict=True):
                sources = [(j, case.graph.kernel.nodes[r.node]) for j, r in enumerate(node.operands)]
                packed = tuple((j, s.axes()[last]) for j, s in sources if s.op == "input" and s.axes())
                kernels.append(replace(k, packed=packed))
            found = CudaSchedule(tuple(kernels))
            emitted = emit(case.graph, found)
            assert len({p.input for p in emitted.packed}) == (len(case.graph.inputs) if kernels else 0)
            assert error(interpreter, case.program, case.graph, found, sizes) < 16
            # rows of packed inputs are whole 16 bytes at every size
            described = with_descriptors(case.graph, found)
            assert error(interpreter, case.program, case.graph, described, sizes) < 16


def test_packed_inputs_have_descriptors_at_every_size() -> None:
    gated = HAND["gated"].graph
    emitted = emit(gated, changed(GATED, packed=((1, "k"), (2, "n")), descriptors=(1, 2)))
    assert [emitted.tensors[p.tensor].axes for p in emitted.packed] == [(("n",), ("k",)), (("k",), ("n",))]
    assert "operand 1 packed along k" in emitted.source
    shape = emitted.tensors[emitted.packed[0].tensor].shape
    assert [evaluate(d, {"k": 37, "n": 5}) for d in shape] == [5, 40]


@pytest.mark.parametrize("name", ("flash_decoding", "split_lora", "twice_split", "shares_after"))
def test_layouts_of_intermediates_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    case = HAND[name]
    outputs = {r.node for r in case.graph.kernel.outputs}
    kernels = []
    schedule = simple_schedule(case.graph, case.sizes)
    numbers = [i for i, n in enumerate(case.graph.kernel.nodes) if n.op == "graph"]
    for i, k in zip(numbers, schedule.kernels, strict=True):
        node = case.graph.kernel.nodes[i]
        inner = tuple((out, node.axes(out)[0]) for out in range(len(node.dims))) if i not in outputs else ()
        kernels.append(replace(k, layouts=inner))
    found = CudaSchedule(tuple(kernels))
    assert any(k.layouts for k in found.kernels)
    assert "innermost" in emit(case.graph, found).source
    assert error(interpreter, case.program, case.graph, found, case.sizes) < 16


def test_source_of_all_choices_is_as_before(golden: Callable[[str, str], None]) -> None:
    chosen = changed(COMPILED["grouped"], packed=((1, "k"),))
    golden("cuda_gated_choices.py.txt", emit(replace(HAND["gated"].graph, dtype="float16"), chosen).source)


#: sizes whose rows are whole 16 bytes, and primes
WHOLE = {"b": 2, "e": 2, "h": 1, "m": 24, "n": 72, "s": 8, "t": 72, "f": 40}
PRIMES = {"b": 2, "e": 2, "h": 1, "m": 13, "n": 67, "s": 3, "t": 71, "f": 37}


def chosen_schedules_agree(interpreter: Interpreter, name: str, count: int) -> None:
    """What the scheduler chooses for graphs of a program agrees with float64, as do grouped tiles with it."""
    program = retyped(PROGRAMS[name].trace(), "float16")
    graphs = search(name).graphs
    at = {s: WHOLE[s] for s in program.symbols()}
    done = 0
    for graph in (replace(g, dtype="float16") for g in graphs):
        if done == count:
            break
        try:
            ranked = CudaScheduler(graph, at, CudaModel(DEVICES["sm_90"])).best(3)
        except ScheduleError:
            continue
        done += 1
        for r in ranked:
            laid, _ = with_layouts(graph, r.schedule, at, CudaModel(DEVICES["sm_90"]))
            schedule = with_descriptors(graph, laid)
            grids = [n.graph.grid for n in graph.kernels if n.graph is not None]
            several = zip(schedule.kernels, grids, strict=True)
            grouped = CudaSchedule(tuple(replace(k, group=4 if len(g) > 1 else 1) for k, g in several))
            for sizes in (at, {s: min(PRIMES[s], at[s]) for s in at}):
                assert error(interpreter, program, graph, grouped, sizes) < 4
    assert done


def test_chosen_schedules_agree_with_float64(interpreter: Interpreter) -> None:
    chosen_schedules_agree(interpreter, "mqa_decode", count=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_chosen_schedules_of_every_program_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    chosen_schedules_agree(interpreter, name, count=4)
