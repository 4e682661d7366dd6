"""Loops whose body only calls compiled code: all rounds in C, without the steps of the virtual machine.

A body is looked at once, when its function is loaded, and prepared once for the sizes of a call. What cannot be prepared, such as
a call of a Python function, or a carried tensor that comes back in another's place, leaves a loop to the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from mirage.ir.types import TensorType
from mirage.kernels.cpu.launch.rounds import Launch
from mirage.remember import remember
from mirage.runtime import program as vm
from mirage.runtime.frame import FrameLayout
from mirage.runtime.guards import Entry
from mirage.runtime.loop_body import Body, Unknown
from mirage.runtime.places.host import HOST
from mirage.runtime.ready import Ready
from mirage.runtime.steps import Items, Steps

#: sizes whose rounds are kept
_KEPT = 16


class Rounds:
    """The loops over one function."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._ready: dict[Entry, list[Ready] | None] = {}
        #: those that are launches of callers now, which live as long as these
        self._launched: WeakSet[Ready] = WeakSet()

    def run(
        self, entry: Entry, args: Sequence[Any], carried: int, count: int, items: Items, kept: Sequence[np.ndarray]
    ) -> tuple[Any, ...] | None:
        """What is carried after so many rounds, 1 at least; None where these are left to the machine.

        `args` are those of the first round, with the index, for which the sizes in `entry` are: `carried` many behind the index,
        and behind these `items`, for each its tensors of all rounds. `kept`, if given, takes what is carried after each round,
        along a leading dim. Raises what the calls of the body do.
        """
        if entry not in self._ready:
            first = self._prepare(entry, args, carried, len(items), bool(kept))
            remember(self._ready, entry, None if first is None else [first], _KEPT)
        free = self._ready[entry]
        if free is None:
            return None
        try:
            ready = free.pop()
        except IndexError:
            again = self._prepare(entry, args, carried, len(items), bool(kept))
            assert again is not None, "as for the same sizes before"
            ready = again
        result = ready.run(args, count, items, kept)
        # after an error, it is dropped
        free.append(ready)
        return result

    def launch(
        self, entry: Entry, args: Sequence[Any], carried: int, count: int, results: Mapping[int, int]
    ) -> Launch | None:
        """The rounds as a launch, of a loop that has run with such arguments before; see `Ready.launch`."""
        free = self._ready.get(entry) or []
        try:
            ready = free.pop()
        except IndexError:
            return None
        launch = ready.launch(args, count, results)
        if launch is None:
            free.append(ready)
        else:
            self._launched.add(ready)
        return launch

    def returned(self, carried: int) -> Sequence[int] | None:
        """For so many carried tensors, the numbers of those that come back as they were given; None for others than tensors."""
        body = self._body
        annotations = [p.annotation for p in body.function.parameters[1 : 1 + carried]]
        if not all(isinstance(a, TensorType) for a in annotations):
            return None
        try:
            return [j for j, r in enumerate(body.results(carried)) if body.root(r) == 1 + j]
        except Unknown:
            return None

    @property
    def terms(self) -> frozenset[int]:
        """The arguments, by their numbers, whose values decide at which positions rows are."""
        body = self._body
        positions = [*body.positions.values(), *(r.position for r in body.rows.values())]
        return frozenset(r for p in positions for r, _ in p.terms if r < body.parameters)

    def _prepare(self, entry: Entry, args: Sequence[Any], carried: int, items: int, keeps: bool) -> Ready | None:
        try:
            return Ready(self._body, entry, args, carried, items, keeps)
        except Unknown:
            return None

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory that is kept for the next calls."""
        return sum(r.bytes for free in [*self._ready.values(), self._launched] for r in free or ())

    def release(self) -> None:
        """Give that memory back."""
        self._ready.clear()


def rounds_of(function: vm.VMFunction, layout: FrameLayout, steps: Steps) -> Rounds | None:
    """The loops over a function in main memory; None where they are left to the machine."""
    if steps.place is not HOST:
        return None
    try:
        return Rounds(Body(function, layout, steps))
    except Unknown:
        return None
