"""The measured programs as a PyTorch user writes them for speed, run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """A way to compute a program: a function, and the tensors that it is called with. It changes none of them."""

    run: Callable[..., Tensor]
    arguments: tuple[Tensor, ...]

    def __call__(self) -> Tensor:
        return self.run(*self.arguments)


#: by label; a form labelled "" takes the program's inputs as they are
Forms = Mapping[str, Form]
#: the epsilon of this project's norms
EPS = 1e-6


def torch_forms(name: str, inputs: Sequence[np.ndarray], threads: int) -> Forms:
    """By label, the forms of program `name` on the memory of these arrays.

    The number of threads is set for the whole process.
    """
    torch.set_num_threads(threads)
    return tensor_forms(name, [torch.from_numpy(x) for x in inputs])


def tensor_forms(name: str, inputs: Sequence[Tensor]) -> Forms:
    """By label, the forms of program `name` on these tensors, of any device and floating-point type."""
    return _BUILDERS[name](*inputs)


def _norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def _out_in(w: Tensor) -> Tensor:
    """A weight in the layout of `nn.Linear`."""
    return w.mT.contiguous()


def _rmsnorm_linear(x: Tensor, g: Tensor, w: Tensor) -> Forms:
    return {
        "": Form(lambda x, g, w: _norm(x, g) @ w, (x, g, w)),
        "nn.Linear layout": Form(lambda x, g, w: F.linear(_norm(x, g), w), (x, g, _out_in(w))),
    }


def _gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Forms:
    return {
        "": Form(lambda x, w1, w2: F.silu(x @ w1, inplace=True).mul_(x @ w2), (x, w1, w2)),
        "nn.Linear layout": Form(
            lambda x, w1, w2: F.silu(F.linear(x, w1), inplace=True).mul_(F.linear(x, w2)), (x, _out_in(w1), _out_in(w2))
        ),
    }


def _adapter_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Forms:
    return {
        "": Form(lambda x, w1, w2: torch.addmm(x, torch.relu_(x @ w1), w2), (x, w1, w2)),
        "nn.Linear layout": Form(
            lambda x, w1, w2: torch.addmm(x, torch.relu_(F.linear(x, w1)), w2.T), (x, _out_in(w1), _out_in(w2))
        ),
    }


def _lora(x: Tensor, w: Tensor, down: Tensor, up: Tensor) -> Forms:
    return {
        "": Form(lambda x, w, down, up: (x @ w).addmm_(x @ down, up), (x, w, down, up)),
        "nn.Linear layout": Form(
            lambda x, w, down, up: F.linear(x, w).addmm_(F.linear(x, down), up), (x, _out_in(w), _out_in(down), up)
        ),
    }


def _moe(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Forms:
    def gated(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
        return torch.bmm(F.silu(torch.bmm(x, w1), inplace=True).mul_(torch.bmm(x, w3)), w2)

    return {"": Form(gated, (x, w1, w3, w2))}


def _norm_transformer(x: Tensor, h: Tensor, alpha: Tensor) -> Forms:
    return {"": Form(lambda x, h, alpha: _norm(torch.lerp(x, _norm(h), alpha)), (x, h, alpha))}


def _softmax(x: Tensor) -> Forms:
    return {"": Form(lambda x: F.softmax(x, -1), (x,))}


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Forms:
    return {"": Form(lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS), (x, weight, bias))}


def _rms_norm(x: Tensor, weight: Tensor) -> Forms:
    return {"": Form(_norm, (x, weight))}


def _matmuls(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # the smaller operand is scaled; the scores are not touched once more
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, -1) @ v


def _mha_decode(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    return {"": Form(_matmuls, (q, k, v)), "SDPA": Form(F.scaled_dot_product_attention, (q, k, v))}


def _qknorm_attention(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    return {
        "": Form(lambda q, k, v: _matmuls(_norm(q), _norm(k), v), (q, k, v)),
        "SDPA": Form(lambda q, k, v: F.scaled_dot_product_attention(_norm(q), _norm(k), v), (q, k, v)),
    }


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    def rows(q: Tensor, k: Tensor) -> Tensor:
        # the queries of a group as rows of one head, so that keys and values are neither repeated nor read again
        return q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])

    return {
        "group folded": Form(lambda q, k, v: _matmuls(rows(q, k), k, v).view(q.shape), (q, k, v)),
        "SDPA, group folded": Form(
            lambda q, k, v: F.scaled_dot_product_attention(rows(q, k), k, v).view(q.shape), (q, k, v)
        ),
        "SDPA, enable_gqa": Form(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (q, k, v)),
    }


_BUILDERS: dict[str, Callable[..., Forms]] = {
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
    "gqa_decode_d64": _grouped,
    "mqa_decode": _grouped,
}
