"""Loops within straight lines: launches among others, where the integers that decide which rows rounds use are constants.

Launches write to tensors that there are before them. So has a loop what it leaves: tensors like those that it begins with, or one
of these itself, where rounds write to that in place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import FormatError
from mirage.kernels.cpu.launch.rounds import Launch
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, FrameLayout, getter
from mirage.runtime.launchable import LaunchedCall, one
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Source, Step, Steps, make_tuple


@dataclass(frozen=True)
class LoopInLine:
    """A loop: `before` makes what it leaves, `source` computes this, and `call` does so as a launch."""

    before: Source
    source: Source
    call: LaunchedCall


def loop_in_line(
    i: vm.Loop, step: Step, make: Steps, layout: FrameLayout, code: Sequence[vm.Instruction]
) -> LoopInLine | None:
    """A loop, with its `step`, among the `code` of a function with this layout, which gets registers for what it leaves. None
    for one that stays a step of its own.
    """
    callee, many = make.callees[i.body], len(i.carried)
    loops = callee.loops
    if loops is None or i.count is None or i.times is not None or i.bound is not None:
        return None
    given = (*i.carried, *i.invariant)
    returned = loops.returned(many)
    if returned is None or any(layout.registers[given[r - 1]] is None for r in loops.terms):
        return None
    used = [j for j in _used(i.out, many, code) if j not in returned]
    places = {j: len(layout.registers) + k for k, j in enumerate(used)}
    layout.registers += [None] * len(places)
    slots, dims = make.slots([i.count, *i.dims]), make.slots(i.dims)
    first = np.zeros((), np.int64)
    results = {j: len(given) + k for k, j in enumerate(used)}

    def prepare(tensors: Sequence[Any], sizes: Slots) -> Sequence[Launch] | None:
        count = slots(sizes)[0]
        args = [first, *tensors[: len(given)]]
        return one(callee.launch(count, args, many, dims(sizes), results) if count > 1 else None)

    call = LaunchedCall(i, (*given, *places.values()), prepare, slots)
    before = Source(i, _destinations(i, returned, places))
    if many > 1 and not places:
        # nothing is made
        before = Source(tuple_of := vm.MakeTuple(i.out, i.carried), make_tuple(tuple_of))
    return LoopInLine(before, Source(i, _into(i, step, places)), call)


def _used(out: int, many: int, code: Sequence[vm.Instruction]) -> Collection[int]:
    """The numbers of the results that are read."""
    readers = [i for i in code if out in vm.read(i) and not isinstance(i, vm.Free)]
    if many > 1 and all(isinstance(i, vm.GetItem) for i in readers):
        return {i.index for i in readers if isinstance(i, vm.GetItem)}
    return range(many)


def _destinations(i: vm.Loop, returned: Collection[int], places: dict[int, int]) -> Step:
    carried, out, many = getter(i.carried), i.out, len(i.carried)

    def step(registers: list[Any], frame: Frame) -> None:
        begin = carried(registers)
        made: list[Any] = [begin[j] if j in returned else None for j in range(many)]
        for j, at in places.items():
            made[j] = registers[at] = np.empty(begin[j].shape, begin[j].dtype)
        registers[out] = tuple(made) if many > 1 else made[0]

    return step


def _into(i: vm.Loop, run: Step, places: dict[int, int]) -> Step:
    """The step, with what it leaves in the tensors that were made for it."""
    out, many = i.out, len(i.carried)

    def step(registers: list[Any], frame: Frame) -> None:
        made = registers[out]
        run(registers, frame)
        found = registers[out] if many > 1 else (registers[out],)
        registers[out] = made
        for j, at in places.items():
            if found[j].shape != registers[at].shape:
                raise FormatError(
                    f"{i.body}: a round returns a tensor of shape {list(found[j].shape)} for one of {list(registers[at].shape)}; "
                    "compile the program again"
                )
            registers[at][...] = found[j]

    return step
