"""The virtual machine: runs programs whose instructions were bound to closures on loading (Relax, section 4.7)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from mirage.errors import FormatError, GuardError, MirageError
from mirage.ir.annotations import Annotation
from mirage.ir.data import PRELUDE
from mirage.ir.graph.values import Where, to_value
from mirage.ir.types import ELEMENTS
from mirage.runtime import program as vm
from mirage.runtime.check import check_program
from mirage.runtime.frame import Frame
from mirage.runtime.function import Function
from mirage.runtime.leaves import leaves_of, same_sizes, value_shapes
from mirage.runtime.machine import Machine
from mirage.runtime.places.host import HOST
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.stacked import StackedFunction
from mirage.runtime.steps import Kernel, arrays_in


class VirtualMachine:
    """A loaded program: calls take the arguments of its main function, and give its result.

    `kernels` and `constants` are those that the program names, in order; `place` is where tensors are. May be called from several
    threads at once, and by packed functions of its own: each call has frames and arenas of its own, which later calls use again.

    Raises FormatError for a program that is not well formed, UnknownFunction or UnknownOperator for a name that nothing is
    registered under, and DimError for parameters whose shapes do not determine their dims.
    """

    def __init__(
        self,
        program: vm.VMProgram,
        kernels: Sequence[Kernel] = (),
        constants: Sequence[np.ndarray] = (),
        place: Place = HOST,
    ) -> None:
        facts = check_program(program)
        self.place = place
        self.program = program
        if len(kernels) != len(program.kernels):
            raise FormatError(
                f"the program names {len(program.kernels)} kernels, not {len(kernels)}; load all, in order"
            )
        self._constants = [place.constant(a) for a in _check_constants(program, constants)]
        data = {**PRELUDE, **{d.name: d for d in program.data}}
        numbers = {name: k for k, name in enumerate(data)}
        deep = vm.stacked(program)
        every: list[Function] = []

        def added(function: vm.VMFunction) -> Function:
            number = len(every)
            stack = function.name in deep
            every.append(StackedFunction(function, place, number, numbers) if stack else Function(function, place, number))
            return every[-1]

        self._functions: dict[str, Function] = {name: added(f) for name, f in program.functions.items()}
        #: of functions over lists that may be loops, what their clauses call for the rest of a list that is none
        rest = {n: added(replace(f, over_list=None)) for n, f in program.functions.items() if f.over_list}
        within = {name: n for n in rest for i in program.functions[n].code for name in vm.called(i)}
        for name, f in self._functions.items():
            again = {name: rest[name]} if name in rest else {within[name]: rest[within[name]]} if name in within else {}
            f.load(kernels, self._constants, {**self._functions, **again})
        for r in rest.values():
            r.load(kernels, self._constants, self._functions)
        main = program.functions[program.main]
        self._main = self._functions[program.main]
        if main.dims:
            raise FormatError(
                f"function {main.name!r} has extra shape parameters, and is the main one; give them by a shape"
            )
        self._owned = facts[program.main].owned
        self._data = data
        self._machine = Machine(every, self._main, [*data.values()]) if self._main.stacked else None
        self._in_place = [k for k, p in enumerate(main.parameters) if p.in_place]

    def __call__(self, *args: Any) -> Any:
        """The result for arguments: arrays that the place reads without copying, tuples of integers for shapes.

        Arrays in the result belong to the caller, unless they are arguments that the program updates in place. Arguments
        that are not C-contiguous are copied first. Raises GuardError naming the argument, dim, constraint and size if
        shapes break a constraint, or naming the argument that is updated in place and read-only, or shares memory with another
        one; InputError for other values that do not fit.
        """
        if self._in_place:
            self._check_updated(list(enumerate(args)))
        if self._machine is not None:
            self._main.signature.check_number(args)
            return self._machine.run(args, lambda: self._converted(args))
        used = list(args)
        return self._finished(self._main.run(used, (), None), args, used)

    def _converted(self, args: Sequence[Any]) -> list[Any]:
        """Arguments as stacked programs have them. Raises InputError and GuardError for those that do not fit."""
        main = self._main.function
        sizes: dict[str, int] = {}

        def read(annotation: Annotation, value: Any, what: str) -> Any:
            shapes: list[tuple[int, ...]] = []
            found = leaves_of(main.name, what, annotation, self.place).read(value, shapes)
            for shape, dims in zip(shapes, value_shapes(annotation), strict=True):
                same_sizes(f"{main.name}: {what}", dims, shape, sizes)
            return found

        def leaf(annotation: Annotation, value: Any, where: Where) -> Any:
            try:
                return read(annotation, value, "")
            except MirageError:
                # where it is has as many parts as the data is deep
                return read(annotation, value, str(where))

        return [
            to_value(p.annotation, a, self._data, f"input {p.name!r}", leaf) for p, a in zip(main.parameters, args, strict=True)
        ]

    def bound(self, given: Mapping[int, Any]) -> BoundMachine:
        """The machine with some arguments, by their places, given for all calls: these are looked at once, here.

        Raises GuardError or InputError for one of another kind, rank or element type than the program takes.
        """
        return BoundMachine(self, given)

    def _finished(self, result: Any, args: Sequence[Any], used: Sequence[Any]) -> Any:
        """The result of a call as the caller gets it; `used` is what it read in place of the arguments."""
        for k in self._in_place:
            self._write_back(args[k], used[k])
        if self._owned:
            return result
        kept = [a for k, v in enumerate(used) if k not in self._in_place for a in arrays_in(v, self.place.array)]
        return self._detached(result, [*kept, *self._constants])

    def _check_updated(self, args: Sequence[tuple[int, Any]], given: Occupied | None = None) -> None:
        """Raise GuardError where an argument that is updated in place is read-only, or shares memory with another one or itself.

        `args` are arguments with their places, `given` the memory of the others.

        Steps are ordered by the names that they read and write: what is written under one name may be read late, or early, under
        another.
        """
        place, main = self.place, self._main.function
        names = [p.name for p in main.parameters]
        for k, value in args:
            if k in self._in_place and not self._writable(value):
                raise GuardError(
                    f"{main.name}: input {names[k]!r} is updated in place, and read-only; pass an array that may be written"
                )
        found = self._tensors_in(args)
        spans = sorted(span for *_, span in found if span[0] < span[1])
        apart = all(end <= start for (_, end), (start, _) in pairwise(spans))
        for at, (k, a, (low, high)) in enumerate(found):
            if k not in self._in_place:
                continue
            others = [] if apart else [*found[:at], *found[at + 1 :]]
            if given is not None:
                others += given.meeting(low, high)
            other = next((j for j, b, (start, end) in others if low < end and start < high and place.shares(a, b)), None)
            if other is None and (place.is_dense(a) or _apart(a)):
                continue
            why = "parts of it share memory; pass a copy"
            if other not in (None, k):
                why = f"shares memory with input {names[other]!r}; pass a copy of one of them"
            raise GuardError(f"{main.name}: input {names[k]!r} is updated in place, and {why}")

    def _tensors_in(self, args: Sequence[tuple[int, Any]]) -> list[tuple[int, PlacedArray, tuple[int, int]]]:
        """The tensors in arguments, with the places of these, and from which byte of the memory to which they lie."""
        count = len(self._main.function.parameters)
        return [(k, a, self.place.span(a)) for k, value in args if k < count for a in self._tensors(value)]

    def _tensors(self, value: Any) -> list[PlacedArray]:
        """The tensors in an argument as arrays; what is none is found when it is read."""
        if isinstance(value, tuple | list):
            return [a for v in value for a in self._tensors(v)]
        return [self.place.read(value, "an input")] if self.place.is_readable(value) else []

    def _writable(self, value: Any) -> bool:
        if isinstance(value, tuple | list):
            return all(self._writable(v) for v in value)
        return self.place.is_writable(value, "an input that is updated in place")

    def _write_back(self, given: Any, used: Any) -> None:
        """What was written to a copy of an argument goes to the argument itself."""
        if isinstance(used, tuple):
            for g, u in zip(given, used, strict=True):
                self._write_back(g, u)
        elif isinstance(used, self.place.array) and given is not used:
            target = self.place.read(given, "an input that is updated in place")
            if not self.place.may_share(target, used):
                self.place.write(target, used)

    def _detached(self, result: Any, others: list[PlacedArray]) -> Any:
        """The result, with a copy of whatever shares memory with `others` or an earlier part."""
        if isinstance(result, tuple):
            return tuple(self._detached(r, others) for r in result)
        if isinstance(result, self.place.array):
            if any(self.place.may_share(result, a) for a in others):
                result = self.place.copy(result)
            others.append(result)
        return result

    def take_frames(self) -> list[Frame]:
        """The memory of calls that are done, which later calls do not use any more."""
        taken = [frame for f in self._functions.values() for frame in f.free]
        self.release()
        return taken

    @property
    def idle_bytes(self) -> int:
        """Bytes of intermediate memory that is kept for the next calls."""
        functions = self._functions.values()
        return sum(f.idle_rounds for f in functions) + sum(frame.arena.bytes for f in functions for frame in f.free)

    def release(self) -> None:
        """Give the memory that is kept for the next calls back."""
        for f in self._functions.values():
            f.release()


class Occupied:
    """Tensors by where they lie in memory: `found` has them with the places of their arguments, and first and last bytes."""

    def __init__(self, found: Sequence[tuple[int, PlacedArray, tuple[int, int]]]) -> None:
        self._found = sorted(((k, a, span) for k, a, span in found if span[0] < span[1]), key=lambda f: f[2])
        self._starts = [span[0] for *_, span in self._found]
        #: the end of all up to each
        self._ends = list(accumulate((span[1] for *_, span in self._found), max))

    def meeting(self, low: int, high: int) -> list[tuple[int, PlacedArray, tuple[int, int]]]:
        """Those that lie in a part of the memory."""
        last = bisect_left(self._starts, high)
        if not last or self._ends[last - 1] <= low:
            return []
        return [f for f in self._found[:last] if f[2][1] > low]


class BoundMachine:
    """A loaded program some of whose arguments are given: calls take the others, in order, and are as those of the machine."""

    def __init__(self, machine: VirtualMachine, given: Mapping[int, Any]) -> None:
        self._machine = machine
        self._signature = machine._main.signature.bound(given)
        self._free = [k for k in range(len(machine._main.function.parameters)) if k not in given]
        #: where the given arguments lie, where none of them is updated in place
        self._given: Occupied | None = None
        if not given.keys() & set(machine._in_place):
            self._given = Occupied(machine._tensors_in(list(given.items())))

    def __call__(self, *args: Any) -> Any:
        """The result; raises what calls of the machine do."""
        machine = self._machine
        if machine._main.stacked:
            return machine(*self._signature.completed(args))
        if machine._in_place:
            every = args if self._given is not None else self._signature.completed(args)
            places = self._free if self._given is not None else range(len(every))
            machine._check_updated(list(zip(places, every, strict=False)), self._given)
        entry, used = self._signature.enter(list(args))
        result = machine._main.run_entered(entry, used, None)
        return machine._finished(result, self._signature.completed(args) if machine._in_place else (), used)


def _check_constants(program: vm.VMProgram, constants: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The constants, C-contiguous and read-only."""
    found = []
    for k, (a, t) in enumerate(zip(constants, program.constants, strict=False)):
        if a.dtype != ELEMENTS[t.dtype] or a.shape != t.bind({}):
            raise FormatError(f"constant {k} is {a.dtype}{list(a.shape)}, the program's {t}")
        found.append(np.array(a, order="C") if a.flags.writeable or not a.flags.c_contiguous else a)
        found[-1].flags.writeable = False
    if len(constants) != len(program.constants):
        raise FormatError(
            f"the program has {len(program.constants)} constants, not {len(constants)}; load all, in order"
        )
    return found


def _apart(a: PlacedArray) -> bool:
    """Whether no two elements of an array are the same memory, as far as its strides tell."""
    end = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < end:
            return False
        end += stride * (n - 1)
    return True

