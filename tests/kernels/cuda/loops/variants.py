"""Loop programs under several schedules, run by Triton's interpreter and compared with their meaning in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir.dims import Dim
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.loops.emit import EmittedLoops, emit
from mirage.kernels.cuda.loops.schedule import LoopSchedule
from mirage.kernels.cuda.loops.structure import Kernel
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.kernels.cuda.loops.interpret import interpret


class Parts:
    """All reductions in as many parts, and nothing beside them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def shares(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> bool:
        return False

    def parts(self, kernel: Kernel) -> int:
        return self.count


def small(schedule: LoopSchedule) -> LoopSchedule:
    """Blocks of a few elements, with rows gone over in several steps."""
    if schedule.columns:
        columns = tuple(min(n, 4) for n in schedule.columns)
        return replace(schedule, whole=False, columns=columns, rows=min(schedule.rows, 2))
    return replace(schedule, rows=min(schedule.rows, 8), seconds=min(schedule.seconds, 2))


def variants(versions: LoopVersions, sizes: Mapping[str, int]) -> Iterator[EmittedLoops]:
    """The source for these sizes, and one with small blocks and 64-bit indices."""
    yield versions.emitted(sizes)
    schedules = [small(s) for s in versions.schedules(sizes)]
    yield emit(versions.program, versions.kernels, schedules, "i64")


def compare(
    interpreter: Interpreter,
    emitted: EmittedLoops,
    arrays: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    wanted: Sequence[np.ndarray],
    tolerance: Callable[[np.ndarray], float],
) -> None:
    """Raises AssertionError where the kernels give other results; integers and booleans have to be equal."""
    found, failures = interpret(interpreter, emitted, arrays, sizes)
    assert not failures.any()
    for x, y in zip(found, wanted, strict=True):
        a, b = x.astype(np.float64), y.astype(np.float64)
        share = tolerance(x) if x.dtype in DTYPES.values() else 0.0
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))))
        np.testing.assert_allclose(a, b, share, share * scale, err_msg=f"{dict(sizes)}\n{emitted.source}")
