"""Functions of a loaded program, whose instructions are closures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.ir.annotations import DataType, PartialTensor, ShapeType, TupleType
from mirage.ir.types import TensorType
from mirage.remember import remember
from mirage.runtime import program as vm
from mirage.runtime import stacked, steps
from mirage.runtime.frame import Frame, FrameLayout, StorageLayout, getter
from mirage.runtime.guards import Entry, Pattern, Signature
from mirage.runtime.leaves import shape_symbols
from mirage.runtime.list_loops import LoopOverList
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.recorded import Batching, settling, stand_ins
from mirage.runtime.rounds import Rounds, rounds_of
from mirage.runtime.segments import Segment, in_segments
from mirage.runtime.sizes import SizeTable, Slots
from mirage.runtime.stacked import Activation
from mirage.runtime.steps import Callee, Items, Kernel, Source, Step, Steps, noted


class Function:
    """A function as closures; frames that no call uses are in `free`."""

    #: whether its calls are on the machine's stack
    stacked = False
    #: of a function that does nothing but to choose another one: what gives the call of that
    forward: Callable[..., Any] | None = None

    def __init__(self, function: vm.VMFunction, place: Place) -> None:
        self.function = function
        self.place = place
        self.free: list[Frame] = []
        #: its batched form, where it has one
        self.batching: Batching | None = None

    def load(
        self, kernels: Sequence[Kernel], constants: Sequence[PlacedArray], functions: Mapping[str, Callee]
    ) -> None:
        f = self.function
        at_entry = set(f.dims).union(*(shape_symbols(p.annotation) for p in f.parameters))
        stages = {name: 0 for name in sorted(at_entry)}
        matches = [i for i in f.code if isinstance(i, vm.MatchShape)]
        for stage, match in enumerate(matches, 1):
            for name in sorted(shape_symbols(match.annotation)):
                stages.setdefault(name, stage)
        self._table = SizeTable(f.name, stages, len(matches))
        guards: dict[int, list[vm.Guard]] = {}
        for g in f.guards:
            guards.setdefault(self._table.stage((g.dim, g.value)), []).append(g)
        values = [(f"input {p.name!r}", p.annotation) for p in f.parameters]
        pattern = Pattern(f.name, values, self._table, 0, set(f.dims), guards.get(0, ()), self.place)
        self.signature = Signature(pattern, [p.name for p in f.parameters], f.dims, self._table)
        self._layout = FrameLayout(f.name, [None] * f.registers, f.arena, 1 + _storages(f), self.place)
        for register, k in f.constants:
            self._layout.registers[register] = constants[k]
        sources: list[tuple[Source, int]] = []
        self._copies = bool(matches)
        make = Steps(f.name, self._table, kernels, functions, self.place)
        for i in f.code[:-1]:
            if isinstance(i, vm.MatchShape):
                make.stage += 1
                step: Step | None = self._match(i, make.stage, guards.get(make.stage, ()))
            else:
                step = self._step(make, i, functions)
            if step is not None:
                sources.append((Source(i, step), make.stage))
        joined = self._joined(sources, make)
        self._steps: list[Step] = [s.step for s in joined]
        self._sources = [s.at for s in joined]
        last = f.code[-1]
        assert isinstance(last, vm.Return)
        self._result = last.value
        self._parameters = len(f.parameters)
        self._rounds = self._in_c(make)
        if f.batched is not None:
            annotations = [p.annotation for p in f.parameters]
            self.batching = Batching(self, functions[f.batched.function], f.batched.shared, annotations)

    def _joined(self, sources: list[tuple[Source, int]], make: Steps) -> list[Source]:
        return in_segments(sources, make)

    def _in_c(self, make: Steps) -> Rounds | None:
        return rounds_of(self.function, self._layout, make)

    def _match(self, i: vm.MatchShape, stage: int, guards: Sequence[vm.Guard]) -> Step:
        known = {name for name, s in self._table.stages.items() if s < stage}
        owner = f"{self.function.name}{', ' * bool(i.where)}{i.where}"
        values = [(f"value {i.name!r}", i.annotation)]
        pattern = Pattern(owner, values, self._table, stage, known, guards, self.place)
        register = i.value

        def step(registers: list[Any], frame: Frame) -> None:
            values = [registers[register]]
            shapes = pattern.read(values)
            (registers[register],) = values
            pattern.bind(shapes, self._table.sizes(stage, frame.slots), frame.slots)

        return step

    def _step(self, make: Steps, i: vm.Instruction, functions: Mapping[str, Callee]) -> Step | None:
        """The closure of an instruction; None for what frames do when they are laid out."""
        layout = self._layout
        match i:
            case vm.AllocStorage(storage, size, offset):
                slot = self._table.slot(size, make.stage)
                if self._table.stage((size,)) > 0:
                    return make.dynamic_storage(i)
                layout.planned.append(StorageLayout(storage, slot, offset))
                return None
            case vm.MakeTensor(_, storage):
                if storage is None:
                    return make.fresh(i)
                tensor = make.tensor(i, storage)
                if self._table.stage(i.shape) > 0 or all(s.storage != storage for s in layout.planned):
                    return make.dynamic_tensor(tensor)
                layout.tensors.append(tensor)
                return None
            case vm.Reshape():
                return make.reshape(i)
            case vm.CallKernel():
                return make.kernel(i)
            case vm.CallLibrary():
                return make.library(i)
            case vm.CallPacked():
                return make.packed(i)
            case vm.CallOperator():
                return make.operator(i)
            case vm.CallFunction():
                return make.call(i)
            case vm.If():
                return make.branch(i)
            case vm.Loop():
                return make.loop(i)
            case vm.MakeShape():
                return make.make_shape(i)
            case vm.ShapeOf():
                return steps.shape_of(i)
            case vm.MakeTuple():
                return steps.make_tuple(i)
            case vm.GetItem():
                return steps.get_item(i)
            case vm.Free(registers):
                # tensors of the frame stay
                dropped = [r for r in registers if all(t.out != r for t in layout.tensors)]
                return steps.free(dropped) if dropped else None
        raise AssertionError(i)

    def run(self, args: list[Any], dims: tuple[int, ...], memory: PlacedArray | None) -> Any:
        """The result, as `Callee.run`; `args` are replaced by what the registers held."""
        return self.run_entered(self.signature.enter(args, dims), args, memory)

    def rounds(
        self, count: int, args: list[Any], carried: int, dims: tuple[int, ...], items: Items = (), kept: Sequence[np.ndarray] = ()
    ) -> tuple[Any, ...] | None:
        """See `Callee.rounds`."""
        found = self._rounds
        return None if found is None else found.run(self.signature.enter(args, dims), args, carried, count, items, kept)

    @property
    def idle_rounds(self) -> int:
        """Bytes of memory that is kept for the next loops over the function."""
        return 0 if self._rounds is None else self._rounds.idle_bytes

    def release(self) -> None:
        """Give the memory that is kept for the next calls back."""
        self.free.clear()
        if self._rounds is not None:
            self._rounds.release()

    def run_entered(self, entry: Entry, args: Sequence[Any], memory: PlacedArray | None) -> Any:
        """The result for arguments that the signature has read."""
        try:
            frame = self.free.pop()
        except IndexError:
            frame = Frame(self._layout)
        frame.enter(entry, memory)
        frame.slots = entry.slots[:] if self._copies else entry.slots
        registers = frame.registers.copy()
        registers[: self._parameters] = args
        # after an error, the frame is dropped
        try:
            for step in self._steps:
                step(registers, frame)
        except Exception as e:
            # a segment knows better
            if not isinstance(step, Segment):
                noted(e, self.function.name, self._sources[self._steps.index(step)])
            raise
        self.free.append(frame)
        return registers[self._result]


class StackedFunction(Function):
    """A function whose calls are on the machine's stack: `plan` has its steps, and whether each is a call; `deliver` takes what a
    call returns, `last` is the call whose result is that of the function, or -1.
    """

    stacked = True

    def load(
        self, kernels: Sequence[Kernel], constants: Sequence[PlacedArray], functions: Mapping[str, Callee]
    ) -> None:
        super().load(kernels, constants, functions)
        self.plan: list[tuple[Callable[..., Any], bool]] = []
        self.deliver: list[Callable[[Activation, Any], None]] = []
        self.last = -1
        self.result = self._result
        calls = (vm.CallFunction, vm.CallValue, vm.If, vm.Match, vm.Loop)
        for k, (step, source) in enumerate(zip(self._steps, self._sources, strict=True)):
            called = isinstance(source, calls)
            if isinstance(source, vm.CallOperator | vm.CallPacked):
                step = settling(step, source.args)
            elif isinstance(source, vm.MatchShape | vm.Reshape):
                step = settling(step, (source.value,))
            self.plan.append((step, called))
            many = len(source.carried) if isinstance(source, vm.Loop) else 0
            self.deliver.append(stacked.to_rounds(many) if many else stacked.to_register(getattr(source, "out", -1)))
            if called and not many and k == len(self._steps) - 1 and getattr(source, "out", None) == self.result:
                self.last = k
        self._sized = stacked.uses_sizes(self.function)
        self._no_sizes = self._table.new()
        plain = (TensorType, PartialTensor, ShapeType, TupleType)
        #: the arguments that have shapes, and the sizes for those that have been
        self._shaped = getter([k for k, p in enumerate(self.function.parameters) if isinstance(p.annotation, plain)])
        self._entries: dict[Any, Entry] = {}
        if self.last == 0 and isinstance(self._sources[0], vm.Match) and not self._sized and not self.function.constants:
            self.forward = self.plan[0][0]
        over = self.function.over_list
        if over is not None and self.forward is not None:
            values, state = (p.annotation for p in self.function.parameters[:2])
            assert isinstance(values, DataType)
            # the clauses have the function that goes on item by item
            itself, choose = functions[self.function.name], self.forward
            ahead = functions[over.ahead] if over.ahead else None
            loop = LoopOverList(over, functions[over.function], ahead, itself, values.arguments[0], state)

            def in_a_loop(args: list[Any], frame: Any) -> Any:
                return loop.request(args) or choose(args, frame)

            self.forward = in_a_loop
        #: what registers behind the parameters hold at the start
        self._behind = self._layout.registers[self._parameters :]

    def _step(self, make: Steps, i: vm.Instruction, functions: Mapping[str, Callee]) -> Step | None:
        request: Callable[..., Any] | None = stacked.request_of(i, make, functions)
        if request is not None:
            return request
        return stacked.step_of(i, make, functions) or super()._step(make, i, functions)

    def _joined(self, sources: list[tuple[Source, int]], make: Steps) -> list[Source]:
        return [s for s, _ in sources]

    def _in_c(self, make: Steps) -> None:
        return None

    def activate(self, args: list[Any], dims: tuple[int, ...]) -> Activation:
        """A call that begins."""
        slots = self._no_sizes
        if self._sized:
            slots = self._slots(args, dims)
        return Activation(self, [*args, *self._behind], slots)

    def _slots(self, args: list[Any], dims: tuple[int, ...]) -> Slots:
        """The sizes of a call."""
        # the types of what is on the stack were checked where it came from
        key = (*[_shapes(a) for a in self._shaped(args)], dims)
        found = self._entries.get(key)
        if found is None:
            found = self.signature.enter([stand_ins(a) for a in args], dims)
            remember(self._entries, key, found, Signature.LIMIT)
        return found.slots[:] if self._copies else found.slots

    def run(self, args: list[Any], dims: tuple[int, ...], memory: PlacedArray | None) -> Any:
        return stacked.run(self, args, dims)


def _shapes(value: Any) -> Any:
    """The shapes of the tensors in a value."""
    return tuple([_shapes(v) for v in value]) if type(value) is tuple else getattr(value, "shape", value)


def _storages(function: vm.VMFunction) -> int:
    return max((i.storage for i in function.code if isinstance(i, vm.AllocStorage)), default=-1)
