"""Gradients of random modules are what differences say; forms of expression that have none are refused, never left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GradientError
from mirage.ir.graph.check import check
from mirage.ir.graph.cotangents import float_leaves
from mirage.ir.graph.gradient import Differentiation
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.types import DTYPES, epsilon
from tests.random_graphs import Case, random_case

#: where differences are taken, apart from the arguments' size
STEP = 1e-6


def back_of(module: Module, wrt: Sequence[int]) -> Module:
    """The gradients of a module's main function: a function of its arguments and the cotangents of its result."""
    functions, names = dict(module.functions), count()
    made = Differentiation(functions, lambda hint: f"{hint}_{next(names)}").gradient(
        functions[module.main], wrt, "back", seeded=True, value=False
    )
    found = Module({**functions, "back": made}, main="back")
    check(found)
    return found


def weighted(value: Any, weights: Any) -> float:
    """The sum of products of all floating-point numbers in a value."""
    if isinstance(value, tuple):
        return sum(map(weighted, value, weights))
    return float((value * weights).sum()) if np.asarray(value).dtype.kind == "f" else 0.0


def random_like(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, tuple):
        return tuple(random_like(v, rng) for v in value)
    value = np.asarray(value)
    return rng.standard_normal(value.shape) if value.dtype.kind == "f" else np.zeros_like(value)


def compared(case: Case) -> str:
    """"right", or why the gradients of a case are not compared with differences; asserts that they are equal."""
    parameters = case.module.functions[case.module.main].parameters
    wrt = [k for k, p in enumerate(parameters) if float_leaves(p.annotation)]
    if not wrt or not float_leaves(case.module.functions[case.module.main].returns):
        return "nothing is of floats"
    try:
        back = back_of(case.module, wrt)
    except GradientError as e:
        return "none: " + str(e)
    rng = np.random.default_rng(case.seed)
    # not at whole numbers, where functions bend
    args = [
        a.astype(np.float64) + rng.uniform(0.01, 0.1, a.shape) if k in wrt else a for k, a in enumerate(case.copies())
    ]
    value = run_module(case.module, args, wide=True)
    cotangent = random_like(value, rng)
    found = run_module(back, [*args, cotangent], wide=True)
    moves = [rng.standard_normal(args[k].shape) for k in wrt]

    def at(step: float) -> float:
        moved = list(args)
        for k, move in zip(wrt, moves, strict=True):
            moved[k] = args[k] + step * move
        return weighted(run_module(case.module, moved, wide=True), cotangent)

    with np.errstate(all="ignore"):
        middle, (low, high) = weighted(value, cotangent), (at(-STEP), at(STEP))
        slope = weighted(found if len(wrt) > 1 else (found,), tuple(moves))
    difference = (high - low) / (2 * STEP)
    scale = 1 + abs(difference) + abs(middle)
    if not np.isfinite([middle, low, high]).all():
        return "not finite"
    if abs((high - middle) - (middle - low)) / STEP > 1e-2 * scale:
        return "it bends, or jumps"
    assert abs(slope - difference) < 1e-3 * scale, f"{slope} instead of {difference}\n{case}"
    return "right"


def assert_all(seeds: range) -> None:
    found = [compared(random_case(seed)) for seed in seeds]
    assert found.count("right") > len(found) / 2, found
    # what has no gradient says why
    reasons = ("has no gradient", "only known at run time", "has effects", "keeps its carried values")
    assert all(any(r in f for r in reasons) for f in found if f.startswith("none"))


def test_random_modules() -> None:
    assert_all(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 740, 100))
def test_many_random_modules(first: int) -> None:
    assert_all(range(first, first + 100))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_compiled(first: int) -> None:
    tried = 0
    for seed in range(first, first + 10):
        case = random_case(seed)
        if compared(case) != "right":
            continue
        wrt = [k for k, p in enumerate(case.module.functions[case.module.main].parameters) if float_leaves(p.annotation)]
        cotangent = own_types(run_module(case.module, case.copies()), np.random.default_rng(seed))
        back = Case(seed, back_of(case.module, wrt), case.sizes, (*case.args, cotangent))
        run = mi.compile(back.module, without=("superoptimize",), cache=False)
        expected = run_module(back.module, back.args)
        assert_same(run(*back.args), expected, run_module(back.module, back.args, wide=True))
        tried += 1
    assert tried > 3


def own_types(value: Any, rng: np.random.Generator) -> Any:
    """Random cotangents of the types that the value has."""
    if isinstance(value, tuple):
        return tuple(own_types(v, rng) for v in value)
    value = np.asarray(value)
    return np.asarray(rng.integers(-8, 9, value.shape) / 8 if value.dtype.name in DTYPES else np.zeros(value.shape)).astype(
        value.dtype
    )


def assert_same(found: Any, own: Any, exact: Any) -> None:
    """What a compiled function gives is as close to the exact numbers as what the interpreter gives is, or nearly."""
    if isinstance(own, tuple):
        for group in zip(found, own, exact, strict=True):
            assert_same(*group)
        return
    assert found.shape == own.shape and found.dtype == own.dtype
    if not own.size or not np.isfinite(own.astype(np.float64)).all():
        return
    error = np.abs(found.astype(np.float64) - exact).max()
    allowed = np.abs(own.astype(np.float64) - exact).max()
    assert error <= 8 * allowed + 64 * epsilon(own.dtype) * (1 + np.abs(exact).max())


REFUSED = {
    "a recursion has no gradient": """
@main
def f(x: float32[n], more: bool[()]) -> float32[n]:
    with dataflow():
        y: float32[n] = call[g](x, more)
    return y

def g(x: float32[n], more: bool[()]) -> float32[n]:
    with dataflow():
        y: float32[n] = if_else[again, same](more, x, more)
    return y

def again(x: float32[n], more: bool[()]) -> float32[n]:
    with dataflow():
        y: float32[n] = call[g](x, more)
    return y

def same(x: float32[n], more: bool[()]) -> float32[n]:
    return x
""",
    "of which there is no gradient": """
@main
def f(x: float32[n]) -> float32[n]:
    with dataflow():
        h: Callable[[float32[n]], float32[n]] = closure[shifted](x)
        y: float32[n] = apply[h](x)
    return y

def shifted(y: float32[n], x: float32[n]) -> float32[n]:
    with dataflow():
        z: float32[n] = add(y, x)
    return z
""",
}


@pytest.mark.parametrize(("message", "text"), REFUSED.items(), ids=list(REFUSED))
def test_refused(message: str, text: str) -> None:
    with pytest.raises(GradientError, match=message):
        back_of(parse_module(text), [0])
