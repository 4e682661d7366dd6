"""Straight lines of instructions that only call compiled code: one call of C, without the steps of the virtual machine between.

A frame whose sizes stay the same has its tensors in the same places, so that from its third call on nothing is left to do for a
kernel but to launch it. What comes from outside, arguments and results that the caller gets, has its address looked up anew.
Where sizes change from call to call, as a cache grows with every token, most kernels have tensors of the same shapes: they
are launched as they were at other sizes, with all addresses looked up anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.rounds import Launch, LaunchedRounds, Tensors
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, FrameLayout, getter
from mirage.runtime.launchable import LaunchedCall, launched
from mirage.runtime.launched_loop import loop_in_line
from mirage.runtime.places.host import HOST
from mirage.runtime.steps import Source, Step, Steps, noted

#: launches of a segment, at most: between segments, signals have their turn
_MOST = 64
#: times that a frame's launches are prepared for other arrays than before, at most, and those for changing sizes
_TIMES, _MOVES = 8, 16
#: instructions that make tensors, views and tuples of what there is, and let go of them
_MOVES_ONLY = (vm.MakeTensor, vm.Reshape, vm.MakeTuple, vm.GetItem, vm.Free)
_Call: TypeAlias = tuple[Source, LaunchedCall]
#: calls in a row, with their launches
_Run: TypeAlias = Sequence[tuple[_Call, Sequence[Launch]]]
_L = TypeVar("_L", bound="_Launches")


def in_segments(
    sources: Sequence[tuple[Source, int]], make: Steps, layout: FrameLayout, code: Sequence[vm.Instruction]
) -> list[Source]:
    """The steps of a function with this layout and code, of which some are joined; the number with each is that of the checks
    before it.
    """
    done: list[Source] = []
    joined: list[tuple[Source, LaunchedCall | None]] = []

    def close(last: bool = False) -> None:
        if any(call is not None for _, call in joined):
            # what is left at the end is dropped with all registers
            kept = [(s, call) for s, call in joined if not (last and isinstance(s.at, vm.Free))]
            done.append(Source(joined[0][0].at, Segment(make.owner, len(done), kept)))
        else:
            done.extend(source for source, _ in joined)
        joined.clear()

    for source, stage in sources:
        here = make.place is HOST and not stage
        call = launched(source.at, make) if here else None
        loop = None
        if here and isinstance(source.at, vm.Loop) and (loop := loop_in_line(source.at, source.step, make, layout, code)):
            call, source = loop.call, loop.source
        moves = isinstance(source.at, _MOVES_ONLY) and not stage
        if call is None and not moves:
            close()
            done.append(source)
            continue
        if sum(c is not None for _, c in joined) == _MOST:
            close()
        if isinstance(source.at, vm.CallPacked):
            # the result of an effect is what it writes to
            joined.append((Source(source.at, _alias(source.at.out, source.at.args[0])), None))
        if loop is not None:
            joined.append((loop.before, None))
        joined.append((source, call))
    close(last=True)
    return done


def _alias(out: int, of: int) -> Step:
    def step(registers: list[Any], frame: Frame) -> None:
        registers[out] = registers[of]

    return step


class Segment:
    """Some steps as one; see `mirage.runtime.steps.Step`."""

    def __init__(self, owner: str, number: int, steps: Sequence[tuple[Source, LaunchedCall | None]]) -> None:
        self.owner, self.number = owner, number
        self.calls = [(source, call) for source, call in steps if call is not None]
        others = [source for source, call in steps if call is None]
        #: what makes tensors and views of them, before the launches, and what lets go of them, after
        self._before = [s for s in others if not isinstance(s.at, vm.Free)]
        self._after = [s for s in others if isinstance(s.at, vm.Free)]

    def __call__(self, registers: list[Any], frame: Frame) -> None:
        ready = frame.segments.get(self.number)
        if ready is None:
            frame.segments[self.number] = _Ready(self._before, [self.calls], _TIMES, 1)
            self._make(self._before, registers, frame)
            self._moved(registers, frame)
            self._make(self._after, registers, frame)
            return
        self._make(ready.before, registers, frame)
        if ready.calls == 1:
            # the second one with the same sizes
            ready = frame.segments[self.number] = self._prepared(registers, frame, ready.times)
        ready.calls += 1
        for part in ready.parts:
            if isinstance(part, _Launches) and part.fits(registers):
                self._make(part.run(), registers, frame)
                continue
            calls = part.calls if isinstance(part, _Launches) else part
            self._make([source for source, _ in calls], registers, frame)
            if isinstance(part, _Launches) and ready.times:
                # for other arrays: prepared again by the next call
                frame.segments[self.number] = _Ready(self._before, [self.calls], ready.times, 1)
        self._make(self._after, registers, frame)

    def _make(self, sources: Sequence[Source], registers: list[Any], frame: Frame) -> None:
        for s in sources:
            try:
                s.step(registers, frame)
            except Exception as e:
                noted(e, self.owner, s.at)
                raise

    def _moved(self, registers: list[Any], frame: Frame) -> None:
        """Make the calls at sizes that the frame had not, or not lately: as at others, where tensors are of the same shapes."""
        found = frame.moving.get(self.number)
        if found is None:
            # there were no other sizes yet
            frame.moving[self.number] = _Moving()
            self._make([source for source, _ in self.calls], registers, frame)
            return
        if found.parts is None and found.times:
            found.times -= 1
            found.kinds = [_kind(call, registers, frame) for _, call in self.calls]
            found.parts = self._parts(registers, frame, lambda run: _Moved(self.owner, run, registers, frame), found.varying)
        parts: Sequence[_Moved | Sequence[_Call]] = [self.calls] if found.parts is None else found.parts
        fit = True
        for part in parts:
            if isinstance(part, _Moved) and part.moves(registers, frame):
                self._make(part.run(), registers, frame)
                continue
            fit = fit and not isinstance(part, _Moved)
            self._make([source for source, _ in (part.calls if isinstance(part, _Moved) else part)], registers, frame)
        if not fit:
            kinds = [_kind(call, registers, frame) for _, call in self.calls]
            found.varying |= {k for k, (a, b) in enumerate(zip(found.kinds, kinds, strict=True)) if a != b}
            found.parts = None

    def _prepared(self, registers: list[Any], frame: Frame, times: int) -> _Ready:
        """The segment prepared for what registers hold now; tensors that are the same in every call are made no more."""
        fixed, before = set(frame.fixed), []
        for s in self._before:
            moved = _as_moved(s.at)
            if moved and fixed.issuperset(moved[1]):
                out = moved[0]
                fixed.add(out)
                frame.registers[out] = registers[out]
            else:
                before.append(s)
        parts = self._parts(registers, frame, lambda run: _Launches(self.owner, run, registers, fixed))
        return _Ready(before, parts, times - 1, 1)

    def _parts(
        self, registers: Sequence[Any], frame: Frame, launches_of: Callable[[_Run], _L], without: Collection[int] = ()
    ) -> list[_L | list[_Call]]:
        """The calls in order, those in a row that can be prepared as one; `without` are numbers of calls that are not."""
        parts: list[_L | list[_Call]] = []
        run: list[tuple[_Call, Sequence[Launch]]] = []
        for k, (source, call) in enumerate(self.calls):
            given = [registers[r] for r in call.registers]
            arrays = [a for a in given if isinstance(a, np.ndarray)]
            fit = k not in without and all(a.size and _fits(a) for a in arrays)
            launches = call.prepare(given, frame.slots) if fit else None
            if launches is not None:
                run.append(((source, call), launches))
                continue
            parts += [launches_of(run)] if run else []
            parts.append([(source, call)])
            run = []
        parts += [launches_of(run)] if run else []
        return parts


@dataclass
class _Ready:
    """A segment for a frame as it is laid out: what is made before, launches and steps in order, how often it may still be
    prepared, and how many calls there were.
    """

    before: Sequence[Source]
    parts: Sequence[_Launches | Sequence[_Call]]
    times: int
    calls: int = 0


@dataclass
class _Moving:
    """A segment of a frame whose sizes change: launches and steps in order, if they are prepared, for which tensors each call
    was, the numbers of the calls whose tensors change their shapes, and how often it may still be prepared.
    """

    parts: Sequence[_Moved | Sequence[_Call]] | None = None
    kinds: Sequence[object] = ()
    varying: set[int] = field(default_factory=set)
    times: int = _MOVES


def _kind(call: LaunchedCall, registers: Sequence[Any], frame: Frame) -> object:
    """What has to be the same for a launch of a call."""
    given = (registers[r] for r in call.registers)
    return call.dims(frame.slots), [(a.shape, a.dtype) if isinstance(a, np.ndarray) else None for a in given]


def _as_moved(i: vm.Instruction) -> tuple[int, Sequence[int]] | None:
    """The register that an instruction writes, and those that its value is made of, if it only moves these."""
    match i:
        case vm.Reshape(out, value) | vm.GetItem(out, value):
            return out, (value,)
        case vm.MakeTuple(out, items):
            return out, items
        case vm.CallPacked(out, _, args):
            return out, args[:1]
    return None


class _Launches:
    """Calls that are prepared as launches, for what the registers hold."""

    def __init__(self, owner: str, run: _Run, registers: Sequence[Any], fixed: Collection[int]) -> None:
        self._owner = owner
        self.calls = [call for call, _ in run]
        places: dict[int, int] = {}
        found: list[tuple[Launch, Sequence[int]]] = []
        #: the number of the call of each launch
        self._numbers: list[int] = []
        #: registers of what launches do not find by its address
        known: list[int] = []
        for number, ((source, call), launches) in enumerate(run):
            at = [places.setdefault(r, len(places)) for r in call.registers]
            found += [(launch, at) for launch in launches]
            self._numbers += [number] * len(launches)
            known += [r for r in call.registers if not isinstance(registers[r], np.ndarray)]
            if isinstance(source.at, vm.CallKernel):
                known += [r for r in source.at.workspace if r not in fixed]
        self._rounds = LaunchedRounds([found], np.zeros((), np.int64), len(places))
        #: registers that have to hold the same as before, and that
        self._known = [(r, registers[r]) for r in dict.fromkeys(known)]
        arrays = {r: place for r, place in places.items() if isinstance(registers[r], np.ndarray)}
        for register, place in arrays.items():
            self._rounds.tensors[place] = address(registers[register])
        #: the registers that may hold other arrays than before
        others = [r for r in arrays if r not in fixed]
        self._others = getter(others)
        self._tensors = Tensors([registers[r] for r in others], [arrays[r] for r in others], self._rounds.tensors)

    def fits(self, registers: Sequence[Any]) -> bool:
        """Whether it may run for what the registers hold, which it then does."""
        for register, value in self._known:
            if registers[register] is not value:
                return False
        return self._tensors.take(self._others(registers))

    def run(self) -> Sequence[Source]:
        """Launch them; the steps that are left to be made. Raises what the calls do."""
        failed = self._rounds.run_first()
        if failed is None:
            return ()
        number = self._numbers[failed]
        error = self._rounds.error()
        if error is None:
            return [source for source, _ in self.calls[number:]]
        raise noted(error, self._owner, self.calls[number][0].at)


class _Moved(_Launches):
    """Calls that are prepared for tensors of these shapes, wherever they lie."""

    def __init__(self, owner: str, run: _Run, registers: Sequence[Any], frame: Frame) -> None:
        # launches hold the addresses of what is in a workspace
        held = {r for (source, _), _ in run if isinstance(source.at, vm.CallKernel) for r in source.at.workspace}
        super().__init__(owner, run, registers, held)
        self._held = [(r, address(registers[r])) for r in held]
        self._dims = [(call.dims, call.dims(frame.slots)) for (_, call), _ in run]

    def moves(self, registers: Sequence[Any], frame: Frame) -> bool:
        """Whether it may run for what the registers hold at these sizes, which it then does."""
        slots = frame.slots
        same = all(dims(slots) == known for dims, known in self._dims)
        return same and all(address(registers[r]) == known for r, known in self._held) and self.fits(registers)


def _fits(a: np.ndarray) -> bool:
    """Whether launches may read, or write, an array as it lies."""
    return a.flags.c_contiguous and a.flags.aligned
