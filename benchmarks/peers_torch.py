"""The measured programs as a PyTorch user writes them for speed, run eagerly on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Versions = Mapping[str, Callable[[], Tensor]]
#: the epsilon of this project's norms
EPS = 1e-6


def torch_versions(name: str, inputs: Sequence[np.ndarray], threads: int) -> Versions:
    """By label, functions of no arguments that compute program `name` on the memory of these arrays.

    The number of threads is set for the whole process.
    """
    torch.set_num_threads(threads)
    return _BUILDERS[name](*(torch.from_numpy(x) for x in inputs))


def _norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def _out_in(w: Tensor) -> Tensor:
    """A weight in the layout of `nn.Linear`."""
    return w.mT.contiguous()


def _rmsnorm_linear(x: Tensor, g: Tensor, w: Tensor) -> Versions:
    linear = _out_in(w)
    return {"": lambda: _norm(x, g) @ w, "nn.Linear layout": lambda: F.linear(_norm(x, g), linear)}


def _gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Versions:
    l1, l2 = _out_in(w1), _out_in(w2)
    return {
        "": lambda: F.silu(x @ w1, inplace=True).mul_(x @ w2),
        "nn.Linear layout": lambda: F.silu(F.linear(x, l1), inplace=True).mul_(F.linear(x, l2)),
    }


def _adapter_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Versions:
    l1, l2 = _out_in(w1), _out_in(w2)
    return {
        "": lambda: torch.addmm(x, torch.relu_(x @ w1), w2),
        "nn.Linear layout": lambda: torch.addmm(x, torch.relu_(F.linear(x, l1)), l2.T),
    }


def _lora(x: Tensor, w: Tensor, down: Tensor, up: Tensor) -> Versions:
    linear, l_down = _out_in(w), _out_in(down)
    return {
        "": lambda: (x @ w).addmm_(x @ down, up),
        "nn.Linear layout": lambda: F.linear(x, linear).addmm_(F.linear(x, l_down), up),
    }


def _moe(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Versions:
    return {"": lambda: torch.bmm(F.silu(torch.bmm(x, w1), inplace=True).mul_(torch.bmm(x, w3)), w2)}


def _norm_transformer(x: Tensor, h: Tensor, alpha: Tensor) -> Versions:
    return {"": lambda: _norm(torch.lerp(x, _norm(h), alpha))}


def _softmax(x: Tensor) -> Versions:
    return {"": lambda: F.softmax(x, -1)}


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Versions:
    return {"": lambda: F.layer_norm(x, x.shape[-1:], weight, bias, EPS)}


def _rms_norm(x: Tensor, weight: Tensor) -> Versions:
    return {"": lambda: _norm(x, weight)}


def _matmuls(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # the smaller operand is scaled; the scores are not touched once more
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, -1) @ v


def _mha_decode(q: Tensor, k: Tensor, v: Tensor) -> Versions:
    return {"": lambda: _matmuls(q, k, v), "SDPA": lambda: F.scaled_dot_product_attention(q, k, v)}


def _qknorm_attention(q: Tensor, k: Tensor, v: Tensor) -> Versions:
    return {
        "": lambda: _matmuls(_norm(q), _norm(k), v),
        "SDPA": lambda: F.scaled_dot_product_attention(_norm(q), _norm(k), v),
    }


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Versions:
    # the queries of a group as rows of one head, so that keys and values are neither repeated nor read again
    b, heads, s, d = q.shape
    rows = q.reshape(b, k.shape[1], heads // k.shape[1] * s, d)
    return {
        "group folded": lambda: _matmuls(rows, k, v).view(q.shape),
        "SDPA, group folded": lambda: F.scaled_dot_product_attention(rows, k, v).view(q.shape),
        "SDPA, enable_gqa": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }


_BUILDERS: dict[str, Callable[..., Versions]] = {
    "rmsnorm_linear": _rmsnorm_linear,
    "gated_mlp": _gated_mlp,
    "adapter_mlp": _adapter_mlp,
    "lora": _lora,
    "moe": _moe,
    "norm_transformer": _norm_transformer,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "mha_decode": _mha_decode,
    "qknorm_attention": _qknorm_attention,
    "gqa_decode": _grouped,
    "mqa_decode": _grouped,
}
