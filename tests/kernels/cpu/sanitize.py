"""Generated kernels under the sanitizers of the C compiler, in a process of their own.

A C program loads the compiled kernels and runs them on tensors that are exactly as long as they have to be, whose gaps
between rows are poisoned; scratch is exactly as long as asked for, and starts as NaN.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import pytest

from mirage.folders import private_folder
from mirage.ir.axes import AxisDims, read_arguments
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.moves import last_step, moved
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.compile import shipped, toolchain
from mirage.kernels.cpu.emit.mugraph import Emitted, Emitter
from mirage.kernels.cpu.emit.stages import CodeStage
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from tests.kernels.kernels import bound, error

#: clang names the sanitizer that it compiles for by a feature, gcc by this macro
SANITIZED = r"""
#if defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
"""
HARNESS = SANITIZED + r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mirage_pool.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

typedef struct {
    const long *sizes;
    void *const *tensors;
    const long *strides;
    long report[3]; /* of loop programs: the check that failed, which must be none */
} arguments;
mi_pool_run_fn mi_pool_run; /* of pool.c */
typedef int launcher(arguments *args, mi_pool_run_fn *pool, int threads);

typedef struct {
    char *memory, *mapped;
    size_t bytes, length;
} block;

static void must(int fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "harness: %s\n", what);
    exit(2);
}

/* Memory that ends where the tensor does: red zones around it, or, without AddressSanitizer, a page that cannot be
 * touched behind it. */
static block allocate(size_t bytes, size_t alignment)
{
#ifdef __SANITIZE_ADDRESS__
    block b = {NULL, NULL, bytes, bytes};
    must(!posix_memalign((void **)&b.memory, alignment, bytes), "no memory");
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    block b = {NULL, NULL, bytes, pages + page};
    b.mapped = mmap(NULL, b.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(b.mapped != MAP_FAILED && !mprotect(b.mapped + pages, page, PROT_NONE), "no memory");
    b.memory = b.mapped + (pages - bytes) / alignment * alignment;
#endif
    return b;
}

static void release(block b)
{
    if (b.mapped) munmap(b.mapped, b.length);
    else free(b.memory);
}

/* A pool of one thread, which runs the last cell first: cells may run in any order. */
static int run_backwards(mi_cell *cell, void *args, long n_cells, int n_threads, size_t scratch_bytes)
{
    const block scratch = allocate(scratch_bytes, 64);
    (void)n_threads;
    for (long i = n_cells - 1; i >= 0; i--) {
        memset(scratch.memory, 0xff, scratch_bytes);
        cell(args, i, 0, scratch.memory);
    }
    release(scratch);
    return 0;
}

static int take(FILE *f, void *to, size_t bytes) { return fread(to, 1, bytes, f) == bytes; }

static long number(FILE *f)
{
    int64_t n = 0;
    must(take(f, &n, sizeof n), "the file of cases is cut");
    return (long)n;
}

static long *numbers(FILE *f, long *count)
{
    *count = number(f);
    long *all = malloc((size_t)(*count + 1) * sizeof *all);
    for (long i = 0; i < *count; i++) all[i] = number(f);
    return all;
}

/* harness LIBRARY CASES RESULTS LAUNCHER...: each case is threads (0 for `run_backwards`), sizes, strides and tensors;
 * a tensor is its bytes, then its gaps (offset, length). The results are the tensors as the launchers leave them. */
int main(int argc, char **argv)
{
    must(argc > 4, "too few arguments");
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    must(library != NULL, "the library does not load");
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    must(in && out, "a file does not open");
    int64_t threads;
    while (take(in, &threads, sizeof threads)) {
        long n_sizes, n_strides, n_gaps;
        long *sizes = numbers(in, &n_sizes), *strides = numbers(in, &n_strides);
        const long n = number(in);
        block *blocks = calloc((size_t)n + 1, sizeof *blocks);
        void **tensors = calloc((size_t)n + 1, sizeof *tensors);
        long **gaps = calloc((size_t)n + 1, sizeof *gaps), *counts = calloc((size_t)n + 1, sizeof *counts);
        for (long t = 0; t < n; t++) {
            blocks[t] = allocate((size_t)number(in), 8);
            tensors[t] = blocks[t].memory;
            must(take(in, tensors[t], blocks[t].bytes), "the file of cases is cut");
            gaps[t] = numbers(in, &n_gaps);
            counts[t] = n_gaps;
            for (long g = 0; g < n_gaps; g += 2)
                ASAN_POISON_MEMORY_REGION(blocks[t].memory + gaps[t][g], (size_t)gaps[t][g + 1]);
        }
        arguments args = {sizes, tensors, strides, {0, 0, 0}};
        for (int k = 4; k < argc; k++) {
            launcher *launch = (launcher *)dlsym(library, argv[k]);
            must(launch != NULL, "no such launcher");
            must(!launch(&args, threads ? mi_pool_run : run_backwards, threads ? (int)threads : 1), "no scratch, or a check");
        }
        for (long t = 0; t < n; t++) {
            for (long g = 0; g < counts[t]; g += 2)
                ASAN_UNPOISON_MEMORY_REGION(blocks[t].memory + gaps[t][g], (size_t)gaps[t][g + 1]);
            must(fwrite(tensors[t], 1, blocks[t].bytes, out) == blocks[t].bytes, "the results cannot be written");
            release(blocks[t]);
            free(gaps[t]);
        }
        free(gaps), free(counts), free(tensors), free(blocks), free(strides), free(sizes);
    }
    return fclose(out) || fclose(in);
}
"""

#: where a program begins that tests a file of C: `must`, and the pool
BEGIN = SANITIZED + r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mirage_pool.h"

mi_pool_run_fn mi_pool_run; /* of pool.c */

/* A function that computes what is expected: it is not under test, and most of a test's time without optimizations. */
#ifdef __clang__
#define REFERENCE __attribute__((no_sanitize("address", "undefined", "thread")))
#else
#define REFERENCE __attribute__((no_sanitize("address", "undefined", "thread"), optimize("O2")))
#endif

static void must(int fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "%s\n", what);
    exit(3);
}
"""

#: memory for small whole numbers, of a program that begins with `BEGIN` and knows `mi_real`
ROOMS = r"""
static void *rooms[24];
static int n_rooms;

/* Memory for n elements with a page behind it, or red zones around it, that cannot be touched. */
static mi_real *room(ptrdiff_t n)
{
    const size_t bytes = (size_t)n * sizeof(mi_real);
#ifdef __SANITIZE_ADDRESS__
    mi_real *p = rooms[n_rooms++] = malloc(bytes);
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    char *mapped = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mapped != MAP_FAILED && !mprotect(mapped + pages, page, PROT_NONE), "no memory");
    mi_real *p = (mi_real *)(mapped + pages - bytes);
#endif
    must(p != NULL, "no memory");
    for (ptrdiff_t i = 0; i < n; i++) p[i] = (mi_real)(rand() % 9 - 4);
    return p;
}
"""

#: the same of 16 bits, of a program that knows `mi_narrow` as well
HALVES = r"""
static mi_narrow half_of(float x) { return mi_to_narrow(mi_broadcast(x))[0]; }
static float real_half(mi_narrow h) { return mi_widen(h - (mi_narrow_vec){0})[0]; }

/* Memory for n elements, of 16 bits if it is `half`, with the numbers that `real` tells. */
static void *values(ptrdiff_t n, int half, float **real)
{
    float *own = room(n);
    *real = own;
    if (!half) return own;
    const ptrdiff_t bytes = 2 * n, rounded = (bytes + 3) / 4;
    mi_narrow *found = (mi_narrow *)((char *)room(rounded) + 4 * rounded - bytes);
    for (ptrdiff_t i = 0; i < n; i++) found[i] = half_of(own[i]);
    return found;
}
"""

_UNDEFINED = ("-O0", "-g", "-fno-sanitize-recover=all", "-fsanitize=undefined")
#: masked loads and stores of AVX are no accesses to a sanitizer; the portable ones are
_PORTABLE = ("-mno-avx512f", "-mno-avx") if platform.machine() in ("x86_64", "AMD64") else ()

#: sanitizers -> the compiler's flags. "address" and "thread" see every access; "native" has the machine's own vectors,
#: and tensors that end at a page that cannot be touched
BUILDS: dict[str, tuple[str, ...]] = {
    "address": (*_UNDEFINED, "-fsanitize=address", *_PORTABLE),
    "native": _UNDEFINED,
    "thread": ("-O0", "-g", "-fsanitize=thread", *_PORTABLE),
}
#: builds and numbers of threads of C that is compiled for a type of 16 bits; each build and type is there once without slow tests
SANITIZED_HALVES = [
    ("bfloat16", "native", "2"),
    *(
        pytest.param(half, build, threads, marks=pytest.mark.slow)
        for half, build, threads in (
            ("float16", "address", "1"), ("bfloat16", "address", "1"), ("float16", "native", "2"), ("float16", "thread", "3"),
            ("bfloat16", "thread", "3"),
        )
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """Another compiler than the machine's, the processor that it compiles for, and what runs its programs."""

    command: str
    processor: str = "native"
    runner: tuple[str, ...] = ()


_QEMU = "qemu-aarch64" if shutil.which("qemu-aarch64") else "qemu-aarch64-static"
#: other compilers and processors, where they are installed: what they make has the guard pages of "native", and no sanitizer
FOREIGN: dict[str, Foreign] = {
    "clang": Foreign("clang"),
    "aarch64": Foreign("aarch64-linux-gnu-gcc", "armv8.2-a", (_QEMU, "-L", "/usr/aarch64-linux-gnu")),
}
#: a program that runs longer hangs
SECONDS = 300
#: bytes of garbage between rows: an even number of elements of every type, as poison starts anywhere but ends at 8 bytes
GAP = 48


@dataclass(frozen=True)
class Outcome:
    """How a C program ended: exit status, and what it and its sanitizers printed."""

    status: int
    text: str


@contextmanager
def building(build: str) -> Iterator[tuple[str, ...]]:
    """The flags of a build, while its compiler is the one that is used; skips the test where that is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if build not in FOREIGN:
            yield BUILDS[build]
            return
        foreign = FOREIGN[build]
        for command in (foreign.command, *foreign.runner[:1]):
            if shutil.which(command) is None:
                pytest.skip(f"{command} is not installed")
        patch.setenv("CC", foreign.command)
        flags = functools.partial(shipped.flags, foreign.processor)
        patch.setattr(shipped, "flags", lambda processor, suffix: flags(suffix))
        yield ("-O1", "-g")


def program(build: str, source: str) -> Path:
    """An executable made of C source and the pool; skips the test where the compiler has no such sanitizer."""
    with building(build) as flags:
        return _program(source, flags, toolchain.find_compiler())


@functools.cache
def _program(source: str, own: tuple[str, ...], compiler: toolchain.Compiler) -> Path:
    folder = Path(tempfile.mkdtemp(dir=private_folder("sanitizers")))
    (folder / "main.c").write_text(source)
    flags = [f for f in shipped.flags("native", ".so") if f not in ("-shared", "-fPIC")]
    command = [*compiler.command, *flags, *own, f"-I{shipped.HEADERS}", "main.c"]
    command += [str(shipped.LIBRARIES["pool"]), "-o", "main", "-ldl", *shipped.LINKED]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        # a compiler may know the flag and lack the runtime
        clean = folder / "clean.c"
        clean.write_text("int main(void) { return 0; }\n")
        plain = [*compiler.command, *own, str(clean), "-o", str(folder / "clean")]
        if subprocess.run(plain, capture_output=True, check=False).returncode:
            pytest.skip(f"the C compiler does not know {shlex.join(own)}")
        raise AssertionError(f"{shlex.join(command)}\n{done.stderr}")
    return folder / "main"


def run(main: Path, *arguments: str, runner: Sequence[str] = ()) -> Outcome:
    """Run an executable of `program`, by a `runner` if it is of another processor; skips the test where the sanitizer does
    not work in this environment.
    """
    options = {"TSAN_OPTIONS": "die_after_fork=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    env = {**os.environ, **options}
    command = [*runner, str(main), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    for broken in ("unexpected memory mapping", "LeakSanitizer has encountered a fatal error"):
        if broken in done.stderr:
            pytest.skip(f"a sanitizer does not run here: {broken}")
    return Outcome(done.returncode, done.stderr)


def check_clean(build: str, source: str, *arguments: str) -> None:
    """A program of C ends well in a build, and its sanitizers say nothing."""
    done = run(program(build, source), *arguments, runner=FOREIGN[build].runner if build in FOREIGN else ())
    assert done.status == 0 and not done.text, done.text


def check_caught(build: str, source: str, *arguments: str, text: str) -> None:
    """The sanitizer of a build ends a program of C, and says so."""
    done = run(program(build, source), *arguments)
    assert done.status != 0 and text in done.text


def as_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a level of x86-64 a build; skips the test on a processor below it."""
    if platform.machine() != "x86_64":
        pytest.skip("these are levels of x86-64")
    has = " ".join(shipped.cpuinfo())
    if (level == "x86-64-v4" and "avx512bw" not in has) or (level == "x86-64-v3" and "avx2" not in has):
        pytest.skip(f"this processor is below {level}")
    monkeypatch.setitem(FOREIGN, level, Foreign("cc", level))


def as_arm(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a processor of ARM's, whose programs are emulated, a build."""
    monkeypatch.setitem(FOREIGN, processor, Foreign(FOREIGN["aarch64"].command, processor, FOREIGN["aarch64"].runner))


class Tensor:
    """The memory of a kernel-level tensor over these axes (dims of several axes are contiguous): NaN, and NaN in gaps. Along
    the last one, what is between elements that are `step` apart is NaN that may be read.
    """

    def __init__(self, extents: Sequence[int], strides: Sequence[int], dtype: np.dtype, step: int = 1) -> None:
        span = 0 if 0 in extents else 1 + sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        self.strides = list(strides)
        self.image = np.full(span * dtype.itemsize, 0xFF, np.uint8)
        self.elements = self._seen(self.image.view(dtype), extents, self.strides)
        self.outside = np.ones(span, np.bool_)  # what no element is in
        self._seen(self.outside, extents, self.strides)[...] = False
        if step > 1 and span:
            between = [*extents[:-1], (extents[-1] - 1) * step + 1]
            self._seen(self.outside, between, [*strides[:-1], 1])[...] = False

    @staticmethod
    def _seen(image: np.ndarray, extents: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        strides = [s * image.itemsize for s in steps]
        return np.lib.stride_tricks.as_strided(image, extents, strides) if image.size else image.reshape(extents)

    def record(self) -> bytes:
        edges = np.flatnonzero(self.outside[1:] != self.outside[:-1]) + 1
        gaps = np.stack([edges[::2], edges[1::2] - edges[::2]], axis=1).ravel() * self.elements.itemsize
        return numbers(self.image.size) + self.image.tobytes() + numbers(gaps.size, *gaps.tolist())


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _strides(dims: AxisDims, extents: Mapping[str, int], itemsize: int, gap: int, step: int) -> dict[str, int]:
    """Strides in elements of axes that are stored in this order, with so many bytes at least after each row; that of the last one
    is `step`.
    """
    found: dict[str, int] = {}
    for k, d in enumerate(reversed(dims)):
        for a in reversed(d):
            found[a] = step
            step *= extents[a]
        if k == 0:
            step = -(-(step * itemsize + gap) // 8) * 8 // itemsize if gap else step
    return found


def compiled(build: str, source: str, name: str, parts: Sequence[str] = ()) -> Path:
    """The library of generated C with the flags of a build."""
    with building(build) as flags, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_CFLAGS", " ".join(flags))
        return toolchain.compile(source, name=name, parts=parts)


def run_launchers(
    build: str, library: Path, launchers: Sequence[str], records: Sequence[bytes], threads: int
) -> tuple[Outcome, np.ndarray]:
    """Run launchers of a library on cases (see `HARNESS`), and the bytes of all tensors as they leave them."""
    main = program(build, HARNESS)
    with tempfile.TemporaryDirectory() as folder:
        given, results = Path(folder, "cases"), Path(folder, "results")
        given.write_bytes(b"".join(numbers(threads) + r for r in records))
        runner = FOREIGN[build].runner if build in FOREIGN else ()
        done = run(main, str(library), str(given), str(results), *launchers, runner=runner)
        return done, np.fromfile(results, np.uint8) if done.status == 0 else np.empty(0, np.uint8)


class Kernels:
    """A muGraph of graph-defined kernels alone, printed for one schedule, and the cases to run it on."""

    def __init__(
        self,
        program: Program,
        graph: MuGraph,
        schedule: Schedule,
        hints: Mapping[str, int],
        maximum: RunningMaximum | None = None,
    ) -> None:
        self.program = program
        self.graph = graph
        self.schedule = schedule
        self.dtype = DTYPES[graph.dtype]
        self.emitted: Emitted = Emitter(graph, schedule, maximum or analyze(graph), hints).emit()
        self.launchers = [s.function for s in self.emitted.stages if isinstance(s, CodeStage)]
        assert len(self.launchers) == len(self.emitted.stages), "library stages are not C"

    def run(self, build: str, cases: Sequence[Case], threads: int = 0) -> Outcome:
        """Run the cases, which take the results. With 0 threads, each cell runs alone, the last one first."""
        library = compiled(build, self.emitted.source, self.graph.name[:40], self.emitted.parts)
        done, data = run_launchers(build, library, self.launchers, [c.record() for c in cases], threads)
        if done.status == 0:
            for c in cases:
                data = c.take(data)
        return done

    def check(self, build: str, sizes: Iterable[Mapping[str, int]], threads: int = 0) -> None:
        """Run them at these sizes of the dim symbols, every other time with rows apart, and compare the results with the
        program in float64.
        """
        cases = [Case(self, s, gap) for s, gap in zip(sizes, itertools.cycle((GAP, 0)), strict=False)]
        done = self.run(build, cases, threads)
        assert done.status == 0, f"{self}\n{[str(c) for c in cases]}\n{done.text}"
        for c in cases:
            found = error(c.results(), run_reference(self.program, c.inputs, c.symbols, "float64"))
            assert found < bound(self.program.dtype), f"{self}\n{c}: {found}"

    def __str__(self) -> str:
        return f"{self.graph}\n{self.schedule}"


class Case:
    """The arguments of one call at these sizes of the dim symbols, with `gap` bytes at least after each row."""

    def __init__(self, kernels: Kernels, sizes: Mapping[str, int], gap: int) -> None:
        emitted, graph = kernels.emitted, kernels.graph
        self.kernels = kernels
        self.symbols = sizes
        self.gap = gap
        self.axes = kernels.schedule.axis_sizes(graph, sizes)
        self.sizes = [self.axes[a] for a in emitted.axes] + [evaluate(d, sizes) for d in emitted.dims]
        # mostly positive: sums over thousands of elements are far from zero, and small errors small relative to them;
        # small where products of such sums would be too large for the type
        rng = np.random.default_rng(0)
        most = 0.25 if kernels.dtype == np.float16 else 1.0
        types = kernels.program.input_types
        self.inputs = [rng.uniform(-0.25 * most, most, t.bind(sizes)).astype(kernels.dtype) for t in types]
        stored = dict(enumerate(x.dims for x in graph.inputs))
        stored |= {t: o.dims for t, o in zip(emitted.outputs, graph.outputs, strict=True) if t >= emitted.inputs}
        self.tensors: list[Tensor] = []
        read = read_arguments(graph.name, graph.inputs, self.inputs, lambda moves, x: moved(moves, x, sizes))
        packings = {p.tensor: p for p in emitted.packed}
        for t, (axes, dtype) in enumerate(zip(emitted.tensors, emitted.dtypes, strict=True)):
            if t in packings:
                p = packings[t]
                array = p.pack(read[p.input], graph.inputs[p.input].axes, self.axes)
                steps = [s // array.itemsize for s in array.strides]
                self.tensors.append(Tensor(array.shape, steps, dtype))
                self.tensors[-1].elements[...] = array
                self.tensors[-1].strides = p.strides(self.axes)
                continue
            dims = stored.get(t, ())
            if [a for d in dims for a in d] != list(axes):
                dims = tuple((a,) for a in axes)
            step = last_step(graph.inputs[t].moved) if t < len(graph.inputs) else 1
            strides = _strides(dims, self.axes, dtype.itemsize, gap, step)
            self.tensors.append(Tensor([self.axes[a] for a in axes], [strides[a] for a in axes], dtype, step))
        for tensor, array in zip(self.tensors, read, strict=False):
            tensor.elements[...] = array.reshape(tensor.elements.shape)
        self.before = [t.image.copy() for t in self.tensors]

    def record(self) -> bytes:
        strides = [s for t in self.tensors for s in t.strides]
        head = numbers(len(self.sizes), *self.sizes, len(strides), *strides, len(self.tensors))
        return head + b"".join(t.record() for t in self.tensors)

    def __str__(self) -> str:
        return f"{dict(self.symbols)}, gaps of {self.gap}"

    def take(self, data: np.ndarray) -> np.ndarray:
        """Take the tensors as the kernels left them from the front of `data`; the rest of it."""
        for t, (tensor, before) in enumerate(zip(self.tensors, self.before, strict=True)):
            tensor.image[...] = data[: tensor.image.size]
            data = data[tensor.image.size :]
            given = t < self.kernels.emitted.inputs or t in {p.tensor for p in self.kernels.emitted.packed}
            kept = slice(None) if given else tensor.outside
            rows = (len(tensor.outside), -1)
            same = tensor.image.reshape(rows)[kept] == before.reshape(rows)[kept] if before.size else np.True_
            assert same.all(), f"{self.kernels.graph}: tensor {t} is overwritten"
        return data

    def results(self) -> list[np.ndarray]:
        """The program's outputs."""
        found: list[np.ndarray] = []
        emitted = self.kernels.emitted
        for t, o in zip(emitted.outputs, self.kernels.graph.outputs, strict=True):
            order, axes = emitted.tensors[t], [a for d in o.dims for a in d]
            value = self.tensors[t].elements.transpose([order.index(a) for a in axes if a in order])
            value = value.reshape([self.axes[a] if a in order else 1 for a in axes])
            full = np.broadcast_to(value, [self.axes[a] for a in axes])
            found.append(full.reshape([prod(self.axes[a] for a in d) for d in o.dims]))
        return found
