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
from torch.nn.functional import scaled_dot_product_attention

import mirage as mi
from benchmarks.fairness import Inputs, Referee
from benchmarks.peers.peers import inference
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.ir.dims import evaluate, to_dim
from mirage.settings import num_threads

#: sequences, heads of keys, tokens and width that are measured, and heads of queries per head of keys in groups
BATCH, HEADS, TOKENS, WIDTH, GROUP = 1, 8, 512, 64, 4
#: attentions that are measured with more tokens, too
LONG, LONG_TOKENS = ("causal", "sliding window", "prefix", "documents", "ALiBi", "soft cap"), 4096
#: tokens of a window and a prefix, documents, the bound of soft-capped scores, and the share of what is taken off
WINDOW, PREFIX, DOCUMENTS, CAP, LESS = 128, 100, 4, 30, 0.3
#: sequences that decode a token each, pages of the keys of each, keys of a page, and pages of the pool
SEQUENCES, PAGES, PAGE, POOL = 8, 64, 16, 1000
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


def sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s, i, j = scores(q, k)
    beside = mi.broadcast_to(mi.reshape(sink, (sink.shape[0], 1, 1)), (*s.shape[:3], 1))
    return mi.softmax(mi.concat([mi.where(j <= i, s, -1e9), beside], axis=-1), axis=-1)[..., :-1] @ v


def differential(q: Any, k: Any, v: Any, q2: Any, k2: Any) -> Any:
    return causal(q, k, v) - LESS * causal(q2, k2, v)


def paged(q: Any, k: Any, v: Any, pages: Any, count: Any) -> Any:
    k, v = (mi.transpose(mi.take(t, pages, axis=0), (0, 2, 1, 3, 4)) for t in (k, v))
    k, v = (mi.reshape(t, (*t.shape[:2], t.shape[2] * PAGE, WIDTH)) for t in (k, v))
    seen = mi.arange(0, k.shape[2]) < mi.reshape(count, (count.shape[0], 1, 1, 1))
    return attend(mi.where(seen, q @ mi.transpose(k, (0, 1, 3, 2)) * WIDTH**-0.5, -1e9), v)


#: what FlexAttention calls mask_mod and score_mod, of a sequence, head, query and key
Mask = Callable[[Any, Any, Any, Any], Any]
Score = Callable[[Any, Any, Any, Any, Any], Any]
#: PyTorch's attention of q, k and v
Attention = Callable[[Any, Any, Any], Any]


def _alone(attention: Attention, q: Any, k: Any, v: Any, *_: Any) -> Any:
    return attention(q, k, v)


@dataclass(frozen=True)
class Case:
    """One attention: our program, its further inputs by name, and the same as functions of positions for PyTorch.

    `around` is what PyTorch's attention is a part of: of it and all arguments. `dims` are those of inputs that have others than
    most, and `sizes` of symbols. SDPA has no tensor for scores that are `bent`.
    """

    program: Callable[..., Any]
    mask: Callable[..., Mask] | None = None
    score: Callable[..., Score] | None = None
    more: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = field(default_factory=dict)
    types: Mapping[str, Any] = field(default_factory=dict)
    group: int = 1
    around: Callable[..., Any] = _alone
    dims: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    bent: bool = False


def _causal(*_: Any) -> Mask:
    return lambda b, h, i, j: j <= i


def _normed(attention: Attention, q: Any, k: Any, v: Any) -> Any:
    q, k = (torch.rms_norm(x, (WIDTH,), eps=1e-6) for x in (q, k))
    return attention(q, k, v)


def _with_sinks(attention: Attention, q: Any, k: Any, v: Any, _: Any) -> Any:
    """The sink is the score of a further key, whose values are 0."""
    return attention(q, *(torch.nn.functional.pad(t, (0, 0, 0, 1)) for t in (k, v)))


def _differential(attention: Attention, q: Any, k: Any, v: Any, q2: Any, k2: Any) -> Any:
    return attention(q, k, v) - LESS * attention(q2, k2, v)


def _paged(attention: Attention, q: Any, k: Any, v: Any, pages: Any, _: Any) -> Any:
    k, v = (t[pages].transpose(1, 2).flatten(2, 3) for t in (k, v))
    return attention(q, k, v)


def _tokens(rng: np.random.Generator, tokens: int) -> np.ndarray:
    return rng.standard_normal((BATCH, HEADS, tokens, WIDTH), np.float32)


CASES: Mapping[str, Case] = {
    "causal": Case(causal, _causal),
    "sliding window": Case(window, lambda: lambda b, h, i, j: (j <= i) & (i - j < WINDOW)),
    "prefix": Case(prefix, lambda: lambda b, h, i, j: (j <= i) | (j < PREFIX)),
    "documents": Case(
        document, lambda d: lambda b, h, i, j: (j <= i) & (d[i] == d[j]),
        more={"documents": lambda rng, n: np.sort(rng.integers(0, DOCUMENTS, n))},
        types={"documents": mi.tensor("n", dtype="int64")},
    ),
    "padding": Case(
        padding, lambda seen: lambda b, h, i, j: seen[j],
        more={"seen": lambda rng, n: np.arange(n) < n * 3 // 4}, types={"seen": mi.tensor("n", dtype="bool")},
    ),
    "ALiBi": Case(
        alibi, _causal, lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (j - i),
        more={"slopes": lambda rng, _: 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)}, types={"slopes": mi.tensor("h")},
    ),
    "relative bias": Case(
        relative, None, lambda bias: lambda s, b, h, i, j: s + bias[h, i, j],
        more={"bias": lambda rng, n: rng.standard_normal((HEADS, n, n), np.float32)},
        types={"bias": mi.tensor("h", "n", "n")},
    ),
    "soft cap": Case(soft_cap, _causal, lambda: lambda s, b, h, i, j: torch.tanh(s / CAP) * CAP, bent=True),
    "grouped queries": Case(grouped, _causal, group=GROUP),
    "QK norm": Case(normed, _causal, around=_normed),
    "sinks": Case(
        sinks, lambda _: lambda b, h, i, j: (j <= i) | (j == TOKENS),
        lambda sink: lambda s, b, h, i, j: torch.where(j == TOKENS, sink[h], s), around=_with_sinks,
        more={"sink": lambda rng, _: rng.standard_normal(HEADS, np.float32)}, types={"sink": mi.tensor("h")},
    ),
    "differential": Case(
        differential, _causal, around=_differential, more={"q2": _tokens, "k2": _tokens},
        types={name: mi.tensor("b", "h", "n", WIDTH) for name in ("q2", "k2")},
    ),
    "paged": Case(
        paged, lambda pages, count: lambda b, h, i, j: j < count[b], around=_paged,
        more={
            "pages": lambda rng, _: rng.permutation(POOL)[: SEQUENCES * PAGES].reshape(SEQUENCES, PAGES),
            "count": lambda rng, _: rng.integers(PAGE, PAGES * PAGE + 1, SEQUENCES),
        },
        types={"pages": mi.tensor("b", "m", dtype="int64"), "count": mi.tensor("b", dtype="int64")},
        dims={name: ("p", "h", PAGE, WIDTH) for name in "kv"},
        sizes={"b": SEQUENCES, "n": 1, "p": POOL, "m": PAGES},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class MaskRow:
    """An attention: our `kernels` and `libraries` in a call, medians in microseconds by name, and the faster one's over ours."""

    name: str
    tokens: int
    source: str
    kernels: int
    libraries: int
    times: dict[str, float]
    refused: dict[str, str]

    @property
    def ratio(self) -> float:
        return min(t for name, t in self.times.items() if name != OURS) / self.times[OURS]


def dims_of(case: Case) -> dict[str, tuple[Any, ...]]:
    heads = "h" if case.group == 1 else f"{case.group}*h"
    return {"q": ("b", heads, "n", WIDTH), **{name: ("b", "h", "n", WIDTH) for name in "kv"}, **case.dims}


def types_of(case: Case) -> dict[str, Any]:
    return {**{name: mi.tensor(*dims) for name, dims in dims_of(case).items()}, **case.types}


def sizes_of(case: Case, tokens: int) -> dict[str, int]:
    return {"b": BATCH, "h": HEADS, "n": tokens, **case.sizes}


def arguments(case: Case, tokens: int, seed: int = 0) -> list[np.ndarray]:
    rng, sizes = np.random.default_rng(seed), sizes_of(case, tokens)
    shapes = [[evaluate(to_dim(d), sizes) for d in dims] for dims in dims_of(case).values()]
    return [*(rng.standard_normal(shape, np.float32) for shape in shapes), *(make(rng, tokens) for make in case.more.values())]


def _positions(q: Any, k: Any) -> list[Any]:
    """Of all scores: the sequence, head, query and key."""
    sizes = len(q), q.shape[1], q.shape[-2], k.shape[-2]
    return list(torch.meshgrid(*map(torch.arange, sizes), indexing="ij"))


def _operands(case: Case, args: list[Any]) -> tuple[Any, Any]:
    """The queries and keys that attention gets."""
    found: list[tuple[Any, Any]] = []

    def attention(q: Any, k: Any, v: Any) -> Any:
        found.append((q, k))
        return q.new_empty(*q.shape[:-1], v.shape[-1])

    case.around(attention, *args)
    return found[0]


def dense(case: Case, args: list[Any]) -> Any:
    """The result by tensors of all positions, in the arguments' type."""
    more = args[3:]

    def attention(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(case.group, 1) for x in (k, v))
        at = _positions(q, k)
        s = q @ k.transpose(-1, -2) * WIDTH**-0.5
        s = case.score(*more)(s, *at) if case.score else s
        return torch.softmax(s.masked_fill(~case.mask(*more)(*at), -torch.inf) if case.mask else s, -1) @ v

    return case.around(attention, *args)


def _flex(case: Case, args: list[Any]) -> Callable[[], Any]:
    """With all around it compiled, too, where that is to be had."""
    more, (q, k) = args[3:], _operands(case, args)
    options: dict[str, Any] = {"enable_gqa": case.group > 1}
    if case.mask:
        options["block_mask"] = create_block_mask(case.mask(*more), len(q), None, q.shape[-2], k.shape[-2], device="cpu")
    if case.score:
        options["score_mod"] = case.score(*more)
    # code for other cases
    torch.compiler.reset()
    run: Any = torch.compile(flex_attention, dynamic=True)
    if case.around is _alone:
        return lambda: run(*args[:3], **options)

    def apart(*args: Any) -> Any:
        return case.around(partial(run, **options), *args)

    whole: Any = torch.compile(apart, dynamic=True)
    try:
        whole(*args)
    except Exception:  # of the compiler, which refuses some
        return lambda: apart(*args)
    return lambda: whole(*args)


def _sdpa(case: Case, args: list[Any]) -> Callable[[], Any]:
    """With what does not depend on the scores as a tensor that is made before; eager, so not where scores are bent."""
    more, at = args[3:], _positions(*_operands(case, args))
    added = case.score(*more)(torch.zeros(1), *at) if case.score else torch.zeros(())
    mask = case.mask(*more)(*at) if case.mask else torch.ones((), dtype=torch.bool)
    bias = torch.where(mask, added, -torch.inf).expand(at[0].shape).contiguous()
    how: dict[str, Any] = {"is_causal": True} if case.mask is _causal and not case.score else {"attn_mask": bias}
    attention = partial(scaled_dot_product_attention, enable_gqa=case.group > 1, **how)
    return lambda: case.around(attention, *args)


def measure(say: Callable[[str], None], budget: float = 15.0, seconds: float = 1.0) -> Iterator[MaskRow]:
    """A row per attention, then those of `LONG` with more tokens and twice the budget; a version whose results are not right is
    refused, and ours is an error.
    """
    torch.set_num_threads(num_threads())
    for name, tokens in [*((name, TOKENS) for name in CASES), *((name, LONG_TOKENS) for name in LONG)]:
        case = CASES[name]
        run = mi.compile(case.program, types_of(case), sizes=sizes_of(case, tokens), budget=budget * (1 + (tokens > TOKENS)))
        arrays = arguments(case, tokens)
        tensors = [torch.from_numpy(a) for a in arrays]
        with inference():
            runs: dict[str, Callable[[], Any]] = {OURS: partial(run, *arrays), FLEX: _flex(case, tensors)}
            if not case.bent:
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
        counts = kinds.count("CallKernel"), kinds.count("CallLibrary")
        row = MaskRow(name, sizes_of(case, tokens)["n"], source, *counts, found, dict(referee.refused))
        say(f"{name}, {tokens} tokens: " + ", ".join(f"{n} {t:.0f}" for n, t in found.items()))
        yield row


def mask_table(rows: list[MaskRow]) -> Table:
    names = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = []
    for r in rows:
        times = [f"{r.times[n]:,.0f}" if n in r.times else "" for n in names]
        lines.append([r.name, f"{r.tokens:,}", str(r.kernels), str(r.libraries), *times, f"{r.ratio:.2f}"])
    return Table(["attention", "tokens", "kernels", "library calls", *(f"{n}, us" for n in names), "ratio"], lines)


def section(rows: list[MaskRow]) -> str:
    """The part of the page of benchmarks."""
    programs = "\n\n".join(dict.fromkeys(r.source.rstrip() for r in rows))
    return f"{mask_table(rows).markdown()}\n\n```text\n{programs}\n```"
