"""Mixtures of experts: a dense sum over experts becomes one over those that a router chose."""

from __future__ import annotations

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import route_experts
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, evaluate, ops, random_arrays

TEXT = """
def main(
    x: float32[n, 6], router: float32[6, 5], w1: float32[5, 6, 7], b1: float32[5, 1, 7], w2: float32[5, 7, 4], b2: float32[4]
) -> {result}:
    with dataflow():
        logits = matmul(x, router)
        best = topk(logits, k={k}, axis=-1, largest=True)
        top = item[0](best)
        chosen = item[1](best)
        zeros = full(shape=(n, 5), value={zero}, dtype='float32')
        values = softmax(top, axis=-1)
        put = put_along_axis(zeros, {places}, values, axis=-1, add=False)
        tokens = reshape(x, shape=(1, n, 6))
        up = matmul(tokens, w1)
        biased = add(up, b1)
        active = silu(biased)
        two = constant(value=2)
        more = mul(two, active)
        down = matmul(more, w2)
        found = add(down, b2)
        turned = transpose(put, perm=(1, 0))
        shares = reshape(turned, shape=(5, n, 1))
        weighted = mul({product})
        r = sum(weighted, axes=(0,), keepdims=False)
        {more}
    return {returned}
"""
PLAIN = {
    "k": "2", "zero": "0", "places": "chosen", "product": "found, shares", "more": "", "returned": "r", "result": "float32[n, 4]",
}  # fmt: skip


def text(**changes: str) -> str:
    return TEXT.format(**{**PLAIN, **changes})


@pytest.mark.parametrize("n", [0, 1, 2, 9])
@pytest.mark.parametrize("product", ["found, shares", "shares, found"])
def test_tokens_are_sent_to_the_chosen_experts(n: int, product: str) -> None:
    m = after(text(product=product), route_experts.run)
    assert ops(m).count("grouped_matmul") == 2 and ops(m).count("sum") == 2
    arrays = random_arrays(n, (n, 6), (6, 5), (5, 6, 7), (5, 1, 7), (5, 7, 4), (4,))
    np.testing.assert_allclose(evaluate(m, *arrays), evaluate(parse_module(text()), *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        # three of five are not few
        {"k": "3"},
        {"zero": "1"},
        # these may be one place twice
        {"places": "order", "more_before": "order = argsort(top, axis=-1, descending=False)"},
        # what another one reads is computed for all experts anyway
        {"returned": "s", "result": "Tuple[float32[n, 4], float32[5, n, 7]]", "more": "s = (r, active)"},
    ],
    ids=["many", "no zeros", "places that may be equal", "read by others"],
)
def test_what_stays(changes: dict[str, str]) -> None:
    before = changes.pop("more_before", None)
    source = text(**changes)
    if before:
        source = source.replace("zeros = full", f"{before}\n        zeros = full")
    assert "grouped_matmul" not in ops(after(source, route_experts.run))


def test_rows_that_depend_on_each_other_stay() -> None:
    source = text().replace("active = silu(biased)", "active = softmax(biased, axis=1)")
    assert "grouped_matmul" not in ops(after(source, route_experts.run))


def test_compiled() -> None:
    run = mi.compile(parse_module(text()), without=("superoptimize",), constants=["w1", "w2"])
    arrays = random_arrays(3, (11, 6), (6, 5), (5, 6, 7), (5, 1, 7), (5, 7, 4), (4,))
    wanted = evaluate(parse_module(text()), *arrays)
    np.testing.assert_allclose(run(*arrays), wanted, rtol=1e-5, atol=1e-6)
    assert "cpu.grouped_matmul" in str(run.program)
