"""How long models of twelve layers take to compile: at first, and in a process that finds all in the cache.

`python -m benchmarks.run deep`, or `python -m benchmarks.flow.deep [--only NAME] [--markdown]`. Each model is exported by
`torch.export` and compiled by `mirage.compile(exported, budget=60)`, in a process of its own, with a cache folder that was empty
before the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer

from benchmarks.command import command
from benchmarks.peers.peers import complain
from benchmarks.tables import Table
from mirage.errors import InputError

#: seconds of a compilation, layers, and compilations after the first one
BUDGET, LAYERS, AGAIN = 60.0, 12, 3
NAMES = ("BERT encoder", "Llama")


@dataclass(frozen=True)
class Compiled:
    """Seconds of one process: the export, the compilation with the imports that it needs, and the first call, with its largest
    error beside PyTorch as a share of the largest element.
    """

    export: float
    compile: float
    call: float
    error: float


@dataclass(frozen=True)
class DeepRow:
    """A model's first compilation, and the fastest and the median one of those after it."""

    model: str
    first: dict[str, float]
    least: dict[str, float]
    median: dict[str, float]


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[DeepRow]:
    """A row per model, all if none is named; raises InputError for a name of nothing."""
    if unknown := [n for n in names if n not in NAMES]:
        raise InputError(f"no model is named {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            first, *others = (_in_process(name, folder) for _ in range(1 + AGAIN))
        others.sort(key=lambda c: c.compile)
        say(f"{name}: compiled in {first.compile:.1f} s, then in {others[0].compile:.1f}")
        yield DeepRow(name, asdict(first), asdict(others[0]), asdict(others[len(others) // 2]))


def _in_process(name: str, folder: str) -> Compiled:
    environment = {**os.environ, "MIRAGE_CACHE_DIR": folder}
    command = [sys.executable, "-c", f"from benchmarks.flow.deep import compiled; compiled({name!r})"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Compiled(**json.loads(done.stdout.splitlines()[-1]))


def compiled(name: str) -> None:
    """Export, compile and call a model, and print the seconds."""
    import torch

    import mirage as mi

    torch.manual_seed(0)
    model, example, dims = _encoder() if name == NAMES[0] else _llama()
    with torch.no_grad():
        begun = time.perf_counter()
        exported = torch.export.export(model, (example,), dynamic_shapes=(dims,), strict=False)
        exported_at = time.perf_counter()
        run = mi.compile(exported, budget=BUDGET)
        compiled_at = time.perf_counter()
        found = run(example)
        called = time.perf_counter() - compiled_at
        wanted = model(example)
    error = float((found - wanted).abs().max() / wanted.abs().max())
    print(json.dumps(asdict(Compiled(exported_at - begun, compiled_at - exported_at, called, error))))


def _encoder() -> tuple[Any, Any, Any]:
    """Of the sizes of BERT base."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    return model, torch.randn(1, 128, 768), {1: torch.export.Dim("s", max=512)}


def _llama() -> tuple[Any, Any, Any]:
    """As wide as BERT base, with a third as many heads of keys."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4}
    config = LlamaConfig(num_hidden_layers=LAYERS, vocab_size=1000, use_cache=False, **sizes)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaModel(config).eval()

        def forward(self, ids: Any) -> Any:
            return self.model(ids).last_hidden_state

    return Model().eval(), torch.randint(0, 1000, (1, 128)), {1: torch.export.Dim("s", max=512)}


def deep_table(rows: Sequence[DeepRow]) -> Table:
    """Seconds of the export, of the compilation and of the first call."""
    lines = []
    for r in rows:
        cells = ((f"{LAYERS} layers of {r.model}, first", r.first), ("from the cache, least", r.least), ("median", r.median))
        for what, c in cells:
            lines.append([what, f"{c['export']:.1f}", f"{c['compile']:.1f}", f"{c['call']:.2f}", f"{c['error']:.0e}"])
    return Table(["model", "torch.export, s", "mirage.compile, s", "first call, s", "error"], lines)


def section(rows: Sequence[DeepRow]) -> str:
    """The part of the page of benchmarks."""
    return deep_table(rows).markdown()


main = command(
    "How long models of twelve layers take to compile, at first and from the cache.",
    "A model, such as 'Llama'", measure, section, deep_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
