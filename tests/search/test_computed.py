"""Inputs that kernels compute: what is folded, and the graphs of what is left, with it in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.search.computed import SOURCES, fold
from mirage.search.generate import generate
from mirage.search.inputs import random_inputs
from mirage.search.large import LargeSearch, is_large
from mirage.search.targets import find_targets
from mirage.verify.equivalence import Verifier
from tests.kernels.kernels import bound, error, tiles

SIZES = {"n": 13, "t": 21}


def seen(i: Any, j: Any) -> Any:
    return mi.clamp(i + 1 - j, 0, 1)


def attention(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
    m = seen(i, j)
    return mi.softmax(q @ mi.transpose(k, (1, 0)) * m + (1 - m) * -1e9, axis=-1) @ v


def beside(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
    """The vectors are read by what is not computed again, too, and two masks are."""
    far = mi.clamp(4 - i + j, 0, 1)
    m = seen(i, j) * far
    return mi.softmax(q @ mi.transpose(k, (1, 0)) * m + (1 - m) * -1e9 + i * 0.01, axis=-1) @ v * mi.relu(i)


def trace(fn: Callable[..., Any]) -> Program:
    keys = mi.tensor("t", 8)
    return mi.trace(fn, q=mi.tensor("n", 8), k=keys, v=keys, i=mi.tensor("n", 1), j=mi.tensor("t"))


def ops(program: AxisProgram, nodes: Sequence[int]) -> list[str]:
    return [program.nodes[i].op for i in nodes]


def vectors(fn: Callable[..., Any]) -> AxisProgram:
    return to_axes(mi.trace(fn, x=mi.tensor("n", 1), y=mi.tensor("t"), z=mi.tensor("n", "t")))


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (lambda x, y, z: seen(x, y) * z, ["clamp"]),
        # the last of those that follow from one another
        (lambda x, y, z: mi.relu(seen(x, y) - 0.5) * z, ["relu"]),
        (lambda x, y, z: seen(x, y) * seen(y, x) * z, ["clamp", "clamp"]),
        # what is not computed from a larger tensor than it is, or by sums and products alone
        (lambda x, y, z: mi.clamp(x + z, 0, 1) * y, []),
        (lambda x, y, z: (x + y) * z, []),
        (lambda x, y, z: mi.relu(x) * z, []),
        # what takes longer to compute than to read, and what is a result
        (lambda x, y, z: mi.exp(x + y) * z, []),
        (lambda x, y, z: (seen(x, y), z * 2), []),
        # what is not computed from inputs element by element
        (lambda x, y, z: seen(mi.sum(z, axis=1, keepdims=True), y) * z, []),
    ],
)
def test_what_is_computed_where_it_is_read(fn: Callable[..., Any], want: list[str]) -> None:
    program = vectors(fn)
    folded = fold(program)
    assert ops(program, folded.computed) == want
    assert (folded.core is program) == (not want)
    if want:
        core = folded.core
        assert core.inputs[: len(program.inputs)] == program.inputs and len(core.inputs) == len(program.inputs) + len(want)
        assert [n.op for n in core.nodes[: len(core.inputs)]] == ["input"] * len(core.inputs)
        assert "clamp" not in [n.op for n in core.nodes]


@pytest.mark.parametrize("fn", [attention, beside])
def test_every_graph_is_the_program(fn: Callable[..., Any]) -> None:
    program = trace(fn)
    verifier = Verifier(program)
    graphs = generate(to_axes(program), SIZES).graphs
    inputs = random_inputs(program, SIZES, 0)
    want = run_reference(program, inputs, SIZES, "float64")
    assert len(graphs) >= 4
    for g in graphs[:6]:
        validate(g)
        assert [x.name for x in g.inputs] == [x.name for x in to_axes(program).inputs]
        assert verifier.admit(g).proof
        run = CpuExecutable(g, tiles(g, 8), analyze(g), SIZES)
        assert error(run(inputs, SIZES), want) < bound("float32")


def test_no_kernel_stores_what_others_compute_again() -> None:
    program = to_axes(trace(attention))
    for g in generate(program, SIZES).graphs:
        for n in g.kernels:
            assert n.graph is not None
            stored = [n.graph.nodes[r.node].op for r in n.graph.outputs]
            assert "clamp" not in stored


def expanded(program: AxisProgram) -> MuGraph:
    folded = fold(program)
    return folded.expand(reference_graph(folded.core))


@pytest.mark.parametrize("fn", [attention, beside])
def test_operators_outside_of_kernels_read_it_from_others(fn: Callable[..., Any]) -> None:
    program = trace(fn)
    g = expanded(to_axes(program))
    validate(g)
    own = reference_graph(to_axes(program))
    assert len([n for n in g.kernel.nodes if n.op not in SOURCES]) == len([n for n in own.kernel.nodes if n.op not in SOURCES])
    assert Verifier(program).admit(g).proof


def test_a_graph_of_a_program_without_it_is_itself() -> None:
    program = vectors(lambda x, y, z: x * y * z)
    g = reference_graph(program)
    assert fold(program).expand(g) is g


def test_it_is_no_operator_of_a_large_program() -> None:
    def windows(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
        m = seen(i, j) * seen(j, i + 5) * seen(i + 3, j)
        return mi.softmax(q @ mi.transpose(k, (1, 0)) * m + (1 - m) * -1e9, axis=-1) @ v

    program = to_axes(trace(windows))
    assert sum(n.op not in SOURCES for n in program.nodes) > 12 and not is_large(program)


def test_pieces_of_large_programs_compute_it() -> None:
    def two(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
        x = attention(q, k, v, i, j)
        return attention(mi.rms_norm(x), k, v, i, j)

    program = trace(two)
    axes = to_axes(program)
    assert is_large(axes)
    search = LargeSearch(axes, SIZES)
    verifier = Verifier(program)
    found = [g for _, item in zip(range(6), search, strict=False) for g in item.graphs]
    assert found and all(verifier.admit(g).proof for g in found)


def test_rules_leave_it_as_it_is() -> None:
    program = to_axes(trace(attention))
    found = find_targets(program, {a: evaluate(d, SIZES) for a, d in program.axes.items()})
    assert not found.programs and "kernels compute inputs" in found.report


def test_numbers_of_many_bits_are_compared_exactly() -> None:
    """Of parts that are compared one by one, no graph adds up those of one number, which float32 cannot hold."""

    def fn(q: Any, k: Any, v: Any, i: Any, j: Any, i1: Any, j1: Any) -> Any:
        m = mi.clamp((i1 - j1) * 2.0**20 + (i + 1 - j), 0, 1)
        return mi.softmax(q @ mi.transpose(k, (1, 0)) * m + (1 - m) * -1e9, axis=-1) @ v

    rows, columns = mi.tensor("n", 1), mi.tensor("t")
    program = mi.trace(
        fn, q=mi.tensor("n", 8), k=mi.tensor("t", 8), v=mi.tensor("t", 8), i=rows, j=columns, i1=rows, j1=columns
    )
    n = 24
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 8), np.float32) for _ in range(3))
    at = np.arange(n) + 2**30 - 12
    high, low = (x.astype(np.float32) for x in (at >> 20, at % 2**20))
    inputs = [q, k, v, low[:, None].copy(), low, high[:, None].copy(), high]
    sizes = {"n": n, "t": n}
    want = run_reference(program, inputs, sizes, "float64")
    graphs = generate(to_axes(program), sizes).graphs
    for g in graphs[:8]:
        assert error(CpuExecutable(g, tiles(g, 8), analyze(g), sizes)(inputs, sizes), want) < bound("float32")
