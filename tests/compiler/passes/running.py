"""What the tests of passes share: modules from text, run before and after a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.compiler.context import Context
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Expr, Module, OpCall
from mirage.ir.graph.parse import parse_module
from mirage.kernels import blas

Run = Callable[[Module, Context], Module]


def after(text: str | Module, *passes: Run, context: Context | None = None) -> Module:
    """The module after passes, checked after each."""
    module = parse_module(text) if isinstance(text, str) else text
    context = context or Context()
    for p in passes:
        module = p(module, context)
        check(module)
    return module


def main_text(body: str, signature: str) -> str:
    """A main function of one dataflow block, which returns `r`."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"def main({signature}):\n    with dataflow():\n{lines}\n    return r\n"


def expressions(module: Module, function: str = "main") -> list[Expr]:
    return [b.value for b in module.functions[function].bindings]


def ops(module: Module, function: str = "main") -> list[str]:
    """What the bindings of a function do: names of operators, of other expressions their kind."""
    return [e.op if isinstance(e, OpCall) else type(e).__name__ for e in expressions(module, function)]


def random_arrays(seed: int, *shapes: Sequence[int], dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def evaluate(module: Module, *args: Any, **packed: Callable[..., Any]) -> Any:
    return run_module(module, args, packed=packed, library=blas.FUNCTIONS)


def assert_equal(found: Any, wanted: Any, tolerance: float = 0.0) -> None:
    """Equal bit by bit (signs of zeros too), or within a tolerance relative to the largest element."""
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple) and len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            assert_equal(f, w, tolerance)
        return
    f, w = np.asarray(found), np.asarray(wanted)
    assert f.shape == w.shape and f.dtype == w.dtype
    if tolerance:
        scale = max(float(np.max(np.abs(w), initial=0.0)), 1.0)
        np.testing.assert_allclose(f, w, rtol=0, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(f, w)
        if f.dtype.kind not in "ib":
            np.testing.assert_array_equal(np.signbit(f), np.signbit(w))
