"""Attention with the masks and scores that FlexAttention's users write: what became of each program, and its time.

`python -m benchmarks.run masks`. Ours are plain programs, compiled for all sizes; PyTorch's are `torch.compile(flex_attention)`,
with a block mask where there is a mask, and `scaled_dot_product_attention` with what is added to the scores as a tensor.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mirage as mi
from benchmarks.fairness import Inputs, Referee
from benchmarks.peers.peers import inference
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.settings import num_threads

#: sequences, heads of keys, tokens and width that are measured, and heads of queries per head of keys in groups
BATCH, HEADS, TOKENS, WIDTH, GROUP = 1, 8, 512, 64, 4
#: tokens of a window and a prefix, documents, and the bound of soft-capped scores
WINDOW, PREFIX, DOCUMENTS, CAP = 128, 100, 4, 30
OURS, FLEX, DENSE = "Mirage", "FlexAttention", "SDPA with a tensor"


def scores(q: Any, k: Any) -> tuple[Any, Any, Any]:
    """The scores, and the positions of queries [n, 1] and of keys [n]."""
    n = q.shape[-2]
    return q @ mi.transpose(k, (0, 1, 3, 2)) * WIDTH**-0.5, mi.reshape(mi.arange(0, n), (n, 1)), mi.arange(0, n)


def attend(s: Any, v: Any) -> Any:
    return mi.softmax(s, axis=-1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores(q, k)
    return attend(mi.where(j <= i, s, -1e9), v)


def window(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores(q, k)
    return attend(mi.where((j <= i) & (i - j < WINDOW), s, -1e9), v)


def prefix(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores(q, k)
    return attend(mi.where((j <= i) | (j < PREFIX), s, -1e9), v)


def document(q: Any, k: Any, v: Any, documents: Any) -> Any:
    s, i, j = scores(q, k)
    same = mi.reshape(documents, (*documents.shape, 1)) == documents
    return attend(mi.where((j <= i) & same, s, -1e9), v)


def padding(q: Any, k: Any, v: Any, seen: Any) -> Any:
    s, _, _ = scores(q, k)
    return attend(mi.where(seen, s, -1e9), v)


def alibi(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    s, i, j = scores(q, k)
    away = mi.reshape(slopes, (slopes.shape[0], 1, 1)) * mi.cast(j - i, "float32")
    return attend(mi.where(j <= i, s + away, -1e9), v)


def relative(q: Any, k: Any, v: Any, bias: Any) -> Any:
    s, _, _ = scores(q, k)
    return attend(s + bias, v)


def soft_cap(q: Any, k: Any, v: Any) -> Any:
    s, i, j = scores(q, k)
    return attend(mi.where(j <= i, mi.tanh(s / CAP) * CAP, -1e9), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    k, v = mi.repeat(k, GROUP, axis=1), mi.repeat(v, GROUP, axis=1)
    return causal(q, k, v)


def normed(q: Any, k: Any, v: Any) -> Any:
    return causal(mi.rms_norm(q), mi.rms_norm(k), v)


#: what FlexAttention calls mask_mod and score_mod, of a sequence, head, query and key
Mask = Callable[[Any, Any, Any, Any], Any]
Score = Callable[[Any, Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class Case:
    """One attention: our program, its further inputs by name, and the same as functions of positions for PyTorch."""

    program: Callable[..., Any]
    mask: Callable[..., Mask] | None = None
    score: Callable[..., Score] | None = None
    more: Mapping[str, Callable[[np.random.Generator], np.ndarray]] = field(default_factory=dict)
    types: Mapping[str, Any] = field(default_factory=dict)
    group: int = 1
    norm: bool = False


def _causal(*_: Any) -> Mask:
    return lambda b, h, i, j: j <= i


CASES: Mapping[str, Case] = {
    "causal": Case(causal, _causal),
    "sliding window": Case(window, lambda: lambda b, h, i, j: (j <= i) & (i - j < WINDOW)),
    "prefix": Case(prefix, lambda: lambda b, h, i, j: (j <= i) | (j < PREFIX)),
    "documents": Case(
        document, lambda d: lambda b, h, i, j: (j <= i) & (d[i] == d[j]),
        more={"documents": lambda rng: np.sort(rng.integers(0, DOCUMENTS, TOKENS))},
        types={"documents": mi.tensor("n", dtype="int64")},
    ),
    "padding": Case(
        padding, lambda seen: lambda b, h, i, j: seen[j],
        more={"seen": lambda rng: np.arange(TOKENS) < TOKENS * 3 // 4}, types={"seen": mi.tensor("n", dtype="bool")},
    ),
    "ALiBi": Case(
        alibi, _causal, lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (j - i),
        more={"slopes": lambda rng: 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)}, types={"slopes": mi.tensor("h")},
    ),
    "relative bias": Case(
        relative, None, lambda bias: lambda s, b, h, i, j: s + bias[h, i, j],
        more={"bias": lambda rng: rng.standard_normal((HEADS, TOKENS, TOKENS), np.float32)},
        types={"bias": mi.tensor("h", "n", "n")},
    ),
    "soft cap": Case(soft_cap, _causal, lambda: lambda s, b, h, i, j: torch.tanh(s / CAP) * CAP),
    "grouped queries": Case(grouped, _causal, group=GROUP),
    "QK norm": Case(normed, _causal, norm=True),
}  # fmt: skip


@dataclass(frozen=True)
class MaskRow:
    """An attention: our `kernels` and `libraries` in a call, medians in microseconds by name, and the faster one's over ours."""

    name: str
    source: str
    kernels: int
    libraries: int
    times: dict[str, float]
    refused: dict[str, str]

    @property
    def ratio(self) -> float:
        return min(t for name, t in self.times.items() if name != OURS) / self.times[OURS]


def types_of(case: Case) -> dict[str, Any]:
    heads = "h" if case.group == 1 else f"{case.group}*h"
    return {
        "q": mi.tensor("b", heads, "n", WIDTH), "k": mi.tensor("b", "h", "n", WIDTH), "v": mi.tensor("b", "h", "n", WIDTH),
        **case.types,
    }  # fmt: skip


def arguments(case: Case, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((BATCH, g * HEADS, TOKENS, WIDTH), np.float32) for g in (case.group, 1, 1))
    return [q, k, v, *(make(rng) for make in case.more.values())]


def dense(case: Case, args: list[Any]) -> Any:
    """The result by tensors of all positions, in the arguments' type."""
    q, k, v, *more = args
    if case.norm:
        q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (q, k))
    k, v = (x.repeat_interleave(case.group, 1) for x in (k, v))
    n = q.shape[-2]
    b, h, i, j = torch.meshgrid(torch.arange(len(q)), torch.arange(q.shape[1]), torch.arange(n), torch.arange(n), indexing="ij")
    s = q @ k.transpose(-1, -2) * WIDTH**-0.5
    s = case.score(*more)(s, b, h, i, j) if case.score else s
    return torch.softmax(s.masked_fill(~case.mask(*more)(b, h, i, j), -torch.inf) if case.mask else s, -1) @ v


def _flex(case: Case, args: list[Any]) -> Callable[[], Any]:
    q, k, v, *more = args
    n = q.shape[-2]
    run: Any = torch.compile(flex_attention, dynamic=True)
    options: dict[str, Any] = {"enable_gqa": case.group > 1}
    if case.mask:
        options["block_mask"] = create_block_mask(case.mask(*more), None, None, n, n, device="cpu")
    if case.score:
        options["score_mod"] = case.score(*more)
    normed_by = torch.compile(lambda x: torch.rms_norm(x, (WIDTH,), eps=1e-6)) if case.norm else lambda x: x
    return lambda: run(normed_by(q), normed_by(k), v, **options)


def _sdpa(case: Case, args: list[Any]) -> Callable[[], Any]:
    """With what does not depend on the scores as a tensor that is made before; eager, so not where scores are bent."""
    q, k, v, *more = args
    n = q.shape[-2]
    b, h, i, j = torch.meshgrid(torch.arange(1), torch.arange(q.shape[1]), torch.arange(n), torch.arange(n), indexing="ij")
    added = case.score(*more)(torch.zeros(1), b, h, i, j) if case.score else torch.zeros(())
    mask = case.mask(*more)(b, h, i, j) if case.mask else torch.ones((), dtype=torch.bool)
    bias = torch.where(mask, added, -torch.inf).expand(1, q.shape[1], n, n).contiguous()
    norm: Any = (lambda x: torch.rms_norm(x, (WIDTH,), eps=1e-6)) if case.norm else lambda x: x
    attention = torch.nn.functional.scaled_dot_product_attention
    if case.mask is _causal and not case.score:
        return lambda: attention(norm(q), norm(k), v, is_causal=True, enable_gqa=case.group > 1)
    return lambda: attention(q, k, v, attn_mask=bias, enable_gqa=case.group > 1)


def measure(say: Callable[[str], None], budget: float = 15.0, seconds: float = 1.0) -> Iterator[MaskRow]:
    """A row per attention; a version whose results are not right is refused, and ours is an error."""
    torch.set_num_threads(num_threads())
    for name, case in CASES.items():
        run = mi.compile(case.program, types_of(case), sizes={"b": BATCH, "h": HEADS, "n": TOKENS}, budget=budget)
        arrays = arguments(case)
        tensors = [torch.from_numpy(a) for a in arrays]
        with inference():
            runs: dict[str, Callable[[], Any]] = {OURS: partial(run, *arrays), FLEX: _flex(case, tensors)}
            if name != "soft cap":
                runs[DENSE] = _sdpa(case, tensors)

            def yardstick(case: Case = case, tensors: list[Any] = tensors) -> tuple[list[np.ndarray], list[np.ndarray]]:
                wide = [t.double() if t.is_floating_point() else t for t in tensors]
                return [dense(case, wide).numpy()], [dense(case, tensors).numpy()]

            # further inputs say what is seen: they stay
            referee = Referee(Inputs(arrays, [k < 3 for k in range(len(arrays))], seed=0), yardstick)
            referee.examine_all(runs)
            times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
        if OURS in referee.refused:
            raise mi.errors.VerificationError(f"{name}: {referee.refused[OURS]}")
        found = {n: t.median_us for n, t in times.items() if n not in referee.refused}
        main = run.program.functions[run.program.main]
        kinds = [type(i).__name__ for i in main.code]
        source = textwrap.dedent(inspect.getsource(case.program))
        row = MaskRow(name, source, kinds.count("CallKernel"), kinds.count("CallLibrary"), found, dict(referee.refused))
        say(f"{name}: " + ", ".join(f"{n} {t:.0f}" for n, t in found.items()))
        yield row


def mask_table(rows: list[MaskRow]) -> Table:
    names = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = []
    for r in rows:
        times = [f"{r.times[n]:,.0f}" if n in r.times else "" for n in names]
        lines.append([r.name, str(r.kernels), str(r.libraries), *times, f"{r.ratio:.2f}"])
    return Table(["attention", "kernels", "library calls", *(f"{n}, us" for n in names), "ratio"], lines)


def section(rows: list[MaskRow]) -> str:
    """The part of the page of benchmarks."""
    programs = "\n\n".join(r.source.rstrip() for r in rows)
    return f"{mask_table(rows).markdown()}\n\n```text\n{programs}\n```"
