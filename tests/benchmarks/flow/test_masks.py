"""The attentions that are measured beside FlexAttention: most are one subprogram of the search, and all are right."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    arrays = arguments(case, masks.TOKENS)
    wide = [t.double() if t.is_floating_point() else t for t in map(torch.from_numpy, arrays)]
    torch.testing.assert_close(torch.from_numpy(evaluate(m, *arrays)).double(), dense(case, wide), atol=1e-5, rtol=1e-5)


def test_table() -> None:
    row = MaskRow("causal", 4096, "", 2, 0, {masks.OURS: 10.0, masks.FLEX: 25.0, masks.DENSE: 20.0}, {})
    assert row.ratio == 2.0
    assert mask_table([row]).rows == [["causal", "4,096", "2", "0", "10", "25", "20", "2.00"]]


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    """Without a search, the processor's own attention, and what makes masks and terms: a loop or two."""
    case = CASES[name]
    run = mi.compile(case.program, types_of(case), without=("superoptimize",))
    arrays = arguments(case, masks.TOKENS)
    found = torch.from_numpy(run(*arrays))
    torch.testing.assert_close(found, dense(case, [torch.from_numpy(a) for a in arrays]), atol=1e-5, rtol=1e-5)
    code = run.program.functions[run.program.main].code
    libraries = [i.function for i in code if isinstance(i, CallLibrary)]
    assert libraries == ["cpu.attention"] * (1 + (name == "differential"))
    loops = {"ALiBi": 3, "QK norm": 3, "relative bias": 0, "differential": 2}
    assert sum(isinstance(i, CallKernel) for i in code) <= loops.get(name, 1)


def test_pages_of_heads_that_share_keys() -> None:
    """As servers have them: pages of tokens before heads, several queries, and none but the last keys of each sequence unseen."""
    group, shared, width, page = 3, 2, 8, 4

    def step(q: Any, keys: Any, values: Any, table: Any, lengths: Any) -> Any:
        b, n = q.shape[0], q.shape[2]
        k, v = (mi.reshape(mi.take(t, table, axis=0), (b, table.shape[1] * page, shared, width)) for t in (keys, values))
        k, v = (mi.repeat(mi.transpose(t, (0, 2, 1, 3)), group, axis=1) for t in (k, v))
        last = mi.reshape(lengths, (b, 1, 1, 1)) - n + mi.reshape(mi.arange(0, n), (1, 1, n, 1))
        s = mi.where(mi.arange(0, k.shape[2]) <= last, q @ mi.transpose(k, (0, 1, 3, 2)), -1e9)
        return mi.softmax(s, axis=-1) @ v

    pool = mi.tensor("p", page, shared, width)
    specs = {
        "q": mi.tensor("b", group * shared, "n", width), "keys": pool, "values": pool,
        "table": mi.tensor("b", "m", dtype="int64"), "lengths": mi.tensor("b", dtype="int64"),
    }  # fmt: skip
    run = mi.compile(step, specs, without=("superoptimize",))
    code = run.program.functions[run.program.main].code
    assert [i.function for i in code if isinstance(i, CallLibrary)] == ["cpu.attention"]
    assert sum(isinstance(i, CallKernel) for i in code) == 1, "the mask alone"
    rng = np.random.default_rng(0)
    for b, n, m in ((1, 1, 4), (3, 5, 7)):
        q, table = rng.standard_normal((b, group * shared, n, width), np.float32), rng.integers(0, 9, (b, m))
        keys, values = (rng.standard_normal((9, page, shared, width), np.float32) for _ in range(2))
        lengths = rng.integers(n, m * page + 1, b)
        k, v = (
            t[table].reshape(b, -1, shared, width).transpose(0, 2, 1, 3).repeat(group, 1).astype(float) for t in (keys, values)
        )
        seen = np.arange(m * page) <= (lengths[:, None] - n + np.arange(n))[:, None, :, None]
        s = np.where(seen, q @ k.swapaxes(2, 3), -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        np.testing.assert_allclose(run(q, keys, values, table, lengths), e / e.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-5)
