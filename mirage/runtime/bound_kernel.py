"""Kernels of an executable as the virtual machine calls them: sizes come in the order of the kernel's dim symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from mirage.kernels.cpu.launch.rounds import Launch
from mirage.runtime.steps import Kernel

Arrays: TypeAlias = tuple[np.ndarray, ...]


class _Callable(Protocol):
    """A kernel that takes sizes by their symbols."""

    @property
    def symbols(self) -> tuple[str, ...]: ...

    def __call__(
        self, inputs: Arrays, sizes: Mapping[str, int], out: Arrays, workspace: Arrays = ()
    ) -> None: ...


@runtime_checkable
class _Prepares(_Callable, Protocol):
    """One that prepares launches for arrays like these."""

    def prepare(
        self, inputs: Arrays, sizes: Mapping[str, int], out: Arrays, workspace: Arrays
    ) -> Sequence[Launch] | None: ...


def bound(kernel: _Callable) -> Kernel:
    """The kernel as the machine calls it; where it prepares launches, so does what the machine gets."""
    return _Bound(kernel) if isinstance(kernel, _Prepares) else _called(kernel)


def _called(kernel: _Callable) -> Kernel:
    symbols = tuple(kernel.symbols)

    def run(inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
        kernel(inputs, dict(zip(symbols, dims, strict=True)), outputs, workspace)

    return run


class _Bound:
    """See `mirage.runtime.launchable.Launchable`."""

    def __init__(self, kernel: _Prepares) -> None:
        self._kernel, self._symbols = kernel, tuple(kernel.symbols)

    def __call__(self, inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
        self._kernel(inputs, dict(zip(self._symbols, dims, strict=True)), outputs, workspace)

    def prepare(
        self, inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays
    ) -> Sequence[Launch] | None:
        return self._kernel.prepare(inputs, dict(zip(self._symbols, dims, strict=True)), outputs, workspace)
