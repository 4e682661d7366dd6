"""Programs of 13 to 50 operators: the blocks of a decoder layer as Llama has it (Touvron et al., 2023), and the layer; and
partitions of them as a person would write them.

Float32; `Llama` makes them of any width. Rotary embedding multiplies the rows of every head by a matrix per position (Su et
al., 2021, equation 15). Written as x * cos + (x @ r) * sin, x has two forms over named axes, of which each would be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import mirage as mi
from mirage.ir.program import Program
from mirage.ir.types import TensorType

#: the sets of sizes: the rows of a prompt, and one row
_SIZES = {"prompt": {"b": 1, "s": 128}, "row": {"b": 1, "s": 1}}


@dataclass(frozen=True)
class Part:
    """A part of a program as a program of its own, the names of the tensors of the whole that it reads and yields, in order, and
    those of its inputs that are constants.
    """

    program: Program
    reads: tuple[str, ...]
    yields: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class Llama:
    """Rows of `width` elements, query heads and key-value heads of `head` elements, and an MLP of `hidden` ones."""

    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int

    def types(self) -> dict[str, TensorType]:
        """The tensors of a layer by name: its inputs, and what its parts hand on."""
        width, head, rows = self.width, self.head, ("b", "s")
        return {
            **dict.fromkeys(("x", "n", "y"), mi.tensor(*rows, width)),
            **dict.fromkeys(("g", "g1", "g2"), mi.tensor(width)),
            "wq": mi.tensor(width, self.heads * head),
            **dict.fromkeys(("wk", "wv"), mi.tensor(width, self.kv_heads * head)),
            "wo": mi.tensor(self.heads * head, width),
            "rotation": mi.tensor("s", head, head),
            "mask": mi.tensor("s", "s"),
            **dict.fromkeys(("w1", "w3"), mi.tensor(width, self.hidden)),
            "w2": mi.tensor(self.hidden, width),
            "q": mi.tensor(*rows, self.heads, head),
            **dict.fromkeys(("k", "v"), mi.tensor(*rows, self.kv_heads, head)),
            "a": mi.tensor(*rows, self.heads * head),
            "h": mi.tensor(*rows, self.hidden),
        }

    # what the programs and their parts are made of

    def _split(self, rows: Any, heads: int) -> Any:
        return rows.reshape(*rows.shape[:2], heads, self.head)

    @staticmethod
    def _norm(x: Any, g: Any) -> Any:
        return mi.rms_norm(x, g)

    def _project(self, n: Any, wq: Any, wk: Any, wv: Any) -> Any:
        kv = self.kv_heads
        return self._split(n @ wq, self.heads), self._split(n @ wk, kv), self._split(n @ wv, kv)

    @staticmethod
    def _rotate(q: Any, k: Any, rotation: Any) -> Any:
        return q @ rotation, k @ rotation

    def _attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = (rows.transpose(0, 2, 1, 3) for rows in (q, k, v))
        k, v = (mi.repeat(rows, self.heads // self.kv_heads, axis=1) for rows in (k, v))
        a = (mi.softmax(q @ k.mT / self.head**0.5 + mask) @ v).transpose(0, 2, 1, 3)
        return a.reshape(*a.shape[:2], self.heads * self.head)

    @staticmethod
    def _gate(n: Any, w1: Any, w3: Any) -> Any:
        return mi.silu(n @ w1) * (n @ w3)

    @staticmethod
    def _output(x: Any, h: Any, w: Any) -> Any:
        return x + h @ w

    def _queries(self, x: Any, g: Any, wq: Any, wk: Any, wv: Any) -> Any:
        return self._project(self._norm(x, g), wq, wk, wv)

    def _attend(self, q: Any, k: Any, v: Any, rotation: Any, mask: Any) -> Any:
        q, k = self._rotate(q, k, rotation)
        return self._attention(q, k, v, mask)

    def _hidden(self, x: Any, g: Any, w1: Any, w3: Any) -> Any:
        return self._gate(self._norm(x, g), w1, w3)

    def _attended(self, x: Any, g: Any, wq: Any, wk: Any, wv: Any, wo: Any, rotation: Any, mask: Any) -> Any:
        q, k, v = self._queries(x, g, wq, wk, wv)
        return self._output(x, self._attend(q, k, v, rotation, mask), wo)

    def _transformed(self, x: Any, g: Any, w1: Any, w3: Any, w2: Any) -> Any:
        return self._output(x, self._hidden(x, g, w1, w3), w2)

    def programs(self) -> dict[str, mi.TensorFunction]:
        """The programs by name."""

        def mlp_block(x: Any, g: Any, w1: Any, w3: Any, w2: Any) -> Any:
            """Norm, gated MLP, residual."""
            return self._transformed(x, g, w1, w3, w2)

        def attention_block(x: Any, g: Any, wq: Any, wk: Any, wv: Any, wo: Any, rotation: Any, mask: Any) -> Any:
            """Norm, grouped-query attention with rotary embedding, residual."""
            return self._attended(x, g, wq, wk, wv, wo, rotation, mask)

        def decoder_layer(
            x: Any, g1: Any, wq: Any, wk: Any, wv: Any, wo: Any, rotation: Any, mask: Any, g2: Any, w1: Any, w3: Any, w2: Any
        ) -> Any:
            """Both blocks."""
            return self._transformed(self._attended(x, g1, wq, wk, wv, wo, rotation, mask), g2, w1, w3, w2)

        types = self.types()
        found = {}
        for fn in (mlp_block, attention_block, decoder_layer):
            specs = {name: types[name] for name in signature(fn).parameters}
            found[fn.__name__] = mi.program(**specs, sizes=_SIZES, constants=_weights(specs))(fn)
        return found

    def by_hand(self) -> dict[str, dict[str, list[Part]]]:
        """Partitions of the programs by name, each with what it is: parts that run one after another."""
        part = self._part
        queries = part(self._queries, "x g wq wk wv", "q k v")
        attend = part(self._attend, "q k v rotation mask", "a")
        attention = [part(self._attention, "q k v mask", "a"), part(self._output, "x a wo", "y")]
        every_attention = [
            part(self._norm, "x g", "n"),
            part(self._project, "n wq wk wv", "q k v"),
            part(self._rotate, "q k rotation", "q k"),
            *attention,
        ]
        attention_blocks = {
            "norm, projections, rotation, attention, output": every_attention,
            "norm and projections, rotation and attention, output": [queries, attend, attention[-1]],
            "norm and projections, the rest": [queries, part(self._rest, "x q k v rotation mask wo", "y")],
        }
        every_mlp = [part(self._norm, "x g", "n"), part(self._gate, "n w1 w3", "h"), part(self._output, "x h w2", "y")]
        mlp_blocks = {
            "norm, gated product, output": every_mlp,
            "norm and gated product, output": [part(self._hidden, "x g w1 w3", "h"), every_mlp[-1]],
        }
        blocks = [
            part(self._attended, "x g1 wq wk wv wo rotation mask", "y"),
            part(self._transformed, "y g2 w1 w3 w2", "y"),
        ]
        layers = {"the blocks": blocks}
        for (about, first), (more, then) in zip(attention_blocks.items(), mlp_blocks.items(), strict=False):
            layers[f"{about}, {more}"] = [*_renamed(first, {"g": "g1"}), *_renamed(then, {"g": "g2", "x": "y"})]
        return {"mlp_block": mlp_blocks, "attention_block": attention_blocks, "decoder_layer": layers}

    def _rest(self, x: Any, q: Any, k: Any, v: Any, rotation: Any, mask: Any, wo: Any) -> Any:
        return self._output(x, self._attend(q, k, v, rotation, mask), wo)

    def _part(self, fn: Callable[..., Any], reads: str, yields: str) -> Part:
        """A part that is a function of tensors of these names."""
        types = self.types()
        names = tuple(reads.split())
        specs = {p: types[name] for p, name in zip(signature(fn).parameters, names, strict=True)}
        program = mi.trace(fn, fn.__name__.strip("_"), **specs)
        return Part(program, names, tuple(yields.split()), _weights(specs))


def _weights(names: Iterable[str]) -> tuple[str, ...]:
    """Of names of parameters, those of gains and weights."""
    return tuple(name for name in names if name[0] in "gw")


def _renamed(parts: list[Part], names: dict[str, str]) -> list[Part]:
    """Parts that read tensors of other names."""
    return [Part(p.program, tuple(names.get(r, r) for r in p.reads), p.yields, p.constants) for p in parts]


#: the layer of a model of 1.1 billion parameters, its programs, and their partitions by hand
LLAMA = Llama(width=2048, heads=32, kv_heads=4, head=64, hidden=5632)
LARGE = LLAMA.programs()
