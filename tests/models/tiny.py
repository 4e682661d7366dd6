"""Eight small transformer models with random weights, and calls of each at any sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

transformers.logging.set_verbosity_error()

VOCABULARY = 99
LONGEST = 40
_SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LLAMA: dict[str, Any] = {**_SMALL, "vocab_size": VOCABULARY, "num_key_value_heads": 2, "max_position_embeddings": 128}

Call = dict[str, Any]


@dataclass(frozen=True)
class Tiny:
    """A model, and what makes a call of it: of a batch size, a length of a sequence, and another length."""

    model: Callable[[], Any]
    call: Callable[[int, int, int], Call]

    def made(self) -> Any:
        """The model with the same weights every time, for inference."""
        torch.manual_seed(0)
        return self.model().eval()

    def calls(self, count: int, seed: int = 0) -> list[Call]:
        """Calls at random sizes of 1 and more."""
        draw = random.Random(seed)
        torch.manual_seed(seed)
        return [
            self.call(draw.randint(1, 5), draw.randint(1, LONGEST), draw.randint(1, LONGEST)) for _ in range(count)
        ]


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (b, s))


def mask(b: int, s: int) -> torch.Tensor:
    """Of each row, a first part that is used, of one element at least."""
    return (torch.arange(s) <= torch.randint(0, s, (b, 1))).long() if s else torch.ones(b, s, dtype=torch.long)


def _text(b: int, s: int, t: int) -> Call:
    return {"input_ids": ids(b, s), "attention_mask": mask(b, s)}


def _decoder(b: int, s: int, t: int) -> Call:
    return {**_text(b, s, t), "use_cache": False}


def _t5(b: int, s: int, t: int) -> Call:
    return {"input_ids": ids(b, s), "decoder_input_ids": ids(b, t), "use_cache": False}


def _whisper(b: int, s: int, t: int) -> Call:
    return {"input_features": torch.randn(b, 16, 64), "decoder_input_ids": ids(b, min(s, 30)), "use_cache": False}


def _vit(b: int, s: int, t: int) -> Call:
    return {"pixel_values": torch.randn(b, 3, 32, 32)}


def bert() -> Any:
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **_SMALL)
    return transformers.BertModel(config)


def albert() -> Any:
    config = transformers.AlbertConfig(vocab_size=VOCABULARY, embedding_size=16, max_position_embeddings=64, **_SMALL)
    return transformers.AlbertModel(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config)


def vit() -> Any:
    # of one layer, as it always runs
    config = transformers.ViTConfig(image_size=32, patch_size=8, **{**_SMALL, "num_hidden_layers": 1})
    return transformers.ViTForImageClassification(config)


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA))


def mixtral() -> Any:
    config = transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **_LLAMA)
    return transformers.MixtralForCausalLM(config)


def whisper() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=32,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


MODELS: Mapping[str, Tiny] = {
    "bert": Tiny(bert, _text),
    "albert": Tiny(albert, _text),
    "gpt2": Tiny(gpt2, _decoder),
    "t5": Tiny(t5, _t5),
    "vit": Tiny(vit, _vit),
    "llama": Tiny(llama, _decoder),
    "mixtral": Tiny(mixtral, _decoder),
    "whisper": Tiny(whisper, _whisper),
}
