"""Dims may have any name, also those that loop programs give to operands, loops and stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.dim_names import with_own_names
from mirage.ir.dims import symbol

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def fn(x: Any) -> Any:
    return mi.softmax(mi.where(x > 1, x, 1), axis=1) * mi.max(x)


@pytest.mark.parametrize("name", ["x0", "i1", "r0", "e", "total", "out", "double"])
def test_any_name(name: str) -> None:
    f = mi.compile(fn, {"x": mi.tensor(name, "x1")}, without=("superoptimize",), cache=False)
    e = np.exp(np.maximum(X, 1))
    np.testing.assert_allclose(f(X), e / e.sum(1, keepdims=True) * 5, rtol=1e-6)


def test_functions_with_names_of_their_own() -> None:
    module = mi.trace_module(fn, {"x": mi.tensor("x0", "x")})
    function = module.functions["fn"]
    own, dims = with_own_names(function)
    assert dims == {"dim_x": symbol("x"), "dim_x0": symbol("x0")}
    assert own.parameters[0].annotation == mi.tensor("dim_x0", "dim_x")
    assert own.returns == mi.tensor("dim_x0", "dim_x")
    assert [b.var.name for b in own.bindings] == [b.var.name for b in function.bindings]
    again, none = with_own_names(own)
    assert again is own and none == {}
