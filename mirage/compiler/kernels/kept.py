"""Kernels that are made without a search, kept for compilations of the same program.

A kernel depends on the cost model, which is fitted anew after every measurement: the one that won a race would be another one in
the next process. It is kept as its text, and verified and compiled as any kernel that is read.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Sequence

from mirage.cache import CallStore, CorruptRecordWarning
from mirage.cache.records import label, sha256
from mirage.compiler.kernels.mugraph import MuGraphKernel, kernel_from_text
from mirage.errors import FormatError, MirageError
from mirage.ir.codec import Json, decode, encode
from mirage.ir.program import Program
from mirage.kernels.target import Target
from mirage.results.forms import StoredKernel


class KeptKernels:
    """The kernels of one compilation: recalled from the store where it `recalls`, else made, and kept where they run."""

    def __init__(self, store: CallStore, target: Target, *, recalls: bool) -> None:
        self.store = store
        self.target = target
        self.machine = next(iter(target.machines), "")
        self.recalls = recalls
        self._made: dict[str, MuGraphKernel] = {}

    def get(
        self, program: Program, parts: Sequence[str], make: Callable[[], MuGraphKernel | None]
    ) -> MuGraphKernel | None:
        """The kernel of a program, of which `parts` are what it is made for, or what `make` makes.

        A record that is damaged, or of another program, is a warning, and is replaced.
        """
        schema = StoredKernel.form
        key = sha256(json.dumps(["fused", schema, self.target.name, self.machine, str(program.nameless()), *parts]))
        if self.recalls and (found := self._recalled(key, program)) is not None:
            return found
        kernel = make()
        if kernel is not None:
            self._made[key] = kernel
        return kernel

    def _recalled(self, key: str, program: Program) -> MuGraphKernel | None:
        found = self.store.recall(key)
        if found is None:
            return None
        try:
            kernel = kernel_from_text(json.dumps(decode(StoredKernel, found.payload, "record").kernel))
            if kernel.program.nameless() != program.nameless():
                raise FormatError("it is of another program")
            return kernel
        except (MirageError, ValueError) as e:
            text = f"record {key[:12]} of the results store is not used: {e}"
            warnings.warn(text, CorruptRecordWarning, stacklevel=5)
            return None

    def keep(self, used: Collection[object]) -> None:
        """Keep the kernels that were made, as far as they are among these, in the place of what was kept."""
        wanted = {id(k) for k in used}
        for key, kernel in self._made.items():
            if id(kernel) in wanted:
                payload = encode(StoredKernel(kernel=Json(json.loads(kernel.to_text()))))
                self.store.put(
                    key, payload, program=kernel.program.name, target=self.target.name, dtype=kernel.program.dtype,
                    best_us=None, processor=label("; ".join(self.machine.split("\n"))), replaces=self.store.checksum(key),
                )  # fmt: skip
