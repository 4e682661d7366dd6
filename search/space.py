"""The space of one search: closures, and the tensors that kernels hand to one another; built once per process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from mirage.ir.axes import AxisProgram
from mirage.ir.types import DTYPES
from mirage.search.algebras import Algebras
from mirage.search.closure import Closure
from mirage.search.compose import Composer, Kernel
from mirage.search.cost import CostModel
from mirage.search.expansion import whole_products
from mirage.search.extract import Extractor
from mirage.search.indexed import IndexPruner
from mirage.search.options import Limits, SearchOptions
from mirage.search.placement import Placements, Sites, all_sites
from mirage.search.plan import KernelPlan, axis_parts, kernel_plans
from mirage.search.pruned import Examples
from mirage.search.pruners import make_pruner
from mirage.search.stats import SearchStats
from mirage.search.steps import Steps
from mirage.search.tensors import KernelTensor, Tensors
from mirage.search.vocabulary import Vocabulary


class Space:
    """Everything that kernels of a program can compute.

    `whole`: products of sums are left whole, because there were too many values. `complete`: all of it is there.
    `examples` takes note of what is pruned.
    Raises TermTooLarge if an expression of the program is too large.
    """

    def __init__(
        self,
        program: AxisProgram,
        axis_sizes: Mapping[str, int],
        options: SearchOptions,
        examples: Examples | None = None,
    ) -> None:
        self.program = program
        self.examples = examples
        self.options = options
        self.limits = Limits.of(program, options)
        self.plans = kernel_plans(program, options.max_loops)
        self.algebras = Algebras(program, axis_parts(program))
        free = [a for a, d in program.axes.items() if d.free_symbols]
        self.model = CostModel(axis_sizes, free, DTYPES[program.dtype].itemsize, options.rates, options.compared)
        self.whole = False
        self.complete = False
        self.stats = SearchStats()
        self._outputs = [self.algebras.targets[o.value] for o in program.outputs]
        self.tensors = self._tensors(all_sites([poly for _, poly in self._outputs]))

    def fused(self) -> Iterator[list[Kernel]]:
        """The graph of one kernel that computes what the program's own operators compute, for each plan that has one.

        Needs nothing but the program's own values, and so little time, whatever the program.
        """
        limits = self.limits
        for closure in self.tensors.closures:
            closure.seed()
            tensors = self._own_results(closure)
            if not 0 < len(tensors) <= limits.results:
                continue
            extractor = Extractor(closure, self.model, limit=limits.operators, max_inputs=limits.inputs)
            choice = extractor.fused([v for t in tensors for _, v in t.producers])
            if choice is not None:
                yield [Kernel(closure.plan, choice, tuple(tensors))]

    def _own_results(self, closure: Closure) -> list[KernelTensor]:
        """The program's outputs as a kernel of one plan computes them by the program's own operators; none where it does not."""
        found: dict[object, KernelTensor] = {}
        for k, o in enumerate(self.program.outputs):
            if self.tensors.trivial[k] is not None:
                continue
            form, poly = self.algebras.targets[o.value]
            value = closure.own.get(o.value)
            if value is None or value.form != form or not closure.finishes(value):
                return []
            tensor = found.setdefault(form, KernelTensor(len(found), form, poly, value.axes, [], [(0, value)]))
            tensor.outputs.append(k)
        return list(found.values())

    def close(self) -> Steps[None]:
        """Find everything. Between two steps, `composer` composes what there is."""
        whole = {}
        if self.options.pruner == "normal-form":
            # only the normal form has placements, and only they can leave products whole
            whole = whole_products(self.program, self.algebras)
        most = self.options.max_values if any(whole.values()) else None
        if not (yield from self.tensors.run(most)):
            self.whole = True
            self.stats.restart()
            self.tensors = self._tensors(whole)
            yield from self.tensors.run()
        self.complete = True

    @property
    def untried(self) -> list[str]:
        """The operators of Table 1, beyond the program's own, that were not applied to all values."""
        return list(dict.fromkeys(name for c in self.tensors.closures for name in c.untried))

    def composer(self, most: float = math.inf) -> Composer:
        """Composes what is there: graphs that take at most so many ns, as modelled."""
        if not self.complete:
            self.tensors.collect()
        return Composer(self.tensors, self.model, self.limits, most)

    def _tensors(self, sites: Sites) -> Tensors:
        al = self.algebras
        indices = placements = None
        if self.options.pruner == "normal-form":
            # the ablations are those of abstract expressions: nothing else prunes beside them
            indices = IndexPruner(al.exact, [form for form, _ in self._outputs])
            placements = Placements(al.abstract, sites)
        pruner = placements or make_pruner(self.options.pruner, al.abstract, [poly for _, poly in self._outputs])

        polys = [poly for _, poly in self._outputs]
        table = self.options.vocabulary == "table"
        stages = Vocabulary.stages(self.program, polys) if table else (Vocabulary.of(self.program),)

        def make(plan: KernelPlan) -> Closure:
            return Closure(
                self.program, al, plan, pruner, indices, placements, self.stats, stages, limit=self.limits.operators,
                canonical=self.options.canonical, examples=self.examples,
            )  # fmt: skip

        return Tensors(self.program, al, self.plans, make, self.limits.kernels, self.options.constants)
