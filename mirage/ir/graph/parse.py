"""Graph modules from text; `mirage.ir.graph.text` shows the form. Text is read with `ast`; nothing in it is executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import networkx as nx

from mirage.errors import MirageError, ParseError
from mirage.ir.annotations import Annotation
from mirage.ir.graph.check import check_function, check_module
from mirage.ir.graph.deduce import deduce, settled
from mirage.ir.graph.nodes import Binding, Block, Expr, Function, Kernel, Module, Var
from mirage.ir.graph.read import CALLS, Scope, read_atom, read_expression, read_free
from mirage.ir.syntax import at, expected, parse_statements, read_annotation

#: longest text of a module that is parsed, in characters: it may hold constants
MAX_MODULE_TEXT = 16_000_000

KernelReaders = Mapping[str, Callable[[str], Kernel]]


def parse_module(text: str, kernels: KernelReaders | None = None) -> Module:
    """The module that the text describes, checked; `kernels` reads the text of a kernel, by kind.

    An annotation behind `NAME:` may be left out, and is deduced then. Bindings keep their line as `where`. Raises ParseError
    where the text is not of the form; and what `mirage.ir.graph.check` and the operators raise, all with the line in front.
    """
    found: dict[str, Kernel] = {}
    trees: dict[str, ast.FunctionDef] = {}
    for s in parse_statements(text, MAX_MODULE_TEXT):
        match s:
            case ast.FunctionDef():
                _unused(s, s.name, found, trees)
                trees[s.name] = s
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="kernel")) as call):
                _unused(s, name, found, trees)
                found[name] = _kernel(call, kernels or {})
            case _:
                expected(s, 'def NAME(x: float32[n], ...) -> ...: or NAME = kernel("KIND", """TEXT""")')
    if not trees:
        raise ParseError("line 1: the module has no function; write def main(x: float32[n]) -> float32[n]: ...")
    main = _main(trees)
    functions: dict[str, Function] = {}
    for name in _callees_first(trees):
        functions[name] = _FunctionParser(trees[name], functions, found).parse()
    module = Module({name: functions[name] for name in trees}, found, main)
    try:
        check_module(module)
    except MirageError as e:
        raise at(trees.get(main, next(iter(trees.values()))), e) from None
    return module


def parse_function(text: str) -> Function:
    """The one function that the text describes, which calls no other; raises as `parse_module` does."""
    match parse_statements(text, MAX_MODULE_TEXT):
        case [ast.FunctionDef() as tree]:
            return _FunctionParser(tree, {}, {}).parse()
    raise ParseError("line 1: expected one function, def NAME(x: float32[n], ...) -> ...:")


def parse_annotation(text: str) -> Annotation:
    """The annotation that a text such as `float32[n, _]` or `Tuple[Shape[n], Object]` describes; raises ParseError."""
    match parse_statements(text.strip(), 10_000):
        case [ast.Expr(value=node)]:
            return read_annotation(node)
    raise ParseError(f"line 1: {text[:80]!r} is not an annotation; write one such as float32[n, 64]")


def _unused(s: ast.stmt, name: str, *taken: Mapping[str, object]) -> None:
    if any(name in names for names in taken):
        raise ParseError(f"line {s.lineno}: {name!r} is defined twice; give each function and kernel its own name")


def _kernel(call: ast.Call, readers: KernelReaders) -> Kernel:
    match call:
        case ast.Call(args=[ast.Constant(value=str() as kind), ast.Constant(value=str() as text)], keywords=[]):
            if kind not in readers:
                known = ", ".join(sorted(readers)) or "none"
                raise ParseError(
                    f"line {call.lineno}: kernels of kind {kind!r} are not known here; known kinds: {known}"
                )
            try:
                return readers[kind](text)
            except MirageError as e:
                raise type(e)(f"line {call.lineno}: in this kernel, {e}") from None
    expected(call, 'kernel("KIND", """TEXT""")')


def _main(trees: Mapping[str, ast.FunctionDef]) -> str:
    marked = [t for t in trees.values() if any(isinstance(d, ast.Name) and d.id == "main" for d in t.decorator_list)]
    if len(marked) > 1:
        raise ParseError(f"line {marked[1].lineno}: a second function is marked @main; mark one")
    return marked[0].name if marked else "main"


def _callees_first(trees: Mapping[str, ast.FunctionDef]) -> list[str]:
    """The functions, each after those that it calls."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(trees)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=form), slice=index)) if form in CALLS:
                    named = index.elts if isinstance(index, ast.Tuple) else [index]
                    graph.add_edges_from((n.id, name) for n in named if isinstance(n, ast.Name) and n.id in trees)
    try:
        return list(nx.topological_sort(graph))
    except nx.NetworkXUnfeasible:
        circle = [a for a, _ in nx.find_cycle(graph)]
        raise ParseError(
            f"line {trees[circle[0]].lineno}: functions {', '.join(circle)} call each other in a circle; "
            "recursion is not supported, use a loop"
        ) from None


class _FunctionParser:
    """Reads one function, whose callees have been read."""

    def __init__(self, tree: ast.FunctionDef, functions: Mapping[str, Function], kernels: Mapping[str, Kernel]) -> None:
        self.tree = tree
        self.functions = functions
        self.kernels = kernels
        self.scope: Scope = {}

    def parse(self) -> Function:
        attrs = self._attributes()
        parameters = tuple(self._parameters())
        *statements, last = self.tree.body
        blocks = tuple(self._blocks(statements))
        if not isinstance(last, ast.Return) or last.value is None:
            expected(last, "return NAME as the last line")
        result = read_atom(last.value, self.scope)
        function = Function(
            self.tree.name, parameters, blocks, result, tuple(a.arg for a in self.tree.args.kwonlyargs), attrs
        )
        try:
            check_function(function, self.functions, self.kernels)
        except MirageError as e:
            raise at(self.tree, e) from None
        declared = self.tree.returns
        if declared is not None and read_annotation(declared) != function.returns:
            raise ParseError(
                f"line {declared.lineno}: the result is declared as {read_annotation(declared)}, "
                f"but {ast.unparse(last.value)} is {function.returns}; correct one of them"
            )
        return function

    def _attributes(self) -> tuple[tuple[str, object], ...]:
        attrs: list[tuple[str, object]] = []
        for d in self.tree.decorator_list:
            match d:
                case ast.Name(id="main"):
                    pass
                case ast.Call(func=ast.Name(id="attrs"), args=[], keywords=keywords):
                    attrs += [(k.arg, read_free(k.value)) for k in keywords if k.arg]
                case _:
                    expected(d, "@main or @attrs(NAME=VALUE, ...)")
        return tuple(attrs)

    def _parameters(self) -> Iterator[Var]:
        a = self.tree.args
        if a.vararg or a.kwarg or a.posonlyargs or a.defaults or any(a.kw_defaults):
            expected(
                self.tree, "parameters of the form x: float32[n, 64], and behind a * extra shape parameters k: Dim"
            )
        for p in a.kwonlyargs:
            if not isinstance(p.annotation, ast.Name) or p.annotation.id != "Dim":
                expected(p, f"{p.arg}: Dim, an extra shape parameter")
        for p in a.args:
            if p.annotation is None:
                expected(p, f"an annotation, {p.arg}: float32[n, 64]")
            yield self._define(p, p.arg, read_annotation(p.annotation))

    def _define(self, node: ast.stmt | ast.arg, name: str, annotation: Annotation) -> Var:
        if name in self.scope:
            raise ParseError(f"line {node.lineno}: {name!r} is defined twice; give each value its own name")
        self.scope[name] = Var(name, annotation)
        return self.scope[name]

    def _blocks(self, statements: list[ast.stmt]) -> Iterator[Block]:
        beside: list[Binding] = []
        for s in statements:
            if not isinstance(s, ast.With):
                beside.append(self._binding(s))
                continue
            if beside:
                yield Block(tuple(beside), dataflow=False)
                beside = []
            match s.items:
                case [ast.withitem(ast.Call(ast.Name("dataflow"), [], []), None)]:
                    yield Block(tuple(self._binding(x) for x in s.body if not isinstance(x, ast.Pass)))
                case _:
                    expected(s, "with dataflow():")
        if beside:
            yield Block(tuple(beside), dataflow=False)

    def _binding(self, s: ast.stmt) -> Binding:
        where = f"line {s.lineno}"
        match s:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=given, value=ast.expr() as node):
                value = self._settled(s, read_expression(node, self.scope))
                annotation = read_annotation(given)
            case ast.Assign(targets=[ast.Name(id=name)], value=node):
                value = self._settled(s, read_expression(node, self.scope))
                annotation = self._deduced(s, value)
            case _:
                self._no_binding(s)
        return Binding(self._define(s, name, annotation), value, where)

    def _settled(self, s: ast.stmt, value: Expr) -> Expr:
        try:
            return settled(value)
        except MirageError as e:
            raise at(s, e) from None

    def _deduced(self, s: ast.stmt, value: Expr) -> Annotation:
        try:
            return deduce(value, self.functions)
        except MirageError as e:
            raise at(s, e) from None

    def _no_binding(self, s: ast.stmt) -> NoReturn:
        expected(s, "NAME: ANNOTATION = EXPRESSION")
