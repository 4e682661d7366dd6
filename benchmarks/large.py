"""Programs of 13 to 50 operators: the blocks of a decoder layer as Llama has it (Touvron et al., 2023), and the layer.

Float32; `llama` makes them of any width. Rotary embedding multiplies the rows of every head by a matrix per position (Su et
al., 2021, equation 15). Written as x * cos + (x @ r) * sin, x has two forms over named axes, of which each would be computed.
"""

from __future__ import annotations

from typing import Any

import mirage as mi

#: the sets of sizes: the rows of a prompt, and one row
_SIZES = {"prompt": {"b": 1, "s": 128}, "row": {"b": 1, "s": 1}}


def llama(width: int, heads: int, kv_heads: int, head: int, hidden: int) -> dict[str, mi.TensorFunction]:
    """The programs by name, for rows of `width` elements, query heads and key-value heads of `head` elements, and an MLP of
    `hidden` ones.
    """
    x = mi.tensor("b", "s", width)
    attention_weights = {
        "wq": mi.tensor(width, heads * head),
        "wk": mi.tensor(width, kv_heads * head),
        "wv": mi.tensor(width, kv_heads * head),
        "wo": mi.tensor(heads * head, width),
    }
    tables = {"rotation": mi.tensor("s", head, head), "mask": mi.tensor("s", "s")}
    mlp_weights = {"w1": mi.tensor(width, hidden), "w3": mi.tensor(width, hidden), "w2": mi.tensor(hidden, width)}

    def split(rows: Any, count: int) -> Any:
        return rows.reshape(*rows.shape[:2], count, head)

    def by_head(rows: Any) -> Any:
        return rows.transpose(0, 2, 1, 3)

    def attend(x: Any, g: Any, wq: Any, wk: Any, wv: Any, wo: Any, rotation: Any, mask: Any) -> Any:
        n = mi.rms_norm(x, g)
        q = by_head(split(n @ wq, heads) @ rotation)
        k = by_head(split(n @ wk, kv_heads) @ rotation)
        v = by_head(split(n @ wv, kv_heads))
        k, v = (mi.repeat(rows, heads // kv_heads, axis=1) for rows in (k, v))
        a = mi.softmax(q @ k.mT / head**0.5 + mask) @ v
        return x + by_head(a).reshape(*x.shape[:2], heads * head) @ wo

    def transform(x: Any, g: Any, w1: Any, w3: Any, w2: Any) -> Any:
        n = mi.rms_norm(x, g)
        return x + (mi.silu(n @ w1) * (n @ w3)) @ w2

    @mi.program(x=x, g=mi.tensor(width), **mlp_weights, sizes=_SIZES, constants=("g", *mlp_weights))
    def mlp_block(x: Any, g: Any, w1: Any, w3: Any, w2: Any) -> Any:
        """Norm, gated MLP, residual."""
        return transform(x, g, w1, w3, w2)

    @mi.program(
        x=x, g=mi.tensor(width), **attention_weights, **tables, sizes=_SIZES, constants=("g", *attention_weights)
    )
    def attention_block(x: Any, g: Any, wq: Any, wk: Any, wv: Any, wo: Any, rotation: Any, mask: Any) -> Any:
        """Norm, grouped-query attention with rotary embedding, residual."""
        return attend(x, g, wq, wk, wv, wo, rotation, mask)

    @mi.program(
        x=x,
        g1=mi.tensor(width),
        **attention_weights,
        **tables,
        g2=mi.tensor(width),
        **mlp_weights,
        sizes=_SIZES,
        constants=("g1", *attention_weights, "g2", *mlp_weights),
    )
    def decoder_layer(
        x: Any,
        g1: Any,
        wq: Any,
        wk: Any,
        wv: Any,
        wo: Any,
        rotation: Any,
        mask: Any,
        g2: Any,
        w1: Any,
        w3: Any,
        w2: Any,
    ) -> Any:
        """Both blocks."""
        return transform(attend(x, g1, wq, wk, wv, wo, rotation, mask), g2, w1, w3, w2)

    return {f.name: f for f in (mlp_block, attention_block, decoder_layer)}


#: the programs at the sizes of a model of 1.1 billion parameters
LARGE = llama(width=2048, heads=32, kv_heads=4, head=64, hidden=5632)
