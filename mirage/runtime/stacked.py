"""Functions that the machine in C runs (`mirage.runtime.machine`): those that call themselves, or functions that are values.

They only move values, make data and decide what is called next; what is computed is in functions of the other kind, which are
called as any others. A call that is the last thing a function does takes its place on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from mirage.ir.annotations import DataType, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import Dim
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern
from mirage.ir.types import TensorType
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame
from mirage.runtime.function import Function
from mirage.runtime.list_loops import LoopOverList
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Kernel, Step, Steps

#: the instructions of machine.c
(
    _RETURN, _CALL, _CALL_VALUE, _IF, _MATCH, _LOOP, _CONSTRUCT, _TUPLE, _GET_ITEM, _CLOSE, _NEW, _READ, _WRITE, _SIZES,
    _SHAPE_OF, _FREE, _STEP, _CHECK,
) = range(18)  # fmt: skip
#: the patterns of machine.c
_DROP, _BIND, _CASE, _FIELDS = range(4)


class StackedFunction(Function):
    """A function as words of machine.c, in `code`, which may call functions by their numbers; `data` has those of data types.

    What the words leave to Python is in `steps`: each takes values of registers and the sizes of a call. `instructions` are those
    of the program, by where their words begin.
    """

    stacked = True

    def __init__(self, function: vm.VMFunction, place: Place, number: int, data: Mapping[str, int]) -> None:
        super().__init__(function, place, number)
        self.code: list[int] = []
        self.instructions: dict[int, vm.Instruction] = {}
        self.steps: list[Callable[[list[Any], Slots], Any]] = []
        #: what its calls are instead, where the items of a list are alike
        self.loop: LoopOverList | None = None
        #: whether it does anything with sizes, and whether it changes them
        self.sized = _uses_sizes(function)
        self.copies = any(isinstance(i, vm.MatchShape) for i in function.code)
        plain = (TensorType, PartialTensor, ShapeType, TupleType)
        #: the parameters that have shapes
        self.shaped = [k for k, p in enumerate(function.parameters) if isinstance(p.annotation, plain)]
        self._data = data

    def load(self, kernels: Sequence[Kernel], constants: Sequence[PlacedArray], functions: Mapping[str, Function]) -> None:
        super().load(kernels, constants, functions)
        self._add(self.function.code[-1], _RETURN, -1, self._result)
        self.constants = [(register, constants[k]) for register, k in self.function.constants]
        over = self.function.over_list
        if over is not None:
            values, state = (p.annotation for p in self.function.parameters[:2])
            assert isinstance(values, DataType)
            ahead = functions[over.ahead] if over.ahead else None
            self.loop = LoopOverList(over, functions[over.function], ahead, values.arguments[0], state)

    def slots(self, args: list[Any], dims: tuple[int, ...]) -> Slots:
        """The sizes of a call, of whose arguments only the shapes are looked at; raises GuardError where these do not fit."""
        found = self.signature.enter(args, dims).slots
        return found[:] if self.copies else found

    def _add(self, i: vm.Instruction, op: int, out: int, *words: int) -> None:
        self.instructions[len(self.code)] = i
        self.code += [op, out, 3 + len(words), *words]

    def _added(self, out: int, reads: Sequence[int], step: Step) -> int:
        """The number of a step that reads registers and writes one."""
        many = self.function.registers

        def run(values: list[Any], slots: Slots) -> Any:
            registers: list[Any] = [None] * many
            for r, value in zip(reads, values, strict=True):
                registers[r] = value
            frame = Frame(self._layout)
            frame.slots = slots
            step(registers, frame)
            return registers[out]

        self.steps.append(run)
        return len(self.steps) - 1

    def _match(self, make: Steps, i: vm.MatchShape, guards: Sequence[vm.Guard]) -> None:
        self._add(i, _CHECK, i.value, self._added(i.value, (i.value,), _made(super()._match(make, i, guards))))

    def _step(self, make: Steps, i: vm.Instruction, functions: Mapping[str, Function]) -> None:
        last = self.function.code[-1]
        assert isinstance(last, vm.Return)
        tail = int(i is self.function.code[-2] and getattr(i, "out", None) == last.value)

        def slots(dims: Sequence[Dim]) -> list[int]:
            return _list([make.table.slot(d, make.stage) for d in dims])

        def number(name: str) -> int:
            return functions[name].number

        match i:
            case vm.CallFunction(out, name, args, dims):
                self._add(i, _CALL, out, tail, number(name), *_list(args), *slots(dims))
            case vm.CallValue(out, value, args):
                self._add(i, _CALL_VALUE, out, tail, value, *_list(args))
            case vm.If(out, condition, then, orelse, args, dims):
                self._add(i, _IF, out, tail, condition, number(then), number(orelse), *_list(args), *slots(dims))
            case vm.Match(out, value, patterns, names, args, dims):
                words = [len(patterns)]
                for pattern, name in zip(patterns, names, strict=True):
                    words += [number(name), *_list(_pattern(pattern))]
                self._add(i, _MATCH, out, tail, value, *_list(args), *slots(dims), *words)
            case vm.Loop(out, body, carried, invariant, count, times, bound, dims):
                sizes = [-1 if d is None else make.table.slot(d, make.stage) for d in (count, bound)]
                register = -1 if times is None else times
                lists = [*_list(carried), *_list(invariant), *slots(dims)]
                self._add(i, _LOOP, out, number(body), sizes[0], register, sizes[1], *lists)
            case vm.Construct(out, data, index, fields):
                self._add(i, _CONSTRUCT, out, self._data[data.name], index, *_list(fields))
            case vm.MakeTuple(out, items):
                self._add(i, _TUPLE, out, *_list(items))
            case vm.GetItem(out, value, index):
                self._add(i, _GET_ITEM, out, value, index)
            case vm.MakeClosure(out, name, args, dims):
                self._add(i, _CLOSE, out, number(name), *_list(args), *slots(dims))
            case vm.Reference(out, kind, args):
                self._add(i, {"new": _NEW, "read": _READ}.get(kind, _WRITE), out, *args)
            case vm.MakeShape(out, dims):
                self._add(i, _SIZES, out, *slots(dims))
            case vm.ShapeOf(out, value):
                self._add(i, _SHAPE_OF, out, value)
            case vm.Free(registers):
                self._add(i, _FREE, -1, *_list(registers))
            case vm.CallOperator(out, _, args) | vm.CallPacked(out, _, args):
                self._add(i, _STEP, out, self._added(out, args, _made(super()._step(make, i, functions))), *_list(args))
            case vm.Reshape(out, value):
                self._add(i, _STEP, out, self._added(out, (value,), _made(super()._step(make, i, functions))), 1, value)
            case _:
                raise AssertionError(i)


def _made(step: Step | None) -> Step:
    assert step is not None
    return step


def _list(words: Sequence[int]) -> list[int]:
    return [len(words), *words]


def _pattern(pattern: Pattern) -> list[int]:
    match pattern:
        case Bind():
            return [_BIND]
        case Case(_, index, fields):
            return [_CASE, index, len(fields), *(w for f in fields for w in _pattern(f))]
        case Fields(fields):
            return [_FIELDS, len(fields), *(w for f in fields for w in _pattern(f))]
    return [_DROP]


def _uses_sizes(function: vm.VMFunction) -> bool:
    own = [getattr(i, name) for i in function.code for name in ("dims", "shape", "attrs", "count", "bound") if hasattr(i, name)]
    matches = any(isinstance(i, vm.MatchShape) for i in function.code)
    return matches or bool(function.guards) or any(_has_symbols(v) for v in own)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_symbols, value))
    return isinstance(value, sympy.Expr)
