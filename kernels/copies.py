"""Copies of arrays whose contents do not change, kept as long as the memory that they were made of."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

#: arrays of one input that have copies at a time: the weights of every layer of a large model
LIMIT = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    """A copy: of whose memory, and which number torch gave to its contents."""

    of: weakref.ref[Any]
    version: int
    copy: T


def version_of(array: Any) -> int:
    """How often torch has seen the contents change; 0 where nobody counts."""
    try:
        return int(array._version)
    except (AttributeError, RuntimeError):
        # NumPy arrays have none, nor have tensors made in inference mode
        return 0


class Copies(Generic[T]):
    """Copies of the arrays that one input was given, by `key`: the address with whatever else tells arrays there apart.

    A copy belongs to memory: an array at the same address with the same shape and strides has it, as long as the object that
    owned the memory lives. It goes with its owner, when torch counts a change of the contents, when `LIMIT` others are newer,
    or with `clear`.
    """

    def __init__(self) -> None:
        self._copies: OrderedDict[tuple[Any, ...], _Entry[T]] = OrderedDict()
        self._lock = threading.Lock()
        #: another number after each copy that went, and before its memory does: copies that were found before it was, live
        self.changes = ctypes.c_long(0)
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._copies)

    def all(self) -> list[T]:
        """The copies that there are."""
        return [entry.copy for entry in list(self._copies.values())]

    def clear(self) -> None:
        """Drop all copies."""
        while self._copies:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        try:
            _, gone = self._copies.popitem(last=False)
        except KeyError:
            # its owner's end was sooner
            return
        self._changed(gone)

    def _changed(self, gone: _Entry[T] | None) -> None:
        """Count a copy that went; its memory goes with the caller."""
        # each number is written once, whatever other threads do
        self.changes.value = next(self._numbers)

    def find(self, key: tuple[Any, ...], given: Any) -> T | None:
        """The copy of what the user passed, `given`, if there is one."""
        found = self._copies.get(key)
        alive = found is not None and found.of() is not None and found.version == version_of(given)
        return found.copy if found is not None and alive else None

    def add(self, key: tuple[Any, ...], given: Any, make: Callable[[], tuple[Any, T]]) -> T:
        """The copy of `given`, made unless another thread has; `make` also gives the owner of the memory."""
        with self._lock:
            return self.find(key, given) or self._add(key, given, *make())

    def _add(self, key: tuple[Any, ...], given: Any, owner: Any, copy: T) -> T:
        copies = self._copies

        def drop(of: weakref.ref[Any]) -> None:
            # the key may be another array's by now
            found = copies.get(key)
            if found is not None and found.of is of:
                self._changed(copies.pop(key, None))

        gone = copies.get(key)
        copies[key] = _Entry(weakref.ref(owner, drop), version_of(given), copy)
        copies.move_to_end(key)
        if gone is not None:
            self._changed(gone)
        while len(copies) > LIMIT:
            self._drop_oldest()
        return copy
