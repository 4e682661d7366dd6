"""Kernel-level tensors: what kernels can hand to one another, found together with the closures of all plans.

A kernel may read the program's inputs and the results of other kernels, so the closures of the plans grow in rounds:
results of one round are leaves of the next. A tensor is identified as a value is, by its exact form and abstract expression.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from mirage.ir.axes import AxisNode, AxisProgram
from mirage.ir.operator import FOLDS
from mirage.mugraph.exact import Form
from mirage.mugraph.graph import partial_axis
from mirage.search.abstract import Poly
from mirage.search.algebras import Algebras
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.plan import KernelPlan
from mirage.search.steps import Steps

#: operators whose result is new data, not a rearrangement of one element each
_COMBINING = frozenset({*FOLDS, "matmul", "accumulator", "concat"})
_SOURCES = ("input", "constant", "size")


@dataclass(eq=False)
class KernelTensor:
    """A result of a kernel. `producers` are the values that are it, each in the closure of that number."""

    number: int
    form: Form
    poly: Poly
    #: its axes as its producer stores it: partial ones first
    axes: tuple[str, ...]
    #: outputs of the program that it is
    outputs: list[int] = field(default_factory=list)
    producers: list[tuple[int, Value]] = field(default_factory=list)
    #: whether it follows from constants alone
    fixed: bool = False


class Tensors:
    """The closures of all plans of a program, closed under what kernels hand to one another.

    `make(plan)` gives an empty closure, `kernels` is how many a graph may have. `constants` are arguments whose contents never
    change: what follows from them alone is worth handing on, too.
    """

    def __init__(
        self,
        program: AxisProgram,
        algebras: Algebras,
        plans: Sequence[KernelPlan],
        make: Callable[[KernelPlan], Closure],
        kernels: int,
        constants: Collection[str] = (),
    ) -> None:
        self._constants = frozenset(x.name for x in program.inputs if x.argument in constants)
        self._fixed: dict[Value, bool | None] = {}
        self.program = program
        self.al = algebras
        self.closures = [make(plan) for plan in plans]
        self.all: list[KernelTensor] = []
        #: per output of the program: the program's input, constant or size that it is, or None
        self.trivial: list[AxisNode | None] = []
        self._index: dict[tuple[Form, Poly], KernelTensor] = {}
        self._by_form: dict[Form, tuple[int, ...]] = {}
        self._seen = [0] * len(plans)
        self._kernels = kernels
        #: how many of the tensors are leaves of the closures
        self._handed = 0
        for o in program.outputs:
            n = program.nodes[o.value]
            self.trivial.append(n if n.op in _SOURCES else None)
        for k, o in enumerate(program.outputs):
            if self.trivial[k] is None:
                form = algebras.targets[o.value][0]
                self._by_form[form] = (*self._by_form.get(form, ()), k)
        for c in self.closures:
            for n, (form, poly) in zip(program.nodes, algebras.targets, strict=True):
                if n.op in _SOURCES:
                    c.leaf(form, poly, n)

    def run(self, max_values: int | None = None) -> Steps[bool]:
        """Close the closures, and hand their results on; in steps, after each of which `collect` finds what there is. What the
        program's own operators make comes first, with all that is handed on.

        False if it was given up, as a closure of the program's inputs had more than `max_values`.
        """
        stages = len(self.closures[0].stages)
        # with a bound on values, all operators count
        for stage in range(1, stages + 1) if max_values is None else (stages,):
            if not (yield from self._stage(stage, max_values)):
                return False
        return True

    def _stage(self, stages: int, max_values: int | None) -> Steps[bool]:
        """`run` with the operators of the first so many stages."""
        for rounds in range(self._kernels):
            most = None if rounds else max_values
            if not (yield from _in_turn([c.run(most, stages) for c in self.closures])):
                return False
            self.collect()
            if rounds == self._kernels - 1:
                break
            fresh, self._handed = self.all[self._handed :], len(self.all)
            if not fresh:
                break
            for t in fresh:
                for c in self.closures:
                    if self._readable(t, c):
                        c.leaf(t.form, t.poly, t)
        return True

    def outputs(self) -> list[KernelTensor | None]:
        """Per output of the program its tensor; None where it is trivial, or no kernel yields it."""
        found: list[KernelTensor | None] = []
        for k in range(len(self.program.outputs)):
            found.append(next((t for t in self.all if k in t.outputs), None))
        return found

    def _readable(self, tensor: KernelTensor, closure: Closure) -> bool:
        """Partial results over an axis and that axis divided anew would be confused."""
        return not any(partial_axis(a) in tensor.axes for a in closure.plan.loops)

    def collect(self) -> None:
        """Add new tensors, and new producers of known ones."""
        for k, c in enumerate(self.closures):
            frontier = _Frontier(c)
            split = (partial_axis(c.plan.split),) if c.plan.split else ()
            for v in c.values[self._seen[k] :]:
                if not c.finishes(v):
                    continue
                outputs = () if split else self._by_form.get(v.form, ())
                if outputs:
                    form, poly = self.al.targets[self.program.outputs[outputs[0]].value]
                    self._add(k, v, form, poly, v.axes, outputs)
                elif (self._reduced(c, v) and frontier.worth_storing(v)) or (not c.plan.loops and self.fixed(v)):
                    self._add(k, v, v.form, v.poly, (*split, *v.axes), ())
            self._seen[k] = len(c.values)

    def _add(self, k: int, v: Value, form: Form, poly: Poly, axes: tuple[str, ...], outputs: Sequence[int]) -> None:
        tensor = self._index.get((form, poly))
        if tensor is None:
            tensor = self._index[form, poly] = KernelTensor(len(self.all), form, poly, axes, fixed=self.fixed(v) is True)
            self.all.append(tensor)
        tensor.outputs = sorted({*tensor.outputs, *outputs})
        tensor.producers.append((k, v))

    def fixed(self, v: Value) -> bool | None:
        """Whether a value follows from constants alone; None if it depends on no tensor."""
        if not self._constants:
            return False
        if v not in self._fixed:
            self._fixed[v] = self._find_fixed(v)
        return self._fixed[v]

    def _find_fixed(self, v: Value) -> bool | None:
        if isinstance(v.source, KernelTensor):
            return v.source.fixed
        if isinstance(v.source, AxisNode):
            return v.source.attr["name"] in self._constants if v.source.op == "input" else None
        below = {self.fixed(u) for u in v.derivations[0].operands}
        return False if False in below else (True if True in below else None)

    @staticmethod
    def _reduced(c: Closure, v: Value) -> bool:
        """Whether a kernel may hand on a finished value: something was reduced, into partial results if it is split."""
        if not v.form.bound:
            return False
        return c.plan.split is None or f"{c.plan.split}.grid" in v.form.free


def _in_turn(runs: Sequence[Steps[bool]]) -> Steps[bool]:
    """Runs side by side, so that all have come as far where they are left; False as soon as one is."""
    left = list(runs)
    while left:
        for run in list(left):
            try:
                next(run)
            except StopIteration as end:
                if not end.value:
                    return False
                left.remove(run)
            yield
    return True


def _combines(d: Derivation) -> bool:
    return d.op in _COMBINING and ("mode", "concat") not in d.attrs


class _Frontier:
    """Which values are worth storing: combined data, and what is computed from such data without growing.

    An elementwise result that is larger than all that its kernel reduced is cheaper to compute again where it is used. Of
    values that follow from one another by operators with constants only, the last is stored, because all cost the same; but
    what an exp is applied to is stored too, as its result needs a maximum beside it.
    """

    def __init__(self, closure: Closure) -> None:
        self._axes: dict[Value, frozenset[frozenset[str]]] = {}
        self._continued = {
            tensors[0]
            for w in closure.values
            for d in w.derivations
            if d.op not in (*_COMBINING, "exp")
            and len(tensors := [u for u in d.operands if not closure.is_constant(u)]) == 1
        }

    def _stored(self, v: Value) -> frozenset[frozenset[str]]:
        """Axes of the combined values from which a value is computed elementwise."""
        found = self._axes.get(v)
        if found is None:
            if isinstance(v.source, KernelTensor) or any(_combines(d) for d in v.derivations):
                found = frozenset((frozenset(v.axes),))
            else:
                found = frozenset().union(*(self._stored(u) for d in v.derivations for u in d.operands))
            self._axes[v] = found
        return found

    def worth_storing(self, v: Value) -> bool:
        # joined tiles are continued where the tiles are
        tile = v.derivations[0].operands[0] if v.concatenated else v
        return tile not in self._continued and any(set(v.axes) <= axes for axes in self._stored(v))
