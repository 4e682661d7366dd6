"""The space of one search: closures, kernel-level tensors, and the composer of kernel graphs; built once per process."""

from __future__ import annotations

from collections.abc import Mapping

from mirage.ir.axes import AxisProgram
from mirage.ir.types import DTYPES
from mirage.search.algebras import Algebras
from mirage.search.closure import Closure
from mirage.search.compose import Composer
from mirage.search.cost import CostModel
from mirage.search.expansion import whole_products
from mirage.search.indexed import IndexPruner
from mirage.search.options import Limits, SearchOptions
from mirage.search.placement import Placements, Sites, all_sites
from mirage.search.plan import KernelPlan, axis_parts, kernel_plans
from mirage.search.pruners import make_pruner
from mirage.search.stats import SearchStats
from mirage.search.tensors import Tensors


class Space:
    """Everything that kernels of a program can compute, until `deadline` (a `perf_counter`).

    `whole`: products of sums are left whole, because there were too many values.
    """

    def __init__(
        self, program: AxisProgram, axis_sizes: Mapping[str, int], options: SearchOptions, deadline: float
    ) -> None:
        self.program = program
        self.options = options
        self.limits = Limits.of(program, options)
        self.plans = kernel_plans(program, options.max_loops)
        self.algebras = Algebras(program, axis_parts(program))
        self.whole = False
        self.stats = SearchStats()
        # only the normal form has placements, and only they can leave products whole
        whole = whole_products(program, self.algebras) if options.pruner == "normal-form" else {}
        outputs = [self.algebras.targets[o.value][1] for o in program.outputs]
        sites = all_sites(outputs)
        self.tensors = self._tensors(sites, options.max_values if any(whole.values()) else None, deadline)
        if self.tensors.too_many:
            self.whole = True
            self.stats = SearchStats()
            self.tensors = self._tensors(whole, None, deadline)
        self.stats.limits = self.limits.to_json()
        self.stats.tensors = len(self.tensors.all)
        free = [a for a, d in program.axes.items() if d.free_symbols]
        costs = CostModel(axis_sizes, free, DTYPES[program.dtype].itemsize, options.rates)
        self.composer = Composer(self.tensors, costs, self.limits, deadline)

    def _tensors(self, sites: Sites, max_values: int | None, deadline: float) -> Tensors:
        al = self.algebras
        outputs = [al.targets[o.value] for o in self.program.outputs]
        polys = [poly for _, poly in outputs]
        indices = placements = None
        if self.options.pruner == "normal-form":
            # the ablations are those of abstract expressions: nothing else prunes beside them
            indices = IndexPruner(al.exact, [form for form, _ in outputs])
            placements = Placements(al.abstract, sites)
        pruner = placements or make_pruner(self.options.pruner, al.abstract, polys)

        def make(plan: KernelPlan) -> Closure:
            return Closure(
                self.program, al, plan, pruner, indices, placements, self.stats, limit=self.limits.operators,
                canonical=self.options.canonical, deadline=deadline,
            )  # fmt: skip

        return Tensors(self.program, al, self.plans, make, self.limits.kernels, max_values)

    @property
    def note(self) -> str:
        """What the space leaves out."""
        return "products of sums left whole" if self.whole else ""
