"""Functions over lists that run as loops, where the items of a list are tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mirage.errors import FormatError
from mirage.ir.annotations import Annotation, TupleType
from mirage.runtime import program as vm
from mirage.runtime.steps import Callee, Items

#: items of a list, at least; and bytes of each tensor in them, at most, where they are stacked, which is a copy
FEWEST, MOST_BYTES = 3, 1 << 16
#: the number of a round that does not ask for it
_FIRST = np.zeros((), np.int64)


class LoopOverList:
    """What a function over a list calls instead of its clauses: rounds `of` a loop.

    `round` and `ahead` are the functions that `of` names, `item` and `state` the types of these; `scans` is whether all states
    are kept, `joins` whether items are stacked.
    """

    def __init__(self, of: vm.OverList, round: Callee, ahead: Callee | None, item: Annotation, state: Annotation) -> None:
        self._of, self._round, self._ahead = of, round, ahead
        self.item, self.state = item, state
        self.scans, self.joins = of.scan, ahead is not None

    def run(self, columns: Sequence[list[np.ndarray]], args: Sequence[Any]) -> Any:
        """The last state, or of each tensor in the state an array with a row per round.

        `columns` are the tensors of all items, `args` the state and all else. Raises MirageError where it has to go item by item.
        """
        state, *fixed = args
        tensors = _flat(state)
        count = len(columns[0])
        each: Items = columns
        if self._ahead is not None:
            together = [a for k in self._of.given for a in ([_joined(c) for c in columns] if k < 0 else [fixed[k]])]
            early = self._ahead.run(together, (), None)
            if any(len(a) != count or not a.flags.c_contiguous for a in early):
                raise FormatError(f"function {self._of.ahead!r} does not compute a row of each item; compile the program again")
            each = [*columns, *early]
        first = [_FIRST, *tensors, *(c[0] for c in each), *fixed]
        kept = [np.empty((count, *a.shape), a.dtype) for a in tensors] if self.scans else []
        last: Sequence[Any] | None = self._round.rounds(count, first, len(tensors), (), each, kept)
        if last is None:
            last = tensors
            for k, row in enumerate(zip(*each, strict=True)):
                last = _flat(self._round.run([_FIRST, *last, *row, *fixed], (), None))
                for rows, a in zip(kept, last, strict=False):
                    rows[k] = a
        return tuple(kept) if self.scans else _nested(self.state, iter(last))


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of one shape in one, a row each."""
    shape = arrays[0].shape
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.array(arrays)


def _flat(value: Any) -> list[Any]:
    return [a for v in value for a in _flat(v)] if type(value) is tuple else [value]


def _nested(annotation: Annotation, leaves: Iterator[Any]) -> Any:
    if isinstance(annotation, TupleType):
        return tuple([_nested(f, leaves) for f in annotation.fields])
    return next(leaves)
