"""Types that are to be found: terms with unknown parts, their unification, and the relations of operators over them.

Inference makes a node of every type, element type, shape and dim of a module; two that have to be one are united (a union-find,
as Relay, section 3.2). What an operator says of its operands and its result is a relation, which is tried again as long as it
finds more, in both directions. What is found is only ever written down as annotations, which the usual deduction then checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import sympy

from mirage.errors import InferenceError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    ObjectType,
    PartialShape,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
    TypeVariable,
    tensor_annotation,
)
from mirage.ir.dims import Dim, dim_text, symbols_of
from mirage.ir.types import TensorType


class Node:
    """A type, an element type, the dims of a shape, or one dim; `kind` is "" as long as nothing tells.

    | kind | args | label |
    | --- | --- | --- |
    | tensor | element type, dims | |
    | dtype | | its name |
    | dims | one for each | |
    | dim | | its expression |
    | shape | dims | |
    | tuple, data, reference, callable | what is within; the result of a callable is last | the name of a data type |
    | variable, object | | the name of the variable |
    """

    __slots__ = ("_same", "args", "kind", "label", "uses", "where")

    def __init__(self, kind: str = "", args: tuple[Node, ...] = (), label: Any = None, where: str = "") -> None:
        self.kind = kind
        self.args = args
        self.label = label
        #: the line that told what it is
        self.where = where
        #: of a dim of a parameter: what callers pass for it
        self.uses: list[Node] = []
        self._same: Node | None = None

    def found(self) -> Node:
        """The node that stands for all that are united with this one."""
        node = self
        while node._same is not None:
            node = node._same
        if node is not self:
            self._same = node
        return node

    def unite(self, other: Node) -> None:
        """This one, of which nothing is known, is the other one."""
        other.uses += self.uses
        self._same = other


@dataclass
class Unifier:
    """Unites nodes; `changed` is set whenever something is found."""

    changed: bool = False

    def unify(self, a: Node, b: Node, what: str) -> None:
        """Make two nodes one; raises InferenceError, which begins with `what` and names both sides, where they cannot be.

        Two dims that are both known are left to the deduction, which knows where they may differ.
        """
        left = [(a, b)]
        while left:
            x, y = (n.found() for n in left.pop())
            if x is y:
                continue
            if not x.kind or not y.kind:
                free, other = (x, y) if not x.kind else (y, x)
                if within(free, other):
                    raise InferenceError(
                        f"{what}: the type of {text(a)} would be a part of itself, in {text(b)}; give it a data type of its own"
                    )
                free.unite(other)
                self.changed = True
            elif x.kind == "dim" and y.kind == "dim":
                continue
            elif (x.kind, x.label, len(x.args)) != (y.kind, y.label, len(y.args)):
                self._differ(a, b, what)
            else:
                left += zip(x.args, y.args, strict=True)

    def _differ(self, a: Node, b: Node, what: str) -> NoReturn:
        sides = [f"{text(n)}{f' (from {w})' if (w := _told(n)) else ''}" for n in (a, b)]
        raise InferenceError(f"{what}: {sides[0]} on one side and {sides[1]} on the other; make them one type, or annotate them")


def _told(node: Node) -> str:
    """The line that told a type, the innermost where only what is within is known from one."""
    found = node.found()
    return found.where or next((w for a in found.args if (w := _told(a))), "")


def within(free: Node, node: Node) -> bool:
    """Whether a node stands in another one."""
    left, seen = [node], set()
    while left:
        n = left.pop().found()
        if n is free:
            return True
        if id(n) not in seen:
            seen.add(id(n))
            left += n.args
    return False


def known(node: Node) -> bool:
    """Whether all but dims is known."""
    n = node.found()
    return bool(n.kind) and (n.kind == "dims" or all(map(known, n.args)))


def node_of(
    annotation: Annotation, where: str, dims: dict[str, Node] | None = None, types: dict[str, Node] | None = None
) -> Node:
    """The node of an annotation; symbols and type variables are nodes of `dims` and `types` where these are given, which grow."""

    def inner(a: Annotation) -> Node:
        return node_of(a, where, dims, types)

    def dim(d: Dim | None) -> Node:
        if d is None or (dims is not None and symbols_of(d) and not d.is_Symbol):
            return Node()
        if dims is not None and d.is_Symbol:
            return dims.setdefault(d.name, Node())
        return Node("dim", (), d, where)

    def shape(s: PartialShape | None) -> Node:
        return Node() if s is None else Node("dims", tuple(map(dim, s)), None, where)

    match annotation:
        case TensorType(s, dtype) | PartialTensor(s, dtype):
            element = Node() if dtype is None else Node("dtype", (), dtype, where)
            return Node("tensor", (element, shape(s)), None, where)
        case ShapeType(s):
            return Node("shape", (shape(s),), None, where)
        case TupleType(fields):
            return Node("tuple", tuple(map(inner, fields)), None, where)
        case DataType(name, arguments):
            return Node("data", tuple(map(inner, arguments)), name, where)
        case CallableType(parameters, returns) if parameters is not None:
            return Node("callable", (*map(inner, parameters), inner(returns)), None, where)
        case ReferenceType(value):
            return Node("reference", (inner(value),), None, where)
        case TypeVariable(name):
            return Node("variable", (), name, where) if types is None else types.setdefault(name, Node())
        case ObjectType():
            return Node("object", (), None, where)
        case NeverType() | CallableType():
            pass
    return Node()


def annotation_of(
    node: Node, dim: Callable[[Node], Dim | None], variable: Callable[[Node], Annotation]
) -> Annotation:
    """The annotation of a node: `dim` gives that of a dim of which nothing is known, `variable` that of such a type."""

    def inner(n: Node) -> Annotation:
        return annotation_of(n, dim, variable)

    def shape(n: Node) -> PartialShape | None:
        found = n.found()
        return tuple(d.label if (d := a.found()).kind else dim(d) for a in found.args) if found.kind else None

    n = node.found()
    match n.kind:
        case "tensor":
            return tensor_annotation(shape(n.args[1]), n.args[0].found().label)
        case "shape":
            return ShapeType(shape(n.args[0]))
        case "tuple":
            return TupleType(tuple(map(inner, n.args)))
        case "data":
            return DataType(n.label, tuple(map(inner, n.args)))
        case "callable":
            *given, returns = map(inner, n.args)
            return CallableType(tuple(given), returns)
        case "reference":
            return ReferenceType(inner(n.args[0]))
        case "variable":
            return TypeVariable(n.label)
        case "object":
            return ObjectType()
    return variable(n)


def text(node: Node) -> str:
    """The type as far as it is known, `_` for what is not."""
    n = node.found()
    if n.kind == "dtype":
        return str(n.label)
    if n.kind == "dim":
        return dim_text(n.label)
    if n.kind == "dims":
        return f"[{', '.join(map(text, n.args))}]"
    return str(annotation_of(n, lambda _: None, lambda _: TypeVariable("_")))


@dataclass
class Relation:
    """An operator between the nodes of its operands and of its result; operators' `relate` call its methods.

    `last` says that nothing else is left to be found, so that a rule may take what is usual: operands of one rank, say.
    """

    u: Unifier
    op: str
    args: list[Node]
    out: Node
    attrs: Mapping[str, Any]
    where: str
    last: bool = field(default=False)

    @property
    def what(self) -> str:
        return f"{self.where}: {self.op}" if self.where else self.op

    def tensor(self, node: Node) -> tuple[Node, Node]:
        """The element type and the dims of what has to be a tensor."""
        if node.found().kind != "tensor":
            self.u.unify(node, Node("tensor", (Node(), Node()), None, self.where), self.what)
        dtype, dims = node.found().args
        return dtype, dims

    def numbers(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes but for those of scalar constants, which take any element type and have no dims."""
        return [n for n in nodes if self.tensor(n)[0].found().label != "scalar"]

    def same_dtype(self, *nodes: Node) -> None:
        """All but scalar constants have one element type."""
        first, *others = (self.tensor(n)[0] for n in self.numbers(nodes)) if self.numbers(nodes) else (Node(),)
        for n in others:
            self.u.unify(first, n, self.what)

    def dtype(self, node: Node, name: str) -> None:
        self.u.unify(self.tensor(node)[0], Node("dtype", (), name, self.where), self.what)

    def same_shape(self, a: Node, b: Node) -> None:
        self.u.unify(self.tensor(a)[1], self.tensor(b)[1], self.what)

    def shape(self, node: Node) -> tuple[Node, ...] | None:
        """The dims of a tensor whose rank is known."""
        dims = self.tensor(node)[1].found()
        return dims.args if dims.kind else None

    def ranked(self, node: Node, rank: int) -> tuple[Node, ...]:
        """The dims of a tensor, which has this rank."""
        dims = self.tensor(node)[1].found()
        if len(dims.args) != rank or not dims.kind:
            self.u.unify(dims, Node("dims", tuple(Node() for _ in range(rank)), None, self.where), self.what)
        return dims.found().args

    def equal(self, a: Node, b: Node) -> None:
        """Two dims are one."""
        self.u.unify(a, b, self.what)

    def broadcast(self, operands: Sequence[Sequence[Node]], out: Sequence[Node]) -> bool:
        """Dims are pairwise equal, or 1, as NumPy has it; whether nothing is left to be found."""
        done = True
        for i in range(1, len(out) + 1):
            dims = list(dict.fromkeys(s[-i].found() for s in operands if i <= len(s)))
            wide = [d for d in dims if not _is_one(d)]
            if self.last:
                for d in wide:
                    uses = [u.found() for u in d.uses]
                    if not d.kind and uses and all(map(_is_one, uses)):
                        # every caller passes 1
                        self.equal(d, Node("dim", (), sympy.Integer(1), self.where))
                wide = [d for d in wide if not _is_one(d.found())]
            if len(wide) > 1 and (self.last or all(d.kind for d in wide)):
                for d in wide[1:]:
                    self.equal(wide[0], d)
                wide = wide[:1]
            if len(wide) > 1:
                done = False
            elif dims:
                self.equal(out[-i], wide[0] if wide else dims[0])
        return done

    def elementwise(self, operands: Sequence[Node]) -> bool:
        """The result has the shape to which the operands are broadcast; whether nothing is left to be found."""
        tensors = self.numbers(operands)
        if len(tensors) == 1:
            self.same_shape(tensors[0], self.out)
            return True
        shapes = [self.shape(n) for n in tensors]
        if self.last and None in shapes:
            # what is not known has the rank of the others, or of the result
            ranks = [len(s) for s in (*shapes, self.shape(self.out)) if s is not None]
            if not ranks:
                for n in tensors:
                    self.same_shape(n, self.out)
                return True
            shapes = [self.ranked(n, max(ranks)) for n in tensors]
        ready = [s for s in shapes if s is not None]
        if len(ready) < len(shapes):
            return False
        return self.broadcast(ready, self.ranked(self.out, max((len(s) for s in ready), default=0)))

    def reduced(self, axes: Sequence[int], keepdims: bool) -> bool:
        """The result is the operand without dims; whether nothing is left to be found."""
        x = self.args[0]
        before, after = self.shape(x), self.shape(self.out)
        if before is None and after is not None:
            before = self.ranked(x, len(after) + (0 if keepdims else len(axes)))
        if before is None:
            return False
        if not all(-len(before) <= a < len(before) for a in axes):
            return True
        gone = {a % len(before) for a in axes}
        one = Node("dim", (), sympy.Integer(1), self.where)
        kept = [one if k in gone else d for k, d in enumerate(before) if keepdims or k not in gone]
        for d, e in zip(kept, self.ranked(self.out, len(kept)), strict=True):
            self.equal(d, e)
        return True


def _is_one(node: Node) -> bool:
    return bool(node.found().kind) and node.found().label == 1
