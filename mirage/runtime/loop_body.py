"""What the body of a loop does, if all of it is calls of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage.ir.types import ELEMENTS
from mirage.runtime import program as vm
from mirage.runtime.frame import FrameLayout
from mirage.runtime.launchable import LaunchedCall, launched
from mirage.runtime.rows import Position, Row, position_of, row_of
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Steps


class Unknown(Exception):
    """The body does more than to call compiled code."""


class Body:
    """What a function does whose frames are laid out as `layout`; `steps` evaluates its dims. Raises `Unknown`."""

    def __init__(self, function: vm.VMFunction, layout: FrameLayout, steps: Steps) -> None:
        self.function, self.layout, self._steps = function, layout, steps
        self.parameters = len(function.parameters)
        #: register -> that whose memory it shares, and what gives its shape
        self.views: dict[int, tuple[int, Callable[[Slots], tuple[int, ...]] | None]] = {}
        #: register -> shape and element type of a tensor that outlives the round
        self.fresh: dict[int, tuple[Callable[[Slots], tuple[int, ...]], np.dtype[Any]]] = {}
        self.tuples: dict[int, tuple[int, ...]] = {}
        #: what is computed of the index, which is the first parameter, and rows of tensors
        self.positions: dict[int, Position] = {0: Position()}
        self.rows: dict[int, Row] = {}
        self.calls: list[LaunchedCall] = []
        for i in function.code[:-1]:
            self._look_at(i)

    def _look_at(self, i: vm.Instruction) -> None:
        make = self._steps
        if call := launched(i, make):
            self.calls.append(call)
            if isinstance(i, vm.CallPacked):
                # the result of an effect is what it writes to
                self.views[i.out] = i.args[0], None
            return
        match i:
            case vm.AllocStorage() | vm.Free():
                pass
            case vm.MakeTensor(out, None, _, shape, dtype):
                self.fresh[out] = make.slots(shape), ELEMENTS[dtype]
            case vm.MakeTensor(out):
                if all(t.out != out for t in self.layout.tensors):
                    raise Unknown
            case vm.Reshape(out, value, shape):
                self.views[out] = value, make.slots(shape)
            case vm.MakeTuple(out, items):
                self.tuples[out] = items
            case vm.GetItem(out, value, index) if value in self.tuples:
                self.views[out] = self.tuples[value][index], None
            case vm.CallOperator(out) if position := position_of(i, self.positions):
                self.positions[out] = position
            case vm.CallOperator(out) if row := row_of(i, self.positions):
                self.rows[out] = row
            case _:
                raise Unknown

    def results(self, carried: int) -> tuple[int, ...]:
        """The registers of what is carried after a round, for so many."""
        last = self.function.code[-1]
        assert isinstance(last, vm.Return)
        found = (last.value,) if carried == 1 else self.tuples.get(self.root(last.value), ())
        if len(found) != carried:
            raise Unknown
        return found

    def root(self, register: int) -> int:
        """The register in whose memory the tensor of another is."""
        while register in self.views:
            register = self.views[register][0]
        return register
