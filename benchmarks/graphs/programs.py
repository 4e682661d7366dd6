"""The programs that the graph compiler is shown on: Python functions with types, random sizes, arguments and a yardstick.

Each is there twice: `SMALL` for tests, with dims of a few elements, and `MEASURED` with the literal dims of published
models. Sizes that users vary (batch, lengths, tokens) are symbols in both. The yardsticks are NumPy in float64, written
without the operators of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import mirage as mi
from benchmarks.graphs import attention_models, models, small
from mirage.ir.annotations import ShapeType
from mirage.ir.dims import evaluate
from mirage.ir.graph.nodes import Module
from mirage.ir.types import ELEMENTS, TensorType

Sizes = Mapping[str, int]
#: makes an argument from its type, sizes and a generator
Maker = Callable[[tuple[int, ...], Sizes, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class GraphProgram:
    """A program of the graph compiler.

    `ranges` are the least and largest size of each dim symbol at which it is tried, `measured` named sizes at which it is timed.
    `constants` are the parameters whose contents never change between calls. `yardstick` computes the results from float64
    arguments (integers and shapes as they are); `makers` make the arguments that are not normal random numbers. Arguments named
    in `written` are updated in place.
    """

    name: str
    fn: Callable[..., Any]
    specs: Mapping[str, Any]
    yardstick: Callable[..., Any]
    ranges: Mapping[str, tuple[int, int]]
    measured: Mapping[str, Sizes] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    makers: Mapping[str, Maker] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    def trace(self) -> Module:
        """The graph module."""
        return mi.trace_module(self.fn, self.specs, name=self.name)

    @property
    def bounds(self) -> dict[str, int]:
        """The largest size of each dim symbol, among those tried and those measured."""
        largest = {symbol: high for symbol, (_, high) in self.ranges.items()}
        for sizes in self.measured.values():
            largest = {symbol: max(high, sizes[symbol]) for symbol, high in largest.items()}
        return largest

    def random_sizes(self, rng: np.random.Generator) -> dict[str, int]:
        """A random size per dim symbol, within `ranges`."""
        return {symbol: int(rng.integers(low, high + 1)) for symbol, (low, high) in self.ranges.items()}

    def arguments(self, sizes: Sizes, rng: np.random.Generator) -> list[Any]:
        """Arguments in the order of the parameters: arrays, and tuples of sizes for shapes."""
        return [self._argument(name, spec, sizes, rng) for name, spec in self.specs.items()]

    def _argument(self, name: str, spec: Any, sizes: Sizes, rng: np.random.Generator) -> Any:
        if isinstance(spec, ShapeType):
            return tuple(evaluate(d, sizes) for d in spec.dims or () if d is not None)
        assert isinstance(spec, TensorType)
        shape = spec.bind(sizes)
        if name in self.makers:
            return self.makers[name](shape, sizes, rng).astype(ELEMENTS[spec.dtype])
        # products with weights keep the size of the numbers
        scale = shape[-2] ** -0.5 if name in self.constants and len(shape) > 1 else 1.0
        return (scale * rng.standard_normal(shape)).astype(ELEMENTS[spec.dtype])

    def expected(self, arguments: list[Any]) -> tuple[np.ndarray, ...]:
        """The results in float64; `arguments` are not written to."""
        wide = [np.array(a, np.float64) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]
        found = self.yardstick(*wide)
        return found if isinstance(found, tuple) else (found,)


def _integers(low: int, high: int | str) -> Maker:
    def make(shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(low, sizes[high] if isinstance(high, str) else high, shape)

    return make


def _positions(shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Positions of new tokens, behind those that are in the cache."""
    return np.arange(shape[0]) + sizes.get("t", 0)


def _valid(shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Which tokens of a padded batch are no padding: at least the first of each sequence."""
    lengths = rng.integers(1, shape[1] + 1, shape[0])
    return np.arange(shape[1]) < lengths[:, None]


def _dominant(shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """A matrix with so large a diagonal that iterations converge."""
    return rng.uniform(-1, 1, shape) / shape[0] + 2 * np.eye(shape[0])


@dataclass(frozen=True)
class Layers:
    """The models whose layers are programs, with their literal dims."""

    llama: models.Llama
    bert: models.Bert
    mixtral: models.Mixtral
    gpt2: attention_models.Gpt2
    t5: attention_models.T5
    gemma: attention_models.Gemma
    whisper: attention_models.Whisper

    def of(self, dtype: str) -> Layers:
        """The same, Llama, BERT and Mixtral with this element type."""
        return replace(
            self,
            llama=replace(self.llama, dtype=dtype),
            bert=replace(self.bert, dtype=dtype),
            mixtral=replace(self.mixtral, dtype=dtype),
        )


def programs(layers: Layers, batch: int, length: int, measured: bool) -> dict[str, GraphProgram]:
    """All programs; random sizes go up to `batch` and `length`."""

    def sizes(**named: Sizes) -> Mapping[str, Sizes]:
        return named if measured else {}

    llama, bert, mixtral = layers.llama, layers.bert, layers.mixtral
    gpt2, t5, gemma, whisper = layers.gpt2, layers.t5, layers.gemma, layers.whisper
    tokens = {"b": (1, batch), "s": (1, length)}
    decoding = {"b": (1, batch), "s": (1, 4), "t": (0, length)}
    found = (
        GraphProgram(
            "llama_prefill",
            llama.prefill,
            llama.prefill_specs(),
            llama.prefill_yardstick,
            tokens,
            sizes(prompt128={"b": 1, "s": 128}, prompt512={"b": 1, "s": 512}),
            llama.weights,
            {"positions": _positions},
        ),
        GraphProgram(
            "llama_decode",
            llama.decode,
            llama.decode_specs(),
            llama.decode_yardstick,
            decoding,
            sizes(
                cache512={"b": 1, "s": 1, "t": 512}, cache4096={"b": 1, "s": 1, "t": 4096}, batch8={"b": 8, "s": 1, "t": 512},
                batch8_cache4096={"b": 8, "s": 1, "t": 4096}, batch32={"b": 32, "s": 1, "t": 512},
            ),
            llama.weights,
            {"positions": _positions},
        ),
        GraphProgram(
            "bert_encoder",
            bert.encoder,
            bert.specs(),
            bert.yardstick,
            tokens,
            sizes(batch1={"b": 1, "s": 128}, batch8={"b": 8, "s": 128}),
            bert.weights,
            {"valid": _valid},
        ),
        *(
            GraphProgram(
                name,
                block,
                mixtral.specs(),
                mixtral.yardstick,
                {"n": (1, batch * length)},
                sizes(decode={"n": 1}, tokens16={"n": 16}, prompt={"n": 512}),
                mixtral.weights,
            )
            for name, block in (("mixtral_moe", mixtral.block), ("mixtral_routed", mixtral.routed))
        ),
        GraphProgram(
            "gpt2_decode",
            gpt2.decode,
            gpt2.specs(),
            gpt2.yardstick,
            decoding,
            sizes(cache512={"b": 1, "s": 1, "t": 512}, batch8={"b": 8, "s": 1, "t": 512}),
            gpt2.weights,
        ),
        GraphProgram(
            "t5_encoder",
            t5.encoder,
            t5.specs(),
            t5.yardstick,
            tokens,
            sizes(batch1={"b": 1, "s": 128}, batch8={"b": 8, "s": 128}),
            t5.weights,
            {
                "distances": lambda shape, sizes, rng: t5.distances(shape[0]),
                "wq": lambda shape, sizes, rng: t5.query_weights(shape, rng),
            },
        ),
        GraphProgram(
            "gemma_decode",
            gemma.decode,
            gemma.specs(),
            gemma.yardstick,
            decoding,
            sizes(cache4096={"b": 1, "s": 1, "t": 4096}, prompt512={"b": 1, "s": 512, "t": 512}),
            gemma.weights,
            {"positions": _positions},
        ),
        GraphProgram(
            "whisper_decode",
            whisper.decode,
            whisper.specs(),
            whisper.yardstick,
            decoding | {"f": (1, length)},
            sizes(batch1={"b": 1, "s": 1, "t": 64, "f": 1500}, batch8={"b": 8, "s": 1, "t": 64, "f": 1500}),
            whisper.weights,
        ),
        GraphProgram(
            "two_functions",
            small.two_functions,
            small.TWO_FUNCTIONS,
            small.two_functions_yardstick,
            {"b": (1, batch), "s": (1, length), "d": (1, 4 * batch), "f": (1, length)},
            sizes(large={"b": 8, "s": 128, "d": 512, "f": 2048}),
            ("w", "v"),
        ),
        GraphProgram(
            "select_rows",
            small.select_rows,
            small.SELECT_ROWS,
            small.select_rows_yardstick,
            {"n": (0, 2 * length), "d": (1, 16)},
            sizes(large={"n": 1024, "d": 64}),
            makers={"labels": _integers(0, 3)},
        ),
        GraphProgram(
            "unique_tokens",
            small.unique_tokens,
            small.UNIQUE_TOKENS,
            small.unique_tokens_yardstick,
            {"n": (0, 2 * length), "v": (1, 50), "d": (1, 16)},
            sizes(large={"n": 4096, "v": 1024, "d": 64}),
            ("w",),
            makers={"tokens": _integers(0, "v")},
        ),
        GraphProgram(
            "refinement",
            small.refinement,
            small.REFINEMENT,
            small.refinement_yardstick,
            {"n": (1, length), "m": (1, batch)},
            sizes(large={"n": 512, "m": 8}),
            makers={"a": _dominant, "steps": _integers(0, small.MOST_STEPS + 1)},
        ),
        GraphProgram(
            "cache_update",
            small.cache_update,
            small.CACHE_UPDATE,
            small.cache_update_yardstick,
            {"b": (1, batch), "h": (1, 3), "s": (1, 4), "t": (0, length), "rest": (0, 5)},
            sizes(large={"b": 1, "h": 8, "s": 1, "t": 1000, "rest": 24}),
            written=("k_cache", "v_cache"),
        ),
    )
    return {p.name: p for p in found}


#: of 1.1 billion parameters
TINY_LLAMA = models.Llama(hidden=2048, heads=32, shared=4, head=64, ffn=5632)
BERT_BASE = models.Bert(hidden=768, heads=12, ffn=3072)
#: of an eighth of the width
MIXTRAL = models.Mixtral(hidden=512, experts=8, ffn=1792)
#: the smallest GPT-2, T5 base, and Whisper small
GPT2 = attention_models.Gpt2(hidden=768, heads=12, ffn=3072)
T5_BASE = attention_models.T5(hidden=768, heads=12, ffn=3072)
WHISPER_SMALL = attention_models.Whisper(hidden=768, heads=12, ffn=3072)
#: the layer of Gemma 2 with the widths and the window of Gemma 3 of 1 billion parameters
GEMMA = attention_models.Gemma(hidden=1152, heads=4, shared=1, head=256, ffn=6912, window=512)
TINY = Layers(
    models.Llama(hidden=32, heads=4, shared=2, head=8, ffn=48),
    models.Bert(hidden=32, heads=4, ffn=64),
    models.Mixtral(hidden=16, experts=4, ffn=24),
    attention_models.Gpt2(hidden=32, heads=4, ffn=48),
    attention_models.T5(hidden=32, heads=4, ffn=48, buckets=8, farthest=6),
    attention_models.Gemma(hidden=32, heads=4, shared=2, head=8, ffn=48, window=5, cap=2.0),
    attention_models.Whisper(hidden=32, heads=4, ffn=48),
)
PUBLISHED = Layers(TINY_LLAMA, BERT_BASE, MIXTRAL, GPT2, T5_BASE, GEMMA, WHISPER_SMALL)
SMALL = programs(TINY, batch=3, length=12, measured=False)
MEASURED = programs(PUBLISHED, batch=8, length=512, measured=True)
