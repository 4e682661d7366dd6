"""The layers of `benchmarks/graphs/models.py` as users of PyTorch write them, with our threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.graphs.convolutions import CONVOLUTIONS, Convolution
from benchmarks.graphs.models import frequencies
from benchmarks.graphs.programs import BERT_BASE, TINY_LLAMA, GraphProgram
from benchmarks.peers.attention_layers_in_torch import (
    Linear,
    flexible,
    gemma,
    gpt2,
    masked,
    norm,
    plain,
    rms,
    rotate,
    t5,
    whisper,
)
from benchmarks.peers.compiled import Frozen, compiles
from benchmarks.peers.in_torch import Form

#: calls of a layer, and its results
Layer = Callable[..., Any]


def torch_layers(program: GraphProgram, arguments: Sequence[Any], threads: int) -> Mapping[str, Form]:
    """By label, the forms of a program on the memory of these arguments; empty for programs that have none.

    The number of threads is set for the whole process.
    """
    torch.set_num_threads(threads)
    return tensor_layers(program, [torch.from_numpy(a) for a in arguments])


def tensor_layers(program: GraphProgram, tensors: Sequence[Tensor]) -> Mapping[str, Form]:
    """By label, the forms of a program for tensors on any device; empty for programs that have none."""
    given = dict(zip(program.specs, tensors, strict=True))
    device = tensors[0].device
    layers = _layers(device).get(program.name, {})
    if program.name == "gemma_decode":
        tokens = given["x"].shape[1]
        attend = flexible(tokens, given["k_cache"].shape[2] + tokens, device)
        layers["FlexAttention"] = gemma(device, F.linear, attend), _out_in
    return {label: Form(run, prepare(given)) for label, (run, prepare) in layers.items()}


def compiled_layers(
    program: GraphProgram, forms: Mapping[str, Form], say: Callable[[str], None]
) -> Mapping[str, Callable[[], Any]]:
    """The forms compiled by `torch.compile`, for all shapes and for these alone, with the weights as parameters of a module.

    Everything is tried that `mode="max-autotune"` knows, and weights are frozen, as a deployed model has them. All are compiled
    in here, by a first call; what cannot be compiled is left out, and `say` is told why.
    """
    # weights come last, in whatever form
    changing = sum(n not in program.constants for n in program.specs)
    versions: dict[str, Callable[[], Any]] = {}
    for label, form in forms.items():
        for shapes, dynamic in (("dynamic shapes", True), ("static shapes", False)):
            frozen = Frozen(form, [i >= changing for i in range(len(form.arguments))]).eval()
            run = Form(torch.compile(frozen, mode="max-autotune", dynamic=dynamic), form.arguments[:changing])
            full = ", ".join(filter(None, [label, shapes]))
            if compiles(f"{program.name}: torch.compile {full}", run, say):
                versions[full] = run
    return versions


def _same(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(given.values())


def _out_in(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Matrices of weights in the layout of `nn.Linear`."""
    return tuple(a.mT.contiguous() if n.startswith("w") else a for n, a in given.items())


def _joined(count: int) -> Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]:
    """Weights of projections of the same rows beside each other, in the layout of `nn.Linear`, after so many other arguments."""

    def prepare(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        rest = {n: a.mT.contiguous() if n.startswith("w") else a for n, a in given.items()}
        qkv, gated = (torch.cat([rest[n] for n in names]) for names in (("wq", "wk", "wv"), ("w1", "w3")))
        first = tuple(rest.values())[:count]
        return (*first, rest["norm1"], qkv, rest["wo"], rest["norm2"], gated, rest["w2"])

    return prepare


def _llama(device: torch.device, cached: bool, linear: Linear, joined: bool = False) -> Layer:
    """A layer of a decoder over new tokens, of which there is one where keys and values are cached.

    What rotates them is on the device before any call: copies would keep calls from being recorded as CUDA graphs. Where weights
    are `joined`, one matmul projects to queries, keys and values, and one to gate and up.
    """
    model = TINY_LLAMA
    turns = torch.from_numpy(frequencies(model.head)).to(device)

    def run(x: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache, weights = (rest[:2], rest[2:]) if cached else ((), rest)
        if joined:
            norm1, wqkv, wo, norm2, w13, w2 = weights
        else:
            norm1, wq, wk, wv, wo, norm2, w1, w3, w2 = weights
        b, s, _ = x.shape
        angles = positions[:, None] * turns
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        y = rms(x, norm1)
        if joined:
            sizes = [n * model.head for n in (model.heads, model.shared, model.shared)]
            q, k, v = linear(y, wqkv).split(sizes, -1)
        else:
            q, k, v = linear(y, wq), linear(y, wk), linear(y, wv)
        q = rotate(q.view(b, s, model.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(k.view(b, s, model.shared, -1).transpose(1, 2), cos, sin)
        v = v.view(b, s, model.shared, -1).transpose(1, 2)
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=not cached, enable_gqa=True)
        x = x + linear(mixed.transpose(1, 2).reshape(b, s, -1), wo)
        y = rms(x, norm2)
        gate, up = linear(y, w13).chunk(2, -1) if joined else (linear(y, w1), linear(y, w3))
        return x + linear(F.silu(gate) * up, w2), k, v

    return run


def _bert(linear: Linear) -> Layer:
    model = BERT_BASE

    def run(x: Tensor, valid: Tensor, *weights: Tensor) -> Tensor:
        wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, w1, b1, w2, b2, g2, c2 = weights
        b, s, h = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(b, s, model.heads, -1).transpose(1, 2)

        q, k, v = heads(linear(x, wq, bq)), heads(linear(x, wk, bk)), heads(linear(x, wv, bv))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        x = norm(x + linear(mixed.transpose(1, 2).reshape(b, s, h), wo, bo), g1, c1)
        return norm(x + linear(F.gelu(linear(x, w1, b1)), w2, b2), g2, c2)

    return run


def _mixtral_dense(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    """All experts for all tokens, as the program is written."""
    best, chosen = (x @ router).topk(2)
    shares = x.new_zeros(x.shape[0], w1.shape[0]).scatter(1, chosen, best.softmax(-1))
    found = (F.silu(x @ w1) * (x @ w3)) @ w2
    return (found * shares.T[:, :, None]).sum(0)


def _mixtral_sparse(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    """Every expert for the tokens that are routed to it, as in Hugging Face Transformers."""
    best, chosen = (x @ router).topk(2)
    shares, out = best.softmax(-1), torch.zeros_like(x)
    for e in range(w1.shape[0]):
        rows, slot = torch.where(chosen == e)
        if rows.numel():
            tokens = x[rows]
            found = (F.silu(tokens @ w1[e]) * (tokens @ w3[e])) @ w2[e]
            out.index_add_(0, rows, found * shares[rows, slot, None])
    return out


def _convolution(c: Convolution) -> Layer:
    def run(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, bias, c.stride, c.padding, 1, c.groups))

    return run


def _channels_last(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(a.contiguous(memory_format=torch.channels_last) if a.ndim == 4 else a for a in given.values())


#: by label: a function, and its arguments made of the program's
_Labelled: TypeAlias = dict[str, tuple[Layer, Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]]]
_MIXTRAL: _Labelled = {"all experts": (_mixtral_dense, _same), "routed tokens": (_mixtral_sparse, _same)}


def _layers(device: torch.device) -> dict[str, _Labelled]:
    """The forms by program, on a device."""
    return {
        "llama_prefill": {
            "": (_llama(device, False, plain), _same),
            "nn.Linear layout": (_llama(device, False, F.linear), _out_in),
            "joined weights": (_llama(device, False, F.linear, joined=True), _joined(2)),
        },
        "llama_decode": {
            "": (_llama(device, True, plain), _same),
            "nn.Linear layout": (_llama(device, True, F.linear), _out_in),
            "joined weights": (_llama(device, True, F.linear, joined=True), _joined(4)),
        },
        "bert_encoder": {
            "": (_bert(plain), _same),
            "nn.Linear layout": (_bert(F.linear), _out_in),
        },
        "gpt2_decode": {"": (gpt2(plain), _same), "nn.Linear layout": (gpt2(F.linear), _out_in)},
        "t5_encoder": {"": (t5(plain), _same), "nn.Linear layout": (t5(F.linear), _out_in)},
        "whisper_decode": {"": (whisper(plain), _same), "nn.Linear layout": (whisper(F.linear), _out_in)},
        "gemma_decode": {
            "": (gemma(device, plain, masked), _same),
            "nn.Linear layout": (gemma(device, F.linear, masked), _out_in),
        },
        "mixtral_moe": _MIXTRAL,
        "mixtral_routed": _MIXTRAL,
        **{
            name: {"": (_convolution(c), _same), "channels last": (_convolution(c), _channels_last)}
            for name, c in CONVOLUTIONS.items()
        },
    }
