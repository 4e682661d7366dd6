"""Functions over lists that run as loops, where the items of a list are tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mirage.errors import FormatError, MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.values import items, linked
from mirage.runtime import program as vm
from mirage.runtime.recorded import Pending, joined
from mirage.runtime.steps import Callee, Items

#: items of a list, at least; and bytes of each tensor in them, at most, where they are stacked, which is a copy
FEWEST, MOST_BYTES = 3, 1 << 16
#: the number of a round that does not ask for it
_FIRST = np.zeros((), np.int64)


class LoopOverList:
    """What a function over a list calls instead of its clauses: rounds `of` a loop, or else the function itself, `plain`.

    `round` and `ahead` are the functions that `of` names, `item` and `state` the types of these.
    """

    stacked = False
    forward = None
    batching = None

    def __init__(
        self, of: vm.OverList, round: Callee, ahead: Callee | None, plain: Callee, item: Annotation, state: Annotation
    ) -> None:
        self._of, self._round, self._ahead, self._plain = of, round, ahead, plain
        self._item, self._state = item, state

    def request(self, args: Sequence[Any]) -> tuple[Any, list[Any], tuple[int, ...]] | None:
        """The call for arguments: the list, the state, and all else. None where items are not alike, or something is recorded."""
        found = [*items(args[0])]
        if len(found) < FEWEST or any(type(a) is Pending for given in args[1:] for a in _flat(given)):
            return None
        columns = _columns(self._item, found)
        if columns is None or (self._ahead is not None and any(c[0].nbytes > MOST_BYTES for c in columns)):
            return None
        return self, [columns, *args], ()

    def run(self, args: list[Any], dims: tuple[int, ...], memory: Any) -> Any:
        """What the function returns; `args` are the tensors of all items, the list, the state, and all else."""
        columns, _, state, *fixed = args
        try:
            states = self._states(columns, _flat(state), fixed)
        except MirageError:
            # item by item, what is wrong has its name
            return self._plain.run(args[1:], dims, memory)
        found = [_nested(self._state, iter(s)) for s in states]
        return linked(found) if self._of.scan else found[-1]

    def _states(self, columns: list[list[np.ndarray]], state: Sequence[Any], fixed: list[Any]) -> list[Sequence[Any]]:
        """The tensors of the state after each round, or after the last one alone."""
        count = len(columns[0])
        each: Items = columns
        if self._ahead is not None:
            together = [a for k in self._of.given for a in ([joined(c) for c in columns] if k < 0 else [fixed[k]])]
            early = self._ahead.run(together, (), None)
            if any(len(a) != count or not a.flags.c_contiguous for a in early):
                raise FormatError(f"function {self._of.ahead!r} does not compute a row of each item; compile the program again")
            each = [*columns, *early]
        first = [_FIRST, *state, *(c[0] for c in each), *fixed]
        kept = [np.empty((count, *a.shape), a.dtype) for a in state] if self._of.scan else []
        last = self._round.rounds(count, first, len(state), (), each, kept)
        if last is not None:
            return [*zip(*kept, strict=True)] if kept else [last]
        states: list[Sequence[Any]] = []
        for row in zip(*each, strict=True):
            state = _flat(self._round.run([_FIRST, *state, *row, *fixed], (), None))
            states.append(state)
        return states


def _columns(annotation: Annotation, values: list[Any]) -> list[list[np.ndarray]] | None:
    """The tensors of values, those at one place together; None where they are not alike."""
    if isinstance(annotation, TupleType):
        parts = [_columns(f, [v[k] for v in values]) for k, f in enumerate(annotation.fields)]
        known = [p for p in parts if p is not None]
        return [a for p in known for a in p] if len(known) == len(parts) else None
    first = values[0]
    if type(first) is not np.ndarray:
        return None
    shape, dtype = first.shape, first.dtype
    for v in values:
        if type(v) is not np.ndarray or v.shape != shape or v.dtype is not dtype or not v.flags.c_contiguous:
            return None
    return [values]


def _flat(value: Any) -> list[Any]:
    return [a for v in value for a in _flat(v)] if type(value) is tuple else [value]


def _nested(annotation: Annotation, leaves: Iterator[Any]) -> Any:
    if isinstance(annotation, TupleType):
        return tuple([_nested(f, leaves) for f in annotation.fields])
    return next(leaves)
