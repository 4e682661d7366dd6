"""Straight lines of instructions that only call compiled code: one call of C, without the steps of the virtual machine between.

A frame whose sizes stay the same has its tensors in the same places, so that from its third call on nothing is left to do for a
kernel but to launch it. What comes from outside, arguments and results that the caller gets, has its address looked up anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.rounds import Launch, LaunchedRounds, Tensors
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, getter
from mirage.runtime.launchable import LaunchedCall, launched
from mirage.runtime.places.host import HOST
from mirage.runtime.steps import Source, Steps, noted

#: launches of a segment, at most: between segments, signals have their turn
_MOST = 64
#: times that a frame's launches are prepared for other arrays than before, at most
_TIMES = 8
_Call: TypeAlias = tuple[Source, LaunchedCall]


def in_segments(sources: Sequence[tuple[Source, int]], make: Steps) -> list[Source]:
    """The steps of a function, of which some are joined; the number with each is that of the checks before it."""
    done: list[Source] = []
    joined: list[tuple[Source, LaunchedCall | None]] = []

    def close() -> None:
        if any(call is not None for _, call in joined):
            done.append(Source(joined[0][0].at, Segment(make.owner, len(done), joined)))
        else:
            done.extend(source for source, _ in joined)
        joined.clear()

    for source, stage in sources:
        call = launched(source.at, make) if make.place is HOST and not stage else None
        moves = isinstance(source.at, vm.MakeTensor | vm.Reshape | vm.Free) and not stage
        if call is None and not moves:
            close()
            done.append(source)
            continue
        if sum(c is not None for _, c in joined) == _MOST:
            close()
        joined.append((source, call))
    close()
    return done


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
            ready = frame.segments[self.number] = _Ready(self._before, [self.calls], _TIMES)
        self._make(ready.before, registers, frame)
        if ready.calls == 1:
            # the second one with the same sizes
            ready = frame.segments[self.number] = self._prepared(registers, frame, ready.times)
        ready.calls += 1
        for part in ready.parts:
            if isinstance(part, _Launches) and part.fits(registers):
                part.run()
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

    def _prepared(self, registers: list[Any], frame: Frame, times: int) -> _Ready:
        """The segment prepared for what registers hold now; tensors that are the same in every call are made no more."""
        fixed, before = set(frame.fixed), []
        for s in self._before:
            if isinstance(s.at, vm.Reshape) and s.at.value in fixed:
                fixed.add(s.at.out)
                frame.registers[s.at.out] = registers[s.at.out]
            else:
                before.append(s)
        parts: list[_Launches | list[_Call]] = []
        run: list[tuple[_Call, Sequence[Launch]]] = []
        for source, call in self.calls:
            given = [registers[r] for r in call.registers]
            arrays = [a for a in given if isinstance(a, np.ndarray)]
            launches = call.prepare(given, frame.slots) if all(a.size and _fits(a) for a in arrays) else None
            if launches is not None:
                run.append(((source, call), launches))
                continue
            parts += [_Launches(self.owner, run, registers, fixed)] if run else []
            parts.append([(source, call)])
            run = []
        parts += [_Launches(self.owner, run, registers, fixed)] if run else []
        return _Ready(before, parts, times - 1, 1)


@dataclass
class _Ready:
    """A segment for a frame as it is laid out: what is made before, launches and steps in order, how often it may still be
    prepared, and how many calls there were.
    """

    before: Sequence[Source]
    parts: Sequence[_Launches | Sequence[_Call]]
    times: int
    calls: int = 0


class _Launches:
    """Calls that are prepared as launches, for what the registers hold."""

    def __init__(
        self, owner: str, run: Sequence[tuple[_Call, Sequence[Launch]]], registers: Sequence[Any], fixed: Collection[int]
    ) -> None:
        self._owner = owner
        self.calls = [call for call, _ in run]
        places: dict[int, int] = {}
        found: list[tuple[Launch, Sequence[int]]] = []
        #: the instruction of each launch
        self._at: list[vm.Instruction] = []
        #: registers of what launches do not find by its address
        known: list[int] = []
        for (source, call), launches in run:
            at = [places.setdefault(r, len(places)) for r in call.registers]
            found += [(launch, at) for launch in launches]
            self._at += [source.at] * len(launches)
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
        known = all(registers[register] is value for register, value in self._known)
        return known and self._tensors.take(self._others(registers))

    def run(self) -> None:
        """Launch them; raises what the calls do."""
        failed = self._rounds.run_first()
        if failed is not None:
            raise noted(self._rounds.error(), self._owner, self._at[failed])


def _fits(a: np.ndarray) -> bool:
    """Whether launches may read, or write, an array as it lies."""
    return a.flags.c_contiguous and a.flags.aligned
