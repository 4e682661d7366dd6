"""The CUTLASS kernel (CuTe DSL) of `gemm.Gemm`: tiles of a matrix product, loaded ahead by asynchronous copies.

Imported by the compiler's `worker.py` only, in a process of its own: it needs nvidia-cutlass-dsl, and nothing of the package.
What it is told is a `Gemm` in JSON values.

A block computes one tile of one matrix of the batch. Its threads copy the tiles of both factors, 16 bytes at a time and zeros
beyond the ends, to shared memory in a ring of stages, in swizzled layouts, which ldmatrix reads without conflicts. Warps multiply
what has arrived (mma, sm_80 and later). The epilogue computes in float32, in registers. All arguments are addresses, sizes and
strides: no descriptors, hence no memory loaded by TMA.
"""

# no postponed annotations: the DSL reads them

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute, memory
from cutlass.cute.nvgpu import warp, warpgroup
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

TYPES = {"float16": Float16, "bfloat16": BFloat16, "float32": Float32}
#: elements of a copy, and its bytes
VECTOR, VECTOR_BYTES = 8, 16
#: depth, rows and columns of one instruction
DEPTH, MMA_ROWS, MMA_COLUMNS = 16, 16, 8
WARP = 32
#: rows of tiles that blocks go through before they go on to the next ones: as many columns are in L2 meanwhile
GROUP_ROWS = 16
#: elements of a thread whose epilogues are computed side by side: more would not fit its registers
TOGETHER = 16
#: swizzles by the bytes of a row that they permute
SWIZZLES = {128: 3, 64: 2, 32: 1}
HALF_SQRT2 = 0.7071067811865476


class GemmKernel:
    """One kernel, of a `Gemm` in JSON values."""

    def __init__(self, gemm: dict[str, Any]) -> None:
        config = gemm["config"]
        self.dtype, self.result = TYPES[gemm["dtype"]], TYPES[gemm["result"]]
        self.rows, self.columns, self.depth = config["tile"]
        self.stages, self.warps = config["stages"], config["warps"]
        self.threads = WARP * self.warps[0] * self.warps[1]
        self.a_by_depth, self.b_by_depth = gemm["a_by_depth"], gemm["b_by_depth"]
        self.operands = [TYPES[dtype] for dtype in gemm["epilogue"]["operands"]]
        self.steps = gemm["epilogue"]["steps"]

    @cute.jit
    def launch(
        self,
        pointers: tuple,  # type: ignore[type-arg]
        operands: tuple,  # type: ignore[type-arg]
        sizes: tuple,  # type: ignore[type-arg]
        strides: tuple,  # type: ignore[type-arg]
        places: tuple,  # type: ignore[type-arg]
    ) -> None:
        """What the compiler starts from; launches are made by others, by `Gemm.parameters`."""
        grid = (sizes[0] + self.rows - 1) // self.rows, (sizes[1] + self.columns - 1) // self.columns, 1
        self.gemm(pointers, operands, sizes, strides, places).launch(grid=grid, block=(self.threads, 1, 1))

    @cute.kernel
    def gemm(
        self,
        pointers: tuple,  # type: ignore[type-arg]
        operands: tuple,  # type: ignore[type-arg]
        sizes: tuple,  # type: ignore[type-arg]
        strides: tuple,  # type: ignore[type-arg]
        places: tuple,  # type: ignore[type-arg]
    ) -> None:
        """D = epilogue(A @ B, operands): `pointers` to A, B and D, `strides` as `Gemm.parameters` has them, `places` the (row,
        column, batch) of the operands.
        """
        thread, _, _ = cute.arch.thread_idx()
        x, y, matrix = cute.arch.block_idx()
        across, along, _ = cute.arch.grid_dim()
        block_row, block_column = self.tile(x + y * across, across, along)
        rows, columns, depth = sizes
        lda, ldb, ldd, batch_a, batch_b, batch_d = strides
        first_row, first_column = block_row * self.rows, block_column * self.columns
        a, b = pointers[0] + Int64(matrix) * batch_a, pointers[1] + Int64(matrix) * batch_b

        layout_a, bits_a = self.shared_layout(self.rows, self.a_by_depth)
        layout_b, bits_b = self.shared_layout(self.columns, self.b_by_depth)
        allocator = memory.SmemAllocator()
        shared_a = allocator.allocate_array(self.dtype, cute.cosize(layout_a.outer), byte_alignment=1024)
        shared_b = allocator.allocate_array(self.dtype, cute.cosize(layout_b.outer), byte_alignment=1024)
        # the same swizzles, of elements for the copies and of addresses for the products
        places_a = cute.make_composed_layout(cute.make_swizzle(bits_a, 3, 3), 0, layout_a.outer)
        places_b = cute.make_composed_layout(cute.make_swizzle(bits_b, 3, 3), 0, layout_b.outer)
        tiles_a = cute.make_tensor(cute.recast_ptr(shared_a, layout_a.inner, dtype=self.dtype), layout_a.outer)
        tiles_b = cute.make_tensor(cute.recast_ptr(shared_b, layout_b.inner, dtype=self.dtype), layout_b.outer)

        for s in cutlass.range_constexpr(self.stages - 1):
            start = s * self.depth
            self.fetch(a, lda, first_row, rows, start, depth, shared_a, places_a, s, self.rows, self.a_by_depth, thread)
            self.fetch(
                b, ldb, first_column, columns, start, depth, shared_b, places_b, s, self.columns, self.b_by_depth, thread
            )  # fmt: skip
            cute.arch.cp_async_commit_group()

        mma = self.tiled_mma()
        mine = mma.get_slice(thread)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.rows, self.columns)), Float32)
        sums.fill(0.0)
        of_a, of_b = mine.partition_A(tiles_a), mine.partition_B(tiles_b)
        part_a = mma.make_fragment_A(of_a[None, None, None, 0])
        part_b = mma.make_fragment_B(of_b[None, None, None, 0])
        wide = self.columns // self.warps[1] >= 2 * MMA_COLUMNS
        load_a = warp.LdMatrix8x8x16bOp(not self.a_by_depth, 4)
        load_b = warp.LdMatrix8x8x16bOp(not self.b_by_depth, 4 if wide else 2)
        copy_a = cute.make_tiled_copy_A(cute.make_copy_atom(load_a, self.dtype), mma)
        copy_b = cute.make_tiled_copy_B(cute.make_copy_atom(load_b, self.dtype), mma)
        own_a, own_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
        from_a, from_b = own_a.partition_S(tiles_a), own_b.partition_S(tiles_b)
        to_a, to_b = own_a.retile(part_a), own_b.retile(part_b)

        stage, free = Int32(0), Int32(self.stages - 1)
        for t in cutlass.range((depth + self.depth - 1) // self.depth, unroll=1):
            # the tile of this stage is here, and all have left that of the stage before, which is filled next
            cute.arch.cp_async_wait_group(self.stages - 2)
            cute.arch.sync_threads()
            start = (t + self.stages - 1) * self.depth
            self.fetch(
                a, lda, first_row, rows, start, depth, shared_a, places_a, free, self.rows, self.a_by_depth, thread
            )
            self.fetch(
                b, ldb, first_column, columns, start, depth, shared_b, places_b, free, self.columns, self.b_by_depth, thread
            )  # fmt: skip
            cute.arch.cp_async_commit_group()
            for i in cutlass.range_constexpr(self.depth // DEPTH):
                cute.copy(copy_a, from_a[None, None, i, stage], to_a[None, None, i])
                cute.copy(copy_b, from_b[None, None, i, stage], to_b[None, None, i])
                cute.gemm(mma, sums, part_a[None, None, i], part_b[None, None, i], sums)
            free = stage
            stage = stage + 1
            if stage == self.stages:
                stage = Int32(0)
        cute.arch.cp_async_wait_group(0)

        # neighbours in a row are a thread's, two at a time; some are loaded and computed side by side, and stored
        where = mine.partition_C(cute.make_identity_tensor((self.rows, self.columns)))
        bases = [base + Int64(matrix) * place[2] for base, place in zip(operands, places, strict=True)]
        d = pointers[2] + Int64(matrix) * cute.assume(batch_d, divby=VECTOR)
        for start in cutlass.range_constexpr(0, cute.size(sums), TOGETHER):
            end = min(start + TOGETHER, cute.size(sums))
            for i in cutlass.range_constexpr(start, end):
                # beyond the ends, some elements that are there
                row = cutlass.min(first_row + where[i][0], rows - 1)
                column = cutlass.min(first_column + where[i][1], columns - 1)
                sums[i] = self.epilogue(sums[i], self.read(bases, places, row, column))
            for i in cutlass.range_constexpr(start, end, 2):
                row, column = first_row + where[i][0], first_column + where[i][1]
                if row < rows and column < columns:
                    pair = cute.make_rmem_tensor((2,), self.result)
                    pair[0], pair[1] = sums[i].to(self.result), sums[i + 1].to(self.result)
                    # from an even column on
                    offset = Int64(row) * cute.assume(ldd, divby=VECTOR) + cute.assume(Int64(column), divby=2)
                    cute.autovec_copy(pair, cute.make_tensor(d + offset, cute.make_layout(2)))

    def tile(self, block: Any, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Which of so many rows and columns of tiles a block computes: those that run together share rows and columns."""
        group = block // (GROUP_ROWS * columns)
        first = group * GROUP_ROWS
        height = cutlass.min(rows - first, GROUP_ROWS)
        inside = block - first * columns
        return first + inside % height, inside // height

    # factors

    def shared_layout(self, rows: int, by_depth: bool) -> tuple[Any, int]:
        """The layout (rows, depth, stages) of a factor in shared memory, and the bits of its swizzle."""
        inner = 2 * (self.depth if by_depth else rows)
        width = next(w for w in SWIZZLES if inner % w == 0)
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'K' if by_depth else 'MN'}_SW{width}")
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        order = (0, 1, 2) if by_depth else (1, 0, 2)
        return cute.tile_to_shape(atom, (rows, self.depth, self.stages), order), SWIZZLES[width]

    def tiled_mma(self) -> Any:
        """The product of all warps together."""
        rows, columns = self.warps
        # two instructions side by side, whose columns one ldmatrix loads, where a warp has as many
        own = min(self.columns // columns, 2 * MMA_COLUMNS)
        operation = warp.MmaF16BF16Op(self.dtype, Float32, (MMA_ROWS, MMA_COLUMNS, DEPTH))
        return cute.make_tiled_mma(operation, (rows, columns, 1), (MMA_ROWS * rows, own * columns, DEPTH))

    @cute.jit
    def fetch(
        self,
        base: cute.Pointer,
        stride: Int64,
        first: Int32,
        extent: Int32,
        start: Int32,
        depth: Int32,
        shared: cute.Pointer,
        places: cute.ComposedLayout,
        stage: Int32,
        rows: cutlass.Constexpr,
        by_depth: cutlass.Constexpr,
        thread: Int32,
    ) -> None:
        """Begin to copy the tile from row `first` (of `extent`) and depth `start` on to a stage, with zeros beyond the ends."""
        across = (self.depth if by_depth else rows) // VECTOR
        count = rows * self.depth // VECTOR
        for i in cutlass.range_constexpr((count + self.threads - 1) // self.threads):
            v = thread + i * self.threads
            line, along = v // across, v % across * VECTOR
            row, deep = (line, along) if cutlass.const_expr(by_depth) else (along, line)
            inside = first + row < extent and start + deep < depth
            if cutlass.const_expr(by_depth):
                offset = Int64(first + row) * stride + Int64(start + deep)
            else:
                offset = Int64(start + deep) * stride + Int64(first + row)
            size = Int32(VECTOR_BYTES) if inside else Int32(0)
            source = (base + (offset if inside else Int64(0))).llvm_ptr
            to = (shared + places((row, deep, stage))).llvm_ptr
            if cutlass.const_expr((i + 1) * self.threads <= count):
                nvvm.cp_async_shared_global(to, source, VECTOR_BYTES, nvvm.LoadCacheModifier.CG, cp_size=size)
            else:
                if v < count:
                    nvvm.cp_async_shared_global(to, source, VECTOR_BYTES, nvvm.LoadCacheModifier.CG, cp_size=size)

    # epilogue

    def read(self, bases: Sequence[Any], places: Sequence[Any], row: Any, column: Any) -> list[Any]:
        """The operands in float32 at one place."""
        offsets = (Int64(row) * by_row + Int64(column) * by_column for by_row, by_column, _ in places)
        here = (cute.make_tensor(base + o, cute.make_layout(1)) for base, o in zip(bases, offsets, strict=True))
        return [x[0].to(Float32) for x in here]

    def epilogue(self, total: Any, operands: Sequence[Any]) -> Any:
        """The last value."""
        values: list[Any] = [total, *operands]
        for name, *arguments in self.steps:
            values.append(FUNCTIONS[name](*(values[a] if isinstance(a, int) else Float32(a) for a in arguments)))
        return values[-1]


def _select(condition: Any, x: Any, y: Any) -> Any:
    return cutlass.select_(condition, x, y)


#: the functions of `gemm.FUNCTIONS` of float32 values, NaN where one is NaN
FUNCTIONS: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "negative": lambda x: -x,
    "exp": lambda x: cute.math.exp(x),
    "log": lambda x: cute.math.log(x),
    "sqrt": lambda x: cute.math.sqrt(x),
    "tanh": lambda x: cute.math.tanh(x),
    "absolute": lambda x: cute.math.absf(x),
    "sigmoid": lambda x: Float32(1.0) / (Float32(1.0) + cute.math.exp(-x)),
    "erf": lambda x: cute.math.erf(x),
    # accurate in the left tail, too
    "gauss_cdf": lambda x: Float32(0.5) * cute.math.erfc(x * Float32(-HALF_SQRT2)),
    "relu": lambda x: _select(x < Float32(0.0), Float32(0.0), x),
    "maximum": lambda x, c: _select(x < c, c, x),
    "clamp": lambda x, lo, hi: _select(x < lo, lo, _select(x > hi, hi, x)),
}


def compile_one(request: dict[str, Any], with_usage: Callable[..., Any]) -> dict[str, Any]:
    """The metadata of a kernel, whose cubin and PTX are in the folder then. A request has `gemm` (a `Gemm` in JSON values),
    `arch` (such as "sm_90"), and `shared` and `num_warps`, which the metadata repeat.
    """
    kernel, folder = GemmKernel(request["gemm"]), Path(request["folder"])

    def pointer(dtype: Any, align: int) -> Any:
        return make_ptr(dtype, 0, AddressSpace.gmem, assumed_align=align)

    with TemporaryDirectory(dir=folder) as dump:
        _, usage = with_usage(
            lambda: cute.compile(
                kernel.launch,
                tuple(pointer(t, VECTOR_BYTES) for t in (kernel.dtype, kernel.dtype, kernel.result)),
                tuple(pointer(t, t.width // 8) for t in kernel.operands),
                (Int32(0),) * 3,
                (Int64(0),) * 6,
                ((Int64(0),) * 3,) * len(kernel.operands),
                options=f"--gpu-arch {request['arch']} --keep-ptx --keep-cubin --dump-dir {dump} remarks{{ptx}}",
            )
        )
        (cubin,), (ptx,) = Path(dump).glob("*.cubin"), Path(dump).glob("*.ptx")
        cubin.rename(folder / "kernel.cubin")
        text = ptx.rename(folder / "kernel.ptx").read_text(encoding="utf-8")
    numbers = {"shared": request["shared"], "num_warps": request["num_warps"], "num_ctas": 1}
    scratch = {f"{what}_scratch_{n}": int(n == "align") for what in ("global", "profile") for n in ("size", "align")}
    return {"name": text.partition(".visible .entry ")[2].partition("(")[0], **numbers, **scratch, **usage}
