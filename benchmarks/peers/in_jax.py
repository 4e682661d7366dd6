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


def jax_versions(
    name: str, inputs: Mapping[str, np.ndarray], weights: Sequence[str], threads: int
) -> Mapping[str, Callable[[], Array]]:
    """By label, compiled functions of no arguments that compute program `name` for these inputs, by name.

    They read the inputs where they lie; memory that XLA does not read (it has to begin at a cache line) raises ValueError.
    Programs with weights have versions in which these are constants of the compiled function. The number of threads is that
    of the first call in a process.
    """
    # what XLA's CPU client takes the number of its threads from
    os.environ["NPROC"] = str(threads)
    # weights are prepared once, and must not change
    arrays = [jnp.array(a) if n in weights else jnp.from_dlpack(a, copy=False) for n, a in inputs.items()]
    fixed = {id(a) for n, a in zip(inputs, arrays, strict=True) if n not in weights}
    versions = {}
    for label, (run, prepare) in _FORMS[name].items():
        arguments = tuple(prepare(*arrays))
        versions[label] = _version(run, arguments)
        if weights:
            constant = ", ".join(filter(None, [label, "constant weights"]))
            versions[constant] = _version(*_with_constants(run, arguments, [id(a) not in fixed for a in arguments]))
    return versions


def _version(run: Callable[..., Array], arguments: Sequence[Array]) -> Callable[[], Array]:
    compiled = jax.jit(run)
    jax.block_until_ready((arguments, compiled(*arguments)))
    return lambda: compiled(*arguments).block_until_ready()


def _with_constants(
    run: Callable[..., Array], arguments: Sequence[Array], constant: Sequence[bool]
) -> tuple[Callable[..., Array], Sequence[Array]]:
    """A function of the other arguments, and these."""

    def rest(*given: Array) -> Array:
        others = iter(given)
        return run(*(a if fixed else next(others) for a, fixed in zip(arguments, constant, strict=True)))

    return rest, [a for a, fixed in zip(arguments, constant, strict=True) if not fixed]


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


def _gated_mlp_joined(x: Array, w: Array) -> Array:
    gate, up = jnp.split(x @ w, 2, -1)
    return jax.nn.silu(gate) * up


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


def _moe_joined(x: Array, w: Array, w2: Array) -> Array:
    return _gated_mlp_joined(x, w) @ w2


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
    "gated_mlp": {
        **_two_layouts(_gated_mlp, _gated_mlp_out_in),
        "joined weights": (_gated_mlp_joined, lambda x, w1, w2: (x, jnp.concatenate([w1, w2], -1))),
    },
    "adapter_mlp": _two_layouts(_adapter_mlp, _adapter_mlp_out_in),
    "lora": _two_layouts(_lora, _lora_out_in),
    "moe": {
        "": (_moe, _same),
        "joined weights": (_moe_joined, lambda x, w1, w3, w2: (x, jnp.concatenate([w1, w3], -1), w2)),
    },
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
