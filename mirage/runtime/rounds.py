"""Loops whose body only calls compiled code: all rounds in C, without the steps of the virtual machine.

A body is looked at once, when its function is loaded, and prepared once for the sizes of a call. What cannot be prepared, such as
a call of a Python function, or a carried tensor that comes back in another's place, leaves a loop to the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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

    def _prepare(self, entry: Entry, args: Sequence[Any], carried: int, items: int, keeps: bool) -> Ready | None:
        try:
            return Ready(self._body, entry, args, carried, items, keeps)
        except Unknown:
            return None

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory that is kept for the next calls."""
        return sum(r.bytes for free in self._ready.values() for r in free or ())

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
