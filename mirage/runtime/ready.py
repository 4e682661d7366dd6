"""The rounds of a loop at some sizes, as launches of compiled code."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import networkx as nx
import numpy as np

from mirage.kernels.cpu.launch.machine import addresses
from mirage.kernels.cpu.launch.memory import address, aligned
from mirage.kernels.cpu.launch.rounds import SECONDS, SHARED, Item, Launch, LaunchedLoop, LaunchedRounds, Result
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame
from mirage.runtime.guards import Entry
from mirage.runtime.launchable import LaunchedCall
from mirage.runtime.loop_body import Body, Unknown
from mirage.runtime.rows import Position, within
from mirage.runtime.steps import Items, noted


@dataclass(frozen=True)
class _Each:
    """Of what each round has another tensor: the row at a position of an argument, or of the number in a list of such.

    `before` if it is the row that the round before had. Of `positions`, the row is the position itself.
    """

    of: Literal["args", "items", "kept", "positions"]
    number: int
    position: Position = field(default_factory=Position)
    before: bool = False


class Ready:
    """The rounds of loops at some sizes. One call at a time."""

    def __init__(self, body: Body, entry: Entry, args: Sequence[Any], carried: int, items: int, keeps: bool) -> None:
        self._body, self._name = body, body.function.name
        self._frame = Frame(body.layout)
        self._frame.enter(entry, None)
        self._slots = entry.slots
        if not all(isinstance(a, np.ndarray) and a.size for a in args):
            raise Unknown
        self._index = np.zeros((), np.int64)
        #: all tensors by their places: the index, the arguments, and those of the rounds' own; and how these are found again
        self._tensors: list[np.ndarray] = [self._index, *args[1:]]
        self._places: dict[tuple[int, int], int] = {}
        after = body.results(carried)
        self._fields = [body.root(r) for r in after]
        self._carried = range(1, 1 + carried)
        #: by registers whose tensor is another one in each round
        self._each = {1 + carried + k: _Each("items", k) for k in range(items)}
        #: the numbers of those that launches read
        self._numbers: dict[_Each, int] = {}
        self._keeps = keeps
        calls = body.calls
        if keeps:
            self._each |= {1 + j: _Each("kept", j, before=True) for j in range(carried)}
            self._each |= {root: _Each("kept", j) for j, root in enumerate(self._fields)}
            if len(self._each) < items + 2 * carried or not set(self._fields) <= body.fresh.keys():
                # what a round keeps is not what it has made for that alone
                raise Unknown
        else:
            calls = self._without_copies()
        written = self._find_rows(calls)
        parts = self._independent(calls)
        #: whether parts may run beside one another, which tensors that share memory would not allow
        self._apart = len(parts) > 1
        for j, (root, register) in enumerate(zip(self._fields, after, strict=True), 1):
            found = self._tensor(register, 0)[0]
            # what comes back in another's place would live longer than until the next round
            if (root <= carried and root != j) or found.shape != args[j].shape or found.dtype != args[j].dtype:
                raise Unknown
        #: the call of each launch of a round, of each part
        self._calls: list[list[LaunchedCall]] = []
        made = [[self._launches(part, k) for k in range(3)] for part in parts]
        self._given = len(args)
        #: by what is another tensor in each round, the place of the one that it is in
        self._within = {e: e.number if e.of == "args" else len(self._tensors) + k for k, e in enumerate(self._numbers)}
        tensors = len(self._tensors) + len(self._numbers)
        indexes = [np.zeros((), np.int64) for _ in parts]
        #: arguments that must share no memory with others: they are written sooner, or others read later, than the body says
        alone = written if any(e.of == "args" for e in self._each.values()) else set[int]()
        rounds = [LaunchedRounds(m, i, tensors) for m, i in zip(made, indexes, strict=True)]
        #: what is another tensor in each round, what holds their addresses, and which call these are of
        self._items = (Item * max(len(self._numbers), 1))()
        self._lists: list[Any] = []
        self._placed: tuple[int, ...] | None = None
        self._loop = LaunchedLoop(rounds, [a.nbytes for a in args[1:]], alone, self._items)
        self._addresses = [*map(address, self._tensors[1:]), *(0 for _ in self._numbers)]
        self._passing = any(e.of in ("items", "kept") for e in self._numbers)
        self._terms = sorted({r for e in self._numbers for r, _ in e.position.terms})
        # those of a call live no longer than it
        self._tensors[1 : self._given] = [np.empty(0, np.uint8)] * (self._given - 1)

    @property
    def bytes(self) -> int:
        own = sum(self._tensors[at].nbytes for (r, _), at in self._places.items() if self._apart or r in self._body.fresh)
        return own + self._frame.arena.bytes

    def _tensor(self, register: int, turn: int) -> tuple[np.ndarray, int]:
        """The tensor in a register in rounds of a `turn`, 0 or 1, and its place among all."""
        body = self._body
        if register in body.views:
            value, shape = body.views[register]
            array, place = self._tensor(value, turn)
            return (array if shape is None else array.reshape(shape(self._slots))), place
        if register < body.parameters:
            return self._tensors[register], register
        each = self._each.get(register)
        if each is not None and each.of == "args":
            row = self._tensors[each.number][0, ...]
            return (row if register in body.rows else row.reshape(self._kind(register)[0])), register
        if register in body.positions:
            return self._index, register
        if register not in body.fresh:
            turn = 0
        place = self._places.get((register, turn), -1)
        if place < 0:
            if register in body.fresh:
                shape, dtype = body.fresh[register]
                dims = shape(self._slots)
                array = aligned(int(np.prod(dims, dtype=np.int64)), dtype).reshape(dims)
            else:
                array = self._frame.registers[register]
            if not isinstance(array, np.ndarray) or not array.size:
                raise Unknown
            if self._apart and register not in body.fresh:
                array = aligned(array.size, array.dtype).reshape(array.shape)
            place = self._places[register, turn] = len(self._tensors)
            self._tensors.append(array)
        return self._tensors[place], place

    def _kind(self, register: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and element type of the tensor in a register that calls write."""
        body = self._body
        if register in body.views:
            value, shape = body.views[register]
            dims, dtype = self._kind(value)
            return (dims if shape is None else shape(self._slots)), dtype
        if register in body.fresh:
            shape, dtype = body.fresh[register]
            return shape(self._slots), dtype
        array = self._frame.registers[register]
        return array.shape, array.dtype

    def _place(self, register: int, place: int, kind: int) -> int:
        """That of a tensor, as `LaunchedRounds` has it."""
        root = self._body.root(register)
        each = self._each.get(root)
        # the first round finds what is carried where it was given
        if each is None or (not kind and root in self._carried):
            return place
        return -1 - self._numbers.setdefault(each, len(self._numbers))

    def _without_copies(self) -> list[LaunchedCall]:
        """The calls but for copies of a tensor that a round makes into its row of a carried one: it is made there at once."""
        body = self._body
        users: Counter[int] = Counter()
        writers: Counter[int] = Counter()
        for call in body.calls:
            users.update({body.root(r) for r in call.registers})
            writers.update({body.root(r) for r in _written(call.at)})
        users.update(row.tensor for row in body.rows.values())
        left: list[LaunchedCall] = []
        for call in body.calls:
            if isinstance(call.at, vm.CallPacked) and (copied := self._copied(call.at, left, users, writers)):
                made, each = copied
                self._each[made] = each
                back = replace(each, before=True)
                self._each |= {j: back for j, root in enumerate(self._fields, 1) if root == made}
            else:
                left.append(call)
        return left

    def _copied(
        self, i: vm.CallPacked, before: Sequence[LaunchedCall], users: Counter[int], writers: Counter[int]
    ) -> tuple[int, _Each] | None:
        """The register of the tensor that an effect copies, and the row that it goes to, if it may be made there."""
        if i.function != "scatter_" or dict(i.attrs)["axis"] != 0:
            return None
        stack, at, value = i.args
        body, made = self._body, self._body.root(value)
        position = body.positions.get(at)
        made_here = made >= body.parameters and made not in self._each and made not in body.rows
        if position is None or not position.step or stack not in self._carried or not made_here:
            return None
        # written once, before, and by no effect, which might be on what was there
        makers = [c for c in before if made in map(body.root, _written(c.at))]
        alone = self._fields[stack - 1] == stack and users[stack] == 1
        if not alone or writers[made] != 1 or not makers or isinstance(makers[0].at, vm.CallPacked):
            return None
        # the next round would write over the row
        if any(writers[j] for j, root in enumerate(self._fields, 1) if root == made):
            return None
        rows = self._tensors[stack]
        if self._kind(value) != (rows.shape[1:], rows.dtype):
            return None
        return made, _Each("args", stack, position)

    def _find_rows(self, calls: Sequence[LaunchedCall]) -> set[int]:
        """Find what launches read at positions; the arguments that are written to. Raises `Unknown` for rows of these, and for
        positions that depend on what rounds compute.
        """
        body = self._body
        written = {r for c in calls for w in _written(c.at) if (r := body.root(w)) < body.parameters}
        written |= {e.number for e in self._each.values() if e.of == "args"}
        for register, row in body.rows.items():
            # what is carried is another tensor in each round
            stays = self._carried.stop <= row.tensor < body.parameters
            if not stays or row.tensor in written or register in self._fields:
                raise Unknown
            self._each[register] = _Each("args", row.tensor, row.position)
        for register, position in body.positions.items():
            if register in self._fields:
                raise Unknown
            if register:
                self._each[register] = _Each("positions", 0, position)
        for each in self._each.values():
            for register, _ in each.position.terms:
                changes = register in self._carried or register in written
                if changes or not _is_integer(self._scalar(register, self._tensors)):
                    raise Unknown
        return written

    def _scalar(self, register: int, args: Sequence[Any]) -> Any:
        """A tensor that is the same in all rounds: an argument, or a constant."""
        return args[register] if register < self._body.parameters else self._body.layout.registers[register]

    def _independent(self, calls: Sequence[LaunchedCall]) -> list[list[LaunchedCall]]:
        """The calls in parts that need nothing of one another in any round: those that write a tensor and those that read it, in
        the round after, too, are in one.
        """
        body, graph = self._body, nx.Graph()
        graph.add_nodes_from(range(len(calls)))
        users: dict[int, list[int]] = {}
        for k, call in enumerate(calls):
            for root in {body.root(r) for r in call.registers}:
                users.setdefault(root, []).append(k)
        written = {body.root(r) for call in calls for r in _written(call.at)}
        for j, root in enumerate(self._fields, 1):
            if root != j:
                # what a round reads there, the one before has made
                users[root] = [*users.get(root, ()), *users.get(j, ())]
        for root in written | set(self._fields):
            nx.add_path(graph, users.get(root, ()))
        parts = sorted(map(sorted, nx.connected_components(graph)))
        return [[calls[k] for k in part] for part in parts]

    def _launches(self, part: Sequence[LaunchedCall], kind: int) -> list[tuple[Launch, Sequence[int]]]:
        """Those of a part in the first round, in odd or in even ones, with the places of their tensors."""
        turn = kind % 2
        found: list[tuple[Launch, Sequence[int]]] = []
        if not kind:
            self._calls.append([])
        for call in part:
            given = [self._tensor(r, turn) for r in call.registers]
            launches = call.prepare([a for a, _ in given], self._slots)
            if launches is None:
                raise Unknown
            places = [self._place(r, place, kind) for r, (_, place) in zip(call.registers, given, strict=True)]
            if kind:
                # what the round before has made
                for k, r in enumerate(call.registers):
                    root = self._body.root(r)
                    if root not in self._each and root in self._carried and self._fields[root - 1] != root:
                        places[k] = self._tensor(self._fields[root - 1], 1 - turn)[1]
            found += [(launch, places) for launch in launches]
            if not kind:
                self._calls[-1] += [call] * len(launches)
        return found

    def run(self, args: Sequence[Any], count: int, items: Items, kept: Sequence[np.ndarray]) -> tuple[Any, ...] | None:
        """As `Rounds.run`."""
        for k in range(1, self._given):
            self._addresses[k - 1] = address(args[k])
        # of calls with as many rounds, rows are where they were
        now = (count, *(int(self._scalar(r, args)) for r in self._terms))
        if self._passing or now != self._placed:
            self._placed = None
            if not self._place_rows(args, count, items, kept):
                return None
            self._placed = now
        if status := self._loop.run(count, self._addresses):
            if error := self._error(status):
                raise error
            return None
        if self._keeps:
            return tuple(rows[-1].reshape(a.shape) for rows, a in zip(kept, args[1:], strict=False))
        return tuple(self._field(root, args[j], args, count - 1) for j, root in enumerate(self._fields, 1))

    def _error(self, status: int) -> Exception | None:
        """What is wrong with a launch that has ended the rounds; None where they did not begin."""
        if status == SHARED:
            return None
        part, launch = self._loop.failed
        error = self._loop.parts[part].error(status)
        assert error is not None, "there are no loops within"
        return noted(error, self._name, self._calls[part][launch].at)

    def launch(self, args: Sequence[Any], count: int, results: Mapping[int, int]) -> Launch | None:
        """So many rounds as a launch for these arguments, where the integers that positions are sums of do not change; None where
        there is none, and where signals should have their turn between the rounds, or it is not known how long these take.

        `results` are, by the number of what is carried, the place behind the arguments of the tensor that takes it at the end.
        """
        self._placed = None
        short = 0 < self._loop.seconds * count < SECONDS
        if not short or self._passing or not self._place_rows(args, count, (), ()):
            return None
        left = [(self._result(self._fields[j], args, count - 1), to) for j, to in results.items()]
        return self._loop.launch(count, self._addresses[self._given - 1 :], left, self._error, self)

    def _result(self, root: int, args: Sequence[Any], last: int) -> Result:
        """Where what a register holds after the round of number `last` is."""
        array, within = self._last(root, args, last)
        at = address(array)
        return Result(within, 0, at - address(args[within]), array.nbytes) if within else Result(0, at, 0, array.nbytes)

    def _last(self, root: int, args: Sequence[Any], last: int) -> tuple[np.ndarray, int]:
        """The tensor in a register after the round of number `last`, and the number of the argument that it is in, or 0."""
        if root < self._body.parameters:
            return args[root], root
        if (each := self._each.get(root)) is not None:
            return args[each.number][self._first(each, args) + last * each.position.step, ...], each.number
        return self._tensor(root, last % 2)[0], 0

    def _place_rows(self, args: Sequence[Any], count: int, items: Items, kept: Sequence[np.ndarray]) -> bool:
        """Have launches find what each round has another tensor of; False where that is not as the body says."""
        self._lists.clear()
        for each, k in self._numbers.items():
            first, step, place = self._first(each, args), each.position.step, self._within[each]
            rows: list[np.ndarray] | np.ndarray
            if each.of == "positions":
                rows, first, step = first + step * np.arange(count, dtype=np.int64), 0, 1
                self._lists.append(rows)
            else:
                rows = {"args": args, "items": items, "kept": kept}[each.of][each.number]
                if not within(first, step, count, len(rows)):
                    return False
            item = self._items[k]
            item.tensor = place
            if isinstance(rows, np.ndarray):
                stride = rows.strides[0]
                self._addresses[place - 1] = address(rows)
                item.list = None
                item.offset, item.step = (first - step * each.before) * stride, step * stride
            else:
                self._lists.append(addresses(rows))
                item.list = ctypes.addressof(self._lists[-1])
        return True

    def _first(self, each: _Each, args: Sequence[Any]) -> int:
        """The position in the first round."""
        return each.position.first(lambda r: self._scalar(r, args))

    def _field(self, root: int, like: np.ndarray, args: Sequence[Any], last: int) -> np.ndarray:
        """What a register holds after the round of number `last`, for the caller."""
        array, within = self._last(root, args, last)
        stays = root < self._body.parameters or not (within or self._apart or root in self._body.fresh)
        return (array if stays else array.copy()).reshape(like.shape)


def _is_integer(x: Any) -> bool:
    return isinstance(x, np.ndarray) and not x.ndim and x.dtype.kind == "i"


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

