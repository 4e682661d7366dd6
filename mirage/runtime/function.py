"""Functions of a loaded program, whose instructions are closures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage.kernels.cpu.launch.rounds import Launch
from mirage.runtime import program as vm
from mirage.runtime import steps
from mirage.runtime.frame import Frame, FrameLayout, StorageLayout
from mirage.runtime.guards import Entry, Pattern, Signature
from mirage.runtime.leaves import shape_symbols
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.rounds import Rounds, rounds_of
from mirage.runtime.segments import Segment, in_segments
from mirage.runtime.sizes import SizeTable
from mirage.runtime.steps import Items, Kernel, Source, Step, Steps, noted


class Function:
    """A function as closures, `number` among those of its program; frames that no call uses are in `free`."""

    #: whether its calls are on the machine's stack
    stacked = False

    def __init__(self, function: vm.VMFunction, place: Place, number: int) -> None:
        self.function = function
        self.place = place
        self.number = number
        self.free: list[Frame] = []
        #: its batched form, where it has one
        self.batched: Function | None = None
        #: see `Callee.loops`
        self.loops: Rounds | None = None

    def load(
        self, kernels: Sequence[Kernel], constants: Sequence[PlacedArray], functions: Mapping[str, Function]
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
                step = self._match(make, i, guards.get(make.stage, ()))
            else:
                step = self._step(make, i, functions)
            if step is not None:
                sources.append((Source(i, step), make.stage))
        joined = in_segments(sources, make, self._layout, f.code)
        self._steps: list[Step] = [s.step for s in joined]
        self._sources = [s.at for s in joined]
        last = f.code[-1]
        assert isinstance(last, vm.Return)
        self._result = last.value
        self._parameters = len(f.parameters)
        self.loops = None if self.stacked else rounds_of(self.function, self._layout, make)
        if f.batched is not None:
            self.batched = functions[f.batched.function]

    def _match(self, make: Steps, i: vm.MatchShape, guards: Sequence[vm.Guard]) -> Step | None:
        """The closure of a check, as `_step`."""
        stage = make.stage
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

    def _step(self, make: Steps, i: vm.Instruction, functions: Mapping[str, Function]) -> Step | None:
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
        found = self.loops
        return None if found is None else found.run(self.signature.enter(args, dims), args, carried, count, items, kept)

    def launch(
        self, count: int, args: list[Any], carried: int, dims: tuple[int, ...], results: Mapping[int, int]
    ) -> Launch | None:
        """See `Callee.launch`."""
        found = self.loops
        return None if found is None else found.launch(self.signature.enter(args, dims), args, carried, count, results)

    @property
    def idle_rounds(self) -> int:
        """Bytes of memory that is kept for the next loops over the function."""
        return 0 if self.loops is None else self.loops.idle_bytes

    def release(self) -> None:
        """Give the memory that is kept for the next calls back."""
        self.free.clear()
        if self.loops is not None:
            self.loops.release()

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


def _storages(function: vm.VMFunction) -> int:
    return max((i.storage for i in function.code if isinstance(i, vm.AllocStorage)), default=-1)
