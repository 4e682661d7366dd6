"""Superoptimized programs that read inputs of 8 bits, beside the same in float32 and what peers have for them.

`python -m benchmarks.run widened`, or `python -m benchmarks.flow.widened [--only NAME] [--markdown]`. Weights of a gated MLP with
scales of their columns, a cache of keys and values with scales of its rows, and a product of two matrices of bytes. Versions take
turns in a race.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
import typer
from onnx import helper
from torch import Tensor, nn

import mirage as mi
from benchmarks.command import command
from benchmarks.flow.exported import Model, exported, first_line, first_result, in_runtimes, onnx_file
from benchmarks.flow.stored import in_8_bits
from benchmarks.kernels.race import better
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.errors import InputError
from mirage.frontends.proxy import apply
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import TensorType
from mirage.kernels.cpu.model.limits import limit_us, measure_limits, program_cost
from mirage.kernels.cpu.processor import processor
from mirage.search.inputs import random_input
from mirage.settings import num_threads

#: seconds of a superoptimization, and of a race
BUDGET, SECONDS = 15.0, 2.0
#: how many times as many operations on bytes as on float32 processors do at once
BYTES_AT_ONCE = 4
#: a version of ours
OURS, FLOAT = "Mirage int8", "Mirage float32"
#: versions that quantize rows of x in each call, which loses a part in a hundred
COARSER = ("ONNX Runtime int8, dynamic", "ONNX Runtime int8/128")
WIDTH, HIDDEN, HEADS, HEAD = 1024, 4096, 8, 64


def gated(x: Any, w: Any, s: Any, v: Any, t: Any) -> Any:
    """The gated half of an MLP; a scale for each column of its weights."""
    return mi.silu(x @ (mi.cast(w, "float32") * s)) * (x @ (mi.cast(v, "float32") * t))


def attend(q: Any, k: Any, ks: Any, v: Any, vs: Any) -> Any:
    """One query of each head, and what was seen; a scale for each token and head."""
    return mi.softmax(q @ (mi.cast(k, "float32") * ks).mT / 8) @ (mi.cast(v, "float32") * vs)


def product(x: Any, t: Any, w: Any, s: Any) -> Any:
    """A linear layer of quantized rows: a scale for each row of either matrix."""
    return mi.relu(mi.cast(x, "float32") @ mi.cast(w, "float32").mT * s.mT * t)


#: of each program, the same in float32, and the scales of what it stores
PLAIN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    gated: lambda x, w, v: mi.silu(x @ w) * (x @ v),
    attend: lambda q, k, v: mi.softmax(q @ k.mT / 8) @ v,
    product: lambda x, w: mi.relu(x @ w.mT),
}
SCALES: Mapping[Callable[..., Any], Mapping[str, str]] = {
    gated: {"w": "s", "v": "t"}, attend: {"k": "ks", "v": "vs"}, product: {"x": "t", "w": "s"},
}  # fmt: skip


def _int8(*dims: int | str) -> TensorType:
    return mi.tensor(*dims, dtype="int8")


@dataclass(frozen=True)
class Case:
    """A program at one set of sizes; `constants` are its weights, the `peers` what else computes it, of its arrays."""

    name: str
    function: Callable[..., Any]
    specs: Mapping[str, TensorType]
    sizes: Mapping[str, int]
    constants: tuple[str, ...]
    peers: Callable[[Sequence[np.ndarray], Path, Callable[[str], None]], dict[str, Callable[[], Any]]]

    @property
    def scales(self) -> Mapping[str, str]:
        return SCALES[self.function]

    def in_float32(self) -> Program:
        """The program of what its arrays stand for."""
        specs = {n: mi.tensor(*t.shape) for n, t in self.specs.items() if n not in self.scales.values()}
        return mi.trace(PLAIN[self.function], self.function.__name__, **specs)

    def arrays(self) -> list[np.ndarray]:
        """Scales are such that what is stored stands for numbers of about 1."""
        rng = np.random.default_rng(0)
        drawn = {n: random_input(t, self.sizes, rng) for n, t in self.specs.items()}
        return [np.abs(a) / np.float32(64) if n in self.scales.values() else a for n, a in drawn.items()]

    def reals(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the arrays stand for, as the program in float32 takes it."""
        given = dict(zip(self.specs, arrays, strict=True))
        kept = {n: a for n, a in given.items() if n not in self.scales.values()}
        return [a * given[self.scales[n]] if n in self.scales else a for n, a in kept.items()]


def _compiled(run: Callable[..., Tensor], given: Sequence[Tensor]) -> dict[str, Callable[[], Any]]:
    """A function in PyTorch, as it is and compiled."""
    fast = torch.compile(run, dynamic=False)
    return {"PyTorch": partial(run, *given), "torch.compile": partial(fast, *given)}


def _bound(models: Mapping[str, Model], inputs: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    return {name: partial(run, inputs) for name, run in models.items()}


def _gated_peers(arrays: Sequence[np.ndarray], folder: Path, say: Callable[[str], None]) -> dict[str, Callable[[], Any]]:
    x, w, s, v, t = map(torch.from_numpy, arrays)

    def run(x: Tensor, w: Tensor, s: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return F.silu(x @ (w.float() * s)) * (x @ (v.float() * t))

    def packed(x: Tensor, w: Tensor, s: Tensor, v: Tensor, t: Tensor) -> Tensor:
        product = torch._weight_int8pack_mm
        return F.silu(product(x, w, s)) * product(x, v, t)

    class Gated(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter((w * s).mT.contiguous()), nn.Parameter((v * t).mT.contiguous())

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(F.linear(x, self.w)) * F.linear(x, self.v)

    found = _compiled(run, (x, w, s, v, t))
    found["PyTorch, packed int8"] = partial(packed, x, w.mT.contiguous(), s, v.mT.contiguous(), t)
    with torch.inference_mode(False), torch.no_grad(), redirect_stdout(StringIO()):
        path = onnx_file(exported(Gated(), (x,)), folder)
        return found | _bound(in_runtimes(path, num_threads(), say) | in_8_bits(path, folder), (x,))


def _cache_peers(arrays: Sequence[np.ndarray], folder: Path, say: Callable[[str], None]) -> dict[str, Callable[[], Any]]:
    given = tuple(map(torch.from_numpy, arrays))

    def run(q: Tensor, k: Tensor, ks: Tensor, v: Tensor, vs: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k * ks, v * vs)

    def behind(q: Tensor, k: Tensor, ks: Tensor, v: Tensor, vs: Tensor) -> Tensor:
        scores = (q @ k.float().mT) * ks.mT / 8
        return (scores.softmax(-1) * vs.mT) @ v.float()

    class Attention(nn.Module):  # type: ignore[misc]
        def forward(self, q: Tensor, k: Tensor, ks: Tensor, v: Tensor, vs: Tensor) -> Tensor:
            return run(q, k, ks, v, vs)

    q, k, ks, v, vs = given
    found = _compiled(run, given)
    found |= {f"{n}, scales behind": f for n, f in _compiled(behind, given).items()}
    found["PyTorch float32"] = partial(F.scaled_dot_product_attention, q, k * ks, v * vs)
    with torch.inference_mode(False), torch.no_grad(), redirect_stdout(StringIO()):
        return found | _bound(in_runtimes(onnx_file(exported(Attention(), given), folder), num_threads(), say), given)


def _product_peers(arrays: Sequence[np.ndarray], folder: Path, say: Callable[[str], None]) -> dict[str, Callable[[], Any]]:
    x, t, w, s = map(torch.from_numpy, arrays)
    turned = w.mT.contiguous()

    def run(x: Tensor, t: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch.relu(torch._int_mm(x, w).float() * s.mT * t)

    found = {f"{n}, _int_mm": f for n, f in _compiled(run, (x, t, turned, s)).items()}
    found |= {f"{n}, _int_mm turned": f for n, f in _compiled(run, (x, t, w.mT, s)).items()}
    path = folder / "product.onnx"
    onnx.save(_integer_product(x.shape, turned.numpy(), s.mT.numpy()), str(path))
    whole = mi.compile(
        lambda x, t, w, s: mi.relu(apply("quantized_matmul", x, w, s, dtype="float32") * t),
        dict(x=_int8("m", WIDTH), t=mi.tensor("m", 1), w=_int8(WIDTH, HIDDEN), s=mi.tensor(HIDDEN)),
        constants=("w", "s"),
        without=("superoptimize",),
    )
    found["Mirage library"] = partial(whole, *(a.numpy() for a in (x, t, turned, s[:, 0].contiguous())))
    return found | _bound(in_runtimes(path, num_threads(), say), (x, t))


def _integer_product(shape: Sequence[int], w: np.ndarray, s: np.ndarray) -> onnx.ModelProto:
    """The product in ONNX, of which the weights are constants."""
    value, kinds = helper.make_tensor_value_info, onnx.TensorProto
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=kinds.FLOAT),
        helper.make_node("Mul", ["real", "s"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "t"], ["rows"]),
        helper.make_node("Relu", ["rows"], ["y"]),
    ]
    given = [value("x", kinds.INT8, list(shape)), value("t", kinds.FLOAT, [shape[0], 1])]
    result = value("y", kinds.FLOAT, [shape[0], w.shape[1]])
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in (("w", w), ("s", s))]
    graph = helper.make_graph(nodes, "product", given, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"


_WEIGHTS = {"w": _int8(WIDTH, HIDDEN), "s": mi.tensor(HIDDEN), "v": _int8(WIDTH, HIDDEN), "t": mi.tensor(HIDDEN)}
_SCALES = mi.tensor("b", HEADS, "t", 1)
_CACHE = {"k": _int8("b", HEADS, "t", HEAD), "ks": _SCALES, "v": _int8("b", HEADS, "t", HEAD), "vs": _SCALES}
_ROWS = {"x": _int8("m", WIDTH), "t": mi.tensor("m", 1), "w": _int8(HIDDEN, WIDTH), "s": mi.tensor(HIDDEN, 1)}
_MLP = {"x": mi.tensor("m", WIDTH), **_WEIGHTS}
_ATTENTION = {"q": mi.tensor("b", HEADS, 1, HEAD), **_CACHE}
CASES: dict[str, Case] = {
    c.name: c
    for c in (
        *(Case(f"gated MLP, {_rows(m)}", gated, _MLP, {"m": m}, tuple(_WEIGHTS), _gated_peers) for m in (1, 8, 64)),
        *(
            Case(f"cache of {t}, batch {b}", attend, _ATTENTION, {"b": b, "t": t}, (), _cache_peers)
            for b, t in ((1, 4096), (8, 512), (8, 8192))
        ),
        *(Case(f"product of bytes, {_rows(m)}", product, _ROWS, {"m": m}, ("w", "s"), _product_peers) for m in (1, 32, 256)),
    )
}


@dataclass(frozen=True)
class WidenedRow:
    """A program at one set of sizes: minimum and median of calls in us, by version, the error of ours beside float64 as a share
    of the largest element, what ours runs, and the least time that the machine's bandwidth and arithmetic allow.
    """

    case: str
    times: dict[str, tuple[float, float]]
    error: float
    kind: str
    limit_us: float


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[WidenedRow]:
    """A row per case, all if none is named; raises InputError for a name of nothing."""
    if unknown := [n for n in names if n not in CASES]:
        raise InputError(f"no case is named {', '.join(unknown)}; choose from {', '.join(CASES)}")
    torch.set_num_threads(num_threads())
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), inference():
            yield _measured(CASES[name], Path(folder), say)


def _measured(case: Case, folder: Path, say: Callable[[str], None]) -> WidenedRow:
    arrays, limits = case.arrays(), measure_limits(force=True)
    program = mi.trace(case.function, case.function.__name__, **case.specs)
    result = mi.superoptimize(program, sizes=case.sizes, constants=case.constants, budget=BUDGET, cache=False)
    plain = case.in_float32()
    kept = tuple(n for n in case.constants if n in plain.input_names)
    wide = mi.superoptimize(plain, sizes=case.sizes, constants=kept, budget=BUDGET, cache=False)
    reals = case.reals(arrays)
    runs: dict[str, Callable[[], Any]] = {OURS: lambda: result(*arrays), FLOAT: lambda: wide(*reals)}
    runs |= case.peers(arrays, folder, say)
    (exact,) = run_reference(program, arrays, case.sizes, "float64")
    errors = {}
    for name, run in list(runs.items()):
        try:
            run()
            errors[name] = float(np.abs(first_result(run()) - exact).max() / np.abs(exact).max())
        except Exception as e:  # of packages that are no part of this project: anything
            say(f"{case.name}: {name} is left out: {first_line(e)}")
            del runs[name]
    for name, error in errors.items():
        if error > (0.05 if name in COARSER else 1e-4):
            say(f"{case.name}: {name} is left out: its error is {error:.1e}")
            del runs[name]
    times = race(runs, seconds=SECONDS)
    found = {n: (t.min_us, t.median_us) for n, t in times.items()}
    moved, flops = program_cost(result.verifier.axis_program, case.sizes)
    of_bytes = BYTES_AT_ONCE if case.function is product else 1
    limit = limit_us(moved, flops // of_bytes, better(limits, measure_limits(force=True)), processor())
    say(f"{case.name}: " + ", ".join(f"{n} {t:.0f}" for n, (_, t) in found.items()))
    return WidenedRow(case.name, found, errors[OURS], str(result.choice(case.sizes)), limit)


def _peers(r: WidenedRow) -> list[str]:
    """Versions that compute the same; those that quantize rows of x compute something coarser."""
    return [n for n in r.times if n not in (OURS, FLOAT, *COARSER)]


def widened_table(rows: Sequence[WidenedRow]) -> Table:
    """Of each program, ours, ours in float32, and the best peer by median."""
    header = ["program", "ours, us", "of float32", "best peer", "its us", "ratio", "limit, us", "share", "error", "runs"]
    lines = []
    for r in rows:
        best = min(_peers(r), key=lambda n: r.times[n][1])
        (least, median), (_, wide) = r.times[OURS], r.times[FLOAT]
        lines.append([
            r.case, f"{least:,.0f} / {median:,.0f}", f"{wide / median:.2f}", best, "{:,.0f} / {:,.0f}".format(*r.times[best]),
            f"{r.times[best][1] / median:.2f}", f"{r.limit_us:,.0f}", f"{r.limit_us / least:.0%}", f"{r.error:.0e}", r.kind,
        ])  # fmt: skip
    return Table(header, lines)


def section(rows: Sequence[WidenedRow]) -> str:
    """The part of the page of benchmarks."""
    ratios = [min(r.times[n][1] for n in _peers(r)) / r.times[OURS][1] for r in rows]
    gains = [r.times[FLOAT][1] / r.times[OURS][1] for r in rows]
    means = f"best peer over ours {geometric_mean(ratios):.2f}, our float32 over ours {geometric_mean(gains):.2f}"
    return f"{widened_table(rows).markdown()}\n\nGeometric means of medians: {means}."


main = command(
    "Superoptimized programs that read inputs of 8 bits, beside float32 and what peers have for them.",
    "A case, such as 'gated MLP, 1 row'", measure, section, widened_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
