"""What a call of a compiled program does: its calls of kernels and libraries, and the memory of intermediate tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import sympy

from benchmarks.stepwise import stepwise
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.memory.buffers import Buffer
from mirage.errors import InputError
from mirage.ir.dims import evaluate
from mirage.ir.types import ELEMENTS
from mirage.kernels.library import LibraryProgram
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable
from mirage.runtime.frame import Frame
from mirage.runtime.steps import Step, Steps, arrays_in


@dataclass(frozen=True)
class Call:
    """One call of the virtual machine.

    `kind` is "kernel", "library", "operator" (of NumPy) or "packed". `launches` is how many kernels and library calls it comes
    to, more than 1 for a muGraph of several kernels; `bytes` are those of its inputs and outputs, and of what is handed on
    between its launches, written and read once. `flops` are those of a matmul.
    """

    kind: str
    name: str
    launches: int
    bytes: int
    flops: int = 0


def calls_of(executable: Executable, arguments: Sequence[Any]) -> list[Call]:
    """The calls that one run with these arguments makes, loops and branches as they are taken.

    What is computed once from constant arguments is not among them.
    """
    calls: list[Call] = []

    def observing(*given: Any) -> _Observing:
        return _Observing(calls, executable, *given)

    observed = stepwise(executable, observing)
    observed(*arguments)
    calls.clear()
    observed(*arguments)
    return calls


class _Observing(Steps):
    """Steps that write down what they did."""

    def __init__(self, calls: list[Call], executable: Executable, *given: Any) -> None:
        super().__init__(*given)
        self._calls, self._executable = calls, executable

    def kernel(self, i: vm.CallKernel) -> Step:
        run, dims = super().kernel(i), self.slots(i.dims)
        name = self._executable.program.kernels[i.kernel]
        kernel = self._executable.kernels[name]

        def step(registers: list[Any], frame: Frame) -> None:
            run(registers, frame)
            sizes = dict(zip(kernel.symbols, dims(frame.slots), strict=True))
            moved = _bytes(registers, (*i.inputs, *i.outputs))
            launches, between = inside(kernel, sizes) if isinstance(kernel, MuGraphKernel) else (1, 0)
            self._calls.append(Call("kernel", name, launches, moved + between))

        return step

    def library(self, i: vm.CallLibrary) -> Step:
        run = super().library(i)

        def step(registers: list[Any], frame: Frame) -> None:
            run(registers, frame)
            flops = 0
            if i.function == "blas.matmul":
                x = registers[i.inputs[0]]
                left = dict(i.attrs).get("left")
                flops = 2 * registers[i.outputs[0]].size * x.shape[left[-1] if left else -1]
            self._calls.append(Call("library", i.function, 1, _bytes(registers, (*i.inputs, *i.outputs)), flops))

        return step

    def operator(self, i: vm.CallOperator) -> Step:
        return self._observed(super().operator(i), "operator", i.operator, (*i.args, i.out))

    def packed(self, i: vm.CallPacked) -> Step:
        # an update in place reads its other arguments, and writes as much
        kept = tuple(r for k, r in enumerate(i.args) if k not in i.in_place)
        return self._observed(super().packed(i), "packed", i.function, (*kept, *(kept if i.in_place else (i.out,))))

    def _observed(self, run: Step, kind: str, name: str, registers_of: tuple[int, ...]) -> Step:
        def step(registers: list[Any], frame: Frame) -> None:
            run(registers, frame)
            self._calls.append(Call(kind, name, 1, sum(_bytes(registers, (r,)) for r in registers_of)))

        return step


def _bytes(registers: list[Any], wanted: Sequence[int]) -> int:
    """Bytes of the tensors in these registers, each register once."""
    return sum(a.nbytes for r in dict.fromkeys(wanted) for a in arrays_in(registers[r]))


def inside(kernel: MuGraphKernel, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Launches of a call at these sizes, and the bytes between them: written and read once each."""
    version = kernel.version(sizes)
    if version.executable is not None:
        need = evaluate(version.executable.workspace(), sizes) * ELEMENTS[kernel.program.dtype].itemsize
        return kernel.launches(sizes), 2 * need
    return kernel.launches(sizes), _library_bytes(kernel.library, sizes)


def _library_bytes(library: LibraryProgram, sizes: Mapping[str, int]) -> int:
    """Bytes of all operands and results of the program's NumPy calls, but for its own inputs and outputs."""
    program = library.program
    extents = {a: evaluate(d, sizes) for a, d in program.axes.items()}
    size = [prod(extents[a] for a in n.axes) for n in program.nodes]
    moved = sum(
        size[k] + sum(size[i] for i in n.operands)
        for k, n in enumerate(program.nodes)
        if n.op not in ("input", "constant", "size")
    )
    own = sum(size[k] for k, n in enumerate(program.nodes) if n.op == "input")
    own += sum(size[o.value] for o in program.outputs)
    return max(moved - own, 0) * ELEMENTS[program.dtype].itemsize


#: the allocations that a register keeps alive; a tuple's, item by item
_Held = frozenset[str] | tuple["_Held", ...]


def allocations(function: vm.VMFunction, left_out: bool = False) -> list[Buffer]:
    """The intermediate tensors of a function: bytes over its dims, and lifetimes in instructions, in the order of its code.

    A tensor is taken by the instruction that makes it, and free after the last one that reads or writes it, or a tuple with it:
    that is where the same code without a plan drops it. Results are not among them. With `left_out`, only those that its
    memory plan leaves to an allocator.
    Raises InputError for code whose allocations are not written there: calls of functions, and NumPy operators.
    """
    held: dict[int, _Held] = {}
    made: dict[str, tuple[sympy.Expr, int]] = {}
    ends: dict[str, int] = {}
    planned: set[str] = set()

    def use(at: int, registers: Sequence[int]) -> None:
        for r in registers:
            ends.update(dict.fromkeys(_all(held.get(r, frozenset())), at))

    for at, i in enumerate(function.code):
        match i:
            case vm.MakeTensor(out, storage, _, shape, dtype):
                made[f"r{out}"] = sympy.Mul(*shape) * ELEMENTS[dtype].itemsize, at
                held[out] = frozenset({f"r{out}"})
                if storage is not None:
                    planned.add(f"r{out}")
            case vm.CallKernel(_, inputs, outputs, _, workspace):
                use(at, (*inputs, *outputs, *workspace))
            case vm.CallLibrary(_, inputs, outputs):
                use(at, (*inputs, *outputs))
            case vm.Reshape(out, value):
                use(at, (value,))
                held[out] = held.get(value, frozenset())
            case vm.MakeTuple(out, items):
                use(at, items)
                held[out] = tuple(held.get(r, frozenset()) for r in items)
            case vm.GetItem(out, value, index):
                use(at, (value,))
                whole = held.get(value, frozenset())
                held[out] = whole[index] if isinstance(whole, tuple) else whole
            case vm.MatchShape(value) | vm.ShapeOf(_, value):
                use(at, (value,))
            case vm.CallOperator() | vm.CallPacked() | vm.CallFunction() | vm.If() | vm.Loop():
                raise InputError(f"{function.name}: the memory of {i} is not known; only calls of kernels are traced")
            case _:
                pass
    last = function.code[-1]
    assert isinstance(last, vm.Return)
    skipped = _all(held.get(last.value, frozenset())) | (planned if left_out else set())
    return [Buffer(n, size, first, ends.get(n, first)) for n, (size, first) in made.items() if n not in skipped]


def _all(held: _Held) -> frozenset[str]:
    return frozenset().union(*map(_all, held)) if isinstance(held, tuple) else held


def array_bytes(values: Any) -> int:
    """Bytes of all arrays in arguments or results, memory that they share counted once."""
    seen: list[np.ndarray] = []
    for a in arrays_in(tuple(values)):
        if not any(np.may_share_memory(a, s) for s in seen):
            seen.append(a)
    return sum(a.nbytes for a in seen)
