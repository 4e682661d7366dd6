"""Gradients are those that PyTorch gives, also where functions bend and where elements are equal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.graph.interpret import run_module

torch = pytest.importorskip("torch")
F = torch.nn.functional

#: a traced function, and the same in PyTorch; x and y are [4, 6] with equal elements and zeros, w is [6, 3], p is positive
CASES: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda x, y: x * y - x / (y * y + 1), lambda x, y: x * y - x / (y * y + 1)),
    (lambda x, w: x @ w, lambda x, w: x @ w),
    (lambda x: mi.exp(mi.sin(x)) + mi.cos(x), lambda x: torch.exp(torch.sin(x)) + torch.cos(x)),
    (lambda p: mi.log(p) + mi.sqrt(p) + mi.rsqrt(p) + p**1.7, lambda p: p.log() + p.sqrt() + p.rsqrt() + p**1.7),
    (lambda x: mi.sigmoid(x) + mi.tanh(x), lambda x: torch.sigmoid(x) + torch.tanh(x)),
    (lambda x: mi.silu(x) + mi.gelu(x), lambda x: F.silu(x) + F.gelu(x)),
    (lambda x: mi.relu(x) + mi.abs(x), lambda x: torch.relu(x) + x.abs()),
    (lambda x: mi.clamp(x, -1, 1), lambda x: x.clamp(-1, 1)),
    (lambda x: mi.maximum(x, 0), lambda x: x.clamp_min(0)),
    (lambda x, y: mi.maximum(x, y) * mi.minimum(x, y), lambda x, y: torch.maximum(x, y) * torch.minimum(x, y)),
    (lambda x: mi.floor(x) * x + mi.sign(x) + mi.round(x), lambda x: x.floor() * x + x.sign() + x.round()),
    (lambda x: mi.softmax(x) * x, lambda x: x.softmax(-1) * x),
    (lambda x: mi.log_softmax(x, 0) * x, lambda x: x.log_softmax(0) * x),
    (lambda x, w: mi.layer_norm(x, w[:, 0], w[:, 1], eps=1e-5), lambda x, w: F.layer_norm(x, (6,), w[:, 0], w[:, 1], 1e-5)),
    (lambda x: mi.rms_norm(x), lambda x: F.rms_norm(x, (6,), eps=1e-6)),
    (lambda x: mi.mean(x, 0) + mi.sum(x, (0, 1)), lambda x: x.mean(0) + x.sum((0, 1))),
    (lambda x: mi.max(x, 1) + mi.min(x, 1), lambda x: x.amax(1) + x.amin(1)),
    (lambda x: mi.prod(x, 1), lambda x: x.prod(1)),
    (lambda x: mi.cumsum(x, 1) + mi.apply("cumprod", x, axis=0), lambda x: x.cumsum(1) + x.cumprod(0)),
    (lambda x: mi.apply("cumlogsumexp", x, axis=1), lambda x: x.logcumsumexp(1)),
    (lambda x: mi.apply("cummax", x, axis=1), lambda x: x.cummax(1)[0]),
    (lambda x, y: mi.where(x > y, x * y, y), lambda x, y: torch.where(x > y, x * y, y)),
    (lambda x: mi.concat([x, x * x], 1)[:, 1::2], lambda x: torch.cat([x, x * x], 1)[:, 1::2]),
    (lambda x: mi.pad(x, (1, 0), (0, 2), 9) ** 2, lambda x: F.pad(x, (0, 2, 1, 0), value=9) ** 2),
    (lambda x: mi.flip(mi.repeat(x, 2, 1), 0), lambda x: x.repeat_interleave(2, 1).flip(0)),
    (lambda x: mi.take(x, mi.constant(np.array([0, 3, 0])), 1), lambda x: x[:, [0, 3, 0]]),
    (
        lambda x, y: mi.scatter(x, mi.constant(np.array([1, 3])), y[:2] * y[:2]),
        lambda x, y: x.index_copy(0, torch.tensor([1, 3]), y[:2] * y[:2]),
    ),
    (lambda x: mi.sort(mi.sin(x), 1), lambda x: x.sin().sort(stable=True, dim=1)[0]),
    (lambda x: mi.topk(mi.sin(x) + x, 2, 1)[0], lambda x: (x.sin() + x).topk(2, 1)[0]),
    (
        lambda x: mi.apply("max_pool", x.reshape(1, 4, 6), kernel=(2, 2), strides=(1, 2), dilations=(1, 1)),
        lambda x: F.max_pool2d(x.reshape(1, 4, 6), (2, 2), (1, 2)),
    ),
    (
        lambda x, w: mi.apply("convolution", x.reshape(1, 2, 12), w.reshape(3, 2, 3), strides=2, dilations=2),
        lambda x, w: F.conv1d(x.reshape(1, 2, 12), w.reshape(3, 2, 3), stride=2, dilation=2),
    ),
    (lambda x, p: mi.apply("atan2", x, p) + mi.apply("power", p, x), lambda x, p: torch.atan2(x, p) + p**x),
    (lambda x, p: mi.apply("hypot", x, p) + mi.apply("fmod", x, p), lambda x, p: torch.hypot(x, p) + torch.fmod(x, p)),
]  # fmt: skip
IDS = [inspect.getsource(f).strip()[:60] for f, _ in CASES]


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    # halves: many are equal, and some are 0
    x, y = (rng.integers(-4, 5, (4, 6)) / 2 for _ in range(2))
    return {"x": x, "y": y, "w": rng.standard_normal((6, 3)), "p": np.abs(x) + 0.3}


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=IDS)
def test_gradients(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    names = list(inspect.signature(ours).parameters)
    given = [arrays()[n] for n in names]
    leaves = [torch.from_numpy(a).requires_grad_() for a in given]
    result = theirs(*leaves)
    cotangent = np.random.default_rng(1).standard_normal(result.shape)
    result.backward(torch.from_numpy(cotangent))
    specs = {n: mi.tensor(*a.shape, dtype="float64") for n, a in zip(names, given, strict=True)}
    specs["cotangent"] = mi.tensor(*cotangent.shape, dtype="float64")
    value, found = run_module(mi.trace_module(mi.vjp(ours), specs), [*given, cotangent])
    np.testing.assert_allclose(value, result.detach().numpy(), rtol=1e-9, atol=1e-12)
    for leaf, g in zip(leaves, found if len(leaves) > 1 else (found,), strict=True):
        np.testing.assert_allclose(g, leaf.grad.numpy(), rtol=1e-8, atol=1e-10)
