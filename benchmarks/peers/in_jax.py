"""The measured programs in JAX, compiled by `jax.jit` (XLA) for the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

#: the epsilon of this project's norms
EPS = 1e-6
#: by label, a function and how its arguments are made of the program's inputs
_Forms = Mapping[str, tuple[Callable[..., Array], Callable[..., Sequence[Array]]]]


def jax_versions(name: str, inputs: Sequence[np.ndarray], threads: int) -> Mapping[str, Callable[[], Array]]:
    """By label, compiled functions of no arguments that compute program `name` for copies of these arrays.

    The number of threads is that of the first call in a process.
    """
    # what XLA's CPU client takes the number of its threads from
    os.environ["NPROC"] = str(threads)
    cpu = jax.local_devices(backend="cpu")[0]
    arrays = [jax.device_put(x.copy(), cpu) for x in inputs]
    return {label: _version(run, prepare(*arrays)) for label, (run, prepare) in _FORMS[name].items()}


def _version(run: Callable[..., Array], arguments: Sequence[Array]) -> Callable[[], Array]:
    compiled = jax.jit(run)
    jax.block_until_ready((arguments, compiled(*arguments)))
    return lambda: compiled(*arguments).block_until_ready()


def _norm(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS)


def _linear(x: Array, w: Array) -> Array:
    """The product with a weight [out, in]."""
    return jnp.einsum("bi,oi->bo", x, w)


def _same(*arrays: Array) -> Sequence[Array]:
    return arrays


def _weights_out_in(x: Array, *weights: Array) -> Sequence[Array]:
    return x, *(jnp.array(w.T) if w.ndim == 2 else w for w in weights)


def _rmsnorm_linear(x: Array, g: Array, w: Array) -> Array:
    return (_norm(x) * g) @ w


def _rmsnorm_linear_out_in(x: Array, g: Array, w: Array) -> Array:
    return _linear(_norm(x) * g, w)


def _gated_mlp(x: Array, w1: Array, w2: Array) -> Array:
    return jax.nn.silu(x @ w1) * (x @ w2)


def _gated_mlp_out_in(x: Array, w1: Array, w2: Array) -> Array:
    return jax.nn.silu(_linear(x, w1)) * _linear(x, w2)


def _adapter_mlp(x: Array, w1: Array, w2: Array) -> Array:
    return jax.nn.relu(x @ w1) @ w2 + x


def _adapter_mlp_out_in(x: Array, w1: Array, w2: Array) -> Array:
    return _linear(jax.nn.relu(_linear(x, w1)), w2) + x


def _lora(x: Array, w: Array, down: Array, up: Array) -> Array:
    return x @ w + (x @ down) @ up


def _lora_out_in(x: Array, w: Array, down: Array, up: Array) -> Array:
    return _linear(x, w) + _linear(_linear(x, down), up)


def _moe(x: Array, w1: Array, w3: Array, w2: Array) -> Array:
    return (jax.nn.silu(x @ w1) * (x @ w3)) @ w2


def _norm_transformer(x: Array, h: Array, alpha: Array) -> Array:
    return _norm(x + alpha * (_norm(h) - x))


def _softmax(x: Array) -> Array:
    return jax.nn.softmax(x, -1)


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - jnp.mean(x, -1, keepdims=True)
    return _norm(centred) * weight + bias


def _rms_norm(x: Array, weight: Array) -> Array:
    return _norm(x) * weight


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Query heads that share a head of keys and values are rows of one head."""
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1]) * q.shape[-1] ** -0.5
    return (jax.nn.softmax(rows @ k.mT, -1) @ v).reshape(q.shape)


def _qknorm_attention(q: Array, k: Array, v: Array) -> Array:
    return _attention(_norm(q), _norm(k), v)


def _two_layouts(plain: Callable[..., Array], out_in: Callable[..., Array]) -> _Forms:
    return {"": (plain, _same), "transposed weights": (out_in, _weights_out_in)}


_FORMS: dict[str, _Forms] = {
    "rmsnorm_linear": _two_layouts(_rmsnorm_linear, _rmsnorm_linear_out_in),
    "gated_mlp": _two_layouts(_gated_mlp, _gated_mlp_out_in),
    "adapter_mlp": _two_layouts(_adapter_mlp, _adapter_mlp_out_in),
    "lora": _two_layouts(_lora, _lora_out_in),
    "moe": {"": (_moe, _same)},
    "norm_transformer": {"": (_norm_transformer, _same)},
    "softmax": {"": (_softmax, _same)},
    "layer_norm": {"": (_layer_norm, _same)},
    "rms_norm": {"": (_rms_norm, _same)},
    "mha_decode": {"": (_attention, _same)},
    "qknorm_attention": {"": (_qknorm_attention, _same)},
    "gqa_decode": {"": (_attention, _same)},
    "gqa_decode_d64": {"": (_attention, _same)},
    "mqa_decode": {"": (_attention, _same)},
}
