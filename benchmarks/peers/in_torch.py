"""The measured programs as a PyTorch user writes them for speed, run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """A way to compute a program: a function, and the tensors that it is called with. It changes none of them.

    Where `out` is memory for the result, the function writes it there.
    """

    run: Callable[..., Tensor]
    arguments: tuple[Tensor, ...]
    out: Tensor | None = None

    def __call__(self) -> Tensor:
        return self.run(*self.arguments) if self.out is None else self.run(*self.arguments, out=self.out)


#: by label; a form labelled "" takes the program's inputs as they are
Forms = Mapping[str, Form]
#: memory for a result
Out: TypeAlias = Tensor | None
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


def _both(label: str, run: Callable[..., Tensor], *arguments: Tensor) -> dict[str, Form]:
    """A form that allocates its result, and one that writes it to memory which it is given: `run` takes `out`."""
    out = torch.empty_like(run(*arguments))
    return {label: Form(run, arguments), f"{label}, out=".removeprefix(", "): Form(run, arguments, out)}


def _rmsnorm_linear(x: Tensor, g: Tensor, w: Tensor) -> Forms:
    def run(x: Tensor, g: Tensor, w: Tensor, out: Out = None) -> Tensor:
        return torch.mm(_norm(x, g), w, out=out)

    def linear(x: Tensor, g: Tensor, w: Tensor, out: Out = None) -> Tensor:
        return torch.mm(_norm(x, g), w.T, out=out)

    return _both("", run, x, g, w) | _both("nn.Linear layout", linear, x, g, _out_in(w))


def _gated(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gated product by two matmuls."""

    def run(x: Tensor, w1: Tensor, w2: Tensor, out: Out = None) -> Tensor:
        return torch.mul(F.silu(product(x, w1), inplace=True), product(x, w2), out=out)

    return run


def _joined(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gated product by one matmul, with both weights beside each other."""

    def run(x: Tensor, w: Tensor, out: Out = None) -> Tensor:
        gate, up = product(x, w).chunk(2, -1)
        return torch.mul(F.silu(gate, inplace=True), up, out=out)

    return run


def _gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Forms:
    both = torch.cat([w1, w2], -1)
    return (
        _both("", _gated(torch.mm), x, w1, w2)
        | _both("nn.Linear layout", _gated(F.linear), x, _out_in(w1), _out_in(w2))
        | _both("joined weights", _joined(torch.mm), x, both)
        | _both("joined weights, nn.Linear layout", _joined(F.linear), x, _out_in(both))
    )


def _adapter_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Forms:
    def run(x: Tensor, w1: Tensor, w2: Tensor, out: Out = None) -> Tensor:
        return torch.addmm(x, torch.relu_(x @ w1), w2, out=out)

    def linear(x: Tensor, w1: Tensor, w2: Tensor, out: Out = None) -> Tensor:
        return torch.addmm(x, torch.relu_(F.linear(x, w1)), w2.T, out=out)

    return _both("", run, x, w1, w2) | _both("nn.Linear layout", linear, x, _out_in(w1), _out_in(w2))


def _lora(x: Tensor, w: Tensor, down: Tensor, up: Tensor) -> Forms:
    def run(x: Tensor, w: Tensor, down: Tensor, up: Tensor, out: Out = None) -> Tensor:
        return torch.mm(x, w, out=out).addmm_(x @ down, up)

    def linear(x: Tensor, w: Tensor, down: Tensor, up: Tensor, out: Out = None) -> Tensor:
        return torch.mm(x, w.T, out=out).addmm_(F.linear(x, down), up)

    return _both("", run, x, w, down, up) | _both("nn.Linear layout", linear, x, _out_in(w), _out_in(down), up)


def _moe(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Forms:
    gated, joined = _gated(torch.bmm), _joined(torch.bmm)

    def run(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, out: Out = None) -> Tensor:
        return torch.bmm(gated(x, w1, w3), w2, out=out)

    def run_joined(x: Tensor, w: Tensor, w2: Tensor, out: Out = None) -> Tensor:
        return torch.bmm(joined(x, w), w2, out=out)

    return _both("", run, x, w1, w3, w2) | _both("joined weights", run_joined, x, torch.cat([w1, w3], -1), w2)


def _norm_transformer(x: Tensor, h: Tensor, alpha: Tensor) -> Forms:
    def run(x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
        return _norm(torch.lerp(x, _norm(h), alpha))

    def into(x: Tensor, h: Tensor, alpha: Tensor, out: Out = None) -> Tensor:
        return _norm_into(torch.lerp(x, _norm(h), alpha, out=out), None, out)

    return {"": Form(run, (x, h, alpha)), "out=": Form(into, (x, h, alpha), torch.empty_like(x))}


def _softmax(x: Tensor) -> Forms:
    def run(x: Tensor, out: Out = None) -> Tensor:
        return torch.softmax(x, -1, out=out)

    return _both("", run, x)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Forms:
    # has no form that writes to given memory without a copy
    return {"": Form(lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS), (x, weight, bias))}


def _rms_norm(x: Tensor, weight: Tensor) -> Forms:
    return {"": Form(_norm, (x, weight)), "out=": Form(_norm_into, (x, weight), torch.empty_like(x))}


def _norm_into(x: Tensor, weight: Tensor | None = None, out: Out = None) -> Tensor:
    """The norm by operators that take `out`, as the fused one does not."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
    found = torch.mul(x, scale, out=out)
    return found if weight is None else found.mul_(weight)


def _matmuls(q: Tensor, k: Tensor, v: Tensor, out: Out = None) -> Tensor:
    # the smaller operand is scaled; the scores are not touched once more
    return torch.matmul(torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, -1), v, out=out)


def _mha_decode(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    return _both("", _matmuls, q, k, v) | {"SDPA": Form(F.scaled_dot_product_attention, (q, k, v))}


def _qknorm_attention(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    def run(q: Tensor, k: Tensor, v: Tensor, out: Out = None) -> Tensor:
        return _matmuls(_norm(q), _norm(k), v, out)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(_norm(q), _norm(k), v)

    return _both("", run, q, k, v) | {"SDPA": Form(fused, (q, k, v))}


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Forms:
    def rows(q: Tensor, k: Tensor) -> Tensor:
        # the queries of a group as rows of one head, so that keys and values are neither repeated nor read again
        return q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])

    def run(q: Tensor, k: Tensor, v: Tensor, out: Out = None) -> Tensor:
        into = None if out is None else rows(out, k)
        return _matmuls(rows(q, k), k, v, into).view(q.shape)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(rows(q, k), k, v).view(q.shape)

    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    arguments = (q, k, v)
    found = _both("group folded", run, *arguments)
    return found | {"SDPA, group folded": Form(fused, arguments), "SDPA, enable_gqa": Form(shared, arguments)}


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
