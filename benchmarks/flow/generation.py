"""Text that models of PyTorch generate, token by token, as their users call it: `model.generate`.

`python -m benchmarks.flow.generation [--only NAME] [--json] [--markdown]`. Every token is another call with a longer cache, or,
where the cache is static, with one that is written to. Compiled models are called in place of `model.forward`. Tokens have to be
those of PyTorch, but for bfloat16, whose rounding may choose others: of weights alone, or of the whole model.
"""

from __future__ import annotations

import copy
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers
import typer
from torch import nn

import mirage.torch
from benchmarks.command import command
from benchmarks.flow.models import CASES
from benchmarks.peers.peers import complain
from benchmarks.tables import Table
from mirage.errors import InputError, VerificationError
from mirage.kernels.cpu.model.limits import measure_limits
from mirage.settings import num_threads

#: models, by name, with the sequences and tokens of their prompts
PROMPTS: Mapping[str, Sequence[tuple[int, int]]] = {"gpt2": ((1, 32), (4, 600)), "llama": ((1, 32),)}
#: tokens that are generated, and rounds in which versions take turns
TOKENS, ROUNDS = 64, 5
#: types of models; kinds of caches, and how `generate` is told
DTYPES = (torch.float32, torch.bfloat16)
CACHES: Mapping[str, Mapping[str, Any]] = {"grows": {}, "static": {"cache_implementation": "static"}}
#: the version whose tokens all others have to give, and those that may give others
EAGER, NARROW = "PyTorch", "Mirage bfloat16"


@dataclass(frozen=True)
class GenerationRow:
    """A model of an element type with one kind of cache, and prompts of so many sequences and tokens: minimum and median of
    milliseconds per token, and seconds of the first call, which compiles at the first prompt, by version. `limit` are the
    milliseconds in which the weights that a token needs are read from memory.
    """

    model: str
    layers: int
    dtype: str
    prompt: tuple[int, int]
    cache: str
    limit: float
    times: dict[str, tuple[float, float]]
    first_s: dict[str, float]


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[GenerationRow]:
    """A row per model, type and kind of cache, all of `PROMPTS` if none is named; raises InputError for a name of nothing,
    VerificationError where tokens are others than PyTorch's.
    """
    if unknown := [n for n in names if n not in PROMPTS]:
        raise InputError(f"no model is named {', '.join(unknown)}; choose from {', '.join(PROMPTS)}")
    torch.set_num_threads(num_threads())
    transformers.logging.set_verbosity_error()
    for name in names or PROMPTS:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            for dtype in DTYPES:
                yield from _measured(name, dtype, say)


def _measured(name: str, dtype: torch.dtype, say: Callable[[str], None]) -> Iterator[GenerationRow]:
    model = CASES[f"{name} decode"].build(None).model.to(dtype)
    is_exact = dtype == torch.float32
    options: dict[str, Any] = {"background": False, "without": ("superoptimize",), "strict": True}
    versions = {
        EAGER: model,
        "torch.compile": _with(model, torch.compile(model.forward, dynamic=True)),
        "Mirage": _with(model, mirage.torch.compile(model.forward, **options)),
    }
    if is_exact:
        versions[NARROW] = _with(model, mirage.torch.compile(model.forward, weights="bfloat16", **options))
    limit = 1e3 * _bytes_of_a_token(model) / (1e9 * measure_limits().dram_gbs)
    for size, (cache, how) in itertools.product(PROMPTS[name], CACHES.items()):
        prompt = torch.randint(3, model.config.vocab_size, size, generator=torch.Generator().manual_seed(0))
        first: dict[str, float] = {}
        times: dict[str, list[float]] = {n: [] for n in versions}
        for k in range(ROUNDS + 1):
            expected = None
            for n, version in versions.items():
                start = time.perf_counter()
                found = version.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
                    **how,
                )  # fmt: skip
                spent = time.perf_counter() - start
                expected = found if n == EAGER else expected
                if is_exact and n != NARROW and not torch.equal(found, expected):
                    raise VerificationError(f"{name}, {cache}: {n} gives other tokens than {EAGER}")
                if k:
                    times[n].append(1e3 * spent / TOKENS)
                else:
                    first[n] = spent
        taken = {n: (min(t), median(t)) for n, t in times.items()}
        say(f"{name}, {dtype}, {size}, {cache}: " + ", ".join(f"{n} {t:.1f} ms a token" for n, (_, t) in taken.items()))
        layers, of = model.config.num_hidden_layers, str(dtype).removeprefix("torch.")
        yield GenerationRow(name, layers, of, size, cache, limit, taken, first)


def _with(model: nn.Module, forward: Callable[..., Any]) -> Any:
    """The model with another function in place of its own."""
    found = copy.copy(model)
    found.forward = forward
    return found


def _bytes_of_a_token(model: Any) -> int:
    """Those of the matrices that every token is multiplied with: a row is read of the tables of tokens and positions, where they
    are not the last matrix as well.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} - {id(model.get_output_embeddings().weight)}
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.ndim == 2 and id(p) not in tables)


def generation_table(rows: Sequence[GenerationRow]) -> Table:
    """A line per row: minimum and median of each version in milliseconds per token, and our first call."""
    names = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = []
    for r in rows:
        cells = ["{:.1f} / {:.1f}".format(*r.times[n]) if n in r.times else "" for n in names]
        firsts = [f"{r.first_s[n]:.0f}" if n in r.first_s else "" for n in ("Mirage", "torch.compile")]
        prompt = "{} by {}".format(*r.prompt)
        lines.append([f"{r.model}, {r.layers} layers", r.dtype, prompt, r.cache, *cells, f"{r.limit:.1f}", *firsts])
    heads = ["first call, s: Mirage", "torch.compile"]
    return Table(["minimum / median, ms per token", "type", "prompt", "cache", *names, "limit", *heads], lines)


def section(rows: Sequence[GenerationRow]) -> str:
    """The part of the page of benchmarks."""
    return generation_table(rows).markdown()


main = command(
    "Models of PyTorch that generate text, by `model.generate`, beside PyTorch and torch.compile.",
    "A model, such as 'gpt2'", measure, section, generation_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
