"""Which input of one program is which of another, and two programs over the same named axes.

Inputs are paired by position, whatever their names. A name that both programs use has to stand at the same position in both:
`f(x, w)` and `g(w, x)` are no pair, because their positions and their names say different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage.errors import AxisError, InputError, MirageError
from mirage.ir.axes import AxisNode, AxisProgram, argument_places, to_axes
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
    """Both with the axes and inputs of the first, of which those are one that stand for one axis of the second."""
    if argument_places(a.inputs) != argument_places(b.inputs):
        raise AxisError(f"{a.name} and {b.name} read their arguments differently often")
    mine: dict[str, str] = {v: v for v in a.axes}
    theirs: dict[str, str] = {}
    for x, y in zip(a.inputs, b.inputs, strict=True):
        sizes = [[[p.axes[v] for v in d] for d in i.dims] for p, i in ((a, x), (b, y))]
        if sizes[0] != sizes[1]:
            raise AxisError(f"{a.name} and {b.name} have different axes at input {x.name!r}")
        for v, w in zip(x.axes, y.axes, strict=True):
            one, other = mine[v], theirs.setdefault(w, mine[v])
            for names in (mine, theirs):
                names.update({k: one for k, n in names.items() if n == other})
    if set(theirs) != set(b.axes) or set(theirs.values()) != set(mine.values()):
        raise AxisError(f"the axes of {a.name} and {b.name} do not match")
    return _renamed(a, mine, a), _renamed(b, theirs, a)


def _renamed(program: AxisProgram, to: Mapping[str, str], like: AxisProgram) -> AxisProgram:
    """A program with other names of its axes, and the inputs' names of another one."""
    input_names = {y.name: x.name for x, y in zip(like.inputs, program.inputs, strict=True)}
    axes = {v: like.axes[v] for v in like.axes if v in set(to.values())}

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
