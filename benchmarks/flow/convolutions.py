"""Convolutions as programs of the search: what it finds, with windows read where they lie, against libraries of convolutions.

`python -m benchmarks.flow.convolutions [--only NAME] [--markdown]`. Each layer is superoptimized as a program, and compiled
without a search, which has our own library; PyTorch, `torch.compile`, ONNX Runtime and OpenVINO run the same layer.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

import mirage as mi
from benchmarks.command import command
from benchmarks.fairness import Inputs, Referee
from benchmarks.flow.exported import Model, in_runtimes
from benchmarks.flow.networks import BATCHES, Network, dims_of, fixed, made, written
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table, mean_text
from benchmarks.timing import race
from mirage.errors import InputError, VerificationError
from mirage.ir.axes import to_axes
from mirage.kernels.cpu.model.limits import measure_limits, program_cost
from mirage.settings import num_threads

#: what the search found, and the layer compiled without a search
FOUND, OWN = "found", "own library"
#: seconds of a search
BUDGET = 10.0


class Layer(nn.Module):  # type: ignore[misc]
    """A convolution of so many channels with its bias, and what a function makes of the result and of the input."""

    def __init__(self, inputs: int, outputs: int, kernel: int, after: Callable[..., Any], **how: Any) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, **how)
        self.after = after

    def forward(self, x: Tensor) -> Any:
        return self.after(F.relu, self.convolution(x), x)


class Parallel(nn.Module):  # type: ignore[misc]
    """Two convolutions of one tensor, one of which gates the other."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv2d(inputs, outputs, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        return self.left(x) * torch.sigmoid(self.right(x))


@dataclass(frozen=True)
class Case:
    """A layer: as a module, and as a program of its input and the module's parameters; channels and side of the input."""

    name: str
    make: Callable[[], nn.Module]
    program: Callable[..., Any]
    channels: int
    side: int


def relu(f: Callable[..., Any], y: Any, x: Any) -> Any:
    return f(y)


def residual(f: Callable[..., Any], y: Any, x: Any) -> Any:
    return f(y + x)


def max_pooled(f: Callable[..., Any], y: Any, x: Any) -> Any:
    return F.max_pool2d(f(y), 2) if isinstance(y, Tensor) else mi.max_pool(f(y), (2, 2))


def average_pooled(f: Callable[..., Any], y: Any, x: Any) -> Any:
    return F.avg_pool2d(f(y), 2) if isinstance(y, Tensor) else mi.average_pool(f(y), (2, 2))


def _layer(
    name: str, inputs: int, outputs: int, kernel: int, side: int, after: Callable[..., Any] = relu, **how: Any
) -> Case:
    def program(x: Any, w: Any, bias: Any) -> Any:
        given = {"strides": how.get("stride", 1), "dilations": how.get("dilation", 1), "groups": how.get("groups", 1)}
        y = mi.convolution(x, w, padding=how.get("padding", 0), **given)
        return after(mi.relu, y + mi.reshape(bias, (outputs, 1, 1)), x)

    return Case(name, partial(Layer, inputs, outputs, kernel, after, **how), program, inputs, side)


def _parallel(x: Any, v: Any, a: Any, w: Any, b: Any) -> Any:
    left, right = (mi.convolution(x, k, padding=1) + mi.reshape(c, (64, 1, 1)) for k, c in ((v, a), (w, b)))
    return left * mi.sigmoid(right)


_CASES = (
    _layer("3 by 3", 64, 64, 3, 56, padding=1),
    _layer("with residual", 128, 128, 3, 28, residual, padding=1),
    _layer("max pooling", 32, 64, 3, 56, max_pooled, padding=1),
    _layer("average pooling", 32, 64, 3, 56, average_pooled, padding=1),
    _layer("small", 16, 16, 3, 16, padding=1),
    _layer("steps of 2", 64, 128, 3, 56, padding=1, stride=2),
    _layer("first layer", 3, 64, 7, 128, padding=3, stride=2),
    _layer("pointwise", 64, 256, 1, 28),
    _layer("dilated", 64, 64, 3, 28, padding=2, dilation=2),
    _layer("groups", 128, 128, 3, 28, padding=1, groups=4),
    _layer("depthwise", 96, 96, 3, 28, padding=1, groups=96),
    Case("two of one tensor", partial(Parallel, 32, 64), _parallel, 32, 28),
)
#: what is measured, by name
CASES: Mapping[str, Case] = {c.name: c for c in _CASES}


@dataclass(frozen=True)
class ConvolutionRow:
    """A layer at one batch. `times` are medians of calls, in microseconds, by version; `limit` is what the processor takes for as
    many operations as the program has.

    `kernels` are those of the found program, 0 where NumPy was as fast. `refused` are versions with wrong results, and why.
    """

    layer: str
    batch: int
    times: dict[str, float]
    limit: float
    kernels: int
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def peer(self) -> float:
        """The time of the fastest version of others."""
        return min(t for n, t in self.times.items() if n not in (FOUND, OWN))


def measure(
    names: Sequence[str] = (), say: Callable[[str], None] = complain, seconds: float = 1.0
) -> Iterator[ConvolutionRow]:
    """A row per layer and batch; `names` are of layers, all if there are none.

    Raises InputError for a name of nothing, VerificationError where our results are not right.
    """
    if unknown := [n for n in names if n not in CASES]:
        raise InputError(f"no layer is named {', '.join(unknown)}; choose from {', '.join(CASES)}")
    torch.set_num_threads(num_threads())
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            yield from _measured(CASES[name], Path(folder), seconds, say)


def _measured(case: Case, folder: Path, seconds: float, say: Callable[[str], None]) -> Iterator[ConvolutionRow]:
    network = Network(case.name, "layer", case.make, (case.channels, case.side, case.side))
    model, exact = made(network), made(network).double()
    parameters = [p.numpy() for p in model.parameters()]
    names = list(signature(case.program).parameters)[1:]
    specs = {n: mi.tensor(*p.shape) for n, p in zip(names, parameters, strict=True)}
    traced = mi.trace(case.program, x=mi.tensor("b", *network.shape), **specs)
    begun = time.perf_counter()
    found = mi.superoptimize(
        traced, sizes=[{"b": b} for b in BATCHES], constants=names, budget=BUDGET * len(BATCHES), cache=False
    )
    say(f"{case.name}: {found.best} after {time.perf_counter() - begun:.1f} s")
    path = written(network, model, folder)
    own: Any = mi.compile(path, sizes={name: BATCHES[0] for name in dims_of(path)}, without=("superoptimize",))
    with inference():
        peers: dict[str, Model] = {"PyTorch": lambda given: model(*given)} | in_runtimes(path, num_threads(), say)
        for batch in BATCHES:
            x = np.random.default_rng(0).standard_normal((batch, *network.shape), np.float32)
            tensors = [torch.from_numpy(x)]
            runs: dict[str, Callable[[], object]] = {FOUND: partial(found, x, *parameters), OWN: partial(own, x)}
            versions = {"torch.compile": fixed(model, tensors[0]), **peers}
            runs |= {name: partial(run, tensors) for name, run in versions.items()}

            def yardstick(given: list[Tensor] = tensors) -> tuple[list[np.ndarray], list[np.ndarray]]:
                return [exact(given[0].double()).numpy()], [model(*given).numpy()]

            referee = Referee(Inputs([x], [True], seed=0), yardstick)
            referee.examine_all(runs)
            times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
            for name in (FOUND, OWN):
                if reason := referee.refused.get(name):
                    raise VerificationError(f"{case.name}, batch {batch}, {name}: {reason}")
            medians = {n: t.median_us for n, t in times.items() if n not in referee.refused}
            _, flops = program_cost(to_axes(traced), {"b": batch})
            candidate = found.choice({"b": batch}).candidate
            kernels = 0 if candidate is None else len(candidate.graph.kernels)
            limit = flops / measure_limits().gflops * 1e-3
            say(f"{case.name}, batch {batch}: " + ", ".join(f"{n} {t:.0f}" for n, t in medians.items()))
            yield ConvolutionRow(case.name, batch, medians, limit, kernels, dict(referee.refused))


def convolution_table(rows: Sequence[ConvolutionRow]) -> Table:
    """A line per row, and one of geometric means of times over what was found."""
    names = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = []
    for r in rows:
        times = [f"{r.times[n]:,.0f}" if n in r.times else "" for n in names]
        ratios = [f"{r.peer / r.times[n]:.2f}" for n in (FOUND, OWN)]
        lines.append([r.layer, str(r.batch), str(r.kernels), *times, f"{r.limit:,.0f}", *ratios])
    means = [mean_text([r.times[n] / r.times[FOUND] for r in rows if n in r.times]) for n in names]
    ratios = [mean_text([r.peer / r.times[n] for r in rows]) for n in (FOUND, OWN)]
    lines.append(["mean of times over found", "", "", *means, "", *ratios])
    columns = [*(f"{n}, us" for n in names), "limit, us", "ratio of found", "ratio of own library"]
    return Table(["layer", "batch", "kernels", *columns], lines)


def section(rows: Sequence[ConvolutionRow]) -> str:
    """The part of the page of benchmarks."""
    return convolution_table(rows).markdown()


main = command(
    "Race what a search finds for convolutions against libraries of convolutions.",
    "A layer ('3 by 3')", measure, section, convolution_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
