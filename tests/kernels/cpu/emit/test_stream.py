"""Results stored past the caches: which, when, and that they are the same."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import DTYPES, tensor
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.launch.cold import flush
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.memory import address
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.schedule import Schedule
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.kernels.cpu.sanitize import BUILDS, Kernels
from tests.kernels.kernels import cut, error, operators, random_inputs, single_kernel, tiles
from tests.programs import UNLIMITED

HINTS = {"m": 64, "n": 512}
_INCLUDE = '#include "mirage_vec.h"\n'
#: as where no cache holds anything
_ALWAYS = "#define mi_past_caches(to, from, bytes) ((uintptr_t)(to) % MI_PIECE == 0)\n"

x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="other processors have ordinary stores only"
)


def layer_norm(dtype: str = "float32") -> Program:
    b = ProgramBuilder("layer_norm")
    x, w, c = (
        b.input("x", tensor("m", "n", dtype=dtype)),
        b.input("w", tensor("n", dtype=dtype)),
        b.input("c", tensor("n", dtype=dtype)),
    )
    return b.finish([b.op("layer_norm", x, w, c)])


def added_and_normed() -> Program:
    """A sum and its norm, both results."""
    b = ProgramBuilder("added_and_normed")
    x, y, w = b.input("x", tensor("m", "n")), b.input("y", tensor("m", "n")), b.input("w", tensor("n"))
    s = b.op("add", x, y)
    return b.finish([s, b.op("rms_norm", s, w)])


def two_results() -> Program:
    b = ProgramBuilder("two_results")
    x, y = b.input("x", tensor("m", "n")), b.input("y", tensor("m", "n"))
    return b.finish([b.op("add", x, y), b.op("mul", x, y)])


def source(graph: MuGraph, schedule: Schedule) -> str:
    return emit(graph, schedule, analyze(graph), HINTS)


def always(graph: MuGraph, schedule: Schedule) -> CpuExecutable:
    """The executable as it runs where no cache holds anything."""
    make = toolchain.compile

    def compiled(text: str, *, name: str, parts: Sequence[str] = (), seconds: float | None = None) -> Path:
        return make(text.replace(_INCLUDE, _INCLUDE + _ALWAYS), name=name, parts=parts, seconds=seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "compile", compiled)
        exe = CpuExecutable(graph, schedule, analyze(graph), HINTS)
    assert _INCLUDE in exe.source and "mi_past_caches" in exe.source
    return exe


def at_offset(shape: Sequence[int], dtype: np.dtype, offset: int) -> np.ndarray:
    """Memory that starts so many bytes after a cache line, with a margin of ones after it."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 256, 1, np.uint8)
    start = -address(raw) % 64 + offset
    return raw[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize(
    "p",
    [*map(layer_norm, ("float32", "float64", "float16", "bfloat16")), added_and_normed(), two_results()],
    ids=lambda p: f"{p.name}-{p.dtype}",
)
def test_the_same_bits(p: Program) -> None:
    graph, wide = single_kernel(p), DTYPES[p.dtype]
    schedule = tiles(graph, {"m": 3, "n": 32})
    exe, past = CpuExecutable(graph, schedule, analyze(graph), HINTS), always(graph, schedule)
    # whole vectors, pieces of one, rows that are no whole pieces, and one piece
    for n in (512, 40, 24, 37, 16 // wide.itemsize):
        inputs = random_inputs(p, {"m": 7, "n": n})
        want = exe(inputs, {"m": 7, "n": n})
        for offset in (0, 16, 16 - wide.itemsize):
            out = [at_offset(w.shape, wide, offset) for w in want]
            past(inputs, {"m": 7, "n": n}, out=out)
            assert all(np.array_equal(o, w) for o, w in zip(out, want, strict=True))
            assert all(o.base is not None and (o.base[-64:] == 1).all() for o in out)


def test_rows_that_are_apart_are_stored_as_ever() -> None:
    p = layer_norm()
    graph = single_kernel(p)
    past = always(graph, tiles(graph, 3))
    inputs = random_inputs(p, {"m": 7, "n": 32})
    wide = np.zeros((7, 33), np.float32)
    past(inputs, {"m": 7, "n": 32}, out=[wide[:, :32]])
    assert np.array_equal(wide[:, :32], past(inputs, {"m": 7, "n": 32})[0])
    assert not wide[:, 32].any()


@pytest.mark.parametrize("build", BUILDS)
def test_under_sanitizers(build: str) -> None:
    p = layer_norm()
    graph = single_kernel(p)
    kernels = Kernels(p, graph, tiles(graph, 3), HINTS)
    kernels.emitted = replace(kernels.emitted, source=kernels.emitted.source.replace(_INCLUDE, _INCLUDE + _ALWAYS))
    # the first and the third with rows apart
    sizes = [{"m": 7, "n": n} for n in (32, 512, 37, 24, 4, 20)]
    kernels.check(build, sizes, 3 if build == "thread" else 0)


def test_results_that_a_kernel_computes_element_by_element_may_go_past_the_caches() -> None:
    p = layer_norm()
    graph = single_kernel(p)
    text = source(graph, tiles(graph, 3))
    # the result, as whole vectors and what is left of a row; all else that is stored is scratch
    assert text.count("mi_put(o0") == text.count("mi_put_n(o0") == 1
    assert text.count("mi_past_caches(") == 1 and "mi_store(o0" not in text and "mi_put(m" not in text
    pair = single_kernel(two_results())
    both = source(pair, tiles(pair, {"m": 3, "n": 32}))
    assert "mi_put(o0" in both and "mi_put(o1" in both and both.count("mi_past_caches(") == 1


def test_other_results_do_not() -> None:
    # what the kernel reads again
    read = single_kernel(added_and_normed())
    text = source(read, tiles(read, 3))
    assert "mi_put(o1" in text and "mi_put(o0" not in text
    # what the next kernel reads
    p = layer_norm()
    first, *rest = operators(p)
    parts = cut(p, [first], rest)
    text = source(parts, tiles(parts, 3))
    assert text.count("mi_past_caches(") == 1
    # sums, parts of sums, products, and columns that are no whole pieces
    b = ProgramBuilder("sums")
    sums = single_kernel(b.finish([b.op("sum", b.input("x", tensor("m", "n")), axes=(1,))]), n=Role.WHOLE)
    b = ProgramBuilder("product")
    product = b.finish([b.op("silu", b.op("matmul", b.input("x", tensor("m", 64)), b.input("w", tensor(64, "n"))))])
    pair = single_kernel(two_results())
    for graph, tile in ((sums, 3), (single_kernel(product), 3), (pair, 7)):
        assert "mi_past_caches" not in source(graph, tiles(graph, tile)), graph


def test_the_next_tile_of_what_was_read_before_is_fetched() -> None:
    graph = single_kernel(layer_norm())
    text = source(graph, tiles(graph, 3))
    assert "const mi_real *const next = p0 + (b_m + 3 < n_m ? 3 : 0) * p0_m;" in text
    # with whole vectors and what is left of a row
    assert text.count("mi_fetch_line(next + i_m * p0_m + i_n, past);") == 2
    half = single_kernel(layer_norm("bfloat16"))
    assert "const mi_narrow_bfloat16 *const next = p0" in source(half, tiles(half, 3))
    # not what the results are computed from at once, nor one of two inputs
    pair, two = single_kernel(two_results()), single_kernel(added_and_normed())
    for other, tile in ((pair, {"m": 3, "n": 32}), (two, {"m": 3})):
        assert "mi_fetch_line" not in source(other, tiles(other, tile))
    # nor where there is one tile, or rows are read in parts
    alone = single_kernel(layer_norm(), m=Role.WHOLE)
    assert "mi_fetch_line" not in source(alone, tiles(alone, 3))
    looped = single_kernel(layer_norm(), n=Role.LOOP)
    assert "mi_fetch_line" not in source(looped, tiles(looped, 3))


def test_factors_of_partial_results_are_no_inputs() -> None:
    b = ProgramBuilder("self_attention")
    x = b.input("x", tensor("m", "k"))
    scores = b.op("softmax", b.op("matmul", x, b.op("transpose", x, perm=(1, 0))))
    p = b.finish([b.op("matmul", scores, x)])
    graphs = generate(to_axes(p), {"m": 256, "k": 16}, SearchOptions(budget=UNLIMITED)).graphs
    schedules = {id(g): tiles(g, {**dict.fromkeys(g.axes, 3), "k": 16}) for g in graphs}
    texts = {id(g): source(g, schedules[id(g)]) for g in graphs}
    merged = [g for g in graphs if "factors of the" in texts[id(g)] and "mi_past_caches(" in texts[id(g)]]
    assert merged
    sizes = {"m": 37, "k": 32}
    inputs = random_inputs(p, sizes)
    want = run_reference(p, inputs, sizes, "float64")
    for g in merged[:2]:
        exe = CpuExecutable(g, schedules[id(g)], analyze(g), HINTS)
        assert error(exe(inputs, sizes), want) < 1e-5


# ---- where memory is ----

_PROBE = """
#include "mirage_stream.h"
long limit(void) { return mi_memory_latency(); }
int uncached(const void *memory, long bytes, int may_write) { return mi_uncached(memory, (size_t)bytes, may_write); }
int past_caches(const void *to, const void *from, long bytes) { return mi_past_caches(to, from, (size_t)bytes); }
"""
_BYTES = 1 << 20
_TRIES = 21


@pytest.fixture(scope="module")
def probe() -> ctypes.CDLL:
    library = toolchain.load(toolchain.compile(_PROBE, name="probe"))
    library.limit.restype = ctypes.c_long
    for f, last in ((library.uncached, ctypes.c_int), (library.past_caches, ctypes.c_long)):
        f.argtypes = [ctypes.c_void_p, ctypes.c_long if f is library.uncached else ctypes.c_void_p, last]
    if library.limit() == 2**63 - 1:
        pytest.skip("memory answers as fast as a cache here")
    return library


def most(answers: Sequence[int]) -> bool:
    """What most tries say: the machine does other things, too."""
    return sum(answers) > _TRIES // 2


@x86
def test_memory_is_told_from_caches(probe: ctypes.CDLL) -> None:
    x = np.arange(_BYTES, dtype=np.uint8)
    before = x.copy()
    at = address(x)

    def flushed(may_write: int) -> int:
        flush(x)
        found: int = probe.uncached(at, _BYTES, may_write)
        return found

    def read(may_write: int) -> int:
        x.max()
        found: int = probe.uncached(at, _BYTES, may_write)
        return found

    for may_write in (0, 1):
        assert most([flushed(may_write) for _ in range(_TRIES)])
        assert not most([read(may_write) for _ in range(_TRIES)])
    assert np.array_equal(x, before)


@x86
def test_both_must_be_in_memory(probe: ctypes.CDLL) -> None:
    to, source = (np.ones(_BYTES // 4 + 4, np.float32) for _ in range(2))
    start = address(to) + -address(to) % 16

    def found(flush_to: bool, flush_from: bool, bytes_of: int = _BYTES, offset: int = 0) -> bool:
        answers = []
        for _ in range(_TRIES):
            to.max(), source.max()
            if flush_to:
                flush(to)
            if flush_from:
                flush(source)
            answers.append(probe.past_caches(start + offset, address(source), bytes_of))
        return most(answers)

    assert found(True, True)
    assert not found(True, False)
    assert not found(False, True)
    # too little to look for, and where no piece starts
    assert not found(True, True, _BYTES // 2)
    assert not found(True, True, offset=4)


@x86
def test_memory_that_nobody_wrote_is_made_and_stays_zero(probe: ctypes.CDLL) -> None:
    answers = []
    for _ in range(_TRIES):
        with mmap.mmap(-1, _BYTES) as fresh:
            view = np.frombuffer(fresh, np.uint8)
            answers.append(probe.uncached(address(view), _BYTES, 1))
            assert not view.any()
            del view
    # the system clears pages by way of the caches
    assert not most(answers)


@x86
def test_memory_that_cannot_be_written_is_only_read(probe: ctypes.CDLL, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(_BYTES))
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        probe.uncached(address(view), _BYTES, 0)
        del view


def test_a_narrow_source_is_not_looked_for() -> None:
    """Its bytes are fewer than those of the result: what lies behind it is not the array's, and may be no memory."""
    b = ProgramBuilder("dequantized")
    x = b.op("cast", b.input("x", tensor("m", "n", dtype="int8")), dtype="float32")
    scaled = b.op("mul", x, b.input("s", tensor("n")))
    alone = single_kernel(b.finish([scaled]))
    assert "mi_past_caches" not in source(alone, tiles(alone, 16))
    beside = single_kernel(b.finish([b.op("add", scaled, b.input("y", tensor("m", "n")))]))
    assert "mi_past_caches(args->tensors[3], args->tensors[2]," in source(beside, tiles(beside, 16))
