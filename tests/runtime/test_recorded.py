"""Calls that are recorded and run together: programs compute what they do one by one, with a call per level and function."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import FormatError, GuardError
from mirage.runtime import machine
from mirage.runtime import program as vm
from mirage.runtime.check import check_program
from mirage.runtime.executable import Executable
from mirage.runtime.function import Function
from tests.frontends.graph.functional_programs import (
    Number,
    Product,
    Sum,
    flat,
    random_tree,
    tree_lstm,
    tree_lstm_numpy,
    value,
)

#: without C, which takes longer to compile than to run
PLAIN = ("fuse", "libraries")
D, K = 3, 4


def forest(trees: Any, w: Any, u: Any, zero: Any) -> Any:
    return mi.map(lambda t: tree_lstm(t, w, u, zero), trees)


FOREST = {
    "trees": mi.List(mi.Tree(mi.tensor(1, "d"))), "w": mi.tensor(4, "d", "k"), "u": mi.tensor(4, "k", "k"),
    "zero": mi.tensor(1, "k"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Executable:
    return mi.compile(forest, FOREST, without=PLAIN)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The function and number of the calls that each run together."""
    found: list[tuple[str, int]] = []
    run = Function.run

    def counted(self: Function, args: list[Any], *others: Any) -> Any:
        given = [(getattr(p.annotation, "shape", None), a) for p, a in zip(self.function.parameters, args, strict=True)]
        many = next((len(a) for shape, a in given if shape and str(shape[0]) == "cells"), 1)
        found.append((self.function.name.removesuffix("_batched"), many))
        return run(self, args, *others)

    monkeypatch.setattr(Function, "run", counted)
    return found


def weights(rng: np.random.Generator) -> list[np.ndarray]:
    some = [rng.standard_normal(s).astype(np.float32) for s in ((4, D, K), (4, K, K))]
    return [*some, np.zeros((1, K), np.float32)]


def height(t: Any) -> int:
    return 1 + max(map(height, getattr(t, "children", ())), default=0)


def widest(t: Any) -> int:
    return max([len(getattr(t, "children", ())), *map(widest, getattr(t, "children", ()))])


def same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for f, w in zip(flat(found), flat(wanted), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[], [1], [7], [1, 1], [5] * 4, [1, 2, 9, 20, 3]])
def test_trees_of_all_shapes(run: Executable, sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    trees, shared = [random_tree(rng, n, D) for n in sizes], weights(rng)
    same(run(trees, *shared), [tree_lstm_numpy(t, *shared) for t in trees])


def test_one_call_per_level_and_function(run: Executable, calls: list[tuple[str, int]]) -> None:
    rng = np.random.default_rng(1)
    trees, shared = [random_tree(rng, 15, D) for _ in range(8)], weights(rng)
    run(trees, *shared)
    calls.clear()
    run(trees, *shared)
    kinds = len({name for name, _ in calls})
    assert sum(n for _, n in calls) > 8 * 15
    # the children of a node are folded one by one
    assert len(calls) <= kinds * max(map(height, trees)) * (max(map(widest, trees)) + 1)
    equal = [trees[0]] * 8
    calls.clear()
    run([trees[0]], *shared)
    alone = len(calls)
    calls.clear()
    run(equal, *shared)
    assert len(calls) == alone


def test_without(run: Executable, calls: list[tuple[str, int]]) -> None:
    rng = np.random.default_rng(2)
    trees, shared = [random_tree(rng, 6, D) for _ in range(3)], weights(rng)
    plain = mi.compile(forest, FOREST, without=(*PLAIN, "batch"))
    assert all(f.batched is None for f in plain.program)
    same(plain(trees, *shared), run(trees, *shared))
    calls.clear()
    plain(trees, *shared)
    assert {n for _, n in calls} == {1}


def test_steps_one_after_the_other_are_not_recorded() -> None:
    def rnn(xs: Any, h: Any) -> Any:
        return mi.scan(lambda h, x: mi.tanh(h + x), h, xs)

    fold = mi.compile(rnn, {"xs": mi.List(mi.tensor("n")), "h": mi.tensor("n")}, without=PLAIN)
    assert all(f.batched is None for f in fold.program)
    each = mi.compile(lambda xs: mi.map(lambda x: mi.tanh(x), xs), {"xs": mi.List(mi.tensor("n"))}, without=PLAIN)
    assert any(f.batched is not None for f in each.program)


def test_tensors_of_several_shapes(calls: list[tuple[str, int]]) -> None:
    specs = {"xs": mi.List(mi.tensor(None)), "y": mi.tensor()}
    each = mi.compile(lambda xs, y: mi.map(lambda x: x * y, xs), specs, without=PLAIN)
    xs = [np.full(n, n, np.float32) for n in (1, 2, 2, 3, 1, 2, 0)]
    for _ in range(2):
        calls.clear()
        for f, x in zip(each(xs, np.float32(2)), xs, strict=True):
            np.testing.assert_array_equal(f, 2 * x)


def test_random_expressions() -> None:
    """Sums run together, products are folds; numbers stand beside both."""
    run = mi.compile(value, without=PLAIN)

    def made(rng: Random, depth: int) -> Any:
        if not depth or rng.random() < 0.2:
            return Number(np.asarray([rng.uniform(-1, 1), rng.uniform(-1, 1)], np.float32))
        if rng.random() < 0.6:
            return Sum(made(rng, depth - 1), made(rng, depth - 1))
        return Product([made(rng, depth - 1) for _ in range(rng.randrange(4))])

    def computed(e: Any) -> np.ndarray:
        match e:
            case Number(v):
                return v
            case Sum(left, right):
                return computed(left) + computed(right)
        return np.prod([np.ones(2), *map(computed, e.factors)], 0)

    for seed in range(30):
        e = made(Random(seed), 6)
        np.testing.assert_allclose(run(e), computed(e), rtol=1e-4, atol=1e-5)


def test_branches_on_tensors_run_what_they_wait_for() -> None:
    @mi.function(t=mi.Tree(mi.tensor("n")))
    def clipped(t: Any) -> Any:
        def node(x: Any, children: Any) -> Any:
            total = mi.fold(lambda s, c: s + clipped(c), x, children)
            return mi.cond(total.sum() > 0, lambda: total, lambda: clipped_at(total))

        return mi.match(t, {mi.Leaf: lambda x: x + 1, mi.Rose: node})

    def clipped_at(x: Any) -> Any:
        return mi.maximum(x, mi.zeros(x.shape))

    def wanted(t: Any) -> np.ndarray:
        if isinstance(t, mi.Leaf):
            return t.value[0] + 1
        total = sum(map(wanted, t.children), t.value[0])
        return total if total.sum() > 0 else np.maximum(total, 0)

    def flattened(t: Any) -> Any:
        if isinstance(t, mi.Leaf):
            return mi.Leaf(t.value[0])
        return mi.Rose(t.value[0], [flattened(c) for c in t.children])

    run = mi.compile(clipped, without=PLAIN)
    for seed in range(5):
        t = random_tree(np.random.default_rng(seed), 12, 3)
        np.testing.assert_allclose(run(flattened(t)), wanted(t), rtol=1e-4, atol=1e-5)


def test_deep_trees(run: Executable) -> None:
    rng = np.random.default_rng(3)
    shared, x = weights(rng), np.ones((1, D), np.float32)
    t: Any = mi.Leaf(x)
    for _ in range(600):
        t = mi.Rose(x, [t])
    wanted = shared[2], shared[2]
    h, c = (np.asarray(a) for a in run([t, t], *shared)[0])
    for s in (h, c):
        assert s.shape == wanted[0].shape and np.isfinite(s).all()
    # a call that was recorded may sum in another order
    np.testing.assert_allclose(run([t, t], *shared)[1][0], h, rtol=1e-6)


def test_results_belong_to_the_caller(run: Executable) -> None:
    rng = np.random.default_rng(4)
    trees, shared = [random_tree(rng, 4, D) for _ in range(3)], weights(rng)
    first = flat(run(trees, *shared))
    before = [a.copy() for a in first]
    assert not any(np.may_share_memory(a, b) for k, a in enumerate(first) for b in first[:k])
    first[0][...] = 7
    for a, b in zip(flat(run(trees, *shared)), before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_little_is_recorded_at_once(run: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    trees, shared = [random_tree(rng, 9, D) for _ in range(6)], weights(rng)
    wanted = run(trees, *shared)
    monkeypatch.setattr(machine, "MOST", 10)
    same(run(trees, *shared), wanted)


def test_a_wrong_tensor_is_named(run: Executable) -> None:
    rng = np.random.default_rng(6)
    trees, shared = [random_tree(rng, 4, D) for _ in range(3)], weights(rng)
    trees[1] = mi.Rose(np.ones((1, D), np.float32), [mi.Leaf(np.ones((1, D + 1), np.float32))])
    for _ in range(2):
        with pytest.raises(GuardError, match=rf"input 'trees', item 1\.children, item 0\.value has shape \[1, {D + 1}\]"):
            run(trees, *shared)


def test_one_of_many_calls_is_wrong() -> None:
    def program(xs: Any, y: Any) -> Any:
        return mi.map(lambda x: mi.match_cast(x, mi.tensor("n")) + y, xs)

    run = mi.compile(program, {"xs": mi.List(mi.tensor(None)), "y": mi.tensor("n")}, without=PLAIN)
    y = np.ones(2, np.float32)
    good, bad = np.ones(2, np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(run([good] * 3, y), np.full((3, 2), 2))
    for xs in ([good, bad, good], [bad, bad]):
        with pytest.raises(GuardError, match="3"):
            run(xs, y)


def test_saved_programs_run_together(run: Executable, tmp_path: Path, calls: list[tuple[str, int]]) -> None:
    path = tmp_path / "forest.mirage"
    run.save(path)
    again = mi.load_executable(path)
    rng = np.random.default_rng(7)
    trees, shared = [random_tree(rng, 5, D) for _ in range(4)], weights(rng)
    same(again(trees, *shared), run(trees, *shared))
    calls.clear()
    again(trees, *shared)
    assert max(n for _, n in calls) > 1
    with zipfile.ZipFile(path) as archive:
        assert '"batched"' in json.dumps(json.loads(archive.read("executable.json")))


def test_batched_forms_are_checked(run: Executable) -> None:
    program = run.program
    name, f = next((n, f) for n, f in program.functions.items() if f.batched is not None)
    assert f.batched is not None
    check_program(program)
    wrong = [
        vm.Batched("nothing", f.batched.shared), vm.Batched(program.main, f.batched.shared),
        vm.Batched(f.batched.function, f.batched.shared[1:]),
    ]  # fmt: skip
    for form in wrong:
        bad = replace(program, functions={**program.functions, name: replace(f, batched=form)})
        with pytest.raises(FormatError, match="is no batched form of it"):
            check_program(bad)
