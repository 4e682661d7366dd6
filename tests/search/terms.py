"""Random terms and random applications of the axioms of Mirage, Table 2; interpreted by any algebra."""

from __future__ import annotations

from random import Random
from typing import Any, TypeAlias

from mirage.ir.functions import EXP, SIGMOID, SQRT

INPUTS = ("X", "Y", "Z")
PARTS = ("i", "j")
FUNCTIONS = {"exp": EXP, "sqrt": SQRT, "sigmoid": SIGMOID}

# ("tensor", name) | ("add" | "mul" | "div", a, b) | ("sum", part, a) | ("function", name, a)
Term: TypeAlias = tuple[Any, ...]


def interpret(term: Term, algebra: Any) -> Any:
    """The term's value in any algebra with `tensor(name)`."""
    match term:
        case ("tensor", name):
            return algebra.tensor(name)
        case ("sum", part, a):
            return algebra.sum(interpret(a, algebra), frozenset({part}))
        case ("function", name, a):
            return algebra.function(FUNCTIONS[name], interpret(a, algebra))
        case (operator, a, b):
            return getattr(algebra, operator)(interpret(a, algebra), interpret(b, algebra))
    raise ValueError(term)


def random_term(rng: Random, leaves: int) -> Term:
    """A term with the given number of leaves; unary operators at random in between."""
    if leaves == 1:
        term: Term = ("tensor", rng.choice(INPUTS))
    else:
        left = rng.randint(1, leaves - 1)
        operator = rng.choice(("add", "mul", "mul", "div"))
        term = (operator, random_term(rng, left), random_term(rng, leaves - left))
    match rng.randrange(8):
        case 0:
            return ("function", "exp", term)
        case 1 | 2:
            return ("sum", rng.choice(PARTS), term)
    return term


def children(term: Term) -> list[int]:
    return [k for k in range(1, len(term)) if isinstance(term[k], tuple)]


def subterms(term: Term) -> list[Term]:
    """All subterms, the term itself first."""
    return [term, *(s for k in children(term) for s in subterms(term[k]))]


def rewrites(term: Term) -> list[Term]:
    """Every result of one application of an equivalence axiom at the root, in either direction."""
    out: list[Term] = []
    match term:
        case ("add" | "mul" as op, a, b):
            out.append((op, b, a))
    match term:
        case ("add" | "mul" as op, a, (op2, b, c)) if op == op2:
            out.append((op, (op, a, b), c))
    match term:
        case ("add" | "mul" as op, (op2, a, b), c) if op == op2:
            out.append((op, a, (op, b, c)))
    match term:
        case ("add", ("mul" | "div" as op, a, c), (op2, b, d)) if op == op2 and c == d:
            out.append((op, ("add", a, b), c))
    match term:
        case ("mul" | "div" as op, ("add", a, b), c):
            out.append(("add", (op, a, c), (op, b, c)))
    match term:
        case ("mul", a, ("div", b, c)):
            out.append(("div", ("mul", a, b), c))
    match term:
        case ("div", ("mul", a, b), c):
            out.append(("mul", a, ("div", b, c)))
    match term:
        case ("div", ("div", a, b), c):
            out.append(("div", a, ("mul", b, c)))
    match term:
        case ("div", a, ("mul", b, c)):
            out.append(("div", ("div", a, b), c))
    match term:
        case ("sum", i, ("sum", j, a)):
            out.append(("sum", j, ("sum", i, a)))
    match term:
        case ("sum", i, ("add", a, b)):
            out.append(("add", ("sum", i, a), ("sum", i, b)))
    match term:
        case ("add", ("sum", i, a), ("sum", j, b)) if i == j:
            out.append(("sum", i, ("add", a, b)))
    match term:
        case ("sum", i, ("mul" | "div" as op, a, b)):
            out.append((op, ("sum", i, a), b))
    match term:
        case ("mul" | "div" as op, ("sum", i, a), b):
            out.append(("sum", i, (op, a, b)))
    return out


def everywhere(term: Term) -> list[Term]:
    """Every result of one application of an equivalence axiom anywhere in the term."""
    inner = [(*term[:k], new, *term[k + 1 :]) for k in children(term) for new in everywhere(term[k])]
    return rewrites(term) + inner


def rewritten(rng: Random, term: Term, steps: int) -> Term:
    """The term after random equivalence axioms: equal under A_eq."""
    for _ in range(steps):
        choices = everywhere(term)
        if not choices:
            break
        term = rng.choice(choices)
    return term


def related_pair(rng: Random, leaves: int) -> tuple[Term, Term]:
    """(e, t) with subexpr(e, t) entailed: e equals a subterm of a term that equals t."""
    target = random_term(rng, leaves)
    inside = rng.choice(subterms(rewritten(rng, target, rng.randint(0, 8))))
    return rewritten(rng, inside, rng.randint(0, 3)), target


def unrelated_pair(rng: Random, leaves: int) -> tuple[Term, Term]:
    return random_term(rng, rng.randint(2, 3)), random_term(rng, leaves)
