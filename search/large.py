"""Graphs of programs that are too large to be searched whole: their pieces are searched, and the graphs of these joined.

First the pieces of the partition that would be best if each were one kernel without repeated work are kernels of the program's
own operators, then the atoms are. Then these are searched, and one piece after another, the one first that could improve the best
partition most. Equal pieces, such as the norms of a transformer's layer, are searched once. Of the products that are kernels of
their own, the largest may be library calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mirage.cache.records import sha256
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import Canonical, canonical_key
from mirage.ir.dims import evaluate
from mirage.ir.operator import PRODUCTS
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Node, Role
from mirage.mugraph.predefined import single_operators, with_predefined
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.rename import rename_mugraph
from mirage.search.checkpoint import Checkpoint
from mirage.search.computed import SOURCES, fold
from mirage.search.cuts import MAX_OPERATORS, Atoms, Cuts
from mirage.search.generate import undominated
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.search.options import SearchOptions
from mirage.search.partitions import Partition, Way, cheapest, most_promising
from mirage.search.pieces import join, piece_of
from mirage.search.prices import Prices
from mirage.search.stream import Search
from mirage.search.units import Accept

#: operators of a program that whoever cuts larger ones may leave together: within seconds, the pieces of as many are searched
LARGEST = 50
#: seconds of the search of a piece in the first round, and how many times as many in each round after it
PIECE_SECONDS, LONGER = 0.5, 4.0
#: seconds of the search of a piece between two steps of the stream
SLICE_S = 0.05
#: as many steps, where these are counted
PIECE_STEPS = 1000
#: partitions that are returned before better ones are known, so that measurements have a choice
PARTITIONS = 4
#: graphs of a piece that the variants of the best partition take
VARIANTS = 4
#: sizes of products from which on they are library calls, each in a graph of its own
MIXES = 3


@dataclass(frozen=True)
class Found:
    """Graphs of the same kernels, without library calls and with more and more of them, and what they cost as modelled (ns)."""

    graphs: list[MuGraph]
    cost: float


def is_large(program: AxisProgram) -> bool:
    """Whether a program has more operators than a piece, so that its search as a whole might find nothing in time."""
    return sum(n.op not in SOURCES for n in fold(program).core.nodes) > MAX_OPERATORS


class LargeSearch:
    """Graphs of a program, none twice, and none that `accept` refuses: the first at once, then better ones as more pieces
    are searched, then variants of the best.

    An item without graphs says that a search found nothing new: at any item the caller may stop, and with `advance` at any
    step. The stream ends when nothing is left to search, or `options.budget` is spent, after which at least one partition is
    returned; `resume` gives it more time. `sizes` are those of the dim symbols, at which costs are compared. What is finished of
    pieces is written to the `checkpoint`, and not searched again. What equals a piece of `beside` is searched once for both, in
    the time that `beside` has. Raises SearchError for impossible options.
    """

    def __init__(
        self,
        program: AxisProgram,
        sizes: Mapping[str, int],
        options: SearchOptions | None = None,
        accept: Accept | None = None,
        checkpoint: Checkpoint | None = None,
        beside: LargeSearch | None = None,
    ) -> None:
        # pieces have inputs of their own
        options = replace(options or SearchOptions(), constants=())
        options.check()
        self.folded = fold(program)
        self.program = program = self.folded.core
        self.accept = accept
        self.axis_sizes = axis_sizes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
        self.cuts = Cuts(program, axis_sizes)
        self.pieces = {p: piece_of(program, self.cuts.nodes(p)) for p in self.cuts.pieces}
        self.prices = Prices.of(program, axis_sizes, options)
        self.searches: _Searches = beside.searches if beside is not None else _Searches(sizes, options, checkpoint)
        #: what every piece costs as one kernel (ns)
        self.estimates = {p: self.prices.together(piece.program) for p, piece in self.pieces.items()}
        #: the ways to run the pieces that were searched, as modelled, the cheapest first
        self.ways: dict[Atoms, list[Way]] = {}
        #: the same as measured, where their kernels were; made when they are needed
        self._priced: dict[Atoms, list[Way]] = {}
        #: numbers of kernels, as nodes without operands; those of each way; and what kernels took (us)
        self._numbers: dict[Node, int] = {}
        self._kernels: dict[Way, tuple[int, ...]] = {}
        self._took: dict[int, float] = {}
        #: whether these have changed since the best partition was looked for
        self._repriced = False
        #: seconds, or steps, of the search of a piece, infinite where it is complete
        self.spent: dict[Atoms, float] = {}
        self.seen: set[object] = set()
        #: whether the first graphs were returned, the stream has ended, and nothing is left to search
        self.begun = self.done = self.complete = False
        #: the steps that the searches of pieces have taken for it
        self.steps = 0
        self._interrupted = False
        self._items = self._all()

    def __iter__(self) -> Iterator[Found]:
        return self

    def __next__(self) -> Found:
        found = next((item for item in self._items if item is not None), None)
        if found is None:
            self.done = True
            raise StopIteration
        return found

    def advance(self, seconds: float) -> list[Found]:
        """Go on for about so many seconds, or until there are graphs; what was found. Each call until it has `begun` ends with
        graphs, whatever time that takes; every call takes one step.
        """
        end = time.perf_counter() + seconds
        if self._repriced:
            self._repriced = False
            if (found := self.next()).graphs:
                return [found]
        for item in self._items:
            if item is not None and item.graphs:
                return [item]
            if self.begun and time.perf_counter() >= end:
                return []
        self.done = True
        return []

    def interrupt(self) -> None:
        """End it, and say so."""
        self._interrupted = self.done = True

    @property
    def stop_reason(self) -> str:
        """ "complete", or why it is not, if it ends here."""
        if self.complete:
            return "complete"
        return f"{INTERRUPTED if self._interrupted else OUT_OF_TIME} (pieces left)"

    def resume(self, seconds: float) -> None:
        """Go on for so many seconds more, also after an interrupt."""
        if not self.complete:
            self.done = self._interrupted = False
            self.searches.resume(seconds)
            # what is known is not searched again
            self._items = self._all()

    def save(self) -> None:
        """Write what is finished to the checkpoint, once it is worth a file."""
        self.searches.save()

    def measured(self, kernels: Mapping[Node, float]) -> None:
        """What kernels take on the machine (us), by their nodes without operands. From now on these are what the ways to run a
        piece with them cost, in proportion to what all others cost as modelled.
        """
        took = {self._numbers[n]: us for n, us in kernels.items() if n in self._numbers}
        if took == self._took:
            return
        self._took = took
        self._repriced = self.begun
        self._priced.clear()
        if self.done and not self._interrupted:
            self.done = False
            self._items = self._cheapest()

    @property
    def work(self) -> tuple[int, int]:
        """The prefixes that the searches of pieces have built, and their checks."""
        return self.searches.work

    def _all(self) -> Iterator[Found | None]:
        """All items, and None between steps of the work."""
        atoms = [1 << k for k in range(len(self.cuts.atoms))]
        best, *_ = cheapest(self.cuts, {p: [Way(cost)] for p, cost in self.estimates.items()}, 1)
        coarse = [piece for piece, _ in best.steps]
        for pieces in (atoms, coarse):
            yield from self._searched(pieces, 0.0)
        yield self.next()
        # a graph of as many kernels as there can be, where fewer are not faster on the machine
        apart, *_ = cheapest(self.cuts, {atom: self.ways[atom] for atom in atoms}, 1)
        self.begun = True
        yield self.found(apart)
        for pieces in (atoms, coarse):
            yield from self._searched(pieces, self.searches.first)
            yield self.next()
        yield from self.improved()
        yield from self._cheapest()
        self.complete = not self.searches.stopped

    def _cheapest(self) -> Iterator[Found]:
        for partition in self.partitions():
            yield self.found(partition)
        yield from self.variants()

    def _searched(self, pieces: Sequence[Atoms], limit: float) -> Iterator[None]:
        """Search these pieces, but for those that have had so many seconds, or steps."""
        for piece in pieces:
            if self.spent.get(piece, -1.0) < limit:
                yield from self.search(piece, limit)

    def improved(self) -> Iterator[Found | None]:
        """Partitions, while pieces are searched that could improve them, in rounds that give each one more."""
        limit = self.searches.first
        while True:
            fresh = False
            while not self.searches.stopped and (piece := self.promising(limit)) is not None:
                yield from self.search(piece, limit)
                fresh = True
                yield self.next()
            if not fresh and limit > self.searches.first:
                return
            limit *= LONGER

    def search(self, piece: Atoms, limit: float) -> Iterator[None]:
        """Search a piece for so many seconds, or steps, of which it may have had some."""
        program = self.pieces[piece].program
        canonical = canonical_key(program)
        shared = self.searches.of(program, canonical)
        for steps in self.searches.run(shared, limit):
            self.steps += steps
            yield
        found = shared.graphs(program, canonical) if shared is not None else []
        self.spent[piece] = self.searches.had(shared, limit)
        ways = [Way(cost, _splits(graph), graph) for graph, cost in found]
        if all(way.splits for way in ways):
            # so that there is a way beside every other piece
            ways.append(Way(self.prices.apart(program), graph=reference_graph(program)))
        for way in self.ways.get(piece, ()):
            self._kernels.pop(way, None)
        self.ways[piece] = sorted(ways, key=lambda way: way.cost)
        self._kernels |= {way: self._numbered(way.graph) for way in ways if way.graph is not None}
        self._priced.clear()

    def _numbered(self, graph: MuGraph) -> tuple[int, ...]:
        operators = [replace(n, operands=()) for n in graph.kernel.nodes if n.op not in SOURCES]
        return tuple(self._numbers.setdefault(n, len(self._numbers)) for n in operators)

    def priced(self) -> Mapping[Atoms, list[Way]]:
        """The ways to run the pieces that were searched, the cheapest first: what was measured of their kernels is divided by how
        much slower than modelled such ways are, so that it compares with what others cost.
        """
        if not self._priced:
            took = {
                way: 1e3 * sum(self._took[k] for k in kernels)
                for way, kernels in self._kernels.items()
                if self._took.keys() >= set(kernels)
            }
            slower = median([ns / way.cost for way, ns in took.items()] or [1.0])
            self._priced = {
                p: sorted((replace(w, cost=took[w] / slower) if w in took else w for w in ways), key=lambda w: w.cost)
                for p, ways in self.ways.items()
            }
        return self._priced

    def promising(self, limit: float) -> Atoms | None:
        """The piece whose search, up to this limit, could improve the best partition most, or None."""
        known = {p: ways[0].cost for p, ways in self.priced().items()}
        open_ = {p: cost for p, cost in self.estimates.items() if self.spent.get(p, 0.0) < limit}
        found = most_promising(self.cuts, known, open_)
        return found[0] if found is not None and found[1] < self.partitions()[0].cost else None

    def partitions(self) -> list[Partition]:
        """The cheapest partitions of what is known."""
        return cheapest(self.cuts, {p: _alternatives(ways) for p, ways in self.priced().items()}, PARTITIONS)

    def next(self) -> Found:
        """The cheapest partition that was not returned, if one of the best is not."""
        fresh = (found for p in self.partitions() if (found := self.found(p)).graphs)
        return next(fresh, Found([], math.inf))

    def variants(self) -> Iterator[Found]:
        """The best partition with other graphs of one piece, the pieces that cost most first."""
        best = self.partitions()[0]
        steps = dict(best.steps)
        for piece in sorted(steps, key=lambda p: -steps[p].cost):
            others = best.splits - steps[piece].splits
            for way in [w for w in self.priced()[piece] if not w.splits & others][:VARIANTS]:
                changed = tuple((p, way if p == piece else w) for p, w in best.steps)
                yield self.found(Partition(changed, best.cost - steps[piece].cost + way.cost))

    def found(self, partition: Partition) -> Found:
        """The graphs of a partition that are accepted, and were not returned before."""
        if partition.key in self.seen:
            return Found([], partition.cost)
        self.seen.add(partition.key)
        steps = [(self.pieces[p], way.graph) for p, way in partition.steps if way.graph is not None]
        graph = self.folded.expand(join(self.program, steps))
        structure = structure_key(graph)
        if structure in self.seen:
            return Found([], partition.cost)
        self.seen.add(structure)
        forms = [graph, *self.mixed(graph)]
        return Found([g for g in forms if self.accept is None or self.accept(g)], partition.cost)

    def mixed(self, graph: MuGraph) -> list[MuGraph]:
        """The graph with library calls for its largest products, for more and more of them, and for all that libraries have."""
        single = single_operators(graph)
        work = {
            i: math.prod(self.axis_sizes[a] for a in {*operator.axes(), *operator.reduce})
            for i, operator in single.items()
            if operator.op in PRODUCTS
        }
        sizes = sorted(set(work.values()), reverse=True)[:MIXES]
        chosen = [frozenset(i for i, n in work.items() if n >= least) for least in sizes]
        return [with_predefined(graph, only) for only in dict.fromkeys([*chosen, frozenset(single)]) if only]


@dataclass
class _Shared:
    """The search of all pieces that are equal, in the names of the first, and the steps it has had where they are counted."""

    canonical: Canonical
    search: Search
    steps: int = 0

    def graphs(self, program: AxisProgram, canonical: Canonical) -> list[tuple[MuGraph, float]]:
        """What it has found, as graphs of one of the pieces, with their costs, cheapest first."""
        renaming = self.canonical.renaming_to(canonical)
        # library calls are made of the whole graph
        graphs = [(g, f.cost) for f in undominated(self.search.found) for g in f.graphs if not _calls_library(g)]
        return [(rename_mugraph(g, renaming, program), c) for g, c in graphs]


class _Searches:
    """Searches of pieces, one for all that are equal; until the budget of `options` is spent, or its steps are, where they are
    counted. `first` is what a piece may take in the first round: seconds, or steps.
    """

    def __init__(self, sizes: Mapping[str, int], options: SearchOptions, checkpoint: Checkpoint | None) -> None:
        self.sizes = sizes
        self.options = options
        self.checkpoint = checkpoint
        self.deadline = time.perf_counter() + options.budget
        self.first = PIECE_SECONDS if options.steps is None else float(PIECE_STEPS)
        self._left = options.steps
        self.known: dict[object, _Shared] = {}

    @property
    def stopped(self) -> bool:
        return time.perf_counter() >= self.deadline if self._left is None else self._left <= 0

    @property
    def work(self) -> tuple[int, int]:
        stats = [shared.search.stats for shared in self.known.values()]
        return sum(s.prefixes for s in stats), sum(s.checks for s in stats)

    def resume(self, seconds: float) -> None:
        """Search for so many seconds more, or as many steps as before."""
        self.deadline = time.perf_counter() + seconds
        self._left = self.options.steps
        for shared in self.known.values():
            shared.search = shared.search.anew()

    def save(self) -> None:
        seconds = sum(shared.search.seconds for shared in self.known.values())
        for shared in self.known.values():
            shared.search.save(within=seconds)

    def of(self, program: AxisProgram, canonical: Canonical) -> _Shared | None:
        """The search of a piece, and of all that equal it; None for a new one where nothing is left."""
        axes = canonical.renaming.inverse().axes
        key = canonical.text, tuple(evaluate(program.axes[axes[a]], self.sizes) for a in canonical.program.axes)
        if key not in self.known and not self.stopped:
            self.known[key] = _Shared(canonical, self._search(program, canonical))
        return self.known.get(key)

    def run(self, shared: _Shared | None, limit: float) -> Iterator[int]:
        """Let a search go on until it has had so many seconds, or steps, and at least the piece's own operators in one kernel, or
        until nothing is left; the steps that it takes, now and then.
        """
        while shared is not None and not (search := shared.search).done and not self.stopped:
            had = search.seconds if self._left is None else shared.steps
            if had >= limit and search.begun:
                break
            before = search.steps
            if self._left is None:
                search.advance(min(max(limit - had, 0.0), self.deadline - time.perf_counter(), SLICE_S))
            else:
                # without time, each call takes one step
                search.advance(0.0)
                shared.steps += 1
                self._left -= 1
            yield search.steps - before
        self.save()

    def had(self, shared: _Shared | None, limit: float) -> float:
        """How many seconds, or steps, a search has had that was to have so many; infinite where it is complete."""
        if shared is not None and shared.search.done:
            return math.inf
        # a search that ended for all has not had what it might have
        return 0.0 if shared is None or self.stopped else limit

    def _search(self, program: AxisProgram, canonical: Canonical) -> Search:
        # of equal pieces, which have other names, the one that is searched may be another one the next time
        name = sha256(f"{canonical.text}\n{canonical.renaming}")[:16]
        checkpoint = self.checkpoint.part(f"piece {name}") if self.checkpoint is not None else None
        stable = analyze(reference_graph(program)).safe
        return Search(program, self.sizes, self.options, accept=_is_stored, safe=stable, checkpoint=checkpoint)


def _calls_library(graph: MuGraph) -> bool:
    return any(n.op != "graph" and n.op not in SOURCES for n in graph.kernel.nodes)


def _is_stored(graph: MuGraph) -> bool:
    """Whether the results are stored as other pieces read them: not without the axes of a value that is the same along them."""
    stored = [graph.kernel.nodes[r.node].dims[r.out] for r in graph.kernel.outputs]
    return stored == [o.dims for o in graph.outputs]


def _splits(graph: MuGraph) -> frozenset[str]:
    roles = (pair for n in graph.kernels if n.graph is not None for pair in n.graph.roles)
    return frozenset(a for a, role in roles if role is Role.SPLIT and a in graph.axes)


def _alternatives(ways: list[Way]) -> list[Way]:
    """Of ways, cheapest first, those for which no cheaper one splits no other axes."""
    kept: list[Way] = []
    for way in ways:
        if not any(k.splits <= way.splits for k in kept):
            kept.append(way)
    return kept
