"""Subprograms as calls of the kernels that a search gives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from mirage.compiler.context import Context, Sizes
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.passes import partition, superoptimize
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import Kernel, KernelCall, Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.program import Program
from tests.compiler.layers import DECODER, WEIGHTS


@dataclass
class Asked:
    """A search that gives library calls, and remembers what it was asked."""

    programs: list[Program] = field(default_factory=list)
    sizes: list[list[Sizes]] = field(default_factory=list)
    constants: list[list[str]] = field(default_factory=list)
    budgets: list[float] = field(default_factory=list)

    def __call__(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[Kernel, str]:
        self.programs.append(program)
        self.sizes.append(list(sizes))
        self.constants.append(list(constants))
        self.budgets.append(budget)
        return MuGraphKernel.of_library(program), "library"


def searched(text: str, sizes: Sequence[Sizes], constants: tuple[str, ...] = ()) -> tuple[Module, Asked, Context]:
    asked = Asked()
    context = Context(
        constants=constants, sizes=tuple(sizes), superoptimizer=asked, deadline=time.perf_counter() + 100
    )
    module = superoptimize.run(partition.run(parse_module(text), context), context)
    check(module)
    return module, asked, context


def kernels_called(module: Module) -> list[str]:
    return [b.value.kernel for f in module for b in f.bindings if isinstance(b.value, KernelCall)]


def test_every_subprogram_is_searched_at_the_sizes_of_main() -> None:
    module, asked, context = searched(DECODER, [{"b": 2, "s": 16}], WEIGHTS)
    # the projections of keys and values are one piece of work
    assert len(asked.programs) == 7 and len(kernels_called(module)) == 8
    assert all(s == [{"b": 2, "s": 16}] for s in asked.sizes)
    assert sorted(c[-1:] for c in asked.constants) == [[], ["norm"], ["w2"], ["w3"], ["wk"], ["wo"], ["wq"]]
    assert len(context.report.subprograms) == 7 and 0 < min(asked.budgets) <= max(asked.budgets) <= 100


def test_dims_that_mean_nothing_to_a_search_are_symbols_of_its_own() -> None:
    text = """
def main(x: float32[s + t, 64]):
    with dataflow():
        y = exp(x)
        a = sum(y, axes=(1,), keepdims=False)
    return a
"""
    module, asked, _ = searched(text.replace("x:", "k: Shape[s, t], x:"), [{"s": 3, "t": 5}])
    assert asked.programs[0].symbols() == ["d0"] and asked.sizes == [[{"d0": 8}]]
    (call,) = [b.value for f in module for b in f.bindings if isinstance(b.value, KernelCall)]
    assert [str(d) for d in call.dims] == ["s + t"]


def test_without_a_search_nothing_changes() -> None:
    module = parse_module(DECODER)
    assert superoptimize.run(module, Context()) is module


def test_larger_subprograms_come_first_and_get_more_time() -> None:
    text = """
def main(x: float32[n, 64], w: float32[64, 4096]):
    with dataflow():
        y = rms_norm(x, axis=-1, eps=1e-06)
        z = exp(y)
        a = matmul(y, w)
        b = matmul(z, w)
        c = mul(a, b)
        t = (c, y)
    return t
"""
    _, asked, _ = searched(text, [{"n": 512}])
    large, small = asked.budgets
    assert 2 * small < large < 100 and 99 < large + small <= 100


@pytest.mark.parametrize("size", [0, 1])
def test_a_tuned_size_is_at_least_one(size: int) -> None:
    text = """
def main(x: float32[n, 64]):
    with dataflow():
        y = exp(x)
        a = sum(y, axes=(1,), keepdims=False)
    return a
"""
    _, asked, _ = searched(text, [{"n": size}])
    assert asked.sizes == [[{"n": 1}]]


def test_what_may_gain_most_comes_first() -> None:
    module = parse_module(DECODER)
    asked, told = Asked(), list[Program]()

    def promise(program: Program, sizes: Sequence[Sizes], constants: Sequence[str]) -> float:
        told.append(program)
        return 1.0 if len(program.input_names) == 3 else 0.01

    context = Context(sizes=({"b": 2, "s": 16},), superoptimizer=asked, promise=promise, deadline=time.perf_counter() + 1000)
    superoptimize.run(partition.run(module, context), context)
    assert sorted(p.name for p in told) == sorted(p.name for p in asked.programs)
    # those of many operators are measured first
    assert len(told[0].nodes) == max(len(p.nodes) for p in told)
    assert [len(p.input_names) == 3 for p in asked.programs] == sorted([len(p.input_names) == 3 for p in told], reverse=True)
    assert max(asked.budgets) == pytest.approx(10 * min(asked.budgets))


def test_without_time_nothing_is_measured() -> None:
    context = Context(
        sizes=({"b": 2, "s": 16},), superoptimizer=Asked(), promise=lambda *_: pytest.fail("takes time"),
        deadline=time.perf_counter() + superoptimize._LEAST_SECONDS,
    )  # fmt: skip
    superoptimize.run(partition.run(parse_module(DECODER), context), context)
