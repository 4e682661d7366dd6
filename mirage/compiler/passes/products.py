"""What the passes that join products share: which products can be joined, and in what order bindings stand afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.lift_constants import constant_values
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Binding, Constant, Expr, Function, MatchCast, Module, OpCall, Var
from mirage.ir.graph.traverse import symbols_used, variables
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.operator import REGISTRY, Elementwise
from mirage.ir.types import TensorType

#: operands of a concat
MOST_JOINED = 16


@dataclass(frozen=True)
class Product:
    """A matmul of two tensors of known shapes; which of them are constant."""

    binding: Binding
    left: Atom
    right: Atom
    left_type: TensorType
    right_type: TensorType
    type: TensorType
    constant: tuple[bool, bool]


def is_elementwise(expr: Expr) -> bool:
    """Whether an expression applies an operator that acts on each element."""
    return isinstance(expr, OpCall) and isinstance(REGISTRY.get(expr.op), Elementwise | GraphElementwise)


class Block:
    """The bindings of a dataflow block that a pass changes, with who reads what.

    `constants` are variables that depend on constants only.
    """

    def __init__(self, bindings: Sequence[Binding], function: Function, constants: Collection[Var]) -> None:
        self.bindings = list(bindings)
        self.readers: dict[Var, list[Binding | None]] = defaultdict(list)
        for b in function.bindings:
            for v in variables(b.value):
                self.readers[v].append(b)
        if isinstance(function.result, Var):
            self.readers[function.result].append(None)
        self.constants = constants

    def products(self) -> list[Product]:
        """The products whose results are read by elementwise operators only, so that reading a slice of one costs nothing."""
        found: list[Product] = []
        for b in self.bindings:
            match b.value:
                case OpCall("matmul", (left, right)) if isinstance(b.var.annotation, TensorType):
                    x, y = left.annotation, right.annotation
                    fixed = self._fixed(left), self._fixed(right)
                    if not isinstance(x, TensorType) or not isinstance(y, TensorType):
                        continue
                    if self._fused(b.var):
                        found.append(Product(b, left, right, x, y, b.var.annotation, fixed))
        return found

    def _fixed(self, atom: Atom) -> bool:
        return isinstance(atom, Constant) or atom in self.constants

    def _fused(self, v: Var) -> bool:
        return all(b is not None and is_elementwise(b.value) for b in self.readers[v])

    def reached(self, v: Var) -> set[Var]:
        """The results of elementwise operators that a variable flows into through such operators."""
        found: set[Var] = set()
        todo = [v]
        while todo:
            for b in self.readers[todo.pop()]:
                if b is not None and b.var not in found and isinstance(b.value, OpCall) and is_elementwise(b.value):
                    found.add(b.var)
                    todo.append(b.var)
        return found

    def independent(self, group: Sequence[Product]) -> bool:
        """Whether none of the products needs the result of another."""
        graph = _dependencies(self.bindings)
        place = {b.var: i for i, b in enumerate(self.bindings)}
        places = {place[p.binding.var] for p in group}
        return not any(nx.descendants(graph, i) & places for i in places)

    def levels(self, group: Collection[Product]) -> list[list[Product]]:
        """The products in groups that are independent of each other: each needs results of earlier groups alone."""
        products = {p.binding.var: p for p in group}
        level: dict[Var, int] = {}
        casts: dict[str, int] = {}
        found: list[list[Product]] = []
        for b in self.bindings:
            used = symbols_used(b.value)
            at = max([level.get(v, 0) for v in variables(b.value)] + [casts.get(s, 0) for s in used], default=0)
            if b.var in products:
                if at == len(found):
                    found.append([])
                found[at].append(products[b.var])
                at += 1
            level[b.var] = at
            if isinstance(b.value, MatchCast):
                casts |= {s: max(at, casts.get(s, 0)) for s in used}
        return found

    def replace(self, added: Sequence[Binding], changed: Mapping[Var, Binding]) -> None:
        """Add bindings, change others, and bring all into an order again in which each follows what it needs."""
        new = [*added, *(changed.get(b.var, b) for b in self.bindings)]
        places = {b.var: i for i, b in enumerate(self.bindings)}
        after = max(places[v] for v in changed)
        key = [after] * len(added) + list(range(len(self.bindings)))
        order = nx.lexicographical_topological_sort(_dependencies(new), key=lambda i: (key[i], i))
        self.bindings = [new[i] for i in order]


def _dependencies(bindings: Sequence[Binding]) -> nx.DiGraph[int]:
    """Edges from bindings to those that need them: a variable, or a dim that a cast has introduced."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(bindings)))
    defined = {b.var: i for i, b in enumerate(bindings)}
    casts: dict[str, int] = {}
    for i, b in enumerate(bindings):
        graph.add_edges_from((defined[v], i) for v in variables(b.value) if v in defined)
        used = symbols_used(b.value)
        graph.add_edges_from((casts[s], i) for s in used if s in casts)
        if isinstance(b.value, MatchCast):
            for s in used:
                casts.setdefault(s, i)
    return graph


class Names:
    """Names that a function does not use yet."""

    def __init__(self, function: Function) -> None:
        self._builder = FunctionBuilder(function.name, {})
        self._builder.names.update(p.name for p in function.parameters)
        self._builder.names.update(b.var.name for b in function.bindings)

    def bind(self, hint: str, value: Expr) -> Binding:
        return Binding(Var(self._builder.fresh(hint), deduce(value, {})), value)


def join_products(
    module: Module,
    context: Context,
    join: Callable[[Function, Collection[Var], Mapping[str, Function], Constraints], Function],
) -> Module:
    """The module with `join` applied to each function, of whose parameters it gets those that never change."""
    functions = dict(module.functions)
    for f in module:
        names = context.constants if f.name == module.main else ()
        weights = [p for p in f.parameters if p.name in names]
        functions[f.name] = join(f, weights, module.functions, context.of(f.name))
    return Module(functions, module.kernels, module.main)


def join_in_blocks(
    function: Function,
    weights: Collection[Var],
    functions: Mapping[str, Function],
    join: Callable[[Block, Names], bool],
) -> Function:
    """The function with `join` applied to its dataflow blocks; it says whether it changed one."""
    constants = {*weights, *constant_values(function, weights, functions)}
    names = Names(function)
    changed: dict[int, Block] = {}
    for i, old in enumerate(function.blocks):
        block = Block(old.bindings, function, constants)
        if old.dataflow and join(block, names):
            changed[i] = block
    return _rebuilt(function, changed, functions) if changed else function


def _rebuilt(function: Function, blocks: Mapping[int, Block], functions: Mapping[str, Function]) -> Function:
    """The function with blocks, by number, replaced."""
    builder = FunctionBuilder(function.name, functions)
    builder.parameters.extend(function.parameters)
    builder.names.update(p.name for p in function.parameters)
    for i, old in enumerate(function.blocks):
        builder.bind_all(blocks[i].bindings if i in blocks else old.bindings)
    return builder.finish(function.result, dims=function.dims, attrs=function.attrs)
