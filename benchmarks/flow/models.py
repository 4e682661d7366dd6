"""Models of transformers with random weights, as functions of tensors alone, with sizes drawn from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

#: sizes of a call: sequences, tokens of each, and tokens that a cache holds of each
Sizes = tuple[int, int, int]
#: layers of a model where time is short
FEW = 2
#: tokens of a call, at most, so that a race of some versions takes seconds
_TOKENS = 256
#: rows of the vocabularies of models that have no other
_VOCABULARY = 32000


@dataclass(frozen=True)
class Case:
    """A model in one of its modes ("encode", "prefill", "decode"): `build` makes it with so many layers, all if None.

    `inputs` draws the arguments of a call from a generator. `example` are sizes of which none is 0, 1 or that of another dim: one
    export at them serves all. `batches` are drawn from, those that stand there twice more often; a cache has fewer tokens than
    `cached`.
    """

    model: str
    mode: str
    build: Callable[[int | None], _Tensors]
    inputs: Callable[[nn.Module, Sizes, np.random.Generator], list[Any]]
    example: Sizes = (3, 17, 19)
    batches: Sequence[int] = (1, 1, 2, 4, 8)
    cached: int = 512

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode}"

    def sizes(self, count: int) -> list[Sizes]:
        """Distinct sizes, the same in every run."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        found: dict[Sizes, None] = {}
        while len(found) < count:
            batch = int(rng.choice(self.batches))
            length = 1 if self.mode == "decode" else int(rng.integers(8, _TOKENS // batch + 1))
            cached = int(rng.integers(16, self.cached)) if self.mode == "decode" else 0
            found[(batch, 0 if self.model == "vit" else length, cached)] = None
            # images are of one size, and the sounds of Whisper, by far the most of its work
            if self.name in ("vit encode", "whisper encode") and len(found) == 4:
                break
        return list(found)


class _Tensors(nn.Module):  # type: ignore[misc]
    """A model as a function of tensors that gives tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.config = model.config
        self.eval()

    def exact(self) -> nn.Module:
        """The same model, now in float64."""
        if hasattr(self.config, "num_local_experts"):
            # torch has no grouped products of float64: expert by expert
            self.config._experts_implementation = "eager"
        return self.double()


class _Encoder(_Tensors):
    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.model(input_ids=ids, attention_mask=mask).last_hidden_state,)


class _Images(_Tensors):
    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return (self.model(pixel_values=pixels).last_hidden_state,)


class _Prompt(_Tensors):
    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model(input_ids=ids, use_cache=False).logits,)


class _Sequences(_Tensors):
    def forward(self, ids: Tensor, decoder_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False).logits,)


class _Token(_Tensors):
    """One new token of each sequence: its logits, and the cache with it."""

    def forward(self, ids: Tensor, past: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = self.model(input_ids=ids, past_key_values=_cache(past), use_cache=True)
        layers = found.past_key_values.layers
        return (found.logits, *(t for layer in layers for t in (layer.keys, layer.values)))


class _Continued(_Tensors):
    """One new token of each sequence of a decoder that reads an encoder's results, whose keys and values are cached, too."""

    def forward(self, ids: Tensor, encoded: Tensor, past: Sequence[Tensor], cross: Sequence[Tensor]) -> tuple[Tensor, ...]:
        cache = transformers.EncoderDecoderCache(*(_cache(tensors) for tensors in (past, cross)))
        found = self.model(decoder_input_ids=ids, encoder_outputs=(encoded,), past_key_values=cache, use_cache=True)
        layers = found.past_key_values.self_attention_cache.layers
        return (found.logits, *(t for layer in layers for t in (layer.keys, layer.values)))


class _Speech(_Tensors):
    def forward(self, features: Tensor, decoder_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model(input_features=features, decoder_input_ids=decoder_ids, use_cache=False).logits,)


def _cache(tensors: Sequence[Tensor]) -> Any:
    """Keys and values of each layer as the cache of a model."""
    cache = transformers.DynamicCache()
    for layer, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        cache.update(keys, values, layer)
    return cache


def _ids(model: nn.Module, shape: Sequence[int], rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.integers(3, model.config.vocab_size, shape))


def _normal(shape: Sequence[int], rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def _text(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Tensor]:
    shape = sizes[:2]
    return [_ids(model, shape, rng), torch.ones(shape, dtype=torch.int64)]


def _prompt(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Tensor]:
    return [_ids(model, sizes[:2], rng)]


def _pairs(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Tensor]:
    batch, length, _ = sizes
    return [_ids(model, (batch, length), rng), _ids(model, (batch, length // 2 + 1), rng)]


def _images(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Tensor]:
    c = model.config
    return [_normal((sizes[0], c.num_channels, c.image_size, c.image_size), rng)]


def _token(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Any]:
    batch, _, cached = sizes
    c = model.config
    heads = getattr(c, "num_key_value_heads", c.num_attention_heads)
    shape = (batch, heads, cached, c.hidden_size // c.num_attention_heads)
    return [_ids(model, (batch, 1), rng), [_normal(shape, rng) for _ in range(2 * c.num_hidden_layers)]]


def _speech(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Tensor]:
    batch, length, _ = sizes
    c = model.config
    return [_normal((batch, c.num_mel_bins, 2 * c.max_source_positions), rng), _ids(model, (batch, length), rng)]


def _continued(model: nn.Module, sizes: Sizes, rng: np.random.Generator) -> list[Any]:
    batch, _, cached = sizes
    c = model.config
    # those of Whisper are half a minute, whatever is said in it
    encoded = getattr(c, "max_source_positions", cached // 2 + 7)
    heads, width = (c.num_heads, c.d_kv) if c.model_type == "t5" else (c.decoder_attention_heads, 64)
    layers = c.num_decoder_layers if c.model_type == "t5" else c.decoder_layers

    def tensors(length: int) -> list[Tensor]:
        return [_normal((batch, heads, length, width), rng) for _ in range(2 * layers)]

    return [_ids(model, (batch, 1), rng), _normal((batch, encoded, c.d_model), rng), tensors(cached), tensors(encoded)]


def _built(wrapper: type[_Tensors], kind: str, layers: str, most: int, **options: Any) -> Callable[[int | None], _Tensors]:
    """What builds a model of transformers: `kind` names its class, and `layers` the options that are their number."""
    of = getattr(transformers, kind)

    def build(wanted: int | None) -> _Tensors:
        torch.manual_seed(0)
        config = of.config_class(**options, **dict.fromkeys(layers.split(), most if wanted is None else min(wanted, most)))
        with torch.random.fork_rng():
            return wrapper(of(config))

    return build


_LLAMA = {
    "vocab_size": _VOCABULARY, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192,
}  # fmt: skip
_MIXTRAL = {
    "vocab_size": 8000, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024, "num_local_experts": 8,
}  # fmt: skip

_T5, _WHISPER = "T5ForConditionalGeneration", "WhisperForConditionalGeneration"
_BASE_WHISPER = {
    "d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
}  # fmt: skip
_ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

_CASES = (
    Case("bert", "encode", _built(_Encoder, "BertModel", "num_hidden_layers", 12), _text),
    Case("vit", "encode", _built(_Images, "ViTModel", "num_hidden_layers", 12), _images),
    Case("albert", "encode", _built(_Encoder, "AlbertModel", "num_hidden_layers", 12, **_ALBERT), _text),
    Case("t5", "encode", _built(_Sequences, _T5, "num_layers", 6), _pairs),
    Case("t5", "decode", _built(_Continued, _T5, "num_layers", 6), _continued),
    Case(
        "whisper", "encode", _built(_Speech, _WHISPER, "encoder_layers decoder_layers", 6, **_BASE_WHISPER), _speech,
        batches=(1, 2),
    ),
    Case(
        "whisper", "decode", _built(_Continued, _WHISPER, "encoder_layers decoder_layers", 6, **_BASE_WHISPER), _continued,
        cached=448,
    ),
    Case("gpt2", "prefill", _built(_Prompt, "GPT2LMHeadModel", "n_layer", 12), _prompt),
    Case("gpt2", "decode", _built(_Token, "GPT2LMHeadModel", "n_layer", 12), _token),
    Case("llama", "prefill", _built(_Prompt, "LlamaForCausalLM", "num_hidden_layers", 2, **_LLAMA), _prompt),
    Case("llama", "decode", _built(_Token, "LlamaForCausalLM", "num_hidden_layers", 2, **_LLAMA), _token),
    Case("mixtral", "prefill", _built(_Prompt, "MixtralForCausalLM", "num_hidden_layers", 4, **_MIXTRAL), _prompt),
    Case("mixtral", "decode", _built(_Token, "MixtralForCausalLM", "num_hidden_layers", 4, **_MIXTRAL), _token),
)
#: what is measured, by name
CASES: Mapping[str, Case] = {c.name: c for c in _CASES}
