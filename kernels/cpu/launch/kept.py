"""Tensors that follow from constants alone: computed by the first call for these constants, kept as packed copies are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.kernels.copies import Copies, version_of
from mirage.kernels.cpu.launch.packing import owner


@dataclass(frozen=True)
class Kept:
    """Tensors by number, and the owners of all constants that they follow from, with the versions of these."""

    tensors: dict[int, np.ndarray]
    of: tuple[tuple[weakref.ref[Any], int], ...]

    def alive(self, given: Sequence[Any]) -> bool:
        """Whether all constants live, and are what they were."""
        return all(
            of() is not None and version_of(x) == version for (of, version), x in zip(self.of, given, strict=True)
        )


class KeptTensors(Copies[Kept]):
    """What was kept, by the addresses and layouts of the constants."""

    def find(self, key: tuple[Any, ...], given: Any) -> Kept | None:
        """What was kept for these constants, `given` as the user passed them."""
        found = super().find(key, given[0])
        return found if found is not None and found.alive(given) else None

    def get(
        self,
        key: tuple[Any, ...],
        given: Sequence[Any],
        arrays: Sequence[np.ndarray],
        compute: Callable[[], dict[int, np.ndarray]],
    ) -> Kept:
        """What is kept for `arrays`, views of what is `given`; computed unless another thread has."""
        found = self.find(key, given)
        if found is not None:
            return found
        with self._lock:
            found = self.find(key, given)
            if found is not None:
                return found
            owners = [owner(x, a) for x, a in zip(given, arrays, strict=True)]
            of = tuple((weakref.ref(o), version_of(x)) for o, x in zip(owners, given, strict=True))
            return self._add(key, given[0], owners[0], Kept(compute(), of))
