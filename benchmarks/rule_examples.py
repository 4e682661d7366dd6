"""An example of a rule, made of the rule: values for which saturation with this rule alone finds its other side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from mirage.ir.functions import FUNCTIONS
from mirage.verify.rules.pattern import Pattern, as_pattern, call, instantiate, shown
from mirage.verify.rules.registry import only
from mirage.verify.rules.rule import Rule
from mirage.verify.rules.saturate import saturate
from mirage.verify.rules.terms import RATIONAL, Terms
from mirage.verify.rules.trial import axes_binding, axes_of

#: what the constants of a rule are, and those of a rule for powers, as one by 2 or 3 is a product
NUMBERS = (Fraction(2), Fraction(5), Fraction(3), Fraction(8))
EXPONENTS = (Fraction(1, 3), Fraction(1, 5))


class Example(NamedTuple):
    """What the variables of a rule stand for, by name, and both sides with these values."""

    rule: Rule
    values: Mapping[str, Pattern]

    @property
    def before(self) -> Pattern:
        return _with(self.rule.lhs, self.values)

    @property
    def after(self) -> Pattern:
        return _folded(_with(self.rule.rhs, self.values))

    def __str__(self) -> str:
        return f"{shown(self.before)} -> {shown(self.after)}"


def _with(p: Pattern, values: Mapping[str, Pattern]) -> Pattern:
    if p.op in ("var", "number"):
        return values[p.data]
    return _rebuilt(p, lambda x: _with(x, values))


def _rebuilt(p: Pattern, each: Callable[[Pattern], Pattern]) -> Pattern:
    """The operator or the function of a pattern applied to what becomes of its operands, and of its parameters."""
    args = tuple(map(each, p.args))
    if not p.parameters:
        return replace(p, args=args)
    return call(p.head, *args, *(_number(each(x)) if isinstance(x, Pattern) else x for x in p.data[1]))


def _number(p: Pattern) -> Pattern | Fraction:
    return p.data if p.op == "constant" else p


def _folded(p: Pattern) -> Pattern:
    """A side with its arithmetic of constants done, as terms have it."""
    p = _rebuilt(p, _folded)
    args = p.args
    numbers = [x.data for x in args if x.op == "constant"]
    if len(numbers) == 1 and (fn := FUNCTIONS.get(p.head)) in RATIONAL:
        return as_pattern(RATIONAL[fn](*numbers, *p.data[1]))
    if len(numbers) == len(args) == 2:
        match p.op:
            case "add":
                return as_pattern(numbers[0] + numbers[1])
            case "mul":
                return as_pattern(numbers[0] * numbers[1])
            case "div":
                return as_pattern(numbers[0] / numbers[1])
    return p


def fires(rule: Rule, values: Mapping[str, Pattern]) -> bool:
    """Whether saturation with this rule alone finds what the rule says where its variables stand for these values.

    The left side is a term as it is written, which programs lead to by other rules where simplification would hide it.
    """
    example = Example(rule, values)
    sizes = axes_of(rule)
    terms = Terms(sizes)
    binding = axes_binding(sizes)
    for p in values.values():
        for name, variable in p.by_name.items():
            binding[name] = terms.tensor(name, tuple(a for a in sizes if a in variable.over))
    left = instantiate(example.before, terms, binding, simplify=False)
    with only(rule.name):
        found = saturate(terms, [left])
    if not found.used.get(rule.name):
        return False
    right = instantiate(_with(rule.rhs, values), terms, binding)
    found.graph.add(right)
    return left != right and found.graph.equal(left, right)


def example_of(rule: Rule) -> Example | None:
    """The simplest example; None where no values are found for which the rule says something."""
    variables = rule.lhs.by_name
    # two constants are two numbers
    chosen = EXPONENTS if "pow" in rule.lhs.operators() | rule.rhs.operators() else NUMBERS
    numbers = dict(zip(sorted(name for name, v in variables.items() if v.op == "number"), chosen, strict=False))
    tried = [
        [as_pattern(numbers[name])] if name in numbers else [v, call("exp", v), v * v] for name, v in variables.items()
    ]
    # the fewest operators first
    for together in sorted(itertools.product(*tried), key=lambda ps: sum(_operators(p) for p in ps)):
        values = dict(zip(variables, together, strict=True))
        if fires(rule, values):
            return Example(rule, values)
    return None


def _operators(p: Pattern) -> int:
    return bool(p.args) + sum(map(_operators, p.args))


def unmet(example: Example) -> Iterator[tuple[str, Mapping[str, Pattern]]]:
    """The values of an example with one guard of its rule unmet, and that guard in words."""
    rule, values = example
    for name, variable in rule.lhs.by_name.items():
        if variable.op == "number":
            if f"{name} a constant" not in rule.guard.split("; "):
                continue
            yield f"{name} a constant", {**values, name: Pattern("var", name, (), _all_axes(rule))}
            if name in rule.when:
                yield f"{name} {rule.when[name]}", {**values, name: as_pattern(0)}
        elif name in rule.when:
            yield f"{name} {rule.when[name]}", {**values, name: variable}
    for guard in rule.guard.split("; "):
        name, same, _ = guard.partition(" the same along ")
        if same:
            yield guard, {**values, name: Pattern("var", name, (), _all_axes(rule))}
    plain = {name: v if v.op == "var" else values[name] for name, v in rule.lhs.by_name.items()}
    if rule.partial and not rule.when and plain != values:
        yield "both sides defined in the same places", plain


def _all_axes(rule: Rule) -> frozenset[str]:
    """The axes on which any variable depends, but for the pieces of a joined one."""
    return frozenset(a for a in axes_of(rule) if a[-2:] not in ("_0", "_1"))
