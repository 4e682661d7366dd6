"""What is computed once in compiled programs is computed in float64 where it would be rounded several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, lift_constants, widen
from mirage.ir.types import DTYPES
from mirage.runtime.program import CallLibrary
from tests.compiler.passes.running import after, main_text
from tests.compiler.passes.test_lift_constants import prepared

T = mi.tensor
SIGNATURE = "x: float32[b, 4], w: float32[4, 6], v: float32[4, 6], g: float32[6], h: float32[6]"
CONSTANTS = ("w", "v", "g", "h")
WIDE: dict[str, Any] = {"without": ("superoptimize",), "cache": False}


def lifted(body: str) -> list[str] | None:
    context = Context(constants=CONSTANTS)
    return prepared(after(main_text(body, SIGNATURE), lift_constants.run, dead_code.run, context=context))


@pytest.mark.parametrize(
    ("body", "made"),
    [
        # float32 rounds once, too
        ("s = mul(w, g)\nr = matmul(x, s)", ["mul", "MakeTuple"]),
        ("t = transpose(w, perm=(1, 0))\nu = neg(t)\nz = reshape(g, shape=(6, 1))\no = mul(u, z)\n"
         "s = transpose(o, perm=(1, 0))\nr = matmul(x, s)", ["transpose", "neg", "reshape", "mul", "MakeTuple"]),
        ("s = mul(w, g)\nt = mul(s, h)\nr = matmul(x, t)", ["cast", "cast", "mul", "cast", "mul", "cast", "MakeTuple"]),
        ("s = sum(w, axes=(0,), keepdims=False)\np = matmul(x, v)\nr = mul(p, s)", ["cast", "sum", "cast", "MakeTuple"]),
        # who rounds to whole numbers has to see what the standard says
        ("s = mul(w, g)\nt = mul(s, h)\nu = round(t)\nr = matmul(x, u)", ["mul", "mul", "round", "MakeTuple"]),
        # behind what stays, a sum is wide again
        ("s = mul(w, g)\nu = round(s)\nt = add(u, v)\na = add(t, w)\nr = matmul(x, a)",
         ["mul", "round", "cast", "cast", "add", "cast", "add", "cast", "MakeTuple"]),
    ],
    ids=["one product", "views", "two factors", "a sum", "rounded", "behind rounded"],
)  # fmt: skip
def test_what_is_rounded_several_times_is_wide(body: str, made: list[str]) -> None:
    assert lifted(body) == made


def test_large_factors_of_products_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "s = transpose(v, perm=(1, 0))\nt = matmul(w, s)\nr = matmul(x, t)"
    assert lifted(body) == ["cast", "transpose", "cast", "matmul", "cast", "MakeTuple"]
    monkeypatch.setattr(widen, "_MOST_ELEMENTS", 23)
    assert lifted(body) == ["transpose", "matmul", "MakeTuple"]


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "gain of a norm": (lambda x, g, w, h: (mi.rms_norm(x, g) @ w) * h, [(16,), (16, 24), (24,)]),
    "sum of weights": (lambda x, a, b, c: x @ (a + b - c), [(16, 24), (16, 24), (16, 24)]),
    "sum over an axis": (lambda x, w: x * w.sum(1), [(16, 500)]),
    "product": (lambda x, a, c: x @ (a @ c), [(16, 40), (40, 4)]),
}
#: what is made of the constants, as the first of what is prepared
EXACT: dict[str, Callable[..., Any]] = {
    "gain of a norm": lambda g, w, h: w * g[:, None] * h,
    "sum of weights": lambda a, b, c: a + b - c,
    "sum over an axis": lambda w: w.sum(1),
    "product": lambda a, c: a @ c,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", list(EXACT))
def test_values_are_rounded_once(case: str, dtype: str) -> None:
    function, shapes = CASES[case]
    names = function.__code__.co_varnames[: len(shapes) + 1]
    specs = {n: T(*s, dtype=dtype) for n, s in zip(names, [("b", 16), *shapes], strict=True)}
    run = mi.compile(function, specs, constants=names[1:], **WIDE)
    rng = np.random.default_rng(0)
    low, high = (-4, 4) if dtype == "float32" else (-1, 1)
    x, *constants = ((10 ** rng.uniform(low, high, s)).astype(DTYPES[dtype]) for s in [(3, 16), *shapes])
    run(x, *constants)
    assert run._prepared is not None
    ((_, (found, *_)),) = run._prepared._values.values()
    exact = EXACT[case](*(c.astype(np.float64) for c in constants))
    # what is added has errors of float64 in its largest term
    terms = exact if case != "sum of weights" else sum(c.astype(np.float64) for c in constants)
    half = 2.0**-24 if dtype == "float32" else 2.0**-8 * (1 + 1e-4)
    assert np.all(np.abs(np.asarray(found).astype(np.float64) - exact) <= half * np.abs(exact) + 2.0**-46 * terms)


def test_a_low_rank_pair_is_not_multiplied_out() -> None:
    specs = {"x": T(1, 64), "a": T(64, 4), "c": T(4, 64)}
    run = mi.compile(lambda x, a, c: x @ (a @ c), specs, constants=("a", "c"), **WIDE)
    rng = np.random.default_rng(2)
    run(*(rng.standard_normal([int(d) for d in t.shape]).astype(np.float32) for t in specs.values()))
    calls = [i for f in run.program for i in f.code if isinstance(i, CallLibrary)]
    assert len(calls) == 2
