"""The SMT pruner: the axioms of Mirage, Table 2, stated to Z3.

It prunes as the paper does, one query for each abstract expression, and is the oracle for the normal form of
`mirage.search.abstract`. Axioms of the user's own go through it as well.

An answer is a function of the two terms and the limit alone: quantifiers are instantiated by E-matching, up
to a fixed number of instances; seeds are fixed; no clock is read; and each query has its own Z3 context,
because the instances that come first depend on the terms that a context has seen before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from fractions import Fraction
from functools import reduce
from typing import assert_never

import sympy
import z3

from mirage.ir.functions import ScalarFunction
from mirage.search.abstract import Axis, Call, Constant, Dim, Monomial, Poly, Tensor

MAX_INSTANCES = 1000  # quantifier instances of one query
MAX_MEMORY_MB = 1024  # of Z3, all contexts of the process together

Axioms = Callable[["SmtAlgebra"], Iterable[z3.BoolRef]]

# contexts are not safe for threads: each thread has the axioms in one of its own
_stated = threading.local()

_OPTIONS = {
    "auto_config": False,
    "ematching": True,
    "mbqi": False,
    "random_seed": 0,
    # instantiate for every term, not for those alone that the current assignment depends on: of random
    # entailed pairs, 342 of 373 are proved in 1,000 instances instead of 314
    "relevancy": 0,
    "max_memory": MAX_MEMORY_MB,
}


class SmtAlgebra:
    """The `TensorAlgebra` of Z3 terms over an uninterpreted sort of expressions and one of axis parts.

    Atoms are constants of the sort: one for each tensor, number, dim size and axis part. A scalar function is
    one uninterpreted unary function for each (name, parameters). Owns its Z3 context.
    """

    def __init__(self) -> None:
        self.context = z3.Context()
        self.expression = z3.DeclareSort("Expression", self.context)
        self.part = z3.DeclareSort("Part", self.context)
        e = self.expression
        self._add = z3.Function("add", e, e, e)
        self._mul = z3.Function("mul", e, e, e)
        self._div = z3.Function("div", e, e, e)
        self._sum = z3.Function("sum", self.part, e, e)
        self._subexpr = z3.Function("subexpr", e, e, z3.BoolSort(self.context))
        self._functions: dict[tuple[str, tuple[Fraction, ...]], z3.FuncDeclRef] = {}
        self._terms: dict[Poly, z3.ExprRef] = {}

    # --- the algebra -----------------------------------------------------------------------------------

    def tensor(self, name: str) -> z3.ExprRef:
        return z3.Const(f"tensor {name}", self.expression)

    def constant(self, value: Fraction) -> z3.ExprRef:
        return z3.Const(f"constant {value}", self.expression)

    def dim(self, size: sympy.Expr) -> z3.ExprRef:
        return z3.Const(f"dim {sympy.srepr(size)}", self.expression)

    def add(self, x: z3.ExprRef, y: z3.ExprRef) -> z3.ExprRef:
        return self._add(x, y)

    def neg(self, x: z3.ExprRef) -> z3.ExprRef:
        return self._mul(self.constant(Fraction(-1)), x)

    def sub(self, x: z3.ExprRef, y: z3.ExprRef) -> z3.ExprRef:
        return self._add(x, self.neg(y))

    def mul(self, x: z3.ExprRef, y: z3.ExprRef) -> z3.ExprRef:
        return self._mul(x, y)

    def div(self, x: z3.ExprRef, y: z3.ExprRef) -> z3.ExprRef:
        return self._div(x, y)

    def sum(self, x: z3.ExprRef, parts: frozenset[str]) -> z3.ExprRef:
        for name in sorted(parts):
            x = self._sum(z3.Const(f"part {name}", self.part), x)
        return x

    def function(self, fn: ScalarFunction, x: z3.ExprRef, *params: Fraction) -> z3.ExprRef:
        key = (fn.name, params)
        if key not in self._functions:
            name = f"function {' '.join([fn.name, *map(str, params)])}"
            self._functions[key] = z3.Function(name, self.expression, self.expression)
        return self._functions[key](x)

    def subexpr(self, x: z3.ExprRef, y: z3.ExprRef) -> z3.BoolRef:
        """The relation of the paper's A_sub."""
        return self._subexpr(x, y)

    # --- axioms ----------------------------------------------------------------------------------------

    def axioms(self) -> list[z3.BoolRef]:
        """A_eq and A_sub of Table 2, with subexpr(x, f(x)) for each function that a term has used so far.

        Each sum is over one axis part, so that sum(i, sum(j, x)) = sum(i * j, x) reduces to the order of sums
        not mattering, and sum(1, x) = x to no sum at all.
        """
        x = z3.Const("x", self.expression)
        operators, orders = _table()
        # copied from another context, which takes a tenth of the time that stating them takes
        return [
            *operators.translate(self.context),
            *(z3.ForAll([x], self._subexpr(x, function(x))) for function in self._functions.values()),
            *orders.translate(self.context),
        ]

    def _stated(self) -> tuple[list[z3.BoolRef], list[z3.BoolRef]]:
        """The axioms that hold whatever functions there are: of the operators, and of the relation alone."""
        x, y, z = (z3.Const(name, self.expression) for name in "xyz")
        i, j = (z3.Const(name, self.part) for name in "ij")
        add, mul, div, sum_, sub = self._add, self._mul, self._div, self._sum, self._subexpr
        equivalences = [
            ((x, y), add(x, y), add(y, x)),
            ((x, y), mul(x, y), mul(y, x)),
            ((x, y, z), add(x, add(y, z)), add(add(x, y), z)),
            ((x, y, z), mul(x, mul(y, z)), mul(mul(x, y), z)),
            ((x, y, z), add(mul(x, z), mul(y, z)), mul(add(x, y), z)),
            ((x, y, z), add(div(x, z), div(y, z)), div(add(x, y), z)),
            ((x, y, z), mul(x, div(y, z)), div(mul(x, y), z)),
            ((x, y, z), div(div(x, y), z), div(x, mul(y, z))),
            ((x, i, j), sum_(i, sum_(j, x)), sum_(j, sum_(i, x))),
            ((x, y, i), sum_(i, add(x, y)), add(sum_(i, x), sum_(i, y))),
            ((x, y, i), sum_(i, mul(x, y)), mul(sum_(i, x), y)),
            ((x, y, i), sum_(i, div(x, y)), div(sum_(i, x), y)),
        ]
        subexpressions = [
            ((x, y), sub(x, add(x, y))),
            ((x, y), sub(x, mul(x, y))),
            ((x, y), sub(x, div(x, y))),
            ((x, y), sub(y, div(x, y))),
            ((x, i), sub(x, sum_(i, x))),
        ]
        orders = [
            ((x,), sub(x, x)),
            ((x, y, z), z3.Implies(z3.And(sub(x, y), sub(y, z)), sub(x, z))),
        ]
        # both sides trigger an equivalence: Z3 would pick one side only
        operators = [
            *(z3.ForAll(list(bound), a == b, patterns=[a, b]) for bound, a, b in equivalences),
            *(z3.ForAll(list(bound), fact) for bound, fact in subexpressions),
        ]
        return operators, [z3.ForAll(list(bound), fact) for bound, fact in orders]

    # --- from the normal form --------------------------------------------------------------------------

    def term(self, poly: Poly) -> z3.ExprRef:
        """The Z3 term of an abstract expression: the same one however the expression was built."""
        if poly not in self._terms:
            monomials = sorted(poly.terms, key=Monomial.text)
            self._terms[poly] = reduce(self.add, [self._monomial(m) for m in monomials for _ in range(poly.terms[m])])
        return self._terms[poly]

    def _monomial(self, monomial: Monomial) -> z3.ExprRef:
        atoms = sorted((f for f in monomial.factors if not isinstance(f, Axis)), key=lambda f: f.text())
        x = reduce(self.mul, [self._atom(atom) for atom in atoms])
        for name in sorted(f.name for f in monomial.factors if isinstance(f, Axis)):
            x = self.sum(x, frozenset({name}))
        return x if monomial.denominator is None else self.div(x, self.term(monomial.denominator))

    def _atom(self, atom: Tensor | Constant | Dim | Call) -> z3.ExprRef:
        match atom:
            case Tensor(name=name):
                return self.tensor(name)
            case Constant(value=value):
                return self.constant(value)
            case Dim(size=size):
                return self.dim(size)
            case Call(fn=fn, params=params, argument=argument):
                return self.function(fn, self.term(argument), *params)
            case _:
                assert_never(atom)


def _table() -> tuple[z3.AstVector, z3.AstVector]:
    """The axioms that `SmtAlgebra.axioms` copies, stated once in this thread."""
    if not hasattr(_stated, "table"):
        algebra = SmtAlgebra()
        both = z3.AstVector(ctx=algebra.context), z3.AstVector(ctx=algebra.context)
        for vector, axioms in zip(both, algebra._stated(), strict=True):
            for axiom in axioms:
                vector.push(axiom)
        _stated.table = both
    table: tuple[z3.AstVector, z3.AstVector] = _stated.table
    return table


class Answer(Enum):
    """How a query ended. SATURATED: Z3 had no instance left within its bound on nested instantiation."""

    PROVED = "proved"
    SATURATED = "saturated"
    LIMIT = "limit reached"


def prove_subexpression(
    algebra: SmtAlgebra,
    e: z3.ExprRef,
    t: z3.ExprRef,
    max_instances: int = MAX_INSTANCES,
    axioms: Axioms | None = None,
) -> Answer:
    """Ask Z3 whether the axioms entail subexpr(e, t); both are terms of `algebra`, which should be new."""
    solver = z3.SimpleSolver(ctx=algebra.context)
    solver.set("qi.max_instances", max_instances, **_OPTIONS)
    own = list(axioms(algebra)) if axioms is not None else []  # first: they may use further functions
    solver.add(*algebra.axioms(), *own, z3.Not(algebra.subexpr(e, t)))
    result = solver.check()
    if result == z3.unsat:
        return Answer.PROVED
    # "canceled" at the instance limit, "max. memory exceeded" at the other
    saturated = result == z3.sat or solver.reason_unknown() == "(incomplete quantifiers)"
    return Answer.SATURATED if saturated else Answer.LIMIT


class SmtPruner:
    """Admits an expression if Z3 proves it a subexpression of a target (Mirage, section 4.3).

    "Not proved within the limit" prunes, as in the paper. `axioms(algebra)` adds the user's own to Table 2.

    checks, pruned: calls of `admits`, and how many answered False.
    proved, not_proved: queries to Z3 by answer; an expression is asked about once for each target.
    limit_reached: those of `not_proved` that stopped at the limit, so more instances might have proved them.
    """

    name = "smt"

    def __init__(
        self, targets: Sequence[Poly], *, max_instances: int = MAX_INSTANCES, axioms: Axioms | None = None
    ) -> None:
        self.checks = 0
        self.pruned = 0
        self.proved = 0
        self.not_proved = 0
        self.limit_reached = 0
        self._targets = tuple(targets)
        self._max_instances = max_instances
        self._axioms = axioms
        self._answers: dict[Poly, bool] = {}

    def admits(self, expression: Poly) -> bool:
        self.checks += 1
        answer = self._answers.get(expression)
        if answer is None:
            answer = self._answers[expression] = any(self._ask(expression, target) for target in self._targets)
        if not answer:
            self.pruned += 1
        return answer

    def _ask(self, expression: Poly, target: Poly) -> bool:
        algebra = SmtAlgebra()
        answer = prove_subexpression(
            algebra, algebra.term(expression), algebra.term(target), self._max_instances, self._axioms
        )
        if answer is Answer.PROVED:
            self.proved += 1
            return True
        self.not_proved += 1
        if answer is Answer.LIMIT:
            self.limit_reached += 1
        return False
