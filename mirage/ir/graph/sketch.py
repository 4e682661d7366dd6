"""Functions as they are written, before the annotations that are left out are known."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage.ir.annotations import Annotation
from mirage.ir.graph.nodes import Atom, Expr, Var
from mirage.ir.unknowns import Node


@dataclass
class Line:
    """A binding as it is written: its annotation may be left out."""

    var: Var
    annotation: Annotation | None
    value: Expr
    where: str


@dataclass
class Sketch:
    """A function as it is written: annotations of parameters, of the result and of bindings may be left out."""

    name: str
    parameters: list[tuple[Var, Annotation | None]]
    lines: list[Line]
    result: Atom
    returns: Annotation | None
    dims: tuple[str, ...]
    where: str
    #: the nodes of variables
    nodes: dict[Var, Node] = field(default_factory=dict)
    returned: Node = field(default_factory=Node)

    @property
    def declared(self) -> bool:
        """Whether all parameters have annotations."""
        return all(a is not None for _, a in self.parameters)
