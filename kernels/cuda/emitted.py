"""A muGraph as Triton source: what the emitter gives, and the compiler and the launcher take. Plain data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mirage.ir.axes import AxisDims
from mirage.ir.dims import Dim
from mirage.kernels.cuda.library.libraries import CUBLASLT
from mirage.kernels.decision import Limit

#: the multiple of which a pointer (in bytes), stride (in elements) or size may be assumed to be: Triton's tt.divisibility
DIVISIBILITY = 16


class ArgumentKind(Enum):
    """What an argument of a Triton function is; the value is its type in a Triton signature, but for pointers."""

    POINTER = "pointer"
    SIZE = "i32"
    STRIDE = "i64"


@dataclass(frozen=True)
class Argument:
    """One argument of a Triton function that is not constexpr.

    - POINTER: the address of the first element of tensor `tensor` (an index into `EmittedTriton.tensors`).
    - SIZE: the value of `value` at the sizes of the dim symbols: the size of an axis, or a dim that is computed with. It
      must be less than 2**31.
    - STRIDE: the stride of dim `dim` of tensor `tensor`, in elements, times `value` (a dim that is a product of axes has
      one stride; that of an outer axis is a multiple of it).

    An argument may be declared to be a multiple of `DIVISIBILITY` where it is: without it loads are narrow. That is so of
    pointers, strides and the sizes of axes along which neighbours lie in memory; other sizes are not `declared`, since each that
    is makes two kernels of one.
    """

    name: str
    kind: ArgumentKind
    value: Dim
    tensor: int = -1
    dim: int = -1
    declared: bool = True

    def __post_init__(self) -> None:
        if (self.kind is ArgumentKind.SIZE) != (self.tensor < 0) or (self.kind is ArgumentKind.STRIDE) == (
            self.dim < 0
        ):
            raise ValueError(
                f"argument {self.name}: a {self.kind.name} has no such tensor {self.tensor}, dim {self.dim}"
            )


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor in global memory: an input, or what a step writes.

    `shape` is symbolic; `axes` gives every dim as a product of the muGraph's axes. `dtype` is a name as in
    `mirage.ir.types.DTYPES`. The stride of dim `unit` must be 1 (no such demand where it is -1); the other strides are
    free for inputs, and those of a contiguous array for everything else.
    """

    name: str
    shape: tuple[Dim, ...]
    axes: AxisDims
    dtype: str
    unit: int


@dataclass(frozen=True)
class PackedInput:
    """Tensor `tensor` is a copy of input `input`, whose contents never change: its axes in the tensor's order, the last
    one with zeros behind its end as the tensor's shape says."""

    input: int
    tensor: int


@dataclass(frozen=True)
class Described:
    """A tensor that a kernel reads or writes through a tensor descriptor, which asks of the memory: addresses and strides
    of whole 16 bytes, positive strides along the axes of the descriptor, and no axis without elements.

    `strides` are (dim, factor, whether along an axis of the descriptor): that stride of the tensor times the factor.
    """

    tensor: int
    strides: tuple[tuple[int, Dim, bool], ...]
    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class TritonKernel:
    """One launch: the Triton function `name` of the source.

    `arguments` are its arguments in order, before the constexprs, which follow by name. `grid` gives the numbers of
    programs along x, y and z; `reads` and `writes` are the tensors that it loads from and stores to (all of each).
    """

    name: str
    arguments: tuple[Argument, ...]
    constexprs: Mapping[str, int]
    grid: tuple[Dim, Dim, Dim]
    num_warps: int
    num_stages: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class PredefinedStep:
    """A predefined kernel-level operator, a library's to run: node `node` of the muGraph's kernel graph.

    `reads` are its operands in order (-1 for a scalar constant of the kernel graph), `writes` its one result. `maxima` are
    (index of an exp, tensor): operands may be partial results relative to the maxima in that tensor, one per part, which
    `mirage.kernels.cpu.emit.stages.library_stage` brings to one maximum.
    """

    node: int
    reads: tuple[int, ...]
    writes: int
    maxima: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DeviceOutput:
    """A result of the muGraph: tensor `tensor` under the program's dims, each a product of axes, of shape `shape`.

    Where `dims` has the tensor's axes in the tensor's order the result is that memory; else the launcher transposes, and
    broadcasts along axes that the tensor lacks.
    """

    tensor: int
    dims: AxisDims
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class EmittedTriton:
    """The Triton source of a muGraph under one schedule.

    `source` is a Python module that imports triton and defines a `@triton.jit` function per kernel. `steps` run in order
    on one stream. `tensors` are the inputs of the muGraph first (`inputs` of them), then what steps write;
    `packed` tensors come between these: the caller fills them. All `limits` must hold at the sizes of a call. `axes` are the
    sizes of all axes, those of partial results included. `library` computes predefined operators.
    """

    source: str
    steps: tuple[TritonKernel | PredefinedStep, ...]
    tensors: tuple[DeviceTensor, ...]
    inputs: int
    outputs: tuple[DeviceOutput, ...]
    limits: tuple[Limit, ...]
    axes: Mapping[str, Dim]
    #: copies of inputs, which the caller makes once and keeps
    packed: tuple[PackedInput, ...] = ()
    described: tuple[Described, ...] = ()
    #: the same without descriptors, for arrays that are not as `described` asks
    fallback: EmittedTriton | None = None
    library: str = CUBLASLT

    @property
    def runs(self) -> tuple[TritonKernel | tuple[PredefinedStep, ...], ...]:
        """The steps, with predefined operators that follow one another together: a library runs them as one plan."""
        found: list[TritonKernel | tuple[PredefinedStep, ...]] = []
        for step in self.steps:
            if isinstance(step, TritonKernel):
                found.append(step)
            elif found and isinstance(found[-1], tuple):
                found[-1] = (*found[-1], step)
            else:
                found.append((step,))
        return tuple(found)

    @property
    def kernels(self) -> tuple[TritonKernel, ...]:
        """The steps that are Triton functions."""
        return tuple(s for s in self.steps if isinstance(s, TritonKernel))
