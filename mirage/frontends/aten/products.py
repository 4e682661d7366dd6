"""Products and convolutions by torch, which programs that came from there call: those without constant weights.

They go to ATen, not to NumPy's BLAS: each of the two has threads that stay awake for a while after a product, on which the other
one waits. Products with constant weights are ours, on torch's threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mirage.frontends.aten.fallback import to_torch
from mirage.kernels.cpu.launch.halves import in_float32
from mirage.runtime.packed import register_library


@in_float32
def matmul(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    bias: bool = False,
    relu: bool = False,
) -> None:
    """What `mirage.kernels.blas.matmul` computes, the 16-bit types in float32."""
    x, y = (to_torch(a).permute(*p) if p else to_torch(a) for a, p in zip(inputs[:2], (left, right), strict=True))
    out = to_torch(outputs[0])
    torch.matmul(x, y, out=out)
    if bias:
        out += to_torch(inputs[2])
    if relu:
        torch.relu_(out)


def convolution(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> None:
    """What the operator `convolution` computes."""
    x, w = map(to_torch, inputs)
    none = [0] * len(strides)
    found = torch.convolution(x, w, None, list(strides), none, list(dilations), False, none, groups)
    to_torch(outputs[0]).copy_(found)


register_library("torch.matmul", matmul)
register_library("torch.convolution", convolution)
