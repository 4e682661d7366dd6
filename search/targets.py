"""Targets: the programs that equality saturation makes of a program, the cheapest ones that are not found without it.

The search of a program finds what has its exact form. What equals it by the identities of functions, by a cancellation, or only
after terms cancel (as a square of a difference multiplied out does), has another one, and is a target of its own.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mirage.errors import AxisError, TermTooLarge
from mirage.ir.axes import AxisProgram
from mirage.ir.functions import FUNCTIONS
from mirage.search.algebras import Algebras
from mirage.search.computed import fold
from mirage.search.cost import FLOP_NS, SUM_NS, matmul_ns
from mirage.search.steps import Steps, finish
from mirage.verify.rules.lower import lowered
from mirage.verify.rules.rewritten import Rewritten, rewriting
from mirage.verify.rules.saturate import MAX_SECONDS, Saturated, Saturation
from mirage.verify.rules.terms import COMMUTATIVE, Node, Terms, read

#: targets of one program
MAX_TARGETS = 3
#: ways that are kept of a term, and of an output of the program
WAYS, ROOT_WAYS = 3, 24
#: classes whose ways are looked for, again where those of their operands change, at most
MAX_IMPROVED = 2000
#: a target's operators take at most this share of the time that the program's take; and this one where no rule but those of
#: arithmetic leads to it, as the program's search has most of these forms
WORTH, WORTH_ARITHMETIC = 0.95, 0.85
#: ns per element that is read from memory
READ_NS = 0.1


@dataclass(frozen=True)
class Targets:
    """What saturation makes of a program: `programs`, cheapest first; `report` says how far it came, in words, and `cut` which
    bound ended it, if one did.
    """

    programs: tuple[Rewritten, ...] = ()
    report: str = ""
    cut: str = ""


def find_targets(
    program: AxisProgram, sizes: Mapping[str, int], constants: Collection[str] = (), seconds: float = MAX_SECONDS
) -> Targets:
    """The targets of a program at these sizes of its axes.

    `constants` are arguments whose contents never change: what follows from them alone is computed once, and only read.
    Saturation takes at most so many `seconds`; where they are infinite, its counts alone limit it.
    """
    return finish(finding_targets(program, sizes, constants, seconds))


def finding_targets(
    program: AxisProgram, sizes: Mapping[str, int], constants: Collection[str] = (), seconds: float = MAX_SECONDS
) -> Steps[Targets]:
    """`find_targets` in steps, of milliseconds mostly, and of some tenths of a second where a large target is checked; the
    seconds are those of its own work.
    """
    if fold(program).computed:
        # rules would take sums apart whose order keeps them exact
        return Targets((), "not tried: kernels compute inputs")
    if any(n.op == "max" for n in program.nodes):
        return Targets((), "not tried: no rule is known of maxima")
    terms = Terms(program.axes)
    roots = read(terms, program).outputs
    saturation = Saturation(terms, roots, seconds=seconds)
    while not saturation.advance(0.0):
        yield
    found = saturation.found
    report, cut = f"{found.nodes} terms, {found.stop_reason}", found.stop_reason if found.cut else ""
    prices = _Prices(terms, sizes, [x.name for x in program.inputs if x.argument in constants])
    ways = _Ways(found, prices)
    yield from ways.improve(roots)
    signatures = _Signatures(terms, program)
    yield
    own = signatures.of(roots)
    yield
    if own is None:
        return Targets((), report, cut)
    least = prices.of(roots)
    cheaper: list[tuple[float, tuple[int, ...], tuple[object, ...] | None]] = []
    for cost, outputs in ways.of(roots):
        if cost >= WORTH * least:
            break
        key = signatures.of(outputs)
        if key == own:
            # the search of the program itself finds this one, and all others cost as much
            least = cost
            break
        cheaper.append((cost, outputs, key))
        yield
    seen = {own, None}
    targets: list[Rewritten] = []
    for cost, outputs, key in cheaper:
        if key in seen or cost >= WORTH * least or len(targets) == MAX_TARGETS:
            continue
        target = yield from rewriting(found.graph, program, roots, outputs)
        if target is not None and (target.links or cost < WORTH_ARITHMETIC * least):
            seen.add(key)
            targets.append(target)
        yield
    return Targets(tuple(targets), report, cut)


class _Signatures:
    """What a search tells programs apart by: the exact forms and the abstract expressions of their outputs."""

    def __init__(self, terms: Terms, program: AxisProgram) -> None:
        self._terms = terms
        self._program = program
        self._algebras = Algebras(program, {})

    def of(self, outputs: Sequence[int]) -> tuple[object, ...] | None:
        """Those of a program with these terms as its outputs; None where it is too large, or has no operators."""
        try:
            program = lowered(self._terms, self._program, outputs)
            values = self._algebras.read(program)
        except (AxisError, TermTooLarge):
            return None
        return tuple(values[o.value] for o in program.outputs)


class _Prices:
    """What terms cost, in ns: the operators at these sizes, and what is read."""

    def __init__(self, terms: Terms, sizes: Mapping[str, int], constants: Collection[str]) -> None:
        self.terms = terms
        self.sizes = sizes
        self.constants = frozenset(constants)
        self._fixed: dict[int, bool] = {}
        self._scalars: dict[int, bool] = {}
        self._parts: dict[int, tuple[float, tuple[int, ...]]] = {}
        self._wholes: dict[int, tuple[float, int]] = {}
        self._sums: dict[int, float] = {}

    def fixed(self, x: int) -> bool:
        """Whether a term follows from constants alone, but is not a number."""
        found = self._fixed.get(x)
        if found is None:
            node = self.terms.nodes[x]
            if node.op == "input":
                found = node.data[0] in self.constants
            else:
                found = False
                if self.constants:
                    found = any(map(self.fixed, node.args)) and all(self.fixed(a) or self._scalar(a) for a in node.args)
            self._fixed[x] = found
        return found

    def _scalar(self, x: int) -> bool:
        found = self._scalars.get(x)
        if found is None:
            node = self.terms.nodes[x]
            found = node.op in ("constant", "size") or (bool(node.args) and all(map(self._scalar, node.args)))
            self._scalars[x] = found
        return found

    def volume(self, axes: Collection[str]) -> float:
        return math.prod(self.sizes[a] for a in axes)

    def parts(self, x: int) -> tuple[float, tuple[int, ...]]:
        """What a term costs by itself, and the terms that are computed for it."""
        found = self._parts.get(x)
        if found is None:
            found = self._parts[x] = self._find_parts(x)
        return found

    def _find_parts(self, x: int) -> tuple[float, tuple[int, ...]]:
        node, axes = self.terms.nodes[x], self.terms.axes[x]
        if node.op == "input" or self.fixed(x):
            return READ_NS * self.volume(axes), ()
        if node.op in ("constant", "size") or self._scalar(x):
            return 0.0, ()
        if node.op == "sum":
            inside = self.terms.nodes[node.args[0]]
            if inside.op == "mul" and not self.fixed(node.args[0]):
                u, v = (self.terms.axes[a] for a in inside.args)
                if set(node.data) <= u & v:
                    return matmul_ns(tuple(u), tuple(v)) * self.volume(u | v), inside.args
            return SUM_NS * self.volume(self.terms.axes[node.args[0]]), node.args
        return self._flops(node) * FLOP_NS * self.volume(axes), node.args

    def _flops(self, node: Node) -> float:
        match node.op:
            case "function":
                return FUNCTIONS[node.data[0]].flops
            case "div":
                return 4.0
            case "concat":
                return SUM_NS / FLOP_NS
            case "mul" if any(self.terms.number(a) == -1 for a in node.args):
                # a sum with it is a difference, mostly
                return 0.25
        return 1.0

    def of(self, outputs: Sequence[int]) -> float:
        """What terms cost together, where what they share is computed once."""
        cost, all_below = 0.0, 0
        for x in outputs:
            mine, below = self._whole(x)
            cost += mine - self._sum(below & all_below)
            all_below |= below
        return cost

    def whole(self, x: int) -> float:
        """What a term costs, where what it uses more than once is computed once."""
        return self._whole(x)[0]

    def _whole(self, x: int) -> tuple[float, int]:
        """What a term costs, and all that is computed for it, as a bit set of terms."""
        found = self._wholes.get(x)
        if found is None:
            price, parts = self.parts(x)
            bits = 0
            for y in parts:
                cost, below = self._whole(y)
                price += cost - self._sum(below & bits)
                bits |= below
            found = self._wholes[x] = price, bits | 1 << x
        return found

    def _sum(self, bits: int) -> float:
        """What a set of terms costs, each by itself."""
        found = self._sums.get(bits)
        if found is None:
            found, left = 0.0, bits
            while left:
                lowest = left & -left
                found += self.parts(lowest.bit_length() - 1)[0]
                left ^= lowest
            self._sums[bits] = found
        return found


@dataclass
class _Class:
    ways: dict[int, float] = field(default_factory=dict)
    uses: set[int] = field(default_factory=set)


class _Ways:
    """The cheapest terms of each class."""

    def __init__(self, found: Saturated, prices: _Prices) -> None:
        self.graph = found.graph
        self.terms = found.terms
        self.prices = prices
        self._classes = {root: _Class() for root in self.graph.classes()}
        self._roots: frozenset[int] = frozenset()
        for root in self._classes:
            for node in self._nodes(root):
                for a in node.args:
                    self._classes[self.graph.find(a)].uses.add(root)

    def improve(self, roots: Sequence[int]) -> Steps[None]:
        """Find them, from small terms to large ones, until nothing is cheaper; a step per class."""
        self._roots = frozenset(map(self.graph.find, roots))
        for x in roots:
            self._know(x)
        todo = [(self.terms.count[self.graph.best[root]], root) for root in self._classes]
        heapq.heapify(todo)
        waiting = set(self._classes)
        for _ in range(MAX_IMPROVED):
            if not todo:
                break
            # what is made of a term changes with it, and so has to come after it
            _, root = heapq.heappop(todo)
            waiting.remove(root)
            if self._improve(root):
                for user in self._classes[root].uses - waiting:
                    heapq.heappush(todo, (self.terms.count[self.graph.best[user]], user))
                waiting |= self._classes[root].uses
            yield

    def _nodes(self, root: int) -> list[Node]:
        return [node for nodes in self.graph.nodes(root).values() for node in nodes]

    def _know(self, x: int) -> None:
        """The program's own terms are ways, too."""
        for a in self.terms.nodes[x].args:
            self._know(a)
        self._classes[self.graph.find(x)].ways.setdefault(x, self.prices.whole(x))

    def _improve(self, root: int) -> bool:
        """Find ways of a class from those of its operands; whether there are new ones."""
        mine = self._classes[root]
        ways = dict(mine.ways)
        count = ROOT_WAYS if root in self._roots else WAYS
        most = list(ways.values())[-1] if len(ways) == count else math.inf
        for node in self._nodes(root):
            below = [self._classes[self.graph.find(a)].ways for a in node.args]
            for args in itertools.product(*below):
                if node.op == "sum" and not self.terms.axes[args[0]].issuperset(node.data):
                    # a product with the number of its terms, which is a way of its own
                    continue
                if node.op in COMMUTATIVE and len(below) == 2 and below[0] is below[1] and args[0] > args[1]:
                    continue
                # a sum of a product may cost less than the product
                if node.op != "sum" and any(w[a] > most for w, a in zip(below, args, strict=True)):
                    continue
                x = self.terms.intern(node.op, node.data, args)
                if x not in ways:
                    ways[x] = self.prices.whole(x)
        kept = dict(sorted(ways.items(), key=lambda way: (way[1], self.terms.count[way[0]], way[0]))[:count])
        if kept.keys() == mine.ways.keys():
            return False
        for x in kept:
            self.graph.add(x)
        mine.ways = kept
        return True

    def of(self, roots: Sequence[int]) -> list[tuple[float, tuple[int, ...]]]:
        """Ways of several terms together, cheapest first."""
        per_root = [list(self._classes[self.graph.find(x)].ways)[: ROOT_WAYS if len(roots) == 1 else WAYS] for x in roots]
        found = [(self.prices.of(xs), xs) for xs in itertools.islice(itertools.product(*per_root), 64)]
        return sorted(found)
