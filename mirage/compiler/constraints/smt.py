"""Facts and goals about dims in Z3's integers.

Every call has a context of its own, because contexts are not safe for threads and their state would make answers
depend on earlier ones, and stops at a fixed number of Z3's steps instead of a time.
"""

from __future__ import annotations

import z3

from mirage.compiler.constraints.solved import Solved
from mirage.ir.dim_bounds import Interval
from mirage.ir.dims import Dim, FloorDiv, Maximum, Minimum, Modulo

#: Z3's resource units for one question: tens of milliseconds
RESOURCES = 400_000


class _Encoder:
    def __init__(self, solver: z3.Solver, context: z3.Context) -> None:
        self.solver = solver
        self.context = context
        self._known: dict[Dim, z3.ArithRef] = {}
        self._divisions: dict[tuple[Dim, ...], tuple[z3.ArithRef, z3.ArithRef]] = {}

    def dim(self, d: Dim) -> z3.ArithRef:
        if d not in self._known:
            self._known[d] = self._encoded(d)
        return self._known[d]

    def _encoded(self, d: Dim) -> z3.ArithRef:
        if d.is_Integer:
            return z3.IntVal(int(d), self.context)
        if d.is_Symbol:
            return z3.Int(d.name, self.context)
        if d.is_Pow:
            return z3.Product(*[self.dim(d.base)] * int(d.exp))
        if isinstance(d, FloorDiv | Modulo):
            return self._division(d.args)[isinstance(d, Modulo)]
        args = [self.dim(a) for a in d.args]
        if isinstance(d, Minimum | Maximum):
            found, *rest = args
            for x in rest:
                found = z3.If(x < found if isinstance(d, Minimum) else x > found, x, found)
            return found
        return z3.Sum(*args) if d.is_Add else z3.Product(*args)

    def _division(self, operands: tuple[Dim, ...]) -> tuple[z3.ArithRef, z3.ArithRef]:
        """Quotient, rounded down, and remainder; a divisor is never 0."""
        a, b = map(self.dim, operands)
        if operands[1].is_Integer:
            # canonical, so positive
            return a / b, a % b
        if operands not in self._divisions:
            k = len(self._divisions)
            q, r = z3.Int(f"quotient {k}", self.context), z3.Int(f"remainder {k}", self.context)
            self.solver.add(a == b * q + r, z3.Or(z3.And(r >= 0, r < b), z3.And(r <= 0, r > b)))
            self._divisions[operands] = q, r
        return self._divisions[operands]


def refuted(facts: Solved, goal: Dim, allowed: Interval, excluded: int | None = None) -> bool:
    """Whether no sizes that satisfy the facts put the goal in an interval, without an excluded value of it.

    False also where Z3 does not find out. Facts that share no symbol with the goal, directly or over others, are left
    out: they only matter where they contradict each other.
    """
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.set("rlimit", RESOURCES)
    encode = _Encoder(solver, context)
    symbols = facts.connected(goal)
    for s in sorted(symbols, key=lambda s: s.name):
        _within(encode, s, facts.range(s))
    for e in facts.equations:
        if e.free_symbols & symbols:
            solver.add(encode.dim(e) == 0)
    for e, values in facts.bounds:
        if e.free_symbols & symbols:
            _within(encode, e, values)
    for e, k in facts.congruences:
        if e.free_symbols & symbols:
            solver.add(encode.dim(e) % k == 0)
    _within(encode, goal, allowed)
    if excluded is not None:
        solver.add(encode.dim(goal) != excluded)
    return bool(solver.check() == z3.unsat)


def _within(encode: _Encoder, dim: Dim, values: Interval) -> None:
    if values.low is not None:
        encode.solver.add(encode.dim(dim) >= values.low)
    if values.high is not None:
        encode.solver.add(encode.dim(dim) <= values.high)
