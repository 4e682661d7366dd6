"""Programs over named axes.

Dims that must be equal are unified into *axes*; a dim is an ordered product of axes (outermost first). Over axes, every
operator is elementwise, a sum, a maximum, a matmul (a sum of products) or a concat: reshape, transpose and repeat vanish, and a
broadcast or repeated dim is an absent axis. This is the form that is searched, proved and printed as kernels.

No tensor has an axis twice. Where a program uses an argument under several axes, as X @ X.T does, several inputs read
that argument (`AxisInput.argument`). All that is done with the form takes inputs as independent arrays: what is equal
for independent arrays is equal where some of them are the same array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count as counting
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np

from mirage.errors import AxisError, InputError
from mirage.ir.codec import Index, few, short
from mirage.ir.dims import Dim, is_polynomial
from mirage.ir.expand import expand
from mirage.ir.moves import Move, Moves, moves_text
from mirage.ir.operator import FOLDS, REDUCTIONS
from mirage.ir.program import AttrItems, Program
from mirage.ir.reads import Lowered, lower, sources
from mirage.ir.types import ELEMENTS
from mirage.ir.unify import Leaf, RawNode, resolve

A = TypeVar("A")

Name: TypeAlias = Annotated[str, short]
Names: TypeAlias = Annotated[tuple[Name, ...], few]
AxisDims: TypeAlias = Annotated[tuple[Names, ...], few]


@dataclass(frozen=True)
class AxisNode:
    """One value over named axes.

    `op` is "input", an elementwise operator, "sum", "max", "matmul" or "concat". `reduce` names the axes that a sum, max or
    matmul reduces. For a concat, `joined` is (result axis, operand axes in order). `axes` are the axes that the value depends
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
    """What is read of a parameter: its dims as products of axes; a dim of literal size 1 is the empty product.

    `name` is the input's own, `argument` that of the parameter, which several inputs may read under different axes;
    the default is the input's name. `moved` are operators that move elements, in the order in which they are applied to the
    argument before its dims are these. `dtype` is the type that the argument is stored in, where it is not that of the program:
    one of `WIDENED`.
    """

    name: Name
    dims: AxisDims
    argument: Name = ""
    moved: Moves = ()
    dtype: Name = ""

    def __post_init__(self) -> None:
        if not self.argument:
            object.__setattr__(self, "argument", self.name)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d)


def stored_dtypes(inputs: Sequence[AxisInput], dtype: str) -> tuple[np.dtype, ...]:
    """What the inputs of a program of an element type are stored in."""
    return tuple(ELEMENTS[x.dtype or dtype] for x in inputs)


def argument_places(inputs: Sequence[AxisInput]) -> tuple[int, ...]:
    """Per input, the place of its argument among the arguments, which are ordered as they are first read."""
    places: dict[str, int] = {}
    return tuple(places.setdefault(x.argument, len(places)) for x in inputs)


def read_arguments(
    program: str, inputs: Sequence[AxisInput], arguments: Sequence[A], moved: Callable[[Moves, A], A]
) -> list[A]:
    """The value of every input, of one per argument, which `moved` moves where an input says so.

    Raises InputError, which names the program, for another number of arguments.
    """
    places = argument_places(inputs)
    count = max(places, default=-1) + 1
    if len(arguments) != count:
        raise InputError(f"{program}: takes {count} arrays, got {len(arguments)}")
    return [moved(x.moved, arguments[k]) if x.moved else arguments[k] for x, k in zip(inputs, places, strict=True)]


@dataclass(frozen=True)
class AxisOutput:
    """A result: which value it is, and its dims as products of axes (absent ones are broadcast)."""

    value: Index
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
        """Axes that some operator reduces, in the order of the table."""
        return self.order({a for n in self.nodes for a in n.reduce})

    def output_axes(self) -> tuple[str, ...]:
        """Axes of the outputs, in the order of the table."""
        return self.order({a for o in self.outputs for d in o.dims for a in d})

    def __str__(self) -> str:
        lines = [f"axes {', '.join(f'{a}={s}' for a, s in self.axes.items())}"]
        stored = {x.name: x.dtype for x in self.inputs}
        read = {x.name: f"{x.argument}{moves_text(x.moved)}" for x in self.inputs if x.argument != x.name}
        for i, n in enumerate(self.nodes):
            extra = [f"v{j}" for j in n.operands] + [f"{k}={v}" for k, v in n.attrs]
            if n.op == "input" and (own := stored.get(n.attr["name"])):
                extra.append(f"dtype={own}")
            if n.op == "input" and n.attr["name"] in read:
                extra.append(f"argument={read[n.attr['name']]}")
            red = f" over {','.join(n.reduce)}" if n.reduce else ""
            lines.append(f"v{i}[{','.join(n.axes)}] = {n.op}({', '.join(extra)}){red}")
        lines += [f"return v{o.value}[{', '.join('*'.join(g) or '1' for g in o.dims)}]" for o in self.outputs]
        return "\n".join(lines)


def to_axes(program: Program) -> AxisProgram:
    """Lower a program to named axes.

    The inputs are the parameters in order, then those that read a parameter again. Raises AxisError, saying why, where
    a dim is not a product of axes, or no polynomial.
    """
    flat = expand(program)
    _check_polynomial(flat)
    return _Finish(flat, lower(flat)).result()


def _check_polynomial(program: Program) -> None:
    """Sizes of axes are multiplied and divided exactly, which `//`, `%`, `min` and `max` of dims do not allow."""
    for n in program.nodes:
        used = (*n.type.shape, n.attr["dim"]) if n.op == "size" else n.type.shape
        for d in used:
            if not is_polynomial(d):
                raise AxisError(
                    f"{n.where + ': ' if n.where else ''}{n.op}: dim {d} is not a sum of products of dims, so it cannot be "
                    "an axis; give it a name of its own in this program"
                )


class _Finish:
    """Names the axes and inputs, and rebuilds the values with their true dependencies."""

    def __init__(self, program: Program, lowered: Lowered) -> None:
        self.program = program
        self.lowered = lowered
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

    def check_not_empty(self, absent: Sequence[str], raw: RawNode) -> None:
        """Raises AxisError where a maximum over axes that the value does not depend on may be one of no elements."""
        if unknown := [a for a in absent if not self.axes[a].is_positive]:
            raise AxisError(
                f"{raw.where + ': ' if raw.where else ''}max: over a dim of size {self.axes[unknown[0]]}, along which its "
                "operand is the same; take the maximum before it is repeated"
            )

    def input_name(self, argument: str, inputs: Sequence[AxisInput]) -> str:
        """The argument's name for the first input that reads it; for others one that no parameter or input has."""
        if all(x.argument != argument for x in inputs):
            return argument
        taken = {*self.program.input_names, *(x.name for x in inputs)}
        return next(name for k in counting(2) if (name := f"{argument}_{k}") not in taken)

    def result(self) -> AxisProgram:
        inputs: list[AxisInput] = []
        read = iter(self.lowered.read)
        given, arguments = self.program.nodes, sources(self.program)
        new: list[int] = []
        for raw in self.lowered.low.raw:
            dims = tuple(self.named(d) for d in raw.dims)
            reduce = self.named(raw.reduce)
            operands = tuple(new[i] for i in raw.operands)
            below: set[str] = set().union(*(self.nodes[i].axes for i in operands)) if operands else set()
            if raw.op == "input":
                at = next(read)
                argument = given[arguments[at]].attr["name"]
                moved: list[Move] = []
                while at not in self.program.inputs:
                    moved.insert(0, Move(given[at].op, given[at].attrs))
                    (at,) = given[at].inputs
                stored, dtype = given[at].type.dtype, self.program.dtype
                name = self.input_name(argument, inputs)
                inputs.append(AxisInput(name, dims, argument, tuple(moved), stored if stored != dtype else ""))
                new.append(self.add("input", (), {a for d in dims for a in d}, attrs=(("name", inputs[-1].name),)))
            elif raw.op in REDUCTIONS:
                present = tuple(a for a in reduce if a in below)
                absent = [a for a in reduce if a not in below]
                if not present:
                    v = operands[0] if raw.op in FOLDS else self.add("mul", operands, below)
                else:
                    v = self.add(raw.op, operands, below - set(present), reduce=present)
                if raw.op == "max":
                    self.check_not_empty(absent, raw)
                new.append(v if raw.op == "max" else self.times_size(v, absent))
            elif raw.joined is not None:
                joined = self.name(resolve([raw.joined[0]])[0]), self.named(raw.joined[1])
                own = (below - set(joined[1])) | {joined[0]}
                new.append(self.add("concat", operands, own, joined=joined))
            else:
                new.append(self.add(raw.op, operands, below, attrs=raw.attrs))
        outputs = tuple(AxisOutput(new[t.value], tuple(self.named(d) for d in t.dims)) for t in self.lowered.outputs)
        order = _storage_order(list(self.axes), self.nodes, inputs)
        axes = {a: self.axes[a] for a in order}
        nodes = tuple(replace(n, axes=tuple(a for a in order if a in n.axes)) for n in self.nodes)
        return AxisProgram(self.program.name, axes, tuple(inputs), nodes, outputs, self.program.dtype)


def _storage_order(order: list[str], nodes: Sequence[AxisNode], inputs: Sequence[AxisInput]) -> list[str]:
    """The axes, in an order in which values that kernels hand on are stored as NumPy would store them: the axis that it has
    contiguous is the value's last one, in the first of all values and as far as others allow it, and that of inputs as far as
    these do. So a row of a product is one of its left operand, whatever else reads that.
    """
    given = {x.name: x.axes for x in inputs}
    own: list[tuple[str, ...]] = []
    for n in nodes:
        operands = [own[i] for i in n.operands]
        if n.op == "input":
            operands = [given[n.attr["name"]]]
        elif n.op != "matmul":
            operands.sort(key=len, reverse=True)
        found = dict.fromkeys(a for axes in operands for a in axes if a in n.axes)
        own.append((*found, *(a for a in n.axes if a not in found)))
    kept: list[tuple[str, ...]] = []
    for axes, _ in sorted(zip(own, nodes, strict=True), key=lambda pair: pair[1].op == "input"):
        if len(axes) < 2:
            continue
        after = max(map(order.index, axes))
        changed = [a for a in order[: after + 1] if a != axes[-1]] + [axes[-1], *order[after + 1 :]]
        if all(_is_last(x, changed) for x in kept):
            order = changed
            kept.append(axes)
    return order


def _is_last(axes: Sequence[str], order: Sequence[str]) -> bool:
    return max(axes, key=order.index) == axes[-1]
