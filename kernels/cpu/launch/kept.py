"""Tensors that follow from constants alone: computed at first sight of these constants, and kept with their packed copies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.kernels.copies import Copies, version_of
from mirage.kernels.cpu.launch.packing import PackedCopy, owner


@dataclass(frozen=True)
class Kept:
    """Tensors by number, and the owners of all constants that they follow from, with the versions of these."""

    tensors: dict[int, PackedCopy]
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
        found = super().find(key, given)
        return found if found is not None and found.alive(given) else None

    def get(
        self,
        key: tuple[Any, ...],
        given: Sequence[Any],
        arrays: Callable[[], Sequence[np.ndarray]],
        make: Callable[[Sequence[np.ndarray]], dict[int, PackedCopy]],
    ) -> Kept:
        """The same, computed if need be: `arrays` makes views of what is `given`, `make` computes tensors from these."""

        def gone(of: weakref.ref[Any]) -> None:
            # the key may be other constants' by now
            entry = self._copies.get(key)
            if entry is not None and any(of is one for one, _ in entry.copy.of):
                self._changed(self._copies.pop(key, None))

        def computed() -> tuple[Any, Kept]:
            read = arrays()
            owners = [owner(x, a) for x, a in zip(given, read, strict=True)]
            of = tuple((weakref.ref(o, gone), version_of(x)) for o, x in zip(owners, given, strict=True))
            return owners[0], Kept(make(read), of)

        return self.find(key, given) or self.add(key, given, computed)
