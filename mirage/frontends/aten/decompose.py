"""Which operators stay whole before a graph is imported, and which are split into ATen's core operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.export import default_decompositions
from torch.fx.experimental.symbolic_shapes import statically_known_true

#: what the graph IR has, or makes better of, as one: torch would split it
WHOLE = (
    "scaled_dot_product_attention",
    "linear",
    "matmul",
    "layer_norm",
    "rms_norm",
    "silu",
    "native_layer_norm",
    "index_add",
    "index_copy",
    "index_fill",
    "linspace",
    "eye",
    "roll",
    "select_scatter",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    # their parts are an effect: the check that there is a result
    "inverse",
    "linalg_cholesky",
    "linalg_inv",
    "linalg_ldl_factor",
    "linalg_lu_factor",
    "linalg_solve",
)

#: what torch counts among its core operators, or leaves whole for other reasons, and can split: the graph IR has no better
SPLIT = (
    "_adaptive_avg_pool2d",
    "_batch_norm_with_update_functional",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit.no_stats",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "dist",
    "grid_sampler_2d",
    "linalg_vector_norm",
    "max_pool2d_with_indices_backward",
    "native_group_norm",
    "narrow_copy",
    "permute_copy",
    "unbind_copy",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
    "view_copy",
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions` and AOTAutograd: torch's core operators and those of `WHOLE` stay."""
    # others may be registered at any time
    return dict(_decompositions(frozenset(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))))


@lru_cache(maxsize=1)
def _decompositions(registered: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """The table while these operators are registered that are made of others."""
    table = default_decompositions()
    for op in list(table):
        if isinstance(op, torch._ops.OpOverload) and op._schema.name.partition("::")[2] in WHOLE:
            del table[op]
    split = get_decompositions([attrgetter(name)(torch.ops.aten) for name in SPLIT])
    own = {torch.ops.aten.unique_consecutive.default: _unique_consecutive}
    for rank in (1, 2, 3):
        nearest = getattr(torch.ops.aten, f"upsample_nearest{rank}d").default
        own[nearest] = partial(_nearest, split[nearest])
    return {**table, **split, **own}


def _nearest(split: Callable[..., Any], x: Any, size: Sequence[Any], *scales: float | None) -> Any:
    """Elements repeated a whole number of times, where sizes and scales say so; else picked by index."""
    lead = x.ndim - len(size)
    times = [n // old for n, old in zip(size, x.shape[lead:], strict=True)]
    whole = all(statically_known_true(n == t * old) for n, t, old in zip(size, times, x.shape[lead:], strict=True))
    if not whole or not all(isinstance(t, int) and s in (None, t) for t, s in zip(times, scales or times, strict=True)):
        return split(x, size, *scales)
    for k, t in enumerate(times, lead):
        if t != 1:
            x = x.unsqueeze(k + 1).expand(*x.shape[: k + 1], t, *x.shape[k + 1 :]).flatten(k, k + 1)
    return x


def _unique_consecutive(x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The operator with its dim counted from the front: torch says wrong shapes of its results where that is negative."""
    if dim is None or dim >= 0:
        return NotImplemented
    return torch.ops.aten.unique_consecutive(x, return_inverse, return_counts, dim + x.ndim)
