"""Matrix micro-kernels against the machine's limits: `python -m benchmarks.kernels.micro [SHAPE ...] [--json]`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Annotated

import numpy as np
import typer

from benchmarks.fairness import MOST_SHARE, impossible
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import InputError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.matmul import block_vectors
from mirage.kernels.cpu.emit.plan import VECTOR_BYTES
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.model.limits import huge_pages, measure_limits
from mirage.settings import num_threads

#: seconds for a shape
SECONDS = 0.1
#: nanoseconds between two readings of the clock, where a call is shorter
_BATCH = 20_000
#: bytes that are read from memory before any are read again, beyond the caches; and cells of a run at least
BYTES, _CELLS = 128 << 20, 4
#: numbers of the kernels, and of loops that only read
OUTER, STREAM, DOT, *_READ = range(5)
#: times that a shape is measured while reading alone takes longer
_TRIES = 5
#: elements of a cache line before the first that NumPy puts there
_BEGIN = 4
#: elements of the vectors that panels are made for
_LANES = VECTOR_BYTES // 4

SOURCE = """
#include "mirage_gemm_outer.c"
#include "mirage_gemm_stream.c"
#include "mirage_gemm_dot.c"
#include "mirage_pool.h"
#include "mirage_read.h"

#include <stdint.h>
#include <time.h>

typedef struct {
    long kernel, m, k, n;
    const float *x, *y;
    float *o;
    long xs_m, ys, os_m;
    long accumulate;
    long steps, y_step, across, y_cell, y_band; /* calls of a cell; cells side by side in a band of y */
} job;

static void call(const job *j, const float *x, const float *y, float *o, int accumulate)
{
    if (j->kernel == 0) mi_gemm_outer(j->m, j->k, j->n, x, j->xs_m, 1, y, j->ys, o, j->os_m, accumulate);
    else if (j->kernel == 1) mi_gemm_stream(j->m, j->k, j->n, x, j->xs_m, 1, y, j->ys, o, j->os_m, accumulate);
    else mi_gemm_dot(j->m, j->k, j->n, x, j->xs_m, y, j->ys, o, j->os_m, accumulate);
}

static void cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    (void)thread;
    if (j->kernel >= 3) { /* nothing but reading */
        const long count = j->k * j->n * j->steps;
        const float *y = (const float *)((uintptr_t)(j->y + index * count) / 64 * 64);
        mi_store(scratch, j->kernel == 3 ? mi_read(y, count, 1, MI_AHEAD) : mi_read(y, count, 4, 0));
        return;
    }
    const float *y = j->y + index / j->across * j->y_band + index % j->across * j->y_cell;
    float *o = j->o + index * j->m * j->os_m;
    for (long s = 0; s < j->steps; s++) call(j, j->x + s * j->k, y + s * j->y_step, o, s > 0);
}

/* Nanoseconds of so many calls one after the other. */
long mi_micro_calls(const job *j, long calls)
{
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (long i = 0; i < calls; i++) call(j, j->x, j->y, j->o, (int)j->accumulate);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    return (long)(t1.tv_sec - t0.tv_sec) * 1000000000 + t1.tv_nsec - t0.tv_nsec;
}

int mi_micro_cells(mi_pool_run_fn *run, job *j, long cells, int threads) { return run(cell, j, cells, threads, 64); }
"""


class _Job(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in ("kernel", "m", "k", "n")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "o")),
        *(
            (name, ctypes.c_long)
            for name in ("xs_m", "ys", "os_m", "accumulate", "steps", "y_step", "across", "y_cell", "y_band")
        ),
    ]


@dataclass(frozen=True)
class Shape:
    """A product o[m,n] (+)= x[m,k] y, for `mi_gemm_dot` with y [n,k], else [k,n].

    `stride` is that of y's rows, where it is not contiguous. With `step`, y is read from memory by all threads, in
    cells of this shape, a call for every `step` of k.
    """

    group: str
    kernel: int
    m: int
    k: int
    n: int
    accumulate: bool = False
    stride: int = 0
    step: int = 0

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def bytes(self) -> int:
        """Bytes of y."""
        return 4 * self.k * self.n

    def __str__(self) -> str:
        stride = f" stride {self.stride}" if self.stride else ""
        return f"{self.m} x {self.k} x {self.n}{stride}{f' from memory by {self.step}' if self.step else ''}"


@dataclass(frozen=True)
class MicroRow:
    """A shape's time; `gbs` counts y alone. `limit_share` is the least time that the machine's arithmetic (of one
    thread where y is in cache) and, where y is read from memory, its bandwidth allow, over the time."""

    group: str
    kernel: str
    shape: str
    us: float
    gflops: float
    gbs: float
    limit_share: float


def shapes() -> list[Shape]:
    """The shapes of attention, of prefill, of streamed weights, of weights packed in panels, of experts and of adapters."""
    found = []
    for k in (64, 128):
        found += [Shape("scores", DOT, 8, k, n) for n in (64, 128, 512)]
        found += [Shape("values", OUTER, 8, n, k, accumulate=True) for n in (64, 128, 512)]
    for m in (1, 2, 4, 7, 16, 32):
        found.append(Shape("scores", DOT, m, 128, 256))
        found.append(Shape("values", OUTER, m, 256, 128, accumulate=True))
    for m, k, n in ((64, 64, 128), (64, 128, 512), (128, 128, 256), (128, 512, 512)):
        found += [Shape("prefill", DOT, m, k, n), Shape("prefill", OUTER, m, k, n)]
        found.append(Shape("prefill", OUTER, m, k, n, stride=4096))
    for m in (1, 2, 4, 8, 16):
        for kernel in (OUTER, STREAM):
            found += [
                Shape("stream", kernel, m, k, n, stride=stride, step=step)
                for k, n, stride, step in (
                    *((4096, 256, 4096, 4096), (1024, 1024, 4096, 256), (256, 4096, 0, 64)),
                    *((4096, 64, 0, 4096), (4096, 256, 0, 512)),
                )
            ]
        found.append(Shape("stream", DOT, m, 4096, 256, step=4096))
    for m in (1, 2, 4, 8, 16, 32, 64, 128):
        n = _LANES * int(block_vectors(m))
        found += [Shape("panels", kernel, m, 4096, n, step=4096) for kernel in (OUTER, STREAM)]
    found += [Shape("experts", kernel, 16, 512, 1024) for kernel in (OUTER, STREAM)]
    for m in (1, 8):
        for k, n in ((16, 4096), (4096, 16)):
            found += [Shape("adapter", kernel, m, k, n) for kernel in (OUTER, STREAM)]
    return found


_NAMES = {OUTER: "outer", STREAM: "stream", DOT: "dot"}


class Bench:
    """The kernels, and memory to call them on."""

    def __init__(self) -> None:
        c = toolchain.load(toolchain.compile(SOURCE, name="micro_benchmark"))
        self._calls, self._cells = c.mi_micro_calls, c.mi_micro_cells
        self._calls.argtypes, self._calls.restype = [ctypes.POINTER(_Job), ctypes.c_long], ctypes.c_long
        self._cells.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Job), ctypes.c_long, ctypes.c_int]
        rng = np.random.default_rng(0)
        self.y = huge_pages(BYTES // 4 + _BEGIN)[_BEGIN:]
        self.y[...] = np.resize(rng.standard_normal(1 << 20).astype(np.float32), BYTES // 4)
        self.x = rng.standard_normal(1 << 19).astype(np.float32)
        self.o = np.zeros(1 << 20, np.float32)

    def seconds(self, s: Shape) -> tuple[float, float]:
        """The least seconds of the product, and of reading y alone, where it is in memory."""
        step = s.step or s.k
        stride = s.stride or (s.k if s.kernel == DOT else s.n)
        across = stride // s.n if s.stride else 1
        x, y, o = (a.ctypes.data for a in (self.x, self.y, self.o))
        job = _Job(
            *(s.kernel, s.m, step, s.n, x, y, o, s.k, stride, s.n, s.accumulate),
            *(s.k // step, step * (1 if s.kernel == DOT else stride), across, s.n, s.k * s.n * across),
        )
        until = perf_counter_ns() + SECONDS * 1e9
        if not s.step:
            once = min(self._calls(ctypes.byref(job), 1) for _ in range(5))
            calls = max(_BATCH // max(once, 1), 1)
            times = [self._calls(ctypes.byref(job), calls)]
            while perf_counter_ns() < until:
                times.append(self._calls(ctypes.byref(job), calls))
            return max(min(times), 1) * 1e-9 / calls, 0.0
        # few cells a run, as a short run is more often undisturbed; the rest of the memory before they come again
        cells = -(-_CELLS // across) * across
        runs = BYTES // (s.bytes * cells)
        taken: dict[int, list[int]] = {number: [] for number in (s.kernel, *_READ)}
        turn = 0
        while turn < len(taken) or perf_counter_ns() < until:
            for job.kernel, times in taken.items():
                job.y = y + turn % runs * s.bytes * cells
                times.append(self._run(job, cells))
                turn += 1
        return min(taken[s.kernel]) * 1e-9 / cells, min(min(taken[number]) for number in _READ) * 1e-9 / cells

    def _run(self, job: _Job, cells: int) -> int:
        start = perf_counter_ns()
        if self._cells(pool.run_address(), ctypes.byref(job), cells, num_threads()):
            raise InputError("no memory to run a kernel; free some memory")
        return perf_counter_ns() - start


def measure(groups: Sequence[str] = ()) -> Iterator[MicroRow]:
    """A row for each shape of these groups (all if empty); raises InputError where one does not exist.

    Operands begin where NumPy puts them: 16 bytes into a cache line, so that half or more of the vectors straddle two.
    """
    known = list(dict.fromkeys(s.group for s in shapes()))
    for group in groups:
        if group not in known:
            raise InputError(f"no shapes {group!r}; choose of {', '.join(known)}")
    wanted = [s for s in shapes() if not groups or s.group in groups]
    bench, limits = Bench(), measure_limits(force=True)
    for s in wanted:
        for _ in range(_TRIES):
            seconds, read = bench.seconds(s)
            least = max(s.flops / (limits.gflops if s.step else limits.gflops / limits.threads) * 1e-9, read)
            if least <= MOST_SHARE * seconds:
                break
        rates = s.flops / seconds * 1e-9, s.bytes / seconds * 1e-9
        yield MicroRow(s.group, _NAMES[s.kernel], str(s), seconds * 1e6, *rates, least / seconds)


def check(rows: Sequence[MicroRow]) -> None:
    """Raises VerificationError where a row took less than its limit."""
    impossible({f"{r.group} {r.kernel} {r.shape}": r.limit_share for r in rows})


def micro_table(rows: Sequence[MicroRow]) -> Table:
    header = ["group", "kernel", "shape", "us", "GFLOP/s", "GB/s", "share of the limit"]
    return Table(
        header,
        [
            [r.group, r.kernel, r.shape, f"{r.us:,.1f}", f"{r.gflops:.0f}", f"{r.gbs:.0f}", f"{r.limit_share:.0%}"]
            for r in rows
        ],
    )


def main(
    groups: Annotated[list[str] | None, typer.Argument(help="Groups of shapes; all if none is named.")] = None,
    as_json: AsJson = False,
) -> None:
    rows = list(measure(groups or []))
    emit(rows, as_json, micro_table)
    check(rows)


if __name__ == "__main__":
    typer.run(main)
