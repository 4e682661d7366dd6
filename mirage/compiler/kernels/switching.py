"""A kernel that starts as library calls, and becomes a better one while programs run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from mirage.ir.types import TensorType
from mirage.runtime.executable import Kernel


class SwitchingKernel:
    """Runs a program with the kernel that it has at the moment, at first as library calls. Calls that are running finish with the
    one they began with.

    `outcome` says in words what it is, `nanoseconds` how long calls took, and `calls` how many there were, since somebody last
    set them to 0: those of several threads at once may count for less.
    """

    #: its kernels differ in what they need, so that they take memory of their own
    workspace_types: tuple[TensorType, ...] = ()

    def __init__(self, library: Kernel) -> None:
        self.outcome = "library calls, while it is superoptimized in the background"
        self.nanoseconds = self.calls = 0
        self._current = library

    @property
    def kind(self) -> str:
        """The kind of the kernel that it has at the moment."""
        return self._current.kind

    @property
    def target(self) -> str:
        """The name of what it is compiled for."""
        return getattr(self._current, "target", "cpu")

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dim symbols that calls give the sizes of."""
        return self._current.symbols

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the results, over the dim symbols."""
        return self._current.output_types

    @property
    def current(self) -> Kernel:
        """What calls run at the moment."""
        return self._current

    def switch(self, kernel: Kernel, outcome: str) -> None:
        """Run this kernel, of the same program, from now on."""
        self._current, self.outcome = kernel, outcome

    def forget(self) -> None:
        """Drop the packed copies of constants: needed where somebody wrote to one."""
        current = self._current
        if hasattr(current, "forget"):
            current.forget()

    def to_text(self) -> str:
        """The text of the kernel that it has at the moment."""
        return self._current.to_text()

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray] = (),
    ) -> None:
        start = perf_counter_ns()
        self._current(inputs, sizes, out)
        self.nanoseconds += perf_counter_ns() - start
        self.calls += 1
