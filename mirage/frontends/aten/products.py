"""Products by torch, which programs that came from there call.

Those with constant weights and many rows go to oneDNN, as torch has it: with packed weights, and what follows a product computed
with it; where torch was built without oneDNN, to ATen's own products. With fewer rows, ours are faster, on torch's threads. All
others go to ATen, not to NumPy's BLAS: each of the two has threads that stay awake for a while after a product, on which the
other one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch

from mirage.frontends.aten.fallback import to_torch
from mirage.kernels.cpu.launch.halves import in_float32
from mirage.kernels.cpu.launch.linear import FEWER
from mirage.kernels.cpu.launch.linear import matmul as few_rows
from mirage.kernels.cpu.launch.panels import Panels
from mirage.runtime.packed import register_library, register_packed

#: rows for which oneDNN packs weights: the packed form is one of the fastest for all numbers of rows but 1
ROWS = 128

#: bytes of a result that oneDNN gives at once: glibc asks the system for fresh pages for what is larger than 32 MiB
AT_ONCE = 24 << 20

#: the function after a product: its name for oneDNN, and what computes it in place
_ACTIVATIONS: Mapping[str, tuple[tuple[str, str], Callable[[torch.Tensor], Any]]] = {
    "": (("none", ""), lambda x: x),
    "gelu": (("gelu", "none"), lambda x: torch.ops.aten.gelu_(x)),
    "relu": (("relu", ""), torch.relu_),
    "sigmoid": (("sigmoid", ""), torch.sigmoid_),
    "silu": (("swish", ""), lambda x: torch.nn.functional.silu(x, inplace=True)),
    "tanh": (("tanh", ""), torch.tanh_),
}


class PackedWeight(Panels):
    """A weight in panels, and as oneDNN reads it; each is made when it is first needed."""

    @cached_property
    def tensor(self) -> torch.Tensor | None:
        """The weight as oneDNN reads it; None where it is read as it is."""
        if not self.weight.size or not _is_available():
            return None
        # torch transposes in blocks, NumPy one element after the other
        w = to_torch(self.weight)
        return torch.ops.mkldnn._reorder_linear_weight(w if self.transposed else w.t().contiguous(), ROWS)


#: what programs pack weights with
pack = PackedWeight.of


def linear(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    packed: bool = False,
    bias: bool = False,
    activation: str = "",
) -> None:
    """`x[..., k] @ w[k, n]`, or `x @ w[n, k].T` where `right` is (1, 0); then `+ bias[n]`, then an activation.

    `inputs` are x, w, its `PackedWeight` if it is `packed`, and the bias if there is one.
    """
    x, w, *rest = inputs
    form: PackedWeight | None = rest.pop(0) if packed else None
    transposed = tuple(right) == (1, 0)
    rows, depth, columns = prod(x.shape[:-1]), x.shape[-1], outputs[0].shape[-1]
    if rows <= FEWER and outputs[0].dtype == np.float32:
        given = [x.reshape(rows, depth), w, *([] if form is None else [form]), *rest]
        out = outputs[0].reshape(rows, columns)
        few_rows(given, [out], right=right, packed=packed, bias=bias, activation=activation)
        return
    b = to_torch(rest[0]) if bias else None
    left, result = to_torch(x).reshape(rows, depth), to_torch(outputs[0]).reshape(rows, columns)
    (name, algorithm), in_place = _ACTIVATIONS[activation]
    if form is not None and form.tensor is not None:
        parts = -(-result.nbytes // AT_ONCE)
        for x_rows, out_rows in zip(left.chunk(parts), result.chunk(parts), strict=True):
            out_rows.copy_(torch.ops.mkldnn._linear_pointwise(x_rows, form.tensor, b, name, [], algorithm))
        return
    read = to_torch(w).t() if transposed else to_torch(w)
    if b is None:
        torch.mm(left, read, out=result)
    else:
        torch.addmm(b, left, read, out=result)
    in_place(result)


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


def _is_available() -> bool:
    """Whether torch has oneDNN's products for tensors of the processor."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


register_library("onednn.linear", linear)
register_library("torch.matmul", matmul)
register_library("torch.convolution", convolution)
register_packed("onednn.pack", pack)
