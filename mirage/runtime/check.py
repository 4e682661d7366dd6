"""Whether a program is well formed: checked once, when it is loaded, so that no call meets a mistake of its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from mirage.errors import FormatError
from mirage.ir.annotations import DataType, ShapeType, TupleType, parts
from mirage.ir.data import LIST, PRELUDE
from mirage.ir.types import ELEMENTS, TensorType
from mirage.runtime import program as vm
from mirage.runtime.guards import RELATIONS

#: more than any memory has: sums of such numbers are still C's
_MOST_BYTES = 1 << 56
#: a source of memory that a call uses again, with the number of its storage behind it
ARENA = "arena"
#: the memory that a value may be in: of a tuple made in the function, that of each item
Memory: TypeAlias = "frozenset[int | str] | tuple[Memory, ...]"


def _parts(memory: Memory) -> list[frozenset[int | str]]:
    return [p for m in memory for p in _parts(m)] if isinstance(memory, tuple) else [memory]


def _whole(memory: Memory) -> frozenset[int | str]:
    return frozenset().union(*_parts(memory))


@dataclass(frozen=True)
class Facts:
    """What is known of a function: the memory that its result may be in, and how often it is the same tensor twice.

    `sources` are positions of parameters, registers with fresh memory, and constants (as text). The caller owns the result if it
    is `owned`: fresh memory, each part its own.
    """

    sources: frozenset[int | str]
    owned: bool


def check_program(program: vm.VMProgram) -> dict[str, Facts]:
    """Facts of every function; raises FormatError naming function and instruction."""
    if program.main not in program.functions:
        raise FormatError(f"the program has no function {program.main!r}, which is its main one")
    found: dict[str, Facts] = {}
    for name in vm.stacked(program):
        if name not in program.functions:
            raise FormatError(f"there is no function {name!r}, of which a value is made")
        check_stacked(program, program.functions[name])
        found[name] = Facts(frozenset(), False)
    for name, function in program.functions.items():
        if function.name != name:
            raise FormatError(f"function {function.name!r} is listed as {name!r}")
        _facts(program, function, found, ())
        if function.batched is not None:
            _check_batched(program, function, function.batched, vm.stacked(program))
        if function.over_list is not None:
            _check_over_list(program, function, function.over_list, vm.stacked(program))
    return found


def _check_over_list(program: vm.VMProgram, function: vm.VMFunction, form: vm.OverList, stacked: frozenset[str]) -> None:
    """Raises FormatError unless a round takes what is in the items and the state of a function that matches a list."""
    wrong = FormatError(
        f"function {function.name!r}: {form.function!r} and {form.ahead!r} are no loop over its list; compile the program again"
    )
    values = [p.annotation for p in function.parameters]
    called = [program.functions.get(name) for name in (form.function, form.ahead) if name]
    listed = len(values) > 1 and isinstance(values[0], DataType) and values[0].name == LIST.name
    if not listed or not isinstance(function.code[0], vm.Match) or any(f is None or f.dims or f.name in stacked for f in called):
        raise wrong
    assert isinstance(values[0], DataType)
    items, state = ([t for t in parts(a) if not isinstance(t, TupleType)] for a in (values[0].arguments[0], values[1]))
    round, *ahead = [f for f in called if f is not None]
    last = {f.code[-1].value for f in ahead if isinstance(f.code[-1], vm.Return)}
    early = [len(i.items) for f in ahead for i in f.code if isinstance(i, vm.MakeTuple) and i.out in last]
    taken = sum(len(items) if k < 0 else 1 for k in form.given)
    if ahead and (not early or taken != len(ahead[0].parameters) or any(not -1 <= k < len(values) - 2 for k in form.given)):
        raise wrong
    plain = all(isinstance(t, TensorType) for t in (*items, *state))
    if not plain or len(round.parameters) != 1 + len(state) + len(items) + sum(early) + len(values) - 2:
        raise wrong


def _check_batched(program: vm.VMProgram, function: vm.VMFunction, form: vm.Batched, stacked: frozenset[str]) -> None:
    """Raises FormatError unless the batched form takes what is in the arguments of a function, and neither needs the stack."""
    many = program.functions.get(form.function)
    leaves = [leaf for p in function.parameters for leaf in parts(p.annotation) if not isinstance(leaf, TupleType)]
    fits = many is not None and len(many.parameters) == len(form.shared) == len(leaves) and not (many.dims or function.dims)
    plain = all(isinstance(leaf, TensorType | ShapeType) for leaf in leaves)
    if not fits or not plain or not stacked.isdisjoint((function.name, form.function)):
        raise FormatError(f"function {function.name!r}: {form.function!r} is no batched form of it; compile the program again")


def arguments_in_result(program: vm.VMProgram, function: str) -> frozenset[int]:
    """Positions of the arguments whose memory the result of a function may be in; raises FormatError as `check_program`."""
    facts = _facts(program, program.functions[function], {}, ())
    return frozenset(s for s in facts.sources if isinstance(s, int))


def _facts(program: vm.VMProgram, function: vm.VMFunction, found: dict[str, Facts], callers: tuple[str, ...]) -> Facts:
    if function.name in callers:
        raise FormatError(
            f"function {function.name!r} calls itself, by way of {', '.join(callers)}; functions do not recur"
        )
    if function.name not in found:
        found[function.name] = _Checker(program, function, found, callers).check()
    return found[function.name]


class _Checker:
    def __init__(
        self, program: vm.VMProgram, function: vm.VMFunction, found: dict[str, Facts], callers: tuple[str, ...]
    ) -> None:
        self.program, self.function = program, function
        self.found, self.callers = found, callers
        self.at: object = "its head"
        #: register -> memory of its value; None once it is freed
        self.memory: dict[int, Memory | None] = {}
        self.storages: dict[int, vm.AllocStorage] = {}
        #: storage -> the first and the last instruction that read or write its memory, by number
        self.spans: dict[int, tuple[int, int]] = {}
        self.number = 0

    def wrong(self, why: str) -> NoReturn:
        raise FormatError(f"function {self.function.name!r}, {self.at}: {why}")

    def check(self) -> Facts:
        f = self.function
        if f.registers > len(f.parameters) + len(f.constants) + len(f.code):
            self.wrong(f"it has {f.registers} registers, more than values")
        for k in range(len(f.parameters)):
            self.define(k, frozenset({k}))
        for register, constant in f.constants:
            if not 0 <= constant < len(self.program.constants):
                self.wrong(f"there is no constant {constant}")
            # never written to, and so never given away
            self.define(register, frozenset({f"constant {constant}"}))
        if any(g.relation not in RELATIONS for g in f.guards):
            self.wrong(f"a guard has none of the relations {', '.join(RELATIONS)}")
        if not f.code or not isinstance(f.code[-1], vm.Return):
            self.wrong("the last instruction is not a Return")
        for self.number, self.at in enumerate(f.code[:-1]):
            self.instruction(self.at)
        self.at = f.code[-1]
        result = self.use(f.code[-1].value)
        sources = _whole(result)
        if any(isinstance(s, str) and s.startswith(ARENA) for s in sources):
            self.wrong("it returns memory of the arena, which later calls write to")
        self.apart()
        fresh = all(isinstance(s, str) and s.startswith("fresh") for s in sources)
        return Facts(sources, fresh and sum(map(len, _parts(result))) == len(sources))

    def define(self, register: int, memory: Memory) -> None:
        if not 0 <= register < self.function.registers:
            self.wrong(f"there is no register r{register}")
        if register in self.memory:
            self.wrong(f"r{register} is written twice")
        self.memory[register] = memory

    def use(self, register: int) -> Memory:
        found = self.memory.get(register)
        if found is None:
            self.wrong(
                f"r{register} is used {'after it is freed' if register in self.memory else 'before it is written'}"
            )
        for source in _whole(found):
            if isinstance(source, str) and source.startswith(ARENA):
                self.touch(int(source.removeprefix(ARENA)))
        return found

    def touch(self, storage: int) -> None:
        """Take down that the instruction reads or writes memory of a storage."""
        self.spans[storage] = self.spans.get(storage, (self.number,))[0], self.number

    def apart(self) -> None:
        """Refuse storages of the arena that hold something at the same time, and share bytes."""
        placed = sorted(
            (i.offset, i.offset + int(i.bytes), number, i)
            for number, i in self.storages.items()
            if i.offset is not None and number in self.spans
        )
        for k, (_, end, number, _) in enumerate(placed):
            first, last = self.spans[number]
            for start, _, other, self.at in placed[k + 1 :]:
                if start >= end:
                    break
                if self.spans[other][0] <= last and first <= self.spans[other][1]:
                    self.wrong(f"its memory is that of storage {number}, which is in use at the same time")

    def used(self, registers: Sequence[int]) -> frozenset[int | str]:
        return _whole(tuple(self.use(r) for r in registers))

    def storage(self, number: int) -> vm.AllocStorage:
        if number not in self.storages:
            self.wrong(f"storage {number} is not allocated before")
        return self.storages[number]

    def instruction(self, i: object) -> None:
        match i:
            case vm.AllocStorage(storage, size, offset):
                if storage in self.storages or not 0 <= storage < len(self.function.code):
                    self.wrong(f"storage {storage} is allocated twice, or not a number of a storage")
                if offset is not None and not (
                    size.is_Integer and offset >= 0 and offset % 64 == 0 and offset + int(size) <= self.function.arena
                ):
                    self.wrong(f"it does not fit the arena of {self.function.arena} bytes at a multiple of 64")
                self.storages[storage] = i
            case vm.MakeTensor(out, number, offset, _, dtype):
                if dtype not in ELEMENTS or not 0 <= offset <= _MOST_BYTES or (number is None and offset):
                    self.wrong("its type or offset is not one of a tensor")
                if number is not None:
                    self.storage(number)
                self.define(out, frozenset({f"fresh {out}" if number is None else f"{ARENA}{number}"}))
            case vm.Reshape(out, value):
                self.define(out, self.used((value,)))
            case vm.CallKernel(kernel, inputs, outputs, _, workspace):
                if not 0 <= kernel < len(self.program.kernels):
                    self.wrong(f"there is no kernel {kernel}")
                self.used((*inputs, *outputs, *workspace))
            case vm.CallLibrary(_, inputs, outputs):
                self.used((*inputs, *outputs))
            case vm.CallPacked(out, _, args, _, in_place):
                if not all(0 <= k < len(args) for k in in_place):
                    self.wrong("it updates an argument that it does not have")
                self.used(args)
                self.define(out, frozenset({f"result {out}"}) | self.used([args[k] for k in in_place]))
            case vm.CallOperator(out, _, args):
                self.used(args)
                self.define(out, frozenset({f"result {out}"}))
            case vm.CallFunction(out, name, args, dims, memory):
                self.call(out, (name,), args, dims, memory)
            case vm.If(out, condition, then, orelse, args, dims, memory):
                self.use(condition)
                self.call(out, (then, orelse), args, dims, memory)
            case vm.Loop():
                if (i.count is None) == (i.times is None):
                    self.wrong("it has no count, or two")
                if i.times is not None:
                    self.use(i.times)
                # the index is an argument of its own; without iterations, the carried values are the result
                self.call(i.out, (i.body,), (None, *i.carried, *i.invariant), i.dims, i.memory, i.carried)
            case vm.MatchShape(value):
                self.use(value)
            case vm.MakeShape(out):
                self.define(out, frozenset())
            case vm.ShapeOf(out, value):
                self.use(value)
                self.define(out, frozenset())
            case vm.MakeTuple(out, items):
                self.define(out, tuple(self.use(r) for r in items))
            case vm.GetItem(out, value, index):
                if index < 0:
                    self.wrong("its index is negative")
                whole = self.use(value)
                if isinstance(whole, tuple) and index >= len(whole):
                    self.wrong(f"a tuple of {len(whole)} items has no item {index}")
                self.define(out, whole[index] if isinstance(whole, tuple) else whole)
            case vm.Free(registers):
                for r in registers:
                    if self.memory.get(r) is None:
                        self.use(r)
                    self.memory[r] = None
            case _:
                self.wrong("it is not the last instruction, or no instruction at all")

    def call(
        self,
        out: int,
        names: Sequence[str],
        args: Sequence[int | None],
        dims: Sequence[object],
        memory: int | None,
        through: Sequence[int] = (),
    ) -> None:
        """A call of one of these functions; the result may be in the memory of the arguments `through`, too."""
        storage = None if memory is None else self.storage(memory)
        if memory is not None:
            self.touch(memory)
        given = [frozenset() if r is None else self.used((r,)) for r in args]
        sources = {f"result {out}"} | self.used(through)
        for name in names:
            callee = self.program.functions.get(name)
            if callee is None:
                self.wrong(f"there is no function {name!r}")
            if len(callee.parameters) != len(args) or len(callee.dims) != len(dims):
                self.wrong(
                    f"{name!r} has {len(callee.parameters)} parameters and {len(callee.dims)} extra dims, not {len(args)} and "
                    f"{len(dims)}"
                )
            if storage is not None and storage.bytes.is_Integer and int(storage.bytes) < callee.arena:
                self.wrong(f"the arena of {name!r} has {callee.arena} bytes, its memory {storage.bytes}")
            facts = _facts(self.program, callee, self.found, (*self.callers, self.function.name))
            for s in facts.sources:
                if isinstance(s, int):
                    sources |= given[s]
                elif not s.startswith(("fresh", "result")):
                    sources.add(s)
        self.define(out, frozenset(sources))


def check_stacked(program: vm.VMProgram, function: vm.VMFunction) -> None:
    """Raises FormatError, which names function and instruction, unless a stacked function is well formed.

    What it holds is in memory of its own: it has no arena, and values are dropped when nothing refers to them.
    """
    defined = {*range(len(function.parameters)), *(r for r, _ in function.constants)}

    def wrong(i: object, why: str) -> NoReturn:
        raise FormatError(f"function {function.name!r}, {i}: {why}")

    if any(not 0 <= k < len(program.constants) for _, k in function.constants):
        wrong("its head", "it names a constant that is not there")
    if any(not len(function.parameters) <= r < function.registers for r, _ in function.constants):
        wrong("its head", "it has a constant in no register of its own")
    data = {**PRELUDE, **{d.name: d for d in program.data}}
    for p in function.parameters:
        if unknown := [a for a in parts(p.annotation) if isinstance(a, DataType) and a.name not in data]:
            wrong("its head", f"there is no data type {unknown[0].name}")
    if not function.code or not isinstance(function.code[-1], vm.Return):
        wrong("its end", "the last instruction is not a Return")
    if not len(function.parameters) <= function.registers <= len(defined) + len(function.code):
        wrong("its head", f"it has {function.registers} registers for other values")
    for i in function.code:
        if isinstance(i, vm.AllocStorage | vm.MakeTensor | vm.CallKernel | vm.CallLibrary) or (
            isinstance(i, vm.Return) and i is not function.code[-1]
        ):
            wrong(i, "a function that calls itself has no such instruction")
        for r in vm.read(i):
            if r not in defined:
                wrong(i, f"r{r} is used before it is written")
        for name in vm.called(i):
            if name not in program.functions:
                wrong(i, f"there is no function {name!r}")
            if len(program.functions[name].dims) != len(getattr(i, "dims", ())):
                wrong(i, f"{name!r} has {len(program.functions[name].dims)} extra dims")
        match i:
            case vm.Construct(_, made, index, values):
                cases = data[made.name].constructors if made.name in data else ()
                if not 0 <= index < len(cases) or len(cases[index].fields) != len(values):
                    wrong(i, "there is no such constructor")
            case vm.Match(patterns=patterns, functions=names) if len(patterns) != len(names):
                wrong(i, "it has not a function for each pattern")
            case vm.Reference(_, kind, args) if {"new": 1, "read": 1, "write": 2}.get(kind) != len(args):
                wrong(i, "it does nothing that is done with references")
        out = getattr(i, "out", None)
        if out is not None:
            if out in defined or not 0 <= out < function.registers:
                wrong(i, f"r{out} is written twice, or is no register")
            defined.add(out)
