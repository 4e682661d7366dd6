"""Matrix products with an epilogue, as CUTLASS kernels compute them: what there is to compile, and what a launch passes.

Plain data; `kernel.py` is the code. A kernel computes, for every matrix of a batch,

    D[i, j] = epilogue(sum over l of A[i, l] * B[l, j], operands at [i, j])

of 16-bit A and B, summed and computed in float32. Its parameters are addresses, sizes and strides, `Gemm.parameters`, so that a
cubin is launched like any other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from mirage.kernels.cuda.device import WARP, CudaDevice

#: element types of factors, and of results and operands
FACTORS, RESULTS = ("float16", "bfloat16"), ("float16", "bfloat16", "float32")
#: extents of contiguous dims, and strides, are multiples of so many elements: 16 bytes are loaded at a time
VECTOR = 8
#: bytes that factors and results are aligned to
ALIGNMENT = 16
#: sizes are less, so that 32 bits hold an index beyond the last tile
MAX_SIZE = 1 << 30
#: blocks of a grid along y and z, at most
_MAX_BLOCKS = 65535
#: bytes that shared memory of factors starts at a multiple of: where the pattern of 128-byte rows begins again
_SHARED_ALIGNMENT = 1024


class OperandKind(Enum):
    """What an operand of an epilogue has a number for: every element, every row, every column, or every matrix."""

    ELEMENTS = "elements"
    ROWS = "rows"
    COLUMNS = "columns"
    MATRIX = "matrix"


@dataclass(frozen=True)
class EpilogueOperand:
    """A tensor that an epilogue reads, of a type in `RESULTS`."""

    kind: OperandKind
    dtype: str


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a sum of products: values in order, the last of which is the result.

    A step is ("sum",), ("operand", number), ("constant", value), or the name of a function in `EPILOGUE_FUNCTIONS`, with the
    numbers of earlier values and, for some, constants.
    """

    operands: tuple[EpilogueOperand, ...] = ()
    steps: tuple[tuple[Any, ...], ...] = (("sum",),)

    def __str__(self) -> str:
        values: list[str] = []
        for name, *arguments in self.steps:
            count = EPILOGUE_FUNCTIONS.get(name, (0, 0))[0]
            given = [*(values[v] for v in arguments[:count]), *(f"{c:g}" for c in arguments[count:])]
            if name == "operand":
                kind = self.operands[arguments[0]].kind.value
                values.append(f"operand {arguments[0]} of {kind}")
            else:
                values.append(given[0] if name == "constant" else f"{name}({', '.join(given)})" if given else name)
        return values[-1]


#: functions of epilogues: how many values, and how many constants, they take
EPILOGUE_FUNCTIONS: dict[str, tuple[int, int]] = {
    "add": (2, 0),
    "subtract": (2, 0),
    "multiply": (2, 0),
    "divide": (2, 0),
    "negative": (1, 0),
    "exp": (1, 0),
    "log": (1, 0),
    "sqrt": (1, 0),
    "tanh": (1, 0),
    "absolute": (1, 0),
    "sigmoid": (1, 0),
    "erf": (1, 0),
    "gauss_cdf": (1, 0),
    "relu": (1, 0),
    "maximum": (1, 1),
    "clamp": (1, 2),
}


@dataclass(frozen=True)
class GemmConfig:
    """How a kernel works: the tile (rows, columns, depth) of a block, the stages of its pipeline, and how its warps, or
    warpgroups where `wgmma`, share the rows and columns of a tile.
    """

    tile: tuple[int, int, int]
    stages: int
    warps: tuple[int, int]
    wgmma: bool = False

    @property
    def num_warps(self) -> int:
        """Warps of a block."""
        return self.warps[0] * self.warps[1] * (4 if self.wgmma else 1)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.num_warps

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        rows, columns, depth = self.tile
        first, second = (2 * n * depth * self.stages for n in (rows, columns))
        return -(-first // _SHARED_ALIGNMENT) * _SHARED_ALIGNMENT + second

    def __str__(self) -> str:
        rows, columns, depth = self.tile
        return f"{rows}x{columns}x{depth}, {self.stages} stages{', wgmma' * self.wgmma}"


#: for few rows, where the other factor is read at the rate of memory; for some more; and for many
_MMA = (
    GemmConfig((16, 32, 64), 8, (1, 4)),
    GemmConfig((16, 64, 64), 6, (1, 4)),
    GemmConfig((32, 64, 64), 5, (1, 4)),
    GemmConfig((64, 64, 64), 4, (2, 2)),
    GemmConfig((128, 128, 32), 4, (4, 2)),
)
_WGMMA = (
    GemmConfig((64, 64, 64), 6, (1, 1), wgmma=True),
    GemmConfig((64, 128, 64), 4, (1, 1), wgmma=True),
    GemmConfig((128, 128, 64), 3, (2, 1), wgmma=True),
    GemmConfig((128, 256, 64), 4, (2, 1), wgmma=True),
)


#: all of them
CONFIGS = (*_MMA, *_WGMMA)


def configs(device: CudaDevice) -> tuple[GemmConfig, ...]:
    """The configurations that a device runs: wgmma is sm_90's own, which later ones lack."""
    found = (*_MMA, *_WGMMA) if device.capability == (9, 0) else _MMA
    return tuple(c for c in found if c.shared_bytes <= device.block_shared_bytes)


@dataclass(frozen=True)
class Gemm:
    """A kernel: factors of type `dtype` (one of `FACTORS`), a result of type `result`.

    `a_by_depth` and `b_by_depth` tell of A [rows, depth] and B [depth, columns] that neighbours in memory are neighbours in
    depth. D [rows, columns], and operands of every element, have neighbours in a row.
    """

    dtype: str
    result: str
    a_by_depth: bool
    b_by_depth: bool
    epilogue: Epilogue
    config: GemmConfig

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the parameters in order: "pointer", "i32" for sizes, "i64" for strides in elements.

        `lda`, `ldb` and `ldd` are the strides of the dims that are not contiguous; `step_i` that of the rows of the i-th operand,
        where it has rows; those with `batch` lead to the next matrix of the batch, 0 for one that all of it shares.
        """
        count = len(self.epilogue.operands)
        pointers = ("a", "b", "d", *(f"operand_{i}" for i in range(count)))
        places = (f"{s}_{i}" for i in range(count) for s in ("step", "batch"))
        strides = ("lda", "ldb", "ldd", "batch_a", "batch_b", "batch_d", *places)
        return (
            *((p, "pointer") for p in pointers),
            *((s, "i32") for s in ("rows", "columns", "depth")),
            *((s, "i64") for s in strides),
        )

    def serves(self, rows: int, columns: int, depth: int) -> bool:
        """Whether contiguous matrices of these sizes are such that vectors of `VECTOR` elements never cross the end of a row."""
        contiguous = [columns]
        contiguous += [depth] * (self.a_by_depth or self.b_by_depth) + [rows] * (not self.a_by_depth)
        return 0 < min(rows, columns, depth) <= max(rows, columns, depth) < MAX_SIZE and not any(
            n % VECTOR for n in contiguous
        )

    def to_json(self) -> dict[str, Any]:
        """The kernel as JSON values."""
        return asdict(self) | {
            "epilogue": {
                "operands": [[o.kind.value, o.dtype] for o in self.epilogue.operands],
                "steps": [list(s) for s in self.epilogue.steps],
            },
        }


@dataclass(frozen=True)
class Operand:
    """Where an operand is: address, distance of its rows (0 where it has none) and of matrices, in elements."""

    address: int
    step: int
    batch: int


@dataclass(frozen=True)
class GemmCall:
    """One launch: sizes, and for A, B and D (address, stride of the dim that is not contiguous, distance of matrices)."""

    rows: int
    columns: int
    depth: int
    batch: int
    a: tuple[int, int, int]
    b: tuple[int, int, int]
    d: tuple[int, int, int]
    operands: tuple[Operand, ...] = ()

    def grid(self, config: GemmConfig) -> tuple[int, int, int]:
        """Blocks along x, y and z."""
        rows, columns, _ = config.tile
        return -(-self.rows // rows), -(-self.columns // columns), self.batch

    def arguments(self) -> tuple[Any, ...]:
        """The values of `Gemm.parameters`, as NumPy's numbers of their types."""
        matrices = self.a, self.b, self.d
        pointers = [*(m[0] for m in matrices), *(o.address for o in self.operands)]
        strides = [*(m[1] for m in matrices), *(m[2] for m in matrices)]
        strides += [s for o in self.operands for s in (o.step, o.batch)]
        sizes = self.rows, self.columns, self.depth
        return (*map(np.uint64, pointers), *map(np.int32, sizes), *map(np.int64, strides))

    def fits(self, gemm: Gemm) -> bool:
        """Whether the kernel may be launched so: it serves the sizes, vectors are aligned, and the grid is one.

        D, and operands of every element, are read and written two elements at a time.
        """
        numbers = [s for m in (self.a, self.b, self.d) for s in m[1:]]
        addresses = [m[0] for m in (self.a, self.b, self.d)]
        for o, e in zip(self.operands, gemm.epilogue.operands, strict=True):
            if e.kind is OperandKind.ELEMENTS:
                numbers += [o.step, o.batch]
                addresses.append(o.address)
        _, y, z = self.grid(gemm.config)
        return (
            gemm.serves(self.rows, self.columns, self.depth)
            and self.batch > 0
            and max(y, z) <= _MAX_BLOCKS
            and not any(n % VECTOR for n in numbers)
            and not any(p % ALIGNMENT for p in addresses)
        )
