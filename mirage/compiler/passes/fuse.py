"""Fusion by dominators for what the search did not take: elementwise, epilogue and stitch (Relax 4.2, BladeDISC 4.1).

Small fusions first, which later steps merge:

1. elementwise: an elementwise, broadcast or injective operator joins the operator that all ways of its result lead to, if
   what lies between may be computed element by element, too; a reduction ends the growth;
2. epilogue: elementwise operators behind a product or a reduction join it;
3. stitch: groups of which one reads the other become one kernel where both divide the same group dims, which the constraints
   of dims prove, whatever the sizes are (BladeDISC 4.2); results that others read, too, are results of the kernel.

What a group becomes is decided by `mirage.compiler.codegen`; a group that no kernel can compute is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from typing import Any, TypeVar

import networkx as nx

from mirage.compiler.codegen import fusible, stitchable
from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.kinds import binding_kind
from mirage.compiler.outline import Group, Outliner, is_scalar
from mirage.compiler.passes.generate import structure
from mirage.compiler.views import is_view, positions, rows
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Binding, Function, Loop, Module, OpCall, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.loops.analysis import Kind
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType

T = TypeVar("T")
#: where a function comes from
ORIGIN: AttrItems = (("origin", "fused"),)
#: operators of a kernel, at most: its code should stay readable, and compile within a second
MAX_OPERATORS = 32


def run(module: Module, context: Context) -> Module:
    builder = ModuleBuilder(module)
    # the machine reads rows of tensors in main memory where they are
    loops = [b.value for f in module for b in f.bindings if isinstance(b.value, Loop)]
    carried = {loop.body: loop.carried for loop in loops if context.kernels.target == "cpu"}
    for function in module:
        before = set(builder.functions)
        builder.add(fuse_function(function, builder, context, carried.get(function.name)))
        for name in builder.functions.keys() - before:
            context.inherit(name, function.name)
    return builder.finish(module.main)


def fuse_function(
    function: Function, builder: ModuleBuilder, context: Context, carried: int | None = None
) -> Function:
    """The function with groups of operators as calls of new functions of origin "fused".

    Of a loop's body that hands on so many `carried` values, the machine finds positions of the index, and rows there.
    """
    at = positions(function) if carried is not None else frozenset()
    found = at | rows(function, carried, at) if carried is not None else at
    blocks = list(function.blocks)
    constraints = context.of(function.name)
    for number, block in enumerate(function.blocks):
        if not block.dataflow:
            continue
        outliner = Outliner(function, number)
        groups = Fusion(outliner, constraints, at, found).groups()
        blocks[number] = outliner.outline(list(groups), builder)
    return Function(function.name, function.parameters, tuple(blocks), function.result, function.dims, function.attrs)


class Fusion:
    """The groups of the block of an outliner, as far as these constraints of its dims allow.

    What is `apart` is in no group, and what is `found` by the machine needs no kernel, if a group has nothing else.
    """

    def __init__(
        self, outliner: Outliner, constraints: Constraints, apart: Collection[Var], found: Collection[Var]
    ) -> None:
        self.outliner = outliner
        self.constraints = constraints
        self._found = found
        self.bindings = bindings = outliner.block.bindings
        self.position = {b.var: i for i, b in enumerate(bindings)}
        # the layers of a model are equal: each of their operators, and of their groups, is looked at once
        self._kinds: dict[Any, Kind] = {}
        self._fusible: dict[Any, bool] = {}
        self._stitchable: dict[Any, bool] = {}
        alone = [is_scalar(b.var.annotation) or b.var in apart for b in bindings]
        self.kinds = [Kind.OPAQUE if a else self._kind(b) for a, b in zip(alone, bindings, strict=True)]
        self.flow: nx.DiGraph[int] = nx.DiGraph()
        self.flow.add_nodes_from(range(len(bindings)))
        for i, needed in enumerate(outliner.needs):
            self.flow.add_edges_from((j, i) for j in needed)
        self.end = len(bindings)
        ends = [i for i in range(len(bindings)) if bindings[i].var in outliner.live or not self.flow.out_degree(i)]
        self.flow.add_edges_from((i, self.end) for i in ends)
        dominators = nx.immediate_dominators(self.flow.reverse(copy=False), self.end)
        self.dominator = {i: d for i, d in dominators.items() if i != self.end and d is not None}
        self.group = {i: {i} for i in range(len(bindings)) if self.kinds[i] < Kind.OPAQUE}
        # by binding, the last one of the groups that it or one before it is part of
        self._reach = list(range(len(bindings)))
        # merging goes on until nothing changes, and asks the same again
        self._asked: dict[frozenset[int], bool] = {}

    def groups(self) -> Iterator[Group]:
        """The groups; every binding that can be part of a kernel, and needs one, is in one."""
        self._elementwise()
        self._epilogues()
        self._stitch()
        seen: set[int] = set()
        for i in sorted(self.group):
            if i in seen:
                continue
            members = self._unflattened(self.group[i])
            seen |= self.group[i]
            if all(self._is_view(j) for j in members):
                continue
            whole = self._group_of(members)
            if self._is_fusible(whole):
                yield whole
                continue
            single = (self._group_of({j}) for j in sorted(members) if not self._is_view(j))
            yield from (g for g in single if self._is_fusible(g))

    def _group_of(self, members: Set[int]) -> Group:
        """These bindings with the scalar constants that they read, directly or not."""
        scalars: set[int] = set()
        todo = list(members)
        while todo:
            for v in variables(self.bindings[todo.pop()].value):
                i = self.position.get(v)
                if i is not None and i not in scalars and is_scalar(v.annotation):
                    scalars.add(i)
                    todo.append(i)
        name = f"{self.outliner.function.name}_fused"
        return Group(tuple(sorted(members)), tuple(sorted(scalars)), name, ORIGIN)

    def _is_view(self, i: int) -> bool:
        """Whether a binding needs no kernel."""
        b = self.bindings[i]
        return is_view(b.value, b.var.annotation) or b.var in self._found

    def _unflattened(self, members: Set[int]) -> Set[int]:
        """Bindings without reshapes behind them that join the last dims, of sizes that a run knows: each index of the result
        would be divided by them.
        """
        kept = set(members)
        for i in sorted(members, reverse=True):
            if self._joins_last_dims(i) and not kept & set(self.flow.successors(i)):
                kept.remove(i)
        return kept

    def _joins_last_dims(self, i: int) -> bool:
        """Whether a binding is a reshape that joins the last dim, of unknown size, with others."""
        value, after = self.bindings[i].value, self.bindings[i].var.annotation
        if not isinstance(value, OpCall) or value.op != "reshape":
            return False
        before = value.args[0].annotation
        if not isinstance(before, TensorType) or not isinstance(after, TensorType) or not before.shape or not after.shape:
            return False
        return not before.shape[-1].is_Integer and before.shape[-1] != after.shape[-1]

    def _between(self, i: int) -> set[int] | None:
        """The bindings on the ways from i to its dominator, that one excluded; None where there is no dominator."""
        d = self.dominator.get(i)
        if d is None or d == self.end:
            return None
        found = {i}
        todo = [i]
        while todo:
            for j in self.flow.successors(todo.pop()):
                if j != d and j not in found:
                    found.add(j)
                    todo.append(j)
        return found

    def _merge(self, members: Set[int]) -> bool:
        """One group of all groups of these bindings, unless it would be too large or could not be computed at once."""
        whole: set[int] = set()
        for i in members:
            if i not in self.group:
                return False
            whole |= self.group[i]
        if len(whole) > MAX_OPERATORS or not self._convex(whole):
            return False
        for i in whole:
            self.group[i] = whole
        last = max(whole)
        for i in range(min(whole), last):
            self._reach[i] = max(self._reach[i], last)
        return True

    def _convex(self, members: Set[int]) -> bool:
        """Whether no way leaves the group and comes back, through bindings or through other groups."""
        last = max(members)
        while self._reach[last] > last:
            last = self._reach[last]
        todo = [j for i in members for j in self.flow.successors(i) if j not in members]
        seen: set[int] = set()
        while todo:
            i = todo.pop()
            # from behind `last`, where no group has a binding before it, no way comes back
            if i in seen or i > last:
                continue
            reached = self.group.get(i, {i})
            if reached & members:
                return False
            seen |= reached
            # also beyond the last member: a group there may wait for one before it
            todo += [j for k in reached for j in self.flow.successors(k)]
        return True

    def _elementwise(self) -> None:
        for i in sorted(self.group):
            between = self._between(i)
            if between is None or self.kinds[self.dominator[i]] > Kind.REDUCTION:
                continue
            if all(self.kinds[j] <= Kind.INJECTIVE for j in between):
                self._merge(between | {self.dominator[i]})

    def _epilogues(self) -> None:
        for i in sorted(self.group):
            between = self._between(i)
            if between is None or self.kinds[i] not in (Kind.OUTPUT_FUSIBLE, Kind.REDUCTION):
                continue
            behind = (between | {self.dominator[i]}) - {i}
            hardest = max(self.kinds[j] for g in (self.group.get(j, {j}) for j in behind) for j in g)
            if hardest <= Kind.BROADCAST:
                self._merge({i} | behind)

    def _stitch(self) -> None:
        changed = True
        while changed:
            changed = False
            for i, j in sorted(self.flow.edges):
                if j == self.end or i not in self.group or j not in self.group or self.group[i] is self.group[j]:
                    continue
                together = self.group[i] | self.group[j]
                if len(together) > MAX_OPERATORS or not self._convex(together):
                    continue
                if self._can_stitch(frozenset(together)) and self._merge({i, j}):
                    changed = True

    def _can_stitch(self, members: frozenset[int]) -> bool:
        if members not in self._asked:
            trial = self.outliner.trial(self._group_of(members))
            self._asked[members] = _once(self._stitchable, structure(trial), lambda: stitchable(trial, self.constraints))
        return self._asked[members]

    def _is_fusible(self, group: Group) -> bool:
        trial = self.outliner.trial(group)
        return _once(self._fusible, structure(trial), lambda: fusible(trial))

    def _kind(self, b: Binding) -> Kind:
        if not isinstance(b.value, OpCall):
            return binding_kind(b)
        operands = b.value.args
        places = tuple(map(operands.index, operands))
        key = b.value.op, b.value.attrs, places, tuple(a.annotation for a in operands), b.var.annotation
        return _once(self._kinds, key, lambda: binding_kind(b))


def _once(known: dict[Any, T], key: Any, make: Callable[[], T]) -> T:
    if key not in known:
        known[key] = make()
    return known[key]
