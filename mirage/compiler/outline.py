"""Outlining: groups of bindings of a dataflow block become functions of their own (Relax, section 4.2).

Dims that the new function's parameters do not bind are passed as extra shape arguments (Relax, Fig. 8). Scalar constants
cost nothing, and are copied into every group that uses them; so are reshapes, transposes and repeats that a group took in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import sympy

from mirage.errors import GraphError
from mirage.ir.annotations import Annotation, dims_of, symbols_in
from mirage.ir.dims import symbol
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.deduce import new_symbols
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Block,
    Constant,
    Function,
    FunctionCall,
    MakeTuple,
    MatchCast,
    OpCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import atoms, symbols_used, variables, with_atoms
from mirage.ir.operator import RENAMING
from mirage.ir.program import AttrItems
from mirage.ir.types import WIDENED, TensorType


@dataclass(frozen=True)
class Group:
    """Bindings of one block, by position, that become a function; `copied` are positions that stay where they are, too."""

    members: tuple[int, ...]
    copied: tuple[int, ...] = ()
    hint: str = "group"
    attrs: AttrItems = ()


def is_scalar(annotation: Annotation) -> bool:
    """Whether a value is a scalar constant: a number that takes the element type of what it meets."""
    return isinstance(annotation, TensorType) and annotation.dtype == "scalar"


def is_movement(binding: Binding) -> bool:
    """Whether a binding only renames elements: over named axes it vanishes."""
    return isinstance(binding.value, OpCall) and binding.value.op in RENAMING


def stored_dtype(binding: Binding) -> str:
    """The type of what a binding casts to float32, if it is one of `WIDENED`, which kernels read in its place; else ""."""
    value = binding.value
    if not isinstance(value, OpCall) or value.op != "cast" or dict(value.attrs)["dtype"] != "float32":
        return ""
    t = value.args[0].annotation
    return t.dtype if isinstance(t, TensorType) and t.dtype in WIDENED else ""


class Outliner:
    """Outlines groups of bindings of block `number` of a function.

    `live` are the block's variables, and others, that are read outside of it.
    """

    def __init__(self, function: Function, number: int) -> None:
        self.function = function
        self.block = function.blocks[number]
        others = [b for k, block in enumerate(function.blocks) if k != number for b in block.bindings]
        self.live = {v for b in others for v in variables(b.value)}
        if isinstance(function.result, Var):
            self.live.add(function.result)
        self._defined = {b.var: i for i, b in enumerate(self.block.bindings)}
        self._readers: dict[Var, list[int]] = {}
        for i, b in enumerate(self.block.bindings):
            for v in variables(b.value):
                self._readers.setdefault(v, []).append(i)
        #: per binding those before it that it needs: for a variable, or for a dim that a cast introduces
        self.needs = [
            {self._defined[v] for v in variables(b.value) if v in self._defined} for b in self.block.bindings
        ]
        known = set(function.dims) | {s for p in function.parameters for s in symbols_in(p.annotation)}
        known |= {s for block in function.blocks[:number] for b in block.bindings for s in symbols_in(b.var.annotation)}
        casts: dict[str, int] = {}
        for i, b in enumerate(self.block.bindings):
            used = symbols_used(b.value) | symbols_in(b.var.annotation)
            self.needs[i] |= {casts[s] for s in used if s in casts}
            if isinstance(b.value, MatchCast):
                casts |= dict.fromkeys(new_symbols(b.value.annotation, known | casts.keys()), i)

    def outline(self, groups: Sequence[Group], module: ModuleBuilder) -> Block:
        """The block with each group replaced by a call of a new function, which is added to the module.

        Groups must be disjoint, and such that no two wait for each other; raises GraphError otherwise.
        """
        names = {p.name for p in self.function.parameters} | {b.var.name for b in self.function.bindings}
        bindings: list[Binding] = []
        for kind, k in self._order(groups):
            if kind == "binding":
                bindings.append(self.block.bindings[k])
                continue
            g = groups[k]
            callee, arguments, outputs = self._made(g, module)
            module.add(callee)
            call = FunctionCall(callee.name, tuple(arguments), tuple(symbol(d) for d in callee.dims))
            where = self.block.bindings[g.members[-1]].where
            if len(outputs) == 1:
                bindings.append(Binding(outputs[0], call, where))
                continue
            group = Var(_fresh(names, callee.name), callee.returns)
            bindings.append(Binding(group, call, where))
            bindings += [Binding(v, TupleItem((group,), i), where) for i, v in enumerate(outputs)]
        return Block(tuple(bindings), self.block.dataflow)

    def trial(self, group: Group) -> Function:
        """The function that a group would become; raises GraphError where nothing reads its results."""
        return self._made(group, ModuleBuilder())[0]

    def _order(self, groups: Sequence[Group]) -> list[tuple[str, int]]:
        """The groups, and the bindings that are in none, such that each comes behind those that it reads."""
        bindings = self.block.bindings
        unit_of = {i: ("group", k) for k, g in enumerate(groups) for i in g.members}
        order: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
        first: dict[tuple[str, int], int] = {}
        for i in range(len(bindings)):
            unit = unit_of.get(i, ("binding", i))
            first.setdefault(unit, i)
            order.add_node(unit)
        for unit in list(order.nodes):
            inside = [*groups[unit[1]].members, *groups[unit[1]].copied] if unit[0] == "group" else [unit[1]]
            for i in inside:
                for j in self.needs[i] - set(inside):
                    order.add_edge(unit_of.get(j, ("binding", j)), unit)
        try:
            return list(nx.lexicographical_topological_sort(order, key=first.__getitem__))
        except nx.NetworkXUnfeasible:
            raise GraphError(
                f"{self.function.name}: groups of bindings wait for each other; make them convex"
            ) from None

    def _outputs(self, group: Group) -> list[Var]:
        inside = {*group.members, *group.copied}
        own = (self.block.bindings[i].var for i in group.members)
        # what copies of other groups read is read by the originals as well
        found = [v for v in own if v in self.live or any(i not in inside for i in self._readers.get(v, ()))]
        if not found:
            last = self.block.bindings[group.members[-1]].var
            raise GraphError(f"group of {last.name}: nothing reads its results")
        return found

    def _made(self, group: Group, module: ModuleBuilder) -> tuple[Function, list[Var | Constant], list[Var]]:
        """The function of a group under a name that is new to the module, what its parameters are given, and its results."""
        outputs = self._outputs(group)
        inside = [self.block.bindings[i] for i in sorted({*group.members, *group.copied})]
        own = {b.var for b in inside}
        read = (a for b in inside for a in atoms(b.value) if isinstance(a, Var | Constant))
        arguments = list(dict.fromkeys(a for a in read if a not in own))
        builder = FunctionBuilder(module.fresh(group.hint), module.functions)
        builder.names |= {b.var.name for b in inside}
        new: dict[Atom, Atom] = {}
        for a in arguments:
            # kernels read tensors that the compiler knows as any others
            if isinstance(a, Var):
                new[a] = builder.parameter(a.name, a.annotation)
            else:
                new[a] = builder.fresh_parameter("constant", a.annotation)
        for b in inside:
            value = with_atoms(b.value, lambda a: new.get(a, a))
            new[b.var] = builder.bind(Binding(Var(b.var.name, b.var.annotation), value, b.where))
        needed = {s for b in inside for s in (*symbols_used(b.value), *symbols_in(b.var.annotation))}
        needed |= {s for a in arguments for s in symbols_in(a.annotation)}
        dims = tuple(sorted(needed - bound_symbols(a.annotation for a in arguments)))
        results = tuple(new[v] for v in outputs)
        result = results[0] if len(results) == 1 else builder.emit(MakeTuple(results), name="results")
        return builder.finish(result, dims=dims, attrs=group.attrs), arguments, outputs


def _fresh(names: set[str], hint: str) -> str:
    name, k = hint, 0
    while name in names:
        name, k = f"{hint}_{k}", k + 1
    names.add(name)
    return name


def bound_symbols(annotations: Iterable[Annotation]) -> set[str]:
    """The symbols that stand alone as a dim of a parameter, so that an argument's shape binds them."""
    return {d.name for a in annotations for d in dims_of(a) if isinstance(d, sympy.Symbol)}
