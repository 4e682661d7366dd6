"""Attention by a library function in compiled graphs, where the search has found nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.compiler.context import Context  # noqa: E402
from mirage.compiler.passes import dead_code, lower_libraries, lower_packages  # noqa: E402
from tests.compiler.passes.running import after, main_text, ops  # noqa: E402
from tests.sampled import thinned  # noqa: E402

SDPA = torch.nn.functional.scaled_dot_product_attention



class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def by_hand(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(q @ k.transpose(2, 3) * 0.25 + m, -1) @ v


def with_sinks(q: Any, k: Any, v: Any, m: Any, shifted: bool = True) -> Any:
    scores = torch.cat([q @ k.transpose(2, 3) * 0.25 + m, m[:, :, :, :1].expand(q.shape[0], 4, q.shape[2], 1)], -1)
    if shifted:
        scores = scores - scores.max(-1, keepdim=True).values
    return torch.softmax(scores, -1)[..., :-1] @ v


FORMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "plain": (lambda q, k, v, m: SDPA(q, k, v), True),
    "a mask of numbers": (lambda q, k, v, m: SDPA(q, k, v, m), True),
    "a mask of booleans": (lambda q, k, v, m: SDPA(q, k, v, m > 0), True),
    "causal": (lambda q, k, v, m: SDPA(q, k, v, is_causal=True), True),
    "by hand": (by_hand, True),
    "divided": (lambda q, k, v, m: torch.softmax(q @ k.transpose(2, 3) / 4, -1) @ v, True),
    "heads behind tokens": (lambda q, k, v, m: SDPA(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))), True),
    "heads that share keys": (
        lambda q, k, v, m: SDPA(torch.cat([q[:, :2], q[:, 2:4]], 1), k[:, :2], v[:, :2], m, enable_gqa=True), True
    ),
    "some heads that share keys": (lambda q, k, v, m: SDPA(q[:, :2], k[:, :1], v[:, :1], m, enable_gqa=True), True),
    "capped": (lambda q, k, v, m: torch.softmax(torch.tanh(q @ k.transpose(2, 3) / 4 / 3) * 3 + m, -1) @ v, True),
    "filled where hidden": (lambda q, k, v, m: torch.softmax((q @ k.transpose(2, 3)).masked_fill(m > 0.5, -1e9), -1) @ v, True),
    "filled with infinity": (
        lambda q, k, v, m: torch.softmax(torch.where(m > -3, q @ k.transpose(2, 3) / 4, -torch.inf), -1) @ v, True
    ),
    "of keys alone": (lambda q, k, v, m: torch.softmax(torch.where(m[0, 0, 0] > 0, q @ k.transpose(2, 3), -9.0), -1) @ v, True),
    "filled after a bias and a cap": (
        lambda q, k, v, m: torch.softmax(torch.where(m[0] > 0, torch.tanh(q @ k.transpose(2, 3) / 9) * 3 + m, -1e4), -1) @ v, True
    ),
    "filled before a bias": (
        lambda q, k, v, m: torch.softmax(torch.where(m > 0, q @ k.transpose(2, 3), -9.0) + m, -1) @ v, False
    ),
    "filled with other scores": (lambda q, k, v, m: torch.softmax(torch.where(m > 0, q @ k.transpose(2, 3), m), -1) @ v, False),
    "a mask that has more rows": (
        lambda q, k, v, m: torch.softmax(torch.where(m > 0, q[:, :, :1] @ k.transpose(2, 3), -9.0), -1) @ v, False
    ),
    "sinks": (with_sinks, True),
    "sinks beside large scores": (lambda q, k, v, m: with_sinks(9 * q, k, v, m, shifted=False), True),
    "two sinks": (
        lambda q, k, v, m: torch.softmax(torch.cat([q @ k.transpose(2, 3), q[..., :2]], -1), -1)[..., :-2] @ v, False
    ),
    "a sink in front": (
        lambda q, k, v, m: torch.softmax(torch.cat([q[..., :1], q @ k.transpose(2, 3)], -1), -1)[..., 1:] @ v, False
    ),
    "a key less, and a sink": (
        lambda q, k, v, m: torch.softmax(torch.cat([q @ k.transpose(2, 3), q[..., :1]], -1), -1)[..., :-2] @ v[:, :, 1:], False
    ),
    "capped at 0": (lambda q, k, v, m: torch.softmax(torch.tanh(q @ k.transpose(2, 3)) * 0.0, -1) @ v, False),
    "scores that are read, too": (lambda q, k, v, m: (s := torch.softmax(q @ k.transpose(2, 3), -1), s @ v), False),
    "shares of columns": (lambda q, k, v, m: torch.softmax(q @ k.transpose(2, 3), 2) @ v, False),
    "keys that are columns": (lambda q, k, v, m: torch.softmax(q @ k, -1) @ v, False),
    "of rank 3": (lambda q, k, v, m: torch.softmax(q[0] @ k[0].transpose(1, 2), -1) @ v[0], False),
    "scaled by 0": (lambda q, k, v, m: torch.softmax(q @ k.transpose(2, 3) * 0.0, -1) @ v, False),
}


@pytest.mark.parametrize("name", thinned(FORMS, 3))
def test_programs_call_it(name: str) -> None:
    function, calls = FORMS[name]
    model = Model(function).eval()
    run = mirage.torch.compile(model, background=False, without=("superoptimize",), strict=True)
    torch.manual_seed(0)
    for b, t in ((2, 16), (3, 16), (1, 16)):
        args = [*(torch.randn(b, 4, t, 16) for _ in range(3)), torch.randn(b, 1, t, t)]
        with torch.no_grad():
            found, wanted = run(*args), model(*(a.double() for a in args))
        for f, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True):
            torch.testing.assert_close(f.double(), w, rtol=0, atol=1e-5)
    assert ("cpu.attention" in str(run.programs[0].graph.executable.program)) == calls


def test_the_search_comes_first() -> None:
    text = main_text(
        "u = transpose(k, perm=(0, 1, 3, 2))\ns = matmul(q, u)\nw = softmax(s, axis=3)\nr = matmul(w, v)",
        "q: float32[b, h, t, 16], k: float32[b, h, s, 16], v: float32[b, h, s, 16]",
    )
    context = Context(packages=("torch",))
    before = after(text, lower_packages.run, context=context)
    assert ops(before) == ["transpose", "matmul", "softmax", "matmul"]
    assert ops(after(before, lower_libraries.run, dead_code.run, context=context)) == ["LibraryCall"]
    # programs that came from elsewhere have it, too
    assert ops(after(before, lower_libraries.run, dead_code.run, context=Context())) == ["LibraryCall"]
