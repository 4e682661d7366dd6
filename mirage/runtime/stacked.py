"""Functions whose calls are on a stack of the machine's own: those that call themselves, or functions that are values.

They only move values, make data and decide what is called next; what is computed is in functions of the other kind, which are
called as any others. A call that is the last thing a function does takes its place on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import sympy

from mirage.errors import GuardError
from mirage.ir.data import Record
from mirage.ir.graph.patterns import Bind, Case, Wildcard, bound
from mirage.ir.graph.values import MAX_DEPTH, FunctionValue, Reference, too_deep
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, getter
from mirage.runtime.recorded import Recorder, settled
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Step, Steps, scalar_of

#: a function to call, its arguments and extra shape arguments
Request: TypeAlias = "tuple[Any, list[Any], tuple[int, ...]]"


class Activation:
    """A call of a stacked function: its registers, sizes, and the step that it is at."""

    __slots__ = ("at", "function", "registers", "rounds", "slots")

    def __init__(self, function: Any, registers: list[Any], slots: Slots) -> None:
        self.function = function
        self.registers = registers
        self.slots = slots
        self.at = 0
        #: of a loop that runs: how many rounds are done, and what is carried
        self.rounds: tuple[int, tuple[Any, ...]] | None = None


def run(function: Any, args: list[Any], dims: tuple[int, ...], recorder: Recorder | None = None) -> Any:
    """The result of a call of a stacked function, with what a `recorder` records still to be run.

    Raises DepthError for calls that are nested too deep.
    """
    stack: list[Activation] = []
    a: Activation = function.activate(args, dims)
    try:
        while True:
            registers, plan, request = a.registers, a.function.plan, None
            for at in range(a.at, len(plan)):
                step, calls = plan[at]
                if calls:
                    request = step(registers, a)
                    if request is not None:
                        a.at = at
                        break
                else:
                    a.at = at
                    step(registers, a)
            if request is None:
                result = registers[a.function.result]
                if not stack:
                    return result
                a = stack.pop()
                a.function.deliver[a.at](a, result)
                continue
            callee, given, sizes = request
            while callee.forward is not None:
                callee, given, sizes = callee.forward(given, None)
            if not callee.stacked:
                result = callee.run(given, sizes, None) if recorder is None else recorder.call(callee, given, sizes)
                a.function.deliver[a.at](a, result)
                continue
            if a.at != a.function.last:
                if len(stack) >= MAX_DEPTH:
                    raise too_deep(len(stack), callee.function.name)
                stack.append(a)
            a = callee.activate(given, sizes)
    except Exception as e:
        f = a.function
        e.add_note(f"in function {f.function.name!r}: {f.function.code[a.at]}")
        raise


def to_register(out: int) -> Callable[[Activation, Any], None]:
    """What a call returns goes into a register, and the next step is the one behind it."""

    def deliver(a: Activation, result: Any) -> None:
        a.registers[out] = result
        a.at += 1

    return deliver


def to_rounds(many: int) -> Callable[[Activation, Any], None]:
    """What a round of a loop returns is carried into the next one."""

    def deliver(a: Activation, result: Any) -> None:
        assert a.rounds is not None
        a.rounds = (a.rounds[0] + 1, result if many != 1 else (result,))

    return deliver


def uses_sizes(function: vm.VMFunction) -> bool:
    """Whether a function does anything with the sizes of its dims."""
    own = [getattr(i, name) for i in function.code for name in ("dims", "shape", "attrs", "count", "bound") if hasattr(i, name)]
    matches = any(isinstance(i, vm.MatchShape) for i in function.code)
    return matches or bool(function.guards) or any(_has_symbols(v) for v in own)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_symbols, value))
    return isinstance(value, sympy.Expr) and bool(value.free_symbols)


def step_of(i: vm.Instruction, make: Steps, functions: Mapping[str, Any]) -> Step | None:
    """The closure of an instruction that calls nothing, of those that only stacked functions have; None for any other."""
    match i:
        case vm.Construct(out, data, index, fields):
            taken = getter(fields)

            def construct(registers: list[Any], frame: Frame) -> None:
                registers[out] = Record(data, index, taken(registers))

            return construct
        case vm.MakeClosure(out, name, args, dims):
            callee, taken, sizes = functions[name], getter(args), make.slots(dims)

            def close(registers: list[Any], frame: Frame) -> None:
                registers[out] = FunctionValue(callee, taken(registers), sizes(frame.slots))

            return close
        case vm.Reference(out, "new", (value,)):

            def new(registers: list[Any], frame: Frame) -> None:
                registers[out] = Reference(registers[value])

            return new
        case vm.Reference(out, "read", (value,)):

            def read(registers: list[Any], frame: Frame) -> None:
                registers[out] = registers[value].value

            return read
        case vm.Reference(out, _, (place, value)):

            def write(registers: list[Any], frame: Frame) -> None:
                registers[place].value = registers[value]
                registers[out] = registers[place]

            return write
    return None


def request_of(i: vm.Instruction, make: Steps, functions: Mapping[str, Any]) -> Callable[..., Request | None] | None:
    """What gives the call that an instruction of a stacked function makes; None for an instruction that makes none.

    That of a loop gives None behind the last round.
    """
    match i:
        case vm.CallFunction(_, name, args, dims):
            callee, taken, sizes = functions[name], getter(args), make.slots(dims)
            return lambda registers, frame: (callee, list(taken(registers)), sizes(frame.slots))
        case vm.CallValue(_, value, args):
            taken = getter(args)

            def call_value(registers: list[Any], frame: Frame) -> Request:
                called = registers[value]
                return called.function, [*taken(registers), *called.args], called.dims

            return call_value
        case vm.If(_, condition, then, orelse, args, dims):
            callees, taken, sizes = (functions[then], functions[orelse]), getter(args), make.slots(dims)
            array = make.place.array

            def branch(registers: list[Any], frame: Frame) -> Request:
                callee = callees[0] if scalar_of(settled(registers[condition]), array, "b", "a condition") else callees[1]
                return callee, list(taken(registers)), sizes(frame.slots)

            return branch
        case vm.Match():
            return _match(i, make, functions)
        case vm.Loop():
            return _loop(i, make, functions)
    return None


def _match(i: vm.Match, make: Steps, functions: Mapping[str, Any]) -> Callable[..., Request | None]:
    value, taken, sizes, sized = i.value, getter(i.args), make.slots(i.dims), bool(i.dims)
    callees = [functions[name] for name in i.functions]
    heads = [p for p in i.patterns if isinstance(p, Case) and all(isinstance(f, Bind | Wildcard) for f in p.fields)]
    if len(heads) == len(i.patterns):
        # a constructor each: by its number
        table = {
            p.index: (callee, getter([k for k, f in enumerate(p.fields) if isinstance(f, Bind)]))
            for p, callee in zip(heads, callees, strict=True)
        }

        def dispatch(registers: list[Any], frame: Frame) -> Request:
            record = registers[value]
            callee, fields = table[record.index]
            return callee, [*fields(record.fields), *taken(registers)], sizes(frame.slots) if sized else ()

        return dispatch

    def search(registers: list[Any], frame: Frame) -> Request:
        for p, callee in zip(i.patterns, callees, strict=True):
            found: list[Any] = []
            if bound(p, registers[value], found):
                return callee, [*found, *taken(registers)], sizes(frame.slots) if sized else ()
        raise GuardError("no clause of a match fits a value; compile the program again")

    return search


def _loop(i: vm.Loop, make: Steps, functions: Mapping[str, Any]) -> Callable[..., Request | None]:
    body, carried, invariant, sizes = functions[i.body], getter(i.carried), getter(i.invariant), make.slots(i.dims)
    out, times, many, array_of, array = i.out, i.times, len(i.carried), make.place.array_of, make.place.array
    count = 0 if i.count is None else make.table.slot(i.count, make.stage)
    most = None if i.bound is None else make.table.slot(i.bound, make.stage)

    def next_round(registers: list[Any], a: Activation) -> Request | None:
        n = a.slots[count] if times is None else int(scalar_of(settled(registers[times]), array, "i", "the count of a loop"))
        if most is not None and n > a.slots[most]:
            raise GuardError(f"a loop is to run {n} times, and its bound {i.bound} is {a.slots[most]} here; raise the bound")
        done, state = a.rounds or (0, carried(registers))
        if done >= n:
            a.rounds = None
            registers[out] = state if many != 1 else state[0]
            return None
        a.rounds = (done, state)
        return body, [array_of(done, np.int64), *state, *invariant(registers)], sizes(a.slots)

    return next_round
