"""Whether a compiled program gives what the model does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

#: largest difference of two ways to compute the same, as a share of the largest element
_SHARE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def difference(found: Any, expected: Any) -> str | None:
    """What differs between two results of a model, in words; None where nothing does, but for rounding."""
    leaves, spec = pytree.tree_flatten(found)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    if spec != wanted_spec:
        return f"the result is a {spec}, the model's {wanted_spec}"
    for k, (a, b) in enumerate(zip(leaves, wanted, strict=True)):
        if (why := _differ(a, b)) is not None:
            return f"result {k} {why}" if len(leaves) > 1 else f"the result {why}"
    return None


def _differ(a: Any, b: Any) -> str | None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return None if same else f"is {a!r}, the model's {b!r}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype} of shape {list(a.shape)}, the model's {b.dtype} of shape {list(b.shape)}"
    if not b.numel():
        return None
    share = _SHARE.get(b.dtype)
    if share is None:
        return None if torch.equal(a, b) else f"differs in {int((a != b).sum())} of {b.numel()} elements"
    x, y = a.double(), b.double()
    finite = y.isfinite()
    if not torch.equal(x.nan_to_num(0, 1, -1)[~finite], y.nan_to_num(0, 1, -1)[~finite]) or not x[finite].isfinite().all():
        return "has infinities or NaNs in other places"
    if not finite.any():
        return None
    error = float((x - y)[finite].abs().max())
    largest = float(y[finite].abs().max())
    return f"differs by {error:.3g}, where the largest element is {largest:.3g}" if error > share * (largest or 1) else None
