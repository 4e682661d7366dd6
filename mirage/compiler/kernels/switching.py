"""A kernel that starts as library calls, and becomes a better one while programs run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.ir.program import Program
from mirage.ir.types import TensorType


class SwitchingKernel:
    """Runs a program with the kernel that it has at the moment. Calls that are running finish with the one they began with.

    `outcome` says in words what it is.
    """

    kind = MuGraphKernel.kind
    #: its kernels differ in what they need, so that they take memory of their own
    workspace_types: tuple[TensorType, ...] = ()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outcome = "library calls, while it is superoptimized in the background"
        self._current = MuGraphKernel.of_library(program)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dim symbols that calls give the sizes of."""
        return self._current.symbols

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the results, over the dim symbols."""
        return self._current.output_types

    @property
    def current(self) -> MuGraphKernel:
        """What calls run at the moment."""
        return self._current

    def switch(self, kernel: MuGraphKernel, outcome: str) -> None:
        """Run this kernel, of the same program, from now on."""
        self._current, self.outcome = kernel, outcome

    def forget(self) -> None:
        """Drop the packed copies of constants: needed where somebody wrote to one."""
        self._current.forget()

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
        self._current(inputs, sizes, out)
