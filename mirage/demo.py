"""The demonstration: two attention programs against NumPy and, where it is installed, PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import mirage.api as api
from mirage.drawing.show import show
from mirage.errors import InputError
from mirage.folders import save_file
from mirage.frontends.attention import gqa_decode, qknorm_attention
from mirage.frontends.spec import TensorFunction
from mirage.kernels.profile import Timing, interleave
from mirage.progress import bars
from mirage.results.cpu.result import Superoptimized
from mirage.search.accuracy import random_inputs

#: seconds that each comparison takes
COMPARISON_S = 1.5
#: query heads that share one head of keys and values in gqa_decode
GROUP = 8


@dataclass(frozen=True)
class Shown:
    """A program of the demonstration: its result, the file of its drawing if its best version is a graph, and the timings of the
    result and of what a user would run instead, by name.
    """

    function: TensorFunction
    result: Superoptimized
    drawing: Path | None
    timings: Mapping[str, Timing]

    @property
    def median_us(self) -> dict[str, float]:
        """Median latencies in microseconds."""
        return {name: t.median_us for name, t in self.timings.items()}

    def table(self) -> Table:
        """The latencies next to each other."""
        table = Table(title=f"{self.function.name}, float32", title_justify="left")
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
        yield Shown(function, result, path if drawing is not None else None, comparison(function, result))


def comparison(function: TensorFunction, result: Superoptimized) -> dict[str, Timing]:
    """Latencies of the result and of what a user would run instead, in one interleaved run."""
    inputs = random_inputs(result.program, result.sizes, 1)
    runs: dict[str, Callable[[], object]] = {"mirage": lambda: result(*inputs)}
    runs["NumPy"] = lambda: result.reference(inputs, result.sizes)
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
