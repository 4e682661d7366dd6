"""The canonical form of a program over named axes: names and declaration order erased.

Two programs have the same canonical text exactly when they differ only in the names of inputs, axes and
symbols, in the order of the inputs, and in the order in which values are computed. Operators, attributes,
literal sizes, the structure of symbolic ones, the layout of inputs and outputs, and which inputs read the same
argument are kept.

Nodes, axes, symbols and arguments that several inputs read are coloured; a colour is refined by the colours of
what an element is used with, until nothing changes. Where elements still share a colour, each is tried as the
first of them, and the smallest text wins; branches that a symmetry of the program maps to one another are tried
once (individualization and refinement, as in nauty).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from mirage.errors import AxisError
from mirage.ir.axes import AxisDims, AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.dims import Dim, dim_text, symbol
from mirage.ir.moves import map_moves, moves_text
from mirage.ir.text import attribute_texts

#: orders tried at most; beyond, equal programs may get different texts, but different ones never the same
MAX_ORDERS = 256

_Element = tuple[str, Any]
_Colors = dict[_Element, int]


@dataclass(frozen=True)
class Renaming:
    """Names of one program -> names of another: of axes, of symbols, and the new index of each input."""

    axes: Mapping[str, str]
    symbols: Mapping[str, str]
    inputs: tuple[int, ...]

    def inverse(self) -> Renaming:
        return Renaming(
            {b: a for a, b in self.axes.items()},
            {b: a for a, b in self.symbols.items()},
            tuple(self.inputs.index(k) for k in range(len(self.inputs))),
        )

    def then(self, other: Renaming) -> Renaming:
        """This renaming followed by another."""
        return Renaming(
            {a: other.axes[b] for a, b in self.axes.items()},
            {a: other.symbols[b] for a, b in self.symbols.items()},
            tuple(other.inputs[k] for k in self.inputs),
        )

    def dim(self, size: Dim) -> Dim:
        """A size with its symbols renamed."""
        return sympy.expand(size.xreplace({symbol(a): symbol(b) for a, b in self.symbols.items()}))


@dataclass(frozen=True)
class Canonical:
    """The canonical form: its text, the program in canonical names, and the renaming to it."""

    text: str
    program: AxisProgram
    renaming: Renaming

    def renaming_to(self, other: Canonical) -> Renaming:
        """From the program that this was made of to the one that `other` was made of.

        Raises AxisError where the two programs differ.
        """
        if self.text != other.text:
            raise AxisError(f"the programs differ:\n{self.text}\nand\n{other.text}")
        return self.renaming.then(other.renaming.inverse())


def canonical_key(program: AxisProgram) -> Canonical:
    """The canonical form of a program; `.text` is the same for all that differ only in names and order.

    The element type is not part of it.
    """
    return _Search(program).run()


class _Search:
    def __init__(self, program: AxisProgram) -> None:
        self.program = program
        self.inputs = [i for i, n in enumerate(program.nodes) if n.op == "input"]
        self.tried = 0
        self.found: dict[str, _Colors] = {}
        self.index()

    def run(self) -> Canonical:
        text = self.best(self.refine({e: 0 for e in self.fixed}))
        return _Rename(self.program, self.inputs, self.found[text]).result()

    # The structure that colours are refined by.

    def index(self) -> None:
        """What is fixed about each element (operator, attributes, coefficients), and what it is used with."""
        p = self.program
        self.fixed: dict[_Element, Any] = {}
        #: per element, (how, the other element) of every use, unordered
        self.uses: dict[_Element, list[tuple[Any, _Element]]] = {}
        for a in p.axes:
            self.fixed["axis", a] = ""
            self.uses["axis", a] = []
        for size in [*p.axes.values(), *(n.attr["dim"] for n in p.nodes if n.op == "size")]:
            for s in size.free_symbols:
                self.fixed["symbol", s.name] = ""
                self.uses.setdefault(("symbol", s.name), [])
        for a, size in p.axes.items():
            self.fixed["axis", a] = self.link_size(("axis", a), size)
        for i, n in enumerate(p.nodes):
            me = ("node", i)
            self.uses[me] = []
            self.fixed[me] = self.link_size(me, n.attr["dim"]) if n.op == "size" else ""
        for i, n in enumerate(p.nodes):
            me = ("node", i)
            outputs = [k for k, o in enumerate(p.outputs) if o.value == i]
            attrs = () if n.op in ("input", "size") else attribute_texts(n.op, n.attrs)
            self.fixed[me] = (n.op, attrs, outputs, self.fixed[me])
            for k, j in enumerate(n.operands):
                self.link(me, ("operand", k), ("node", j))
            for a in n.axes:
                self.link(me, "axis", ("axis", a))
            for a in n.reduce:
                self.link(me, "reduce", ("axis", a))
            if n.joined is not None:
                self.link(me, "joined", ("axis", n.joined[0]))
                for k, a in enumerate(n.joined[1]):
                    self.link(me, ("part", k), ("axis", a))
        for argument, readers in _repeated(p.inputs).items():
            self.fixed["argument", argument] = ""
            self.uses["argument", argument] = []
            for k in readers:
                self.link(("node", self.inputs[k]), "reads", ("argument", argument))
        for i, x in zip(self.inputs, p.inputs, strict=True):
            self.fixed["node", i] = (self.fixed["node", i], x.dtype + moves_text(x.moved))
            self.link_dims(("node", i), "input", x.dims)
        for k, o in enumerate(p.outputs):
            self.link_dims(("node", o.value), k, o.dims)

    def link(self, a: _Element, how: Any, b: _Element) -> None:
        self.uses[a].append((("to", how), b))
        self.uses[b].append((("from", how), a))

    def link_dims(self, me: _Element, what: Any, dims: AxisDims) -> None:
        self.fixed[me] = (self.fixed[me], what, [len(d) for d in dims])
        for d, group in enumerate(dims):
            for k, a in enumerate(group):
                self.link(me, (what, d, k), ("axis", a))

    def link_size(self, me: _Element, size: Dim) -> Any:
        """Links to the symbols of a size; what stays is the form of its monomials."""
        monomials = []
        for term in sympy.Add.make_args(sympy.expand(size)):
            coefficient, rest = term.as_coeff_Mul()
            powers = [f.as_base_exp() for f in sympy.Mul.make_args(rest) if f.free_symbols]
            form = (str(coefficient), sorted(str(e) for _, e in powers))
            monomials.append(form)
            for base, exponent in powers:
                for s in base.free_symbols:
                    self.link(me, ("size", form, str(exponent)), ("symbol", s.name))
        return sorted(monomials)

    # Refinement and search.

    def refine(self, colors: _Colors) -> _Colors:
        """The coarsest refinement in which elements of one colour are used alike."""
        first = {e: (colors[e], e[0], self.fixed[e]) for e in colors}
        colors = _ranks(first)
        while True:
            seen = {
                e: (c, sorted((repr(how), colors[other]) for how, other in self.uses[e])) for e, c in colors.items()
            }
            new = _ranks(seen)
            if len(set(new.values())) == len(set(colors.values())):
                return new
            colors = new

    def cell(self, colors: _Colors) -> list[_Element]:
        """The first set of elements that share a colour; empty where each has its own."""
        members: dict[int, list[_Element]] = {}
        for e, c in colors.items():
            members.setdefault(c, []).append(e)
        return next((members[c] for c in sorted(members) if len(members[c]) > 1), [])

    def split(self, colors: _Colors, first: _Element) -> _Colors:
        return self.refine({e: 2 * c - (e == first) for e, c in colors.items()})

    def leaf(self, colors: _Colors) -> str:
        """The text under an order that takes the first element of every cell first."""
        while cell := self.cell(colors):
            colors = self.split(colors, cell[0])
        self.tried += 1
        text = _Rename(self.program, self.inputs, colors).text()
        self.found.setdefault(text, colors)
        return text

    def best(self, colors: _Colors) -> str:
        """The smallest text under any order that refines the colours."""
        cell = self.cell(colors)
        if not cell:
            return self.leaf(colors)
        texts: list[str] = []
        leaves: set[str] = set()
        for e in cell:
            branch = self.split(colors, e)
            leaf = self.leaf(branch)
            # the same leaf as an earlier branch: a symmetry maps one branch to the other
            if leaf not in leaves:
                leaves.add(leaf)
                texts.append(min(leaf, self.best(branch)) if self.tried < MAX_ORDERS else leaf)
        return min(texts)


def _repeated(inputs: Sequence[AxisInput]) -> dict[str, list[int]]:
    """The places of the inputs that read an argument, for every argument that several do."""
    readers: dict[str, list[int]] = {}
    for k, x in enumerate(inputs):
        readers.setdefault(x.argument, []).append(k)
    return {argument: places for argument, places in readers.items() if len(places) > 1}


def _ranks(labels: Mapping[_Element, Any]) -> _Colors:
    keys = {e: repr(label) for e, label in labels.items()}
    rank = {k: i for i, k in enumerate(sorted(set(keys.values())))}
    return {e: rank[k] for e, k in keys.items()}


class _Rename:
    """The program in canonical names, for colours that give every element a place."""

    def __init__(self, program: AxisProgram, inputs: Sequence[int], colors: _Colors) -> None:
        self.program = program
        self.colors = colors
        # an argument as it is comes before what is made of it by moving its elements
        moved = [bool(x.moved) for x in program.inputs]
        self.input_order = sorted(range(len(inputs)), key=lambda k: (moved[k], colors["node", inputs[k]]))
        self.order = [inputs[k] for k in self.input_order]
        self.order += self.computed(set(self.order))
        self.place = {i: k for k, i in enumerate(self.order)}
        self.axes = {a: f"a{k}" for k, a in enumerate(self.axis_order())}
        symbols: dict[str, str] = {}
        for a in self.axes:
            for s in sorted((s.name for s in program.axes[a].free_symbols), key=lambda s: colors["symbol", s]):
                symbols.setdefault(s, f"n{len(symbols)}")
        for s in sorted((e[1] for e in colors if e[0] == "symbol"), key=lambda s: colors["symbol", s]):
            symbols.setdefault(s, f"n{len(symbols)}")
        at = {k: new for new, k in enumerate(self.input_order)}
        self.renaming = Renaming(self.axes, symbols, tuple(at[k] for k in range(len(inputs))))

    def computed(self, done: set[int]) -> list[int]:
        """Nodes that are not inputs, in topological order; the ready one of least colour first."""
        nodes = self.program.nodes
        rest = sorted((i for i in range(len(nodes)) if i not in done), key=lambda i: self.colors["node", i])
        done = set(done)
        order: list[int] = []
        while rest:
            i = next(i for i in rest if done.issuperset(nodes[i].operands))
            rest.remove(i)
            done.add(i)
            order.append(i)
        return order

    def axis_order(self) -> Iterable[str]:
        """Axes in order of first appearance: inputs, values, outputs, then the rest."""
        p = self.program
        seen: dict[str, None] = {}
        for k in self.input_order:
            seen.update(dict.fromkeys(p.inputs[k].axes))
        for i in self.order:
            joined = p.nodes[i].joined
            if joined is not None:
                seen.setdefault(joined[0])
        for o in p.outputs:
            seen.update(dict.fromkeys(a for d in o.dims for a in d))
        seen.update(dict.fromkeys(sorted(p.axes, key=lambda a: self.colors["axis", a])))
        return seen

    def dims(self, dims: AxisDims) -> AxisDims:
        return tuple(tuple(self.axes[a] for a in d) for d in dims)

    def sorted_axes(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted((self.axes[a] for a in axes), key=lambda a: int(a[1:])))

    def node(self, i: int) -> AxisNode:
        n = self.program.nodes[i]
        attrs = n.attrs
        if n.op == "input":
            attrs = (("name", f"x{self.place[i]}"),)
        if n.op == "size":
            attrs = (("dim", self.renaming.dim(n.attr["dim"])),)
        joined = None if n.joined is None else (self.axes[n.joined[0]], tuple(self.axes[a] for a in n.joined[1]))
        operands = tuple(self.place[j] for j in n.operands)
        return AxisNode(n.op, operands, attrs, self.sorted_axes(n.axes), self.sorted_axes(n.reduce), joined)

    def renamed(self) -> AxisProgram:
        p = self.program
        inputs = [p.inputs[i] for i in self.input_order]
        first = {x.argument: f"x{k}" for k, x in reversed(list(enumerate(inputs)))}
        return AxisProgram(
            "canonical",
            {new: self.renaming.dim(p.axes[a]) for a, new in self.axes.items()},
            tuple(
                AxisInput(f"x{k}", self.dims(x.dims), first[x.argument], map_moves(x.moved, self.renaming.dim), x.dtype)
                for k, x in enumerate(inputs)
            ),
            tuple(self.node(i) for i in self.order),
            tuple(AxisOutput(self.place[o.value], self.dims(o.dims)) for o in p.outputs),
            p.dtype,
        )

    def text(self) -> str:
        return _text(self.renamed())

    def result(self) -> Canonical:
        program = self.renamed()
        return Canonical(_text(program), program, self.renaming)


def _text(p: AxisProgram) -> str:
    """Everything that the program means, line by line."""

    def shape(dims: AxisDims) -> str:
        return f"[{', '.join('*'.join(d) or '1' for d in dims)}]"

    lines = ["axes " + ", ".join(f"{a}={dim_text(d)}" for a, d in p.axes.items())]
    for k, x in enumerate(p.inputs):
        again = "" if x.argument == x.name else f" of {x.argument}{moves_text(x.moved)}"
        lines.append(f"v{k} = input{again} {x.dtype}{shape(x.dims)}")
    for i, n in enumerate(p.nodes):
        if n.op == "input":
            continue
        args = [*(f"v{j}" for j in n.operands), *attribute_texts(n.op, n.attrs)]
        over = f" over {', '.join(n.reduce)}" if n.reduce else ""
        if n.joined is not None:
            over = f" along {' + '.join(n.joined[1])} = {n.joined[0]}"
        lines.append(f"v{i}[{', '.join(n.axes)}] = {n.op}({', '.join(args)}){over}")
    lines += [f"return v{o.value} {shape(o.dims)}" for o in p.outputs]
    return "\n".join(lines) + "\n"
