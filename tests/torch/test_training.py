"""Training: losses, step by step, are those of PyTorch, as are all gradients; what cannot be compiled runs in eager mode."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from tests.torch.compared import compiled, counted  # noqa: E402

F = torch.nn.functional
TOKENS, WIDTH = 12, 8


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer of a transformer with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, 2, -1).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A small transformer that gives the loss of its next tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def by_dynamo(model: Any) -> Callable[..., Any]:
    return compiled(model, dynamic=True)


def by_export(model: Any) -> Callable[..., Any]:
    return mirage.torch.compile(model, without=("superoptimize",), background=False, strict=True)


def train(model: Any, run: Callable[..., Any], make: Callable[..., Any], steps: int) -> list[float]:
    """The losses of so many steps on sequences of repeated tokens, of two lengths."""
    numbers = torch.Generator().manual_seed(1)
    optimizer = make(model.parameters())
    losses = []
    for k in range(steps):
        tokens = torch.randint(0, TOKENS, (3, 3), generator=numbers).repeat(1, 3)[:, : 8 + k % 2].contiguous()
        optimizer.zero_grad()
        loss = run(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_training(layers: int, how: Callable[[Any], Any], make: Callable[..., Any], steps: int) -> None:
    torch.manual_seed(0)
    model = Language(layers)
    same = copy.deepcopy(model)
    found = train(model, how(model), make, steps)
    wanted = train(same, same, make, steps)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-3, atol=1e-4)
    assert wanted[-1] < wanted[0]


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 3e-3)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@pytest.mark.slow
def test_a_transformer_learns_as_in_pytorch() -> None:
    # operators one by one: to compile the kernels takes long
    compare_training(1, lambda model: compiled(model, dynamic=True, without=("superoptimize", "fuse")), adam, 8)
    assert counted() == {"gradients": 1}


@pytest.mark.slow
@pytest.mark.parametrize("how", [by_dynamo, by_export])
@pytest.mark.parametrize("make", [adam, sgd])
def test_two_hundred_steps(how: Callable[[Any], Any], make: Callable[..., Any]) -> None:
    compare_training(2, how, make, 200)


def gradients(run: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """The result and the gradients of its sum by all arguments."""
    given = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    torch.manual_seed(2)
    found = run(*given)
    found.sum().backward()
    return [found.detach(), *(a.grad for a in given if a.is_floating_point())]


def check(fn: Callable[..., Any], run: Callable[..., Any], *args: Any) -> None:
    for a, b in zip(gradients(run, args), gradients(fn, args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _written(x: Any, y: Any) -> Any:
    z = x * 2
    z.mul_(y)
    return z.relu_() + z[0]


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "what is written to": (_written, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
    "no gradient inside": (lambda x: x * torch.sigmoid(x).detach(), lambda: (torch.randn(5),)),
    "dropout": (lambda x: F.dropout(x, 0.5) * x, lambda: (torch.randn(4, 4),)),
    "an index": (lambda x, i: x[i] * 2, lambda: (torch.randn(5, 3), torch.tensor([0, 4, 0]))),
    "ties": (lambda x: x.amax(1) + torch.maximum(x[:, 0], x[:, 1]), lambda: (torch.ones(3, 4),)),
}
SLOW: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "a convolution": (
        lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, stride=2, padding=1)), 2),
        lambda: (torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)),
    ),
    "a batch norm": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True) ** 2,
        lambda: (torch.randn(6, 3), torch.randn(3)),
    ),
    "a sort": (lambda x: torch.sort(x, 1)[0] * torch.arange(4.0), lambda: (torch.randn(3, 4),)),
    "a cumulative sum": (lambda x: torch.cumsum(x.exp(), 1).log(), lambda: (torch.randn(3, 4),)),
    "an attention with a mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        lambda: (*torch.randn(3, 2, 2, 4, 4), torch.zeros(4, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_gradients_of_functions(name: str) -> None:
    fn, make = (FUNCTIONS | SLOW)[name]
    torch.manual_seed(0)
    check(fn, compiled(fn), *make())
    assert counted() == {"gradients": 1}


@pytest.mark.slow
def test_a_loss_over_all_tokens_of_any_sizes() -> None:
    """The backward graph gets tensors of b*t rows, but neither b nor t."""
    torch.manual_seed(0)
    layers = torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Linear(WIDTH, 9), torch.nn.ReLU(), torch.nn.Linear(9, TOKENS)
    model = torch.nn.Sequential(*layers)
    same = copy.deepcopy(model)

    def loss(net: Any, tokens: Any, labels: Any) -> Any:
        return F.cross_entropy(net(tokens).view(-1, TOKENS), labels.view(-1))

    run = compiled(lambda tokens, labels: loss(model, tokens, labels), dynamic=True)
    for b, t in ((2, 7), (3, 9), (4, 5)):
        tokens, labels = (torch.randint(0, TOKENS, (b, t)) for _ in range(2))
        for net, found in ((model, run(tokens, labels)), (same, loss(same, tokens, labels))):
            net.zero_grad()
            found.backward()
        for p, q in zip(model.parameters(), same.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4)
    assert counted() == {"gradients": 1}


def test_a_backward_graph_that_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mirage.torch.dynamo as dynamo

    whole = dynamo._graph_of_aten
    graphs = []

    def failing(graph: Any, *rest: Any) -> Any:
        graphs.append(graph)
        if len(graphs) == 2:
            raise ValueError("no such luck")
        return whole(graph, *rest)

    monkeypatch.setattr(dynamo, "_graph_of_aten", failing)
    with caplog.at_level(logging.WARNING):
        check(torch.sin, compiled(torch.sin, strict=False), torch.randn(3))
    assert sum("runs in eager mode: ValueError: no such luck" in m for m in caplog.messages) == 1
    assert len(graphs) == 2


def test_a_change_of_a_weight_is_seen() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    run = compiled(lambda x: (x * weight).sum())
    for _ in range(3):
        weight.grad = None
        found = run(torch.ones(3))
        found.backward()
        assert found.item() == weight.sum().item()
        with torch.no_grad():
            weight.mul_(2)
