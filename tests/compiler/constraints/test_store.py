"""The store of facts: what it proves, against all small sizes that satisfy the facts; what it refuses and says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mirage.compiler.constraints import Constraints, Fact, Relation, from_bounds
from mirage.errors import ConstraintError, DimError
from mirage.ir.dims import dim_text, evaluate, to_dim, value_at

NAMES = ("k", "m", "n")
#: all sizes that claims are compared with
SIZES = [dict(zip(NAMES, values, strict=True)) for values in product(range(7), repeat=3)]

dims = st.recursive(
    st.sampled_from(NAMES) | st.integers(0, 6).map(str),
    lambda x: st.one_of(
        st.tuples(x, st.sampled_from(["+", "-", "*"]), x).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(x, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3", "4", *NAMES])).map(
            lambda t: f"({t[0]}) {t[1]} {t[2]}"
        ),
        st.tuples(st.sampled_from(["min", "max"]), x, x).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=4,
)
facts = st.one_of(
    st.tuples(st.just("equal"), dims, dims),
    st.tuples(st.just("divisible"), dims, st.integers(1, 4)),
    st.tuples(st.just("at least"), dims, st.integers(0, 4)),
    st.tuples(st.just("at most"), dims, st.integers(0, 9)),
)


def add(c: Constraints, fact: tuple[str, str, str | int], reason: str) -> None:
    kind, dim, other = fact
    match kind, other:
        case "equal", str():
            c.add_equal(dim, other, reason)
        case "divisible", int():
            c.add_divisible(dim, other, reason)
        case "at least", int():
            c.add_range(dim, other, None, reason)
        case "at most", int():
            c.add_range(dim, None, other, reason)


def true_of(fact: tuple[str, str, str | int], sizes: dict[str, int]) -> bool:
    """Whether a fact is true of sizes, by its meaning."""
    kind, dim, other = fact
    x, y = value_at(to_dim(dim), sizes), value_at(to_dim(other), sizes)
    return {"equal": x == y, "at least": x >= y, "at most": x <= y}[kind] if kind != "divisible" else x % y == 0


def read_all(*texts: str) -> None:
    """Leaves out texts that denote no dim: they divide by a literal 0 or are a negative number."""
    try:
        for t in texts:
            to_dim(t)
    except DimError:
        assume(False)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(facts, max_size=4), dims, dims, st.integers(1, 6))
@example([("at most", "k // m", 0), ("equal", "k", "k + m")], "k", "k", 1)
@example([("divisible", "k % 2 % k", 2)], "k", "k", 1)
@example(
    [("equal", "n", "3"), ("equal", "m", "4"), ("equal", "2", "min(k, m + 4)"), ("equal", "4 % k", "max(n, m)")],
    "n",
    "m",
    1,
)
def test_what_is_proved_is_true_of_all_sizes(given: list[tuple[str, str, str | int]], a: str, b: str, k: int) -> None:
    read_all(a, b, *(str(x) for f in given for x in f[1:]))
    c = Constraints()
    possible = SIZES
    for i, fact in enumerate(given):
        possible = [s for s in possible if defined(lambda s=s, fact=fact: true_of(fact, s))]  # type: ignore[misc]
        try:
            add(c, fact, f"fact {i}")
        except ConstraintError as e:
            assert f"fact {i}" in str(e)
            assert not possible
            return
    x, y = to_dim(a), to_dim(b)
    low, high = c.lower_bound(a), c.upper_bound(a)
    claims: list[tuple[bool, Callable[[int, int], bool]]] = [
        (c.equal(a, b), lambda u, v: u == v),
        (c.different(a, b), lambda u, v: u != v),
        (c.at_most(a, b), lambda u, v: u <= v),
        (c.less(a, b), lambda u, v: u < v),
        (c.divisible(a, k), lambda u, _: u % k == 0),
        (c.equal(c.normalize(a), b), lambda u, v: u == v),
        (low is not None, lambda u, _: low is not None and low <= u),
        (high is not None, lambda u, _: high is not None and u <= high),
    ]
    normal = c.normalize(a)
    for s in possible:
        try:
            u, v = value_at(x, s), value_at(y, s)
        except DimError:
            continue
        assert all(holds(u, v) for claimed, holds in claims if claimed)
        assert value_at(normal, s) == u
        assert all(g.holds(s) for g in c.guards())


@given(st.lists(facts, min_size=1, max_size=4))
@example([("equal", "n - k", "max(n, 1) * max(n, 2)")])
@example([("equal", "k", "0"), ("equal", "m", "k // m")])
def test_guards_are_the_facts(given: list[tuple[str, str, str | int]]) -> None:
    read_all(*(str(x) for f in given for x in f[1:]))
    c = Constraints()
    try:
        for fact in given:
            add(c, fact, "a reason")
    except ConstraintError:
        assume(False)
    for s in SIZES:
        try:
            want = all(true_of(f, s) for f in given)
        except DimError:
            continue
        assert all(g.holds(s) for g in c.guards()) == want


def defined(claim: Callable[[], bool]) -> bool:
    """A claim about sizes for which no divisor is 0; false of others."""
    try:
        return claim()
    except DimError:
        return False


def decoder() -> Constraints:
    """The facts of a program with a reshape, siblings, a divisible length and bounds."""
    c = from_bounds({"n": 4096, "b": (1, 16)})
    c.add_equal("m", "n", "add 1")
    c.add_collapse(["n", 4], "k", "reshape 2")
    c.add_divisible("n", 8, "assert 3")
    c.add_collapse(["p", "q"], ["r", 3], "reshape 4")
    return c


def test_equality() -> None:
    c = decoder()
    assert c.equal("k", "4*m") and c.equal("k + m", "5*n") and c.equal("8*(n // 8)", "m") and c.equal("m % 8", 0)
    assert c.equal("min(n, 5000)", "m") and c.equal("2*(n // 2) + n % 2", "n") and c.equal("max(b, 1)", "b")
    assert c.different("n", "n + 1") and c.different("b", 0) and c.different("n", "8*k + 4")
    assert not c.equal("n", "p") and not c.different("n", "p") and not c.different("n", 0)


def test_products() -> None:
    c = decoder()
    assert c.same_elements(["b", "n", 4], ["b", "k"]) and c.same_elements(["p", "q", 2], [6, "r"])
    assert not c.same_elements(["p", "q"], ["r"]) and not c.same_elements(["p"], ["q"])
    assert c.same_shape(["b", "n"], ["b", "m"]) and not c.same_shape(["b"], ["b", 1]) and not c.same_shape(["b"], ["n"])
    assert c.same_elements([], [1])


def test_order_and_bounds() -> None:
    c = decoder()
    assert (c.lower_bound("k"), c.upper_bound("k")) == (0, 16384)
    assert (c.lower_bound("b"), c.upper_bound("b*n")) == (1, 65536)
    assert c.upper_bound("p") is None and c.upper_bound("n % 100") == 96
    assert c.at_most("n", 4096) and c.less("m", 4097) and not c.less("n", 4096)
    assert c.at_most("n // 2", "n") and c.at_most("n", "b*n") and c.less("p % 8", 8) and c.at_most("n - 3", "n")
    assert not c.at_most("p", "p*q") and not c.less("n // 2", "n")
    assert (
        c.largest(["n", "k", "m"]) == to_dim("k")
        and c.largest(["n", "p"]) is None
        and c.largest(["m", "n"]) == to_dim("m")
    )


def test_bounds_of_a_part_bound_the_whole() -> None:
    c = Constraints()
    c.add_range("n*m", 2, 100, "tokens")
    assert c.upper_bound("2*n*m + 1") == 201 and c.lower_bound("n*m") == 2
    assert c.upper_bound("n") == 100 or c.upper_bound("n") is None
    c.add_range("m", 4, None, "heads")
    assert c.upper_bound("n") == 25
    c.add_range("n + k", None, 30, "sum")
    assert c.upper_bound("k") == 30


def test_divisibility() -> None:
    c = decoder()
    assert c.divisible("k", 32) and c.divisible("n*p", 8) and c.divisible("n + 16", 8) and not c.divisible("n", 16)
    c.add_divisible("p + 2", 4, "pad")
    assert c.divisible("p", 2) and c.equal("p % 4", 2) and c.divisible("p*p", 4)
    c.add_equal("(x + 3) // 4 * 4", "x", "pad")
    assert c.divisible("x", 4)
    c.add_divisible("p*q + r", 3, "even")
    assert c.divisible("r", 3)


def test_normal_forms() -> None:
    c = decoder()
    expected = {
        "m": "n",
        "k + m": "5*n",
        "8*(n // 8)": "n",
        "n // 2": "n // 2",
        "n // 16": "n // 16",
        "n % 8": "0",
        "p*q": "p*q",
        "min(m, 9999)": "n",
    }
    assert {text: dim_text(c.normalize(text)) for text in expected} == expected


def test_z3_proves_what_normal_forms_and_intervals_do_not() -> None:
    c = Constraints()
    assert c.at_most("n", "n // 2 * 2 + 1") and c.stats.z3 == 1 and c.stats.unknown == 0
    assert c.at_most("n", "n // 2 * 2 + 1") and c.stats.z3 == 1 and c.stats.cached == 1
    assert not c.at_most("n", "n // 2 * 2") and c.stats.z3 == 1 and c.stats.counterexamples == 1
    assert c.at_most("u // v", "u") and c.at_most("min(u, v)", "u") and c.equal("min(u, v) + max(u, v)", "u + v")


def test_a_proof_is_kept_and_what_was_unknown_is_asked_again() -> None:
    c = Constraints()
    assert c.equal("2*n // 2", "n") and not c.equal("n", "m")
    c.add_equal("n", "m", "add")
    before = c.stats.cached
    assert c.equal("2*n // 2", "n") and c.stats.cached == before + 1
    assert c.equal("n", "m")


def test_copies_are_independent() -> None:
    c = decoder()
    other = c.copy()
    other.add_equal("n", "p", "other")
    assert other.equal("k", "4*p") and not c.equal("k", "4*p")
    assert len(other.guards()) == len(c.guards()) + 1 and other.describe()[:-1] == c.describe()


def test_what_is_known_is_listed() -> None:
    c = decoder()
    c.add_equal("4*n", "k", "said again")
    c.add_range("n", None, 5000, "weaker")
    assert c.describe() == [
        "n <= 4096 (bounds['n'])",
        "b >= 1 (bounds['b'])",
        "b <= 16 (bounds['b'])",
        "m == n (add 1)",
        "4*n == k (reshape 2)",
        "8 divides n (assert 3)",
        "p*q == 3*r (reshape 4)",
    ]
    assert c.guards({"n", "m"}) == [
        Fact(to_dim("n"), Relation.AT_MOST, to_dim(4096), "bounds['n']"),
        Fact(to_dim("m"), Relation.EQUAL, to_dim("n"), "add 1"),
        Fact(to_dim("n"), Relation.DIVISIBLE, to_dim(8), "assert 3"),
    ]
    assert [g.holds({"n": 12, "m": 12}) for g in c.guards({"n", "m"})] == [True, True, False]


@pytest.mark.parametrize(
    ("contradict", "message"),
    [
        (
            lambda c: c.add_equal("n", "m + 1", "mul 9"),
            r"^mul 9: n == m \+ 1 contradicts m == n \(add 1\); make them agree$",
        ),
        (
            lambda c: c.add_range("k", 16388, None, "arena"),
            r"^arena: k >= 16388 contradicts 4\*n == k \(reshape 2\) and n <= 4096 \(bounds\['n'\]\)",
        ),
        (lambda c: c.add_range("b", 0, 0, "z"), r"^z: b <= 0 contradicts b >= 1 \(bounds\['b'\]\)"),
        (lambda c: c.add_divisible("n + 4", 8, "w"), r"^w: 8 divides n \+ 4 contradicts 8 divides n \(assert 3\)"),
        (lambda c: c.add_equal("p*q + 1", "3*r", "c"), r"^c: p\*q \+ 1 == 3\*r contradicts p\*q == 3\*r \(reshape 4\)"),
        (lambda c: c.add_equal(3, 4, "pad"), "^pad: 3 == 4 is true of no sizes"),
        (lambda c: c.add_range("n", None, -1, "r"), "^r: n <= -1 is true of no sizes"),
        (lambda c: c.add_range("n", 9, 4, "r"), "^r: n from 9 to 4 is an empty range"),
        (lambda c: c.add_equal("2*p", "2*q + 1", "odd"), r"^odd: 2\*p == 2\*q \+ 1 is true of no sizes"),
    ],
)
def test_contradictions_name_both_reasons(contradict: Callable[[Constraints], None], message: str) -> None:
    c = decoder()
    before = c.describe()
    with pytest.raises(ConstraintError, match=message):
        contradict(c)
    assert c.describe() == before and c.equal("m", "n")


def test_facts_that_narrow_each_other_end() -> None:
    c = Constraints()
    c.add_range("n - m", 1, None, "first")
    with pytest.raises(ConstraintError, match=r"second: .* contradicts .* \(first\)"):
        c.add_range("m - n", 1, None, "second")


@pytest.mark.parametrize("k", [0, -4, "n", 1.5, True])
def test_divisors_are_positive_integers(k: object) -> None:
    c = Constraints()
    with pytest.raises(DimError, match="slice 3: "):
        c.add_divisible("n", k, "slice 3")  # type: ignore[arg-type]
    with pytest.raises(DimError):
        c.divisible("n", k)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", ["4", 1.5, True])
def test_bounds_are_integers(bound: object) -> None:
    with pytest.raises(DimError, match=r"top_k 3: .* is not a bound of n; use an integer or None"):
        Constraints().add_range("n", bound, None, "top_k 3")  # type: ignore[arg-type]


def test_dims_are_read_as_everywhere() -> None:
    c = Constraints()
    for bad in ("n /", "f(n)", -1):
        with pytest.raises(DimError, match="matmul 2: "):
            c.add_equal("n", bad, "matmul 2")
    assert c.describe() == []
    with pytest.raises(DimError, match="no size for"):
        Fact(to_dim("n"), Relation.AT_MOST, to_dim("m"), "r").holds({"n": 3})
    assert evaluate(to_dim("n"), {"n": 3}) == 3
