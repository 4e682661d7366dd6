"""The libraries that compute predefined operators on a device, by the names that schedules give them.

A library is a module: only what asks for it by name imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mirage.ir.axes import AxisProgram
from mirage.kernels.cuda.device import CudaDevice

if TYPE_CHECKING:
    from mirage.kernels.cuda.library.program import CudaLibraryCalls
    from mirage.kernels.library_calls import Arrays

#: the one that every program has
CUBLASLT = "cublaslt"
LIBRARIES = {CUBLASLT: "mirage.kernels.cuda.library.program", "cutlass": "mirage.kernels.cuda.gemm.operator"}


class Library(Protocol):
    """How a library computes predefined operators."""

    def why_not(self, program: AxisProgram) -> str:
        """Why it computes no operator of a program on this machine in a way of its own; empty where it may."""

    def calls(
        self, device: CudaDevice, types: Mapping[str, str], arrays: Arrays
    ) -> Callable[..., CudaLibraryCalls]:
        """What makes the calls of a program, see `CudaLibraryCalls`; `types` are the element types of inputs, by name."""


def library(name: str) -> Library:
    """The library of that name, one of `LIBRARIES`."""
    return cast(Library, import_module(LIBRARIES[name]))


def offered(program: AxisProgram) -> list[str]:
    """The libraries that may compute operators of a program on this machine."""
    return [name for name in LIBRARIES if not library(name).why_not(program)]
