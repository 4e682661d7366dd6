"""MuGraphs from text; `mirage.mugraph.text` shows the form. Text is read with `ast`; nothing in it is executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mirage.errors import MirageError, ParseError
from mirage.ir.axes import AxisDims, AxisInput, AxisOutput
from mirage.ir.moves import Move, Moves
from mirage.ir.operator import REDUCTIONS, Level, get_operator
from mirage.ir.syntax import at, expected, parse_statements, read_attribute, read_dim, read_dtype
from mirage.ir.trees import expression
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role, partial_axis
from mirage.mugraph.text import dims_text, map_text, part_names
from mirage.mugraph.validate import validate

#: longest text of a muGraph that is parsed, in characters
MAX_MUGRAPH_TEXT = 1_000_000

_HEAD = "def NAME(x: float32[m, k], *, m=m, k=4096) -> [m]:"
_STATEMENT = "NAME: [AXES] = OPERATOR(...), with kernel(...) as NAME:, for AXES in loop:, store(...) or return NAME"
_SHAPE = "a list of products of axes, such as [m.tile, h*d8]"


def is_mugraph(text: str) -> bool:
    """Whether a text is a muGraph's, and no other program's."""
    try:
        tree = parse_statements(text, MAX_MUGRAPH_TEXT)[0]
    except (ParseError, IndexError):
        return False
    return isinstance(tree, ast.FunctionDef) and isinstance(tree.returns, ast.List | ast.Tuple)


def parse_mugraph(text: str) -> MuGraph:
    """The muGraph that the text describes, validated; it does what it says, whatever it is meant to do.

    The maps of the text may be left out, as the shapes say the same. Raises ParseError where the text is not of the form, or a
    shape or a map of it contradicts the others, with the line; GraphError where the muGraph breaks a rule, and what operators
    raise for their attributes.
    """
    match parse_statements(text, MAX_MUGRAPH_TEXT):
        case [ast.FunctionDef(returns=ast.expr()) as tree]:
            return _read(tree)
    raise ParseError(f"line 1: expected one muGraph, {_HEAD}")


def _read(tree: ast.FunctionDef) -> MuGraph:
    assert tree.returns is not None
    sizes = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
    axes = {a.arg: read_dim(size or expected(a, "an axis with its size, such as m=m")) for a, size in sizes}
    inputs, dtype = _inputs(tree)
    shapes = tree.returns.elts if isinstance(tree.returns, ast.Tuple) else [tree.returns]
    results = [_dims(shape) for shape in shapes]
    kernel = _GraphReader(Level.KERNEL, {})
    for k, x in enumerate(inputs):
        kernel.define(tree.args.args[k], x.name, kernel.add(Node("input", (), (x.dims,), (("index", k),))))
    *statements, last = tree.body
    kernel.read(statements)
    match last:
        case ast.Return(value=ast.expr() as value):
            returned = value.elts if isinstance(value, ast.Tuple) else [value]
        case _:
            expected(last, "return NAME as the last line")
    if len(returned) != len(results):
        expected(last, f"{len(results)} results, as many as shapes behind ->")
    kernel.outputs = [kernel.tensor(x) for x in returned]
    outputs = tuple(AxisOutput(r.node, dims) for r, dims in zip(kernel.outputs, results, strict=True))
    graph = MuGraph(tree.name, axes, tuple(inputs), kernel.finished(), outputs, dtype)
    validate(graph)
    kernel.check_claims()
    return graph


def _inputs(tree: ast.FunctionDef) -> tuple[list[AxisInput], str]:
    """The inputs, and their element type."""
    found: dict[str, AxisInput] = {}
    dtype = ""
    for parameter in tree.args.args:
        stored, annotation = _stored(parameter.annotation)
        moves, read = _moves(annotation)
        match read:
            case ast.Subscript(value=ast.Name(id=kind), slice=shape) if parameter.arg not in found:
                argument = parameter.arg
                if kind in found and not stored:
                    argument, stored = found[kind].argument, found[kind].dtype
                elif (dtype and kind != dtype) or moves:
                    expected(parameter, f"the element type {dtype} or an earlier input")
                else:
                    dtype = read_dtype(kind, shape)
                dims = () if isinstance(shape, ast.Tuple) and not shape.elts else _dims(_listed(shape))
                found[parameter.arg] = AxisInput(parameter.arg, dims, argument, moves, stored)
            case _:
                expected(parameter, "an input of its own name with its axes, such as x: float32[m, k]")
    if not dtype:
        expected(tree, f"at least one input: {_HEAD}")
    return list(found.values()), dtype


def _stored(annotation: ast.expr | None) -> tuple[str, ast.expr | None]:
    """What an input is stored in if it is cast, else "", and its annotation with the type that it is cast to."""
    match annotation:
        case ast.Subscript(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=stored), attr="cast"),
                args=[],
                keywords=[ast.keyword(arg="dtype", value=ast.Constant(value=str(dtype)))],
            ) as call
        ):
            kind = ast.copy_location(ast.Name(dtype, ast.Load()), call)
            whole = ast.Subscript(kind, annotation.slice, annotation.ctx)
            return read_dtype(stored, call), ast.copy_location(whole, annotation)
    return "", annotation


def _moves(annotation: ast.expr | None) -> tuple[Moves, ast.expr | None]:
    """The operators that move the elements of what an input reads, and its annotation without them."""
    if not isinstance(annotation, ast.Subscript):
        return (), annotation
    found: list[Move] = []
    read = annotation.value
    while isinstance(read, ast.Call) and isinstance(read.func, ast.Attribute):
        given = {k.arg: k.value for k in read.keywords if k.arg is not None}
        if read.args or len(given) < len(read.keywords):
            expected(read, "attributes by name, such as windows(kernel=(3, 3), strides=(1, 1), dilations=(1, 1))")
        try:
            move = Move(read.func.attr, ())
            found.insert(0, Move(move.op, tuple(move.operator.check_attrs(dict(_attributes(move.op, read, given))).items())))
        except MirageError as e:
            raise at(read, e) from None
        read = read.func.value
    return tuple(found), ast.copy_location(ast.Subscript(read, annotation.slice, annotation.ctx), annotation)


def _listed(node: ast.expr) -> ast.List:
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    return ast.copy_location(ast.List(elements, ast.Load()), node)


class _GraphReader:
    """Reads one graph. `operands` are the positions of its inputs by their names in the surrounding graph."""

    def __init__(self, level: Level, operands: Mapping[str, list[int]]) -> None:
        self.level = level
        self.operands = {name: list(places) for name, places in operands.items()}
        self.nodes: list[Node] = []
        self.outputs: list[Ref] = []
        self.roles: dict[str, Role] = {}
        self.scope: dict[str, Ref] = {}
        self.loop: list[str] = []
        #: what the text says of the graph that follows from the rest, each with what it should be
        self.claims: list[tuple[ast.expr, str, Callable[[Graph], str]]] = []
        self.inner: list[_GraphReader] = []
        #: the statements in the loop that are to run in it, with their nodes
        self.looped: list[tuple[ast.stmt, int]] = []
        self._graph: Graph | None = None

    def read(self, statements: list[ast.stmt], looped: bool = False) -> None:
        for s in statements:
            match s:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=shape, value=ast.Call(func=ast.Name(id=op)) as call):
                    i = self.operator(op, call, shape)
                    self.define(s, name, i)
                    if looped and op != "accumulate":
                        self.looped.append((s, i))
                case ast.With(items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=ast.expr() as names)]):
                    self.nested(s, call, names)
                    if looped:
                        self.looped.append((s, len(self.nodes) - 1))
                case ast.For(target=target, iter=ast.Name(id="loop"), body=body, orelse=[]) if self.level is not Level.KERNEL:
                    if looped or self.loop:
                        expected(s, "one loop in a graph; name all its axes: for t, u in loop:")
                    axes = [_axis(a) for a in (target.elts if isinstance(target, ast.Tuple) else [target])]
                    self.loop = _different(target, axes)
                    self.read(body, looped=True)
                case ast.Pass():
                    pass
                case _:
                    expected(s, _STATEMENT)

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def define(self, where: ast.stmt | ast.arg | ast.expr, name: str, node: int, out: int = 0) -> None:
        if name in self.scope:
            raise ParseError(f"line {where.lineno}: {name!r} is defined twice; give each tensor its own name")
        self.scope[name] = Ref(node, out)

    def tensor(self, node: ast.expr) -> Ref:
        if isinstance(node, ast.Name) and node.id in self.scope:
            return self.scope[node.id]
        expected(node, f"a tensor that is defined above: {', '.join(self.scope) or 'there is none yet'}")

    def operator(self, op: str, call: ast.Call, shape: ast.expr) -> int:
        """Add the node of a call, whose result has this shape."""
        given = {k.arg: k.value for k in call.keywords if k.arg is not None}
        if len(given) < len(call.keywords):
            expected(call, "arguments by name; none of them twice, and no **")
        dims = (_dims(shape),)
        i = len(self.nodes)
        self.claims.append((shape, "", lambda graph: dims_text(dims[0], part_names(graph, i))))
        match op:
            case "load" if self.level is not Level.KERNEL:
                self.claim(given, "imap", lambda graph: map_text(graph.imap(i)))
                self.claim(given, "fmap", lambda graph: map_text(graph.fmap(i)))
                node = Node("input", (), dims, (("index", self.operand(call)),))
            case "accumulate":
                self.claim(given, "fmap", lambda graph: map_text(graph.fmap(i)))
                along = given.pop("along", None)
                over = _axes(given.pop("over")) if "over" in given else list(self.loop)
                if over != self.loop or not self.loop:
                    expected(call, f"over=[{', '.join(self.loop)}], the axes of the loop, or along=AXIS, one of them")
                axis = self.loop[0] if along is None else _axis(along)
                mode = "sum" if along is None else "concat"
                node = Node("accumulator", self.tensors(call), dims, (("mode", mode), ("axis", axis)))
            case "concat":
                into, along = given.pop("into", None), given.pop("along", None)
                if into is None or along is None:
                    expected(call, "concat(x, y, along=[n, k], into=AXIS)")
                node = Node("concat", self.tensors(call), dims, joined=(_axis(into), tuple(_axes(along))))
            case _:
                reduce = tuple(_axes(given.pop("over"))) if "over" in given else ()
                node = Node(op, self.tensors(call), dims, _attributes(op, call, given), reduce)
                given = {}
        if given:
            expected(call, f"{op} without {', '.join(given)}")
        return self.add(node)

    def tensors(self, call: ast.Call) -> tuple[Ref, ...]:
        return tuple(map(self.tensor, call.args))

    def operand(self, call: ast.Call) -> int:
        """The position of what is loaded; of a tensor that is passed twice, the first place that is not loaded yet."""
        match call.args:
            case [ast.Name(id=name)] if self.operands.get(name):
                return self.operands[name].pop(0)
        left = ", ".join(name for name, places in self.operands.items() if places)
        expected(call, f"load(NAME) of one that is passed and not loaded yet: {left or 'there is none'}")

    def claim(self, given: dict[str, ast.expr], name: str, text: Callable[[Graph], str]) -> None:
        if (value := given.pop(name, None)) is not None:
            self.claims.append((value, f"{name}=", text))

    def nested(self, s: ast.With, call: ast.Call, names: ast.expr) -> None:
        """Add the node of a graph one level down."""
        level, word = {Level.KERNEL: (Level.BLOCK, "kernel"), Level.BLOCK: (Level.THREAD, "threads")}.get(self.level, (None, ""))
        match call:
            case ast.Call(func=ast.Name(id=found), args=args, keywords=[ast.keyword(arg="grid", value=grid)]) if found == word:
                pass
            case _:
                expected(call, f"{word}(x, ..., grid=[AXES])" if word else "operators alone in a thread graph")
        assert level is not None
        places: dict[str, list[int]] = {}
        for k, x in enumerate(args):
            self.tensor(x)
            places.setdefault(ast.unparse(x), []).append(k)
        inner = _GraphReader(level, places)
        stores = [x for x in s.body if _is_store(x)]
        inner.read([x for x in s.body if not _is_store(x)])
        inner.take_roles(_different(grid, _axes(grid)))
        dims = tuple(self.store(store, inner, len(self.nodes), k) for k, store in enumerate(stores))
        i = self.add(Node("graph", self.tensors(call), dims, graph=inner.finished()))
        self.inner.append(inner)
        targets = names.elts if isinstance(names, ast.Tuple) else [names]
        if len(targets) != len(dims):
            expected(names, f"{len(dims)} names, one per store")
        for k, name in enumerate(targets):
            if not isinstance(name, ast.Name):
                expected(name, "a name")
            self.define(name, name.id, i, k)

    def store(self, s: ast.stmt, inner: _GraphReader, node: int, out: int) -> AxisDims:
        """The dims of a result of a graph one level down, as this one sees them."""
        match s:
            case ast.Expr(value=ast.Call(args=[x], keywords=keywords)):
                given = {k.arg: k.value for k in keywords}
                if (to := given.pop("to", None)) is not None:
                    dims = _dims(to)
                    inner.outputs.append(inner.tensor(x))
                    self.claims.append((to, "to=", lambda graph: dims_text(dims, part_names(graph, node))))
                    if (where := given.pop("omap", None)) is not None:
                        inner.claims.append((where, "omap=", lambda graph: map_text(graph.omap(out, dims))))
                    if not given:
                        return dims
        expected(s, "store(NAME, to=[AXES])")

    def take_roles(self, grid: list[str]) -> None:
        """Give every axis its role: the grid and the loop name theirs, and the others are whole."""
        for a in [*(a for a in grid if a not in self.loop), *self.loop]:
            self.roles[a] = Role.PARALLEL if a not in self.loop else Role.SPLIT if a in grid else Role.LOOP
        for n in self.nodes:
            joined = () if n.joined is None else (n.joined[0], *n.joined[1])
            for a in (*(a for k in range(len(n.dims)) for a in n.axes(k)), *n.reduce, *joined):
                self.roles.setdefault(a, Role.WHOLE)

    def finished(self) -> Graph:
        self._graph = Graph(self.level, tuple(self.nodes), tuple(self.outputs), tuple(self.roles.items()))
        return self._graph

    def check_claims(self) -> None:
        """Raises ParseError where a shape or a map does not follow from the graph, which is valid."""
        assert self._graph is not None
        for s, i in self.looped:
            if i in self._graph.after_loop:
                expected(s, "what is computed from accumulated values after the loop, not in it")
        for node, name, text in self.claims:
            follows = text(self._graph)
            if _plainly(node) != _plainly(expression(follows)):
                expected(node, f"{name}{follows}, which follows from the grid, the loop and the dims")
        for inner in self.inner:
            inner.check_claims()


def _is_store(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and ast.unparse(s.value.func) == "store"


def _attributes(op: str, call: ast.Call, given: Mapping[str, ast.expr]) -> tuple[tuple[str, Any], ...]:
    """The attributes of a call of a registered operator, in their canonical form."""
    try:
        operator = get_operator(op)
        # the axes that a reduction has as a tensor's operator are those of `over`
        kinds = {} if op in REDUCTIONS else {a.name: a.kind for a in operator.attributes}
        for name in given:
            if name not in kinds:
                expected(call, f"{op} without {name}; it takes {', '.join(kinds) or 'no attributes'}")
        found = {name: read_attribute(kinds[name], value, name) for name, value in given.items()}
        return tuple(operator.check_attrs(found).items()) if kinds else ()
    except MirageError as e:
        raise at(call, e) from None


def _dims(shape: ast.expr) -> AxisDims:
    """Dims as products of axes. Which part of an axis is seen follows from its role."""
    if not isinstance(shape, ast.List):
        expected(shape, _SHAPE)
    return tuple(tuple(_factors(d)) for d in shape.elts)


def _factors(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=1):
            pass
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case ast.Attribute(value=axis, attr="tile" | "block" | "thread"):
            yield _axis(axis)
        case _:
            yield _axis(node)


def _axis(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr="grid"):
            return partial_axis(name)
    expected(node, "an axis, such as m, or m.grid")


def _axes(node: ast.expr) -> list[str]:
    """A list of axes."""
    if not isinstance(node, ast.List):
        expected(node, "a list of axes, such as [m, n]")
    return [_axis(a) for a in node.elts]


def _different(node: ast.expr, axes: list[str]) -> list[str]:
    if len(set(axes)) < len(axes):
        expected(node, "axes of which none is named twice")
    return axes


def _plainly(node: ast.expr) -> object:
    """An expression, without what does not matter: spaces and the order of a map."""
    if isinstance(node, ast.Dict):
        return sorted((ast.unparse(k or node), ast.unparse(v)) for k, v in zip(node.keys, node.values, strict=True))
    return ast.unparse(node)
