"""An example of a rule, made of the rule: values for which saturation with this rule alone finds its other side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from mirage.verify.rules.pattern import Pattern, as_pattern, call, instantiate, shown
from mirage.verify.rules.registry import only
from mirage.verify.rules.rule import Rule
from mirage.verify.rules.saturate import saturate
from mirage.verify.rules.terms import Terms
from mirage.verify.rules.trial import axes_binding, axes_of

#: what the constants of a rule are
NUMBERS = (Fraction(2), Fraction(3))


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
    return replace(p, args=tuple(_with(x, values) for x in p.args))


def _folded(p: Pattern) -> Pattern:
    """A side with its arithmetic of constants done, as terms have it."""
    args = tuple(map(_folded, p.args))
    numbers = [x.data for x in args if x.op == "constant"]
    if len(numbers) == len(args) == 2:
        match p.op:
            case "add":
                return as_pattern(numbers[0] + numbers[1])
            case "mul":
                return as_pattern(numbers[0] * numbers[1])
            case "div":
                return as_pattern(numbers[0] / numbers[1])
    return replace(p, args=args)


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
    right = instantiate(_with(rule.rhs, values), terms, binding)
    with only(rule.name):
        found = saturate(terms, [left])
    found.graph.add(right)
    return left != right and found.used.get(rule.name, 0) > 0 and found.graph.equal(left, right)


def example_of(rule: Rule) -> Example | None:
    """The simplest example; None where no values are found for which the rule says something."""
    variables = rule.lhs.by_name
    # two constants are two numbers
    numbers = itertools.count()
    tried = [
        [as_pattern(NUMBERS[next(numbers)])] if v.op == "number" else [v, call("exp", v), v * v] for v in variables.values()
    ]
    # the fewest operators first
    for chosen in sorted(itertools.product(*tried), key=lambda ps: sum(_operators(p) for p in ps)):
        values = dict(zip(variables, chosen, strict=True))
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
