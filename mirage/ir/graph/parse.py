"""Graph modules from text; `mirage.ir.graph.text` shows the form. Text is read with `ast`; nothing in it is executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import networkx as nx

from mirage.errors import MirageError, ParseError
from mirage.ir.annotations import Annotation, NeverType, at_least, parts
from mirage.ir.data import PRELUDE, DataDeclaration, check_declarations, constructors_of
from mirage.ir.graph.check import check_function, check_module
from mirage.ir.graph.deduce import deduce, settled
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.infer import infer
from mirage.ir.graph.nodes import Atom, Binding, Block, Expr, Function, Kernel, Module, Var
from mirage.ir.graph.order import components
from mirage.ir.graph.read import CALLS, Scope, read_atom, read_declaration, read_expression, read_free
from mirage.ir.graph.sketch import Line, Sketch
from mirage.ir.syntax import at, expected, parse_statements, read_annotation

#: longest text of a module that is parsed, in characters: it may hold constants
MAX_MODULE_TEXT = 16_000_000

#: rounds in which the results of functions that call each other are to be found
MAX_ROUNDS = 16

KernelReaders = Mapping[str, Callable[[str], Kernel]]
#: the annotations of parameters, by the name of the function
Inferred = Mapping[str, Sequence[Annotation]]


def parse_module(text: str, kernels: KernelReaders | None = None) -> Module:
    """The module that the text describes, checked; `kernels` reads the text of a kernel, by kind.

    An annotation behind `NAME:` may be left out, and is deduced then, that of a parameter from its uses and from those of the
    function (`mirage.ir.graph.infer`). Bindings keep their line as `where`. Raises ParseError
    where the text is not of the form; and what `mirage.ir.graph.check` and the operators raise, all with the line in front.
    """
    found: dict[str, Kernel] = {}
    trees: dict[str, ast.FunctionDef] = {}
    data: dict[str, DataDeclaration] = {}
    lines: dict[str, ast.ClassDef] = {}
    for s in parse_statements(text, MAX_MODULE_TEXT):
        match s:
            case ast.FunctionDef():
                _unused(s, s.name, found, trees)
                trees[s.name] = s
            case ast.ClassDef():
                _unused(s, s.name, data)
                data[s.name], lines[s.name] = read_declaration(s), s
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="kernel")) as call):
                _unused(s, name, found, trees)
                found[name] = _kernel(call, kernels or {})
            case _:
                expected(s, 'def NAME(x: float32[n], ...) -> ...: or NAME = kernel("KIND", """TEXT""")')
    if not trees:
        raise ParseError("line 1: the module has no function; write def main(x: float32[n]) -> float32[n]: ...")
    main = _main(trees)
    try:
        known = check_declarations(data)
    except MirageError as e:
        raise at(next((t for name, t in lines.items() if str(e).startswith(f"{name}:")), next(iter(lines.values()))), e) from None
    functions = _Functions(trees, found, known, _inferred(trees, known, main)).parse()
    module = Module({name: functions[name] for name in trees}, found, main, data)
    try:
        check_module(module)
    except MirageError as e:
        raise at(trees.get(main, next(iter(trees.values()))), e) from None
    return module


def parse_function(text: str) -> Function:
    """The one function that the text describes, which calls no other; raises as `parse_module` does."""
    match parse_statements(text, MAX_MODULE_TEXT):
        case [ast.FunctionDef() as tree]:
            return _FunctionParser(tree, {}, {}, PRELUDE, _inferred({tree.name: tree}, PRELUDE, tree.name)).parse()
    raise ParseError("line 1: expected one function, def NAME(x: float32[n], ...) -> ...:")


def parse_annotation(text: str) -> Annotation:
    """The annotation that a text such as `float32[n, _]` or `Tuple[Shape[n], Object]` describes; raises ParseError."""
    match parse_statements(text.strip(), 10_000):
        case [ast.Expr(value=node)]:
            return read_annotation(node)
    raise ParseError(f"line 1: {text[:80]!r} is not an annotation; write one such as float32[n, 64]")


def parse_declaration(text: str) -> DataDeclaration:
    """The data type that the text describes, with its classes if it is one of the prelude; raises ParseError."""
    match parse_statements(text, 100_000):
        case [ast.ClassDef() as tree]:
            found = read_declaration(tree)
            return PRELUDE[found.name] if found == PRELUDE.get(found.name) else found
    raise ParseError("line 1: expected one data type, class NAME(a, ...):")


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


def _calls(trees: Mapping[str, ast.FunctionDef]) -> nx.DiGraph[str]:
    """Edges from functions to the functions that they call."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(trees)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=form), slice=index)) if form in CALLS:
                    named = index.elts if isinstance(index, ast.Tuple) else [index]
                    called = [n.upper if isinstance(n, ast.Slice) else n for n in named]
                    graph.add_edges_from((name, n.id) for n in called if isinstance(n, ast.Name) and n.id in trees)
    return graph


def _inferred(trees: Mapping[str, ast.FunctionDef], data: Mapping[str, DataDeclaration], main: str) -> Inferred:
    """The annotations of the parameters of functions of which one has none."""
    if all(a.annotation is not None for t in trees.values() for a in t.args.args):
        return {}
    sketches = {name: _FunctionParser(t, {}, {}, data, {}).sketch() for name, t in trees.items()}
    return infer(sketches, main)


class _Functions:
    """Reads the functions of a module, callees first. Results of functions that call themselves are those that are declared;
    where none is, the least that fits: at first no value, then what a round of reading finds, until a round finds no more.
    """

    def __init__(
        self,
        trees: Mapping[str, ast.FunctionDef],
        kernels: Mapping[str, Kernel],
        data: Mapping[str, DataDeclaration],
        inferred: Inferred,
    ) -> None:
        self.trees = trees
        self.kernels = kernels
        self.data = data
        self.inferred = inferred
        self.functions: dict[str, Function] = {}

    def parse(self) -> dict[str, Function]:
        graph = _calls(self.trees)
        for names in components(graph):
            if len(names) == 1 and not graph.has_edge(names[0], names[0]):
                self.functions[names[0]] = self._parser(names[0]).parse()
            else:
                self._together(names)
        return self.functions

    def _parser(self, name: str) -> _FunctionParser:
        return _FunctionParser(self.trees[name], self.functions, self.kernels, self.data, self.inferred)

    def _together(self, names: Sequence[str]) -> None:
        """Functions that call each other."""
        self.functions |= {name: self._parser(name).header() for name in names}
        for _ in range(MAX_ROUNDS):
            before = [self._signature(name) for name in names]
            found = {name: self._parser(name).read() for name in names}
            # what a caller has to know: a declared result is the one
            self.functions |= {
                name: replace(f, result=self.functions[name].result) if self.trees[name].returns else f
                for name, f in found.items()
            }
            if [self._signature(name) for name in names] == before:
                break
        else:
            raise ParseError(
                f"line {self.trees[names[0]].lineno}: the result of {names[0]} is another one in every round, "
                f"{before[0][0]} at last; declare it, def {names[0]}(...) -> ..."
            )
        for name in names:
            self._parser(name).check(found[name])
        self.functions |= found

    def _signature(self, name: str) -> tuple[Annotation, bool]:
        function = self.functions[name]
        return function.returns, is_pure_function(function)


class _FunctionParser:
    """Reads one function, whose callees have been read."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        functions: Mapping[str, Function],
        kernels: Mapping[str, Kernel],
        data: Mapping[str, DataDeclaration],
        inferred: Inferred,
    ) -> None:
        self.tree = tree
        self.inferred = inferred
        self.functions = functions
        self.kernels = kernels
        self.data = data
        self.scope = Scope(constructors_of(data))

    def parse(self) -> Function:
        function = self.read()
        self.check(function)
        return function

    def header(self) -> Function:
        """The function as its callers know it before it is read."""
        declared = self.tree.returns
        result = Var(self.tree.name, NeverType() if declared is None else read_annotation(declared))
        return Function(self.tree.name, tuple(self._parameters()), (), result, self._dims())

    def _dims(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.tree.args.kwonlyargs)

    def sketch(self) -> Sketch:
        """The function before the annotations that are left out are known."""
        self._check_parameters()
        # what is not known yet is no value
        names = [(self._define(p, p.arg, NeverType()), p.annotation) for p in self.tree.args.args]
        parameters = [(var, None if a is None else read_annotation(a)) for var, a in names]
        lines = [line for s in self.tree.body[:-1] for line in self._lines(s)]
        returns = None if self.tree.returns is None else read_annotation(self.tree.returns)
        where = f"line {self.tree.lineno}"
        return Sketch(self.tree.name, parameters, lines, self._result(), returns, self._dims(), where)

    def _lines(self, s: ast.stmt) -> Iterator[Line]:
        """The bindings of a statement as they are written."""
        annotation: Annotation | None = None
        match s:
            case ast.With(body=inner):
                for b in inner:
                    if not isinstance(b, ast.Pass):
                        yield from self._lines(b)
                return
            case ast.AnnAssign(target=ast.Name(id=name), annotation=given, value=ast.expr() as node):
                annotation = read_annotation(given)
            case ast.Assign(targets=[ast.Name(id=name)], value=node):
                pass
            case _:
                self._no_binding(s)
        value = read_expression(node, self.scope)
        yield Line(self._define(s, name, NeverType()), annotation, value, f"line {s.lineno}")

    def _result(self) -> Atom:
        last = self.tree.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            expected(last, "return NAME as the last line")
        return read_atom(last.value, self.scope)

    def read(self) -> Function:
        """The function, not checked yet."""
        attrs = self._attributes()
        parameters = tuple(self._parameters())
        blocks = tuple(self._blocks(self.tree.body[:-1]))
        return Function(self.tree.name, parameters, blocks, self._result(), self._dims(), attrs)

    def check(self, function: Function) -> None:
        """Raises what is wrong with the function, or with what is declared of it."""
        try:
            check_function(function, self.functions, self.kernels, self.data)
        except MirageError as e:
            raise at(self.tree, e) from None
        declared = self.tree.returns
        if declared is not None and read_annotation(declared) != function.returns:
            last = self.tree.body[-1]
            assert isinstance(last, ast.Return) and last.value is not None
            raise ParseError(
                f"line {declared.lineno}: the result is declared as {read_annotation(declared)}, "
                f"but {ast.unparse(last.value)} is {function.returns}; correct one of them"
            )

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

    def _check_parameters(self) -> None:
        a = self.tree.args
        if a.vararg or a.kwarg or a.posonlyargs or a.defaults or any(a.kw_defaults):
            expected(
                self.tree, "parameters of the form x: float32[n, 64], and behind a * extra shape parameters k: Dim"
            )
        for p in a.kwonlyargs:
            if not isinstance(p.annotation, ast.Name) or p.annotation.id != "Dim":
                expected(p, f"{p.arg}: Dim, an extra shape parameter")

    def _parameters(self) -> Iterator[Var]:
        self._check_parameters()
        found = self.inferred.get(self.tree.name)
        for k, p in enumerate(self.tree.args.args):
            if found is not None:
                yield self._define(p, p.arg, found[k])
            elif p.annotation is not None:
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
                annotation = self._returned(name, self._deduced(s, value))
            case _:
                self._no_binding(s)
        return Binding(self._define(s, name, annotation), value, where)

    def _returned(self, name: str, found: Annotation) -> Annotation:
        """What is known of a value: of an empty list, say, that is the result, what is declared."""
        match self.tree:
            case ast.FunctionDef(returns=ast.expr() as declared, body=[*_, ast.Return(value=ast.Name(id=last))]) if last == name:
                wanted = read_annotation(declared)
                if any(isinstance(a, NeverType) for a in parts(found)) and at_least(wanted, found):
                    return wanted
        return found

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
