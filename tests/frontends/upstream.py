"""Candidates as the upstream project writes them, made by hand: small sizes, a few programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mirage as mi
from mirage.ir.program import Program

Json = dict[str, Any]
Shape = Sequence[int]
Sizes = Sequence[int | str]


def tensor(guid: int, shape: Shape, **more: Any) -> Json:
    dim = [*shape, *[0] * (4 - len(shape))]
    return {"data_type": 941, "dim": dim, "guid": guid, "layout": "DmemRowMajor", "num_dims": len(shape), **more}


def xyz(*values: int) -> Json:
    return dict(zip("xyz", values, strict=True))


def _rows(shape: Shape) -> list[int]:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return strides


@dataclass
class Block:
    """A block graph that is written operator by operator; methods return the tensor that they make."""

    grid: tuple[int, int, int]
    loop: int
    guids: list[int]
    dimx: int = 64
    accumulators: str = "tb_accum_"
    operators: list[Json] = field(default_factory=list)
    reads: list[Json] = field(default_factory=list)
    stores: list[Json] = field(default_factory=list)

    def new(self, shape: Shape, after: bool) -> Json:
        self.guids[0] += 1
        return tensor(self.guids[0], shape, after_accum=after, smem_offset=0)

    def read(self, x: Json, map_: tuple[int, int, int], loop_dim: int, shape: Shape) -> Json:
        out = self.new(shape, False)
        self.operators.append(
            {
                "op_type": "tb_input_op", "dtensor": x, "input_map": xyz(*map_), "forloop_dim": loop_dim,
                "input_tensors": [], "output_tensors": [out],
            }
        )  # fmt: skip
        self.reads.append(x)
        return out

    def op(self, name: str, *inputs: Json, shape: Shape, after: bool | None = None) -> Json:
        out = self.new(shape, inputs[0]["after_accum"] if after is None else after)
        self.operators.append({"op_type": f"tb_{name}_op", "input_tensors": list(inputs), "output_tensors": [out]})
        return out

    def accumulate(self, mode: str, x: Json, shape: Shape) -> Json:
        out = self.new(shape, True)
        name = f"{self.accumulators}{mode}_op"
        self.operators.append({"op_type": name, "input_tensors": [x], "output_tensors": [out]})
        return out

    def store(self, x: Json, map_: tuple[int, int, int], shape: Shape) -> Json:
        self.guids[0] += 1
        out = tensor(self.guids[0], shape)
        self.operators.append(
            {
                "op_type": "tb_output_op", "dtensor": out, "output_map": xyz(*map_),
                "input_tensors": [x], "output_tensors": [],
            }
        )  # fmt: skip
        self.stores.append(out)
        return out

    def kernel(self) -> Json:
        graph = {
            "grid_dim": xyz(*self.grid), "block_dim": xyz(128, 1, 1), "forloop_range": self.loop,
            "reduction_dimx": self.dimx, "graph_level": "thread_block_graph", "smem_offset": 0,
            "operators": self.operators,
        }  # fmt: skip
        return {
            "op_type": "kn_customized_op", "input_tensors": self.reads, "output_tensors": self.stores, "bgraph": graph
        }  # fmt: skip


@dataclass
class Kernels:
    """A candidate that is written kernel by kernel."""

    operators: list[Json] = field(default_factory=list)
    guids: list[int] = field(default_factory=lambda: [100])

    def input(self, *shape: int) -> Json:
        self.guids[0] += 1
        out = tensor(self.guids[0], shape)
        self.operators.append(
            {
                "op_type": "kn_input_op", "input_map": xyz(-1, -1, -1), "input_strides": _rows(shape),
                "input_tensors": [], "output_tensors": [out],
            }
        )  # fmt: skip
        return out

    def block(self, grid: tuple[int, int, int], loop: int = 1, **more: Any) -> Block:
        return Block(grid, loop, self.guids, **more)

    def op(self, name: str, *inputs: Json, shape: Shape) -> Json:
        self.guids[0] += 1
        out = tensor(self.guids[0], shape)
        self.operators.append({"op_type": f"kn_{name}_op", "input_tensors": list(inputs), "output_tensors": [out]})
        return out

    def finish(self, *results: Json) -> list[Json]:
        for x in results:
            self.operators.append(
                {
                    "op_type": "kn_output_op", "output_map": xyz(-1, -1, -1), "output_strides": [1],
                    "input_tensors": [x], "output_tensors": [],
                }
            )  # fmt: skip
        return self.operators


def write(path: Path, *candidates: list[Json]) -> Path:
    path.write_text(json.dumps(list(candidates)), encoding="utf-8")
    return path


# The three programs of the upstream project's stored results, and a candidate of each.


def norm_program(symbolic: bool = False, sizes: Sizes = (2, 16, 24), eps: float | None = None) -> Program:
    """Rows divided by their root mean square, then a matmul; through `rms_norm` if `eps` is given."""
    b, k, n = ("b", "k", "n") if symbolic else sizes

    def plain(x: Any, w: Any) -> Any:
        return (x / mi.sqrt(mi.mean(mi.square(x), axis=-1, keepdims=True))) @ w

    def fused(x: Any, w: Any) -> Any:
        assert eps is not None
        return mi.rms_norm(x, eps=eps) @ w

    return mi.trace(plain if eps is None else fused, "norm", x=mi.tensor(b, k), w=mi.tensor(k, n))


def norm(grid: int = 4, loop: int = 2, sizes: tuple[int, int, int] = (2, 16, 24), **more: Any) -> list[Json]:
    m, k, n = sizes
    g = Kernels()
    x, w = g.input(m, k), g.input(k, n)
    b = g.block((grid, 1, 1), loop, **more)
    loops = loop > 1
    xs = b.read(x, (-1, -1, -1), 1 if loops else -1, (m, k // loop))
    ws = b.read(w, (1, -1, -1), 0 if loops else -1, (k // loop, n // grid))
    scale = b.accumulate("red_ld_rms", xs, (m, 1))
    product = b.accumulate("nored", b.op("matmul", xs, ws, shape=(m, n // grid)), (m, n // grid))
    out = b.store(b.op("div", product, scale, shape=(m, n // grid)), (1, -1, -1), (m, n))
    g.operators.append(b.kernel())
    return g.finish(out)


def lora_program(symbolic: bool = False, sizes: Sizes = (4, 8, 16, 4)) -> Program:
    m, k, n, r = ("m", "k", "n", "r") if symbolic else sizes

    def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
        return x @ w + (x @ a) @ b

    return mi.trace(lora, x=mi.tensor(m, k), w=mi.tensor(k, n), a=mi.tensor(k, r), b=mi.tensor(r, n))


def lora(grid: int = 4, concat: bool = False, sizes: tuple[int, int, int, int] = (4, 8, 16, 4)) -> list[Json]:
    """Both products in every block, added up, or as one matmul of concats."""
    m, k, n, r = sizes
    g = Kernels()
    x, w, a, b = g.input(m, k), g.input(k, n), g.input(k, r), g.input(r, n)
    t = g.block((grid, 1, 1))
    xs = t.read(x, (-1, -1, -1), -1, (m, k))
    ws = t.read(w, (1, -1, -1), -1, (k, n // grid))
    as_ = t.read(a, (-1, -1, -1), -1, (k, r))
    bs = t.read(b, (1, -1, -1), -1, (r, n // grid))
    low = t.op("matmul", xs, as_, shape=(m, r))
    if concat:
        both = t.op("concat_then_matmul", xs, low, ws, bs, shape=(m, n // grid))
    else:
        products = [t.op("matmul", p, q, shape=(m, n // grid)) for p, q in ((low, bs), (xs, ws))]
        both = t.op("add", *products, shape=(m, n // grid))
    out = t.store(t.accumulate("nored", both, (m, n // grid)), (1, -1, -1), (m, n))
    g.operators.append(t.kernel())
    return g.finish(out)


def attention_program(symbolic: bool = False, sizes: Sizes = (2, 8, 4, 32, 4)) -> Program:
    """Attention without scaling; the symbolic dim of the keys is a multiple of 8."""
    h, s, d, t, e = ("h", "s", "d", "8*t", "e") if symbolic else sizes

    def attention(q: Any, k: Any, v: Any) -> Any:
        p = mi.exp(q @ k)
        return (p / mi.sum(p, axis=-1, keepdims=True)) @ v

    return mi.trace(attention, q=mi.tensor(h, s, d), k=mi.tensor(h, d, t), v=mi.tensor(h, t, e))


def attention(sums: str = "red_ld_sum", second_loop: int = 1, dimx: int = 4) -> list[Json]:
    """Two kernels: the keys in two parts and two iterations each, then the sum of the partial results.

    `sums` is how the first kernel accumulates the exponents: all of a tile ("red_ld_sum"), none ("nored"), or down to
    `dimx` elements ("redtox_ld_sum").
    """
    h, s, d, t, e = 2, 8, 4, 32, 4
    parts, loop = 2, 2
    tile = t // parts // loop
    kept = {"red_ld_sum": 1, "nored": tile, "redtox_ld_sum": dimx}[sums]
    g = Kernels()
    q, k, v = g.input(h, s, d), g.input(h, d, t), g.input(h, t, e)
    b = g.block((h, parts, 4), loop, dimx=dimx)
    qs = b.read(q, (0, -1, 1), -1, (1, s // 4, d))
    ks = b.read(k, (0, 2, -1), 2, (1, d, tile))
    vs = b.read(v, (0, 1, -1), 1, (1, tile, e))
    p = b.op("exp", b.op("matmul", qs, ks, shape=(1, s // 4, tile)), shape=(1, s // 4, tile))
    total = b.accumulate(sums, p, (1, s // 4, kept))
    values = b.accumulate("nored", b.op("matmul", p, vs, shape=(1, s // 4, e)), (1, s // 4, e))
    totals = b.store(total, (0, 2, 1), (h, s, parts * kept))
    sums_of_values = b.store(values, (0, 2, 1), (h, s, parts * e))
    g.operators.append(b.kernel())
    c = g.block((h, 2, 1), second_loop, dimx=dimx)
    dim = 2 if second_loop > 1 else -1
    ts = c.read(totals, (0, 1, -1), dim, (1, s // 2, parts * kept // second_loop))
    ys = c.read(sums_of_values, (0, 1, -1), dim, (1, s // 2, parts * e // second_loop))
    total = c.accumulate("red_ld_sum", ts, (1, s // 2, 1))
    values = c.accumulate("redtox_ld_sum", ys, (1, s // 2, e))
    out = c.store(c.op("div", values, total, shape=(1, s // 2, e)), (0, 1, -1), (h, s, e))
    g.operators.append(c.kernel())
    return g.finish(out)
