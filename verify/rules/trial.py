"""Rules on trial: both sides in floats, and in finite fields where these say something, before a rule is accepted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction

import sympy

from mirage.errors import MirageError, RuleError
from mirage.ir.axes import AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.dims import symbol
from mirage.mugraph.reference import reference_graph
from mirage.verify.counterexample import counterexample
from mirage.verify.equivalence import Verifier
from mirage.verify.rules.lower import lowered
from mirage.verify.rules.pattern import Binding, Pattern, instantiate
from mirage.verify.rules.rule import Fact, Rule
from mirage.verify.rules.terms import Terms

#: values of constants that are tried
_NUMBERS = (Fraction(2), Fraction(-3), Fraction(1, 3), Fraction(-1, 3))
#: the axis that is around every rule
_AROUND = "i"
#: seeds of the random inputs
_SEEDS = range(4)
#: of functions, only exp is more than a random function in a finite field
_EXACT = frozenset({"var", "number", "constant", "size", "add", "mul", "div", "sum", "concat", "exp"})


def try_rule(rule: Rule) -> None:
    """Raises RuleError with a counterexample where the sides of a rule differ for some values for which its facts hold."""
    tried = 0
    for left, right in _programs(rule):
        tried += 1
        for seed in _SEEDS:
            if found := counterexample(left, reference_graph(right), seed):
                sides = found.replace("program", "left side").replace("graph", "right side")
                raise RuleError(f"rule {rule} is not true: {sides}")
        if rule.lhs.operators() | rule.rhs.operators() <= _EXACT and rule.lhs.by_name and not rule.when:
            check = Verifier(left).check(reference_graph(right))
            if not check.equal:
                raise RuleError(f"rule {rule} is not true in a finite field: {check.reason}")
    if not tried:
        raise RuleError(f"rule {rule} cannot be tried: {_untried(rule)}")


def _untried(rule: Rule) -> str:
    try:
        _sides(rule, {})
    except MirageError as e:
        return str(e)
    return "its variables stand for no values"


def _programs(rule: Rule) -> Iterator[tuple[AxisProgram, AxisProgram]]:
    """Both sides as programs, for each choice of constants."""
    names = [name for name, v in rule.lhs.by_name.items() if v.op == "number"]
    for values in itertools.product(_NUMBERS, repeat=len(names)):
        numbers = dict(zip(names, values, strict=True))
        if all(_is(fact, numbers[v]) for v, fact in rule.when.items() if v in numbers):
            try:
                yield _sides(rule, numbers)
            except MirageError:
                continue


def _is(fact: Fact, value: Fraction) -> bool:
    return {"positive": value > 0, "nonnegative": value >= 0, "nonzero": value != 0}[fact]


def _sides(rule: Rule, numbers: dict[str, Fraction]) -> tuple[AxisProgram, AxisProgram]:
    axes = axes_of(rule)
    terms = Terms(axes)
    binding = axes_binding(axes)
    inputs: list[AxisInput] = []
    nodes: list[AxisNode] = []
    for name, variable in rule.lhs.by_name.items():
        if variable.op == "number":
            binding[name] = terms.constant(numbers[name])
            continue
        own = tuple(a for a in axes if a in variable.over or a == _AROUND)
        inputs.append(AxisInput(name, tuple((a,) for a in own)))
        nodes.append(AxisNode("input", (), (("name", name),), own))
        binding[name] = _with_fact(terms, terms.tensor(name, own), rule.when.get(name))
    sides = [instantiate(p, terms, binding) for p in (rule.lhs, rule.rhs)]
    if not inputs:
        # a program reads something
        inputs.append(AxisInput("x", ((_AROUND,),)))
        nodes.append(AxisNode("input", (), (("name", "x"),), (_AROUND,)))
        sides = [terms.add(x, terms.tensor("x", (_AROUND,))) for x in sides]
    dims = tuple((a,) for a in axes if a in terms.axes[sides[0]])
    around = AxisProgram(rule.name, axes, tuple(inputs), tuple(nodes), (AxisOutput(0, dims),), "float64")
    left, right = (lowered(terms, around, (x,)) for x in sides)
    return left, right


def axes_of(rule: Rule) -> dict[str, sympy.Expr]:
    """The axes of a rule's variables and sums, by the names that the rule has for them, and the one around it, with sizes."""
    found: dict[str, None] = {_AROUND: None}

    def visit(p: Pattern) -> None:
        found.update(dict.fromkeys(sorted(p.over)))
        if p.op == "concat":
            found.update(dict.fromkeys((p.data, f"{p.data}_0", f"{p.data}_1")))
        elif p.op == "sum":
            found.update(dict.fromkeys(p.data))
        for x in p.args:
            visit(x)

    visit(rule.lhs)
    visit(rule.rhs)
    axes: dict[str, sympy.Expr] = {a: symbol(a) for a in found}
    for a in found:
        if f"{a}_0" in axes:
            axes[a] = axes[f"{a}_0"] + axes[f"{a}_1"]
    return axes


def axes_binding(axes: Iterable[str]) -> Binding:
    """Each axis variable of a rule as the axis of its name."""
    binding: Binding = {a: frozenset((a,)) for a in axes}
    return binding | {f"{a}_joined": (a, (f"{a}_0", f"{a}_1")) for a in axes if f"{a}_0" in binding}


def _with_fact(terms: Terms, x: int, fact: Fact | None) -> int:
    """A value for which a fact holds, made of any value."""
    if fact is None:
        return x
    square = terms.mul(x, x)
    return square if fact == "nonnegative" else terms.add(square, terms.constant(Fraction(1)))
