"""Generation: every value that a kernel can compute and that can contribute to the target.

Values are closed under the program's operators, bottom-up. A value is identified by its exact form and its abstract
expression, so that equal prefixes are built once; each keeps all the ways to derive it. A value whose abstract expression
is no subexpression of the target's is pruned (paper, section 4.3). Graphs are derivations of the target, extracted later
(`extract.py`): the set of all graphs is never written out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisNode, AxisProgram
from mirage.mugraph.graph import partial_axis
from mirage.search.abstract import Poly
from mirage.search.algebras import Algebras
from mirage.search.cost import CostModel
from mirage.search.indexed import IndexPruner
from mirage.search.plan import KernelPlan
from mirage.search.pruners import Pruner
from mirage.search.quick import QuickFilter
from mirage.search.stats import SearchStats
from mirage.verify.exact import Form


class Value:
    """A tensor that a block of one kernel can compute."""

    __slots__ = ("after", "axes", "derivations", "form", "number", "operators", "poly", "source", "varying")

    def __init__(self, number: int, form: Form, poly: Poly, axes: tuple[str, ...], varying: bool, after: bool) -> None:
        self.number = number
        self.form = form
        self.poly = poly
        #: axes of the block tensor, partial ones included
        self.axes = axes
        #: changes with the loop iteration
        self.varying = varying
        #: exists only after the loop
        self.after = after
        self.derivations: list[Derivation] = []
        #: least number of operators on a path to it
        self.operators = 0
        #: for a leaf: the program node or the earlier kernel's value that it reads
        self.source: AxisNode | Value | None = None


@dataclass(frozen=True, eq=False)
class Derivation:
    """One operator application that yields a value."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    operands: tuple[Value, ...]
    reduce: tuple[str, ...]
    joined: tuple[str, tuple[str, ...]] | None
    cost: float


@dataclass(frozen=True)
class Vocabulary:
    """The operators that a search may use: those of the program, on any operands."""

    unary: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    binary: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    sums: tuple[tuple[str, ...], ...]
    matmuls: tuple[tuple[str, ...], ...]
    concats: tuple[AxisNode, ...]

    @staticmethod
    def of(program: AxisProgram) -> Vocabulary:
        def distinct(items: Any) -> Any:
            return tuple(dict.fromkeys(items))

        plain = [n for n in program.nodes if n.op not in ("input", "constant", "size", "sum", "matmul", "concat")]
        return Vocabulary(
            distinct((n.op, n.attrs) for n in plain if len(n.operands) == 1),
            distinct((n.op, n.attrs) for n in plain if len(n.operands) == 2),
            distinct(n.reduce for n in program.nodes if n.op == "sum"),
            distinct(n.reduce for n in program.nodes if n.op == "matmul"),
            tuple(n for n in program.nodes if n.op == "concat"),
        )


#: values of one kernel, beyond which its closure is cut
MAX_VALUES = 500


#: operators whose operands may be exchanged
COMMUTATIVE = frozenset({"add", "mul", "matmul"})


def _same(a: Derivation, b: Derivation) -> bool:
    if a.op != b.op or (a.attrs, a.reduce, a.joined) != (b.attrs, b.reduce, b.joined):
        return False
    return a.operands == b.operands or (a.op in COMMUTATIVE and a.operands == b.operands[::-1])


class Closure:
    """All admitted values of one kernel."""

    def __init__(
        self,
        program: AxisProgram,
        algebras: Algebras,
        plan: KernelPlan,
        pruner: Pruner,
        indices: IndexPruner | None,
        targets: Sequence[Poly],
        cost: CostModel,
        stats: SearchStats,
        *,
        limit: int,
        canonical: bool,
        deadline: float,
    ) -> None:
        self.program = program
        self.al = algebras
        self.plan = plan
        self.pruner = pruner
        self.indices = indices
        self.cost = cost
        self.stats = stats
        self.limit = limit
        self.canonical = canonical
        self.deadline = deadline
        self.cut = ""
        self.vocabulary = Vocabulary.of(program)
        self.values: list[Value] = []
        #: only beside the normal form, whose answers it anticipates
        self.quick = QuickFilter(targets) if indices is not None else None
        self._index: dict[Hashable, Value] = {}
        self._partial_part = f"{plan.partial}.grid" if plan.partial else None
        self._split_tile = self._tile(plan.partial) if plan.partial else None
        self._loop_part = f"{plan.loop}.loop" if plan.loop else None

    def _tile(self, axis: str) -> str:
        return self.al.parts.get(axis, (axis,))[-1]

    # -- values

    def leaf(self, form: Form, poly: Poly, source: AxisNode | Value) -> Value:
        """A value that the kernel reads (an input, a constant, or an earlier kernel's result)."""
        value = Value(len(self.values), form, poly, self._axes(form), self._varies(form), False)
        value.source = source
        self._append(value)
        self._index[form, poly, False, id(source)] = value
        return value

    def _append(self, value: Value) -> None:
        self.values.append(value)
        if self.quick is not None:
            self.quick.add(value.poly)

    def _axes(self, form: Form) -> tuple[str, ...]:
        partial: list[str] = []
        if self._partial_part in form.free and self._split_tile not in form.free:
            partial.append(partial_axis(self.plan.partial or ""))
        return (*partial, *(a for a in self.program.axes if self._tile(a) in form.free))

    def _varies(self, form: Form) -> bool:
        return self._loop_part in form.free

    def _is_partial(self, value: Value) -> bool:
        return bool(value.axes) and self.plan.partial is not None and value.axes[0] == partial_axis(self.plan.partial)

    def run(self) -> None:
        """Close the leaves under the vocabulary, the program's own values first; `cut` says why it stopped early."""
        self._seed()
        done = 0
        while done < len(self.values):
            if done % 8 == 0 and time.perf_counter() > self.deadline:
                self.cut = "budget spent"
                return
            if len(self.values) > MAX_VALUES:
                self.cut = f"{MAX_VALUES} prefixes per kernel"
                return
            value = self.values[done]
            done += 1
            self._extend(value, self.values[:done])

    def _seed(self) -> None:
        """The program's own values, so that a search that is cut short still has the fused program."""
        own: dict[int, Value] = {}
        leaves = {v.form: v for v in self.values}
        for i, n in enumerate(self.program.nodes):
            form = self.al.targets[i][0]
            if form in leaves:
                own[i] = leaves[form]
                continue
            operands = tuple(own[k] for k in n.operands if k in own)
            if len(operands) < len(n.operands) or not self._together(operands):
                continue
            value = self._apply(n.op, n.attrs, operands, n.reduce, n.joined)
            if value is not None and value.varying and self.plan.loop in n.reduce:
                value = self._apply("accumulator", (("mode", "sum"), ("axis", self.plan.loop)), (value,))
            if value is not None:
                own[i] = value

    def _extend(self, v: Value, earlier: Sequence[Value]) -> None:
        """Apply every operator that has `v` as its newest operand."""
        if v.operators >= self.limit:
            return
        if not self._is_constant(v):
            for op, attrs in self.vocabulary.unary:
                self._apply(op, attrs, (v,))
        for over in self.vocabulary.sums:
            if set(over) <= set(v.axes):
                self._apply("sum", (), (v,), over)
        if self._is_partial(v):
            self._apply("sum", (), (v,), v.axes[:1])
        if v.varying and self.plan.loop not in v.axes:
            self._apply("accumulator", (("mode", "sum"), ("axis", self.plan.loop)), (v,))
        self._extend_binary(v, earlier)
        self._concats(v)

    def _extend_binary(self, v: Value, earlier: Sequence[Value]) -> None:
        count = len(earlier)
        products, sums, divisors = self._quick_masks(v, count)
        for k, u in enumerate(earlier):
            if not self._compatible(u, v):
                self.stats.prune("phase")
                continue
            for op, attrs in self.vocabulary.binary:
                forwards, backwards = True, op not in COMMUTATIVE and u is not v
                if op == "mul":
                    forwards = products[k]
                elif op == "add":
                    forwards = sums[k]
                elif op == "sub":
                    forwards, backwards = sums[k], backwards and sums[k]
                elif op == "div":
                    forwards, backwards = divisors[v.number], backwards and divisors[k]
                self._apply_if(forwards, op, attrs, (u, v))
                if op not in COMMUTATIVE and u is not v:
                    self._apply_if(backwards, op, attrs, (v, u))
            for over in self.vocabulary.matmuls:
                if all(a in u.axes and a in v.axes for a in over):
                    self._apply_if(products[k], "matmul", (), (u, v), over)

    def _quick_masks(self, v: Value, count: int) -> tuple[list[bool], list[bool], list[bool]]:
        """Per earlier value: whether it may be multiplied by `v`, added to it, divided by."""
        if self.quick is None:
            everything = [True] * max(count, v.number + 1)
            return everything, everything, everything
        quick = self.quick
        return (
            quick.products(v.number, count).tolist(),
            quick.sums(v.number, count).tolist(),
            quick.divisors(max(count, v.number + 1)).tolist(),
        )

    def _apply_if(
        self,
        possible: bool,
        op: str,
        attrs: tuple[tuple[str, Any], ...],
        operands: tuple[Value, ...],
        over: tuple[str, ...] = (),
    ) -> None:
        """Apply an operator unless counting factors has already ruled it out."""
        if possible:
            self._apply(op, attrs, operands, over)
        else:
            self.stats.checks += 1
            self.stats.prune("factor counts")

    def _compatible(self, u: Value, v: Value) -> bool:
        """Whether two values exist at the same time, and do not confuse a partial index with the axis itself."""
        if (u.varying and v.after) or (v.varying and u.after):
            return False
        if self._is_constant(u) and self._is_constant(v):
            return False
        if self.plan.partial is not None and self._is_partial(u) != self._is_partial(v):
            return self.plan.partial not in u.axes and self.plan.partial not in v.axes
        return True

    def _together(self, operands: Sequence[Value]) -> bool:
        return all(self._compatible(u, v) for u, v in itertools.combinations(operands, 2))

    def _is_constant(self, v: Value) -> bool:
        """Whether a value depends on no tensor."""
        if v.form.free or v.form.bound:
            return False
        if v.source is not None:
            return isinstance(v.source, AxisNode) and v.source.op != "input"
        return all(self._is_constant(u) for u in v.derivations[0].operands)

    def _concats(self, v: Value) -> None:
        """Concats of the program's own operands, as soon as the last of them exists."""
        for n in self.vocabulary.concats:
            wanted = [self.al.targets[i][0] for i in n.operands]
            if v.form in wanted:
                found = [next((u for u in self.values if u.form is f), None) for f in wanted]
                operands = tuple(u for u in found if u is not None)
                if len(operands) == len(wanted) and self._together(operands):
                    self._apply("concat", n.attrs, operands, joined=n.joined)

    def _apply(
        self,
        op: str,
        attrs: tuple[tuple[str, Any], ...],
        operands: tuple[Value, ...],
        over: tuple[str, ...] = (),
        joined: tuple[str, tuple[str, ...]] | None = None,
    ) -> Value | None:
        """The value of an operator application, unless it is pruned."""
        node = AxisNode(op, (), attrs, (), over, joined)
        bound = self._bound_parts(op, over)
        self.stats.checks += 1
        try:
            poly = self.al.abstract_of(node, [u.poly for u in operands], bound)
            if not self.pruner.admits(poly):
                self.stats.prune("abstract expression")
                return None
            form = self.al.exact_of(node, [u.form for u in operands], bound)
            if self.indices is not None and not self.indices.admits(form):
                self.stats.prune("indices")
                return None
        except TermTooLarge:
            self.stats.prune("expression size")
            return None
        if joined is None and form.free != frozenset().union(*(u.form.free for u in operands)) - bound:
            # x / x: the form has lost axes that the tensor has
            self.stats.prune("cancelled axes")
            return None
        after = op == "accumulator" or any(u.after for u in operands)
        operators = 1 + max(u.operators for u in operands)
        axes = self._axes(form)
        derivation = Derivation(op, attrs, operands, over, joined, self._price(op, operands, axes))
        key: Hashable = (form, poly, after) if self.canonical else (op, attrs, over, *(u.number for u in operands))
        value = self._index.get(key)
        if value is None:
            value = Value(len(self.values), form, poly, axes, self._varies(form), after)
            value.operators = operators
            self._append(value)
            self._index[key] = value
            self.stats.prefixes += 1
        elif value.source is not None or any(u is value for u in operands):
            return value
        value.operators = min(value.operators, operators)
        if not any(_same(derivation, d) for d in value.derivations):
            value.derivations.append(derivation)
        return value

    def _price(self, op: str, operands: Sequence[Value], axes: Sequence[str]) -> float:
        space = list(dict.fromkeys([a for u in operands for a in u.axes] + list(axes)))
        in_loop = self.plan.loop not in space and any(u.varying for u in operands)
        repeats = self.cost.iterations(self.plan.loop) if in_loop else 1.0
        if op == "matmul":
            return self.cost.matmul(operands[0].axes, operands[1].axes, repeats)
        return self.cost.operator(op, space, repeats)

    def _bound_parts(self, op: str, over: tuple[str, ...]) -> frozenset[str]:
        """The axis parts that an operator sums: a tile sum leaves the loop and the grid to others."""
        if op == "accumulator":
            return frozenset({self._loop_part or ""})
        if self.plan.partial and over == (partial_axis(self.plan.partial),):
            return frozenset({self._partial_part or ""})
        bound = self.al.all_parts(over)
        if self.plan.loop in over:
            bound -= {self._loop_part or ""}
            if self.plan.split:
                bound -= {f"{self.plan.loop}.grid"}
        return bound
