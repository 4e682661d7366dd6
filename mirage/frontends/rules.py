"""Rules of users: two functions of the same values that are equal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy

from mirage.errors import RuleError
from mirage.frontends.annotate import tensor
from mirage.frontends.trace import trace
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.functions import ScalarFunction
from mirage.ir.program import Program
from mirage.mugraph.exact import read_node
from mirage.verify.rules.pattern import Pattern, as_pattern, call, var
from mirage.verify.rules.registry import add_rule
from mirage.verify.rules.rule import Fact, Rule
from mirage.verify.rules.trial import try_rule


def register_rule(
    name: str,
    lhs: Callable[..., Any],
    rhs: Callable[..., Any],
    when: Mapping[str, Fact] | None = None,
    **specs: Any,
) -> Rule:
    """Add the rule that `lhs` may be replaced by `rhs`, two functions of parameters with the same names.

    A parameter stands for any value, of any shape; a rule holds element by element. Where a side sums, `specs` says along which
    dims: with `x=mi.tensor("n"), c=mi.tensor()`, `mi.sum(x * c, axis=0)` sums any values along any axes on which `c` does not
    depend. `when` says what must be known of a parameter: "positive", "nonnegative" or "nonzero". An instance also needs both
    sides to be defined in the same places.

    The rule is used from then on, in this process: by searches, by the proofs of what they find, and by `mirage.verify`. It is
    tried before: in floats, at random values for which `when` holds, and in finite fields if it has no functions but exp.

    Raises RuleError where it is malformed, its name is taken, or its sides differ; TraceError where a side cannot be traced.
    """
    parameters = list(inspect.signature(lhs).parameters)
    others = set(inspect.signature(rhs).parameters) - set(parameters)
    if unknown := sorted(others | (set(specs) - set(parameters))):
        raise RuleError(f"rule {name!r}: {', '.join(unknown)} is no parameter of its left side; name the same values on both")
    given = {p: specs.get(p, tensor()) for p in parameters}
    left = trace(lhs, **given)
    right = trace(rhs, **{p: given[p] for p in inspect.signature(rhs).parameters})
    if not (isinstance(left, Program) and isinstance(right, Program)):
        raise RuleError(f"rule {name!r}: a side is a program with control flow; use operators over axes only")
    sides = [to_axes(side) for side in (left, right)]
    # axes are those of the parameters' dims: one side may relate what the other does not
    summed = {str(side.axes[a]) for side in sides for n in side.nodes for a in n.reduce}
    before, after = (_pattern(name, side, summed) for side in sides)
    rule = Rule(name, before, after, dict(when or {}))
    try_rule(rule)
    return add_rule(rule)


def _pattern(name: str, program: AxisProgram, summed: set[str]) -> Pattern:
    if len(program.outputs) != 1:
        raise RuleError(f"rule {name!r}: a side has {len(program.outputs)} results; return one")
    dims = {a: str(size) for a, size in program.axes.items()}
    al = _Patterns(name, summed)
    values: list[Pattern] = []
    for n in program.nodes:
        if n.op == "input":
            values.append(var(n.attr["name"], *(dims[a] for a in n.axes if dims[a] in summed)))
        else:
            values.append(read_node(al, n, [values[i] for i in n.operands], frozenset(map(dims.__getitem__, n.reduce))))
    return values[program.outputs[0].value]


class _Patterns:
    """The algebra of patterns, in which the sides of rules are read."""

    def __init__(self, name: str, summed: set[str]) -> None:
        self._name = name
        self._summed = summed

    def constant(self, value: Fraction) -> Pattern:
        return as_pattern(value)

    def dim(self, size: sympy.Expr) -> Pattern:
        if str(size) not in self._summed:
            raise RuleError(f"rule {self._name!r}: the size {size} is not that of an axis which it sums over")
        return Pattern("size", str(size))

    def add(self, x: Pattern, y: Pattern) -> Pattern:
        return x + y

    def sub(self, x: Pattern, y: Pattern) -> Pattern:
        return x - y

    def mul(self, x: Pattern, y: Pattern) -> Pattern:
        return x * y

    def div(self, x: Pattern, y: Pattern) -> Pattern:
        return x / y

    def neg(self, x: Pattern) -> Pattern:
        return -x

    def function(self, fn: ScalarFunction, x: Pattern, *params: Fraction) -> Pattern:
        return call(fn.name, x, *params)

    def sum(self, x: Pattern, parts: frozenset[str]) -> Pattern:
        if len(parts) != 1:
            raise RuleError(f"rule {self._name!r}: a sum is over {len(parts)} axes at once; sum over one")
        return Pattern("sum", tuple(parts), (x,))

    def concat(self, xs: Sequence[Pattern], joined: tuple[str, tuple[str, ...]]) -> Pattern:
        raise RuleError(f"rule {self._name!r}: it joins tensors; rules with concat are the package's own")
