"""What is computed from constant arguments alone: once per set of arrays, and kept as long as they live."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mirage.remember import remember

#: sets of arrays whose values are kept at once
_KEPT = 4


class Prepared:
    """Values that `compute` makes of constant arrays.

    An array is known by its identity: whoever writes to one has to `forget`. May be called from several threads at once.
    """

    def __init__(self, compute: Callable[..., tuple[Any, ...]]) -> None:
        self._compute = compute
        self._values: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], tuple[Any, ...]]] = {}

    def get(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The values for these arrays; objects that cannot be referred to weakly have theirs computed anew."""
        key = tuple(map(id, arrays))
        found = self._values.get(key)
        if found is not None and all(r() is a for r, a in zip(found[0], arrays, strict=True)):
            return found[1]
        values = self._compute(*arrays)
        try:
            # an array's end drops what was made of it
            references = [weakref.ref(a, lambda _: self._values.pop(key, None)) for a in arrays]
        except TypeError:
            return values
        return remember(self._values, key, (references, values), _KEPT)[1]

    def forget(self) -> None:
        """Drop all values: the next call makes them again."""
        self._values.clear()
