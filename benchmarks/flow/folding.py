"""What folding gains and scales into weights brings: two layers as of Llama and of BERT, from PyTorch, with and without it.

`python -m benchmarks.flow.folding [--rounds N] [--searched]`. Both are called in turn, and the least and the median of the times
are printed, with the largest difference from float64 by the largest element.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn
from torch.nn import functional

import mirage.torch

#: batch, tokens
SIZES = ((1, 1), (1, 16), (1, 128), (8, 128))


class Norm(nn.Module):  # type: ignore[misc]
    """The norm of Llama, with a random gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(width) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class Layer(nn.Module):  # type: ignore[misc]
    """A layer with norms before each half; gated, without biases and causal as in Llama, or with all biases and GELU."""

    def __init__(self, width: int, heads: int, inner: int, *, llama: bool) -> None:
        super().__init__()
        self.heads, self.llama = heads, llama

        def linear(n: int, m: int) -> nn.Linear:
            return nn.Linear(n, m, bias=not llama)

        self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, inner), linear(inner, width)
        self.gate = linear(width, inner) if llama else None
        self.norms = nn.ModuleList(Norm(width) if llama else nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        y = self.norms[0](x)
        q, k, v = (m(y).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.llama)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, width))
        y = self.norms[1](x)
        up = self.up(y)
        inner = functional.gelu(up) if self.gate is None else functional.silu(self.gate(y)) * up
        return x + self.down(inner)


def model(*, llama: bool, width: int = 512, layers: int = 2) -> nn.Module:
    """Layers with random gains and offsets."""
    torch.manual_seed(0)
    found = nn.Sequential(*(Layer(width, width // 64, 3 * width, llama=llama) for _ in range(layers)))
    for m in found.modules():
        if isinstance(m, nn.LayerNorm):
            nn.init.normal_(m.weight, 1, 0.25)
            nn.init.normal_(m.bias)
    return found.eval()


def in_turn(runs: Sequence[Callable[[], Any]], rounds: int) -> list[tuple[float, float]]:
    """The least and the median microseconds of each, called in turn."""
    seconds: list[list[float]] = [[] for _ in runs]
    for k in range(rounds):
        for i in range(len(runs)):
            # whoever follows the other finds its data in the caches: the order changes
            j = (i + k) % len(runs)
            start = time.perf_counter()
            runs[j]()
            seconds[j].append(time.perf_counter() - start)
    return [(min(s) * 1e6, float(np.median(s)) * 1e6) for s in seconds]


def main(
    rounds: Annotated[int, typer.Option(help="Calls of each.")] = 400,
    searched: Annotated[bool, typer.Option(help="Search the subprograms, too, for 30 s each.")] = False,
) -> None:
    """Print a table."""
    print("| model | batch | tokens | folded, us: least, median | not folded, us: least, median | error, folded | not folded |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    left_out = () if searched else ("superoptimize",)
    for llama in (True, False):
        for b, t in SIZES:
            module = model(llama=llama)
            x = torch.randn(b, t, 512)
            with torch.no_grad():
                wide = model(llama=llama).double()(x.double())
                compiled = [
                    mirage.torch.compile(module, without=(*left_out, *without), budget=30.0)
                    for without in ((), ("fold",))
                ]
                runs = [partial(c, x) for c in compiled]
                errors = [float((run().double() - wide).abs().max() / wide.abs().max()) for run in runs]
                in_turn(runs, 20)
                times = in_turn(runs, rounds if b * t < 512 else rounds // 4)
            cells = [f"{least:.0f}, {median:.0f}" for least, median in times] + [f"{e:.1e}" for e in errors]
            print(f"| {'Llama' if llama else 'BERT'} | {b} | {t} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
