"""The physical limit of this machine, measured, and that of a program on it.

No kernel is faster than the compulsory bytes at the memory's bandwidth, or the arithmetic at the peak of fused
multiply-adds (the roofline model, Williams et al., 2009).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import mmap
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated

import numpy as np

from mirage.errors import MirageError
from mirage.folders import write_whole
from mirage.ir.axes import AxisDims, AxisNode, AxisProgram
from mirage.ir.codec import above_zero, decode, encode, read_json
from mirage.ir.dims import evaluate
from mirage.ir.operator import FOLDS, Elementwise, get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.processor import Processor, processor
from mirage.settings import cache_dir, num_threads

#: time for a loop; memory, where only undisturbed runs tell, takes twice as long
_SECONDS = 0.06
#: bytes read from memory: well beyond the caches, within reason
_MIN_BYTES, _MAX_BYTES = 64 << 20, 512 << 20
#: as many threads as the pool has at most
_MAX_THREADS, _CELLS_PER_THREAD = 1024, 16
#: parts of the memory that are read in turns
_WINDOWS = 16
#: multiply-adds of a cell in each register
_REPEATS = 1 << 13
_FILL, _MULTIPLY = range(2)
#: the loops that read: one stream of memory, fetched ahead, or four side by side, left to the processor's own prefetching
_READERS = {"1 stream": 2, "4 streams": 3}
#: a loop that writes half of what it moves
_COPY = {"copy": 4}
#: bytes of a huge page, where there are some
_PAGE = 2 << 20


@dataclass(frozen=True)
class Limits:
    """What the machine does at best with `threads` threads.

    10^9 bytes per second read from memory (`dram_gbs`) and from the cores' second-level caches (`cache_gbs`), and
    10^9 float32 operations per second (`gflops`), a multiply-add being two.
    """

    dram_gbs: Annotated[float, above_zero]
    cache_gbs: Annotated[float, above_zero]
    gflops: Annotated[float, above_zero]
    threads: int


def measure_limits(force: bool = False) -> Limits:
    """The limits of this machine with `num_threads()` threads.

    Measured once, in about 0.3 s, and kept in the cache folder; `force` measures again. Where other processes keep
    the cores busy, the memory's bandwidth comes out too low. Raises what compiling raises (see
    `toolchain.compile`), and MirageError if there is no memory.
    """
    target, threads = processor(), num_threads()
    key = f"{target} {threads} threads"
    file = cache_dir() / f"limits-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if not force and (kept := _read(file, key)) is not None:
        return kept
    size = min(max(8 * target.cache_bytes, _MIN_BYTES), _MAX_BYTES)
    limits = _Loops(target, threads, size).measure()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, json.dumps(encode(_Kept(key, limits))))
    return limits


@dataclass(frozen=True)
class _Kept:
    machine: str
    limits: Limits


def _read(file: Path, key: str) -> Limits | None:
    """The limits in the file; None where it is missing, damaged or of another machine."""
    try:
        found = decode(_Kept, read_json(file), str(file))
    except MirageError:
        return None
    return found.limits if found.machine == key else None


class _Loops:
    """The loops of limits.c on the pool, on so many bytes of memory."""

    def __init__(self, target: Processor, threads: int, size: int) -> None:
        library = toolchain.library("limits")
        self._run = library.mi_limits_run
        self._run.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_long,) * 4,
            ctypes.c_int,
        ]
        self._run.restype = ctypes.c_int
        library.mi_limits_step.restype = library.mi_limits_multiplied.restype = ctypes.c_long
        #: float32 elements that one pass of a loop handles, and multiply-adds of one that multiplies
        self._step: int = library.mi_limits_step()
        self._multiplied: int = library.mi_limits_multiplied()
        self._target = target
        self._threads = min(threads, _MAX_THREADS)
        self._cells = self._threads * _CELLS_PER_THREAD
        self._cell = self._elements(size / self._cells)
        self._data = huge_pages(self._cells * self._cell)
        self._times = np.zeros(self._cells, ctypes.c_long)
        # each thread touches its own pages first, as memory is next to the core that does
        self._call(_FILL, self._data.ctypes.data, self._cell, self._cell, 1)

    def movers(self, writes: bool) -> dict[str, Callable[[], object]]:
        """Functions that go through all of the memory once: by several loops, in blocks per thread and in smaller ones."""
        run, data, times = pool.run_address(), self._data.ctypes.data, self._times.ctypes.data
        found: dict[str, Callable[[], object]] = {}
        for blocks in (1, _CELLS_PER_THREAD):
            cells, n = self._threads * blocks, self._cell * (_CELLS_PER_THREAD // blocks)
            for label, what in (_READERS | _COPY if writes else _READERS).items():
                call = functools.partial(self._move, run, what, data, times, cells, n, n, 1, self._threads)
                found[f"{label}, {blocks} per thread"] = call
        return found

    def _move(self, *arguments: int) -> None:
        # a method, so that the memory lives as long as who moves it
        self._run(*arguments)

    def measure(self) -> Limits:
        # a run reads one of the windows, which is out of the caches when its turn comes again
        n = self._elements(self._data.nbytes / self._cells / _WINDOWS)
        runs = [self._time(loop, n, n, 1, _SECONDS, windows=_WINDOWS)[0] for loop in _READERS.values()]
        dram = self._cells * n * 4 / min(runs)
        # all cells read the same part, so that each core has it in its second-level cache
        n = self._elements(self._target.l2_bytes / 2)
        cells = [self._time(loop, n, 0, 1, _SECONDS / 2)[1] for loop in _READERS.values()]
        cache = self._threads * n * 4 / min(cells)
        # values that neither grow nor become subnormal
        self._data[:2] = 0.5, 1.0
        _, cell = self._time(_MULTIPLY, 0, 0, _REPEATS, _SECONDS)
        return Limits(dram, max(cache, dram), self._threads * self._multiplied * _REPEATS * 2 / cell, self._threads)

    def _elements(self, size: float) -> int:
        """Whole steps of a loop in so many bytes, at least one."""
        return max(int(size / 4) // self._step, 1) * self._step

    def _time(
        self, what: int, n: int, stride: int, repeats: int, seconds: float, windows: int = 1
    ) -> tuple[int, float]:
        """Least nanoseconds of a run, and median of a cell, over as many runs as fit in `seconds`.

        What cores do not share is measured by the cells: other processes that take turns on the cores disturb few of
        them. What they share, memory, has to be measured by runs, which are short so that some are undisturbed.
        """
        address = self._data.ctypes.data
        runs: list[int] = []
        cells: list[float] = []
        until = perf_counter_ns() + seconds * 1e9
        while not runs or perf_counter_ns() < until:
            window = address + len(runs) % windows * self._cells * n * 4
            start = perf_counter_ns()
            self._call(what, window, n, stride, repeats)
            runs.append(max(perf_counter_ns() - start, 1))
            cells.append(float(np.median(self._times)))
        return min(runs), max(statistics.median(cells), 1.0)

    def _call(self, what: int, address: int, n: int, stride: int, repeats: int) -> None:
        times, run = self._times.ctypes.data, pool.run_address()
        if self._run(run, what, address, times, self._cells, n, stride, repeats, self._threads):
            raise MirageError("no memory to measure the machine's limits; free some memory")


def huge_pages(n: int) -> np.ndarray:
    """So many float32 elements from a page's first byte on, in huge pages where the system has them."""
    memory = mmap.mmap(-1, 4 * n + 2 * _PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # refused by systems without them
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % _PAGE
    return whole[start : start + 4 * n].view(np.float32)


def memory_movers(size: int, writes: bool) -> dict[str, Callable[[], object]]:
    """By label, functions that move about `size` bytes, their own, once with `num_threads()` threads, and do nothing else.

    All of them read, and with `writes` some read half and write half: memory may take what is written while it gives what is
    read. The fastest tells what a call that has to move as many takes at least, where they are raced in turns: the bandwidth
    that other processes leave changes from one second to the next. Raises what `measure_limits` raises.
    """
    return _Loops(processor(), num_threads(), size).movers(writes)


def limit_us(bytes_moved: int, flops: int, limits: Limits, target: Processor, cold: bool = False) -> float:
    """The least microseconds for reading and writing these bytes once and doing these float32 operations.

    The bandwidth is the caches' if the last level holds all of the bytes, and the memory's where they are `cold`.
    """
    cached = not cold and bytes_moved <= target.cache_bytes
    bandwidth = limits.cache_gbs if cached else limits.dram_gbs
    return max(bytes_moved / bandwidth, flops / limits.gflops) * 1e-3


def program_cost(axis_program: AxisProgram, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Compulsory bytes and operations of a program at these sizes (dim symbol -> size).

    Bytes: every argument that is used and every output, once. Operations: 2 per multiply-add of a matmul, 1 per element
    of a sum, `Elementwise.flops` per element of the others, each operator once as the program has it: values that differ
    only in which inputs read an argument are one.
    """
    extents = {a: evaluate(d, sizes) for a, d in axis_program.axes.items()}
    nodes = axis_program.nodes
    used = {i for n in nodes for i in n.operands} | {o.value for o in axis_program.outputs}
    read = [i in used for i, n in enumerate(nodes) if n.op == "input"]
    # of what is moved, the argument as it is, which is no input of its own
    wanted = {x.argument for x, used in zip(axis_program.inputs, read, strict=True) if used}
    arguments = [(x.dims, x.dtype) for x in axis_program.inputs if x.argument == x.name and x.name in wanted]
    tensors: list[tuple[AxisDims, str]] = [*arguments, *((o.dims, "") for o in axis_program.outputs)]
    moved = sum(
        ELEMENTS[dtype or axis_program.dtype].itemsize * prod(extents[a] for d in dims for a in d) for dims, dtype in tensors
    )
    computed = _distinct(axis_program)
    flops = sum(_flops_per_point(n) * prod(extents[a] for a in (*n.axes, *n.reduce)) for n in computed)
    return moved, flops


def _distinct(program: AxisProgram) -> list[AxisNode]:
    """The nodes without those that compute what an earlier one does, under other axes of the same arguments."""
    inputs = iter(program.inputs)
    #: per node, a number that equal values share, and its axes in an order that they share
    values: list[tuple[int, list[str]]] = []
    numbers: dict[object, int] = {}
    found: list[AxisNode] = []
    for n in program.nodes:
        key: object
        if n.op == "input":
            x = next(inputs)
            axes = list(x.axes)
            key = x.argument, x.moved, [program.axes[a] for a in axes]
        else:
            operands = [values[i] for i in n.operands]
            axes = list(dict.fromkeys(a for _, own in operands for a in own))
            places = [(number, [axes.index(a) for a in own]) for number, own in operands]
            joined = n.joined and [axes.index(a) for a in n.joined[1]]
            key = n.op, n.attrs, places, sorted(axes.index(a) for a in n.reduce), joined
            axes = [a for a in axes if a in n.axes] + [a for a in n.axes if a not in axes]
        count = len(numbers)
        values.append((numbers.setdefault(repr(key), count), axes))
        if len(numbers) > count:
            found.append(n)
    return found


def _flops_per_point(n: AxisNode) -> int:
    """Operations for each element of a node's result, or for each that it sums."""
    if n.op == "matmul":
        return 2
    if n.op in FOLDS:
        return 1
    op = get_operator(n.op) if n.op not in ("input", "concat") else None
    return op.flops if isinstance(op, Elementwise) else 0
