"""Which input of one program is which of another, and two programs over the same named axes.

Inputs are paired by position, whatever their names. A name that both programs use has to stand at the same position in both:
`f(x, w)` and `g(w, x)` are no pair, because their positions and their names say different things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from mirage.errors import AxisError, InputError, MirageError
from mirage.ir.axes import AxisNode, AxisProgram, argument_places, to_axes
from mirage.ir.dims import Dim
from mirage.ir.program import Program
from mirage.ir.refine import with_factors


def check_pair(a: Program, b: Program) -> None:
    """Raises InputError where a name that both programs use stands at two positions, or the types of inputs or outputs differ."""
    places = {name: k for k, name in enumerate(a.input_names)}
    for k, name in enumerate(b.input_names):
        if places.get(name, k) != k:
            raise InputError(
                f"programs {a.name} and {b.name}: input {name!r} is number {places[name] + 1} of one and number {k + 1} of the "
                "other; inputs are paired by position, so give equal names to equal positions, or other names"
            )
    if a.input_types != b.input_types or a.output_types != b.output_types:
        raise InputError(
            f"programs {a.name} and {b.name} differ in type: "
            f"{_types(a)} and {_types(b)}; only programs of one type can be equal"
        )


def _types(program: Program) -> str:
    ins, outs = (", ".join(map(str, ts)) for ts in (program.input_types, program.output_types))
    return f"({ins}) -> ({outs})"


def paired(a: Program, b: Program) -> tuple[AxisProgram, AxisProgram]:
    """Two programs of one type over the same axes, the second with the names of the first.

    Where one of them sees a dim as a product of axes, so does the other, and where one relates two axes, so that they are one,
    they are one in the other too. Raises AxisError if one has no axis form, or their axes do not match, InputError as
    `check_pair`.
    """
    check_pair(a, b)
    x, y = to_axes(a), to_axes(b)
    if _factors(x) != _factors(y):
        y = to_axes(_seen_as(b, x))
        x = to_axes(_seen_as(a, y))
    return _same_axes(x, y)


def _factors(program: AxisProgram) -> list[list[list[object]]]:
    """Per argument, per dim, the sizes of its axes."""
    return [[[program.axes[v] for v in d] for d in x.dims] for x in program.inputs if x.argument == x.name]


def _seen_as(program: Program, other: AxisProgram) -> Program:
    factors = [[[other.axes[v] for v in d] for d in x.dims] for x in other.inputs if x.argument == x.name]
    try:
        return with_factors(program, factors)
    except MirageError as e:
        raise AxisError(f"{program.name}: its dims cannot be seen as those of {other.name}: {e}") from None


def _same_axes(a: AxisProgram, b: AxisProgram) -> tuple[AxisProgram, AxisProgram]:
    """Both over the same axes, named as in the first: those that stand for one axis of the other program are one."""
    if argument_places(a.inputs) != argument_places(b.inputs):
        raise AxisError(f"{a.name} and {b.name} read their arguments differently often")
    axes = _Classes([*((0, v) for v in a.axes), *((1, w) for w in b.axes)])
    for x, y in zip(a.inputs, b.inputs, strict=True):
        sizes = [[[p.axes[v] for v in d] for d in i.dims] for p, i in ((a, x), (b, y))]
        if sizes[0] != sizes[1] or x.moved != y.moved:
            raise AxisError(f"{a.name} and {b.name} have different axes at input {x.name!r}")
        for v, w in zip(x.axes, y.axes, strict=True):
            axes.union((0, v), (1, w))
    _join(axes, a, b)
    # axes of results alone are matched where they stand
    for out, other in zip(a.outputs, b.outputs, strict=True):
        for d, e in zip(out.dims, other.dims, strict=True):
            for v, w in zip(d, e, strict=False):
                if axes.alone((0, v)) and axes.alone((1, w)) and a.axes[v] == b.axes[w]:
                    axes.union((0, v), (1, w))
    table: dict[str, Dim] = {}
    names: dict[tuple[int, str], str] = {}
    for side, p in enumerate((a, b)):
        for v in p.axes:
            root = axes.root[side, v]
            if root not in names:
                names[root] = next(n for k in count(1) if (n := f"{v}_{k}" if k > 1 else v) not in table)
                table[names[root]] = p.axes[v]
    mine, theirs = ({v: names[axes.root[side, v]] for v in p.axes} for side, p in enumerate((a, b)))
    return _renamed(a, mine, table, a), _renamed(b, theirs, table, a)


def _join(axes: _Classes, a: AxisProgram, b: AxisProgram) -> None:
    """The same parts put side by side are the same axis, and the same axis has the same parts, where their sizes are equal."""
    joins = [(side, p, *n.joined) for side, p in enumerate((a, b)) for n in p.nodes if n.joined is not None]
    for s, p, joined, parts in joins:
        for t, q, other, others in joins:
            if [p.axes[v] for v in parts] == [q.axes[w] for w in others]:
                pairs = [((s, v), (t, w)) for v, w in zip(parts, others, strict=True)]
                if all(axes.root[x] == axes.root[y] for x, y in pairs):
                    axes.union((s, joined), (t, other))
                if axes.root[s, joined] == axes.root[t, other]:
                    for x, y in pairs:
                        axes.union(x, y)


class _Classes:
    """Axes of two programs, each with its side, 0 or 1, in classes of those that are one; `root` is the class."""

    def __init__(self, axes: Sequence[tuple[int, str]]) -> None:
        self.root = {x: x for x in axes}

    def union(self, x: tuple[int, str], y: tuple[int, str]) -> None:
        one, other = self.root[x], self.root[y]
        self.root.update({z: one for z, root in self.root.items() if root == other})

    def alone(self, x: tuple[int, str]) -> bool:
        """Whether an axis is one with none of the other program."""
        return all(z[0] == x[0] for z, root in self.root.items() if root == self.root[x])


def _renamed(program: AxisProgram, to: Mapping[str, str], axes: dict[str, Dim], like: AxisProgram) -> AxisProgram:
    """A program with other names of its axes, over this table of axes, and the inputs' names of another one."""
    input_names = {y.name: x.name for x, y in zip(like.inputs, program.inputs, strict=True)}

    def names(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(to[v] for v in axes)

    def node(n: AxisNode) -> AxisNode:
        seen = {*n.axes, *n.reduce, *(v for i in n.operands for v in program.nodes[i].axes)}
        if len({to[v] for v in seen}) < len(seen):
            raise AxisError(f"{program.name}: {n.op} has two axes that are one in the other program")
        attrs = (("name", input_names[n.attr["name"]]),) if n.op == "input" else n.attrs
        joined = None if n.joined is None else (to[n.joined[0]], names(n.joined[1]))
        # in the order of the table, as every node's axes are
        own = tuple(v for v in axes if v in names(n.axes))
        return replace(n, attrs=attrs, axes=own, reduce=names(n.reduce), joined=joined)

    inputs = tuple(
        replace(y, name=x.name, argument=x.argument, dims=tuple(names(d) for d in y.dims))
        for x, y in zip(like.inputs, program.inputs, strict=True)
    )
    outputs = tuple(replace(o, dims=tuple(names(d) for d in o.dims)) for o in program.outputs)
    return AxisProgram(program.name, axes, inputs, tuple(map(node, program.nodes)), outputs, program.dtype)
