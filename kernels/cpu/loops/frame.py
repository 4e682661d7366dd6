"""What all C code of a kernel refers to: dims, tensors and checks, each with its place among the arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import sympy

from mirage.ir.dims import Dim, dim_text
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.emit.algebra import FunctionSources
from mirage.kernels.cpu.loops.access import last_long

#: C types of elements in memory
STORAGE = {
    "float32": "float",
    "float64": "double",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "int32": "int",
    "int64": "long",
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
}
#: C types of values
VALUES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long", "bool": "int"}


@dataclass(frozen=True)
class Tensor:
    """A tensor in C: its pointer, what its elements are stored as, and C text of the strides of its dims in elements.

    A stride "" is one of a dim that is not in memory: it has size 1, or a buffer is for one index of it. `value` is the C
    variable that holds the only element instead.
    """

    pointer: str
    dtype: str
    strides: tuple[str, ...]
    value: str = ""


class Frame:
    """Names and arguments; `real` is the type of vectors' elements, `half` the 16-bit type that vectors are loaded from."""

    def __init__(self, real: str, half: str) -> None:
        self.real = real
        self.half = half
        self.functions = FunctionSources()
        #: dim -> place in the array of sizes
        self.dims: dict[Dim, int] = {}
        #: C variables of inputs' strides, in order
        self.strides: list[str] = []
        #: what may go wrong, by number - 1
        self.checks: list[str] = []
        self._locals = count()

    def local(self, prefix: str = "v") -> str:
        """A new name for a C variable."""
        return f"{prefix}{next(self._locals)}"

    def dim(self, d: Dim) -> str:
        """C text of a dim, or of any expression of dims."""
        if d.is_Integer:
            return f"{int(d)}L"
        self.dims.setdefault(d, len(self.dims))
        return dim_name(d, self.dims[d])

    def declarations(self) -> list[str]:
        """Of every dim that has been used so far, and of the strides."""
        lines = []
        for d, k in self.dims.items():
            lines.append(f"const long {dim_name(d, k)} = args->sizes[{k}];")
        lines += [f"const long {s} = args->strides[{k}];" for k, s in enumerate(self.strides)]
        return lines

    def input(self, name: str, dtype: str, shape: Sequence[Dim]) -> Tensor:
        """An input, whose strides are arguments; the last dim that is not of size 1 is contiguous."""
        strides = []
        for k, d in enumerate(shape):
            self.strides.append(f"{tensor_name(name)}_step{k}")
            strides.append("" if d == 1 else "1L" if k == last_long(tuple(shape)) else self.strides[-1])
        return Tensor(tensor_name(name), dtype, tuple(strides))

    def check(self, where: str) -> int:
        """The number of a check."""
        if where not in self.checks:
            self.checks.append(where)
        return self.checks.index(where) + 1

    def contiguous(self, pointer: str, dtype: str, shape: Sequence[Dim], outer: int = 0) -> Tensor:
        """A tensor in row-major order, without its first `outer` dims."""
        strides = []
        for k, d in enumerate(shape):
            step = sympy.expand(sympy.prod(shape[k + 1 :]))
            strides.append("" if k < outer or d == 1 else self.dim(step))
        return Tensor(pointer, dtype, tuple(strides))


def dim_name(d: Dim, number: int) -> str:
    """The C variable of a dim: readable for a symbol and simple expressions."""
    text = dim_text(d)
    if d.is_Symbol and text.isascii():
        return f"n_{text}"
    readable = re.sub(r"\W+", "_", text.replace("**", "p").replace("*", "x"), flags=re.ASCII)
    return f"n{number}_{readable[:24].strip('_')}"


def tensor_name(name: str) -> str:
    """The C variable of a tensor's elements."""
    return f"t_{_ascii(name)}"


def buffer_name(name: str, what: str) -> str:
    """The C variable of what a nest keeps of a stage."""
    return f"{what}_{_ascii(name)}"


def loop_name(name: str) -> str:
    """The C variable of a loop."""
    return name if re.fullmatch(r"[ir][0-9]+", name) else f"l_{_ascii(name)}"


def _ascii(name: str) -> str:
    """A Python name as part of one of C; different names stay different."""
    return "".join(c if c.isascii() else f"_u{ord(c):x}_" for c in name)


def is_half(dtype: str) -> bool:
    """Whether elements of a type are 16-bit floating-point numbers."""
    return dtype in DTYPES and DTYPES[dtype].itemsize == 2
