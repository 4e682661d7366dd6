"""Programs over named axes.

Dims that must be equal are unified into *axes*; a dim is an ordered product of axes (outermost first). Over axes, every
operator is elementwise, a sum, a matmul (a sum of products) or a concat: reshape, transpose and repeat vanish, and a
broadcast or repeated dim is an absent axis. This is the form that is searched, proved and printed as kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from mirage.errors import AxisError, MirageError
from mirage.ir.dims import Dim, divide
from mirage.ir.expand import expand
from mirage.ir.operator import get_operator
from mirage.ir.program import AttrItems, Program
from mirage.ir.types import TensorType, is_one

AxisDims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AxisNode:
    """One value over named axes.

    `op` is "input", an elementwise operator, "sum", "matmul" or "concat". `reduce` names the axes summed by a sum or
    matmul. For a concat, `joined` is (result axis, operand axes in order). `axes` are the axes that the value depends
    on, in the order of the subprogram's table.
    """

    op: str
    operands: tuple[int, ...]
    attrs: AttrItems
    axes: tuple[str, ...]
    reduce: tuple[str, ...] = ()
    joined: tuple[str, tuple[str, ...]] | None = None

    @property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)


@dataclass(frozen=True)
class AxisInput:
    """A parameter: its dims as products of axes; a dim of literal size 1 is the empty product."""

    name: str
    dims: AxisDims

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d)


@dataclass(frozen=True)
class AxisOutput:
    """A result: which value it is, and its dims as products of axes (absent ones are broadcast)."""

    value: int
    dims: AxisDims


@dataclass(frozen=True)
class AxisProgram:
    """A program over named axes. `axes` maps each axis to its size; input node i reads `inputs[i]`."""

    name: str
    axes: dict[str, Dim]
    inputs: tuple[AxisInput, ...]
    nodes: tuple[AxisNode, ...]
    outputs: tuple[AxisOutput, ...]
    dtype: str

    def order(self, axes: set[str] | frozenset[str]) -> tuple[str, ...]:
        """Axes in the order of the table."""
        return tuple(a for a in self.axes if a in axes)

    def reduction_axes(self) -> tuple[str, ...]:
        """Axes that some sum or matmul reduces, in the order of the table."""
        return self.order({a for n in self.nodes for a in n.reduce})

    def output_axes(self) -> tuple[str, ...]:
        """Axes of the outputs, in the order of the table."""
        return self.order({a for o in self.outputs for d in o.dims for a in d})

    def __str__(self) -> str:
        lines = [f"axes {', '.join(f'{a}={s}' for a, s in self.axes.items())}"]
        for i, n in enumerate(self.nodes):
            extra = [f"v{j}" for j in n.operands] + [f"{k}={v}" for k, v in n.attrs]
            red = f" over {','.join(n.reduce)}" if n.reduce else ""
            lines.append(f"v{i}[{','.join(n.axes)}] = {n.op}({', '.join(extra)}){red}")
        lines += [f"return v{o.value}[{', '.join('*'.join(g) or '1' for g in o.dims)}]" for o in self.outputs]
        return "\n".join(lines)


class Leaf:
    """A dim factor during unification; `parts` replaces it once it is split or united with another."""

    __slots__ = ("parts", "size")

    def __init__(self, size: Dim) -> None:
        self.size = size
        self.parts: list[Leaf] | None = None


def resolve(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The current factors that a product of leaves stands for."""
    out: list[Leaf] = []
    for leaf in leaves:
        out.extend([leaf] if leaf.parts is None else resolve(leaf.parts))
    return out


@dataclass
class AxisTensor:
    """A value during lowering, seen under some dims (each a product of leaves)."""

    value: int
    dims: list[list[Leaf]]


@dataclass
class _Raw:
    op: str
    operands: tuple[int, ...]
    attrs: AttrItems = ()
    own: list[Leaf] = field(default_factory=list)
    reduce: list[Leaf] = field(default_factory=list)
    joined: tuple[Leaf, list[Leaf]] | None = None
    dims: list[list[Leaf]] = field(default_factory=list)
    where: str = ""


class AxisLowering:
    """Unifies dims while a program is walked; the operators' axis rules call its methods."""

    def __init__(self) -> None:
        self.raw: list[_Raw] = []
        self.where = ""

    def _add(self, raw: _Raw) -> AxisTensor:
        raw.where = self.where
        self.raw.append(raw)
        return AxisTensor(len(self.raw) - 1, raw.dims)

    def dim(self, size: Dim) -> list[Leaf]:
        """A new dim: one factor, or none where the size is literally 1."""
        return [] if is_one(size) else [Leaf(size)]

    def input(self, shape: Sequence[Dim]) -> AxisTensor:
        dims = [self.dim(d) for d in shape]
        return self._add(_Raw("input", (), own=[leaf for d in dims for leaf in d], dims=dims))

    def unify(self, a: list[Leaf], b: list[Leaf], op: str) -> None:
        """Make two dims the same product of factors, splitting factors where one divides the other."""
        xs, ys = resolve(a), resolve(b)
        while xs and ys:
            x, y = xs.pop(0), ys.pop(0)
            if x is y:
                continue
            if x.size == y.size:
                y.parts = [x]
            elif (rest := divide(x.size, y.size)) is not None:
                tail = Leaf(rest)
                x.parts = [y, tail]
                xs.insert(0, tail)
            elif (rest := divide(y.size, x.size)) is not None:
                tail = Leaf(rest)
                y.parts = [x, tail]
                ys.insert(0, tail)
            else:
                raise AxisError(
                    f"{self._at()}{op}: a dim that is {self._product(a)} on one side and {self._product(b)} on the other: "
                    f"neither of the factors {x.size} and {y.size} divides the other, so the dim has no common axes; "
                    "reshape both sides to the same factors first"
                )
        if xs or ys:
            raise AxisError(f"{self._at()}{op}: dims {self._product(a)} and {self._product(b)} have different sizes")

    def _at(self) -> str:
        return f"{self.where}: " if self.where else ""

    @staticmethod
    def _product(leaves: list[Leaf]) -> str:
        return "*".join(f"({x.size})" if x.size.is_Add else str(x.size) for x in resolve(leaves)) or "1"

    def _broadcast(self, op: str, operand_dims: Sequence[list[list[Leaf]]]) -> list[list[Leaf]]:
        rank = max((len(d) for d in operand_dims), default=0)
        dims: list[list[Leaf]] = []
        for i in range(-rank, 0):
            present = [d[i] for d in operand_dims if -i <= len(d) and d[i]]
            for other in present[1:]:
                self.unify(present[0], other, op)
            dims.append(present[0] if present else [])
        return dims

    def elementwise(self, op: str, operands: Sequence[AxisTensor], attrs: Any, out: TensorType) -> AxisTensor:
        dims = self._broadcast(op, [x.dims for x in operands])
        return self._add(_Raw(op, tuple(x.value for x in operands), tuple(attrs.items()), dims=dims))

    def matmul(self, x: AxisTensor, y: AxisTensor, out: TensorType) -> AxisTensor:
        self.unify(x.dims[-1], y.dims[-2], "matmul")
        batch = self._broadcast("matmul", [x.dims[:-2], y.dims[:-2]])
        dims = [*batch, x.dims[-2], y.dims[-1]]
        return self._add(_Raw("matmul", (x.value, y.value), reduce=list(x.dims[-1]), dims=dims))

    def sum(self, x: AxisTensor, axes: Sequence[int], keepdims: bool) -> AxisTensor:
        reduce = [leaf for i in axes for leaf in x.dims[i]]
        dims = [[] if i in axes else d for i, d in enumerate(x.dims) if keepdims or i not in axes]
        return self._add(_Raw("sum", (x.value,), reduce=reduce, dims=dims))

    def view(self, x: AxisTensor, dims: Sequence[list[Leaf]]) -> AxisTensor:
        """The same value under other dims."""
        return AxisTensor(x.value, list(dims))

    def repeat(self, x: AxisTensor, axis: int, times: Dim) -> AxisTensor:
        return self.view(x, [d + self.dim(times) if i == axis else d for i, d in enumerate(x.dims)])

    def reshape(self, x: AxisTensor, shape: Sequence[Dim]) -> AxisTensor:
        """Regroup the factors of all dims, in row-major order, into the new dims."""
        rest = resolve([leaf for d in x.dims for leaf in d])
        dims: list[list[Leaf]] = []
        for size in shape:
            group: list[Leaf] = []
            need = size
            while not is_one(need):
                if not rest:
                    raise AxisError(f"{self._at()}reshape: the dims run out before {size} is filled")
                leaf = rest.pop(0)
                if (left := divide(need, leaf.size)) is not None:
                    group.append(leaf)
                    need = left
                elif (tail_size := divide(leaf.size, need)) is not None:
                    head, tail = Leaf(need), Leaf(tail_size)
                    leaf.parts = [head, tail]
                    group.append(head)
                    rest.insert(0, tail)
                    need = sympy.Integer(1)
                else:
                    raise AxisError(
                        f"{self._at()}reshape: the factor {leaf.size} straddles the new dim {size}: neither divides the "
                        "other for every size, so the result's dims are not products of axes; reshape along factors"
                    )
            dims.append(group)
        return self.view(x, dims)

    def concat(self, operands: Sequence[AxisTensor], axis: int, out: TensorType) -> AxisTensor:
        joined = Leaf(out.shape[axis])
        parts: list[Leaf] = []
        for x in operands:
            factors = resolve(x.dims[axis])
            if len(factors) != 1:
                raise AxisError(
                    f"{self._at()}concat: the joined dim is {self._product(x.dims[axis])}; only dims of one factor larger "
                    "than 1 can be joined; reshape the operand first"
                )
            parts.append(factors[0])
        others = self._broadcast("concat", [[d if i != axis else [] for i, d in enumerate(x.dims)] for x in operands])
        dims = [[joined] if i == axis else d for i, d in enumerate(others)]
        return self._add(_Raw("concat", tuple(x.value for x in operands), joined=(joined, parts), dims=dims))


def to_axes(program: Program) -> AxisProgram:
    """Lower a program to named axes.

    Raises AxisError, saying why, where a dim is not a product of axes or an axis would occur twice in one tensor.
    """
    flat = expand(program)
    low = AxisLowering()
    tensors: list[AxisTensor] = []
    for n in flat.nodes:
        low.where = n.where
        if n.op == "input":
            tensors.append(low.input(n.type.shape))
        else:
            try:
                tensors.append(get_operator(n.op).to_axes(low, [tensors[i] for i in n.inputs], n.attr, n.type))
            except NotImplementedError as e:
                raise MirageError(str(e)) from None
    return _Finish(flat, low, [tensors[i] for i in flat.outputs]).result()


class _Finish:
    """Names the axes and rebuilds the values with their true dependencies."""

    def __init__(self, program: Program, low: AxisLowering, outputs: list[AxisTensor]) -> None:
        self.program = program
        self.low = low
        self.outputs = outputs
        self.names: dict[Leaf, str] = {}
        self.axes: dict[str, Dim] = {}
        self.nodes: list[AxisNode] = []
        self._index: dict[AxisNode, int] = {}

    def name(self, leaf: Leaf) -> str:
        if leaf not in self.names:
            size = leaf.size
            base = (
                size.name
                if size.is_Symbol
                else f"d{size}"
                if size.is_Integer
                else "".join(sorted(s.name for s in size.free_symbols)) + "x"
            )
            name, k = base, 2
            while name in self.axes:
                name, k = f"{base}_{k}", k + 1
            self.names[leaf] = name
            self.axes[name] = size
        return self.names[leaf]

    def named(self, leaves: Sequence[Leaf]) -> tuple[str, ...]:
        return tuple(self.name(x) for x in resolve(leaves))

    def add(self, op: str, operands: tuple[int, ...], axes: set[str], **more: Any) -> int:
        node = AxisNode(op, operands, more.pop("attrs", ()), tuple(a for a in self.axes if a in axes), **more)
        if op == "input" or node not in self._index:
            self.nodes.append(node)
            self._index[node] = len(self.nodes) - 1
        return self._index[node]

    def times_size(self, value: int, absent: Sequence[str]) -> int:
        """A sum over axes that the value does not depend on multiplies it by their sizes."""
        for a in absent:
            size = self.add("size", (), set(), attrs=(("dim", self.axes[a]),))
            value = self.add("mul", (value, size), set(self.nodes[value].axes))
        return value

    def result(self) -> AxisProgram:
        inputs: list[AxisInput] = []
        names = iter(self.program.input_names)
        new: list[int] = []
        for raw in self.low.raw:
            dims = tuple(self.named(d) for d in raw.dims)
            self.check_distinct(raw, dims)
            reduce = self.named(raw.reduce)
            joined = self.joined(raw)
            operands = tuple(new[i] for i in raw.operands)
            below: set[str] = set().union(*(self.nodes[i].axes for i in operands)) if operands else set()
            if raw.op == "input":
                inputs.append(AxisInput(next(names), dims))
                new.append(self.add("input", (), {a for d in dims for a in d}, attrs=(("name", inputs[-1].name),)))
            elif raw.op in ("sum", "matmul"):
                present = tuple(a for a in reduce if a in below)
                absent = [a for a in reduce if a not in below]
                if not present:
                    v = operands[0] if raw.op == "sum" else self.add("mul", operands, below)
                else:
                    v = self.add(raw.op, operands, below - set(present), reduce=present)
                new.append(self.times_size(v, absent))
            elif joined is not None:
                own = (below - set(joined[1])) | {joined[0]}
                new.append(self.add("concat", operands, own, joined=joined))
            else:
                new.append(self.add(raw.op, operands, below, attrs=raw.attrs))
        outputs = tuple(AxisOutput(new[t.value], tuple(self.named(d) for d in t.dims)) for t in self.outputs)
        order = {a: self.axes[a] for a in self.axes}
        return AxisProgram(self.program.name, order, tuple(inputs), tuple(self.nodes), outputs, self.program.dtype)

    def joined(self, raw: _Raw) -> tuple[str, tuple[str, ...]] | None:
        """The result's and the operands' axes of a concat, each a single axis after all unification."""
        if raw.joined is None:
            return None
        found = [self.named([leaf]) for leaf in (raw.joined[0], *raw.joined[1])]
        if any(len(axes) != 1 for axes in found):
            at = f"{raw.where}: " if raw.where else ""
            several = next(axes for axes in found if len(axes) != 1)
            raise AxisError(
                f"{at}concat: a joined dim is split into the factors {', '.join(several)} elsewhere in the program; a dim "
                "that is joined must stay whole; reshape before or after in a program of its own"
            )
        return found[0][0], tuple(axes[0] for axes in found[1:])

    def check_distinct(self, raw: _Raw, dims: AxisDims) -> None:
        flat = [a for d in dims for a in d]
        twice = {a for a in flat if flat.count(a) > 1}
        if raw.op in ("sum", "matmul"):
            twice |= set(self.named(raw.reduce)) & set(flat)
        if twice:
            a = min(twice)
            at = f"{raw.where}: " if raw.where else ""
            raise AxisError(
                f"{at}{raw.op}: axis {a} (size {self.axes[a]}) would occur twice in one tensor, because dims of a tensor "
                "were unified with one another (as in X @ X.T); pass the second use as an input of its own"
            )
