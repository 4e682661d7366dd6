"""Programs: directed acyclic graphs of registered operators over symbolic shapes."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mirage.drawing.show import Displayed
from mirage.errors import DTypeError, MirageError, ShapeError, TraceError
from mirage.ir.by_hand import Made, softmax_by_hand
from mirage.ir.operator import RENAMING, get_operator
from mirage.ir.requirements import AtMost
from mirage.ir.types import WIDENED, TensorType, check_float

AttrItems = tuple[tuple[str, Any], ...]

#: by how many elements sizes are raised, at most, until windows are within their dims
_RAISED = 256


@dataclass(frozen=True)
class Node:
    """One application of an operator: operands are indices of earlier nodes. `where` is the user's line."""

    op: str
    inputs: tuple[int, ...]
    attrs: AttrItems
    type: TensorType
    where: str = field(default="", compare=False)

    @property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)


@dataclass(frozen=True)
class Program(Displayed, drawn_by="mirage.ir.draw"):
    """A tensor program in topological order; nodes of operator "input" are its parameters, in order."""

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the input nodes."""
        return tuple(i for i, n in enumerate(self.nodes) if n.op == "input")

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self.nodes[i].attr["name"] for i in self.inputs)

    @cached_property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(self.nodes[i].type for i in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.nodes[i].type for i in self.outputs)

    @property
    def dtype(self) -> str:
        """The element type that the program computes: that of its results. Inputs may be stored in one of `WIDENED` instead."""
        return self.nodes[self.outputs[0]].type.dtype

    def symbols(self) -> list[str]:
        """Names of the symbolic dims, in order of first appearance."""
        seen: dict[str, None] = {}
        for t in self.input_types:
            for d in t.shape:
                for s in sorted(s.name for s in d.free_symbols):
                    seen.setdefault(s)
        return list(seen)

    @cached_property
    def needs(self) -> tuple[AtMost, ...]:
        """What its operators need of the dims, such as windows within the dims that they move along."""
        found = {
            need: None
            for n in self.nodes
            if n.op != "input"
            for need in get_operator(n.op).requirements([self.nodes[i].type for i in n.inputs], n.attr)
        }
        return tuple(found)

    def nameless(self) -> Program:
        """The program with names that are the same for all that differ in names alone; those of dims stay."""
        names = {i: (("name", f"x{k}"),) for k, i in enumerate(self.inputs)}
        nodes = tuple(replace(n, attrs=names.get(i, n.attrs)) for i, n in enumerate(self.nodes))
        return Program("program", nodes, self.outputs)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        from mirage.ir.text import print_program

        return print_program(self)

    @staticmethod
    def from_text(text: str) -> Program:
        """The program that a text describes; raises ParseError, and the errors of operators."""
        from mirage.ir.text import parse_program

        return parse_program(text)


def allowed(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes (dim symbol -> elements), or larger ones, at which the program can run."""
    found = dict(sizes)
    for _ in range(_RAISED):
        lacking = [need.symbols() for need in program.needs if need.problem(found)]
        if not lacking:
            break
        found = {s: n + any(s in symbols for symbols in lacking) for s, n in found.items()}
    return found


def identifier(what: str, name: str) -> str:
    """The name, which has to be one in program text too."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise TraceError(f"{what} name {name!r} is not an identifier; use letters, digits and _")
    return name


class ProgramBuilder:
    """Appends nodes, inferring types and sharing equal ones."""

    def __init__(self, name: str) -> None:
        self.name = identifier("program", name)
        self.nodes: list[Node] = []
        self._index: dict[Node, int] = {}

    def type(self, i: int) -> TensorType:
        return self.nodes[i].type

    def input(self, name: str, type: TensorType) -> int:
        if any(n.op == "input" and n.attr["name"] == name for n in self.nodes):
            raise TraceError(f"input {name!r} is declared twice; give each input its own name")
        self.nodes.append(Node("input", (), (("name", identifier("input", name)),), type))
        return len(self.nodes) - 1

    def op(self, op: str, *inputs: int, where: str = "", **attrs: Any) -> int:
        """Append an operator and return its index; raises ShapeError and others with `where` in front."""
        try:
            definition = get_operator(op)
            definition.check_arity(len(inputs))
            checked = definition.check_attrs(attrs)
            result = definition.infer([self.nodes[i].type for i in inputs], checked)
        except MirageError as e:
            raise type(e)(f"{where}: {e}" if where else str(e)) from None
        # what is written by hand has a maximum, which no search knows
        known = softmax_by_hand(op, inputs, result.rank, self._made_by)
        if known is not None and self.type(known.x) == result:
            return self.op(known.op, known.x, where=where, axis=known.axis)
        return self._add(Node(op, inputs, tuple(checked.items()), result, where))

    def _made_by(self, i: int, op: str) -> Made[int] | None:
        node = self.nodes[i]
        return Made(node.inputs, node.attr) if node.op == op else None

    def _add(self, node: Node) -> int:
        if node not in self._index:
            self.nodes.append(node)
            self._index[node] = len(self.nodes) - 1
        return self._index[node]

    def finish(self, outputs: Sequence[int]) -> Program:
        """The program that returns these nodes: inputs first, without the nodes that nothing uses.

        Raises TraceError, DTypeError or ShapeError where they are none that can be superoptimized.
        """
        if not outputs:
            raise TraceError(f"{self.name}: the program returns nothing; return at least one tensor")
        for i in outputs:
            if self.nodes[i].type.dtype == "scalar":
                raise TraceError(
                    f"{self.name}: a returned value is a scalar constant; return a tensor that depends on an input"
                )
        if not any(n.op == "input" for n in self.nodes):
            raise ShapeError(f"{self.name}: the program has no tensor input; give it at least one")
        used: set[int] = set(outputs)
        for i in range(len(self.nodes) - 1, -1, -1):
            if i in used:
                used.update(self.nodes[i].inputs)
        keep = [i for i, n in enumerate(self.nodes) if n.op == "input"]
        keep += [i for i, n in enumerate(self.nodes) if i in used and n.op != "input"]
        for n in (self.nodes[i] for i in keep):
            if n.op != "input" and not get_operator(n.op).lax:
                where = f"{n.where}: " if n.where else ""
                raise TraceError(
                    f"{where}{self.name}: {n.op} cannot be superoptimized; compile the function with mirage.compile, which "
                    "superoptimizes what is around it"
                )
        self._check_dtypes(keep, outputs)
        new = {old: k for k, old in enumerate(keep)}
        nodes = tuple(
            Node(n.op, tuple(new[j] for j in n.inputs), n.attrs, n.type, n.where) for n in (self.nodes[i] for i in keep)
        )
        return Program(self.name, nodes, tuple(new[i] for i in outputs))

    def _check_dtypes(self, used: Sequence[int], outputs: Sequence[int]) -> None:
        """Raises DTypeError unless all that is computed has one floating-point type, or inputs have another that is widened."""
        for n in (self.nodes[i] for i in used):
            if n.op == "input" and n.type.dtype not in WIDENED:
                check_float(n.type.dtype, f"{self.name}: input {n.attr['name']!r}")
        dtype = check_float(self.nodes[outputs[0]].type.dtype, f"{self.name}: a result")
        for n in (self.nodes[i] for i in used):
            own, where = n.type.dtype, f"{n.where}: " if n.where else ""
            what = f"{where}{self.name}: " + (f"input {n.attr['name']!r}" if n.op == "input" else n.op)
            widened = dtype == "float32" and own in WIDENED
            if own in (dtype, "scalar") or (widened and (n.op in ("input", *RENAMING) or get_operator(n.op).moves)):
                continue
            raise DTypeError(
                f"{what} is {own}, and the program computes {dtype}; use one dtype in a program, or cast inputs of "
                f"{', '.join(WIDENED)} to float32"
            )
