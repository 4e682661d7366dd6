"""Convolutions and pooling as superoptimized programs: found kernels against float64 at other sizes, files, text, bad calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.errors import AxisError, InputError
from mirage.ir.axes import to_axes
from mirage.ir.canonical import canonical_key
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, allowed
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.rename import rename_mugraph
from mirage.mugraph.thread import inline_threads
from mirage.mugraph.validate import validate
from mirage.results.cpu.result import Superoptimized
from mirage.search.generate import generate
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier, verify_programs
from mirage.verify.proof import prove_programs
from tests.api.small import BUDGET
from tests.kernels.kernels import bound, error
from tests.sampled import thinned

T = mi.tensor


@mi.program(x=T("b", 4, "h", "w"), k=T(8, 4, 3, 3), bias=T(8, 1, 1), sizes={"small": {"b": 1, "h": 6, "w": 7}}, constants=["k"])
def padded(x: Any, k: Any, bias: Any) -> Any:
    return mi.relu(mi.convolution(x, k, padding=1) + bias)


@mi.program(x=T("b", 6, "2*h + 1", 9), k=T(4, 3, 3, 2), sizes={"small": {"b": 2, "h": 3}})
def grouped(x: Any, k: Any) -> Any:
    return mi.convolution(x, k, strides=2, dilations=(1, 2), groups=2)


@mi.program(x=T("b", 5, "n"), k=T(5, 1, 3), sizes={"small": {"b": 1, "n": 20}})
def depthwise(x: Any, k: Any) -> Any:
    return mi.convolution(x, k, padding=((2, 0),), groups=5)


@mi.program(x=T("b", 3, "h", 8), sizes={"small": {"b": 2, "h": 9}})
def averaged(x: Any) -> Any:
    return mi.average_pool(x, (3, 2), strides=(1, 2), padding=(1, 0)) * 2


@mi.program(x=T("b", 4, "h", 5), k=T(4, 4, 3, 3), scale=T(4, 1, 1), sizes={"small": {"b": 1, "h": 6}})
def scaled(x: Any, k: Any, scale: Any) -> Any:
    return mi.convolution(x, k, padding=1) * scale + x


@mi.program(x=T("b", "n"), sizes={"small": {"b": 2, "n": 9}})
def differences(x: Any) -> Any:
    later, earlier = (mi.apply("slice", x, axes=1, starts=k, stops="n - 1" if not k else "n") for k in (1, 0))
    return mi.exp(later - earlier)


@mi.program(x=T("n", 6, "h", 5), k=T(4, 3, 3, 5), gain=T(4, 1, 1), sizes={"small": {"n": 2, "h": 7}}, constants=["k", "gain"])
def pooled(x: Any, k: Any, gain: Any) -> Any:
    y = mi.silu(mi.convolution(x, k, padding=(1, 2), groups=2) * gain)
    return mi.mean(mi.reshape(y, ("n", 4, "5*h")), axis=-1)


@mi.program(
    x=T("b", 4, "2*h + 2", "2*w + 2"), k=T(8, 4, 3, 3), bias=T(8, 1, 1), constants=["k"],
    sizes={"small": {"b": 1, "h": 3, "w": 4}},
)  # fmt: skip
def max_pooled(x: Any, k: Any, bias: Any) -> Any:
    return mi.max_pool(mi.relu(mi.convolution(x, k) + bias), (2, 2))


@mi.program(x=T("b", 3, "3*n + 1"), k=T(4, 3, 2), sizes={"small": {"b": 2, "n": 5}})
def mean_of_three(x: Any, k: Any) -> Any:
    return mi.average_pool(mi.silu(mi.convolution(x, k)), (3,))


@mi.program(x=T("m", "n"), sizes={"small": {"m": 5, "n": 40}})
def largest_is_one(x: Any) -> Any:
    return x / (mi.max(mi.abs(x), -1, keepdims=True) + 1e-5)


PROGRAMS: Mapping[str, Any] = {
    f.name: f
    for f in (
        padded, grouped, depthwise, averaged, scaled, differences, pooled, max_pooled, mean_of_three, largest_is_one,
    )
}  # fmt: skip


@functools.cache
def result() -> Superoptimized:
    return mi.superoptimize(padded, budget=BUDGET, cache=False)


def compare(program: Program, run: Callable[..., Any], sizes: Mapping[str, int], seed: int = 0) -> None:
    inputs = random_inputs(program, sizes, seed)
    (wanted,) = run_reference(program, inputs, sizes, "float64")
    found = run(inputs)
    assert error([found], [wanted]) < bound("float32"), sizes


@pytest.mark.parametrize("name", PROGRAMS)
def test_canonical_programs_are_valid_and_found_again(name: str) -> None:
    program = to_axes(PROGRAMS[name].trace())
    canonical = canonical_key(program)
    validate(reference_graph(canonical.program))
    back = rename_mugraph(reference_graph(canonical.program), canonical.renaming.inverse(), program)
    assert Verifier(program).admit(back).proof == "proved"


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_found_kernels_agree_with_float64(name: str) -> None:
    """The cheapest graphs, proved or tested, compiled by the first schedules, at the given sizes and at others."""
    program, given = PROGRAMS[name].trace(), PROGRAMS[name].sizes["small"]
    verifier = Verifier(program)
    fast = result() if name == "padded" else mi.superoptimize(program, sizes=given, budget=BUDGET, cache=False)
    kernels = [v.candidate for v in fast.versions if v.candidate] or [c for c in fast.graphs if c.make]
    assert kernels and fast.certificate.equal and fast.certificate.proof == "proved"
    for c in kernels:
        assert isinstance(c.executable, CpuExecutable) and verifier.admit(c.graph).proof == "proved"
        for k in range(3):
            sizes = allowed(program, {s: n + k * 5 for s, n in given.items()} if k < 2 else dict.fromkeys(given, 1))
            compare(program, lambda xs, run=c.executable, at=sizes: run(xs, at)[0], sizes, k)


def test_all_graphs_of_a_search_are_equal() -> None:
    program = scaled.trace()
    found = generate(to_axes(program), {"b": 2, "h": 6}, SearchOptions(steps=3000)).graphs
    verifier = Verifier(program)
    assert found
    for graph in found[:20]:
        assert analyze(graph) is not None and verifier.check(graph).equal


def test_calls_with_any_memory(tmp_path: Path) -> None:
    program, fast = padded.trace(), result()
    rng = np.random.default_rng(0)
    k, bias = (rng.standard_normal(s, np.float32) for s in ((8, 4, 3, 3), (8, 1, 1)))
    whole = rng.standard_normal((3, 9, 8, 4), np.float32)
    apart = whole.transpose(0, 3, 1, 2)
    wanted = run_reference(program, [apart, k, bias], {"b": 3, "h": 9, "w": 8}, "float64")
    for x in (apart, np.ascontiguousarray(apart)):
        for _ in range(3):
            assert error([fast(x, k, bias)], wanted) < bound("float32")
    assert fast(apart[:0], k, bias).shape == (0, 8, 9, 8)
    out = np.empty((3, 8, 9, 8), np.float32)
    assert fast(apart, k, bias, out=out) is out and error([out], wanted) < bound("float32")
    fast.save(tmp_path / "convolution.json")
    loaded = mi.load(tmp_path / "convolution.json")
    assert error([loaded(apart, k, bias)], wanted) < bound("float32")
    assert loaded.certificate.equal


def test_windows_without_padding_are_read_where_they_lie() -> None:
    @mi.program(x=T("b", 3, 9, 9), k=T(4, 3, 3, 3), sizes={"small": {"b": 1}})
    def inside(x: Any, k: Any) -> Any:
        return mi.convolution(x, k, strides=(1, 1))

    fast = mi.superoptimize(inside, budget=BUDGET, cache=False)
    x, k = (np.ones(s, np.float32) for s in ((2, 3, 9, 9), (4, 3, 3, 3)))
    kernels = [v.executable for v in fast.versions if v.candidate]
    bound_calls = [e.bind({"b": 2}, [a.strides for a in (x, k, np.empty((2, 4, 7, 7), np.float32))]) for e in kernels]
    assert any(call is not None for call in bound_calls) or not kernels
    assert (fast(x, k) == 27).all()


def test_the_same_is_recalled_under_other_names(tmp_path: Path) -> None:
    @mi.program(y=T("n", 4, "p", "q"), w=T(8, 4, 3, 3), c=T(8, 1, 1), sizes={"s": {"n": 1, "p": 6, "q": 7}}, constants=["w"])
    def other(y: Any, w: Any, c: Any) -> Any:
        return mi.relu(mi.convolution(y, w, padding=1) + c)

    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    mi.superoptimize(padded, budget=BUDGET, cache=store)
    again = mi.superoptimize(other, budget=BUDGET, cache=store)
    assert again.cache_hit
    sizes = {"n": 2, "p": 4, "q": 5}
    compare(other.trace(), lambda xs: again(*xs), sizes)


def test_windows_that_do_not_fit_are_refused() -> None:
    @mi.program(x=T("b", 2, "h"), k=T(3, 2, 5), sizes={"small": {"b": 1, "h": 9}})
    def inside(x: Any, k: Any) -> Any:
        return mi.convolution(x, k) * 2

    fast = mi.superoptimize(inside, budget=BUDGET, cache=False)
    with pytest.raises(InputError, match=r"window along spatial dim 0.*5 > 4"):
        fast(np.ones((1, 2, 4), np.float32), np.ones((3, 2, 5), np.float32))
    with pytest.raises(InputError, match="x"):
        fast(np.ones((1, 3, 9), np.float32), np.ones((3, 2, 5), np.float32))


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x, k: mi.convolution(x, k[0]), "of one rank"),
        (lambda x, k: mi.convolution(x, k, strides=(1, 2, 3)), "strides"),
        (lambda x, k: mi.convolution(x, k, padding=-1), "padding"),
        (lambda x, k: mi.convolution(x, k, padding=(1, 2, 3)), "padding"),
        (lambda x, k: mi.convolution(x, k, groups=3), "groups"),
        (lambda x, k: mi.convolution(x, k, dilations=0), "dilations"),
        (lambda x, k: mi.average_pool(x, (3, 3, 3, 3, 3)), "windows"),
        (lambda x, k: mi.average_pool(x, (0, 3)), "kernel"),
        (lambda x, k: mi.windows(x, (3, 3), strides=(1,)), "strides"),
        (lambda x, k: mi.convolution(x, mi.relu(k), padding=1).sum(axis=9), "axis"),
    ],
)
def test_wrong_programs_are_refused(fn: Callable[..., Any], says: str) -> None:
    with pytest.raises(mi.MirageError, match=says):
        mi.trace(fn, x=T("b", 4, "h", 8), k=T(8, 4, 3, 3))


def test_convolutions_of_convolutions_say_where_to_cut() -> None:
    def twice(x: Any, k: Any) -> Any:
        return mi.convolution(mi.convolution(x, k), k)

    with pytest.raises(AxisError, match=r"windows of what reshape computes"):
        mi.superoptimize(mi.trace(twice, x=T("b", 4, 9, 9), k=T(4, 4, 3, 3)), sizes={"b": 1}, cache=False)


def test_dims_of_strides_are_to_be_products() -> None:
    program = mi.trace(lambda x, k: mi.convolution(x, k, strides=2), x=T("b", 4, "h"), k=T(4, 4, 3))
    with pytest.raises(AxisError, match="a name of its own"):
        mi.superoptimize(program, sizes={"b": 1, "h": 9}, cache=False)


@pytest.mark.parametrize("name", ["max_pooled", "mean_of_three"])
def test_pooling_is_found_in_the_kernel_of_its_convolution(name: str) -> None:
    program, given = PROGRAMS[name].trace(), PROGRAMS[name].sizes["small"]
    found = generate(to_axes(program), given, SearchOptions(steps=20_000)).graphs
    whole = [g for g in found if [n.op for n in g.kernel.nodes if n.op not in ("input", "constant", "size")] == ["graph"]]
    assert whole and all(Verifier(program).admit(g).proof == "proved" for g in whole)
    fold = "max" if name == "max_pooled" else "sum"
    blocks = [inline_threads(b) for g in whole if (b := g.kernels[0].graph) is not None]
    assert all({"matmul", fold} <= {n.op for n in b.nodes} for b in blocks)


def test_windows_by_steps_are_read_where_they_lie() -> None:
    program, fast = max_pooled.trace(), mi.superoptimize(max_pooled, budget=BUDGET, cache=False)
    rng = np.random.default_rng(0)
    shapes = (2, 4, 8, 10), (8, 4, 3, 3), (8, 1, 1)
    x, k, bias = (rng.standard_normal(s, np.float32) for s in shapes)
    sizes, out = {"b": 2, "h": 3, "w": 4}, np.empty((2, 8, 3, 4), np.float32)
    (wanted,) = run_reference(program, [x, k, bias], sizes, "float64")
    # every second column of an array is a copy, in which columns are as far apart as in the argument
    columns = np.repeat(x, 2, axis=-1)[..., ::2]
    candidates = [v.candidate for v in fast.versions if v.candidate] or [c for c in fast.graphs if c.make]
    assert candidates
    for c in candidates:
        in_place = c.executable.bind(sizes, [a.strides for a in (x, k, bias, out)])
        assert in_place is not None or c.executable.packed
        assert c.executable.bind(sizes, [a.strides for a in (columns, k, bias, out)]) is None
        for given in (x, columns):
            (found,) = c.executable([given, k, bias], sizes)
            assert error([found], [wanted]) < bound("float32")


def test_nan_is_the_largest() -> None:
    fast = mi.superoptimize(max_pooled, budget=BUDGET, cache=False)
    x = np.zeros((1, 4, 8, 10), np.float32)
    x[0, 1, 4, 7] = np.nan
    k, bias = np.ones((8, 4, 3, 3), np.float32), np.zeros((8, 1, 1), np.float32)
    (wanted,) = run_reference(max_pooled.trace(), [x, k, bias], {"b": 1, "h": 3, "w": 4}, "float64")
    for c in [v.candidate for v in fast.versions if v.candidate]:
        (found,) = c.executable([x, k, bias], {"b": 1, "h": 3, "w": 4})
        assert (np.isnan(found) == np.isnan(wanted)).all() and np.isnan(wanted).any()


def test_maxima_are_told_from_others() -> None:
    def program(make: Callable[[Any], Any]) -> Program:
        return mi.trace(make, "f", x=T("n", "m"))

    largest = program(lambda x: mi.max(mi.exp(x), 1))
    same = program(lambda x: mi.max(mi.reshape(mi.exp(x), ("n", "m", 1)), (1, 2)))
    assert prove_programs(largest, same) == "proved" and verify_programs(largest, same).equal
    for other in (
        lambda x: mi.sum(mi.exp(x), 1),
        lambda x: mi.max(mi.exp(-x), 1),
        lambda x: -mi.max(-mi.exp(x), 1),
        lambda x: mi.max(mi.exp(x), 1) * 2,
    ):
        assert prove_programs(largest, program(other)) == "not proved"
        assert not verify_programs(largest, program(other)).equal


def test_max_pools_with_what_lies_around_are_for_compiled_programs() -> None:
    with pytest.raises(AxisError, match="zeros"):
        to_axes(mi.trace(lambda x: mi.max_pool(x, (2, 2), padding=1), x=T("b", 4, 8, 8)))

    @mi.function(x=T("b", 4, 8, "w"))
    def pooled(x: Any) -> Any:
        return mi.max_pool(x, (2, 2), padding=(0, 1))

    x = np.random.default_rng(0).standard_normal((2, 4, 8, 6), np.float32)
    found = mi.compile(pooled, without=("superoptimize",))(x)
    around = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)), constant_values=-np.inf)
    assert (found == around.reshape(2, 4, 4, 2, 4, 2).max((3, 5))).all()


def graphs_of(fn: Callable[..., Any], constants: tuple[str, ...], **specs: Any) -> list[Any]:
    """The graphs of a complete search, each proved equal."""
    program = mi.trace(fn, **specs)
    found = generate(to_axes(program), {"b": 1, "h": 14}, SearchOptions(constants=constants, steps=20_000)).graphs
    verifier = Verifier(program)
    assert all(verifier.admit(g).proof == "proved" for g in found)
    return found


def inputs_of(graph: Any, node: Any) -> set[str]:
    return {graph.inputs[n.attr["index"]].argument for r in node.operands if (n := graph.kernel.nodes[r.node]).op == "input"}


def test_a_scale_of_the_outputs_is_folded_into_the_weights() -> None:
    """Among the graphs is one with a kernel of constants alone, which runs once (Relay, section 4.4: folding of scaling axes)."""
    found = graphs_of(
        lambda x, k, scale: mi.relu(mi.convolution(x, k, padding=1) * scale), ("k", "scale"),
        x=T("b", 4, "h", 14), k=T(8, 4, 3, 3), scale=T(8, 1, 1),
    )  # fmt: skip
    folded = [g for g in found if any(inputs_of(g, n) == {"k", "scale"} for n in g.kernels)]
    assert folded and all(any(inputs_of(g, n) == {"x"} for n in g.kernels) for g in folded)


def test_convolutions_of_one_tensor_are_joined() -> None:
    """Among the graphs is one kernel that loads the windows once for both products (Relay: parallel convolutions)."""
    found = graphs_of(
        lambda x, k, gate: mi.convolution(x, k, padding=1) * mi.sigmoid(mi.convolution(x, gate, padding=1)), (),
        x=T("b", 4, "h", 14), k=T(8, 4, 3, 3), gate=T(8, 4, 3, 3),
    )  # fmt: skip
    joined = [g for g in found if len(g.kernels) == 1 and inputs_of(g, g.kernels[0]) == {"x", "k", "gate"}]
    assert joined
    for g in joined:
        block = g.kernels[0].graph
        assert sum(n.op == "input" for n in block.nodes) == 3 and sum(n.op == "matmul" for n in block.nodes) == 2
