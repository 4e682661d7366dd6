"""Quantized networks: errors by scheme, and times beside ONNX Runtime's and PyTorch's int8.

`python -m benchmarks.run quantized`, or `python -m benchmarks.flow.quantized [--only NAME] [--markdown]`. Weights are random, and
so are the data, of which one channel is an outlier: 20 times as large as the others. Scales are chosen from some samples, errors
measured on others. Versions take turns within a race; what else the machine does is in all of them, so that ratios say more than
times.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import typer
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import mirage as mi
from benchmarks.command import command
from benchmarks.graphs.networks import Basic, exported, mobilenet, resnet
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.errors import InputError
from mirage.settings import num_threads
from mirage.torch import compile as compile_model

#: samples to choose scales from and to measure errors on, each of so many
SAMPLES, OF = 4, 4
#: how much larger the outlier channel is than the others
OUTLIER = 20
#: schemes whose errors are measured, by what a table calls them
SCHEMES: Mapping[str, mi.Scheme] = {
    "max": mi.Scheme(),
    "percentile": mi.Scheme(method="percentile", percentile=99.9),
    "kl": mi.Scheme(method="kl"),
    "mse": mi.Scheme(method="mse"),
    "int8": mi.Scheme("int8"),
    "per tensor": mi.Scheme(weights="tensor"),
    "groups of 32": mi.Scheme(weights=32),
    "shifts": mi.Scheme(scales="power of two"),
    "int16": mi.Scheme("int16"),
    "weights alone": mi.Scheme("float32"),
}
#: schemes that are timed
TIMED = ("max", "weights alone")
OURS = ("Mirage", "Mirage int8", "Mirage int8 weights")


class Block(nn.Module):  # type: ignore[misc]
    """A layer of a transformer encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        found = torch.softmax(q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5, -1) @ v
        x = self.first(x + self.out(found.transpose(1, 2).reshape(b, t, d)))
        return self.second(x + self.narrow(torch.nn.functional.gelu(self.wide(x))))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024))


@dataclass(frozen=True)
class Network:
    """A network, the shape of an input without the batch, the dim of channels, and batches that are timed."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    channels: int
    batches: tuple[int, ...]


_NETWORKS = (
    Network("mlp", _mlp, (1024,), -1, (1, 64)),
    Network("transformer", lambda: nn.Sequential(*(Block(256, 4) for _ in range(2))), (128, 256), -1, (1, 8)),
    Network("resnet-18", partial(resnet, Basic, (2, 2, 2, 2), (64, 128, 256, 512)), (3, 112, 112), 1, (1,)),
    Network("mobilenet-v2", partial(mobilenet, 4), (3, 112, 112), 1, (1,)),
)
NETWORKS: Mapping[str, Network] = {n.name: n for n in _NETWORKS}


@dataclass(frozen=True)
class QuantizedRow:
    """A network at one batch: relative L2 errors of results by scheme, and of ONNX Runtime's; times in ms by version.

    Times are pairs of the minimum and the median. `products` are computed with whole numbers, of so many `layers` with rules.
    """

    network: str
    batch: int
    products: int
    stays: dict[str, int]
    errors: dict[str, float]
    times: dict[str, tuple[float, float]]


def _data(network: Network, count: int, batch: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        x = rng.standard_normal((batch, *network.shape)).astype(np.float32)
        np.moveaxis(x, network.channels, 0)[0] *= OUTLIER
        found.append(x)
    return found


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """The samples as ONNX Runtime asks for them."""

    def __init__(self, name: str, data: Sequence[np.ndarray]) -> None:
        self._left = iter([{name: x} for x in data])

    def get_next(self) -> Any:
        return next(self._left, None)


def _session(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = num_threads(), 3
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def _static_of_torch(model: nn.Module, data: Sequence[np.ndarray]) -> Callable[[np.ndarray], Any]:
    """PyTorch's int8 with scales from the data: the quantized modules of its x86 backend."""
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (torch.from_numpy(data[0]),))
    for x in data:
        prepared(torch.from_numpy(x))
    found = convert_fx(prepared)
    return lambda x: found(torch.from_numpy(x))


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain, seconds: float = 1.0) -> Iterator[QuantizedRow]:
    """A row per network and batch; `names` are of networks, all if there are none. Raises InputError for a name of nothing."""
    if unknown := [n for n in names if n not in NETWORKS]:
        raise InputError(f"no network is named {', '.join(unknown)}; choose from {', '.join(NETWORKS)}")
    torch.set_num_threads(num_threads())
    for network in NETWORKS.values():
        if not names or network.name in names:
            with warnings.catch_warnings(action="ignore"), inference(), tempfile.TemporaryDirectory() as folder:
                yield from _measured(network, Path(folder), seconds, say)


def _measured(network: Network, folder: Path, seconds: float, say: Callable[[str], None]) -> Iterator[QuantizedRow]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = network.make().eval().requires_grad_(False)
    plain, prepared, static, dynamic = (folder / f"{n}.onnx" for n in ("plain", "prepared", "static", "dynamic"))
    written = exported(model, torch.zeros(3, *network.shape), {0: "batch"})
    onnx.save(written, plain)
    name = written.graph.input[0].name
    data, others = _data(network, SAMPLES, OF, 0), _data(network, SAMPLES, OF, 1)
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    quantize_static(str(prepared), str(static), _Reader(name, data), quant_format=QuantFormat.QDQ, per_channel=True)
    quantize_dynamic(str(prepared), str(dynamic), per_channel=True)
    wanted = [model(torch.from_numpy(x)).numpy() for x in others]

    def error(run: Callable[[np.ndarray], Any]) -> float:
        found = [np.asarray(run(x), np.float64) - y for x, y in zip(others, wanted, strict=True)]
        return float(np.sqrt(sum(np.square(d).sum() for d in found) / sum(np.square(y, dtype=np.float64).sum() for y in wanted)))

    options: Any = {"budget": 10, "cache": False}
    made, compiled = {}, {}
    for scheme, chosen in SCHEMES.items():
        # errors need no search, and no export of their own
        own = options if scheme in TIMED else {"without": ("superoptimize",), "cache": False}
        source = model if scheme in TIMED else written
        made[scheme] = mi.quantize(source, data, scheme=chosen)
        compiled[scheme] = mi.compile(made[scheme], **own)
        say(f"{network.name}: {scheme}")
    whole = compile_model(model, background=False, **options)
    of_torch = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    runs: dict[str, Callable[[np.ndarray], Any]] = {
        OURS[0]: lambda x: whole(torch.from_numpy(x)), OURS[1]: compiled["max"], OURS[2]: compiled["weights alone"],
        "ONNX Runtime": _session(plain), "ONNX Runtime int8": _session(static),
        "ONNX Runtime int8, dynamic": _session(dynamic), "PyTorch": lambda x: model(torch.from_numpy(x)),
        "PyTorch int8": _static_of_torch(model, data),
        "PyTorch int8, dynamic": lambda x: of_torch(torch.from_numpy(x)),
    }  # fmt: skip
    errors = {scheme: error(run) for scheme, run in compiled.items()}
    errors |= {n: error(runs[n]) for n in runs if n.partition(", ")[0] in ("ONNX Runtime int8", "PyTorch int8")}
    report = made["max"].report
    stays = {op: n for op, why, n in report.stays if op in ("matmul", "convolution")}
    for batch in network.batches:
        (x,) = _data(network, 1, batch, 2)
        for run in runs.values():
            # the first call of some compiles
            run(x)
        times = race({n: partial(run, x) for n, run in runs.items()}, seconds=seconds)
        found = {n: (t.min_us / 1e3, t.median_us / 1e3) for n, t in times.items()}
        say(f"{network.name}, batch {batch}: " + ", ".join(f"{n} {t:.3f}" for n, (_, t) in found.items()))
        yield QuantizedRow(network.name, batch, report.whole, stays, errors, found)


def error_table(rows: Sequence[QuantizedRow]) -> Table:
    """Relative L2 errors of results, of every network once."""
    first = {r.network: r for r in reversed(rows)}
    names = list(dict.fromkeys(r.network for r in rows))
    lines = [[s, *(f"{first[n].errors[s]:.2%}" for n in names)] for s in rows[0].errors]
    lines.append(["products of whole numbers", *(str(first[n].products) for n in names)])
    stays = [", ".join(f"{k} {op}" for op, k in first[n].stays.items()) or "none" for n in names]
    return Table(["scheme", *names], [*lines, ["products that stay float", *stays]])


def time_table(rows: Sequence[QuantizedRow]) -> Table:
    """Minimum and median of each version, in milliseconds."""
    # not every peer runs every network
    names = dict.fromkeys(n for r in rows for n in r.times)
    lines = [[n, *("{:.3f} / {:.3f}".format(*r.times[n]) if n in r.times else "" for r in rows)] for n in names]
    return Table(["minimum / median, ms", *(f"{r.network}, batch {r.batch}" for r in rows)], lines)


def section(rows: Sequence[QuantizedRow]) -> str:
    """The part of the page of benchmarks."""
    return f"{error_table(rows).markdown()}\n\n{time_table(rows).markdown()}"


main = command(
    "Errors of quantized networks by scheme, and times beside ONNX Runtime's and PyTorch's int8.",
    "A network", measure, section, error_table, time_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
