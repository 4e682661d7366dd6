"""What the virtual machine costs: calls of tiny programs, whole and per instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

import mirage as mi
from benchmarks.tables import Table
from benchmarks.timing import each
from mirage.errors import VerificationError
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable

#: calls that are timed together, and how often, in turns
_CALLS, _ROUNDS = 20, 300
#: how many more instructions the longer version of a program has, and rounds of a loop
_MORE = 16
_ROW, _WEIGHT = mi.tensor("b", 16), mi.tensor(16, 16)
_ALL = ("superoptimize", "libraries", "fuse")


def _identity(x: Any) -> Any:
    return x


def _softmax(x: Any) -> Any:
    return mi.softmax(x)


def _masked(x: Any) -> Any:
    return mi.where(x > 0, x, 0.0)


def _linear(x: Any, w: Any) -> Any:
    return x @ w


def _rounds(x: Any, steps: Any) -> Any:
    return mi.loop(steps, lambda i, y: mi.where(y > 0, y, 0.0), x, bound=1 + _MORE)


@dataclass(frozen=True)
class _Tiny:
    """A program of one instruction besides those for memory; the optimizations that it leaves out make it so."""

    fn: Callable[..., Any]
    specs: Mapping[str, Any]
    without: tuple[str, ...] = ("superoptimize",)


_PROGRAMS: Mapping[str, _Tiny] = {
    "no instruction": _Tiny(_identity, {"x": _ROW}),
    "fused muGraph": _Tiny(_softmax, {"x": _ROW}),
    "fused loops": _Tiny(_masked, {"x": _ROW}),
    "library function": _Tiny(_linear, {"x": _ROW, "w": _WEIGHT}),
    "NumPy operator": _Tiny(_linear, {"x": _ROW, "w": _WEIGHT}, _ALL),
    "round of a loop": _Tiny(_rounds, {"x": _ROW, "steps": mi.tensor(dtype="int64")}),
}


@dataclass(frozen=True)
class DispatchRow:
    """Microseconds of a call of a program with one such instruction, and of each further one, with the work that it does."""

    instruction: str
    call_us: float
    call_median_us: float
    instruction_us: float
    instruction_median_us: float


def measure(say: Callable[[str], None] = lambda _: None) -> Iterator[DispatchRow]:
    """A row per kind of instruction, on one row of 16 elements."""
    for name, tiny in _PROGRAMS.items():
        say(f"dispatch: {name}")
        executable = mi.compile(tiny.fn, tiny.specs, without=tiny.without, cache=False)
        rng = np.random.default_rng(0)
        shapes = [t.bind({"b": 1}) for n, t in tiny.specs.items() if n != "steps"]
        arguments = [rng.standard_normal(shape, np.float32) for shape in shapes]
        one, more = _versions(executable, arguments, "steps" in tiny.specs)
        times: dict[Callable[[], object], list[float]] = {one: [], more: []}
        for _ in range(_ROUNDS):
            for run in times:
                times[run].append(each(run, _CALLS))
        extra = 0 if name == "no instruction" else _MORE
        low, middle = min(times[one]), median(times[one])
        per = ((min(times[more]) - low) / extra, (median(times[more]) - middle) / extra) if extra else (0.0, 0.0)
        yield DispatchRow(name, low, middle, *per)


def _versions(
    executable: Executable, arguments: Sequence[np.ndarray], loops: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The program as it is, and with `_MORE` more instructions or rounds."""
    if loops:
        few, many = np.array(1), np.array(1 + _MORE)
        return lambda: executable(*arguments, few), lambda: executable(*arguments, many)
    longer = Executable(
        repeated(executable.program, _MORE), executable.kernels, executable._constants, executable.facts
    )
    return lambda: executable(*arguments), lambda: longer(*arguments)


def repeated(program: vm.VMProgram, more: int) -> vm.VMProgram:
    """A program whose main function does its one call so many more times, with the same operands.

    Raises VerificationError for one with several calls.
    """
    main = program.functions[program.main]
    code: list[vm.Instruction] = []
    registers, calls = main.registers, 0
    for i in main.code:
        code.append(i)
        if isinstance(i, vm.CallKernel | vm.CallLibrary):
            code += [i] * more
            calls += 1
        elif isinstance(i, vm.CallOperator):
            # a register is written once
            code += [replace(i, out=registers + k) for k in range(more)]
            registers += more
            calls += 1
    if calls > 1:
        raise VerificationError(f"{main.name} makes {calls} calls; measure one with a single call")
    return replace(
        program, functions={**program.functions, main.name: replace(main, code=tuple(code), registers=registers)}
    )


def dispatch_table(rows: Sequence[DispatchRow]) -> Table:
    header = ["instruction", "a call with one, us", "median", "each further one, us", "median"]
    return Table(header, [_cells(r) for r in rows])


def _cells(r: DispatchRow) -> list[str]:
    further = [f"{t:.2f}" if t else "" for t in (r.instruction_us, r.instruction_median_us)]
    return [r.instruction, f"{r.call_us:.2f}", f"{r.call_median_us:.2f}", *further]
