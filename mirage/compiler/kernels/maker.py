"""How kernels are made for a target: the one thing in which compilations for different targets differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mirage.ir.dims import Dim
from mirage.ir.graph import nodes
from mirage.ir.loops.program import LoopProgram
from mirage.ir.program import Program
from mirage.kernels.target import Target
from mirage.runtime.executable import Kernel

if TYPE_CHECKING:
    from mirage.compiler.kernels.kept import KeptKernels


class KernelMaker(ABC):
    """Makes the kernels of a compilation for a target, whose name is `target`. `on_host`: kernels take NumPy's arrays, so that
    they can be tried here.
    """

    def __init__(self, machine: Target) -> None:
        self.machine = machine
        self.target = machine.name
        self.on_host = machine.on_host
        #: what is kept of kernels that are made without a search, if anything
        self.kept: KeptKernels | None = None
        #: kernels of groups of operators that this compilation has made, by what decides them
        self.made: dict[Any, Future[tuple[nodes.Kernel, dict[str, Dim], float]]] = {}

    @abstractmethod
    def superoptimized(self, result: Any) -> Kernel:
        """The kernel of what `mirage.superoptimize` found for this target."""

    @abstractmethod
    def from_text(self, text: str) -> Kernel:
        """The kernel of what `superoptimized` gave, of its text: verified, and compiled for this machine. Raises as
        `kernel_from_text`.
        """

    @abstractmethod
    def fused(
        self,
        program: Program,
        hints: Sequence[Mapping[str, int]],
        *,
        bounds: Mapping[str, int] | None = None,
        constants: Collection[str] = (),
    ) -> Kernel | None:
        """One kernel for a program, without a search or measurements, or None where it has no such form.

        `hints` are typical sizes (dim symbol -> elements, at least 1), `bounds` the most that dims can be, where that is known;
        `constants` names inputs whose contents never change.
        """

    @abstractmethod
    def library(self, program: Program) -> Kernel:
        """The program as calls of the target's libraries, for all sizes."""

    def loops(self, program: LoopProgram, hints: Sequence[Mapping[str, int]]) -> Kernel:
        """A loop program as a kernel; `hints` are typical sizes. Raises NoCompilerError or CompilerError, here or in `finish`."""
        kernel: Kernel = self.machine.loops(program, hints[0] if hints else {})
        return kernel

    def finish(self, kernels: Collection[Kernel]) -> None:
        """Do at once what was put off when these kernels were made, such as starting a compiler. Raises as `loops` does."""
        self.machine.finish(kernels)
