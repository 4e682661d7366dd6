"""Loops whose body only calls compiled code: all rounds in C, without the steps of the virtual machine.

A body is looked at once, when its function is loaded, and prepared once for the sizes of a call. What cannot be prepared, such as
a call of a Python function, or a carried tensor that comes back in another's place, leaves a loop to the machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.launch.machine import addresses
from mirage.kernels.cpu.launch.memory import address, aligned
from mirage.kernels.cpu.launch.rounds import Item, Launch, LaunchedRounds, SideBySide
from mirage.remember import remember
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, FrameLayout
from mirage.runtime.guards import Entry
from mirage.runtime.launchable import LaunchedCall, launched
from mirage.runtime.places.host import HOST
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Items, Steps, noted

#: sizes whose rounds are kept
_KEPT = 16


class _Unknown(Exception):
    """The body does more than to call compiled code."""


class Rounds:
    """The loops over one function, whose frames are laid out as `layout`; `steps` evaluates its dims. Raises `_Unknown`."""

    def __init__(self, function: vm.VMFunction, layout: FrameLayout, steps: Steps) -> None:
        self._function, self._layout, self._steps = function, layout, steps
        self._parameters = len(function.parameters)
        #: register -> that whose memory it shares, and what gives its shape
        self._views: dict[int, tuple[int, Callable[[Slots], tuple[int, ...]] | None]] = {}
        #: register -> shape and element type of a tensor that outlives the round
        self._fresh: dict[int, tuple[Callable[[Slots], tuple[int, ...]], np.dtype[Any]]] = {}
        self._tuples: dict[int, tuple[int, ...]] = {}
        self._calls: list[LaunchedCall] = []
        self._ready: dict[Entry, list[_Ready] | None] = {}
        for i in function.code[:-1]:
            self._look_at(i)

    def _look_at(self, i: vm.Instruction) -> None:
        make = self._steps
        if call := launched(i, make):
            self._calls.append(call)
            if isinstance(i, vm.CallPacked):
                # the result of an effect is what it writes to
                self._views[i.out] = i.args[0], None
            return
        match i:
            case vm.AllocStorage() | vm.Free():
                pass
            case vm.MakeTensor(out, None, _, shape, dtype):
                self._fresh[out] = make.slots(shape), ELEMENTS[dtype]
            case vm.MakeTensor(out):
                if all(t.out != out for t in self._layout.tensors):
                    raise _Unknown
            case vm.Reshape(out, value, shape):
                self._views[out] = value, make.slots(shape)
            case vm.MakeTuple(out, items):
                self._tuples[out] = items
            case vm.GetItem(out, value, index) if value in self._tuples:
                self._views[out] = self._tuples[value][index], None
            case _:
                raise _Unknown

    def root(self, register: int) -> int:
        """The register in whose memory the tensor of another is."""
        while register in self._views:
            register = self._views[register][0]
        return register

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

    def _prepare(self, entry: Entry, args: Sequence[Any], carried: int, items: int, keeps: bool) -> _Ready | None:
        try:
            return _Ready(self, entry, args, carried, items, keeps)
        except _Unknown:
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
        return Rounds(function, layout, steps)
    except _Unknown:
        return None


class _Ready:
    """The rounds of loops at some sizes. One call at a time."""

    def __init__(self, body: Rounds, entry: Entry, args: Sequence[Any], carried: int, items: int, keeps: bool) -> None:
        self._body, self._name = body, body._function.name
        self._frame = Frame(body._layout)
        self._frame.enter(entry, None)
        self._slots = entry.slots
        if not all(isinstance(a, np.ndarray) and a.size for a in args):
            raise _Unknown
        self._index = np.zeros((), np.int64)
        #: all tensors by their places: the index, the arguments, and those of the rounds' own; and how these are found again
        self._tensors: list[np.ndarray] = [self._index, *args[1:]]
        self._places: dict[tuple[int, int], int] = {}
        result = body._function.code[-1]
        assert isinstance(result, vm.Return)
        after = (result.value,) if carried == 1 else body._tuples.get(body.root(result.value), ())
        if len(after) != carried:
            raise _Unknown
        self._fields = [body.root(r) for r in after]
        parts = self._independent()
        #: whether parts may run beside one another, which tensors that share memory would not allow
        self._apart = len(parts) > 1
        for j, (root, register) in enumerate(zip(self._fields, after, strict=True), 1):
            found = self._tensor(register, 0)[0]
            # what comes back in another's place would live longer than until the next round
            if (root <= carried and root != j) or found.shape != args[j].shape or found.dtype != args[j].dtype:
                raise _Unknown
        #: of registers whose tensor is another one in each round, which one: items, then what is carried, and what comes of it
        self._each = {1 + carried + k: k for k in range(items)}
        self._keeps, self._carried = keeps, range(1, 1 + carried)
        #: those of them that launches read
        self._read: set[int] = set()
        if keeps:
            self._each |= {1 + j: items + j for j in range(carried)}
            self._each |= {root: items + carried + j for j, root in enumerate(self._fields)}
            if len(self._each) < items + 2 * carried or not set(self._fields) <= body._fresh.keys():
                # what a round keeps is not what it has made for that alone
                raise _Unknown
        #: the call of each launch of a round, of each part
        self._calls: list[list[LaunchedCall]] = []
        made = [[self._launches(part, k, carried) for k in range(3)] for part in parts]
        indexes = [np.zeros((), np.int64) for _ in parts]
        tensors = len(self._tensors)
        self._rounds = SideBySide([LaunchedRounds(m, i, tensors) for m, i in zip(made, indexes, strict=True)])
        self._addresses = list(map(address, self._tensors))
        self._given = len(args)
        # those of a call live no longer than it
        self._tensors[1 : self._given] = [np.empty(0, np.uint8)] * (self._given - 1)

    @property
    def bytes(self) -> int:
        own = sum(self._tensors[at].nbytes for (r, _), at in self._places.items() if self._apart or r in self._body._fresh)
        return own + self._frame.arena.bytes

    def _tensor(self, register: int, turn: int) -> tuple[np.ndarray, int]:
        """The tensor in a register in rounds of a `turn`, 0 or 1, and its place among all."""
        body = self._body
        if register in body._views:
            value, shape = body._views[register]
            array, place = self._tensor(value, turn)
            return (array if shape is None else array.reshape(shape(self._slots))), place
        if register < body._parameters:
            return self._tensors[register], register
        if register not in body._fresh:
            turn = 0
        place = self._places.get((register, turn), -1)
        if place < 0:
            if register in body._fresh:
                shape, dtype = body._fresh[register]
                dims = shape(self._slots)
                array = aligned(int(np.prod(dims, dtype=np.int64)), dtype).reshape(dims)
            else:
                array = self._frame.registers[register]
            if not isinstance(array, np.ndarray) or not array.size:
                raise _Unknown
            if self._apart and register not in body._fresh:
                array = aligned(array.size, array.dtype).reshape(array.shape)
            place = self._places[register, turn] = len(self._tensors)
            self._tensors.append(array)
        return self._tensors[place], place

    def _place(self, register: int, place: int, kind: int) -> int:
        """That of a tensor, as `LaunchedRounds` has it."""
        root = self._body.root(register)
        number = self._each.get(root)
        # the first round finds what is carried where it was given
        if number is None or (not kind and root in self._carried):
            return place
        self._read.add(number)
        return -1 - number

    def _independent(self) -> list[list[LaunchedCall]]:
        """The calls in parts that need nothing of one another in any round: those that write a tensor and those that read it, in
        the round after, too, are in one.
        """
        body, graph = self._body, nx.Graph()
        graph.add_nodes_from(range(len(body._calls)))
        users: dict[int, list[int]] = {}
        for k, call in enumerate(body._calls):
            for root in {body.root(r) for r in call.registers}:
                users.setdefault(root, []).append(k)
        written = {body.root(r) for call in body._calls for r in _written(call.at)}
        for j, root in enumerate(self._fields, 1):
            if root != j:
                # what a round reads there, the one before has made
                users[root] = [*users.get(root, ()), *users.get(j, ())]
        for root in written | set(self._fields):
            nx.add_path(graph, users.get(root, ()))
        parts = sorted(map(sorted, nx.connected_components(graph)))
        return [[body._calls[k] for k in part] for part in parts]

    def _launches(self, part: Sequence[LaunchedCall], kind: int, carried: int) -> list[tuple[Launch, Sequence[int]]]:
        """Those of a part in the first round, in odd or in even ones, with the places of their tensors."""
        turn = kind % 2
        found: list[tuple[Launch, Sequence[int]]] = []
        if not kind:
            self._calls.append([])
        for call in part:
            given = [self._tensor(r, turn) for r in call.registers]
            launches = call.prepare([a for a, _ in given], self._slots)
            if launches is None:
                raise _Unknown
            places = [self._place(r, place, kind) for r, (_, place) in zip(call.registers, given, strict=True)]
            if kind:
                # what the round before has made
                for k, r in enumerate(call.registers):
                    root = self._body.root(r)
                    if root not in self._each and 1 <= root <= carried and self._fields[root - 1] != root:
                        places[k] = self._tensor(self._fields[root - 1], 1 - turn)[1]
            found += [(launch, places) for launch in launches]
            if not kind:
                self._calls[-1] += [call] * len(launches)
        return found

    def run(self, args: Sequence[Any], count: int, items: Items, kept: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """As `Rounds.run`."""
        for k in range(1, self._given):
            self._addresses[k] = address(args[k])
        each = None
        if self._each:
            each = (Item * (max(self._each.values()) + 1))()
            lists = []
            for k in self._read:
                # what is carried into a round is what the round before has made
                j = k - len(items)
                rows = items[k] if j < 0 else kept[j % len(kept)]
                if isinstance(rows, np.ndarray):
                    step = rows.strides[0]
                    each[k].rows, each[k].step = address(rows) - step * (0 <= j < len(kept)), step
                else:
                    lists.append(addresses(rows))
                    each[k].list = ctypes.addressof(lists[-1])
        failed = self._rounds.run(count, self._addresses, each)
        if failed is not None:
            part, launch = failed
            raise noted(self._rounds.parts[part].error(), self._name, self._calls[part][launch].at)
        if self._keeps:
            return tuple(rows[-1].reshape(a.shape) for rows, a in zip(kept, args[1:], strict=False))
        return tuple(self._field(root, args[j], args, (count - 1) % 2) for j, root in enumerate(self._fields, 1))

    def _field(self, root: int, like: np.ndarray, args: Sequence[Any], turn: int) -> np.ndarray:
        if root < self._body._parameters:
            return args[root].reshape(like.shape)  # type: ignore[no-any-return]
        array, _ = self._tensor(root, turn)
        return (array.copy() if self._apart or root in self._body._fresh else array).reshape(like.shape)


def _written(i: vm.Instruction) -> Sequence[int]:
    """The registers of what a call writes to."""
    match i:
        case vm.CallKernel(_, _, outputs, _, workspace):
            return (*outputs, *workspace)
        case vm.CallLibrary(_, _, outputs):
            return outputs
        case vm.CallPacked(_, _, (first, *_)):
            return (first,)
    raise AssertionError(i)

