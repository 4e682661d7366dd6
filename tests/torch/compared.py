"""Functions compiled by torch.compile against the same in eager mode: all that a user may see of what they give and write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from mirage.torch.dynamo import mirage

TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}
QUICK = {"without": ("superoptimize",), "background": False}


def compiled(fn: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    """The function under torch.compile with the backend; nothing is counted yet, and what cannot be compiled is an error."""
    torch._dynamo.reset()
    counters.clear()
    found: Callable[..., Any] = torch.compile(
        fn, backend=mirage, dynamic=dynamic, options={**QUICK, "strict": True, **options}
    )
    return found


def counted() -> dict[str, int]:
    """How many graphs became what."""
    return dict(counters["mirage"])


def check_call(fn: Callable[..., Any], run: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Compare one call of both, each with arguments of its own: results, and what the arguments hold after it."""
    wanted_args, args = copy.deepcopy(args), copy.deepcopy(args)
    torch.manual_seed(1)
    wanted = fn(*wanted_args)
    torch.manual_seed(1)
    found = run(*args)
    assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
    check_equal((found, args), (wanted, wanted_args))
    return found


def check_equal(found: Any, wanted: Any) -> None:
    """Compare leaves: kinds, shapes, strides, values, and which tensors share memory."""
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.requires_grad, a.device) == (b.dtype, b.requires_grad, b.device)
            assert a.shape == b.shape
            # where there is one element the stride means nothing
            assert not a.numel() or [s for s, n in zip(a.stride(), a.shape, strict=True) if n > 1] == [
                s for s, n in zip(b.stride(), b.shape, strict=True) if n > 1
            ]
            exact = not (a.dtype.is_floating_point or a.is_complex()) or a.dtype.itemsize == 1
            torch.testing.assert_close(a, b, equal_nan=True, **({"atol": 0, "rtol": 0} if exact else TOLERANCE))
        else:
            assert a == b
    assert _shared(_tensors(found)) == _shared(_tensors(wanted))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _shared(tensors: Sequence[torch.Tensor]) -> list[list[bool]]:
    addresses = [t.untyped_storage().data_ptr() if t.numel() else -k for k, t in enumerate(tensors)]
    return [[a == b for b in addresses] for a in addresses]
