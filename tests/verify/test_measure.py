"""A few elements, with weights, stand for an axis of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.dims import symbol, to_dim
from mirage.mugraph.interpret import run_mugraph
from mirage.verify.measure import DrawnMeasure, Measure
from mirage.verify.primes import draw_primes
from mirage.verify.sizes import axis_symbol, draw_schedule
from tests.verify.graphs import PAIRS

PRIMES = draw_primes(0)
NUMBERS = np.arange(5, dtype=np.uint64)


def drawn(axes: Mapping[str, tuple[str, int]], joined: Mapping[str, tuple[str, ...]] | None = None) -> DrawnMeasure:
    return DrawnMeasure(Measure({a: (to_dim(d), n) for a, (d, n) in axes.items()}, joined or {}), PRIMES, NUMBERS, 0)


def test_weights_add_up_to_the_size() -> None:
    axes = {"n": ("n", 3), "d64": ("64", 2), "nm": ("4*n*m + 7", 1), "one": ("n", 2)}
    m = drawn(axes)
    for a, w in m.weights.items():
        size = m.size(to_dim(axes[a][0]))
        for part, total, modulus in zip(w, size, (PRIMES.p, PRIMES.q), strict=True):
            assert part.shape == (5, axes[a][1]) and (part.sum(axis=1) % modulus == total).all()
            assert (part >= 0).all() and (part < modulus).all()
    assert set(m.weights) == set(axes)


def test_sizes_are_polynomials_of_symbols_and_differ_from_test_to_test() -> None:
    m = drawn({})
    n, k = (m.size(symbol(s)) for s in "nk")
    both = m.size(to_dim("3*n*k + n*n + 5"))
    for i, modulus in enumerate((PRIMES.p, PRIMES.q)):
        x, y = n[i].astype(object), k[i].astype(object)
        assert (both[i] == (3 * x * y + x * x + 5) % modulus).all()
        assert len(set(n[i].tolist())) == 5 and (n[i] != k[i]).all()
    assert (m.size(to_dim(64))[0] == 64).all()


def test_an_axis_of_its_literal_size_has_no_weights() -> None:
    assert set(drawn({"a": ("2", 2), "b": ("3", 2), "c": ("n", 2)}).weights) == {"b", "c"}


def test_joined_axes_have_the_weights_of_their_parts() -> None:
    w = drawn({"j": ("n+2", 5), "a": ("n", 3), "b": ("2", 2), "c": ("n", 3)}, {"j": ("a", "b"), "c": ("a",)}).weights
    assert (w["j"][0][:, :3] == w["a"][0]).all() and (w["j"][1][:, 3:] == 1).all()
    assert (w["c"][0] == w["a"][0]).all() and "b" not in w


def test_both_sides_of_a_test_find_the_same_values() -> None:
    axes = {"n": ("n", 3)}
    part = DrawnMeasure(drawn(axes).measure, PRIMES, NUMBERS[2:], 0)
    assert (part.weights["n"][0] == drawn(axes).weights["n"][0][2:]).all()


class Weighted(FloatArithmetic):
    """Floats with natural numbers as weights."""

    own: Mapping[str, Any] = {}

    @property
    def weights(self) -> Mapping[str, Any]:
        return self.own


@pytest.mark.parametrize("make", [g for _, g in PAIRS])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_repetitions(make: Any, seed: int) -> None:
    """A graph with weights 1, 2, ... is the graph on arrays in which elements are repeated so often."""
    graph = make()
    rng = Random(seed)
    few = {a: rng.randint(1, 3) for a in graph.axes}
    repeats = {a: np.array([rng.randint(1, 3) for _ in range(n)]) for a, n in few.items()}
    many = {a: int(r.sum()) for a, r in repeats.items()}
    own = replace(graph, axes={a: symbol(axis_symbol(i)) for i, a in enumerate(graph.axes)})
    generator = np.random.default_rng(seed)
    inputs = [generator.standard_normal([few[a] for a in x.axes]) for x in graph.inputs]
    larger = [_repeated(x, i.axes, repeats) for x, i in zip(inputs, graph.inputs, strict=True)]
    results = []
    for sizes, arrays, weights in ((few, inputs, repeats), (many, larger, {})):
        ar = Weighted({axis_symbol(i): n for i, n in enumerate(sizes.values())})
        ar.own = weights
        shapes = [[math.prod(sizes[a] for a in d) for d in x.dims] for x in graph.inputs]
        shaped = [x.reshape(shape) for x, shape in zip(arrays, shapes, strict=True)]
        results.append(run_mugraph(own, draw_schedule(own, sizes, Random(seed))[0], shaped, ar)[0])
    axes = [a for d in graph.outputs[0].dims for a in d]
    assert results[0].shape == tuple(few[a] for a in axes)
    np.testing.assert_allclose(results[1], _repeated(results[0], axes, repeats), rtol=1e-9)


def _repeated(x: np.ndarray, axes: Any, repeats: Mapping[str, np.ndarray]) -> np.ndarray:
    for k, a in enumerate(axes):
        x = np.repeat(x, repeats[a], axis=k)
    return x
