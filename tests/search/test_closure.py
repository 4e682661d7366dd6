"""Closures: the values of a kernel, what admits them and what prunes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import AxisNode, AxisProgram, to_axes
from mirage.mugraph.graph import partial_axis
from mirage.search.closure import COMMUTATIVE, Closure, Derivation, Value
from mirage.search.options import SearchOptions
from mirage.search.plan import KernelPlan, kernel_plans
from mirage.search.space import Space
from mirage.search.steps import finish
from mirage.search.vocabulary import Vocabulary
from tests.programs import QUICK, SMALL, T, axes, close, space
from tests.sampled import thinned

NONE = KernelPlan()
NAMES = (*QUICK, *SMALL)
CASES = [(name, p) for name in NAMES for p in kernel_plans(axes(name), 2)]


def derivations(c: Closure) -> Iterator[tuple[Value, Derivation]]:
    return ((v, d) for v in c.values for d in v.derivations)


def outputs(c: Closure, program: AxisProgram) -> list[list[Value]]:
    """Per output, the values that are it."""
    forms = [c.al.targets[o.value][0] for o in program.outputs]
    return [[v for v in c.values if v.form is f and v.derivations] for f in forms]


def is_concat(d: Derivation) -> bool:
    """Joins the tiles of a loop."""
    return d.op == "accumulator" and dict(d.attrs)["mode"] == "concat"


# Values.


@pytest.mark.parametrize(("name", "plan"), thinned(CASES, start=1))
def test_invariants(name: str, plan: KernelPlan) -> None:
    c = close(name, plan)
    assert [v.number for v in c.values] == list(range(len(c.values)))
    computed = [v for v in c.values if v.source is None]
    assert all(v.derivations for v in computed)
    # equal prefixes are one value
    assert len({(v.form, v.poly, v.after, v.concatenated) for v in computed}) == len(computed)
    for v, d in derivations(c):
        assert v.after == (d.op == "accumulator" or any(u.after for u in d.operands))
        assert v.varying == (d.op != "accumulator" and any(u.varying for u in d.operands))
        assert v.concatenated == is_concat(d)
        # its operands exist at the same time
        assert d.op == "concat" or not any(a.varying and b.after for a, b in itertools.permutations(d.operands, 2))
        # every derivation yields the value that it is kept for
        if is_concat(d):
            (tile,) = d.operands
            assert (tile.form, tile.poly) == (v.form, v.poly) and tile.varying
        elif d.op != "concat_matmul":
            bound = c._bound_parts(d.op, d.attrs, d.reduce, v.after)
            node = AxisNode(d.op, (), d.attrs, (), d.reduce, d.joined)
            assert c.al.exact_of(node, [u.form for u in d.operands], bound) is v.form
            assert c.al.abstract_of(node, [u.poly for u in d.operands], bound) is v.poly
        if d.joined is None:
            assert set(v.axes) == set().union(*(u.axes for u in d.operands)) - set(d.reduce)


@pytest.mark.parametrize("name", NAMES)
def test_prefixes_are_the_values_of_all_kernels(name: str) -> None:
    s = space(name)
    assert s.stats.prefixes == sum(v.source is None for c in s.tensors.closures for v in c.values)
    assert s.stats.checks >= s.stats.prefixes


@pytest.mark.parametrize(("name", "plan"), thinned(CASES))
def test_derivations_are_acyclic_and_distinct(name: str, plan: KernelPlan) -> None:
    c = close(name, plan)
    done: set[Value] = set()

    def visit(v: Value, path: frozenset[Value]) -> None:
        assert v not in path
        if v not in done:
            for d in v.derivations:
                for u in d.operands:
                    visit(u, path | {v})
            done.add(v)

    for v in c.values:
        visit(v, frozenset())
    for v in c.values:
        keys = [
            (d.op, d.attrs, d.reduce, frozenset(d.operands) if d.op in COMMUTATIVE else d.operands)
            for d in v.derivations
        ]
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("name", "plan"), thinned(CASES))
def test_loops_end_in_accumulators(name: str, plan: KernelPlan) -> None:
    """A value after the loop has no part of the loop axes, unless its tiles were joined."""
    c = close(name, plan)
    loops = {f"{a}.loop" for a in plan.loops}
    for v in c.values:
        if v.source is not None or v.concatenated:
            continue
        if v.varying:
            assert loops & v.form.free and not v.after
        elif not any(u.concatenated for d in v.derivations for u in d.operands):
            assert not loops & v.form.free or v.after
    modes = {dict(d.attrs)["mode"] for _, d in derivations(c) if d.op == "accumulator"}
    # tiles of several axes, or of part of an axis, are not joined
    assert modes <= ({"sum", "concat"} if plan.split is None and len(plan.loops) == 1 else {"sum"})
    assert bool(modes) <= bool(plan.loops)


def test_joined_tiles_are_what_the_loop_could_not_do() -> None:
    """What is computed from joined tiles alone is left to the loop, tile by tile."""
    c = close("rms_norm", KernelPlan(("n",)))
    joined = {v for v in c.values if v.concatenated}
    assert [u.poly.text() for v in joined for d in v.derivations for u in d.operands] != []
    uses = [d for _, d in derivations(c) if joined & set(d.operands)]
    assert uses and all(any(u.after and not u.concatenated for u in d.operands) for d in uses)
    assert c.stats.pruned["loop"] > 0


def test_tiles_with_a_growing_maximum_are_not_joined() -> None:
    """With every new maximum all tiles before would be rescaled."""
    c = close("softmax", KernelPlan(("n",)))
    assert any(v.exponential for v in c.values)
    assert not any(u.exponential for v in c.values if v.concatenated for d in v.derivations for u in d.operands)


def test_partial_results_have_the_grid_part() -> None:
    for name, plan in (("gqa_decode", KernelPlan(("t",), "t")), ("dot", KernelPlan(("n",), "n"))):
        c = close(name, plan)
        finished = [v for v in c.values if any(d.op == "accumulator" for d in v.derivations)]
        assert finished
        assert all(f"{plan.split}.grid" in v.form.free for v in finished)
        # its own partial axis is none of a block
        assert not any(partial_axis(str(plan.split)) in v.axes for v in c.values)


@pytest.mark.parametrize("name", NAMES)
def test_partial_results_never_meet_the_axis_they_index(name: str) -> None:
    """In any kernel that reads them."""
    for c in space(name).tensors.closures:
        for v, d in derivations(c):
            partial = {a for u in d.operands for a in u.axes if a.endswith(".grid")}
            assert not any(a.removesuffix(".grid") in u.axes for a in partial for u in d.operands), (str(v.poly), d)


def test_partial_results_are_summed() -> None:
    c = next(c for c in space("gqa_decode").tensors.closures if c.plan == NONE)
    sums = {d.operands[0] for _, d in derivations(c) if d.op == "sum" and d.reduce == ("t.grid",)}
    partial = {v for v in c.values if v.source is not None and "t.grid" in v.axes}
    assert partial and partial <= sums


# Loops over several axes, concats and sums of matmuls.


def test_one_accumulator_sums_over_all_loops() -> None:
    c = close("frobenius", KernelPlan(("b", "n")))
    accumulators = [(v, d) for v, d in derivations(c) if d.op == "accumulator"]
    assert accumulators
    for v, d in accumulators:
        assert {"b.loop", "n.loop"} <= d.operands[0].form.free
        assert not v.axes


@pytest.mark.parametrize("plan", kernel_plans(axes("lora"), 1))
def test_a_sum_of_matmuls_is_also_a_matmul_of_concats(plan: KernelPlan) -> None:
    """Fig. 9b: x @ w + (x @ a) @ b is [x, x @ a] @ [w; b]."""
    c = close("lora", plan)
    both = [(v, d) for v, d in derivations(c) if d.op == "concat_matmul"]
    assert bool(both) == any(d.op == "add" for _, d in derivations(c) if all(u.derivations for u in d.operands))
    for v, d in both:
        a, b, x, y = d.operands
        assert {e.op for e in v.derivations} >= {"add", "concat_matmul"}
        sums = [e for e in v.derivations if e.op == "add"]
        pairs = [{tuple(f.operands) for u in e.operands for f in u.derivations if f.op == "matmul"} for e in sums]
        assert any({(a, x), (b, y)} <= found for found in pairs)


@pytest.mark.parametrize("name", ["gqa_decode", "gated_mlp", "chain", "normalized"])
def test_matmuls_of_concats_need_sums_of_matmuls(name: str) -> None:
    for plan in kernel_plans(axes(name), 1):
        assert not [d for _, d in derivations(close(name, plan)) if d.op == "concat_matmul"]


def test_a_concat_joins_values_of_different_phases() -> None:
    """concat(x, y @ w) under the loop of the matmul: x does not change, the product exists after the loop."""
    c = close("concat", KernelPlan(("d32",)))
    (found,) = [d for _, d in derivations(c) if d.op == "concat"]
    assert [u.after for u in found.operands] == [False, True]


# What is pruned, and what is not.


@pytest.mark.parametrize(("name", "plan"), thinned(CASES))
def test_placements_change_no_value(monkeypatch: pytest.MonkeyPatch, name: str, plan: KernelPlan) -> None:
    """They anticipate what the normal form would answer, for every pair of values."""

    def identities(c: Closure) -> list[tuple[object, ...]]:
        # the forms of two algebras are different objects
        return [
            (v.poly.text(), v.axes, v.varying, v.after, v.concatenated, len(v.form.terms), len(v.derivations))
            for v in c.values
        ]

    with_them = close(name, plan)
    monkeypatch.setattr(Closure, "_extend_binary", _every_pair)
    without = close(name, plan)
    assert "placements" not in without.stats.pruned
    assert sorted(map(repr, identities(with_them))) == sorted(map(repr, identities(without)))


def _every_pair(c: Closure, v: Value, earlier: list[Value]) -> None:
    matmuls = [over for over in c.vocabulary.matmuls if set(over) <= set(v.axes)]
    for u in earlier:
        if not c._compatible(u, v):
            continue
        for x, y in {(u, v): None, (v, u): None}:
            for op, attrs in c.vocabulary.binary:
                if op not in COMMUTATIVE or (x, y) == (u, v):
                    c._apply(op, attrs, (x, y))
        for over in matmuls:
            if set(over) <= set(u.axes):
                c._apply("matmul", (), (u, v), over)


def test_a_sum_that_comes_too_early_is_pruned_by_indices_alone() -> None:
    """Summing v over t before it meets the exponentials: no later operator repairs it."""
    c = close("gqa_decode", NONE)
    (v,) = [v for v in c.values if v.source is not None and "t" in v.axes and "b" in v.axes and v.poly.text() == "v"]
    total = c.al.abstract.sum(v.poly, c.al.all_parts(("t",)))
    assert c.pruner.admits(total)
    assert not [w for w, d in derivations(c) if d.op == "sum" and d.operands == (v,)]
    assert c.stats.pruned["indices"] > 0


def test_values_that_lose_an_axis_are_pruned() -> None:
    """x / x is 1 in the exact algebra, but a tensor in a kernel: its axes would be wrong."""
    c = close("self division", NONE)
    assert c.stats.pruned["cancelled axes"] > 0
    assert not outputs(c, axes("self division"))[0]


@pytest.mark.parametrize(
    "fn", [lambda x, y: x - (y + x), lambda x, y: mi.exp(x) * y - mi.exp(x) * (y + x), lambda x, y: (x + y) - y]
)
def test_terms_that_cancel(fn: Callable[..., Any]) -> None:
    """What cancels later is in no target, but the program's own values are kept."""
    p = to_axes(mi.trace(fn, x=T("m"), y=T("m")))
    s = Space(p, {"m": 16}, SearchOptions())
    finish(s.close())
    c = s.tensors.closures[0]
    assert all(outputs(c, p))


@pytest.mark.parametrize("name", ["dot", "cosine", "frobenius", "scalar inputs"])
def test_scalar_tensors_are_not_constants(name: str) -> None:
    for p in kernel_plans(axes(name), 1):
        if p.split is None and not set(p.loops) & set(axes(name).output_axes()):
            assert all(outputs(close(name, p), axes(name)))


def test_constants_are_not_combined_with_each_other() -> None:
    c = close("scale", NONE)
    constants = {v for v in c.values if isinstance(v.source, AxisNode) and v.source.op == "constant"}
    assert len(constants) == 2
    assert all(map(c.is_constant, constants))
    assert not [d for _, d in derivations(c) if set(d.operands) <= constants]


def test_equal_prefixes_are_built_once() -> None:
    """Without canonical values each operator application is a prefix of its own, as in the paper."""
    once = close("normalized", NONE)
    each = close("normalized", NONE, canonical=False, max_operators=5)
    assert len(each.values) > len(once.values)
    assert all(len(v.derivations) <= 1 for v in each.values)


# Limits.


def test_no_operator_beyond_the_limit() -> None:
    """Except for the program's own values, which cost nothing to find."""
    whole = close("gqa_decode", NONE)
    for limit in (1, 4, 5):
        short = close("gqa_decode", NONE, max_operators=limit)
        own = {f for f, _ in short.al.targets}
        assert max(v.operators for v in short.values if v.form not in own) == limit
        assert len(short.values) < len(whole.values) or limit == 5


@pytest.mark.parametrize("name", [n for n in NAMES if n != "self division"])
def test_the_program_itself_comes_before_all_steps(name: str) -> None:
    s = Space(axes(name), dict.fromkeys(axes(name).axes, 16), SearchOptions())
    list(s.fused())
    (c,) = [c for c in s.tensors.closures if c.plan == NONE]
    trivial = [t is not None for t in s.tensors.trivial]
    assert all(found or given for found, given in zip(outputs(c, axes(name)), trivial, strict=True))


@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "gated_mlp", "qknorm_attention"])
def test_the_order_in_which_operators_are_tried_changes_no_value(name: str) -> None:
    def closed(*stages: Vocabulary) -> Closure:
        s = Space(axes(name), dict.fromkeys(axes(name).axes, 16), SearchOptions())
        (c,) = [c for c in s.tensors.closures if c.plan == NONE]
        c = Closure(c.program, c.al, c.plan, c.pruner, c.indices, c.placements, c.stats, stages or c.stages, limit=c.limit)
        for n, (form, poly) in zip(c.program.nodes, c.al.targets, strict=True):
            if n.op in ("input", "constant", "size"):
                c.leaf(form, poly, n)
        return c

    staged = closed()
    polys = [staged.al.targets[o.value][1] for o in axes(name).outputs]
    assert finish(staged.run(stages=1)) and bool(staged.untried) == (len(staged.stages) > 1)
    first = list(staged.values)
    own = closed(staged.stages[0])
    assert finish(own.run()) and not own.untried
    assert [repr(v.poly.text()) for v in first] == [repr(v.poly.text()) for v in own.values]
    assert finish(staged.run()) and not staged.untried and staged.values[: len(first)] == first
    together = closed(Vocabulary.table(axes(name), polys))
    assert finish(together.run())
    ways = [sorted((v.poly.text(), v.axes, v.after, len(v.derivations)) for v in c.values) for c in (staged, together)]
    assert ways[0] == ways[1]


def test_too_many_values_give_a_closure_up() -> None:
    c = close("gqa_decode", NONE)
    most = len(c.values)
    assert finish(c.run(most))
    again = Closure(c.program, c.al, c.plan, c.pruner, c.indices, c.placements, c.stats, c.stages, limit=c.limit)
    for n, (form, poly) in zip(c.program.nodes, c.al.targets, strict=True):
        if n.op in ("input", "constant", "size"):
            again.leaf(form, poly, n)
    assert not finish(again.run(10))
    assert 10 < len(again.values) < most


def test_more_leaves_may_come_after_a_run() -> None:
    """As another kernel's results do: what they make possible is added, and nothing is lost."""
    c = close("rmsnorm_linear", NONE)
    before = list(c.values)
    done = next(v for v in c.values if any(d.op == "rsqrt" for d in v.derivations))
    leaf = c.leaf(done.form, done.poly, "another kernel's result")
    assert finish(c.run())
    assert c.values[: len(before)] == before
    assert leaf in c.values and len(c.values) == len(before) + 1, "all that follows from it is known already"
    assert any(leaf in d.operands for _, d in derivations(c))
