"""The measured programs: each written as its users write it, with the sizes that it is measured at.

Float32, natural layouts, weights [in, out]. Dims that models fix (heads' size, hidden size) are literal so
that kernels can specialise on them; the others are symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mirage as mi
from mirage.frontends.attention import attention, attention_sizes, gqa_decode, qknorm_attention
from mirage.ir.program import Program

#: the larger one of the two batches at which kernels are measured
BATCH = 8


@mi.program(
    x=mi.tensor("b", 4096),
    g=mi.tensor(4096),
    w=mi.tensor(4096, "n"),
    sizes={"batch1": {"b": 1, "n": 4096}, "batch8": {"b": 8, "n": 4096}},
)
def rmsnorm_linear(x: Any, g: Any, w: Any) -> Any:
    """RMSNorm and the linear layer after it."""
    return mi.rms_norm(x, g) @ w


@mi.program(
    q=mi.tensor("b", "h", "s", 64),
    k=mi.tensor("b", "h", "t", 64),
    v=mi.tensor("b", "h", "t", 64),
    sizes=attention_sizes(h=8),
)
def mha_decode(q: Any, k: Any, v: Any) -> Any:
    """Multi-head attention."""
    return attention(q, k, v)


@mi.program(
    q=mi.tensor("b", "8*h", "s", 64),
    k=mi.tensor("b", "h", "t", 64),
    v=mi.tensor("b", "h", "t", 64),
    sizes={"4k": {"b": 1, "h": 2, "s": 1, "t": 4096}, "1k": {"b": 1, "h": 2, "s": 1, "t": 1024}},
)
def gqa_decode_d64(q: Any, k: Any, v: Any) -> Any:
    """Grouped-query attention with few and small heads: as many queries share keys that are half as long."""
    return attention(q, mi.repeat(k, 8, axis=1), mi.repeat(v, 8, axis=1))


@mi.program(
    q=mi.tensor("b", "h", "s", 64),
    k=mi.tensor("b", 1, "t", 64),
    v=mi.tensor("b", 1, "t", 64),
    sizes=attention_sizes(h=16),
)
def mqa_decode(q: Any, k: Any, v: Any) -> Any:
    """Multi-query attention: all query heads share one key-value head."""
    h = q.shape[1]
    return attention(q, mi.repeat(k, h, axis=1), mi.repeat(v, h, axis=1))


@mi.program(
    x=mi.tensor("b", 4096),
    w1=mi.tensor(4096, "n"),
    w2=mi.tensor(4096, "n"),
    sizes={"batch1": {"b": 1, "n": 4096}, "batch8": {"b": 8, "n": 4096}},
)
def gated_mlp(x: Any, w1: Any, w2: Any) -> Any:
    """The gated half of an MLP."""
    return mi.silu(x @ w1) * (x @ w2)


@mi.program(
    x=mi.tensor("b", 4096),
    w1=mi.tensor(4096, 16),
    w2=mi.tensor(16, 4096),
    sizes={"batch1": {"b": 1}, "batch8": {"b": 8}},
)
def adapter_mlp(x: Any, w1: Any, w2: Any) -> Any:
    """An adapter of rank 16 with its residual."""
    return mi.relu(x @ w1) @ w2 + x


@mi.program(
    x=mi.tensor("b", 4096),
    w=mi.tensor(4096, "n"),
    down=mi.tensor(4096, 16),
    up=mi.tensor(16, "n"),
    sizes={"batch1": {"b": 1, "n": 4096}, "batch8": {"b": 8, "n": 4096}},
)
def lora(x: Any, w: Any, down: Any, up: Any) -> Any:
    """A linear layer with a low-rank update of rank 16."""
    return x @ w + (x @ down) @ up


@mi.program(
    x=mi.tensor("e", "n", 512),
    w1=mi.tensor("e", 512, "f"),
    w3=mi.tensor("e", 512, "f"),
    w2=mi.tensor("e", "f", 512),
    sizes={"batch1": {"e": 8, "n": 1, "f": 1024}, "batch16": {"e": 8, "n": 16, "f": 1024}},
)
def moe(x: Any, w1: Any, w3: Any, w2: Any) -> Any:
    """The experts of a mixture, each a gated MLP over its own tokens."""
    return (mi.silu(x @ w1) * (x @ w3)) @ w2


@mi.program(
    x=mi.tensor("b", 1024),
    h=mi.tensor("b", 1024),
    alpha=mi.tensor(1024),
    sizes={"batch1": {"b": 1}, "batch512": {"b": 512}},
)
def norm_transformer(x: Any, h: Any, alpha: Any) -> Any:
    """The normalised residual of nGPT: a step from x towards h, on the sphere."""
    return mi.rms_norm(x + alpha * (mi.rms_norm(h) - x))


@mi.program(x=mi.tensor("m", "n"), sizes={"m": 1024, "n": 1024})
def softmax(x: Any) -> Any:
    """Softmax of every row."""
    return mi.softmax(x)


@mi.program(x=mi.tensor("m", "n"), weight=mi.tensor("n"), bias=mi.tensor("n"), sizes={"m": 1024, "n": 1024})
def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    """LayerNorm of every row."""
    return mi.layer_norm(x, weight, bias)


@mi.program(x=mi.tensor("m", "n"), weight=mi.tensor("n"), sizes={"m": 1024, "n": 1024})
def rms_norm(x: Any, weight: Any) -> Any:
    """RMSNorm of every row."""
    return mi.rms_norm(x, weight)


#: every program by its name
PROGRAMS: dict[str, mi.TensorFunction] = {
    f.name: f
    for f in (
        rmsnorm_linear,
        gqa_decode,
        mha_decode,
        mqa_decode,
        qknorm_attention,
        gated_mlp,
        adapter_mlp,
        lora,
        moe,
        norm_transformer,
        softmax,
        layer_norm,
        rms_norm,
    )
}

#: the programs whose kernels are measured: those, and one whose searches would tell nothing more
KERNELS: dict[str, mi.TensorFunction] = {**PROGRAMS, gqa_decode_d64.name: gqa_decode_d64}

#: per program, the inputs that a deployed model has as constants
WEIGHTS: dict[str, tuple[str, ...]] = {
    "rmsnorm_linear": ("g", "w"),
    "gated_mlp": ("w1", "w2"),
    "adapter_mlp": ("w1", "w2"),
    "lora": ("w", "down", "up"),
    "moe": ("w1", "w3", "w2"),
}
#: the dim of a program that counts what is computed at once, where it is not `b`: tokens of each expert
_BATCH_DIMS = {"moe": "n"}


def retyped(program: Program, dtype: str) -> Program:
    """The program over tensors of another element type."""
    nodes = (n if n.type.dtype == "scalar" else replace(n, type=replace(n.type, dtype=dtype)) for n in program.nodes)
    return Program(program.name, tuple(nodes), program.outputs)


def batch_of(name: str, sizes: Mapping[str, int]) -> int:
    """The batch of a program at these sizes; 1 where it has none."""
    return sizes.get(_BATCH_DIMS.get(name, "b"), 1)


def kernel_sizes(function: mi.TensorFunction) -> dict[str, dict[str, int]]:
    """The sets of sizes that a program's kernels are measured at: its own, and the first of them at batch `BATCH`."""
    sets = {label: dict(sizes) for label, sizes in function.sizes.items()}
    label, first = next(iter(sets.items()))
    dim = _BATCH_DIMS.get(function.name, "b")
    if dim in first and all(sizes[dim] != BATCH for sizes in sets.values()):
        sets[f"batch{BATCH}" if label.startswith("batch") else f"{label} batch{BATCH}"] = {**first, dim: BATCH}
    return sets
