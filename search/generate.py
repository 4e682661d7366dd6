"""The muGraph generator: all plans, their closures, and the best graphs of each (paper, section 4.1)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from mirage.errors import SearchError
from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.mugraph.graph import MuGraph
from mirage.search.algebras import Algebras
from mirage.search.assemble import assemble, kernel_axes
from mirage.search.closure import Closure, Value
from mirage.search.cost import LAUNCH_NS, CostModel
from mirage.search.extract import Choice, Extraction
from mirage.search.indexed import IndexPruner
from mirage.search.plan import KernelPlan, Plan, plans
from mirage.search.pruners import make_pruner
from mirage.search.stats import SearchStats

#: operators that a kernel may have beyond those of the whole program
SLACK = 2
#: choices of the values of all outputs that are extracted
MAX_GOALS = 4
#: kernel results that a later kernel may read (paper: up to 2 outputs per kernel)
MAX_RESULTS = 2


#: which graphs a search may return; picklable, where an executor is used
Accept = Callable[[MuGraph], bool]
#: share of the time left to a plan that one closure may take; the rest is for extraction
CLOSURE_SHARE = 0.4


@dataclass(frozen=True)
class SearchOptions:
    """What a search may do.

    `max_kernels`: graph-defined kernels per graph, 1 or 2. `max_operators`: block operators per kernel, None for the
    program's own number plus `SLACK`. `keep`: graphs kept per plan, cheapest first. `budget`: seconds.
    """

    pruner: str | None = "normal-form"
    canonical: bool = True
    max_kernels: int = 2
    max_operators: int | None = None
    keep: int = 12
    budget: float = 30.0

    def check(self) -> None:
        if self.max_kernels not in (1, 2):
            raise SearchError(f"max_kernels={self.max_kernels} is not 1 or 2")
        if self.max_operators is not None and (type(self.max_operators) is not int or self.max_operators < 1):
            raise SearchError(f"max_operators={self.max_operators!r} must be a whole number of at least 1")
        if not self.budget > 0:
            raise SearchError(f"budget={self.budget} must be a positive number of seconds")


@dataclass
class SearchResult:
    """Distinct graphs, cheapest (as modelled) first, and what the search did."""

    graphs: list[MuGraph] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    stats: SearchStats = field(default_factory=SearchStats)


@dataclass
class _Found:
    graphs: list[tuple[float, MuGraph]]
    stats: SearchStats
    cut: str


def generate(
    program: AxisProgram,
    sizes: Mapping[str, int],
    options: SearchOptions | None = None,
    *,
    executor: Executor | None = None,
    accept: Accept | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Graphs of a program that are candidates for verification.

    `sizes` (of the dim symbols) only order the search. Graphs that `accept` refuses are dropped before the cheapest are
    kept. With an `executor`, plans are searched in its workers; the result
    is the same. Raises SearchError for impossible options, UnknownPruner for an unknown pruner.
    """
    options = options or SearchOptions()
    options.check()
    start = time.perf_counter()
    result = SearchResult()
    stats = result.stats
    todo = list(plans(program, options.max_kernels))
    axis_sizes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
    stats.plans_total = len(todo)
    stats.operator_limit = operator_limit(program, options)
    cuts: dict[str, int] = {}
    found: list[tuple[float, MuGraph]] = []
    for part in _search_all(program, todo, axis_sizes, options, accept, start, executor):
        found.extend(part.graphs)
        stats.merge(part.stats)
        if part.cut:
            cuts[part.cut] = cuts.get(part.cut, 0) + 1
        if progress is not None:
            progress(stats.plans, stats.plans_total)
    seen: set[object] = set()
    for cost, graph in sorted(found, key=lambda item: (item[0], len(item[1].kernels), item[1].origin)):
        if graph.kernel in seen:
            stats.duplicates += 1
            continue
        seen.add(graph.kernel)
        result.graphs.append(graph)
        result.costs.append(cost)
    stats.candidates = len(result.graphs)
    stats.seconds = time.perf_counter() - start
    stats.stop_reason = (
        "complete" if not cuts else "; ".join(f"{why} ({n} of {len(todo)} plans)" for why, n in cuts.items())
    )
    return result


def plan_by_plan(graphs: Sequence[tuple[MuGraph, float]]) -> list[tuple[MuGraph, float]]:
    """Graphs with their costs, the cheapest of each plan first, then the second cheapest of each, and so on."""
    by_plan: dict[str, list[tuple[MuGraph, float]]] = {}
    for item in graphs:
        by_plan.setdefault(item[0].origin, []).append(item)
    ranked = [
        (rank, cost, graph)
        for plan in by_plan.values()
        for rank, (graph, cost) in enumerate(sorted(plan, key=lambda item: item[1]))
    ]
    return [(graph, cost) for _, cost, graph in sorted(ranked, key=lambda item: item[:2])]


def operator_limit(program: AxisProgram, options: SearchOptions) -> int:
    """Block operators that a kernel may have: what the fused program needs, an accumulator per reduction, and slack."""
    if options.max_operators is not None:
        return options.max_operators
    compute = [n for n in program.nodes if n.op not in ("input", "constant", "size")]
    return len(compute) + sum(1 for n in compute if n.reduce) + SLACK


def _search_all(
    program: AxisProgram,
    todo: Sequence[Plan],
    axis_sizes: Mapping[str, int],
    options: SearchOptions,
    accept: Accept | None,
    start: float,
    executor: Executor | None,
) -> Iterator[_Found]:
    if executor is None:
        for k, plan in enumerate(todo):
            left = options.budget - (time.perf_counter() - start)
            # twice an even share of what is left, as others may need less; a quarter of it where plans are many
            share = max(2 * left / (len(todo) - k), left / 4)
            yield _search_plan(program, plan, axis_sizes, options, accept, min(left, share))
        return
    share = max(2 * options.budget / len(todo), options.budget / 4)
    futures = [executor.submit(_search_plan, program, plan, axis_sizes, options, accept, share) for plan in todo]
    for future in futures:
        yield future.result()


def _search_plan(
    program: AxisProgram,
    plan: Plan,
    axis_sizes: Mapping[str, int],
    options: SearchOptions,
    accept: Accept | None,
    budget: float,
) -> _Found:
    """The best graphs of one plan, within `budget` seconds."""
    if budget <= 0:
        return _Found([], SearchStats(), "budget spent before")
    return _PlanSearch(program, plan, axis_sizes, options, accept, time.perf_counter() + budget).run()


class _PlanSearch:
    def __init__(
        self,
        program: AxisProgram,
        plan: Plan,
        axis_sizes: Mapping[str, int],
        options: SearchOptions,
        accept: Accept | None,
        deadline: float,
    ) -> None:
        self.program = program
        self.plan = plan
        self.options = options
        self.accept = accept
        self.deadline = deadline
        self.limit = operator_limit(program, options)
        self.stats = SearchStats(plans=1)
        self.cost = CostModel(axis_sizes)
        self.al = Algebras(program, plan.parts())
        self.targets = [self.al.targets[o.value][1] for o in program.outputs]
        self.pruner = make_pruner(options.pruner, self.al.abstract, self.targets)
        # the ablations are those of abstract expressions: indices prune only beside the normal form
        forms = [self.al.targets[o.value][0] for o in program.outputs]
        self.indices = IndexPruner(self.al.exact, forms) if options.pruner == "normal-form" else None
        self.cut = ""

    def closure(self, kernel: KernelPlan, results: Sequence[Value] = ()) -> Closure:
        """All values of a kernel that reads the program's inputs and an earlier kernel's results."""
        now = time.perf_counter()
        deadline = now + (self.deadline - now) * CLOSURE_SHARE
        c = Closure(
            self.program, self.al, kernel, self.pruner, self.indices, self.targets, self.cost, self.stats,
            limit=self.limit, canonical=self.options.canonical, deadline=deadline,
        )  # fmt: skip
        for n, (form, poly) in zip(self.program.nodes, self.al.targets, strict=True):
            if n.op in ("input", "constant", "size"):
                c.leaf(form, poly, n)
        for v in results:
            c.leaf(v.form, v.poly, v)
        c.run()
        self.cut = self.cut or c.cut
        return c

    def goals(self, c: Closure) -> list[list[Value]]:
        """Per output: values that are it, or look like it (the verifier decides)."""
        found: list[list[Value]] = []
        for o in self.program.outputs:
            form, poly = self.al.targets[o.value]
            same = [v for v in c.values if v.form is form and v.derivations and not v.varying]
            alike = [
                v for v in c.values
                if v.poly is poly and v.form is not form and v.derivations and not v.varying and v.form.free == form.free
            ]  # fmt: skip
            found.append(same or alike)
        return found

    def extractions(self, c: Closure, **options: object) -> Iterator[Extraction]:
        """One extraction per choice of a value for each output, if every output has one.

        An output has several values where the exact form folds what the abstract expression keeps: 2 * x * 0.5 is x.
        """
        found = self.goals(c)
        if all(found):
            for after in (True, False):
                choices = [[v for v in vs if v.after is after] or vs[:after] for vs in found]
                for goals in itertools.islice(itertools.product(*choices), MAX_GOALS):
                    yield Extraction(goals, limit=self.limit, deadline=self.deadline, **options)  # type: ignore[arg-type]

    def take(self, extraction: Extraction, count: int) -> list[Choice]:
        """The first choices of an extraction."""
        choices = list(itertools.islice(extraction, count + 1))
        if len(choices) > count:
            self.cut = self.cut or f"the {count} cheapest first kernels kept"
        if not extraction.complete:
            self.cut = self.cut or "extraction limit"
        return choices[:count]

    def collect(
        self, extraction: Extraction, build: Callable[[Choice], list[tuple[float, list[tuple[KernelPlan, Choice]]]]]
    ) -> list[tuple[float, MuGraph]]:
        """The first `keep` accepted graphs that `build` makes of an extraction's choices, with their costs."""
        graphs: list[tuple[float, MuGraph]] = []
        for choice in extraction:
            if len(graphs) >= self.options.keep:
                self.cut = self.cut or f"the {self.options.keep} cheapest graphs kept"
                break
            for cost, kernels in build(choice):
                graph = assemble(self.program, kernels, str(self.plan))
                self.stats.graphs += 1
                if self.accept is None or self.accept(graph):
                    graphs.append((cost, graph))
                else:
                    self.stats.prune("not accepted")
        if not extraction.complete:
            self.cut = self.cut or "extraction limit"
        return graphs

    def run(self) -> _Found:
        graphs = self.one_kernel() if len(self.plan.kernels) == 1 else self.two_kernels()
        return _Found(graphs, self.stats, self.cut)

    def uses_plan(self, kernel: KernelPlan, choice: Choice) -> bool:
        """Whether the kernel's loop is used; otherwise the graph belongs to a plan without one."""
        return kernel.loop is None or any(d.op == "accumulator" for d in choice.chosen.values())

    def one_kernel(self) -> list[tuple[float, MuGraph]]:
        (kernel,) = self.plan.kernels
        c = self.closure(kernel)

        def build(choice: Choice) -> list[tuple[float, list[tuple[KernelPlan, Choice]]]]:
            return [(choice.cost + LAUNCH_NS, [(kernel, choice)])] if self.uses_plan(kernel, choice) else []

        return [found for extraction in self.extractions(c) for found in self.collect(extraction, build)]

    def storable(self, c: Closure, kernel: KernelPlan) -> list[Value]:
        """Values that a first kernel may hand on: reduced, finished with the loop, and with partials if it is split."""
        finished = {f for f, _ in (self.al.targets[o.value] for o in self.program.outputs)}
        found = []
        for v in c.values:
            split_part = f"{kernel.loop}.grid"
            if not v.derivations or v.varying or not v.form.bound or not v.form.free or v.form in finished:
                continue
            if kernel.loop is not None and not v.after:
                continue
            if kernel.split and split_part not in v.form.free:
                continue
            found.append(v)
        return found

    def two_kernels(self) -> list[tuple[float, MuGraph]]:
        first, second = self.plan.kernels
        c1 = self.closure(first)
        stored = self.storable(c1, first)
        if not stored:
            return []
        least: dict[Value, float] = {}
        for v in stored:
            cheapest = next(iter(Extraction([v], limit=self.limit, deadline=self.deadline)), None)
            least[v] = (cheapest.cost if cheapest else 0.0) + self.cost.transfer(kernel_axes(v, first))
        c2 = self.closure(second, stored)
        firsts: dict[frozenset[Value], list[Choice]] = {}

        def from_first(leaves: frozenset[Value]) -> list[Value]:
            return [v.source for v in leaves if isinstance(v.source, Value)]

        def build(choice: Choice) -> list[tuple[float, list[tuple[KernelPlan, Choice]]]]:
            results = sorted(from_first(choice.leaves), key=lambda v: v.number)
            if not results or not self.uses_plan(second, choice):
                return []
            key = frozenset(results)
            if key not in firsts:
                firsts[key] = self.take(Extraction(results, limit=self.limit, deadline=self.deadline), 2)
            hand_on = sum(self.cost.transfer(kernel_axes(v, first)) for v in results)
            rest = hand_on + choice.cost - sum(least[v] for v in results) + 2 * LAUNCH_NS
            return [(b.cost + rest, [(first, b), (second, choice)]) for b in firsts[key] if self.uses_plan(first, b)]

        found: list[tuple[float, MuGraph]] = []
        for extraction in self.extractions(
            c2,
            leaf_cost=lambda v: least[v.source] if isinstance(v.source, Value) else 0.0,
            accept_leaves=lambda leaves: len(from_first(leaves)) <= MAX_RESULTS,
        ):
            found += self.collect(extraction, build)
        return found
