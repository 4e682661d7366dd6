"""Convolutional and recurrent networks as ONNX models, against what else runs such a file, at small and at usual widths.

`python -m benchmarks.flow.networks [--only NAME] [--markdown]`. PyTorch exports each network once; our compiler, ONNX Runtime
and OpenVINO take that file, `torch.compile` and our own compiler for PyTorch the network. Versions take turns within a race, so
that all of them share what else the machine does: ratios say more than times.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import typer
from torch import Tensor, nn
from torch._inductor import config as inductor

import mirage as mi
import mirage.torch
from benchmarks.command import command
from benchmarks.fairness import Inputs, Referee
from benchmarks.flow.exported import Model, in_runtimes
from benchmarks.graphs.networks import (
    Basic,
    Bottleneck,
    Recurrent,
    UNet,
    dqn,
    exported,
    mobilenet,
    resnet,
    vgg,
)
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table, mean_text
from benchmarks.timing import race
from mirage.errors import InputError, VerificationError
from mirage.settings import num_threads

#: our program of the ONNX file, and that of the network itself
OURS, FROM_TORCH = "Mirage", "Mirage from PyTorch"
#: the batch that a network is exported at, of which it takes any, and those at which it is measured
EXPORTED, BATCHES = 3, (1, 8)


@dataclass(frozen=True)
class Network:
    """A network, the shape of an input without the batch, and whether its widths are "small" or those in "base" use."""

    name: str
    size: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.name} {self.size}"


def _both(
    name: str, small: Callable[[], nn.Module], base: Callable[[], nn.Module], *shapes: tuple[int, ...]
) -> list[Network]:
    return [Network(name, "small", small, shapes[0]), Network(name, "base", base, shapes[-1])]


_NETWORKS = (
    *_both(
        "resnet-18", partial(resnet, Basic, (2, 2, 2, 2), (8, 16, 32, 64)),
        partial(resnet, Basic, (2, 2, 2, 2), (64, 128, 256, 512)), (3, 64, 64), (3, 128, 128),
    ),
    *_both(
        "resnet-50", partial(resnet, Bottleneck, (3, 4, 6, 3), (32, 64, 128, 256)),
        partial(resnet, Bottleneck, (3, 4, 6, 3), (256, 512, 1024, 2048)), (3, 64, 64), (3, 128, 128),
    ),
    *_both("mobilenet-v2", mobilenet, partial(mobilenet, 4), (3, 64, 64), (3, 128, 128)),
    *_both("vgg-16", vgg, partial(vgg, 8), (3, 32, 32), (3, 32, 32)),
    *_both("dqn", partial(dqn, 1, 49), partial(dqn, 4, 49), (4, 84, 84)),
    *_both("u-net", UNet, partial(UNet, 4), (3, 32, 32), (3, 64, 64)),
    *_both(
        "lstm", partial(Recurrent, "LSTM", 2, True, 32, 64), partial(Recurrent, "LSTM", 2, True, 256, 256), (32, 32), (32, 256),
    ),
    *_both(
        "gru", partial(Recurrent, "GRU", 2, False, 32, 64), partial(Recurrent, "GRU", 2, False, 256, 256), (32, 32), (32, 256),
    ),
)  # fmt: skip
#: what is measured, by name
NETWORKS: Mapping[str, Network] = {n.label: n for n in _NETWORKS}


@dataclass(frozen=True)
class NetworkRow:
    """A network at one batch. Times are medians of calls, in milliseconds, of `peers` by name, and `ours`: of the ONNX file, and
    `from_torch`, where that is right.

    `compile_s` are the seconds of our compilation, for all batches. `refused` are peers whose results are not right, and why.
    """

    network: str
    size: str
    batch: int
    peers: dict[str, float]
    ours: float
    compile_s: float
    refused: dict[str, str] = field(default_factory=dict)
    from_torch: float | None = None

    @property
    def label(self) -> str:
        """The name of the network in `NETWORKS`."""
        return f"{self.network} {self.size}"

    @property
    def ratio(self) -> float:
        """The best peer's time over ours: above 1, ours is faster."""
        return min(self.peers.values()) / self.ours


def measure(
    names: Sequence[str] = (), say: Callable[[str], None] = complain, seconds: float = 1.0
) -> Iterator[NetworkRow]:
    """A row per network and batch; `names` are of networks, all if there are none.

    Raises InputError for a name of nothing, VerificationError where our results are not right.
    """
    known = {word for n in NETWORKS.values() for word in (n.name, n.label)}
    if unknown := [n for n in names if n not in known]:
        raise InputError(f"no network is named {', '.join(unknown)}; choose from {', '.join(sorted(known))}")
    torch.set_num_threads(num_threads())
    for network in NETWORKS.values():
        if not names or network.name in names or network.label in names:
            yield from _measured(network, seconds, say)


def made(network: Network) -> nn.Module:
    """The network with its weights, the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network.make().eval().requires_grad_(False)


def written(network: Network, model: nn.Module, folder: Path) -> Path:
    """The file that PyTorch writes of a network, for batches of any size."""
    path = folder / "model.onnx"
    onnx.save(exported(model, torch.zeros(EXPORTED, *network.shape), {0: "batch"}), path)
    return path


def _measured(network: Network, seconds: float, say: Callable[[str], None]) -> Iterator[NetworkRow]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        model, exact = made(network), made(network).double()
        path = written(network, model, Path(folder))
        start = time.perf_counter()
        mine: Any = mi.compile(path, sizes={name: BATCHES[0] for name in dims_of(path)}, without=("superoptimize",))
        compiled = time.perf_counter() - start
        say(f"{network.label}: compiled in {compiled:.1f} s")
        if mine.programs[0].imported.fallback:
            raise VerificationError(f"{network.label}: {dict(mine.programs[0].imported.fallback)} in the reference evaluator")
        with inference():
            peers: dict[str, Model] = {"PyTorch": lambda given: model(*given)} | in_runtimes(path, num_threads(), say)
            own = mirage.torch.compile(model, background=False, without=("superoptimize",))
            for batch in BATCHES:
                x = rng.standard_normal((batch, *network.shape), np.float32)
                static = fixed(model, torch.from_numpy(x))
                versions = {FROM_TORCH: lambda given: own(*given), "torch.compile": static, **peers}
                yield _raced(network, x, mine, versions, (model, exact), compiled, seconds, say)


def fixed(model: nn.Module, x: Tensor) -> Model:
    """The network compiled by PyTorch for these sizes alone, its weights constants."""
    torch.compiler.reset()
    compiled = torch.compile(model, dynamic=False)
    with inductor.patch({"freezing": True, "fx_graph_cache": False}):
        compiled(x)
    return lambda given: compiled(*given)


def dims_of(path: Path) -> list[str]:
    """The names of the dims of a model's inputs."""
    inputs = onnx.load(path).graph.input
    return [d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param]


def _raced(
    network: Network, x: np.ndarray, mine: Callable[..., Any], peers: Mapping[str, Model], models: tuple[nn.Module, nn.Module],
    compiled: float, seconds: float, say: Callable[[str], None],
) -> NetworkRow:  # fmt: skip
    given: list[Tensor] = [torch.from_numpy(x)]
    runs: dict[str, Callable[[], object]] = {OURS: lambda: mine(x)}
    runs |= {name: partial(run, given) for name, run in peers.items()}
    model, exact = models
    referee = Referee(Inputs([x], [True], seed=0), lambda: ([exact(given[0].double()).numpy()], [model(*given).numpy()]))
    referee.examine_all(runs)
    times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
    if reason := referee.refused.get(OURS):
        raise VerificationError(f"{network.label}, batch {len(x)}: {reason}")
    found = {n: t.median_us / 1e3 for n, t in times.items() if n not in referee.refused}
    own, from_torch = found.pop(OURS), found.pop(FROM_TORCH, None)
    row = NetworkRow(network.name, network.size, len(x), found, own, compiled, dict(referee.refused), from_torch)
    say(f"{network.label}, batch {len(x)}: {own:.2f} ms, " + ", ".join(f"{n} {t:.2f}" for n, t in found.items()))
    return row


def network_table(rows: Sequence[NetworkRow]) -> Table:
    """A line per row, and one of geometric means of peers' times over ours."""
    names = list(dict.fromkeys(n for r in rows for n in r.peers))
    lines = []
    for r in rows:
        times = [f"{r.peers[n]:.2f}" if n in r.peers else "" for n in names]
        from_torch = "" if r.from_torch is None else f"{r.from_torch:.2f}"
        own = [f"{r.ours:.2f}", from_torch, f"{r.ratio:.2f}", f"{r.compile_s:.1f}"]
        lines.append([r.label, str(r.batch), *times, *own])
    means = [mean_text([r.peers[n] / r.ours for r in rows if n in r.peers]) for n in names]
    from_torch = mean_text([r.from_torch / r.ours for r in rows if r.from_torch is not None])
    lines.append(["mean of times over ours", "", *means, "1.00", from_torch, mean_text([r.ratio for r in rows]), ""])
    columns = [*(f"{n}, ms" for n in names), "ours, ms", "ours from PyTorch, ms", "ratio", "compile, s"]
    return Table(["network", "batch", *columns], lines)


def section(rows: Sequence[NetworkRow]) -> str:
    """The part of the page of benchmarks."""
    return network_table(rows).markdown()


main = command(
    "Race ONNX models of convolutional and recurrent networks against PyTorch, torch.compile, ONNX Runtime and OpenVINO.",
    "A network, or one of a size ('dqn base')", measure, section, network_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
