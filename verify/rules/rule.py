"""Rules: two patterns that are equal wherever their guards hold, as data that saturation, the search and the proof read.

Each rule has two kinds of guards. Those that it names say of variables what must be known of their values: "positive",
"nonnegative" or "nonzero". The other is the same for all rules: an instance counts only where its two sides are proved to be
defined in the same places (`verify/definedness.py`), so that `x / x` becomes 1 where x is known not to be 0, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from mirage.errors import RuleError, TermTooLarge
from mirage.ir.functions import FUNCTIONS, Range
from mirage.mugraph.exact import ExactAlgebra
from mirage.verify.definedness import DefinedAlgebra, Term
from mirage.verify.rules.pattern import Binding, Pattern, depends_as_declared, instantiate, shown
from mirage.verify.rules.terms import Terms

Fact = Literal["positive", "nonnegative", "nonzero"]
FACTS: tuple[Fact, ...] = get_args(Fact)

#: operators that are not defined everywhere
_PARTIAL = frozenset({"div", "pow", *(f.name for f in FUNCTIONS.values() if f.domain is not Range.ANY)})

#: monomials of a form of which facts are known
_MONOMIALS = 64


@dataclass(frozen=True)
class Rule:
    """lhs = rhs, used from left to right; `when` are facts about variables by name."""

    name: str
    lhs: Pattern
    rhs: Pattern
    when: Mapping[str, Fact] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        left = self.lhs.by_name
        for variable in (*self.rhs.by_name, *self.when):
            if variable not in left:
                raise RuleError(
                    f"rule {self.name!r}: variable {variable!r} is not on its left side {shown(self.lhs)}; use it there too"
                )
        if self.lhs.op in ("var", "number", "constant"):
            raise RuleError(f"rule {self.name!r}: its left side is a bare {self.lhs.op}; make it an operator's result")
        if self.lhs == self.rhs:
            raise RuleError(f"rule {self.name!r}: both sides are {shown(self.lhs)}; a rule must change something")
        for variable, fact in self.when.items():
            if fact not in FACTS:
                raise RuleError(f"rule {self.name!r}: {fact!r} of {variable!r} is no fact; use one of {', '.join(FACTS)}")

    @cached_property
    def partial(self) -> bool:
        """Whether one side may be defined where the other is not."""
        return bool((self.lhs.operators() | self.rhs.operators()) & _PARTIAL) or not (
            self.lhs.by_name.keys() <= self.rhs.by_name.keys()
        )

    @cached_property
    def heads(self) -> frozenset[str]:
        """What its left side applies: operators, and functions by name."""
        return frozenset(self.lhs.operators() - {"var", "number", "constant", "size"})

    @property
    def guard(self) -> str:
        """Its guards in words."""
        found = [f"{v} {fact}" for v, fact in sorted(self.when.items())]
        found += [f"{name} a constant" for name in sorted(_constants(self.lhs))]
        summed = _axis_variables(self.lhs) | _axis_variables(self.rhs)
        for name, variable in sorted(self.lhs.by_name.items()):
            # what a concat joins depends on its own piece of the joined axis
            own = {a for a in summed if variable.over & {a, f"{a}_0", f"{a}_1"}}
            if variable.op == "var" and (without := sorted(a for a in summed - own if a[-2:] not in ("_0", "_1"))):
                found.append(f"{name} the same along {', '.join(without)}")
        if self.partial:
            found.append("both sides defined in the same places")
        return "; ".join(found)

    def __str__(self) -> str:
        guard = f" when {self.guard}" if self.guard else ""
        return f"{self.name}: {shown(self.lhs)} => {shown(self.rhs)}{guard}"


def _constants(p: Pattern) -> set[str]:
    """The numbers that stand for values; parameters are constants anyway."""
    return {p.data} if p.op == "number" else set().union(*map(_constants, p.args))


def _axis_variables(p: Pattern) -> set[str]:
    own = set(p.data) if p.op == "sum" else {p.data} if p.op == "concat" else set()
    return own.union(*(_axis_variables(x) for x in p.args))


class Instance(NamedTuple):
    """What a rule says of some terms: that the term `left` is the term `right`."""

    rule: Rule
    binding: Binding
    left: int
    right: int


class Facts:
    """What is known of terms: their exact forms, their signs and where they are defined."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._al = DefinedAlgebra(ExactAlgebra({}, sizes=terms.sizes, limit=_MONOMIALS))
        self._read: dict[int, Term | None] = {}

    def of(self, x: int) -> Term | None:
        """A term's form with the conditions under which it is defined; None where it is too large."""
        if x not in self._read:
            try:
                self._read[x] = self._form(x)
            except TermTooLarge:
                self._read[x] = None
        return self._read[x]

    def _form(self, x: int) -> Term | None:
        op, data, args = self.terms.nodes[x]
        al = self._al
        below = [self.of(a) for a in args]
        known = [t for t in below if t is not None]
        if len(known) < len(below):
            return None
        match op:
            case "input":
                return al.tensor(*data)
            case "constant":
                return al.constant(data)
            case "size":
                return al.dim(data)
            case "add":
                return al.add(*known)
            case "mul":
                return al.mul(*known)
            case "div":
                return al.div(*known)
            case "sum":
                return al.sum(known[0], frozenset(data))
            case "concat":
                return al.concat(known, data)
        return al.function(FUNCTIONS[data[0]], known[0], *data[1])

    def holds(self, fact: Fact, x: int) -> bool:
        """Whether a fact is known of a term wherever it is defined."""
        term = self.of(x)
        if term is None:
            return False
        if fact == "nonzero":
            return not self._al.nonzero(term.form)
        sign = self._al.sign(term.form)
        return sign is Range.POSITIVE or (fact == "nonnegative" and sign is Range.NONNEGATIVE)

    def same_domain(self, x: int, y: int) -> bool:
        """Whether two terms are known to be defined in the same places."""
        a, b = self.of(x), self.of(y)
        return a is not None and b is not None and self._al.apart([a], [b]) is None

    def same_form(self, x: int, y: int) -> bool:
        """Whether two terms are equal by the rules of arithmetic alone."""
        a, b = self.of(x), self.of(y)
        return a is not None and b is not None and a.form is b.form


def instance(rule: Rule, terms: Terms, facts: Facts, binding: Binding) -> Instance | None:
    """The instance of a rule for these terms and axes; None where a guard does not hold."""
    if not depends_as_declared(rule.lhs, terms, binding):
        return None
    if not all(facts.holds(fact, binding[v]) for v, fact in rule.when.items()):
        return None
    left = instantiate(rule.lhs, terms, binding, simplify=False)
    right = instantiate(rule.rhs, terms, binding)
    if left == right or (rule.partial and not facts.same_domain(left, right)):
        return None
    return Instance(rule, binding, left, right)
