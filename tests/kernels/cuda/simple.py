"""Plain schedules for CUDA, the interpreter that tests share, and comparisons with float64."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS, STORED_INTEGERS, TensorType, epsilon
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule, next_power
from mirage.mugraph.graph import MuGraph, Role

#: tiles of the literal axes that are looped over
LOOP = 128


def simple_schedule(graph: MuGraph, sizes: Mapping[str, int], dot: bool = True, splits: int = 3) -> CudaSchedule:
    """A few cells at these sizes, most with tails: tiles along the last grid axes, and rooms for these sizes and 16."""
    table = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    kernels = []
    for n in graph.kernels:
        assert n.graph is not None
        tiles, split, rooms = [], [], []
        left = 1024 if dot else 64
        for a, role in reversed(n.graph.roles):
            symbolic = a in graph.axes and not graph.axes[a].is_Integer
            size = table.get(a, splits)
            if role is Role.PARALLEL:
                tile = min(32 if symbolic or not dot else 256, next_power(size), left)
                left //= tile
                tiles.append((a, tile))
            elif role is not Role.WHOLE:
                tiles.append((a, 16 if symbolic or not dot else LOOP))
                if role is Role.SPLIT:
                    split.append((a, splits))
            if symbolic and role is not Role.PARALLEL:
                rooms.append((a, next_power(max(size, 16))))
        kernels.append(CudaKernelSchedule(tuple(tiles), tuple(split), tuple(rooms), dot=dot))
    return CudaSchedule(tuple(kernels))


def arguments(program: Program, sizes: Mapping[str, int], scale: float = 1.0) -> list[np.ndarray]:
    """Arguments drawn with a seed from the program's name and sizes."""
    rng = np.random.default_rng(zlib.crc32(f"{program.name}{sorted(sizes.items())}".encode()))
    types = [n.type for n in program.nodes if n.op == "input"]
    return [_drawn(rng, t, t.bind(sizes), scale) for t in types]


def _drawn(rng: np.random.Generator, t: TensorType, shape: tuple[int, ...], scale: float) -> np.ndarray:
    drawn = scale * rng.standard_normal(shape)
    if t.dtype in STORED_INTEGERS:
        # whole numbers of about that size
        drawn = np.rint(np.abs(drawn) if t.dtype.startswith("u") else drawn)
    return drawn.astype(ELEMENTS[t.dtype])


def error(
    interpreter: Interpreter, program: Program, graph: MuGraph, schedule: CudaSchedule, sizes: Mapping[str, int]
) -> float:
    """The largest error of a result against float64, as a share of the result's largest element, in epsilons."""
    given = arguments(program, sizes)
    found = interpreter.run(emit(graph, schedule), graph, given, sizes)
    want = run_reference(program, given, sizes, "float64")
    worst = 0.0
    for x, y in zip(found, want, strict=True):
        assert x.shape == y.shape
        assert x.dtype == DTYPES[graph.dtype]
        if y.size:
            scale = max(float(np.abs(y).max()), 1e-30)
            worst = max(worst, float(np.abs(x.astype(np.float64) - y).max()) / scale)
    return worst / epsilon(DTYPES[graph.dtype])
