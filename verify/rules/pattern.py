"""Patterns: terms with variables. What a rule's two sides are, and how they are found in terms.

A variable stands for any value, a number for a constant, also where that is a parameter of a function. Where a pattern sums over
an *axis variable*, that stands for the axes of a sum, and each variable says on which axis variables its value may depend:
`c = var("c")` of `sum_(x * c)` is the same for all terms of the sum. All other axes are those of the program around it: a rule
holds for each of their indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from mirage.ir.decimals import as_written
from mirage.ir.functions import FUNCTIONS
from mirage.verify.rules.terms import Terms

#: what the variables of a pattern stand for: terms by name, and sets of axes by the name of an axis variable
Binding = dict[str, Any]

#: the axes of a sum, and those of them on which a value that is the same along `INNER` may depend
INNER, OUTER = "n", "m"


@dataclass(frozen=True)
class Pattern:
    """An operator applied to patterns, or a variable ("var": `data` is its name) or a number ("number": a variable that stands
    for constants only). `over` are the axis variables on which a variable may depend. The `data` of a function are its name and
    its parameters: constants, or patterns of numbers.
    """

    op: str
    data: Any = None
    args: tuple[Pattern, ...] = ()
    over: frozenset[str] = frozenset()

    def __add__(self, other: Pattern | int) -> Pattern:
        return Pattern("add", None, (self, as_pattern(other)))

    def __radd__(self, other: int) -> Pattern:
        return as_pattern(other) + self

    def __mul__(self, other: Pattern | int) -> Pattern:
        return Pattern("mul", None, (self, as_pattern(other)))

    def __rmul__(self, other: int) -> Pattern:
        return as_pattern(other) * self

    def __truediv__(self, other: Pattern | int) -> Pattern:
        return Pattern("div", None, (self, as_pattern(other)))

    def __rtruediv__(self, other: int) -> Pattern:
        return as_pattern(other) / self

    def __neg__(self) -> Pattern:
        return as_pattern(-1) * self

    def __sub__(self, other: Pattern | int) -> Pattern:
        return self + -as_pattern(other)

    def __rsub__(self, other: int) -> Pattern:
        return as_pattern(other) + -self

    @cached_property
    def head(self) -> str:
        """The operator, or the function that is applied."""
        return str(self.data[0]) if self.op == "function" else self.op

    @cached_property
    def by_name(self) -> dict[str, Pattern]:
        """The variables, by name."""
        if self.op in ("var", "number"):
            return {self.data: self}
        found: dict[str, Pattern] = {}
        for x in (*self.args, *self.parameters):
            found.update(x.by_name)
        return found

    @property
    def parameters(self) -> tuple[Pattern, ...]:
        """The parameters of a function that are patterns."""
        return tuple(x for x in self.data[1] if isinstance(x, Pattern)) if self.op == "function" else ()

    @cached_property
    def height(self) -> int:
        """How many operators are above its deepest variable or constant."""
        return 1 + max(x.height for x in self.args) if self.args else 0

    def operators(self) -> set[str]:
        """The operators and the functions in it."""
        return {self.head}.union(*(x.operators() for x in self.args))

    def __str__(self) -> str:
        match self.op:
            case "var" | "number":
                return str(self.data)
            case "constant":
                return str(self.data) if self.data >= 0 and self.data.denominator == 1 else f"({self.data})"
            case "function":
                params = [_bare(x) if isinstance(x, Pattern) else str(x) for x in self.data[1]]
                return f"{self.data[0]}({', '.join([_bare(self.args[0]), *params])})"
            case "sum":
                return f"sum[{','.join(self.data)}]({_bare(self.args[0])})"
            case "size":
                return f"|{self.data}|"
            case "concat":
                return f"concat({', '.join(map(_bare, self.args))})"
            case "add" if (negative := _negated(self.args[1])) is not None:
                return f"({self.args[0]} - {negative})"
            case "mul" if (negative := _negated(self)) is not None:
                return f"-{negative}"
        sign = {"add": " + ", "mul": " * ", "div": " / "}[self.op]
        return f"({sign.join(map(str, self.args))})"


def _negated(p: Pattern) -> Pattern | None:
    """The x of a pattern that is -x."""
    return p.args[1] if p.op == "mul" and p.args[0].op == "constant" and p.args[0].data == -1 else None


def _bare(p: Pattern) -> str:
    text = str(p)
    return text[1:-1] if p.op in ("add", "mul", "div") and text.startswith("(") else text


def shown(p: Pattern) -> str:
    """A side of a rule as text."""
    return _bare(p)


def as_pattern(x: Pattern | int | Fraction) -> Pattern:
    """A pattern, or the constant of that value."""
    return x if isinstance(x, Pattern) else Pattern("constant", Fraction(x))


def var(name: str, *over: str) -> Pattern:
    """A variable that stands for values which may depend on these axis variables."""
    return Pattern("var", name, (), frozenset(over))


def number(name: str) -> Pattern:
    """A variable that stands for constants."""
    return Pattern("number", name)


def call(name: str, x: Pattern, *params: Fraction | Pattern) -> Pattern:
    """A scalar function of `mirage.ir.functions`, with constants or patterns of numbers as its parameters."""
    assert name in FUNCTIONS
    return Pattern("function", (name, params), (x,))


def sum_(x: Pattern, *over: str) -> Pattern:
    """A sum over axis variables."""
    return Pattern("sum", over or (INNER,), (x,))


def size_(axis: str = INNER) -> Pattern:
    """The number of terms of a sum over an axis variable."""
    return Pattern("size", axis)


def instantiate(p: Pattern, terms: Terms, binding: Mapping[str, Any], *, simplify: bool = True) -> int:
    """The term that a pattern is where its variables stand for these terms and axes; unless simplified, with every operator of
    the pattern, but for sums over no axes.
    """
    if p.op in ("var", "number"):
        return int(binding[p.data])
    if p.op == "constant":
        return terms.constant(p.data)
    if p.op == "size":
        product = terms.constant(Fraction(1))
        for a in sorted(binding[p.data]):
            product = terms.mul(product, terms.dim(terms.sizes[a]))
        return product
    args = tuple(instantiate(x, terms, binding, simplify=simplify) for x in p.args)
    if p.op == "sum":
        over: frozenset[str] = frozenset().union(*(binding[a] for a in p.data))
        if simplify or not over:
            return terms.sum(args[0], over)
        return terms.intern("sum", tuple(sorted(over)), args)
    data = p.data
    if p.op == "concat":
        # the axes of a concat are bound with its name
        data = binding[f"{p.data}_joined"]
    elif p.parameters:
        name, params = p.data
        data = name, tuple(_value(x, terms, binding) if isinstance(x, Pattern) else x for x in params)
    return terms.make(p.op, data, args) if simplify else terms.intern(p.op, data, args)


def _value(p: Pattern, terms: Terms, binding: Mapping[str, Any]) -> Fraction:
    """The constant that a pattern of numbers is, by decimals as they are written, but as a program has it."""
    numbers: dict[str, Fraction] = {v: terms.nodes[binding[v]].data for v in p.by_name}
    written = {v: terms.constant(as_written(x)) for v, x in numbers.items()}
    value: Fraction = terms.nodes[instantiate(p, terms, written)].data
    for x in (*numbers.values(), Fraction(float(value))):
        if as_written(x) == value:
            return x
    return value


def depends_as_declared(p: Pattern, terms: Terms, binding: Mapping[str, Any]) -> bool:
    """Whether no variable stands for a term that depends on axes of a sum which it may not depend on."""
    axes = {name: value for name, value in binding.items() if isinstance(value, frozenset)}
    if not axes:
        return True
    for name, variable in p.by_name.items():
        forbidden = frozenset().union(*(v for a, v in axes.items() if a not in variable.over))
        if terms.axes[binding[name]] & forbidden:
            return False
    return True
