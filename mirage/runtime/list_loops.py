"""Functions over lists that run as loops, where the items of a list are tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.values import items, linked
from mirage.runtime.recorded import Pending
from mirage.runtime.steps import Callee

#: items of a list, at least, and bytes of each tensor in them, at most: stacking is a copy
FEWEST, MOST_BYTES = 3, 1 << 16


class LoopOverList:
    """What a function over a list calls instead of its clauses: a `loop`, see `mirage.runtime.program.OverList`, or else the
    function itself, `plain`. `item` and `state` are the types of these.
    """

    stacked = False
    forward = None
    batching = None

    def __init__(self, loop: Callee, plain: Callee, item: Annotation, state: Annotation, scan: bool) -> None:
        self._loop, self._plain, self._item, self._state, self._scan = loop, plain, item, state, scan

    def request(self, args: Sequence[Any]) -> tuple[Any, list[Any], tuple[int, ...]] | None:
        """The call for arguments: the list, the state, and all else. None where items are not alike, or something is recorded."""
        found = [*items(args[0])]
        if len(found) < FEWEST or any(type(a) is Pending for given in args[1:] for a in _flat(given)):
            return None
        columns = _columns(self._item, found)
        if columns is None:
            return None
        return self, [columns, *args], ()

    def run(self, args: list[Any], dims: tuple[int, ...], memory: Any) -> Any:
        """What the function returns; `args` are stacked items, the list, the state, and all else."""
        columns, _, state, *fixed = args
        states = _flat(state)
        try:
            found = self._loop.run([*columns, *states, *fixed], (), None)
        except MirageError:
            # item by item, what is wrong has its name
            return self._plain.run(args[1:], dims, memory)
        if not self._scan:
            return _nested(self._state, iter(found))
        kept = found[len(states) :]
        return linked([_nested(self._state, iter(row)) for row in zip(*kept, strict=True)])


def _columns(annotation: Annotation, values: list[Any]) -> tuple[np.ndarray, ...] | None:
    """The tensors of values, each stacked; None where they are not alike."""
    if isinstance(annotation, TupleType):
        parts = [_columns(f, [v[k] for v in values]) for k, f in enumerate(annotation.fields)]
        known = [p for p in parts if p is not None]
        return tuple(a for p in known for a in p) if len(known) == len(parts) else None
    first = values[0]
    if type(first) is not np.ndarray or first.nbytes > MOST_BYTES:
        return None
    shape, dtype = first.shape, first.dtype
    for v in values:
        if type(v) is not np.ndarray or v.shape != shape or v.dtype is not dtype:
            return None
    if not shape:
        return (np.array(values),)
    return (np.concatenate(values).reshape(len(values), *shape),)


def _flat(value: Any) -> list[Any]:
    return [a for v in value for a in _flat(v)] if type(value) is tuple else [value]


def _nested(annotation: Annotation, leaves: Any) -> Any:
    if isinstance(annotation, TupleType):
        return tuple([_nested(f, leaves) for f in annotation.fields])
    return next(leaves)


