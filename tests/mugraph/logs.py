"""MuGraphs that take the log of a sum of exps, in every place where kernels may find the maximum, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.reference import reference_graph
from tests.kernels.kernels import cut, single_kernel
from tests.mugraph.graphs import L, P, S, W, accumulate, block, kernel, mugraph, node, one, reads

SIZES = {"m": 5, "n": 37}
Exact = Callable[..., np.ndarray]


@dataclass(frozen=True)
class LogCase:
    """A program, a muGraph of it, and its value in float64 without overflow."""

    program: Program
    graph: MuGraph
    exact: Exact


def row(x: Any) -> Any:
    return mi.sum(x, axis=1, keepdims=True)


def logsumexp(x: np.ndarray) -> np.ndarray:
    high = x.max(axis=1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isinf(high), 0, high)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(x - shift).sum(axis=1, keepdims=True))


def _traced(name: str, f: Callable[..., Any], *inputs: str) -> Program:
    return mi.trace(f, name, **{x: mi.tensor("m", "n") for x in inputs})


#: programs, with their values
LSE = _traced("logsumexp", lambda x: mi.log(row(mi.exp(x))), "x"), logsumexp
LOG_SOFTMAX = _traced("log_softmax", lambda x: x - mi.log(row(mi.exp(x))), "x"), lambda x: x - logsumexp(x)
CROSS_ENTROPY = (
    _traced("cross_entropy", lambda x, y: row(y * (mi.log(row(mi.exp(x))) - x)), "x", "y"),
    lambda x, y: (y * (logsumexp(x) - x)).sum(axis=1, keepdims=True),
)
SMOOTHED = (
    _traced("label_smoothing", lambda x, y: -row((y * 0.9 + 0.1 / 37) * (x - mi.log(row(mi.exp(x))))), "x", "y"),
    lambda x, y: ((y * 0.9 + 0.1 / 37) * (logsumexp(x) - x)).sum(axis=1, keepdims=True),
)
TWICE = (
    _traced("twice", lambda x, y: mi.log(row(mi.exp(x)) * row(mi.exp(x)) * row(mi.exp(y))), "x", "y"),
    lambda x, y: 2 * logsumexp(x) + logsumexp(y),
)
SCALED = (
    _traced("scaled", lambda x, y: mi.exp(x) / row(mi.exp(x)) * mi.log(row(mi.exp(x))) + y, "x", "y"),
    lambda x, y: np.exp(x - logsumexp(x)) * logsumexp(x) + y,
)
#: every element is a row of its own
ALONE = _traced("alone", lambda x: mi.log(mi.exp(x)), "x"), lambda x: x
ONE_ELEMENT = _traced("one_element", lambda x: mi.log_softmax(row(x), axis=1) + x, "x"), lambda x: x
MEAN = _traced("mean", lambda x: mi.log(mi.mean(mi.exp(x), axis=1)), "x"), lambda x: (logsumexp(x) - np.log(x.shape[1]))[:, 0]

#: nodes of log-softmax over axes
EXP, SUM, LOG, SUB = 1, 2, 3, 4


def _split() -> list[MuGraph]:
    """Partial sums of exps from a kernel that splits the rows: what follows is one kernel more, or two."""
    p = to_axes(LOG_SOFTMAX[0])
    mn, parts = one("m", "n"), one("n.grid", "m")
    first = [*reads(mn), node("exp", (0,), ("m", "n")), node("sum", (1,), ("m",), reduce=("n",)), accumulate(2, "n", ("m",))]
    sums = kernel(block(first, (3,), m=P, n=S), (Ref(0),), parts)
    whole = [*reads(parts, mn), node("sum", (0,), ("m",), reduce=("n.grid",))]
    logs = [node("log", (2,), ("m",)), node("sub", (1, 3), ("m", "n"))]
    two = mugraph(p, [sums, kernel(block([*whole, *logs], (4,), m=P, n=P, n_grid=W), (Ref(1), Ref(0)), mn)], Ref(2), name="two")
    total = kernel(block([whole[0], node("sum", (0,), ("m",), reduce=("n.grid",))], (1,), m=P, n_grid=W), (Ref(1),), one("m"))
    last = [*reads(one("m"), mn), node("log", (0,), ("m",)), node("sub", (1, 2), ("m", "n"))]
    last_kernel = kernel(block(last, (3,), m=P, n=P), (Ref(2), Ref(0)), mn)
    three = mugraph(p, [sums, total, last_kernel], Ref(3), name="three")
    # the library's log, after kernels of ours
    own = [node("log", (2,), ("m",)), node("sub", (0, 3), ("m", "n"))]
    return [two, three, mugraph(p, [sums, total, *own], Ref(4), name="library_log")]


def _cases() -> Mapping[str, LogCase]:
    program = LOG_SOFTMAX[0]
    graphs = {
        "one_kernel": single_kernel(program),
        "a_loop_then_another_kernel": cut(program, (EXP, SUM, LOG), (SUB,), loop=("n",)),
        "log_in_the_next_kernel": cut(program, (EXP, SUM), (LOG, SUB), loop=("n",)),
        "log_in_a_kernel_of_its_own": cut(program, (EXP, SUM), (LOG,), (SUB,), loop=("n",)),
        "log_in_a_library": cut(program, (EXP, SUM), loop=("n",)),
        "all_in_a_library": reference_graph(to_axes(program)),
        "a_difference_in_a_kernel": cut(program, (SUB,)),
        **dict(zip(("split", "split_and_summed", "split_then_a_library"), _split(), strict=True)),
    }
    found = {name: LogCase(program, graph, LOG_SOFTMAX[1]) for name, graph in graphs.items()}
    summed: dict[str, tuple[Program, Exact]] = {"lse": LSE, "twice": TWICE, "mean": MEAN}
    for name, (p, exact) in summed.items():
        found[name] = LogCase(p, single_kernel(p), exact)
        found[f"{name}_in_a_loop"] = LogCase(p, single_kernel(p, n=L), exact)
    for p, exact in (CROSS_ENTROPY, SMOOTHED, SCALED, ALONE, ONE_ELEMENT):
        found[p.name] = LogCase(p, single_kernel(p), exact)
    return found


CASES = _cases()


def inputs(case: LogCase, offset: float, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Logits around `offset`, one row with a number that is far larger and one with a number that is far smaller; weights that
    are not negative.
    """
    rng = np.random.default_rng(0)
    shape = sizes["m"], sizes["n"]
    x = 3 * rng.standard_normal(shape) + offset
    if x.size:
        x[-1, -1] += 2e4
        x[0, 0] -= 2e4
    others = [rng.random(shape) + offset * (case.program.name == "twice") for _ in case.graph.inputs[1:]]
    return [a.astype(np.float32) for a in (x, *others)]


#: what `largest_error` may be
ROUNDING = 4 * float(np.finfo(np.float32).eps)


def largest_error(case: LogCase, given: list[np.ndarray], got: np.ndarray) -> float:
    """The largest difference from float64, over the largest number that its row is computed with, per summand."""
    want = case.exact(*(a.astype(np.float64) for a in given))
    assert got.shape == want.shape and np.isfinite(got).all()
    high = np.maximum(1, np.abs(given[0].astype(np.float64)).max(axis=1))
    summands = given[0].shape[1] if case.program.name in ("cross_entropy", "label_smoothing") else 1
    return float((np.abs(got - want) / (summands * high.reshape(-1, *(1,) * (got.ndim - 1)))).max(initial=0.0))
