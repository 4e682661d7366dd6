"""The layers whose gradients are measured: ours are those of PyTorch, in all that is raced."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.flow.gradients import CASES, COMPILED, EAGER, OURS, GradientRow, arrays_of, back, gradient_table  # noqa: E402
from mirage.frontends.functions import trace_module  # noqa: E402
from mirage.frontends.gradients import grad  # noqa: E402
from mirage.ir.graph.interpret import run_module  # noqa: E402


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    case = CASES[name]
    arrays = arrays_of(case, dict.fromkeys(case.sizes, 2))
    wanted = back(case.torch, [torch.from_numpy(a).double() for a in arrays])
    found = run_module(trace_module(grad(case.ours, wrt=list(case.specs)[:-1]), case.specs), arrays, wide=True)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(f), w)


def test_table() -> None:
    row = GradientRow("norm", {OURS: 10.0, COMPILED: 25.0, EAGER: 20.0}, {})
    assert gradient_table([row]).rows == [["norm", "10", "25", "20", "2.00"]]
