"""Closures: the values of a kernel, what admits them and what prunes them."""

from __future__ import annotations

import itertools

import pytest

from mirage.ir.axes import AxisNode
from mirage.search import closure as closure_module
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.plan import KernelPlan, plans
from tests.programs import QUICK, SMALL, axes, close

NONE = KernelPlan()
CASES = [(name, p.kernels[0]) for name in (*QUICK, *SMALL) for p in plans(axes(name), 1)]
SPLITS = [("gqa_decode", KernelPlan("t", split=True)), ("adapter_mlp", KernelPlan("d4096", split=True))]


def derivations(c: Closure) -> list[tuple[Value, Derivation]]:
    return [(v, d) for v in c.values for d in v.derivations]


def outputs(c: Closure, program: str) -> list[list[Value]]:
    """Per output, the values that are it."""
    forms = [c.al.targets[o.value][0] for o in axes(program).outputs]
    return [[v for v in c.values if v.form is f and v.derivations] for f in forms]


@pytest.mark.parametrize(("name", "kernel"), [*CASES, *SPLITS])
def test_invariants(name: str, kernel: KernelPlan) -> None:
    c = close(name, kernel)
    assert not c.cut
    assert [v.number for v in c.values] == list(range(len(c.values)))
    computed = [v for v in c.values if v.source is None]
    assert all(v.derivations for v in computed)
    # equal prefixes are one value
    assert len({(v.form, v.poly, v.after) for v in computed}) == len(computed)
    assert c.stats.prefixes == len(computed)
    for v, d in derivations(c):
        # every derivation yields the value that it is kept for
        bound = c._bound_parts(d.op, d.reduce)
        node = AxisNode(d.op, (), d.attrs, (), d.reduce, d.joined)
        assert c.al.exact_of(node, [u.form for u in d.operands], bound) is v.form
        assert c.al.abstract_of(node, [u.poly for u in d.operands], bound) is v.poly
        # its operands exist at the same time
        assert not any(a.varying and b.after for a, b in itertools.permutations(d.operands, 2))
        assert v.after == (d.op == "accumulator" or any(u.after for u in d.operands))
        assert v.varying == (d.op != "accumulator" and any(u.varying for u in d.operands))
        if d.joined is None:
            assert set(v.axes) == set().union(*(u.axes for u in d.operands)) - set(d.reduce)
        assert d.cost > 0


@pytest.mark.parametrize(("name", "kernel"), [*CASES, *SPLITS])
def test_derivations_are_acyclic_and_distinct(name: str, kernel: KernelPlan) -> None:
    c = close(name, kernel)
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
            (d.op, d.attrs, d.reduce, frozenset(d.operands) if d.op in ("add", "mul", "matmul") else d.operands)
            for d in v.derivations
        ]
        assert len(set(keys)) == len(keys)


def test_a_sum_that_comes_too_early_is_pruned_by_indices_alone() -> None:
    """Summing v over t before it meets the exponentials: no later operator repairs it."""

    def early(c: Closure) -> list[Value]:
        return [v for v, d in derivations(c) if d.op == "sum" and d.operands[0].source is not None]

    assert [v.axes for v in early(close("gqa_decode", NONE, indices=False))] == [("b", "h", "d128_2")]
    c = close("gqa_decode", NONE)
    assert not early(c)
    assert c.stats.pruned["indices"] > 0


def _identity(v: Value) -> tuple[object, ...]:
    """What a value is, across closures: the forms of two algebras are different objects."""
    return v.poly.text(), v.axes, v.varying, v.after, len(v.form.terms)


def test_counting_factors_changes_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """It anticipates what the pruner would answer, for every pair of values."""
    cases = [("rmsnorm_linear", NONE), ("gqa_decode", KernelPlan("t")), ("scale", KernelPlan("d64"))]
    fast = [close(*case) for case in cases]
    monkeypatch.setattr(Closure, "_apply_if", lambda self, possible, *args: self._apply(*args))
    for quick, case in zip(fast, cases, strict=True):
        slow = close(*case)
        assert quick.stats.pruned["factor counts"] > 0
        assert "factor counts" not in slow.stats.pruned
        assert list(map(_identity, quick.values)) == list(map(_identity, slow.values))
        assert [len(v.derivations) for v in quick.values] == [len(v.derivations) for v in slow.values]


def test_no_operator_beyond_the_limit() -> None:
    """Except for the program's own values, which cost nothing to find."""
    whole = close("gqa_decode", NONE)
    for limit in (1, 4, 5):
        short = close("gqa_decode", NONE, limit=limit)
        own = {f for f, _ in short.al.targets}
        assert max(v.operators for v in short.values if v.form not in own) == limit
        assert len(short.values) < len(whole.values) or limit == 5


def test_a_spent_budget_still_leaves_the_program_itself() -> None:
    for kernel in (NONE, KernelPlan("d128")):
        c = close("gqa_decode", kernel, seconds=-1.0)
        assert c.cut == "budget spent"
        assert all(outputs(c, "gqa_decode"))
        assert len(c.values) < len(close("gqa_decode", kernel).values)


def test_too_many_values_cut_a_closure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure_module, "MAX_VALUES", 10)
    c = close("gqa_decode", NONE)
    assert c.cut == "10 prefixes per kernel"
    assert all(outputs(c, "gqa_decode"))


def second(first: KernelPlan, one: Closure) -> Closure:
    """The kernel after one that splits its loop, reading all of its finished results."""
    kernel = KernelPlan(partial=first.loop)
    targets = [one.al.targets[o.value][1] for o in one.program.outputs]
    c = Closure(
        one.program, one.al, kernel, one.pruner, one.indices, targets, one.cost, one.stats,
        limit=3, canonical=True, deadline=float("inf"),
    )  # fmt: skip
    for n, (form, poly) in zip(one.program.nodes, one.al.targets, strict=True):
        if n.op in ("input", "constant", "size"):
            c.leaf(form, poly, n)
    for v in one.values:
        if v.derivations and v.after and f"{first.loop}.grid" in v.form.free:
            c.leaf(v.form, v.poly, v)
    c.run()
    return c


@pytest.mark.parametrize("pruner", ["normal-form", None])
@pytest.mark.parametrize(("name", "first"), [*SPLITS, ("softmax", KernelPlan("n", split=True))])
def test_partial_results_never_meet_the_axis_they_index(name: str, first: KernelPlan, pruner: str | None) -> None:
    one = close(name, first, pruner=pruner, indices=pruner is not None, limit=3 if pruner is None else None)
    c = second(first, one)
    partial = {v for v in c.values if v.axes[:1] == (f"{first.loop}.grid",)}
    assert any(v.source is not None for v in partial)
    uses = [d for _, d in derivations(c) if partial & set(d.operands)]
    assert any(d.op == "sum" and d.reduce == (f"{first.loop}.grid",) for d in uses)
    assert not [d for d in uses if any(first.loop in u.axes for u in d.operands)]


def test_values_that_lose_an_axis_are_pruned() -> None:
    """x / x is 1 in the exact algebra, but a tensor in a kernel: its axes would be wrong."""
    c = close("self division", NONE)
    assert c.stats.pruned["cancelled axes"] > 0
    assert not outputs(c, "self division")[0]


@pytest.mark.parametrize("name", ["dot", "cosine", "frobenius", "scalar inputs"])
def test_scalar_tensors_are_not_constants(name: str) -> None:
    for p in plans(axes(name), 1):
        assert all(outputs(close(name, p.kernels[0]), name))


def test_constants_are_not_combined_with_each_other() -> None:
    c = close("scale", NONE)
    constants = {v for v in c.values if isinstance(v.source, AxisNode) and v.source.op == "constant"}
    assert len(constants) == 2
    assert not [d for _, d in derivations(c) if set(d.operands) <= constants]


def test_a_concat_joins_values_of_different_phases() -> None:
    """concat(x, y @ w) under the loop of the matmul: x does not change, the product exists after the loop."""
    c = close("concat", KernelPlan("d32"))
    (found,) = [d for _, d in derivations(c) if d.op == "concat"]
    assert [u.after for u in found.operands] == [False, True]


def test_equal_prefixes_are_built_once() -> None:
    """Without canonical values each operator application is a prefix of its own, as in the paper."""
    once, each = close("normalized", NONE), close("normalized", NONE, canonical=False, limit=5)
    assert each.stats.prefixes > once.stats.prefixes
    assert all(len(v.derivations) <= 1 for v in each.values)
