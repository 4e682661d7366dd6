"""The exact algebra: its laws, and an oracle that evaluates terms in rational numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage.errors import TermTooLarge
from mirage.ir.functions import EXP, FUNCTIONS, SIGMOID, ScalarFunction
from mirage.mugraph import exact
from mirage.mugraph.exact import ExactAlgebra, Form

#: axis a is divided in two
PARTS = ("a.loop", "a.tile", "b")
AXES = {"a": ("a.loop", "a.tile"), "b": ("b",)}
INPUTS = {"x": ("a",), "y": ("b",), "m": ("a", "b"), "s": ()}

# ("input", name) | ("constant", value) | ("add" | "sub" | "mul" | "div", t, u) | ("neg", t)
# | ("function", name, t) | ("sum", parts, t)
Term: TypeAlias = tuple[Any, ...]


def algebra() -> ExactAlgebra:
    return ExactAlgebra({a: parts for a, parts in AXES.items() if len(parts) > 1})


class Rationals:
    """The oracle: tensors over all parts in exact arithmetic; a function is a fixed random table. Sizes vary too."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sizes = ((2, 3, 2), (3, 5, 7))[seed % 2]

    def tensor(self, name: str, axes: tuple[str, ...]) -> np.ndarray:
        rng = Random(f"{name} {self.seed}")
        own = [n if any(p in AXES[a] for a in axes) else 1 for p, n in zip(PARTS, self.sizes, strict=True)]
        data = [Fraction(rng.randint(2, 99) * rng.choice((-1, 1))) for _ in range(int(np.prod(own)))]
        return self.full(np.array(data, dtype=object).reshape(own))

    def full(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.sizes)

    def constant(self, value: Fraction) -> np.ndarray:
        return self.full(np.array(value, dtype=object).reshape(1, 1, 1))

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def sub(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x - y

    def mul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    def div(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x / y

    def neg(self, x: np.ndarray) -> np.ndarray:
        return -x

    def function(self, fn: ScalarFunction, x: np.ndarray, *params: Fraction) -> np.ndarray:
        values = [Fraction(Random(f"{fn.name} {params} {v} {self.seed}").randint(1, 9999)) for v in x.flat]
        return np.array(values, dtype=object).reshape(x.shape)

    def sum(self, x: np.ndarray, parts: frozenset[str]) -> np.ndarray:
        return self.full(x.sum(axis=tuple(PARTS.index(p) for p in parts), keepdims=True))


def read(term: Term, al: Any) -> Any:
    """The term in an algebra."""
    match term:
        case ("input", name):
            return al.tensor(name, INPUTS[name])
        case ("constant", value):
            return al.constant(value)
        case ("neg", t):
            return al.neg(read(t, al))
        case ("function", name, t):
            return al.function(FUNCTIONS[name], read(t, al))
        case ("sum", parts, t):
            return al.sum(read(t, al), frozenset(parts))
        case (op, t, u):
            return getattr(al, op)(read(t, al), read(u, al))
    raise ValueError(term)


def value(term: Term, seed: int) -> tuple[Fraction, ...] | None:
    """Its elements, or None where it divides by zero."""
    try:
        return tuple(read(term, Rationals(seed)).flat)
    except ZeroDivisionError:
        return None


LEAVES = [*(("input", n) for n in INPUTS), ("constant", Fraction(2)), ("constant", Fraction(-1, 3))]
BINARY = ("add", "sub", "mul", "div")


@st.composite
def terms(draw: st.DrawFn, depth: int = 3) -> Term:
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(LEAVES))
    op = draw(st.sampled_from([*BINARY, "mul", "add", "sum", "sum", "function", "neg"]))
    inner = terms(depth=depth - 1)
    if op == "sum":
        return (op, draw(st.sampled_from([("b",), ("a.tile",), ("a.loop",), ("a.loop", "a.tile")])), draw(inner))
    if op == "function":
        return (op, draw(st.sampled_from(["exp", "sigmoid"])), draw(inner))
    if op == "neg":
        return (op, draw(inner))
    return (op, draw(inner), draw(inner))


small = terms(depth=2)


def forms(al: ExactAlgebra, *ts: Term) -> tuple[Form, ...]:
    try:
        return tuple(read(t, al) for t in ts)
    except TermTooLarge:
        assume(False)
        raise


# Laws that hold for all terms.

LAWS: dict[str, tuple[int, Callable[..., tuple[Term, Term]]]] = {
    "x + y = y + x": (2, lambda x, y: (("add", x, y), ("add", y, x))),
    "(x + y) + z = x + (y + z)": (3, lambda x, y, z: (("add", ("add", x, y), z), ("add", x, ("add", y, z)))),
    "x * y = y * x": (2, lambda x, y: (("mul", x, y), ("mul", y, x))),
    "(x * y) * z = x * (y * z)": (3, lambda x, y, z: (("mul", ("mul", x, y), z), ("mul", x, ("mul", y, z)))),
    "x * (y + z) = x * y + x * z": (
        3,
        lambda x, y, z: (("mul", x, ("add", y, z)), ("add", ("mul", x, y), ("mul", x, z))),
    ),
    "x - y = x + -1 * y": (
        2,
        lambda x, y: (("sub", x, y), ("add", x, ("mul", ("constant", Fraction(-1)), y))),
    ),
    "-(-x) = x": (1, lambda x: (("neg", ("neg", x)), x)),
    "(x + y) - y = x": (2, lambda x, y: (("sub", ("add", x, y), y), x)),
    "x + x = 2 * x": (1, lambda x: (("add", x, x), ("mul", ("constant", Fraction(2)), x))),
    "(x * y) / z = x * (y / z)": (3, lambda x, y, z: (("div", ("mul", x, y), z), ("mul", x, ("div", y, z)))),
    "(x + y) / z = x / z + y / z": (
        3,
        lambda x, y, z: (("div", ("add", x, y), z), ("add", ("div", x, z), ("div", y, z))),
    ),
    "x / (2 * (m + y)) = x / (m + y) / 2": (
        1,
        lambda x: (
            ("div", x, ("mul", ("constant", Fraction(2)), ("add", ("input", "m"), ("input", "y")))),
            ("div", ("div", x, ("add", ("input", "m"), ("input", "y"))), ("constant", Fraction(2))),
        ),
    ),
    "x / y / z = x / z / y": (3, lambda x, y, z: (("div", ("div", x, y), z), ("div", ("div", x, z), y))),
    "sum over parts in one step, or in any order": (
        1,
        lambda x: (("sum", ("a.loop", "a.tile", "b"), x), ("sum", ("b",), ("sum", ("a.tile",), ("sum", ("a.loop",), x)))),
    ),
    "sum_i sum_j x = sum_j sum_i x": (
        1,
        lambda x: (("sum", ("b",), ("sum", ("a.tile",), x)), ("sum", ("a.tile",), ("sum", ("b",), x))),
    ),
    "sum(x + y) = sum x + sum y": (
        2,
        lambda x, y: (("sum", ("b",), ("add", x, y)), ("add", ("sum", ("b",), x), ("sum", ("b",), y))),
    ),
    "sum_i (x * sum_i y) = sum_i x * sum_i y": (
        2,
        lambda x, y: (
            ("sum", ("b",), ("mul", x, ("sum", ("b",), y))),
            ("mul", ("sum", ("b",), x), ("sum", ("b",), y)),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    arity, sides = LAWS[law]

    @given(st.tuples(*[small] * arity))
    def check(ts: tuple[Term, ...]) -> None:
        lhs, rhs = sides(*ts)
        f, g = forms(algebra_of_test, lhs, rhs)
        assert f is g

    algebra_of_test = algebra()
    check()


@given(small, st.sampled_from(["x", "y", "m", "s"]), st.sampled_from(["x", "y", "s"]))
def test_division_by_monomials(t: Term, first: str, second: str) -> None:
    a, b = ("input", first), ("input", second)
    al = algebra()
    for lhs, rhs in [
        (("div", ("mul", t, a), a), t),
        (("div", ("div", t, a), b), ("div", t, ("mul", a, b))),
        (("div", t, ("div", a, b)), ("div", ("mul", t, b), a)),
        (("div", t, ("mul", ("constant", Fraction(3)), a)), ("mul", ("constant", Fraction(1, 3)), ("div", t, a))),
    ]:
        f, g = forms(al, lhs, rhs)
        assert f is g


@given(small, st.sampled_from([("a.tile",), ("a.loop", "a.tile"), ("b",)]))
def test_a_factor_without_the_index_leaves_the_sum(t: Term, parts: tuple[str, ...]) -> None:
    al = algebra()
    w = ("input", "y") if parts != ("b",) else ("input", "x")
    for op in ("mul", "div"):
        f, g = forms(al, ("sum", parts, (op, t, w)), (op, ("sum", parts, t), w))
        assert f is g


# The oracle.


@given(terms(), terms(), st.integers(0, 3))
def test_equal_forms_have_equal_values(t: Term, u: Term, seed: int) -> None:
    al = algebra()
    f, g = forms(al, t, u)
    a, b = value(t, seed), value(u, seed)
    assume(a is not None and b is not None)
    assert f is not g or a == b


@cache
def every_small_term() -> list[Term]:
    """All terms of one operator, and a sample of those of two to four."""
    rng = Random(0)
    sums = [("b",), ("a.tile",), ("a.loop", "a.tile")]

    def applied(ts: Sequence[Term], us: Sequence[Term]) -> list[Term]:
        return [
            *(("sum", p, t) for p in sums for t in ts),
            *(("function", n, t) for n in ("exp", "sigmoid") for t in ts),
            *(("neg", t) for t in ts),
            *((op, t, u) for op in BINARY for t, u in itertools.product(ts, us)),
        ]

    one = applied(LEAVES, LEAVES)
    two = applied(rng.sample(one, 50), LEAVES)
    three = applied(rng.sample(two, 60), rng.sample(one, 14))
    return [*LEAVES, *one, *rng.sample(two, 900), *rng.sample(three, 1200)]


def test_forms_partition_terms_no_coarser_than_values() -> None:
    """All pairs of thousands of terms: different values never share a form, and most equal ones do."""
    al = algebra()
    by_form: dict[Form, tuple[tuple[Fraction, ...], ...]] = {}
    form_of: dict[Term, Form] = {}
    values: dict[tuple[tuple[Fraction, ...], ...], set[Form]] = {}
    for t in every_small_term():
        results = [value(t, seed) for seed in (1, 2)]
        if any(r is None for r in results):
            continue
        v = tuple(r for r in results if r is not None)
        f = form_of[t] = read(t, al)
        assert by_form.setdefault(f, v) == v, t
        values.setdefault(v, set()).add(f)
    assert len(form_of) > 2000
    # terms that share a form, so that the test is not empty
    assert len(form_of) - len(by_form) > 300
    # nor does a value have two forms, among these terms: only 1 / (u + v) hides equalities
    assert [fs for fs in values.values() if len(fs) > 1] == []


@given(terms())
def test_a_value_changes_only_along_its_free_parts(t: Term) -> None:
    (f,) = forms(algebra(), t)
    v = value(t, 0)
    assume(v is not None)
    array = np.array(v, dtype=object).reshape(Rationals(0).sizes)
    for axis, p in enumerate(PARTS):
        if p not in f.free:
            assert (array == array.take([0], axis=axis)).all()
    assert f.free <= set(PARTS)


# Indices: what the abstract expression forgets.

x, y, m = ("input", "x"), ("input", "y"), ("input", "m")
OVER_A = ("a.loop", "a.tile")


def e(t: Term) -> Term:
    return ("function", "exp", t)


def sb(t: Term) -> Term:
    return ("sum", ("b",), t)


def sa(t: Term) -> Term:
    return ("sum", OVER_A, t)


DIFFERENT: dict[str, tuple[Term, Term]] = {
    "(sum x)(sum y) is not sum xy": (("mul", sb(m), sb(y)), sb(("mul", m, y))),
    "x sum x is not sum xx": (("mul", m, sb(m)), sb(("mul", m, m))),
    "(sum x)^2 is not sum x^2": (("mul", sb(y), sb(y)), sb(("mul", y, y))),
    "sum over another axis": (sb(m), sa(m)),
    "sum over a part": (sa(m), ("sum", ("a.tile",), m)),
    "sum_ij x is not sum_i x": (sa(sb(m)), sa(m)),
    "exp of a sum is not the sum of exps": (e(sb(m)), sb(e(m))),
    "exp(x) exp(y) is not exp(x y)": (("mul", e(m), e(y)), e(("mul", m, y))),
    "other function": (e(m), ("function", "sigmoid", m)),
    "x / y is not y / x": (("div", m, y), ("div", y, m)),
    "x - y is not y - x": (("sub", m, y), ("sub", y, m)),
    "another constant": (("mul", ("constant", Fraction(1, 8)), m), ("mul", ("constant", Fraction(8)), m)),
    "sum x / y is not sum x / sum y": (sb(("div", m, y)), ("div", sb(m), sb(y))),
    "1 / (x + y) is not 1/x + 1/y": (("div", x, ("add", m, y)), ("add", ("div", x, m), ("div", x, y))),
    "factors of one index are not exchanged with those of another": (
        ("mul", sb(("mul", m, e(m))), sb(("mul", y, e(y)))),
        ("mul", sb(("mul", m, y)), sb(("mul", e(m), e(y)))),
    ),
    "sum_i x_i sum_j x_j y_j": (("mul", sb(m), sb(("mul", m, y))), ("mul", sb(y), sb(("mul", m, m)))),
    "1 / 2(x + y) is not 1 / (x + y)": (
        ("div", x, ("mul", ("constant", Fraction(2)), ("add", m, y))),
        ("div", x, ("add", m, y)),
    ),
    "1 / -(x + y) is not 1 / (x + y)": (("div", x, ("neg", ("add", m, y))), ("div", x, ("add", m, y))),
    "twice or once": (("add", m, m), m),
    "an inverse keeps its index": (sb(("div", m, sb(m))), ("div", m, sb(m))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_values_have_different_forms(what: str) -> None:
    t, u = DIFFERENT[what]
    al = algebra()
    assert any(value(t, s) != value(u, s) for s in range(3)), "the oracle sees the difference"
    assert read(t, al) is not read(u, al)


def test_renaming_of_bound_indices() -> None:
    """Sums that are equal up to the names of their indices, with up to four indices of one part."""
    al = algebra()
    factors = [sb(("mul", m, y)), sb(e(m)), sb(("mul", y, e(y))), sb(m)]
    products = []
    for order in itertools.permutations(factors):
        t = order[0]
        for u in order[1:]:
            t = ("mul", t, u)
        products.append(read(t, al))
    assert len(set(products)) == 1
    # the same sums nested in one another
    nested = sb(("mul", ("mul", m, y), sb(("mul", e(m), sb(("mul", ("mul", y, e(y)), sb(m)))))))
    assert read(nested, al) is products[0]
    # but not with two factors exchanged between the sums
    other = sb(("mul", ("mul", m, e(y)), sb(("mul", e(m), sb(("mul", ("mul", y, y), sb(m)))))))
    assert read(other, al) is not products[0]


def test_the_order_of_inputs_does_not_matter() -> None:
    """Canonical renaming looks at factors, whose numbers depend on what was interned first."""
    ts = [("mul", sb(("mul", m, y)), sb(("mul", m, e(m)))), ("mul", sb(("mul", m, e(m))), sb(("mul", y, m)))]
    for first in (x, y, e(m), sb(m)):
        al = algebra()
        read(first, al)
        assert read(ts[0], al) is read(ts[1], al)


def test_softmax_times_value_either_way() -> None:
    """exp(x) / sum exp(x) * y summed, and the division after the sum: online attention's identity."""
    al = algebra()
    inside = sb(("mul", ("div", e(m), sb(e(m))), y))
    outside = ("div", sb(("mul", e(m), y)), sb(e(m)))
    assert read(inside, al) is read(outside, al)
    assert read(inside, al) is not read(("div", sb(("mul", e(m), y)), sb(("mul", e(m), y))), al)


def test_free_and_bound_parts() -> None:
    al = algebra()
    f = read(e(("div", m, sb(m))), al)
    assert f.free == {"a.loop", "a.tile", "b"}
    assert f.bound == {"b"}
    assert read(sa(sb(m)), al).free == frozenset()
    # a sum over an axis that the value lacks multiplies by its size
    g = read(sb(x), al)
    assert g.free == {"a.loop", "a.tile"} and g is not read(x, al)
    assert read(sb(sb(x)), al) is not g


def test_sizes() -> None:
    al = algebra()
    n = sympy.Symbol("n", integer=True, positive=True)
    four = sympy.Integer(4)
    assert al.dim(four) is not al.constant(Fraction(4))
    literal = ExactAlgebra({}, sizes={"b": four, "c": n})
    assert literal.dim(four) is literal.constant(Fraction(4))
    one = literal.constant(Fraction(1))
    assert literal.sum(one, frozenset({"b", "c"})) is literal.mul(literal.dim(n), literal.constant(Fraction(4)))
    assert literal.sum(one, frozenset({"a"})) is not literal.sum(one, frozenset({"b"}))
    assert al.dim(n) is al.dim(n) is not al.dim(2 * n)
    total = read(sb(m), al)
    assert al.div(total, al.dim(n)) is al.sum(al.div(read(m, al), al.dim(n)), frozenset({"b"}))


def test_functions_differ_by_parameters() -> None:
    al = algebra()
    t = read(m, al)
    clamp = FUNCTIONS["clamp"]
    one = al.function(clamp, t, Fraction(0), Fraction(1))
    assert one is al.function(clamp, t, Fraction(0), Fraction(1))
    assert one is not al.function(clamp, t, Fraction(0), Fraction(2))
    assert al.function(EXP, t) is not al.function(SIGMOID, t)


def test_division_by_nothing_proves_nothing() -> None:
    al = algebra()
    zero = read(("sub", m, m), al)
    assert zero is al.constant(Fraction(0))
    assert al.div(read(m, al), zero) is not al.div(read(y, al), zero)


def test_concats() -> None:
    al = ExactAlgebra({"ab": ("ab.loop", "ab.tile")})
    p, q = al.tensor("p", ("r", "a")), al.tensor("q", ("r", "b"))
    joined = al.concat([p, q], ("ab", ("a", "b")))
    assert joined.free == {"r", "ab.loop", "ab.tile"}
    assert joined is al.concat([p, q], ("ab", ("a", "b")))
    assert joined is not al.concat([q, p], ("ab", ("b", "a")))
    doubled = al.concat([al.add(p, p), q], ("ab", ("a", "b")))
    assert doubled is not al.add(joined, joined)
    assert al.inside(joined.terms[0][0][1][0][0]) == [p, q]


def test_too_many_monomials_are_refused() -> None:
    al = ExactAlgebra({}, limit=10)
    names = [al.tensor(f"t{i}", ()) for i in range(11)]
    some = names[0]
    for t in names[1:10]:
        some = al.add(some, t)
    with pytest.raises(TermTooLarge, match="10"):
        al.add(some, names[10])
    with pytest.raises(TermTooLarge, match="10 by 2"):
        al.mul(some, al.add(names[0], names[1]))


def test_beyond_the_renamings_forms_are_less_complete_but_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_RENAMINGS", 1)
    al = algebra()
    checked: dict[Form, tuple[Fraction, ...]] = {}
    for t, u in itertools.product([sb(m), sb(("mul", m, y)), sb(e(m))], repeat=2):
        t2 = ("mul", t, u)
        v = value(t2, 0)
        assert v is not None
        assert checked.setdefault(read(t2, al), v) == v
