"""Generation: every value that a kernel can compute and that can contribute to the target.

Values are closed under the program's operators, bottom-up. A value is identified by its exact form and its abstract
expression, so that equal prefixes are built once; each keeps all the ways to derive it. A value whose abstract expression
is no subexpression of the target's is pruned (paper, section 4.3). Graphs are derivations of the target, extracted later
(`extract.py`): the set of all graphs is never written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisNode, AxisProgram
from mirage.mugraph.exact import Form
from mirage.mugraph.graph import partial_axis
from mirage.search.abstract import Poly
from mirage.search.algebras import Algebras
from mirage.search.indexed import IndexPruner
from mirage.search.placement import Placements
from mirage.search.plan import KernelPlan
from mirage.search.pruned import Examples
from mirage.search.pruners import Pruner
from mirage.search.stats import SearchStats
from mirage.search.steps import Steps
from mirage.search.vocabulary import Attrs, Vocabulary


class Value:
    """A tensor that a block of one kernel can compute."""

    __slots__ = (
        "after", "axes", "concatenated", "derivations", "exponential", "form", "number", "operators", "placed", "poly",
        "source", "varying",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        form: Form,
        poly: Poly,
        axes: tuple[str, ...],
        *,
        varying: bool = False,
        after: bool = False,
        concatenated: bool = False,
        exponential: bool = False,
    ) -> None:
        self.number = number
        self.form = form
        self.poly = poly
        #: axes of the block tensor, partial ones included
        self.axes = axes
        #: changes with the loop iteration
        self.varying = varying
        #: exists only after the loop
        self.after = after
        #: is the tiles of all iterations, joined
        self.concatenated = concatenated
        #: follows from an exp in the loop, and so from a maximum that may grow
        self.exponential = exponential
        self.derivations: list[Derivation] = []
        #: least number of operators on a path to it
        self.operators = 0
        #: for a leaf: the program node, or the result of another kernel, that it reads
        self.source: object = None
        #: bit set of its placements in the targets (`placement.py`)
        self.placed = 0

    @property
    def is_scalar_leaf(self) -> bool:
        """Whether it is a constant or a size, which a kernel need not read."""
        return isinstance(self.source, AxisNode) and self.source.op != "input"


@dataclass(frozen=True, eq=False)
class Derivation:
    """One operator application that yields a value."""

    op: str
    attrs: Attrs
    operands: tuple[Value, ...]
    reduce: tuple[str, ...] = ()
    joined: tuple[str, tuple[str, ...]] | None = None


#: what pairs are ruled out for, whatever the operator
ANY = "any operator"
#: values to which the operators of a later stage are applied in one step
TRIED = 8
#: operators whose operands may be exchanged
COMMUTATIVE = frozenset({"add", "mul", "matmul"})


def _same(a: Derivation, b: Derivation) -> bool:
    if a.op != b.op or (a.attrs, a.reduce, a.joined) != (b.attrs, b.reduce, b.joined):
        return False
    return a.operands == b.operands or (a.op in COMMUTATIVE and a.operands == b.operands[::-1])


class Closure:
    """All admitted values of the kernels of one plan. More leaves may be added after a run, and the closure run again."""

    def __init__(
        self,
        program: AxisProgram,
        algebras: Algebras,
        plan: KernelPlan,
        pruner: Pruner,
        indices: IndexPruner | None,
        placements: Placements | None,
        stats: SearchStats,
        stages: Sequence[Vocabulary],
        *,
        limit: int,
        canonical: bool = True,
        examples: Examples | None = None,
    ) -> None:
        self.program = program
        self.al = algebras
        self.plan = plan
        self.pruner = pruner
        self.indices = indices
        #: only beside the normal form, whose answers they anticipate
        self.placements = placements
        self.stats = stats
        self.limit = limit
        self.canonical = canonical
        #: a record of what is pruned, if somebody wants one
        self.examples = examples
        #: the operators, those that are tried first before others
        self.stages = tuple(stages)
        #: those that are tried now
        self.vocabulary = self.stages[0]
        self.values: list[Value] = []
        #: by node of the program, its value, where a kernel that reads inputs only computes it as the program does
        self.own: dict[int, Value] = {}
        self._index: dict[Hashable, Value] = {}
        #: by stage, to how many values its operators were applied
        self._done = [0] * len(self.stages)
        self._seeded = False
        self._joined = 0
        self._loop_parts = frozenset(f"{a}.loop" for a in plan.loops)
        self._grid_parts = {f"{a}.grid": a for a in algebras.parts}
        self._concat_operands = [[algebras.targets[i][0] for i in n.operands] for n in self.stages[0].concats]

    def _tile(self, axis: str) -> str:
        return self.al.parts.get(axis, (axis,))[-1]

    # -- values

    def leaf(self, form: Form, poly: Poly, source: object) -> Value:
        """A value that the kernel reads (an input, a constant, or an earlier kernel's result)."""
        varying = bool(self._loop_parts & form.free)
        value = Value(len(self.values), form, poly, self._axes(form), varying=varying)
        value.source = source
        self._append(value)
        self._index[form, poly, 0, id(source)] = value
        return value

    def _append(self, value: Value) -> None:
        self.values.append(value)
        if self.placements is not None:
            value.placed = self.placements.of(value.poly)

    def partials(self, form: Form) -> list[str]:
        """Axes of which a kernel's result holds one partial sum per grid cell."""
        return [a for part, a in self._grid_parts.items() if part in form.free and self._tile(a) not in form.free]

    def _axes(self, form: Form) -> tuple[str, ...]:
        partial = [partial_axis(a) for a in self.partials(form) if a != self.plan.split]
        return (*partial, *(a for a in self.program.axes if self._tile(a) in form.free))

    def run(self, max_values: int | None = None, stages: int | None = None) -> Steps[bool]:
        """Close the leaves under the operators of the first so many `stages`, all if not given; a step per value and stage. The
        program's own values come first, and no operator of a later stage is tried while one of an earlier has values left.

        False if it was given up, having more than `max_values`.
        """
        self.seed()
        while (stage := next((k for k, n in enumerate(self._done[:stages]) if n < len(self.values)), None)) is not None:
            # other operators are few, and most of them make nothing new
            if stage == 0 or self._done[stage] % TRIED == 0:
                yield
            if max_values is not None and len(self.values) > max_values:
                return False
            self.vocabulary = self.stages[stage]
            value = self.values[self._done[stage]]
            self._done[stage] += 1
            self._extend(value, self.values[: self._done[stage]])
        self.join_matmuls()
        return True

    @property
    def untried(self) -> list[str]:
        """The operators of later stages that were not applied to all values."""
        waiting = zip(self.stages[1:], self._done[1:], strict=True)
        return [name for stage, done in waiting if done < len(self.values) for name in stage.names]

    def join_matmuls(self) -> None:
        """Sums of two matmuls are also matmuls of concats (paper, LoRA in section 7): one result, and nothing copied."""
        for v in self.values[self._joined :]:
            for d in [d for d in v.derivations if d.op == "add"]:
                x, y = ([m for m in u.derivations if m.op == "matmul"] for u in d.operands)
                for a, b in itertools.product(x, y):
                    if self._together((*a.operands, *b.operands)) and set(d.operands[0].axes) == set(
                        d.operands[1].axes
                    ):
                        operands = (a.operands[0], b.operands[0], a.operands[1], b.operands[1])
                        reduce = tuple(dict.fromkeys((*a.reduce, *b.reduce)))
                        v.derivations.append(Derivation("concat_matmul", (), operands, reduce))
        self._joined = len(self.values)

    def seed(self) -> None:
        """Add the program's own values, unless that was done."""
        if self._seeded:
            return
        self._seeded = True
        own = self.own
        leaves = {v.form: v for v in self.values}
        for i, n in enumerate(self.program.nodes):
            form = self.al.targets[i][0]
            if form in leaves:
                own[i] = leaves[form]
                continue
            operands = tuple(own[k] for k in n.operands if k in own)
            if len(operands) < len(n.operands) or not self._together(operands):
                continue
            # where the grid splits an axis, what is computed from partial sums is not the program's
            exact = all(own[k].form is self.al.targets[k][0] for k in n.operands)
            value = self._apply(n.op, n.attrs, operands, n.reduce, n.joined, own=exact)
            if value is not None and value.varying and set(self.plan.loops) & set(n.reduce):
                value = self._accumulate(value, "sum")
            if value is not None:
                own[i] = value

    def _extend(self, v: Value, earlier: Sequence[Value]) -> None:
        """Apply every operator that has `v` as its newest operand."""
        if v.operators >= self.limit:
            return
        if not self.is_constant(v):
            for op, attrs in self.vocabulary.unary:
                self._apply(op, attrs, (v,))
        for over in self.vocabulary.sums:
            if set(over) <= set(v.axes):
                self._apply("sum", (), (v,), over)
        for over in self.vocabulary.maxima:
            if set(over) <= set(v.axes):
                self._apply("max", (), (v,), over)
        if self.vocabulary is self.stages[0]:
            self._extend_parts(v)
        self._extend_binary(v, earlier)

    def _extend_parts(self, v: Value) -> None:
        """Put together what the parts of an axis hold, and the operands of the program's own concats."""
        for a in v.axes:
            if a.endswith(".grid"):
                self._apply("sum", (), (v,), (a,))
        if v.varying:
            if not set(self.plan.loops) & set(v.axes):
                self._accumulate(v, "sum")
            elif self._joinable(v):
                self._accumulate(v, "concat")
        self._concats(v)

    def _partial(self, v: Value) -> bool:
        """Whether a value is a sum over a part of an axis only."""
        iterations = any(f"{a}.loop" in v.form.free and a not in v.axes for a in self.plan.loops)
        return iterations or bool(self.partials(v.form))

    def _joinable(self, v: Value) -> bool:
        """Whether tiles of a value may be joined; not of one whose maximum grows, as each time all before are rescaled."""
        plan = self.plan
        return plan.split is None and len(plan.loops) == 1 and plan.loops[0] in v.axes and not v.exponential

    def _accumulate(self, v: Value, mode: str) -> Value | None:
        return self._apply("accumulator", (("mode", mode), ("axis", self.plan.loops[0])), (v,))

    def _extend_binary(self, v: Value, earlier: Sequence[Value]) -> None:
        matmuls = [over for over in self.vocabulary.matmuls if set(over) <= set(v.axes)]
        there = {op for op, _ in self.vocabulary.binary}
        if not matmuls and not there:
            return
        if self.placements is None:
            for u in earlier:
                if self._compatible(u, v):
                    self._pair(u, v, matmuls, -1, -1, -1, -1)
                else:
                    self._drop("phase", ANY, (u, v))
            return
        subtracts, divides = "sub" in there, "div" in there
        products = self.placements.multiples(v.poly) if matmuls or "mul" in there else 0
        totals = v.placed if there - {"mul", "div", "sub"} else 0
        negated = self._negated(v) if subtracts else 0
        ratios = self.placements.ratios(v.poly) if divides else 0
        forwards = products | totals | negated | ratios
        ruled_out = 0
        for u in earlier:
            at = u.placed
            if not (at & forwards or (divides and self._is_divisor(u)) or (subtracts and v.placed & self._negated(u))):
                ruled_out += 1
                if self.examples is not None:
                    self.examples.note("placements", self.plan, ANY, (u, v))
            elif self._compatible(u, v):
                self._pair(u, v, matmuls, at & products, at & v.placed, at & negated, at & ratios)
            else:
                self._drop("phase", ANY, (u, v))
        count = len(self.vocabulary.binary) + len(matmuls)
        self.stats.checks += ruled_out * count
        self.stats.prune("placements", ruled_out * count)

    def _is_divisor(self, v: Value) -> bool:
        assert self.placements is not None
        return bool(self.placements.ratios(v.poly))

    def _negated(self, v: Value) -> int:
        """Placements of what a value may be subtracted from."""
        assert self.placements is not None
        return self.placements.of(self.al.abstract.neg(v.poly))

    def _pair(
        self, u: Value, v: Value, matmuls: Sequence[tuple[str, ...]], product: int, total: int, negated: int, ratio: int
    ) -> None:
        """Apply the binary operators to a pair; a zero says that the placements rule a kind of operator out."""
        for op, attrs in self.vocabulary.binary:
            both = op not in COMMUTATIVE and u is not v
            match op:
                case "mul":
                    forwards = backwards = product
                case "add":
                    forwards = backwards = total
                case "sub":
                    forwards = negated
                    backwards = self.placements is None or (v.placed & self._negated(u) if both else 0)
                case "div":
                    forwards = ratio
                    backwards = self.placements is None or (v.placed & self.placements.ratios(u.poly) if both else 0)
                case _:
                    forwards = backwards = -1
            self._apply_if(forwards, op, attrs, (u, v))
            if both:
                self._apply_if(backwards, op, attrs, (v, u))
        for over in matmuls:
            if all(a in u.axes for a in over):
                self._apply_if(product, "matmul", (), (u, v), over)

    def _apply_if(
        self, possible: int, op: str, attrs: Attrs, operands: tuple[Value, ...], over: tuple[str, ...] = ()
    ) -> None:
        """Apply an operator unless placements have already ruled it out."""
        if possible:
            self._apply(op, attrs, operands, over)
        else:
            self.stats.checks += 1
            self._drop("placements", op, operands, over)

    def _drop(self, why: str, op: str, operands: Sequence[Value], over: Sequence[str] = ()) -> None:
        """Count an application that a rule prunes."""
        self.stats.prune(why)
        if self.examples is not None:
            self.examples.note(why, self.plan, op, operands, over)

    def _compatible(self, u: Value, v: Value) -> bool:
        """Whether two values exist at the same time, and do not confuse a partial index with the axis itself."""
        if (u.varying and v.after) or (v.varying and u.after):
            return False
        if self.is_constant(u) and self.is_constant(v):
            return False
        return not (self._confused(u, v) or self._confused(v, u))

    @staticmethod
    def _confused(u: Value, v: Value) -> bool:
        return any(a.endswith(".grid") and a[:-5] in v.axes for a in u.axes)

    def _together(self, operands: Sequence[Value]) -> bool:
        return all(self._compatible(u, v) for u, v in itertools.combinations(operands, 2))

    def finishes(self, v: Value) -> bool:
        """Whether a kernel may end with a value: it is computed, in all iterations of the loop together."""
        return bool(v.derivations) and not v.varying and (v.after or not self.plan.loops)

    def is_constant(self, v: Value) -> bool:
        """Whether a value depends on no tensor."""
        if v.form.free or v.form.bound:
            return False
        if v.source is not None:
            return v.is_scalar_leaf
        return all(self.is_constant(u) for u in v.derivations[0].operands)

    def _concats(self, v: Value) -> None:
        """Concats of the program's own operands, as soon as the last of them exists."""
        for n, wanted in zip(self.vocabulary.concats, self._concat_operands, strict=True):
            if v.form in wanted:
                found = [next((u for u in self.values if u.form is f), None) for f in wanted]
                operands = tuple(u for u in found if u is not None)
                if len(operands) == len(wanted) and self._together(operands):
                    self._apply("concat", n.attrs, operands, joined=n.joined)

    def _apply(
        self,
        op: str,
        attrs: Attrs,
        operands: tuple[Value, ...],
        over: tuple[str, ...] = (),
        joined: tuple[str, tuple[str, ...]] | None = None,
        own: bool = False,
    ) -> Value | None:
        """The value of an operator application, unless it is pruned. What is the program's `own` is not: it may have
        terms that cancel later, as x has in x - (x + y), or be in part of two products that are left whole.
        """
        concatenated = op == "accumulator" and ("mode", "concat") in attrs
        after = op == "accumulator" or any(u.after for u in operands)
        if op != "accumulator" and after and all(u.concatenated for u in operands if u.after):
            # the loop can do it tile by tile
            self._drop("loop", op, operands, over)
            return None
        bound = self._bound_parts(op, attrs, over, after)
        self.stats.checks += 1
        if op == "max" and self._partial(operands[0]):
            self._drop("maximum of a part", op, operands, over)
            return None
        if not own and op in self.vocabulary.inside:
            axes = {a for u in operands for a in u.axes}
            if not any(axes == set(u.axes) for u in operands):
                self._drop("vocabulary", op, operands)
                return None
        if concatenated:
            (x,) = operands
            form, poly = x.form, x.poly
        else:
            node = AxisNode(op, (), attrs, (), over, joined)
            try:
                poly = self.al.abstract_of(node, [u.poly for u in operands], bound)
                if not own and not self.pruner.admits(poly):
                    self._drop("abstract expression", op, operands, over)
                    return None
                form = self.al.exact_of(node, [u.form for u in operands], bound)
                if not own and self.indices is not None and not self.indices.admits(form):
                    self._drop("indices", op, operands, over)
                    return None
            except TermTooLarge:
                self._drop("expression size", op, operands, over)
                return None
            if joined is None and form.free != frozenset().union(*(u.form.free for u in operands)) - bound:
                # x / x: the form has lost axes that the tensor has
                self._drop("cancelled axes", op, operands, over)
                return None
        operators = 1 + max(u.operators for u in operands)
        derivation = Derivation(op, attrs, operands, over, joined)
        phase = 2 * after - concatenated
        key: Hashable = (form, poly, phase) if self.canonical else (op, attrs, over, *(u.number for u in operands))
        value = self._index.get(key)
        if value is None:
            varying = not after and bool(self._loop_parts & form.free)
            value = Value(
                len(self.values), form, poly, self._axes(form), varying=varying, after=after, concatenated=concatenated,
                exponential=varying and (op == "exp" or any(u.exponential for u in operands)),
            )  # fmt: skip
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

    def _bound_parts(self, op: str, attrs: Attrs, over: tuple[str, ...], after: bool) -> frozenset[str]:
        """The axis parts that an operator sums: a tile sum leaves the loop and the grid to others, one after the loop
        only the grid.
        """
        if op == "accumulator":
            return self._loop_parts if ("mode", "sum") in attrs else frozenset()
        if len(over) == 1 and over[0].endswith(".grid"):
            return frozenset(over)
        bound = self.al.all_parts(over)
        if not after:
            bound -= self._loop_parts
        return bound - {f"{self.plan.split}.grid"} if self.plan.split in over else bound
