"""Matrix products with an epilogue, as CUTLASS kernels compute them: what there is to compile, and what a launch passes.

Plain data; `kernel.py` is the code. A kernel computes, for every matrix of a batch,

    D[i, j] = epilogue(sum over l of A[i, l] * B[l, j], operands at [i, j])

of 16-bit A and B, summed and computed in float32. Its parameters are addresses, sizes and strides, `Gemm.parameters`, so that a
cubin is launched like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.kernels.cuda.device import WARP

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
#: functions of epilogues
FUNCTIONS = frozenset((
    "add", "subtract", "multiply", "divide", "negative", "exp", "log", "sqrt", "tanh", "absolute", "sigmoid", "erf", "gauss_cdf",
    "relu", "maximum", "clamp",
))  # fmt: skip


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a sum of products: the last one of its values, which are the sum, the operands (of these types), and what
    steps compute in order. A step names a function in `FUNCTIONS`, then the numbers of earlier values (int) or constants (float).
    """

    operands: tuple[str, ...] = ()
    steps: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class GemmConfig:
    """How a kernel works: the tile (rows, columns, depth) of a block, the stages of its pipeline, and how its warps share the
    rows and columns of a tile.
    """

    tile: tuple[int, int, int]
    stages: int
    warps: tuple[int, int]

    @property
    def num_warps(self) -> int:
        """Warps of a block."""
        return self.warps[0] * self.warps[1]

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


#: for few rows, where the other factor is read at the rate of memory; for some more; and for many
CONFIGS = (
    GemmConfig((16, 32, 64), 8, (1, 4)),
    GemmConfig((32, 64, 64), 5, (1, 4)),
    GemmConfig((64, 64, 64), 4, (2, 2)),
    GemmConfig((128, 128, 32), 4, (4, 2)),
)


def config_for(rows: int) -> GemmConfig:
    """The first configuration whose tile has so many rows, else the last one."""
    return next((c for c in CONFIGS if rows <= c.tile[0]), CONFIGS[-1])


@dataclass(frozen=True)
class Gemm:
    """A kernel: factors of type `dtype` (one of `FACTORS`), a result of type `result`.

    `a_by_depth` and `b_by_depth` tell of A [rows, depth] and B [depth, columns] that neighbours in memory are neighbours in
    depth. D [rows, columns] has neighbours in a row; operands have any strides.
    """

    dtype: str
    result: str
    a_by_depth: bool
    b_by_depth: bool
    epilogue: Epilogue
    config: GemmConfig = CONFIGS[0]

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the parameters in order: "pointer", "i32" for sizes, "i64" for strides in elements.

        `lda`, `ldb` and `ldd` are the strides of the dims that are not contiguous, `row_i` and `column_i` those of the i-th
        operand; those with `batch` lead to the next matrix of the batch. A stride is 0 where all share what is there.
        """
        count = len(self.epilogue.operands)
        pointers = ("a", "b", "d", *(f"operand_{i}" for i in range(count)))
        places = (f"{s}_{i}" for i in range(count) for s in ("row", "column", "batch"))
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


@dataclass(frozen=True)
class GemmCall:
    """One launch: sizes; for A, B and D (address, stride of the dim that is not contiguous, distance of matrices); and for
    operands (address, distances of rows, columns and matrices).
    """

    rows: int
    columns: int
    depth: int
    batch: int
    a: tuple[int, int, int]
    b: tuple[int, int, int]
    d: tuple[int, int, int]
    operands: tuple[tuple[int, int, int, int], ...] = ()

    def grid(self, config: GemmConfig) -> tuple[int, int, int]:
        """Blocks along x, y and z."""
        rows, columns, _ = config.tile
        return -(-self.rows // rows), -(-self.columns // columns), self.batch

    def arguments(self) -> tuple[Any, ...]:
        """The values of `Gemm.parameters`, as NumPy's numbers of their types."""
        matrices = self.a, self.b, self.d
        pointers = [m[0] for m in (*matrices, *self.operands)]
        strides = [*(m[1] for m in matrices), *(m[2] for m in matrices), *(s for o in self.operands for s in o[1:])]
        sizes = self.rows, self.columns, self.depth
        return (*map(np.uint64, pointers), *map(np.int32, sizes), *map(np.int64, strides))

    def fits(self, gemm: Gemm) -> bool:
        """Whether the kernel may be launched so: it serves the sizes, vectors are aligned, and the grid is one."""
        matrices = self.a, self.b, self.d
        _, y, z = self.grid(gemm.config)
        return (
            gemm.serves(self.rows, self.columns, self.depth)
            and self.batch > 0
            and max(y, z) <= _MAX_BLOCKS
            and not any(n % VECTOR for m in matrices for n in m[1:])
            and not any(m[0] % ALIGNMENT for m in matrices)
        )
