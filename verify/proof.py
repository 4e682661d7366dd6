"""Proof that a muGraph computes its program at every size: both are read in the exact algebra and compared.

Every axis that some kernel loops over or splits is divided into grid, loop and tile parts. A sum inside the loop binds
the tile, an accumulator the loop, a sum over partial results the grid; only all three together are the program's sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from mirage.errors import AxisError, DTypeError, GraphError, TermTooLarge
from mirage.ir.axes import AxisProgram
from mirage.ir.expand import expand
from mirage.ir.operator import Elementwise, get_operator, reduced_parts
from mirage.ir.program import Program
from mirage.mugraph.exact import ExactAlgebra, read_node
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.mugraph.validate import validate
from mirage.mugraph.whole import whole_program
from mirage.verify.definedness import DefinedAlgebra, Term
from mirage.verify.pairing import paired
from mirage.verify.simplify import SimplifyingAlgebra


class _NotProved(Exception):
    """The graph does something that the exact algebra cannot follow; the message says what."""


Verdict = Literal["proved", "not proved"]

#: monomials of one form, beyond which it is taken as unknown where a proof was given up
_OPAQUE_MONOMIALS = 16


class Comparison(NamedTuple):
    """What is proved of two results, for all sizes.

    `proof` says whether they are equal wherever both are defined. `condition`, in words, says where both are, if one of them is
    undefined elsewhere and the other may not be; it is None where they are defined in the same places.
    """

    proof: Verdict
    condition: str | None

    @property
    def equal(self) -> bool:
        """Whether they are proved equal without a condition."""
        return self.proof == "proved" and self.condition is None


def prove(program: AxisProgram, graph: MuGraph) -> Verdict:
    """ "proved" if the muGraph is valid, defined where the program is, and equal to it at every size, else "not proved"."""
    return "proved" if compare_graph(program, graph).equal else "not proved"


def compare_graph(program: AxisProgram, graph: MuGraph) -> Comparison:
    """What is proved of a program and a muGraph; a graph that is not valid is not proved, and no condition helps."""
    if not _same_interface(program, graph):
        return _NOTHING
    try:
        validate(graph)
    except (GraphError, DTypeError):
        return _NOTHING
    try:
        parts = {a: (f"{a}.grid", f"{a}.loop", f"{a}.tile") for a in _divided(graph)}

        def compared(algebra: type[ExactAlgebra]) -> Comparison:
            reader = _Reader(DefinedAlgebra(algebra(parts, sizes={})))
            return reader.compared(reader.program(program), reader.mugraph(graph))

        return _strongest(compared)
    except (TermTooLarge, _NotProved):
        return _conditions(program, whole_program(graph))


def _strongest(compared: Callable[[type[ExactAlgebra]], Comparison]) -> Comparison:
    """What is proved by the rules of arithmetic alone, or else with the identities of functions."""
    plain = compared(ExactAlgebra)
    if plain.equal:
        return plain
    found = compared(SimplifyingAlgebra)
    proof: Verdict = "proved" if "proved" in (plain.proof, found.proof) else "not proved"
    return Comparison(proof, found.condition and plain.condition)


def _conditions(a: AxisProgram, b: AxisProgram) -> Comparison:
    """What is known of two programs over the same axes where a proof is given up: where they are defined."""
    reader = _Reader(DefinedAlgebra(ExactAlgebra({}, limit=_OPAQUE_MONOMIALS), opaque=True))
    return Comparison("not proved", reader.compared(reader.program(a), reader.program(b)).condition)


_NOTHING = Comparison("not proved", None)


def _same_interface(program: AxisProgram, graph: MuGraph) -> bool:
    same = graph.inputs == program.inputs and dict(graph.axes) == program.axes
    return same and [o.dims for o in graph.outputs] == [o.dims for o in program.outputs]


def prove_programs(a: Program, b: Program) -> Verdict:
    """ "proved" if two programs of one type are equal, and defined in the same places, at every size, else "not proved".

    Inputs are paired by position; raises InputError as `mirage.verify.pairing.check_pair`.
    """
    return "proved" if compare_programs(a, b).equal else "not proved"


def compare_programs(a: Program, b: Program) -> Comparison:
    """What is proved of two programs of one type; pairs and raises as `prove_programs`."""
    if (a.nodes, a.outputs) == (b.nodes, b.outputs):
        # of programs without an axis form, too
        return Comparison("proved", None)
    try:
        x, y = paired(a, b)
    except AxisError:
        return Comparison("not proved", None if _total(a) and _total(b) else "both are defined")
    return compare_axis_programs(x, y)


def compare_axis_programs(x: AxisProgram, y: AxisProgram) -> Comparison:
    """What is proved of two programs over the same axes, with the same inputs."""
    if [o.dims for o in x.outputs] != [o.dims for o in y.outputs]:
        return _conditions(x, y)
    try:

        def compared(algebra: type[ExactAlgebra]) -> Comparison:
            reader = _Reader(DefinedAlgebra(algebra({}, sizes=x.axes)))
            return reader.compared(reader.program(x), reader.program(y))

        return _strongest(compared)
    except TermTooLarge:
        return _conditions(x, y)


def _total(program: Program) -> bool:
    """Whether each operator by itself is defined for all operands, as a program without an axis form can only be asked."""
    al = DefinedAlgebra(ExactAlgebra({}))
    values: list[Term] = []
    for i, n in enumerate(expand(program).nodes):
        value = al.tensor(f"v{i}", ())
        op = None if n.op == "input" else get_operator(n.op)
        if isinstance(op, Elementwise):
            found: Term = op.apply(al, [values[k] for k in n.inputs], n.attr)
            if found.conditions:
                return False
            # of operands, only constants are known
            value = value if n.inputs else found
        values.append(value)
    return True


def _divided(graph: MuGraph) -> list[str]:
    split: list[str] = []
    divided: dict[str, None] = {}
    for n in graph.kernels:
        assert n.graph is not None
        for a, role in n.graph.roles:
            if role in (Role.LOOP, Role.SPLIT) and a in graph.axes:
                divided[a] = None
                if role is Role.SPLIT:
                    split.append(a)
    if len(set(split)) < len(split):
        raise _NotProved("an axis is split in two kernels")
    return list(divided)


class _Reader:
    def __init__(self, al: DefinedAlgebra) -> None:
        self.al = al

    def compared(self, wanted: Sequence[Term], found: Sequence[Term]) -> Comparison:
        same = all(a.form is b.form for a, b in zip(wanted, found, strict=True))
        return Comparison("proved" if same else "not proved", self.al.apart(wanted, found))

    def program(self, program: AxisProgram) -> list[Term]:
        values: list[Term] = []
        for n in program.nodes:
            if n.op == "input":
                values.append(self.al.tensor(n.attr["name"], n.axes))
            else:
                over = reduced_parts(n.op, [program.nodes[i].axes for i in n.operands], n.reduce, self.parts)
                values.append(read_node(self.al, n, [values[i] for i in n.operands], over))
        return [values[o.value] for o in program.outputs]

    def mugraph(self, graph: MuGraph) -> list[Term]:
        values: dict[tuple[int, int], Term] = {}
        for i, n in enumerate(graph.kernel.nodes):
            args = [values[r.node, r.out] for r in n.operands]
            if n.op == "input":
                x = graph.inputs[n.attr["index"]]
                values[i, 0] = self.al.tensor(x.name, x.axes)
            elif n.op == "graph":
                assert n.graph is not None
                for k, form in enumerate(self.block(n.graph, args)):
                    values[i, k] = form
            else:
                over = reduced_parts(n.op, _operand_axes(graph.kernel, n), n.reduce, self.parts)
                values[i, 0] = read_node(self.al, n, args, over)
        return [values[r.node, r.out] for r in graph.kernel.outputs]

    def parts(self, axes: Sequence[str]) -> frozenset[str]:
        return frozenset(p for a in axes for p in self.al.parts.get(a, (a,)))

    def block(self, graph: Graph, inputs: Sequence[Term]) -> list[Term]:
        values: list[Term] = []
        for i, n in enumerate(graph.nodes):
            args = [values[r.node] for r in n.operands]
            after = i in graph.after_loop
            if n.op == "input":
                values.append(inputs[n.attr["index"]])
            elif n.op == "accumulator":
                loops = (a for a in graph.summed_loops(i) if a in self.al.parts)
                values.append(self.al.sum(args[0], frozenset(f"{a}.loop" for a in loops)))
            elif n.op == "graph":
                assert n.graph is not None
                values.extend(self.thread(n.graph, graph, after, args))
            else:
                self.check_partial(args)
                values.append(self.operator(graph, n, args, graph, after))
        return [values[r.node] for r in graph.outputs]

    def operator(self, graph: Graph, n: Node, args: Sequence[Term], block: Graph, after: bool) -> Term:
        """A predefined operator of a block graph, or of a thread graph inside it, in or `after` the block's loop."""

        def parts(axes: Sequence[str]) -> frozenset[str]:
            return self.summed(block, axes, after)

        return read_node(self.al, n, args, reduced_parts(n.op, _operand_axes(graph, n), n.reduce, parts))

    def check_partial(self, args: Sequence[Term]) -> None:
        """A partial index and the axis itself are different indices; a form cannot hold both."""
        for a, names in self.al.parts.items():
            if len(names) == 3:
                partial = [names[0] in x.free and names[2] not in x.free and names[1] not in x.free for x in args]
                whole = [names[2] in x.free for x in args]
                if any(partial) and any(whole):
                    raise _NotProved(f"partial results over {a} meet a tensor with axis {a}")

    def summed(self, graph: Graph, axes: Sequence[str], after: bool) -> frozenset[str]:
        """What a sum over these axes binds in one block: in one iteration of its loop, or `after` it."""
        bound: set[str] = set()
        for a in axes:
            names = self.al.parts.get(a)
            role = graph.role.get(a)
            if names is None:
                bound.add(a)  # an undivided axis, or a partial one, whose name is that of its part
            elif role is Role.SPLIT:
                bound |= {names[1], names[2]} if after else {names[2]}
            elif role is Role.LOOP and not after:
                bound |= {names[0], names[2]}
            else:
                bound |= set(names)
        return frozenset(bound)

    def thread(self, graph: Graph, block: Graph, after: bool, inputs: Sequence[Term]) -> list[Term]:
        """A thread graph's sums and accumulators together do what one block operator does."""
        values: list[Term] = []
        for n in graph.nodes:
            args = [values[r.node] for r in n.operands]
            if n.op == "input":
                values.append(inputs[n.attr["index"]])
            elif n.op == "accumulator":
                before = graph.nodes[n.operands[0].node]
                if n.attr["mode"] == "sum" and not (before.op == "sum" and set(graph.loop) <= set(before.reduce)):
                    raise _NotProved("a thread accumulator that does not finish a sum")
                values.append(args[0])
            elif n.op == "graph":
                raise _NotProved("a graph below the thread level")
            else:
                values.append(self.operator(graph, n, args, block, after))
        return [values[r.node] for r in graph.outputs]


def _operand_axes(graph: Graph, n: Node) -> list[tuple[str, ...]]:
    return [graph.nodes[r.node].axes(r.out) for r in n.operands]
