"""What the Triton code of a loop program refers to: dims, tensors, checks and functions, each with its argument or source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from mirage.ir.dims import Dim
from mirage.ir.types import STORED_INTEGERS
from mirage.kernels.cpu.loops.frame import dim_name, tensor_name
from mirage.kernels.cuda.emit.algebra import FunctionSources

#: types of elements in memory, in a Triton signature: booleans are bytes
STORAGE = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "int32": "i32",
    "int64": "i64",
    "bool": "i8",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "uint32": "u32",
}
#: types of values in Triton code
VALUES = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float64": "tl.float64",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "bool": "tl.int1",
    # to convert to and from: they are computed with as int64
    **{name: f"tl.{name}" for name in STORED_INTEGERS},
}
#: the name of the words that failed checks are written to, which no tensor of a program has
FAILURES = ""


@dataclass(frozen=True)
class LoopTensor:
    """A contiguous tensor in global memory: its name in the program, shape, and element type."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    @property
    def pointer(self) -> str:
        """The argument with its address."""
        return "failures" if self.name == FAILURES else tensor_name(self.name)

    @property
    def strides(self) -> tuple[Dim, ...]:
        """The strides of its dims in elements."""
        return tuple(sympy.expand(sympy.prod(self.shape[k + 1 :])) for k in range(len(self.shape)))


class Frame:
    """Names and arguments that all kernels of a program share; `index` is the integer type of loops, "i32" or "i64", and
    `checks` are what may go wrong, by number.
    """

    def __init__(self, tensors: Sequence[LoopTensor], checks: Sequence[str], index: str) -> None:
        self.tensors = {t.name: t for t in tensors}
        self.index = index
        #: dim -> its argument
        self.dims: dict[Dim, str] = {}
        self.checks = tuple(checks)
        self.functions = FunctionSources()

    def dim(self, d: Dim) -> str:
        """Text of a dim, or of any expression of dims."""
        if d.is_Integer:
            return str(int(d))
        if d not in self.dims:
            self.dims[d] = dim_name(d, len(self.dims))
        return self.dims[d]

    def use(self, name: str, source: str) -> str:
        """The name of a function of Triton code, whose source is printed once."""
        self.functions.sources.setdefault(source)
        return name
