"""Forward and backward of layers: our gradients, compiled for all sizes, beside autograd under `torch.compile` and in eager mode.

`python -m benchmarks.flow.gradients [--only NAME] [--budget SECONDS] [--json] [--markdown]`. Each version computes the gradients
of the sum of the result times given numbers, by all other inputs. Versions take turns, with the same threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer

import mirage as mi
from benchmarks.fairness import Inputs, Referee
from benchmarks.peers.peers import complain
from benchmarks.tables import Table, emit
from benchmarks.timing import race
from mirage.cli_shared import AsJson
from mirage.errors import InputError, VerificationError
from mirage.settings import num_threads

OURS, COMPILED, EAGER = "Mirage", "torch.compile", "PyTorch"
#: seconds of a compilation
BUDGET = 30.0


@dataclass(frozen=True)
class Case:
    """The sum of a layer's result times its last input `g`: our program and PyTorch's, the types of the inputs, and the sizes."""

    ours: Callable[..., Any]
    torch: Callable[..., Any]
    specs: Mapping[str, Any]
    sizes: Mapping[str, int]


def _norm(x: Any, w: Any, g: Any) -> Any:
    return (mi.rms_norm(x, w) * g).sum()


def _mlp(x: Any, w: Any, u: Any, v: Any, g: Any) -> Any:
    return ((mi.silu(x @ w) * (x @ u)) @ v * g).sum()


def _attention(q: Any, k: Any, v: Any, g: Any) -> Any:
    return (mi.softmax(q @ k.mT / 8) @ v * g).sum()


def _torch_norm(x: Any, w: Any, g: Any) -> Any:
    return (torch.rms_norm(x, w.shape, w, 1e-6) * g).sum()


def _torch_mlp(x: Any, w: Any, u: Any, v: Any, g: Any) -> Any:
    return ((torch.nn.functional.silu(x @ w) * (x @ u)) @ v * g).sum()


def _torch_attention(q: Any, k: Any, v: Any, g: Any) -> Any:
    return (torch.nn.functional.scaled_dot_product_attention(q, k, v) * g).sum()


CASES: Mapping[str, Case] = {
    "norm": Case(
        _norm, _torch_norm, {"x": mi.tensor("n", 1024), "w": mi.tensor(1024), "g": mi.tensor("n", 1024)}, {"n": 512}
    ),
    "gated MLP": Case(
        _mlp,
        _torch_mlp,
        {
            "x": mi.tensor("n", 256),
            "w": mi.tensor(256, 512),
            "u": mi.tensor(256, 512),
            "v": mi.tensor(512, 256),
            "g": mi.tensor("n", 256),
        },
        {"n": 128},
    ),
    "attention": Case(_attention, _torch_attention, dict.fromkeys("qkvg", mi.tensor("h", "n", 64)), {"h": 8, "n": 256}),
}


@dataclass(frozen=True)
class GradientRow:
    """A layer with medians of a call, in microseconds, by version; `ratio` is the fastest other one's time over ours."""

    name: str
    times: dict[str, float]
    refused: dict[str, str]

    @property
    def ratio(self) -> float:
        return min(t for name, t in self.times.items() if name != OURS) / self.times[OURS]


def back(function: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    """PyTorch's gradients, by all but the last array."""
    leaves = [t.detach().requires_grad_() for t in arrays[:-1]]
    return list(torch.autograd.grad(function(*leaves, arrays[-1]), leaves))


def ours(case: Case, **options: Any) -> Callable[..., Any]:
    """Our gradients, by all but the last input."""
    return mi.compile(mi.grad(case.ours, wrt=list(case.specs)[:-1]), case.specs, **options)


def arrays_of(case: Case, sizes: Mapping[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(t.bind(sizes)).astype(np.float32) for t in case.specs.values()]


def measure(names: Sequence[str] = (), budget: float = BUDGET, seconds: float = 2.0) -> Iterator[GradientRow]:
    """A row per layer; raises InputError for a name of none, and VerificationError where our gradients are not right."""
    if unknown := [n for n in names if n not in CASES]:
        raise InputError(f"--only {unknown[0]!r} is no layer; they are {', '.join(CASES)}")
    torch.set_num_threads(num_threads())
    for name in names or CASES:
        case = CASES[name]
        arrays = arrays_of(case, case.sizes)
        tensors = [torch.from_numpy(a) for a in arrays]
        torch.compiler.reset()
        run = ours(case, sizes=[dict(case.sizes)], budget=budget)
        runs: dict[str, Callable[[], Any]] = {
            OURS: partial(run, *arrays),
            COMPILED: partial(back, torch.compile(case.torch, dynamic=True), tensors),
            EAGER: partial(back, case.torch, tensors),
        }

        def yardstick(case: Case = case, tensors: list[Any] = tensors) -> tuple[list[np.ndarray], list[np.ndarray]]:
            exact = back(case.torch, [t.double() for t in tensors])
            return [t.numpy() for t in exact], [t.numpy() for t in back(case.torch, tensors)]

        referee = Referee(Inputs(arrays, [True] * len(arrays), seed=0), yardstick)
        referee.examine_all(runs)
        if OURS in referee.refused:
            raise VerificationError(f"{name}: {referee.refused[OURS]}")
        times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
        found = {n: t.median_us for n, t in times.items() if n not in referee.refused}
        complain(f"{name}: " + ", ".join(f"{n} {t:.0f} us" for n, t in found.items()))
        yield GradientRow(name, found, dict(referee.refused))


def gradient_table(rows: Sequence[GradientRow]) -> Table:
    versions = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = [
        [r.name, *(f"{r.times[n]:,.0f}" if n in r.times else "" for n in versions), f"{r.ratio:.2f}"] for r in rows
    ]
    return Table(["layer", *(f"{n}, us" for n in versions), "ratio"], lines)


def main(
    only: Annotated[list[str] | None, typer.Option(help="Layers by name.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds of a compilation.")] = BUDGET,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a page.")] = False,
) -> None:
    """Race forward and backward of layers."""
    rows = list(measure(only or (), budget))
    if markdown:
        print(gradient_table(rows).markdown())
    else:
        emit(rows, as_json, gradient_table)


if __name__ == "__main__":
    typer.run(main)
