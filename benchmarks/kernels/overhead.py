"""What a call of a result costs above its C kernel: `python -m benchmarks.kernels.overhead [--json]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import typer

import mirage as mi
from benchmarks.tables import Table, emit
from benchmarks.timing import each
from mirage.cli_shared import AsJson
from mirage.errors import VerificationError
from mirage.kernels.cpu.launch.memory import address
from mirage.results.cpu.result import Superoptimized
from mirage.search.inputs import random_inputs

#: calls that are timed together, and how often, in turns
_CALLS, _ROUNDS = 50, 400
#: items of a list
_ITEMS = 10_000
#: seconds to superoptimize a program
_BUDGET = 6.0


@mi.program(x=mi.tensor("b", 16), sizes={"b": 1})
def softmax_row(x: Any) -> Any:
    """One argument."""
    return mi.softmax(x)


@mi.program(x=mi.tensor("b", 16), w1=mi.tensor(16, 4), w2=mi.tensor(4, 16), sizes={"b": 1})
def adapter(x: Any, w1: Any, w2: Any) -> Any:
    """Three arguments."""
    return mi.relu(x @ w1) @ w2 + x


_VECTOR = mi.tensor(1)


@mi.function(xs=mi.List(_VECTOR), done=mi.List(_VECTOR))
def reverse(xs: Any, done: Any) -> Any:
    """A list in the other order: a call, a match and a cell for each item."""
    return mi.match(xs, {mi.Nil: lambda: done, mi.Cons: lambda x, rest: reverse(rest, mi.Cons(x, done))})


@dataclass(frozen=True)
class OverheadRow:
    """Microseconds of one call: of the C kernel alone, called by ctypes with arguments made beforehand, and above it."""

    program: str
    arguments: int
    kind: str
    kernel_us: float
    above_us: float
    above_median_us: float


def measure(say: Callable[[str], None] = lambda _: None) -> Iterator[OverheadRow]:
    """Rows of tiny programs for arrays of NumPy and torch, new results and given ones.

    One row of 16 elements: the kernel does next to nothing.
    """
    for function in (softmax_row, adapter):
        say(f"overhead of {function.name}")
        result = mi.superoptimize(function, budget=_BUDGET, cache=False, seed=0)
        yield from _rows(result)
    yield _calls()


def _calls() -> OverheadRow:
    """A call of a function that only moves values, by the item of a list that is read, reversed and handed out."""
    run, xs = mi.compile(reverse), [np.ones(1, np.float32)] * _ITEMS
    times = [each(lambda: run(xs, []), 1) / _ITEMS for _ in range(_ROUNDS)]
    return OverheadRow(reverse.name, 2, "item of a list", 0.0, min(times), median(times))


def _rows(result: Superoptimized) -> Iterator[OverheadRow]:
    program = result.program
    arrays = random_inputs(program, result.sizes, seed=0)
    out = np.empty_like(result(*arrays))
    versions = {
        "kernel": _kernel(result, [*arrays, out]),
        "NumPy": lambda: result(*arrays),
        "NumPy, out=": lambda: result(*arrays, out=out),
    }
    if find_spec("torch") is not None:
        from_numpy = import_module("torch").from_numpy
        tensors, given = [from_numpy(a) for a in arrays], from_numpy(out)
        versions["torch"] = lambda: result(*tensors)
        versions["torch, out="] = lambda: result(*tensors, out=given)
    times: dict[str, list[float]] = {name: [] for name in versions}
    for _ in range(_ROUNDS):
        for name, run in versions.items():
            times[name].append(each(run, _CALLS))
    kernel = times.pop("kernel")
    for kind, t in times.items():
        above = min(t) - min(kernel), median(t) - median(kernel)
        yield OverheadRow(program.name, len(arrays), kind, min(kernel), *above)


def _kernel(result: Superoptimized, arrays: Sequence[np.ndarray]) -> Callable[[], object]:
    """The C functions of a result for these arguments and results, called by ctypes with everything made beforehand.

    Raises VerificationError where a result runs no kernel alone.
    """
    executable = result.best.candidate.executable if result.best.candidate is not None else None
    call = executable.bind(result.sizes, [a.strides for a in arrays]) if executable is not None else None
    if call is None or len(call.code.functions) != 1:
        raise VerificationError(
            f"{result.program.name}: no C kernel alone is the best version here; nothing to compare with"
        )
    frame = call.make()
    frame.take([])
    for t, k in call.places:
        frame.tensors[t] = address(arrays[k])
    return partial(call.code.run, frame, *call.code.functions)


def overhead_table(rows: Sequence[OverheadRow]) -> Table:
    header = ["program", "arguments", "arrays", "C kernel, us", "call above it, us", "median"]
    return Table(
        header,
        [
            [r.program, str(r.arguments), r.kind, f"{r.kernel_us:.2f}", f"{r.above_us:.2f}", f"{r.above_median_us:.2f}"]
            for r in rows
        ],
    )


def main(as_json: AsJson = False) -> None:
    rows = list(measure(lambda line: print(line, file=sys.stderr, flush=True)))
    emit(rows, as_json, overhead_table)


if __name__ == "__main__":
    typer.run(main)
