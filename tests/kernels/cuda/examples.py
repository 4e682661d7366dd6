"""Emitted muGraphs written by hand: a product of matrices, a scaled matrix, a sum in two kernels."""

from __future__ import annotations

from mirage.ir.axes import AxisDims
from mirage.ir.dims import Dim, ceil_div, symbol, to_dim
from mirage.kernels.cuda.emitted import (
    Argument,
    ArgumentKind,
    DeviceOutput,
    DeviceTensor,
    EmittedTriton,
    TritonKernel,
)

M, N, K = (symbol(s) for s in "mnk")
ONE = to_dim(1)
PARTS = 8

MATMUL = """
import triton
import triton.language as tl


@triton.jit
def matmul(x, y, z, m, n, k, x_stride, y_stride, z_stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    columns = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        left = tl.load(x + rows * x_stride + inner[None, :], mask=(rows < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(y + inner[:, None] * y_stride + columns, mask=(inner[:, None] < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(z + rows * z_stride + columns, total.to(z.dtype.element_ty), mask=(rows < m) & (columns < n))
"""

SCALE = """
import triton
import triton.language as tl


@triton.jit
def scale(x, w, y, m, n, x_stride, x_step, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < n
    value = tl.load(x + row * x_stride + columns * x_step, mask=mask).to(tl.float32)
    value *= tl.load(w + columns, mask=mask).to(tl.float32)
    tl.store(y + row * y_stride + columns, value.to(y.dtype.element_ty), mask=mask)
"""

TOTAL = """
import triton
import triton.language as tl


@triton.jit
def partial_sums(x, parts, n, length, BLOCK: tl.constexpr):
    first = tl.program_id(0) * length
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        total += tl.load(x + first + inner, mask=(inner < length) & (first + inner < n), other=0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def add_up(parts, y, PARTS: tl.constexpr):
    tl.store(y, tl.sum(tl.load(parts + tl.arange(0, PARTS)), 0).to(y.dtype.element_ty))
"""


def pointer(name: str, tensor: int) -> Argument:
    return Argument(name, ArgumentKind.POINTER, ONE, tensor)


def size(name: str, value: Dim) -> Argument:
    return Argument(name, ArgumentKind.SIZE, value)


def stride(name: str, tensor: int, dim: int) -> Argument:
    return Argument(name, ArgumentKind.STRIDE, ONE, tensor, dim)


def tensor(name: str, axes: str, dtype: str, unit: int | None = None) -> DeviceTensor:
    dims: AxisDims = tuple((a,) for a in axes)
    shape = tuple(symbol(a) for a in axes)
    return DeviceTensor(name, shape, dims, dtype, len(axes) - 1 if unit is None else unit)


def matmul(dtype: str = "float16", tile: int = 64, num_warps: int = 4, source: str = MATMUL) -> EmittedTriton:
    """z[m, n] = x[m, k] @ y[k, n]."""
    arguments = (
        *(pointer(name, i) for i, name in enumerate("xyz")),
        *(size(d.name, d) for d in (M, N, K)),
        *(stride(f"{name}_stride", i, 0) for i, name in enumerate("xyz")),
    )
    grid = (ceil_div(M, to_dim(tile)), ceil_div(N, to_dim(tile)), ONE)
    constexprs = {"BM": tile, "BN": tile, "BK": tile}
    kernel = TritonKernel("matmul", arguments, constexprs, grid, num_warps, 3, (0, 1), (2,))
    tensors = (tensor("x", "mk", dtype), tensor("y", "kn", dtype), tensor("z", "mn", dtype))
    outputs = (DeviceOutput(2, (("m",), ("n",)), (M, N)),)
    return EmittedTriton(source, (kernel,), tensors, 2, outputs, (), {"m": M, "n": N, "k": K})


def scale(dtype: str = "float32", block: int = 256) -> EmittedTriton:
    """y[m, n] = x[m, n] * w[n], for x of any strides."""
    arguments = (
        *(pointer(name, i) for i, name in enumerate("xwy")),
        size("m", M),
        size("n", N),
        stride("x_stride", 0, 0),
        stride("x_step", 0, 1),
        stride("y_stride", 2, 0),
    )
    grid = (ceil_div(N, to_dim(block)), M, ONE)
    kernel = TritonKernel("scale", arguments, {"BLOCK": block}, grid, 4, 1, (0, 1), (2,))
    tensors = (tensor("x", "mn", dtype, unit=-1), tensor("w", "n", dtype), tensor("y", "mn", dtype))
    outputs = (DeviceOutput(2, (("m",), ("n",)), (M, N)),)
    return EmittedTriton(SCALE, (kernel,), tensors, 2, outputs, (), {"m": M, "n": N})


def total(dtype: str = "float32") -> EmittedTriton:
    """y[] = the sum of x[n], in parts of float32 first."""
    length = ceil_div(N, to_dim(PARTS))
    first = TritonKernel(
        "partial_sums",
        (pointer("x", 0), pointer("parts", 1), size("n", N), size("length", length)),
        {"BLOCK": 256},
        (to_dim(PARTS), ONE, ONE),
        4,
        1,
        (0,),
        (1,),
    )
    second = TritonKernel(
        "add_up", (pointer("parts", 1), pointer("y", 2)), {"PARTS": PARTS}, (ONE, ONE, ONE), 1, 1, (1,), (2,)
    )
    parts = DeviceTensor("parts", (to_dim(PARTS),), (("n.grid",),), "float32", 0)
    tensors = (tensor("x", "n", dtype), parts, DeviceTensor("y", (), (), dtype, -1))
    axes = {"n": N, "n.grid": to_dim(PARTS)}
    return EmittedTriton(TOTAL, (first, second), tensors, 1, (DeviceOutput(2, (), ()),), (), axes)
