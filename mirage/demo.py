"""The demonstration: two attention programs against NumPy and, where it is installed, PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import mirage.api as api
from mirage.drawing.show import show
from mirage.errors import InputError, MirageError
from mirage.folders import save_file, write_whole
from mirage.frontends.attention import gqa_decode, qknorm_attention
from mirage.frontends.spec import TensorFunction
from mirage.ir.codec import decode, encode, read_json
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing, interleave
from mirage.progress import bars
from mirage.results.cpu.result import Superoptimized
from mirage.search.inputs import random_inputs
from mirage.settings import cache_dir

#: seconds that each comparison takes
COMPARISON_S = 1.5
#: query heads that share one head of keys and values in gqa_decode
GROUP = 8


@dataclass(frozen=True)
class Comparison:
    """The timings of a result and of what a user would run instead, by name; when they were `measured` (UTC), and of `what`: the
    version that ran, the libraries and the machine.
    """

    what: str
    measured: str
    timings: Mapping[str, Timing]


@dataclass(frozen=True)
class Shown:
    """A program of the demonstration: its result, the file of its drawing if its best version is a graph, and its comparison,
    which may be of an `earlier` run.
    """

    function: TensorFunction
    result: Superoptimized
    drawing: Path | None
    comparison: Comparison
    earlier: bool

    @property
    def timings(self) -> Mapping[str, Timing]:
        return self.comparison.timings

    @property
    def median_us(self) -> dict[str, float]:
        """Median latencies in microseconds."""
        return {name: t.median_us for name, t in self.timings.items()}

    def table(self) -> Table:
        """The latencies next to each other."""
        when = f", measured by an earlier run at {self.comparison.measured} UTC" * self.earlier
        table = Table(title=f"{self.function.name}, float32{when}", title_justify="left")
        for name in ("version", "min us", "median us", "mirage is faster by"):
            table.add_column(name, justify="left" if name == "version" else "right")
        mine = self.timings["mirage"]
        for name, t in self.timings.items():
            table.add_row(name, f"{t.min_us:,.0f}", f"{t.median_us:,.0f}", f"{t.median_us / mine.median_us:.2f}")
        return table


def run_demo(err: Console, budget: float, drawings: Path) -> Iterator[Shown]:
    """Superoptimize both programs, draw the best graphs into a folder, and compare; progress is shown on a console."""
    try:
        drawings.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"--drawings {drawings}: no folder can be made there ({e.strerror}); choose another") from None
    for function in (qknorm_attention, gqa_decode):
        with bars(err) as say:
            result = api.superoptimize(function, budget=budget, progress=say)
        path = drawings / f"{function.name}.svg"
        drawing = show(result.best).svg
        if drawing is not None:
            save_file(path, drawing)
        what = _compared(result)
        kept = _kept(function, what)
        compared = kept or Comparison(what, f"{datetime.now(UTC):%Y-%m-%d %H:%M}", comparison(function, result))
        if kept is None:
            _keep(function, compared)
        yield Shown(function, result, path if drawing is not None else None, compared, earlier=kept is not None)


def _compared(result: Superoptimized) -> str:
    """All that the figures of a comparison are of: another version, library or machine has others."""
    best, libraries = result.best, {name: _version(name) for name in ("mirage-superoptimizer", "numpy", "torch")}
    text = "\n".join(map(str, (best, best.graph, best.schedule, best.timing, libraries, result.target, result.threads)))
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _file(function: TensorFunction) -> Path:
    return cache_dir() / f"demo-{function.name}.json"


def _keep(function: TensorFunction, compared: Comparison) -> None:
    """Keep a comparison for the next run; where the folder cannot be written, that measures again."""
    with suppress(OSError):
        file = _file(function)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, json.dumps(encode(compared)))


def _kept(function: TensorFunction, what: str) -> Comparison | None:
    """The comparison of an earlier run, if it was of the same; None where there is none, or its file is damaged."""
    try:
        found = decode(Comparison, read_json(_file(function)), "comparison")
    except MirageError:
        return None
    return found if found.what == what and "mirage" in found.timings else None


def comparison(function: TensorFunction, result: Superoptimized) -> dict[str, Timing]:
    """Latencies of the result and of what a user would run instead, in one interleaved run."""
    inputs = random_inputs(result.program, result.sizes, 1)
    library = LibraryProgram(result.verifier.axis_program)
    runs: dict[str, Callable[[], object]] = {"mirage": lambda: result(*inputs)}
    runs["NumPy"] = lambda: result.reference(inputs, result.sizes)
    # without repeated keys, and the transposes that BLAS does without
    runs["NumPy, in its best form"] = lambda: library(inputs, result.sizes)
    runs |= torch_versions(function.name, inputs)
    return interleave(runs, seconds=COMPARISON_S, spinning=runs.keys() - {"mirage"})


def torch_versions(name: str, inputs: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """PyTorch eager: as written, and in its best form; nothing where it is not installed."""
    try:
        import torch
        import torch.nn.functional as F
    except ImportError:
        return {}
    q, k, v = (torch.from_numpy(x) for x in inputs)
    if name == "qknorm_attention":

        def norm(x: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(x, (x.shape[-1],), eps=1e-6)

        return {
            "PyTorch eager": lambda: torch.softmax(norm(q) @ norm(k).mT / 8.0, -1) @ v,
            "PyTorch SDPA": lambda: F.scaled_dot_product_attention(norm(q), norm(k), v),
        }

    def folded() -> object:
        # the group's queries as rows of one head, which is how eager avoids repeating keys and values
        rows = q.reshape(q.shape[0], k.shape[1], GROUP * q.shape[2], q.shape[3])
        return F.scaled_dot_product_attention(rows, k, v).reshape(q.shape)

    return {
        "PyTorch eager": lambda: torch.softmax(
            q @ k.repeat_interleave(GROUP, 1).mT / q.shape[-1] ** 0.5, -1
        ) @ v.repeat_interleave(GROUP, 1),
        "PyTorch SDPA, enable_gqa": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "PyTorch SDPA, group folded": folded,
    }  # fmt: skip
