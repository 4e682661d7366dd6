"""The arguments of a call as tensors in order, and the rest as a key: calls with equal keys may share a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from mirage.errors import InputError
from mirage.torch.caches import caches_in, give_room

#: what a call is but for the shapes and contents of its tensors
Key: TypeAlias = tuple[Any, ...]

#: values that a program may be made for, beside tensors
PLAIN = (type(None), bool, int, float, str, torch.dtype)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Given:
    """The arguments of one call: `tensors` in order, the `key` of everything else, and the `caches` among them."""

    key: Key
    tensors: list[Any]
    caches: list[Any]


def split(args: Sequence[Any], kwargs: Mapping[str, Any], grows: bool = False) -> Given:
    """The arguments of a call; those by name in the order of the names. With `grows`, caches that grow get room for its tokens.

    Raises InputError for a value that no program can be made for: a tensor of another device or kind, or an object that is
    neither a plain value nor a pytree of such.
    """
    names = tuple(sorted(kwargs))
    values = [*args, *(kwargs[name] for name in names)]
    if grows:
        give_room(values)
    key: list[Any] = [len(args), names]
    tensors: list[Any] = []
    for x in values:
        kind = type(x)
        if kind in _TENSORS:
            key.append(_tensor(x, tensors))
        elif kind in PLAIN:
            key.append((kind, x))
        else:
            leaves, spec = pytree.tree_flatten(x)
            key.append((spec, *(_leaf(v, tensors) for v in leaves)))
    return Given(tuple(key), tensors, caches_in(values))


def _leaf(x: Any, tensors: list[Any]) -> Any:
    if isinstance(x, torch.Tensor):
        if type(x) not in _TENSORS:
            raise InputError(f"an argument is a {type(x).__name__}, and programs take plain tensors")
        return _tensor(x, tensors)
    if isinstance(x, PLAIN):
        return type(x), x
    raise InputError(f"an argument is a {type(x).__name__}, which is neither a tensor, a plain value, nor a pytree of such")


def _tensor(x: Any, tensors: list[Any]) -> tuple[Any, int]:
    if not x.is_cpu or x.layout is not torch.strided:
        raise InputError(f"an argument is a tensor on {x.device} with layout {x.layout}; programs take dense ones on the CPU")
    tensors.append(x)
    return x.dtype, x.ndim


def dtype_name(dtype: Any) -> str:
    """The name of an element type, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def ordered(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name in the order in which `split` takes them."""
    return {name: kwargs[name] for name in sorted(kwargs)}


def names_of(args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[str]) -> list[str]:
    """What each of the tensors is called in messages, such as `past[0]`; `parameters` are the names of the function's."""
    found: list[str] = []
    top = [*(parameters[k] if k < len(parameters) else f"args[{k}]" for k in range(len(args))), *sorted(kwargs)]
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    for name, value in zip(top, values, strict=True):
        found += [
            name + pytree.keystr(path)
            for path, leaf in pytree.tree_flatten_with_path(value)[0]
            if isinstance(leaf, torch.Tensor)
        ]
    return found
