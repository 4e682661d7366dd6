"""Products of rows with constant weights: ours, with the weight as it lies and in panels, against torch's.

`python -m benchmarks.run products`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.tables import Table
from mirage.kernels.cpu.launch.linear import matmul
from mirage.kernels.cpu.launch.panels import Panels, pack
from mirage.kernels.profile import settle
from mirage.settings import num_threads
from mirage.torch.threads import on_torch_threads

#: depth, columns, and whether the weight is stored [columns, depth] as `nn.Linear` has it: layers of a Llama and of a GPT-2
SHAPES = ((2048, 8192, True), (8192, 2048, True), (768, 50257, True), (768, 3072, False), (3072, 768, False))
#: rows of decoding steps, of batches of them, and of prompts
ROWS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512)
#: bytes of the weights that take turns: far more than caches hold
_BYTES = 600 << 20
_ROUNDS = 4
OURS, PANELS, PACKED, PLAIN = "ours", "ours, panels", "oneDNN, packed weights", "ATen"


@dataclass(frozen=True)
class ProductRow:
    """Medians in microseconds, of weights that no cache holds; the faster one of ours reads so many `gigabytes` of a weight in a
    second, and makes so many `gigaflops`.
    """

    rows: int
    depth: int
    columns: int
    transposed: bool
    times: dict[str, float]

    @property
    def ratio(self) -> float:
        """The time of the faster one of torch's over that of ours."""
        return min(self.times[PACKED], self.times[PLAIN]) / self._ours

    @property
    def gigabytes(self) -> float:
        return 4e-3 * self.depth * self.columns / self._ours

    @property
    def gigaflops(self) -> float:
        return 2e-3 * self.rows * self.depth * self.columns / self._ours

    @property
    def _ours(self) -> float:
        return min(self.times[OURS], self.times[PANELS])


def measure(counts: Sequence[int] = ROWS) -> Iterator[ProductRow]:
    """A row for every shape and number of rows; results are compared first."""
    torch.set_num_threads(num_threads())
    rng = np.random.default_rng(0)
    for depth, columns, transposed in SHAPES:
        shape = (columns, depth) if transposed else (depth, columns)
        weights = [rng.standard_normal(shape, np.float32) for _ in range(max(2, _BYTES // (4 * depth * columns)))]
        packed = [pack(w, right=(1, 0) if transposed else ()) for w in weights]
        # oneDNN packs for so many rows: the packed form is one of the fastest for all numbers of rows but 1
        stored = (torch.from_numpy(w if transposed else w.T.copy()) for w in weights)
        others = [torch.ops.mkldnn._reorder_linear_weight(w, 128) for w in stored]
        for rows in counts:
            x = rng.standard_normal((rows, depth), np.float32)
            runs = _runs(x, weights, packed, others, transposed)
            with on_torch_threads():
                times = {name: 1e6 * t for name, t in _medians(runs, len(weights)).items()}
            yield ProductRow(rows, depth, columns, transposed, times)


def _runs(
    x: np.ndarray, weights: Sequence[np.ndarray], packed: Sequence[Panels], others: Sequence[torch.Tensor], transposed: bool
) -> dict[str, Callable[[int], object]]:
    """What computes the product with the weight of a number."""
    wide = weights[0].T if transposed else weights[0]
    out, given = np.empty((len(x), wide.shape[1]), np.float32), torch.from_numpy(x)
    tensors = [torch.from_numpy(w).t() if transposed else torch.from_numpy(w) for w in weights]
    right = (1, 0) if transposed else ()
    for form in ([], packed[:1]):
        matmul([x, weights[0], *form], [out], right=right, packed=bool(form))
        np.testing.assert_allclose(out, x.astype(np.float64) @ wide, rtol=0, atol=1e-2)
    return {
        OURS: lambda k: matmul([x, weights[k]], [out], right=right),
        PANELS: lambda k: matmul([x, weights[k], packed[k]], [out], right=right, packed=True),
        PACKED: lambda k: torch.ops.mkldnn._linear_pointwise(given, others[k], None, "none", [], ""),
        PLAIN: lambda k: torch.mm(given, tensors[k], out=torch.from_numpy(out)),
    }


def _medians(runs: dict[str, Callable[[int], object]], weights: int) -> dict[str, float]:
    """Seconds per call, the runs taking turns with all weights."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    turns = random.Random(0)
    for _ in range(_ROUNDS):
        for name in turns.sample(list(runs), len(runs)):
            settle()
            runs[name](0)
            for k in range(1, weights):
                start = time.perf_counter()
                runs[name](k)
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in found.items()}


def product_table(rows: Sequence[ProductRow]) -> Table:
    lines = []
    for r in rows:
        times = [f"{t:,.0f}" for t in r.times.values()]
        stored = "transposed" if r.transposed else ""
        rates = [f"{r.ratio:.2f}", f"{r.gigabytes:.1f}", f"{r.gigaflops:.0f}"]
        lines.append([str(r.rows), f"{r.depth} x {r.columns}", stored, *times, *rates])
    return Table(["rows", "weight", "stored", *(f"{n}, us" for n in rows[0].times), "ratio", "GB/s", "GFLOP/s"], lines)
