"""The attentions that are measured beside FlexAttention: most are one subprogram of the search, and all are right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mirage as mi  # noqa: E402
from benchmarks.flow import masks  # noqa: E402
from benchmarks.flow.masks import CASES, MaskRow, arguments, dense, mask_table, types_of  # noqa: E402
from mirage.compiler.passes import add_masks, partition  # noqa: E402
from mirage.frontends.functions import trace_module  # noqa: E402
from mirage.ir.graph.nodes import FunctionCall  # noqa: E402
from mirage.runtime.program import CallKernel, CallLibrary  # noqa: E402
from tests.compiler.passes.running import after, evaluate, expressions, ops  # noqa: E402


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, n in {"HEADS": 2, "TOKENS": 24, "WINDOW": 5, "PREFIX": 3}.items():
        monkeypatch.setattr(masks, name, n)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("sinks", "differential", "paged")])
def test_attention_is_one_subprogram(name: str) -> None:
    case = CASES[name]
    m = after(trace_module(case.program, types_of(case), name="attention"), add_masks.run, partition.run)
    called = [e.function for e in expressions(m, "attention") if isinstance(e, FunctionCall)]
    (lax,) = called
    assert ops(m, lax).count("matmul") == 2
    assert "softmax" in ops(m, lax) and "where" not in ops(m, lax)
    arrays = arguments(case)
    wide = [t.double() if t.is_floating_point() else t for t in map(torch.from_numpy, arrays)]
    torch.testing.assert_close(torch.from_numpy(evaluate(m, *arrays)).double(), dense(case, wide), atol=1e-5, rtol=1e-5)


def test_table() -> None:
    row = MaskRow("causal", "", 2, 0, {masks.OURS: 10.0, masks.FLEX: 25.0, masks.DENSE: 20.0}, {})
    assert row.ratio == 2.0
    assert mask_table([row]).rows == [["causal", "2", "0", "10", "25", "20", "2.00"]]


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    """Without a search, the processor's own attention, and what makes masks and terms: a loop or two."""
    case = CASES[name]
    run = mi.compile(case.program, types_of(case), without=("superoptimize",))
    arrays = arguments(case)
    found = torch.from_numpy(run(*arrays))
    torch.testing.assert_close(found, dense(case, [torch.from_numpy(a) for a in arrays]), atol=1e-5, rtol=1e-5)
    code = run.program.functions[run.program.main].code
    libraries = [i.function for i in code if isinstance(i, CallLibrary)]
    assert libraries == ["cpu.attention"] * (1 + (name == "differential"))
    loops = {"ALiBi": 3, "QK norm": 3, "relative bias": 0, "differential": 2}
    assert sum(isinstance(i, CallKernel) for i in code) <= loops.get(name, 1)
