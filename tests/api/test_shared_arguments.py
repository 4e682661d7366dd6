"""The whole path for programs that use an argument under several axes: X @ X.T, self-attention of one input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage import api
from mirage.cache import ResultStore
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import analyze
from mirage.results.cpu.result import Superoptimized
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.api.small import BUDGET, arrays, check, loaded
from tests.modelled import modelled
from tests.programs import UNLIMITED
from tests.sampled import thinned
from tests.shared import shared

#: sizes that no program was tuned at: different for every symbol, and not whole tiles
OTHER = {"m": 37, "k": 21, "n": 19, "j": 6}


def chosen(name: str) -> Superoptimized:
    program = shared(name)
    # of the block, a search of two kernels takes long
    limit = 1 if name == "attention block" else 3
    return modelled(program, dict.fromkeys(program.symbols(), 12), kernels=3, max_kernels=limit)


def optimized(name: str, cache: ResultStore) -> Superoptimized:
    program = shared(name)
    return mi.superoptimize(program, sizes=dict.fromkeys(program.symbols(), 12), budget=BUDGET, cache=cache)


def outputs(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, tuple) else [found]


def check_result(r: Superoptimized) -> None:
    """The answer, every kernel and every library version against float64, on one array per argument."""
    sizes = {s: OTHER[s] for s in r.program.symbols()}
    inputs = arrays(r.program, sizes)
    check(r.program, outputs(r(*inputs)), inputs, sizes)
    check(r.program, r._library(inputs, sizes), inputs, sizes)
    for c in r.graphs:
        if c.executable is not None:
            check(r.program, c.executable(inputs, sizes), inputs, sizes)
    assert r.certificate.equal and r.certificate.proof == "proved"
    with pytest.raises(InputError, match="takes"):
        r(*inputs, inputs[0])


@pytest.mark.parametrize("name", ["self attention", "attention block", "two factorizations", "cube"])
def test_every_kernel_computes_the_program_on_one_array_per_argument(name: str) -> None:
    r = chosen(name)
    assert r.compiled
    check_result(r)


@pytest.mark.parametrize("name", thinned(["self attention", "covariance", "symmetric", "several outputs", "gram squared"]))
def test_results_are_remembered_saved_and_loaded(name: str, tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.db")
    first = optimized(name, store)
    check_result(first)
    again = optimized(name, store)
    assert again.cache_hit and not first.cache_hit
    assert {str(c.graph) for c in again.graphs} <= {str(c.graph) for c in first.graphs}
    check_result(again)
    first.save(tmp_path / "result.json")
    check_result(loaded(tmp_path / "result.json"))


def test_one_argument_read_twice_is_not_looked_up_as_two(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.db")
    optimized("gram", store)

    def product(x: Any, y: Any) -> Any:
        return x @ mi.transpose(y, (1, 0))

    two = mi.trace(product, "gram", x=mi.tensor("m", "k"), y=mi.tensor("m", "k"))
    r = mi.superoptimize(two, sizes={"m": 12, "k": 12}, budget=BUDGET, cache=store)
    assert not r.cache_hit
    inputs = arrays(two, {"m": 7, "k": 5})
    check(two, [r(*inputs)], inputs, {"m": 7, "k": 5})
    # the same with other names is
    renamed = mi.trace(lambda z: z @ mi.transpose(z, (1, 0)), "other", z=mi.tensor("r", "c"))
    assert mi.superoptimize(renamed, sizes={"r": 12, "c": 12}, budget=BUDGET, cache=store).cache_hit


def test_self_attention_of_one_input_is_flash_attention() -> None:
    """One kernel with a running maximum that loops over the rows read again, whatever the length."""
    options = SearchOptions(max_kernels=2, budget=UNLIMITED)
    graphs = generate(to_axes(shared("self attention")), {"m": 256, "k": 16}, options).graphs
    one = [g for g in graphs if len(g.kernels) == 1]
    looped = [g for g in one if g.kernels[0].graph and g.kernels[0].graph.loop == ("m_2",)]
    assert looped and all(analyze(g).safe for g in looped)


def test_an_empty_argument() -> None:
    assert chosen("gram")(np.zeros((0, 4), np.float32)).shape == (0, 0)


def test_programs_that_share_are_proved_equal() -> None:
    x = mi.tensor("m", "k")

    def ours(x: Any) -> Any:
        return mi.softmax(x @ mi.transpose(x, (1, 0))) @ x

    def theirs(x: Any) -> Any:
        e = mi.exp(x @ mi.transpose(x, (1, 0)))
        return (e @ x) / mi.sum(e, axis=1, keepdims=True)

    certificate = api.verify(mi.trace(ours, "a", x=x), mi.trace(theirs, "b", x=x))
    assert certificate.equal and certificate.proof == "proved"

    def wrong(x: Any) -> Any:
        e = mi.exp(x @ mi.transpose(x, (1, 0)))
        return (e @ x) / mi.sum(e, axis=0, keepdims=True)

    square = mi.tensor("m", "m")
    assert not api.verify(mi.trace(ours, "a", x=square), mi.trace(wrong, "b", x=square)).equal
