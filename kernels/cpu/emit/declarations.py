"""The C declarations of one kernel: sizes, its cell of the grid, the pointers to its part of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from mirage.kernels.cpu.emit.layout import View, element_type
from mirage.kernels.cpu.emit.plan import BlockPlan, Tensor
from mirage.kernels.cpu.emit.stream import Stream, find_stream
from mirage.kernels.cpu.emit.writer import Writer
from mirage.mugraph.graph import Role, partial_axis


class BlockDeclarations(BlockPlan):
    """A planned kernel that declares what its code reads: `declare_sizes()` and `cells()` are for its launch, too."""

    @cached_property
    def stream(self) -> Stream | None:
        """Results that may be stored past the caches: the C variable `past` says whether they are."""
        return find_stream(self)

    def declare_sizes(self, w: Writer) -> None:
        """Sizes of the axes, and the room that they need in a block."""
        for a, role in self.graph.roles:
            name = self.names[a]
            if a not in self.axes.literal:
                w.line(f"const long n_{name} = args->sizes[{self._size_index(a)}];")
            if role is Role.SPLIT:
                splits, tile = self.schedule.split[a], self.axes.tile(a)
                w.line(f"const long room_{name} = blocks(blocks(n_{name}, {tile}), {splits}) * {tile};")
            elif self.axes.room(a, False) == a:
                w.line(f"const long room_{name} = n_{name};")

    def _size_index(self, a: str) -> int:
        return list(self.program.sizes).index(a)

    def cells(self) -> str:
        """C expression: the number of grid cells."""
        return " * ".join(self._blocks(a) for a in self.graph.grid) or "1"

    def _blocks(self, a: str) -> str:
        if self.graph.role[a] is Role.SPLIT:
            return str(self.schedule.split[a])
        return f"blocks(n_{self.names[a]}, {self.axes.tile(a)})"

    def _declare_grid(self, w: Writer) -> None:
        w.line()
        grid = self.graph.grid
        rows, columns = self.schedule.halved or ("", "")
        for k, a in reversed(list(enumerate(grid))):
            name = self.names[a]
            # rows with most columns come first, so that threads end together
            back = f"{self._blocks(a)} - 1 - " if a == rows else ""
            if k > 0:
                w.line(f"const long g_{name} = {back}cell % {self._blocks(a)};")
                w.line(f"cell /= {self._blocks(a)};")
            else:
                w.line(f"const long g_{name} = {back}cell;")
        # the columns of a halved kernel end where its rows do
        for a, role in sorted(self.graph.roles, key=lambda r: r[0] == columns):
            name = self.names[a]
            if role is Role.PARALLEL:
                tile = self.axes.tile(a)
                w.line(f"const long b_{name} = g_{name} * {tile};")
                extent = f"least({tile}, n_{name} - b_{name})"
                if a == columns:
                    end = f"b_{self.names[rows]} + {self.axes.extent(rows, False)}"
                    w.line(f"if (b_{name} >= {end}) return;")
                    extent = f"least({extent}, {end} - b_{name})"
            elif role is Role.SPLIT:
                w.line(f"const long b_{name} = least(g_{name} * room_{name}, n_{name});")
                extent = f"least(room_{name}, n_{name} - b_{name})"
            else:
                extent = f"n_{name}"
            if self.axes.constant(a, False) is None:
                w.line(f"const long x_{name} = {extent};")

    def _declare_tensors(self, w: Writer) -> None:
        w.line()
        for i in self.graph.inputs:
            if i in self.block.computed:
                continue
            tensor = self.inputs[self.graph.nodes[i].attr["index"]]
            self._declare_tensor(w, tensor, f"p{i}", "const ", {})
        for k, tensor in enumerate(self.outputs):
            partial = {
                partial_axis(a): f"g_{self.names[a]}" for a in self.graph.grid if self.graph.role[a] is Role.SPLIT
            }
            self._declare_tensor(w, tensor, f"o{k}", "", partial)
        if self.stream is not None and self.stream.fetched is not None:
            # of the next cell, which is most often this thread's
            i, tensor = self.stream.fetched
            a = self.graph.grid[-1]
            step = f"b_{self.names[a]} + {self.axes.tile(a)} < n_{self.names[a]} ? {self.axes.tile(a)} : 0"
            stride = self._strides(tensor, f"p{i}")[a]
            w.line(f"const {element_type(tensor.narrow)} *const next = p{i} + ({step}) * {stride};")

    def _declare_tensor(
        self, w: Writer, tensor: Tensor, name: str, const: str, at: Mapping[str, str], whole: bool = False
    ) -> None:
        """Strides of a kernel-level tensor and the pointer to this block's part of it (or to all of it).

        `const` is "const " for elements that are only read, else "".
        """
        strides = self._strides(tensor, name)
        index = dict(at)
        for k, a in enumerate(tensor.axes):
            if not strides[a].isdigit():
                w.line(f"const long {strides[a]} = args->strides[{tensor.offset + k}];")
            if a not in at and not whole and self.graph.role.get(a) in (Role.PARALLEL, Role.SPLIT):
                index[a] = f"b_{self.names[a]}"
        if tensor.packed:
            strides = {**strides, tensor.axes[-1]: f"args->strides[{tensor.offset + len(tensor.axes) - 1}]"}
        start = View(tensor.pointer, strides, tensor.unit).at(index)
        w.line(f"{const}{element_type(tensor.narrow)} *const {name} = {start};")
