"""The benchmark of generated text: what it measures, and its table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

import torch
import transformers

import benchmarks.flow.generation as generation
from benchmarks.flow.generation import PROMPTS, GenerationRow, generation_table, measure
from benchmarks.flow.models import CASES
from mirage.errors import InputError, VerificationError


def test_names() -> None:
    assert {f"{n} decode" for n in PROMPTS} <= CASES.keys()
    with pytest.raises(InputError, match="no model is named bloom; choose from gpt2, llama"):
        list(measure(["bloom"]))


def test_table() -> None:
    times = {"PyTorch": (3.0, 4.0), "Mirage": (1.0, 2.0)}
    rows = [
        GenerationRow("gpt2", 12, "float32", (1, 32), "grows", 0.5, times, {"Mirage": 20.4, "torch.compile": 30.0}),
        GenerationRow("llama", 2, "bfloat16", (4, 600), "static", 0.7, {"Mirage": (5.0, 6.0)}, {"Mirage": 7.0}),
    ]
    table = generation_table(rows)
    assert table.header[4:7] == ["PyTorch", "Mirage", "limit"]
    assert table.rows == [
        ["gpt2, 12 layers", "float32", "1 by 32", "grows", "3.0 / 4.0", "1.0 / 2.0", "0.5", "20", "30"],
        ["llama, 2 layers", "bfloat16", "4 by 600", "static", "", "5.0 / 6.0", "0.7", "7", ""],
    ]


def small(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return getattr(transformers, kind)(getattr(transformers, kind).config_class(**sizes, **options)).eval()


def test_what_a_token_reads() -> None:
    """All matrices; of tables only what is the last one as well."""
    tied = small("GPT2LMHeadModel", n_layer=1, n_embd=8, n_head=2, n_positions=16)
    assert generation._bytes_of_a_token(tied) == 4 * (12 * 8 * 8 + 40 * 8)
    apart = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
    model = small("LlamaForCausalLM", **apart, num_key_value_heads=2)
    assert generation._bytes_of_a_token(model) == 4 * (4 * 8 * 8 + 3 * 8 * 16 + 40 * 8)


@pytest.mark.slow
def test_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("GPT2LMHeadModel", n_layer=1, n_embd=32, n_head=2, n_positions=128)
    case = SimpleNamespace(build=lambda _: SimpleNamespace(model=model))
    monkeypatch.setattr(generation, "CASES", {"gpt2 decode": case})
    monkeypatch.setattr(generation, "ROUNDS", 1)
    monkeypatch.setattr(generation, "PROMPTS", {"gpt2": ((1, 8),)})
    rows = list(measure(["gpt2"], say=lambda _: None))
    assert [(r.dtype, r.cache) for r in rows] == [(d, c) for d in ("float32", "bfloat16") for c in ("grows", "static")]
    assert rows[0].limit == 2 * rows[2].limit > 0 and [len(r.times) for r in rows] == [4, 4, 3, 3]
    assert all(low <= middle for row in rows for low, middle in row.times.values())
    # a version whose tokens are others
    monkeypatch.setattr(generation, "_with", lambda model, forward: small("GPT2LMHeadModel", n_layer=2, n_embd=32, n_head=2))
    with pytest.raises(VerificationError, match=r"gpt2, grows: torch\.compile gives other tokens"):
        list(measure(["gpt2"], say=lambda _: None))
