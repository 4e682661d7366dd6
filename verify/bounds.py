"""The error bound of the random tests (Mirage, Theorems 2 and 3), computed for a graph at concrete sizes.

Every entry of every tensor is a fraction of sums of k terms f * exp(h / u) with polynomials f, h and u of
bounded degree; the bounds on k and the degrees follow from reading the operators' definitions over the
algebra of fractions. Two outputs N / D and N' / D' are equal iff N D' - N' D, which has at most k(N) k(D')
+ k(N') k(D) terms, is zero.

One test accepts a nonzero sum of k >= 2 such terms with probability at most 1 - 1/k + k^2 d / q + d / p:

- two of the exponents' values agree with probability at most 2 d / q per pair (Schwartz-Zippel mod q);
- a coefficient that is not zero vanishes with probability at most d / p (Schwartz-Zippel mod p);
- otherwise the sum's values at the powers of a generator of the roots of unity are a linear recurrence of
  order k that is not zero, so among any k of them in a row one is not zero: a random root hits zero with
  probability at most 1 - 1/k.

A function of a result of exp is a random function of its argument in *all* tests of a batch at once: arguments that
differ, by a sum of k' such terms, are equal in all n tests with probability at most that of n tests which miss it. With
C(calls, 2) pairs of arguments, a batch of n tests misses a difference with probability at most C(calls, 2) (1 - 1/k' + ...)^n
+ (1 - 1/k + ...)^n. The results are then as good as inputs, and Theorem 2 holds for what is made of them.

Sizes of dims and weights of sums (`mirage.verify.field.Measure`) are random values as inputs are: they count in the degrees.

The last two summands are the o(1/k) of Theorem 2, which needs d k^4 < q. For k <= 1 the bound is d / p. Tests in
which a denominator is zero are drawn again, and `Bound.error` accounts for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from fractions import Fraction
from functools import lru_cache
from functools import reduce as fold

import sympy

from mirage.errors import GraphError
from mirage.ir.functions import EXP, ScalarFunction, largest
from mirage.ir.operator import PRODUCTS, REDUCTIONS, Elementwise, get_operator, reduced_axes
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.verify.primes import Primes


@dataclass(frozen=True)
class Terms:
    """A sum of at most `count` terms f * exp(h / u), deg f <= `degree`, deg h <= `above`, deg u <=
    `below`.
    """

    count: int = 1
    degree: int = 0
    above: int = 0
    below: int = 0

    def __mul__(self, other: Terms) -> Terms:
        # the exponent 0 of a term without exp stays 0 over any denominator
        sides = (x.above + y.below for x, y in ((self, other), (other, self)) if x.has_exp)
        above = max(sides, default=0)
        return Terms(self.count * other.count, self.degree + other.degree, above, self.below + other.below)

    def __add__(self, other: Terms) -> Terms:
        return Terms(
            self.count + other.count if self.has_exp or other.has_exp else 1,
            max(self.degree, other.degree),
            max(self.above, other.above),
            max(self.below, other.below),
        )

    def __pow__(self, n: int) -> Terms:
        if n == 0:
            return ONE
        above = self.above + (n - 1) * self.below
        return Terms(self.count**n, self.degree * n, above, self.below * n)

    def times(self, n: int) -> Terms:
        """A sum of n such sums."""
        return Terms(self.count * n if self.has_exp else 1, self.degree, self.above, self.below)

    @property
    def has_exp(self) -> bool:
        return self.count > 1 or self.above > 0 or self.below > 0

    def larger(self, other: Terms) -> Terms:
        """A bound on either."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Terms(*(max(pair) for pair in pairs))

    @property
    def largest_degree(self) -> int:
        return max(self.degree, self.above, self.below)


ONE = Terms()


@dataclass(frozen=True)
class Factor:
    """A denominator: which quotient made it, its terms, and the axes that it varies over."""

    name: int
    terms: Terms
    axes: frozenset[str]


@dataclass(frozen=True)
class Quotient:
    """A bound on every entry of a tensor: numerator, powers of denominators, and the axes that it
    varies over.
    """

    above: Terms
    below: Mapping[Factor, int] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()

    def denominator(self) -> Terms:
        return math.prod((f.terms**n for f, n in self.below.items()), start=ONE)

    @property
    def has_exp(self) -> bool:
        return self.above.has_exp or any(f.terms.has_exp for f in self.below)


@dataclass
class Facts:
    """What the reading of a graph found besides its outputs."""

    factors: int = 0
    #: evaluations of random functions, and the largest degree of their arguments
    calls: int = 0
    call_degree: int = 0
    #: those whose argument is made of results of exp, and numerator and denominator of any such argument
    joint_calls: int = 0
    joint_above: Terms = ONE
    joint_below: Terms = ONE


class Fractions:
    """The algebra of `Quotient`s."""

    def __init__(self, facts: Facts, sizes: Mapping[str, int], weighted: bool) -> None:
        self.facts = facts
        self.sizes = sizes
        self.weighted = weighted

    def constant(self, value: Fraction) -> Quotient:
        return Quotient(ONE)

    def dim(self, size: sympy.Expr) -> Quotient:
        return Quotient(Terms(1, total_degree(size)) if self.weighted else ONE)

    def add(self, x: Quotient, y: Quotient) -> Quotient:
        below = {f: max(x.below.get(f, 0), y.below.get(f, 0)) for f in (*x.below, *y.below)}
        sides = [
            math.prod((f.terms ** (n - v.below.get(f, 0)) for f, n in below.items()), start=v.above) for v in (x, y)
        ]
        return Quotient(sides[0] + sides[1], below, x.axes | y.axes)

    sub = add

    def mul(self, x: Quotient, y: Quotient) -> Quotient:
        below = {f: x.below.get(f, 0) + y.below.get(f, 0) for f in (*x.below, *y.below)}
        return Quotient(x.above * y.above, below, x.axes | y.axes)

    def div(self, x: Quotient, y: Quotient) -> Quotient:
        return self.mul(x, Quotient(y.denominator(), self.factor(y.above, y.axes), y.axes))

    def factor(self, terms: Terms, axes: frozenset[str]) -> dict[Factor, int]:
        """A new denominator, unless it is a constant."""
        if terms == ONE:
            return {}
        self.facts.factors += 1
        return {Factor(self.facts.factors, terms, axes): 1}

    def neg(self, x: Quotient) -> Quotient:
        return x

    def function(self, fn: ScalarFunction, x: Quotient, *params: Fraction) -> Quotient:
        below = x.denominator()
        if fn is EXP and not x.has_exp and (x.above, below) != (ONE, ONE):
            return Quotient(Terms(1, 0, x.above.degree, below.degree), {}, x.axes)
        calls = math.prod(self.sizes.get(a, 1) for a in x.axes)
        if x.has_exp:
            self.facts.joint_calls += calls
            self.facts.joint_above = self.facts.joint_above.larger(x.above)
            self.facts.joint_below = self.facts.joint_below.larger(below)
        else:
            self.facts.calls += calls
            self.facts.call_degree = max(self.facts.call_degree, x.above.degree, below.degree)
        return Quotient(Terms(1, 1), {}, x.axes)

    def sum(self, x: Quotient, axes: Sequence[str], count: int) -> Quotient:
        """A sum of `count` entries along axes: denominators that vary along them are multiplied up."""
        gone = frozenset(axes)
        above = x.above.times(count)
        below: dict[Factor, int] = {}
        for f, n in x.below.items():
            if f.axes & gone and count > 1:
                above = above * f.terms ** (n * (count - 1))
                self.facts.factors += 1
                f = Factor(self.facts.factors, f.terms**count, f.axes - gone)
            below[f] = below.get(f, 0) + n
        return Quotient(above, below, x.axes - gone)


@lru_cache(maxsize=4096)
def total_degree(size: sympy.Expr) -> int:
    """The degree of a polynomial dim in all symbols together."""
    return max(sum(int(n) for b, n in m.as_powers_dict().items() if b.is_Symbol) for m in size.as_coefficients_dict())


class _Reading:
    """Reads a muGraph over `Fractions`, whose sums are weighted or not."""

    def __init__(self, graph: MuGraph, schedule: Schedule, sizes: Mapping[str, int], weighted: bool) -> None:
        self.sizes = dict(sizes)
        self.facts = Facts()
        self.algebra = Fractions(self.facts, self.sizes, weighted)
        # the last weight of an axis is its size less the others
        self.weights = {a: max(1, total_degree(d)) for a, d in graph.axes.items()} if weighted else {}
        schedules = iter(schedule.kernels)
        values: dict[tuple[int, int], Quotient] = {}
        for i, n in enumerate(graph.kernel.nodes):
            args = [values[r.node, r.out] for r in n.operands]
            if n.op == "input":
                values[i, 0] = Quotient(Terms(1, 1), {}, frozenset(n.axes()))
            elif n.op == "graph":
                assert n.graph is not None
                for k, v in enumerate(self.block(n.graph, args, next(schedules))):
                    values[i, k] = v
            else:
                values[i, 0] = self.node(n, args, _operand_axes(graph.kernel, n), self.sizes)
        self.outputs = [values[r.node, r.out] for r in graph.kernel.outputs]

    def block(self, graph: Graph, inputs: Sequence[Quotient], schedule: KernelSchedule) -> list[Quotient]:
        """Within the loop, a looped axis is an axis of the tile, and another, `axis.loop`, of the
        iterations.
        """
        # extents in an iteration, and after the loop
        tiles, sizes, loops = dict(self.sizes), dict(self.sizes), {}
        for a, role in graph.roles:
            per = sizes[a] if role is Role.WHOLE else schedule.bounds(graph, a, sizes[a])[1]
            if role in (Role.LOOP, Role.SPLIT):
                loops[a] = -(-per // schedule.tile[a])
            sizes[a] = min(sizes[a], per)
            tiles[a] = min(sizes[a], schedule.tile.get(a, per))
        marks = {a: {f"{a}.loop", *([partial_axis(a)] if graph.role[a] is Role.SPLIT else [])} for a in loops}
        values: list[Quotient] = []
        for i, n in enumerate(graph.nodes):
            args = [values[r.node] for r in n.operands]
            own = sizes if i in graph.after_loop else tiles
            if n.op == "input":
                x = inputs[n.attr["index"]]
                below: dict[Factor, int] = {}
                for f, k in x.below.items():
                    f = Factor(f.name, f.terms, _marked(f.axes, marks))
                    below[f] = below.get(f, 0) + k
                values.append(Quotient(x.above, below, _marked(x.axes, marks)))
            elif n.op == "accumulator":
                summed = graph.summed_loops(i)
                count = math.prod(loops[a] for a in summed)
                x = self.algebra.sum(args[0], [f"{a}.loop" for a in summed], count)
                values.append(_joined(x, marks, [a for a in loops if a not in summed]))
            elif n.op == "graph":
                assert n.graph is not None
                inner = tuple((a, own[a]) for a, _ in n.graph.roles)
                values.append(self.block(n.graph, args, KernelSchedule(inner))[0])
            else:
                values.append(self.node(n, args, _operand_axes(graph, n), own))
        return [values[r.node] for r in graph.outputs]

    def node(self, n: Node, args: list[Quotient], axes: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> Quotient:
        """A predefined operator over operands with these axes."""
        al = self.algebra
        if n.op in REDUCTIONS:
            products = [al.mul(args[i], args[j]) for i, j in PRODUCTS.get(n.op, ())] or args
            groups = reduced_axes(n.op, axes, n.reduce)

            def summed(x: Quotient, group: Sequence[str]) -> Quotient:
                weight = Quotient(Terms(1, sum(self.weights.get(a, 0) for a in group)))
                return al.sum(al.mul(x, weight), group, math.prod(sizes[a] for a in group))

            if n.op == "max":
                found: Quotient = largest(al, args[0], lambda x: summed(x, groups[0]))
                return found
            return fold(al.add, map(summed, products, groups))
        if n.op == "concat":
            # an entry is one of the operands': no more than their sum
            total = args[0]
            for x in args[1:]:
                total = self.algebra.add(total, x)
            return Quotient(total.above, total.below, total.axes | frozenset(n.axes()))
        op = get_operator(n.op)
        if not isinstance(op, Elementwise):
            raise GraphError(f"{n.op}: not an operator of a muGraph; expand the program first")
        result: Quotient = op.apply(self.algebra, args, n.attr)
        return result


def _operand_axes(graph: Graph, n: Node) -> list[tuple[str, ...]]:
    return [graph.nodes[r.node].axes(r.out) for r in n.operands]


def _joined(x: Quotient, marks: Mapping[str, set[str]], axes: Sequence[str]) -> Quotient:
    """Tiles put side by side along loop axes: what varied with the iteration or block varies with the axis."""

    def whole(seen: frozenset[str]) -> frozenset[str]:
        for a in axes:
            seen = seen - marks[a] | {a} if seen & marks[a] else seen
        return seen

    below: dict[Factor, int] = {}
    for f, k in x.below.items():
        f = Factor(f.name, f.terms, whole(f.axes))
        below[f] = below.get(f, 0) + k
    return Quotient(x.above, below, whole(x.axes))


def _marked(axes: frozenset[str], marks: Mapping[str, set[str]]) -> frozenset[str]:
    return axes.union(*(marks[a] for a in axes if a in marks))


@dataclass(frozen=True)
class GraphTerms:
    """Bounds on a graph's outputs at one set of sizes, and what its random functions cost."""

    outputs: tuple[tuple[Terms, Terms], ...]
    facts: Facts


def read_terms(graph: MuGraph, schedule: Schedule, sizes: Mapping[str, int], weighted: bool = True) -> GraphTerms:
    """Numerator and denominator of every output; `sizes` of all axes, partial ones included.

    `weighted` says whether sizes of dims and weights of sums are random values, or these sizes and ones.
    """
    r = _Reading(graph, schedule, sizes, weighted)
    outputs = tuple((v.above, v.denominator()) for v in r.outputs)
    return GraphTerms(outputs, r.facts)


@dataclass(frozen=True)
class Bound:
    """k and d of Theorem 2 for the difference of two graphs, and the probability that one test misses it.

    `pairs` of arguments of functions are made of results of exp; two that differ, by up to `argument_k` terms, are equal in
    one test with probability at most `collision`. Where there are any, all tests have to be made in one batch.
    """

    k: int
    d: int
    acceptance: float
    pairs: int = 0
    argument_k: int = 0
    collision: float = 0.0

    def error(self, tests: int, redrawn: int = 0) -> float:
        """Probability that a graph which differs passes so many tests while at most `redrawn` others divide by zero.

        Theorem 2 bounds the chance that one test has no zero denominator *and* misses; which of all tests had one is
        not known beforehand, hence the binomial. A whole batch is drawn again where functions join its tests.
        """
        if self.pairs:
            return min(1.0, (1 + redrawn) * (self.pairs * self.collision**tests + self.acceptance**tests))
        ways = math.log(math.comb(tests + redrawn, redrawn))
        return min(1.0, math.exp(ways + tests * math.log(self.acceptance)))

    def tests(self, delta: float, redrawn: int = 0) -> int:
        """Tests after which `error` is at most delta (Theorem 3)."""
        if self.pairs:
            share = delta / (2 * (1 + redrawn))
            return max(_tests(share, self.acceptance), _tests(share / self.pairs, self.collision))
        tests = _tests(delta, self.acceptance)
        while self.error(tests, redrawn) > delta:
            tests += 1
        return tests


def _tests(delta: float, acceptance: float) -> int:
    return max(1, math.ceil(math.log(delta) / math.log(acceptance)))


def compare(a: GraphTerms, b: GraphTerms, primes: Primes) -> Bound | str:
    """The bound for two graphs, or in words why there is none."""
    k = d = 1
    for (n1, d1), (n2, d2) in zip(a.outputs, b.outputs, strict=True):
        difference = n1 * d2 + n2 * d1
        k = max(k, difference.count)
        d = max(d, difference.largest_degree)
    zero = _zero(k, d, primes)
    if isinstance(zero, str):
        return zero
    # random functions: two different arguments that agree in both fields, in any pair of calls
    x, y = a.facts, b.facts
    degree = 2 * max(x.call_degree, y.call_degree)
    zero += math.comb(x.calls + y.calls, 2) * (degree / primes.p) * (degree / primes.q)
    if zero >= 1:
        return f"the bound for one test, {zero}, is not below 1"
    joint = x.joint_calls + y.joint_calls
    if joint == 0:
        return Bound(k, d, zero)
    product = x.joint_above.larger(y.joint_above) * x.joint_below.larger(y.joint_below)
    arguments = product + product
    collision = _zero(arguments.count, arguments.largest_degree, primes)
    if isinstance(collision, str):
        return f"a function is applied to a result of exp: {collision}"
    return Bound(k, d, zero, math.comb(joint, 2), arguments.count, collision)


def _zero(k: int, d: int, primes: Primes) -> float | str:
    """Probability that a sum of k terms of degree d that is not zero is zero in one test, or why no bound is known."""
    if d * k**4 >= primes.q:
        return f"d k^4 = {d} * {k}^4 is not below q = {primes.q}"
    return d / primes.p if k <= 1 else 1 - 1 / k + k * k * d / primes.q + d / primes.p
