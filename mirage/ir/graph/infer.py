"""Inference of the annotations of parameters that have none, from definitions and uses (Relay, section 3.2).

First every binding of every function makes nodes and relations (`mirage.ir.unknowns`), then the relations are solved, also
through functions that call themselves, then what is found of the parameters is written down. Callers and a function share the
types of its parameters, but for dims: those are the function's own, and every call may have others. Where the definition alone
says of which types a function is, and some of these may be any, it has type variables, and every call has types of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase

import networkx as nx

from mirage.errors import InferenceError
from mirage.ir.annotations import Annotation, NeverType, TupleType, TypeVariable, parts, symbols_in
from mirage.ir.data import DataDeclaration
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import (
    Atom,
    CallValue,
    Closure,
    Construct,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    OpCall,
    PackedCall,
    ReferenceCall,
    ShapeCall,
    ShapeOf,
    TupleItem,
    Var,
)
from mirage.ir.graph.order import components
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern
from mirage.ir.graph.sketch import Line, Sketch
from mirage.ir.graph.traverse import symbols_used
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType
from mirage.ir.unknowns import Node, Relation, Unifier, annotation_of, known, node_of, text, within


def infer(sketches: Mapping[str, Sketch], main: str) -> dict[str, list[Annotation]]:
    """The annotations of the parameters of the functions of which one has none.

    Raises InferenceError where two uses tell different types, or nothing tells the one of a parameter of the function `main`.
    """
    found: dict[str, list[Annotation]] = {}
    left = dict(sketches)
    # a value is of one type
    values = {v.function for s in sketches.values() for line in s.lines if isinstance(v := line.value, Closure)}
    for names in components(_calls(sketches)):
        group = [sketches[n] for n in names]
        needed = nx.descendants(_calls(left), names[0]) | set(names)
        # in the order of the text, so that of several contradictions always the same one is told
        reached = {n: s for n, s in left.items() if n in needed}
        if main in names or not values.isdisjoint(reached) or all(s.declared for s in group):
            continue
        # what the definitions alone tell
        inference = _Inference({n: _fresh(s) for n, s in reached.items()}, main)
        inference.run()
        for name, (parameters, returns) in inference.general(names).items():
            found[name] = parameters
            variables = [v for v, _ in left[name].parameters]
            left[name] = replace(left[name], parameters=list(zip(variables, parameters, strict=True)), returns=returns)
    inference = _Inference({n: _fresh(s) for n, s in left.items()}, main)
    inference.run()
    return found | inference.parameters()


def _fresh(s: Sketch) -> Sketch:
    return replace(s, nodes={}, returned=Node())


def _sure(node: Node) -> bool:
    """Whether all of which nothing is known in a type is a type of its own: no element type, and no rank."""
    n = node.found()
    return known(n) if n.kind in ("tensor", "shape") else all(map(_sure, n.args))


def _calls(sketches: Mapping[str, Sketch]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(sketches)
    for s in sketches.values():
        graph.add_edges_from((s.name, n) for line in s.lines for n in callees(line.value) if n in sketches)
    return graph


class _Inference:
    def __init__(self, sketches: Mapping[str, Sketch], main: str) -> None:
        self.sketches = sketches
        self.main = main
        #: the group in which functions call each other
        self.groups = {name: k for k, names in enumerate(components(_calls(sketches))) for name in names}
        self.u = Unifier()
        self.relations: list[Relation] = []
        #: what is one but for its dims: of a function, of a call, the dims of the call by those of the function, and what it is
        self.ties: list[tuple[Node, Node, dict[Node, Node], str]] = []
        #: tuples, and what their items are
        self.items: list[tuple[Node, int, Node, str]] = []

    def run(self) -> None:
        """Find what can be found."""
        for s in self.sketches.values():
            for var, a in s.parameters:
                s.nodes[var] = Node() if a is None else node_of(a, s.where)
            if s.returns is not None:
                s.returned = node_of(s.returns, s.where)
        for s in self.sketches.values():
            for line in s.lines:
                node = Node() if line.annotation is None else node_of(line.annotation, line.where)
                s.nodes[line.var] = node
                self.line(s, line, node)
            self.u.unify(s.returned, self.atom(s, s.result), f"{s.where}: the result of {s.name}")
        self.solve()

    def parameters(self) -> dict[str, list[Annotation]]:
        """The annotations of parameters of the functions of which one has none."""
        return {s.name: self.found(s)[0] for s in self.sketches.values() if not s.declared}

    def general(self, names: Sequence[str]) -> dict[str, tuple[list[Annotation], Annotation]]:
        """The annotations of functions that call each other, if they say all of which types they take: some take any type, and
        of all tensors the rank and the element type are known. None otherwise: what callers pass tells.
        """
        group = [self.sketches[n] for n in names]
        nodes = [n for s in group for n in (*(s.nodes[v] for v, _ in s.parameters), s.returned)]
        if not all(map(_sure, nodes)) or all(map(known, nodes)):
            return {}
        if any(not value.found().kind for value, *_ in self.items):
            # a tuple of who knows how many fields is no type
            return {}
        return {s.name: self.found(s) for s in group}

    def solve(self) -> None:
        """Try all relations until none finds more; then what is usual, one at a time."""
        while True:
            self.u.changed = False
            for function, call, dims, what in self.ties:
                self.tie(function, call, dims, what)
            for value, index, out, what in self.items:
                if (fields := value.found()).kind == "tuple" and index < len(fields.args):
                    self.u.unify(out, fields.args[index], what)
            self.relations = [r for r in self.relations if not get_operator(r.op).relate(r)]
            for r in self.relations:
                if self.u.changed:
                    break
                r.last = True
                get_operator(r.op).relate(r)
                r.last = False
            if not self.u.changed:
                return

    # what a binding says

    def atom(self, s: Sketch, a: Atom) -> Node:
        if isinstance(a, Var):
            return s.nodes[a]
        return node_of(a.annotation, s.where)

    def line(self, s: Sketch, line: Line, out: Node) -> None:
        """Note what a binding says of its operands and of its result, `out`."""
        value, where = line.value, line.where
        if not hasattr(value, "args"):
            self.u.unify(out, self.atom(s, value), where)
            return
        args = [self.atom(s, a) for a in value.args]
        match value:
            case OpCall(op, _, attrs) if get_operator(op).min_arity <= len(args) <= get_operator(op).max_arity:
                self.relations.append(Relation(self.u, op, args, out, dict(attrs), where))
            case FunctionCall(name):
                self.call(s, name, args, out, where)
            case If(then=then, orelse=orelse):
                self.u.unify(args[0], node_of(TensorType((), "bool"), where), f"{where}: if_else: the condition")
                for name in (then, orelse):
                    self.call(s, name, args[1:], out, where)
            case Loop(name, carried=carried, count=count):
                self.loop(s, name, args, carried, count, out, where)
            case Match(clauses=clauses):
                for c in clauses:
                    found: list[Node] = []
                    self.pattern(c.pattern, args[0], found, f"{where}: match: the pattern {c.pattern}")
                    self.call(s, c.function, [*found, *args[1:]], out, where)
            case MakeTuple():
                self.u.unify(out, Node("tuple", tuple(args), None, where), f"{where}: a tuple")
            case TupleItem(index=index):
                self.items.append((args[0], index, out, f"{where}: item {index}"))
            case Construct(data, index):
                self.construct(data, index, args, out, where)
            case Closure(name):
                self.closure(s, name, args, out, where)
            case CallValue():
                function = Node("callable", (*args[1:], out), None, where)
                self.u.unify(args[0], function, f"{where}: call of a value")
            case ReferenceCall(kind):
                held = args[-1] if kind != "read" else out
                place = out if kind == "new" else args[0]
                self.u.unify(place, Node("reference", (held,), None, where), f"{where}: {kind} of a reference")
                if kind == "write":
                    self.u.unify(out, args[0], f"{where}: write of a reference")
            case MatchCast(annotation=a) | PackedCall(annotation=a):
                self.u.unify(out, node_of(a, where), where)
            case LibraryCall(out=types) | KernelCall(out=types):
                self.u.unify(out, node_of(types[0] if len(types) == 1 else TupleType(types), where), where)
            case ShapeOf():
                self.u.unify(args[0], Node("tensor", (Node(), dims := Node()), None, where), f"{where}: shape")
                self.u.unify(out, Node("shape", (dims,), None, where), f"{where}: shape")
            case ShapeCall(rank=rank):
                self.u.unify(out, Node("shape", (Node("dims", tuple(Node() for _ in range(rank))),), None, where), where)

    def call(self, caller: Sketch, name: str, args: Sequence[Node], out: Node, where: str) -> None:
        """A call of a function of the module. The number of arguments is checked where it is deduced.

        A function that calls itself has, in these calls, the dims that it has.
        """
        s = self.sketches.get(name)
        if s is None or len(args) != len(s.parameters):
            return
        itself = self.groups[caller.name] == self.groups[name]
        dims: dict[Node, Node] = {}
        types: dict[str, Node] = {}
        symbols: dict[str, Node] = {}

        def same(own: Node, given: Node, what: str) -> None:
            if itself:
                self.u.unify(own, given, what)
            else:
                self.ties.append((own, given, dims, what))

        for (var, a), given in zip(s.parameters, args, strict=True):
            what = f"{where}: call of {name}: argument {var.name!r}"
            if a is None:
                same(s.nodes[var], given, what)
            else:
                self.u.unify(node_of(a, s.where, symbols, types), given, what)
        what = f"{where}: the result of {name}"
        if s.returns is None:
            same(s.returned, out, what)
        else:
            self.u.unify(node_of(s.returns, s.where, symbols, types), out, what)

    def loop(self, s: Sketch, name: str, args: list[Node], carried: int, count: Dim | None, out: Node, where: str) -> None:
        if count is None:
            self.u.unify(args.pop(0), node_of(TensorType((), "int64"), where), f"{where}: loop: the count")
        state = args[0] if carried == 1 else Node("tuple", tuple(args[:carried]), None, where)
        self.tied(state, out, f"{where}: the result of the loop")
        after = Node()
        self.call(s, name, [node_of(TensorType((), "int64"), where), *args], after, where)
        self.tied(state, after, f"{where}: what goes into and comes out of {name}")

    def tied(self, a: Node, b: Node, what: str) -> None:
        """Two values are of one type, but for dims."""
        self.ties.append((a, b, {}, what))

    def pattern(self, pattern: Pattern, given: Node, found: list[Node], what: str) -> None:
        """The nodes of what a pattern binds in values of a type."""
        match pattern:
            case Bind():
                found.append(given)
            case Case(data, index, inner) if len(inner) == len(data.constructors[index].fields):
                arguments = tuple(Node() for _ in data.parameters)
                self.u.unify(given, Node("data", arguments, data.name), what)
                types = dict(zip(data.parameters, arguments, strict=True))
                for p, (_, a) in zip(inner, data.constructors[index].fields, strict=True):
                    self.pattern(p, node_of(a, "", None, types), found, what)
            case Fields(inner):
                fields = tuple(Node() for _ in inner)
                self.u.unify(given, Node("tuple", fields), what)
                for p, n in zip(inner, fields, strict=True):
                    self.pattern(p, n, found, what)

    def construct(self, data: DataDeclaration, index: int, args: Sequence[Node], out: Node, where: str) -> None:
        constructor = data.constructors[index]
        if len(args) != len(constructor.fields):
            return
        types = {p: Node() for p in data.parameters}
        for (name, wanted), given in zip(constructor.fields, args, strict=True):
            self.u.unify(node_of(wanted, where, None, types), given, f"{where}: {constructor.name}: field {name!r}")
        self.u.unify(Node("data", tuple(types.values()), data.name, where), out, f"{where}: {constructor.name} of {data.name}")

    def closure(self, caller: Sketch, name: str, captured: Sequence[Node], out: Node, where: str) -> None:
        s = self.sketches.get(name)
        if s is None or len(captured) > len(s.parameters):
            return
        given = [Node() for _ in s.parameters[: len(s.parameters) - len(captured)]]
        returned = Node()
        self.call(caller, name, [*given, *captured], returned, where)
        self.u.unify(out, Node("callable", (*given, returned), None, where), f"{where}: closure of {name}")

    # what is one but for its dims

    def tie(self, function: Node, call: Node, dims: dict[Node, Node], what: str) -> None:
        a, b = function.found(), call.found()
        if a is b or not (a.kind or b.kind):
            return
        for told, open_ in ((a, b), (b, a)):
            if not open_.kind:
                if within(open_, told):
                    raise InferenceError(
                        f"{what}: it is {text(told)} around a {text(open_)} of the call before, so that the type would grow with "
                        "every call; annotate the parameters, or make what grows a data type"
                    )
                inner = tuple(Node() for _ in told.args)
                self.u.unify(open_, Node(told.kind, inner, told.label, told.where) if inner else told, what)
        a, b = function.found(), call.found()
        if (a.kind, a.label, len(a.args)) != (b.kind, b.label, len(b.args)):
            # which names both sides
            self.u.unify(a, b, what)
        elif a is not b:
            for x, y in zip(a.args, b.args, strict=True):
                if a.kind == "dims":
                    self.tie_dims(x.found(), y.found(), dims, what)
                else:
                    self.tie(x, y, dims, what)

    def tie_dims(self, a: Node, b: Node, dims: dict[Node, Node], what: str) -> None:
        """A dim of a function, and that of a call: it is the same wherever the function has the same."""
        if not any(u.found() is b for u in a.uses):
            a.uses.append(b)
        same = next((n for d, n in dims.items() if d.found() is a), None)
        if same is None:
            dims[a] = b
        else:
            self.u.unify(same, b, what)

    # what is found

    def found(self, s: Sketch) -> tuple[list[Annotation], Annotation]:
        """The annotations of the parameters, and of the result as far as it is known."""
        taken = self.symbols(s)
        names = (n for k in range(1 << 16) for n in (f"d{k}",) if n not in taken)
        letters = iter(c for c in ascii_lowercase if c not in self.variables(s))
        dims: dict[Node, Dim] = {}
        types: dict[Node, Annotation] = {}
        annotations: list[Annotation] = []
        for var, a in s.parameters:
            what = f"{s.where}: {s.name}: parameter {var.name!r}"

            def dim(n: Node) -> Dim:
                return dims.setdefault(n, dims.get(n) or symbol(next(names)))

            def variable(n: Node, what: str = what) -> Annotation:
                if s.name == self.main:
                    raise InferenceError(f"{what}: nothing tells its type; annotate it")
                if n not in types:
                    types[n] = TypeVariable(next(letters))
                return types[n]

            if a is None:
                node = s.nodes[var].found()
                self.check_tensors(node, what)
                a = annotation_of(node, dim, variable)
            annotations.append(a)
        # a type that only the result has is of no value, or not known yet
        return annotations, annotation_of(s.returned, lambda _: None, lambda n: types.get(n, NeverType()))

    def check_tensors(self, node: Node, what: str) -> None:
        n = node.found()
        if n.kind == "tensor" and not known(n):
            missing = "element type" if not n.args[0].found().kind else "rank"
            raise InferenceError(f"{what} is a tensor, and nothing tells its {missing}; annotate it")
        for a in n.args:
            self.check_tensors(a, what)

    @staticmethod
    def symbols(s: Sketch) -> set[str]:
        """The names that a function has for dims and values."""
        given = [a for _, a in s.parameters] + [line.annotation for line in s.lines] + [s.returns]
        found = {*s.dims, *(v.name for v in s.nodes)}
        return found.union(*(symbols_in(a) for a in given if a), *(symbols_used(line.value) for line in s.lines))

    @staticmethod
    def variables(s: Sketch) -> set[str]:
        given = [a for _, a in s.parameters] + [s.returns]
        return {p.name for a in given if a for p in parts(a) if isinstance(p, TypeVariable)}
