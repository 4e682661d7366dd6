"""Equal and different pairs of programs and muGraphs."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage.errors import AxisError, ConstantsCollide, GraphError, InputError, VerificationError
from mirage.ir.axes import to_axes
from mirage.ir.functions import SIGMOID
from mirage.ir.operator import REGISTRY, elementwise
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.reference import reference_graph
from mirage.verify import equivalence, primes
from mirage.verify.bounds import Bound
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier, verify_graph, verify_programs
from mirage.verify.primes import Primes, Residues, draw_primes
from mirage.verify.safety import FACTOR_TESTS
from tests.verify.graphs import (
    PAIRS,
    L,
    P,
    W,
    adapter,
    attention,
    block,
    flash,
    flash_decoding,
    fused_norm_linear,
    gated_mlp,
    kernel,
    mugraph,
    node,
    norm_linear,
    one,
    read,
    replace_node,
    replace_roles,
    split_adapter,
    sum_over,
)

DELTA = 2.0**-40


@pytest.mark.parametrize(("program", "graph"), PAIRS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hand_written_graphs_are_equal(program: Callable[[], Program], graph: Callable[[], MuGraph], seed: int) -> None:
    c = verify_graph(program(), graph(), seed=seed)
    assert c.equal and not c.difference and c.safe_maximum and c.proof == "not tried"
    assert c.error_bound is not None and c.error_bound <= DELTA
    (check,) = c.checks
    assert len(check.draws) == 3 and all(d.error is not None and d.error <= DELTA for d in check.draws)


@pytest.mark.parametrize("make", [attention, gated_mlp, norm_linear, adapter])
def test_the_reference_graph_is_the_program(make: Callable[[], Program]) -> None:
    program = make()
    assert verify_graph(program, reference_graph(to_axes(program))).equal


def test_every_axis_is_drawn_larger_than_one_and_with_tails() -> None:
    c = verify_graph(attention(), flash())
    for a in to_axes(attention()).axes:
        drawn = {d.sizes[a] for d in c.checks[0].draws}
        assert {2, 3} <= drawn


ATTENTION_ERRORS = {
    "the scale is missing": lambda g: replace_node(g, (3, 5), op="add"),
    "another scale": lambda g: replace_node(g, (3, 4), attrs=(("value", Fraction(1, 8) + Fraction(1, 2**60)),)),
    "not normalised": lambda g: replace_node(g, (3, 11), op="mul"),
    "quotient upside down": lambda g: replace_node(g, (3, 11), operands=(Ref(8), Ref(10))),
    "another function": lambda g: replace_node(g, (3, 6), op="sigmoid"),
    "a linear function": lambda g: replace_node(g, (3, 6), op="neg"),
    "normalised by the scores": lambda g: replace_node(g, (3, 7), operands=(Ref(5),)),
}


@pytest.mark.parametrize("error", ATTENTION_ERRORS)
def test_wrong_attention_is_rejected(error: str) -> None:
    c = verify_graph(attention(), ATTENTION_ERRORS[error](flash()))
    assert not c.equal and c.error_bound is None
    assert re.match(
        r"output 0\[\d, \d, \d\] in test 0 is \d+ for the program and \d+ for the graph, modulo p; "
        r"axes h=\d, .*; schedule \[\{'tiles': \[\['h', .*; seed 0$",
        c.difference,
    )


def test_a_missing_epsilon_is_rejected() -> None:
    graph = replace_node(fused_norm_linear(), (3, 12), op="sub")
    assert not verify_graph(norm_linear(), graph).equal


def test_a_mean_over_another_size_is_rejected() -> None:
    from mirage.ir.dims import to_dim

    graph = replace_node(fused_norm_linear(), (3, 9), attrs=(("dim", to_dim("n")),))
    assert not verify_graph(norm_linear(), graph).equal


def test_sums_over_the_wrong_axis_are_rejected() -> None:
    b = ProgramBuilder("rows")
    x = b.input("x", tensor("n", "n"))
    right, wrong = (b.finish([b.op("sub", x, b.op("sum", x, axes=(a,), keepdims=True))]) for a in (0, 1))
    assert verify_programs(right, right).equal
    c = verify_programs(right, wrong)
    assert not c.equal and "output 0[0, 0] in test 0" in c.difference


def test_a_graph_for_another_program_is_refused() -> None:
    with pytest.raises(GraphError, match="verify it against the program that it was made for, or give"):
        verify_graph(attention(), split_adapter())


def test_a_malformed_graph_is_refused() -> None:
    with pytest.raises(GraphError):
        verify_graph(attention(), replace_roles(flash(), 3, t=P))


def test_the_same_seed_gives_the_same_certificate() -> None:
    first, second = (verify_graph(attention(), flash_decoding(), seed=7) for _ in range(2))
    assert first == second
    assert first != verify_graph(attention(), flash_decoding(), seed=8)


def test_a_verifier_gives_each_graph_its_certificate_in_any_order() -> None:
    wrong = replace_node(flash(), (3, 11), op="mul")
    graphs = (flash(), wrong, flash_decoding(), flash())
    forwards, backwards = Verifier(attention()), Verifier(attention())
    found = [forwards.check(g) for g in graphs]
    assert [c.equal for c in found] == [True, False, True, True]
    assert found == [backwards.check(g) for g in graphs[::-1]][::-1] == [verify_graph(attention(), g) for g in graphs]


def confirmed(program: Program, graph: MuGraph, seed: int = 0) -> Certificate:
    v = Verifier(program, seed)
    return v.confirm(graph, v.check(graph))


@pytest.mark.parametrize(("program", "graph"), PAIRS)
def test_the_second_check_has_primes_and_a_seed_of_its_own(
    program: Callable[[], Program], graph: Callable[[], MuGraph]
) -> None:
    c = confirmed(program(), graph())
    first, second = c.checks
    assert c.equal and first.equal and second.equal
    assert first.seed != second.seed and not {first.p, first.q} & {second.p, second.q}
    assert all(check.error_bound is not None and check.error_bound <= DELTA for check in c.checks)
    assert c == confirmed(program(), graph()) != confirmed(program(), graph(), seed=1)


def test_a_second_check_is_made_once_and_of_equal_graphs() -> None:
    v = Verifier(attention())
    once = v.confirm(flash(), v.check(flash()))
    assert v.confirm(flash(), once) is once
    wrong = replace_node(flash(), (3, 11), op="mul")
    assert len(v.confirm(wrong, v.check(wrong)).checks) == 1


def _residues(self: Residues, value: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Residues that do not have to be those of one constant alone."""
    p, q = (value.numerator * pow(value.denominator, -1, m) % m for m in (self.primes.p, self.primes.q))
    return np.asarray(p), np.asarray(q)


def test_what_one_pair_of_primes_hides_the_second_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that is wrong by a multiple of both first primes: disagreement is an error that names graph and seeds."""
    v = Verifier(attention())
    aimed_at = draw_primes("aimed at")
    scale = Fraction(1, 8) + aimed_at.p * aimed_at.q
    wrong = dataclasses.replace(replace_node(flash(), (3, 4), attrs=(("value", scale),)), origin="loop t")
    assert not v.check(wrong).equal
    with monkeypatch.context() as m:
        m.setattr(primes, "draw_primes", lambda key: aimed_at)
        # nor does it pass with these primes, modulo which it is the right one
        with pytest.raises(ConstantsCollide, match=r"constants .* are equal modulo"):
            v.check(wrong)
        m.setattr(Residues, "of", _residues)
        first = v.check(wrong)
    assert first.verdict == "tested equal"
    with pytest.raises(
        VerificationError, match=r"flash \(loop t\): equal .*, different in the second \(seeds 0 and \d+\)"
    ):
        v.confirm(wrong, first)


def test_degrees_that_do_not_hold_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the analysis claims is tested in the field for every graph with exps that is returned."""
    v = Verifier(attention())
    found = analyze(flash())
    monkeypatch.setattr(
        equivalence, "analyze", lambda _: dataclasses.replace(found, degree={**found.degree, ((3, 8), 0): {0: 2}})
    )
    with pytest.raises(VerificationError, match="does not scale with its degrees"):
        v.confirm(flash(), v.check(flash()))


def test_factors_are_tested_where_exps_are_shifted() -> None:
    assert confirmed(attention(), flash()).factor_tests == FACTOR_TESTS
    assert confirmed(adapter(), split_adapter()).factor_tests == 0
    assert verify_graph(attention(), flash()).factor_tests == 0


def test_redrawn_tests_cost_certainty() -> None:
    bound = Bound(k=8, d=2, acceptance=7 / 8)
    assert bound.error(100) == pytest.approx((7 / 8) ** 100)
    assert bound.error(100, 2) == pytest.approx(math.comb(102, 2) * (7 / 8) ** 100)
    assert bound.error(1, 100) == 1.0
    for redrawn in (0, 1, 5):
        n = bound.tests(DELTA, redrawn)
        assert bound.error(n, redrawn) <= DELTA < bound.error(n - 1, redrawn)


@pytest.mark.parametrize("delta", [0.5, 2.0**-10, 2.0**-80])
def test_delta_decides_the_number_of_tests(delta: float) -> None:
    c = verify_graph(attention(), flash(), delta=delta)
    assert c.error_bound is not None and c.error_bound <= delta
    assert (c.tests > verify_graph(attention(), flash()).tests) == (delta < DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, float("nan")])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(InputError, match="not a probability"):
        Verifier(attention(), delta=delta)


def test_small_primes_redraw_divisions_by_zero_and_give_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The primes of the paper: about 1 in 20 tests divides by zero here, and d k^4 < q fails."""
    monkeypatch.setattr(primes, "draw_primes", lambda key: Primes(227, 113, 4))
    c = Verifier(attention()).check(flash())
    (check,) = c.checks
    assert c.equal and (check.p, check.q) == (227, 113)
    assert sum(d.redrawn for d in check.draws) > 0 and all(d.tests == 256 for d in check.draws)
    assert c.error_bound is None and any("no error bound: d k^4 =" in n for n in c.notes)


def test_a_program_that_always_divides_by_zero_is_never_equal() -> None:
    b = ProgramBuilder("nowhere")
    x = b.input("x", tensor("m"))
    p = b.finish([b.op("div", x, b.op("sub", x, x))])
    c = verify_graph(p, reference_graph(to_axes(p)))
    assert not c.equal and "divides by zero in every random test" in c.difference


def two_exps(extra: bool) -> Program:
    b = ProgramBuilder("two_exps")
    x = b.input("x", tensor("m"))
    e = b.op("exp", b.op("exp", x))
    return b.finish([b.op("mul", e, e) if extra else e])


def test_two_exps_on_a_path_are_outside_lax() -> None:
    p = two_exps(False)
    c = verify_graph(p, reference_graph(to_axes(p)))
    assert c.equal and not c.lax
    assert "outside Lax: the exp of an exp's result is taken as a random function" in c.notes
    assert not verify_programs(p, two_exps(True)).equal


def of_softmax(function: str, scale: Fraction = Fraction(1)) -> Program:
    """A function of a softmax: of a quotient of sums of exponentials."""
    b = ProgramBuilder("of_softmax")
    x = b.input("x", tensor("m", "n"))
    return b.finish([b.op(function, b.op("mul", b.op("softmax", x), b.op("constant", value=scale)))])


@pytest.mark.parametrize("function", ["relu", "gelu", "sqrt", "exp", "softmax"])
def test_functions_of_results_of_exp_have_a_bound(function: str) -> None:
    p = of_softmax(function)
    c = confirmed(p, reference_graph(to_axes(p)))
    assert c.equal and not c.lax and c.error_bound is not None and c.error_bound <= DELTA
    d = c.checks[0].draws[0]
    assert f", {d.pairs} pairs of arguments with k={d.argument_k}, error at most 2^-4" in str(c) and d.pairs > 0
    assert verify_programs(p, p).error_bound is not None
    other = of_softmax(function, 1 + Fraction(1, 1 << 40))
    assert not verify_programs(p, other).equal
    assert not verify_graph(p, dataclasses.replace(reference_graph(to_axes(other)), name=p.name)).equal


def test_a_function_of_other_exponentials_is_rejected() -> None:
    """Arguments that agree in most tests: exp(x) and exp(-x) where the root of unity is 1, and nowhere else."""
    b = ProgramBuilder("p")
    x = b.input("x", tensor("m"))
    one = b.finish([b.op("relu", b.op("exp", x))])
    other = b.finish([b.op("relu", b.op("exp", b.op("neg", x)))])
    assert verify_programs(one, one).equal
    assert not verify_programs(one, other).equal


def test_where_arguments_have_too_many_terms_there_is_no_bound() -> None:
    b = ProgramBuilder("p")
    x, w, c = b.input("x", tensor("m", "n")), b.input("w", tensor("n")), b.input("c", tensor("n"))
    p = b.finish([b.op("layer_norm", b.op("softmax", x), w, c)])
    found = verify_graph(p, reference_graph(to_axes(p)))
    assert found.equal and found.error_bound is None and all(d.tests >= 256 for d in found.checks[0].draws)
    assert any(n.startswith("no error bound: a function is applied to a result of exp: d k^4 =") for n in found.notes)


def test_joined_tests_are_redrawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small primes divide by zero now and then; a batch with such a test is drawn again, and nothing wrong is said."""
    p = of_softmax("relu")
    monkeypatch.setattr(primes, "draw_primes", lambda key: Primes(227, 113, 4))
    c = Verifier(p).check(reference_graph(to_axes(p)))
    assert c.equal or "divides by zero" in c.difference
    assert sum(d.redrawn for d in c.checks[0].draws) > 0


def test_lax_programs_are_marked() -> None:
    assert verify_graph(attention(), flash()).lax
    assert not verify_graph(norm_linear(), fused_norm_linear()).lax


@pytest.fixture
def user_operators() -> Iterator[None]:
    elementwise("test_twice", lambda al, x: al.add(x, x))
    elementwise("test_gate", lambda al, x, y: al.mul(x, al.function(SIGMOID, y)), arity=2)
    yield
    del REGISTRY["test_twice"], REGISTRY["test_gate"]


@pytest.mark.usefixtures("user_operators")
def test_users_operators_follow_from_their_definition() -> None:
    b = ProgramBuilder("user")
    x, y = b.input("x", tensor("m", "n")), b.input("y", tensor("m", "n"))
    user = b.finish([b.op("test_gate", b.op("test_twice", x), y)])
    plain = b.finish([b.op("mul", b.op("add", x, x), b.op("sigmoid", y))])
    swapped = b.finish([b.op("test_gate", b.op("test_twice", y), x)])
    assert verify_programs(user, plain).equal
    assert not verify_programs(user, swapped).equal


def test_programs_of_the_same_function() -> None:
    b = ProgramBuilder("chain")
    x, y, z = (b.input(n, tensor("n", "n")) for n in "xyz")
    left = b.finish([b.op("matmul", b.op("matmul", x, y), z)])
    right = b.finish([b.op("matmul", x, b.op("matmul", y, z))])
    other = b.finish([b.op("matmul", b.op("matmul", y, x), z)])
    c = verify_programs(left, right)
    assert c.equal and c.lax and c.error_bound is not None and c.error_bound <= DELTA
    assert not verify_programs(left, other).equal


def test_softmax_is_its_expansion() -> None:
    b = ProgramBuilder("softmax")
    x = b.input("x", tensor("m", "n"))
    e = b.op("exp", x)
    mine = b.finish([b.op("div", e, b.op("sum", e, axes=(1,), keepdims=True))])
    bare = b.finish([e])
    theirs = b.finish([b.op("softmax", x)])
    assert verify_programs(theirs, mine).equal
    assert not verify_programs(theirs, bare).equal


def test_exponents_add_up() -> None:
    b = ProgramBuilder("exps")
    x, y = b.input("x", tensor("m")), b.input("y", tensor("m"))
    product = b.finish([b.op("mul", b.op("exp", x), b.op("exp", y))])
    total = b.finish([b.op("exp", b.op("add", x, y))])
    difference = b.finish([b.op("exp", b.op("sub", x, y))])
    assert verify_programs(product, total).equal
    assert not verify_programs(product, difference).equal


def test_programs_of_different_types_are_refused() -> None:
    with pytest.raises(InputError, match="differ in type"):
        verify_programs(attention(), norm_linear())


def test_programs_without_an_axis_form_have_no_bound() -> None:
    b = ProgramBuilder("straddling")
    x = b.input("x", tensor("n", 6))
    p = b.finish([b.op("reshape", b.op("reshape", x, shape=("n", 2, 3)), shape=("n", 3, 2))])
    with pytest.raises(AxisError):
        Verifier(p)
    c = verify_programs(p, p)
    assert not c.difference and c.error_bound is None and any("has no axis form" in n for n in c.notes)
    assert c.verdict == "unknown" and c.reason == "the tests do not speak for sizes of n above 3"
    b = ProgramBuilder("at_four")
    literal = b.finish([b.op("reshape", b.op("reshape", b.input("x", tensor(4, 6)), shape=(4, 2, 3)), shape=(4, 3, 2))])
    assert verify_programs(literal, literal).verdict == "tested equal"


def variance(centred: bool) -> Program:
    """sum of (x - mean)^2, or sum of x^2 - n mean^2: equal only if a sum of n ones is n."""
    b = ProgramBuilder("variance")
    x = b.input("x", tensor("m", 48))
    mean = b.op("mean", x, axes=(1,), keepdims=True)
    if centred:
        return b.finish([b.op("sum", b.op("square", b.op("sub", x, mean)), axes=(1,))])
    total = b.op("sum", b.op("square", x), axes=(1,))
    n = b.op("size", dim=48)
    return b.finish([b.op("sub", total, b.op("mul", n, b.op("square", b.op("mean", x, axes=(1,)))))])


def test_sizes_of_shrunk_literal_axes_are_those_drawn() -> None:
    """One pass for the variance: sum over x^2 and over x in one loop."""
    program = variance(centred=True)
    assert verify_programs(program, variance(centred=False)).equal
    ap = to_axes(program)
    size = next(n.attrs for n in ap.nodes if n.op == "size")
    (row,) = {a for o in ap.outputs for d in o.dims for a in d}
    (long,) = set(ap.axes) - {row}
    m = (row,)
    nodes = [
        read(0, one(row, long)),
        node("sum", (0,), m, reduce=(long,)),
        sum_over(long, 1, m),
        node("square", (0,), (row, long)),
        node("sum", (3,), m, reduce=(long,)),
        sum_over(long, 4, m),
        node("size", (), (), attrs=size),
        node("square", (2,), m),
        node("div", (7, 6), m),
        node("sub", (5, 8), m),
    ]
    g = block(nodes, (9,), {row: P, long: L})
    graph = mugraph(ap, [kernel(g, (Ref(0),), one(row))], Ref(1))
    assert verify_graph(program, graph).equal
    assert not verify_graph(program, replace_node(graph, (1, 8), op="mul")).equal


def test_concatenated_operands() -> None:
    """x | y times w: a joined axis has the sum of its parts' sizes."""
    b = ProgramBuilder("concat")
    x, y, w = b.input("x", tensor("m", "k")), b.input("y", tensor("m", "l")), b.input("w", tensor("k+l", "n"))
    p = b.finish([b.op("matmul", b.op("concat", x, y, axis=1), w)])
    swapped = b.finish([b.op("matmul", b.op("concat", b.op("neg", x), y, axis=1), w)])
    assert verify_graph(p, reference_graph(to_axes(p))).equal
    assert not verify_programs(p, swapped).equal


def test_every_output_is_compared() -> None:
    b = ProgramBuilder("two")
    x = b.input("x", tensor("m", "n"))
    first, second = b.op("sum", x, axes=(1,)), b.op("sum", b.op("square", x), axes=(1,))
    right, wrong = b.finish([first, second]), b.finish([first, b.op("square", first)])
    assert verify_graph(right, reference_graph(to_axes(right))).equal
    c = verify_programs(right, wrong)
    assert not c.equal and c.difference.startswith("output 1[0] in test 0 is ")


def test_a_wrong_axis_form_is_an_error_of_ours() -> None:
    v = Verifier(attention())
    nodes = list(v.reference.kernel.nodes)
    k = next(i for i, n in enumerate(nodes) if n.op == "mul")
    nodes[k] = dataclasses.replace(nodes[k], op="add")
    v.reference = dataclasses.replace(v.reference, kernel=dataclasses.replace(v.reference.kernel, nodes=tuple(nodes)))
    with pytest.raises(VerificationError, match="its axis form differs"):
        _ = v.lowering


@pytest.mark.parametrize("name", ["sqrt", "log"])
def test_large_tensors_of_which_a_function_is_undefined_are_compared_where_it_is_defined(name: str) -> None:
    def roots(perm: tuple[int, int]) -> Program:
        b = ProgramBuilder("roots")
        x, w = b.input("x", tensor("m", 600)), b.input("w", tensor(600, 600))
        return b.finish([b.op("matmul", x, b.op("transpose", b.op(name, w), perm=perm))])

    verifier = Verifier(roots((0, 1)))
    assert "float64" in verifier.lowering
    verifier = Verifier(verifier.program)
    verifier.reference = reference_graph(to_axes(roots((1, 0))))
    with pytest.raises(VerificationError, match="its axis form differs"):
        _ = verifier.lowering


@pytest.mark.parametrize("wrong", [lambda b, x, w, v: (x, v, w), lambda b, x, w, v: (x, b.op("transpose", w, perm=(1, 0)), v)])
def test_large_weights_are_told_apart_in_float64(wrong: Any) -> None:
    """They are parts of one array of random numbers, none the same."""

    def product(order: Any) -> Program:
        b = ProgramBuilder("two")
        given = b.input("x", tensor("m", 2048)), b.input("w", tensor(2048, 2048)), b.input("v", tensor(2048, 2048))
        x, w, v = order(b, *given)
        return b.finish([b.op("matmul", b.op("matmul", x, w), v)])

    verifier = Verifier(product(lambda b, x, w, v: (x, w, v)))
    assert "float64" in verifier.lowering
    verifier = Verifier(verifier.program)
    verifier.reference = reference_graph(to_axes(product(wrong)))
    with pytest.raises(VerificationError, match="its axis form differs"):
        _ = verifier.lowering


@pytest.mark.parametrize(("n", "how"), [(64, "8 random tests"), (2048, "float64"), (8192, "not compared")])
def test_the_axis_form_is_compared_at_literal_sizes(n: int, how: str) -> None:
    b = ProgramBuilder("linear")
    x, w = b.input("x", tensor("m", n)), b.input("w", tensor(n, n))
    p = b.finish([b.op("matmul", x, w)])
    c = verify_graph(p, reference_graph(to_axes(p)))
    assert c.equal and any(how in note for note in c.notes)


def test_a_tile_that_is_whole_is_equal_too() -> None:
    assert verify_graph(attention(), replace_roles(flash(), 3, h=W)).equal
