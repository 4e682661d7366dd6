"""Partition: maximal Lax subprograms of bounded size become functions of their own, to be superoptimized (Mirage, section 3).

A subprogram grows from its result towards the inputs: a producer joins where nothing else reads it, so that every
subprogram has one result and repeats no work. Two rules bound it:

- at most `LARGEST` operators, composite ones counted by what they expand into: the search itself cuts what is too large for it
  into pieces, where that costs least, and joins what it finds for these (`mirage.search.large`);
- a product with weights streams them and ends the growth towards the inputs at the next product, where one in the same
  kernel would gain nothing; only products of activations (attention) grow through each other. What stands between two
  products goes to the one that makes it.

Operators without an axis rule, concats, which a kernel of the search only makes inside of products, single reductions, and
groups without reduction or product stay for fusion; convolutions stay for the processor's own kernels, where these run. A
convolution ends the growth at the tensor whose windows it reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Set
from dataclasses import dataclass, field
from functools import lru_cache

from mirage.compiler.context import Context
from mirage.compiler.lax import lax_program
from mirage.compiler.outline import Group, Outliner, is_movement, is_scalar, stored_dtype
from mirage.compiler.passes.lift_constants import PREPARE
from mirage.errors import MirageError
from mirage.ir.expand import ExpandingBuilder
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Block, Function, Module, OpCall, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.operator import RENAMING, get_operator
from mirage.ir.program import AttrItems
from mirage.ir.types import DTYPES, WIDENED, TensorType
from mirage.search.large import LARGEST

#: where a function comes from
ORIGIN: AttrItems = (("origin", "lax"),)


def run(module: Module, context: Context) -> Module:
    builder = ModuleBuilder(module)
    for function in module:
        if function.attr.get("origin") == PREPARE:
            # what runs once is not worth a search
            builder.add(function)
            continue
        weights = frozenset(context.constants) if function.name == module.main else frozenset[str]()
        builder.add(partition_function(function, weights, builder, context))
    return builder.finish(module.main)


def partition_function(
    function: Function, weights: Set[str], builder: ModuleBuilder, context: Context
) -> Function:
    """The function with its Lax subprograms as calls of new functions; `weights` names its parameters that never change."""
    blocks = list(function.blocks)
    for number, block in enumerate(function.blocks):
        if not block.dataflow:
            continue
        outliner = Outliner(function, number)
        parameters = {p.name for p in function.parameters}
        groups = [
            Group(tuple(sorted(g.members)), tuple(sorted(g.copied)), f"{function.name}_lax", ORIGIN)
            for g in _Partitioner(block, outliner.live, weights, parameters, context.kernels.on_host).groups()
        ]
        kept = [g for g in groups if _searchable(outliner, g, context)]
        blocks[number] = outliner.outline(kept, builder)
    return Function(function.name, function.parameters, tuple(blocks), function.result, function.dims, function.attrs)


def _searchable(outliner: Outliner, group: Group, context: Context) -> bool:
    """Whether a group has a form over named axes; the report says why where it has none."""
    try:
        lax_program(outliner.trial(group))
    except MirageError as e:
        last = outliner.block.bindings[group.members[-1]].var.name
        context.report.fallbacks.append(f"{outliner.function.name}: {last} is not searched: {e}")
        return False
    return True


@dataclass
class _Grown:
    """A subprogram under construction: positions in the block; `through` says per member what lies between it and the root."""

    root: int
    members: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    operators: int = 0
    #: 0: no product, 1: products of activations, 2: a product with weights
    through: dict[int, int] = field(default_factory=dict)
    #: what inputs are stored in that are widened
    stored: set[str] = field(default_factory=set)


class _Partitioner:
    def __init__(
        self, block: Block, live: Set[Var], weights: Set[str], parameters: Set[str], on_host: bool = True
    ) -> None:
        self.bindings = block.bindings
        #: operators with an axis rule that others compute
        self.left = {"concat", "max", "max_pool", "sum_pool", *(["convolution"] if on_host else [])}
        self.live = live
        self.weights = weights
        self.parameters = parameters
        self.position = {b.var: i for i, b in enumerate(self.bindings)}
        self.users: dict[int, set[int]] = {i: set() for i in range(len(self.bindings))}
        for i, b in enumerate(self.bindings):
            for v in variables(b.value):
                if v in self.position:
                    self.users[self.position[v]].add(i)
        self.taken: set[int] = set()
        # views that groups read through, so that what they are of has to be there
        self.copied: set[int] = set()

    def groups(self) -> list[_Grown]:
        found = []
        for root in reversed(range(len(self.bindings))):
            if root in self.taken or not self._computes(root) or not self._used(root):
                continue
            g = self._grow(root)
            self.taken |= g.members
            if any(self._multiplies(i) for i in g.members) or (
                g.operators > 1 and any(self._reduces(i) for i in g.members)
            ):
                found.append(g)
        return found

    def _used(self, i: int) -> bool:
        return bool(self.users[i]) or self.bindings[i].var in self.live

    def _lax(self, i: int) -> bool:
        b = self.bindings[i]
        if not isinstance(b.value, OpCall):
            return False
        operator = get_operator(b.value.op)
        if b.value.op == "cast" or not operator.lax or operator.moves or b.value.op in self.left:
            return bool(stored_dtype(b))
        types = [a.annotation for a in b.value.args] + [b.var.annotation]
        known = (*DTYPES, *WIDENED, "scalar") if is_movement(b) else (*DTYPES, "scalar")
        return all(isinstance(t, TensorType) and t.dtype in known for t in types)

    def _is_read(self, i: int) -> bool:
        """Whether kernels read an operator's operand in its place: it moves elements, or widens them."""
        return is_movement(self.bindings[i]) or bool(stored_dtype(self.bindings[i]))

    def _dtype(self, i: int) -> str:
        t = self.bindings[i].var.annotation
        assert isinstance(t, TensorType)
        return t.dtype

    def _computes(self, i: int) -> bool:
        return self._lax(i) and not self._is_read(i) and not is_scalar(self.bindings[i].var.annotation)

    def _op(self, i: int) -> str:
        value = self.bindings[i].value
        assert isinstance(value, OpCall)
        return value.op

    def _product(self, i: int) -> int:
        """0: no product, 1: a product of activations, 2: one with weights."""
        if not self._multiplies(i):
            return 0
        # windows are as costly to read as weights
        return 2 if self._reads_windows(i) or any(self._weight(v) for v in variables(self.bindings[i].value)) else 1

    def _weight(self, v: Var) -> bool:
        """Whether a tensor is, but for its form, a parameter that never changes; or one that looks like it: two literal dims."""
        while v in self.position and self._is_read(self.position[v]):
            v = next(variables(self.bindings[self.position[v]].value))
        if v in self.position or v.name not in self.parameters:
            return False
        t = v.annotation
        literal = isinstance(t, TensorType) and t.rank == 2 and all(d.is_Integer for d in t.shape)
        return v.name in self.weights or literal

    def _multiplies(self, i: int) -> bool:
        return "matmul" in self._expanded(i)

    def _reduces(self, i: int) -> bool:
        return self._multiplies(i) or "sum" in self._expanded(i)

    def _expanded(self, i: int) -> tuple[str, ...]:
        value = self.bindings[i].value
        assert isinstance(value, OpCall)
        types = tuple(a.annotation for a in value.args if isinstance(a.annotation, TensorType))
        return _expansion(value.op, value.attrs, types)

    def _size(self, i: int) -> int:
        return 0 if self._is_read(i) else len(self._expanded(i))

    def _grow(self, root: int) -> _Grown:
        g = _Grown(root, {root}, operators=self._size(root), through={root: self._product(root)})
        queue = [-i for i in self._producers(root)]
        heapq.heapify(queue)
        # what windows are read of is computed before
        seen = set(self._windows(root))
        while queue:
            i = -heapq.heappop(queue)
            if i in seen:
                continue
            seen.add(i)
            if not self._joins(g, i):
                continue
            seen.update(self._windows(i))
            for j in self._producers(i):
                heapq.heappush(queue, -j)
        self._extend(g)
        return g

    def _extend(self, g: _Grown) -> None:
        """Take in the views of the result that no other group wanted."""
        while self.bindings[g.root].var not in self.live and len(self.users[g.root]) == 1:
            (user,) = self.users[g.root]
            if user in self.taken | self.copied or not is_movement(self.bindings[user]) or self._op(user) == "repeat":
                return
            g.members.add(user)
            g.root = user

    def _windows(self, i: int) -> list[int]:
        """What computes the tensor whose windows an operator reads."""
        if not self._reads_windows(i):
            return []
        value = self.bindings[i].value
        assert isinstance(value, OpCall)
        return [self.position[v] for v in value.args[:1] if isinstance(v, Var) and v in self.position]

    def _reads_windows(self, i: int) -> bool:
        return any(get_operator(op).moves for op in self._expanded(i))

    def _producers(self, i: int) -> list[int]:
        return [self.position[v] for v in variables(self.bindings[i].value) if v in self.position]

    def _joins(self, g: _Grown, i: int) -> bool:
        """Take a producer into the group, where it may be."""
        if not self._lax(i):
            return False
        if is_scalar(self.bindings[i].var.annotation):
            g.copied.add(i)
            return True
        if not self._fits_types(g, i):
            return False
        above = max(g.through[u] for u in self.users[i] if u in g.through)
        only = self.users[i] <= g.members and self.bindings[i].var not in self.live and i not in self.taken
        if self._is_read(i):
            if above == 2 and only and not self._weight(self.bindings[i].var):
                # rows that are streamed against weights should be contiguous: the producer writes them so
                return False
            if self.bindings[i].var in self.live:
                # it is made anyway
                return False
            # a view costs nothing: it may be read again elsewhere
            (g.members if only else g.copied).add(i)
            if not only:
                self.copied.add(i)
            g.through[i] = above
            return True
        if not only or g.operators + self._size(i) > LARGEST or not self._worthwhile(i, above):
            return False
        g.members.add(i)
        g.operators += self._size(i)
        g.through[i] = max(above, self._product(i))
        return True

    def _fits_types(self, g: _Grown, i: int) -> bool:
        """Whether a group can take in an operator, as it computes one type, which it widens what is stored in others to."""
        own, root, stored = self._dtype(i), self._dtype(g.root), stored_dtype(self.bindings[i])
        if not stored:
            return own == root or (own in g.stored and is_movement(self.bindings[i]))
        if root == "float32":
            g.stored.add(stored)
        return root == "float32"

    def _worthwhile(self, i: int, above: int) -> bool:
        """Whether it helps that what lies behind a product of kind `above` is computed with it."""
        product = self._product(i)
        if product:
            return above == 0 or (above == 1 and product == 1)
        if above == 0:
            return True
        # an epilogue belongs to the product before it, unless that one joins, too
        return all(self._worthwhile(j, above) for j in self._alone(i))

    def _alone(self, i: int) -> list[int]:
        """Producers, through views, that nothing else reads."""
        found = []
        for j in self._producers(i):
            if self._lax(j) and not is_scalar(self.bindings[j].var.annotation) and self.users[j] == {i}:
                found += self._alone(j) if self._is_read(j) else [j]
        return found


@lru_cache(maxsize=4096)
def _expansion(op: str, attrs: AttrItems, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    """The operators that one expands into, but for constants and movement."""
    b = ExpandingBuilder("expansion")
    b.op(op, *(b.input(f"x{i}", t) for i, t in enumerate(types)), **dict(attrs))
    free = ("input", "constant", "size", "cast", *RENAMING)
    return tuple(n.op for n in b.nodes if n.op not in free)
