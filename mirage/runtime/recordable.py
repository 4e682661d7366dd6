"""Which programs a CUDA graph can record: those that do the same whatever their arguments contain (Relax, section 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage.kernels.cuda.library.blas import FUNCTIONS
from mirage.runtime import program as vm

#: operators whose results are numbers of the host
_NUMBERS = ("constant", "size")
#: why a function cannot be recorded, by an instruction of it
_OBSTACLES: Sequence[tuple[type[vm.Instruction], Callable[..., str]]] = (
    (vm.If, lambda i: f"whether {i.then} or {i.orelse} runs is in the data"),
    (vm.Loop, lambda i: "" if i.times is None else f"how often {i.body} runs is in the data"),
    (vm.CallPacked, lambda i: f"{i.function} is a Python function"),
    (vm.CallOperator, lambda i: "" if i.operator in _NUMBERS else f"{i.operator} is no kernel"),
    (vm.CallLibrary, lambda i: "" if i.function in FUNCTIONS else f"{i.function} is no built-in library function"),
    (vm.AllocStorage, lambda i: "" if i.offset is not None else "sizes without bounds take memory that grows"),
)


def obstacle(program: vm.VMProgram, constants: Sequence[Sequence[int]]) -> str:
    """Why the main function of a program cannot be recorded as a CUDA graph; empty if it can.

    `constants` are, per kernel, the positions of inputs that it may keep packed copies of: these must be arguments of the main
    function, whose lives tell how long a graph that reads the copies is right.
    """
    for name in _reached(program):
        function = program.functions[name]
        for i in function.code:
            why = next((text for kind, tell in _OBSTACLES if isinstance(i, kind) and (text := tell(i))), "")
            if isinstance(i, vm.CallKernel) and not why:
                kept = [i.inputs[k] for k in constants[i.kernel]]
                given = len(function.parameters) if name == program.main else 0
                if any(r >= given for r in kept):
                    why = f"{program.kernels[i.kernel]} has packed copies of what is no argument"
            if why:
                return f"{name}: {why}"
    return ""


def constant_arguments(program: vm.VMProgram, constants: Sequence[Sequence[int]]) -> frozenset[int]:
    """Positions of the arguments of the main function that kernels may keep packed copies of."""
    calls = (i for i in program.functions[program.main].code if isinstance(i, vm.CallKernel))
    return frozenset(i.inputs[k] for i in calls for k in constants[i.kernel])


def _reached(program: vm.VMProgram) -> list[str]:
    """The functions that a call of the main one may run, that one first."""
    found = [program.main]
    for name in found:
        for i in program.functions[name].code:
            match i:
                case vm.CallFunction(_, callee) | vm.Loop(_, callee):
                    names: tuple[str, ...] = (callee,)
                case vm.If(_, _, then, orelse):
                    names = (then, orelse)
                case _:
                    names = ()
            found += [n for n in names if n not in found]
    return found
