"""Small programs of the virtual machine: kernels in NumPy, and functions written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage.ir.annotations import Annotation
from mirage.ir.dims import Dim, DimLike, to_dim
from mirage.runtime import program as vm
from mirage.runtime.steps import Kernel
from mirage.runtime.vm import VirtualMachine

Arrays = tuple[np.ndarray, ...]


def add(inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


def double(inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
    np.multiply(inputs[0], 2, out=outputs[0])


def fill(inputs: Arrays, outputs: Arrays, dims: tuple[int, ...], workspace: Arrays) -> None:
    """Its first extra shape argument everywhere, by way of the workspace."""
    workspace[0][...] = dims[0]
    outputs[0][...] = workspace[0].reshape(-1)[0] if workspace[0].size else 0


KERNELS: dict[str, Kernel] = {"add": add, "double": double, "fill": fill}
ADD, DOUBLE, FILL = range(3)


def dims(*values: DimLike) -> tuple[Dim, ...]:
    return tuple(to_dim(v) for v in values)


def function(
    parameters: Mapping[str, Annotation],
    *code: vm.Instruction,
    name: str = "main",
    in_place: Sequence[str] = (),
    extra: tuple[str, ...] = (),
    **more: Any,
) -> vm.VMFunction:
    """A function over as many registers as its code writes."""
    given = tuple(vm.Parameter(n, a, n in in_place) for n, a in parameters.items())
    written = [getattr(i, "out", -1) for i in code] + [r for r, _ in more.get("constants", ())]
    registers = max([len(given) - 1, *written]) + 1
    return vm.VMFunction(name, given, code, registers, extra, **more)


def program(*functions: vm.VMFunction, **more: Any) -> vm.VMProgram:
    return vm.VMProgram({f.name: f for f in functions}, tuple(KERNELS), **more)


def machine(*functions: vm.VMFunction, constants: Sequence[np.ndarray] = (), **more: Any) -> VirtualMachine:
    return VirtualMachine(program(*functions, **more), list(KERNELS.values()), constants)
