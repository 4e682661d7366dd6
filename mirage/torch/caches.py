"""Caches of keys and values, of `transformers`, among the arguments and results of models: objects that a call changes.

A program takes and gives the tensors in them: they are pytrees. A cache that a call was given has what the model appended, as it
has in eager mode, and is the one in the result where the model returned it.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage.errors import InputError

#: the module of the classes, once something has imported it
_MODULE = "transformers.cache_utils"


def register_caches() -> None:
    """Make pytrees of the classes of caches, where `transformers` is imported and nobody has."""
    module = sys.modules.get(_MODULE)
    if module is None or module.DynamicCache in pytree.SUPPORTED_NODES:
        return
    _register(
        module.DynamicCache,
        lambda cache: _tensors(module, cache),
        lambda values, names: _cache(module, values, names),
    )
    _register(
        module.EncoderDecoderCache,
        lambda cache: ([getattr(cache, name) for name in _PARTS], list(_PARTS)),
        lambda values, _: module.EncoderDecoderCache(*values),
    )


_PARTS = ("self_attention_cache", "cross_attention_cache")


def _register(kind: type, flatten: Any, unflatten: Any) -> None:
    def with_keys(cache: Any) -> tuple[list[Any], list[str]]:
        values, names = flatten(cache)
        return [(pytree.MappingKey(n), v) for n, v in zip(names, values, strict=True)], names

    name = f"{kind.__module__}.{kind.__name__}"
    pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=with_keys)


def _tensors(module: Any, cache: Any) -> tuple[list[Any], list[str]]:
    """The tensors of a cache, with names such as "keys.3"; a layer with a window of 4096 has "seen.3.4096", too, without
    elements, [n, 0], of which n is how many tokens there were: programs know numbers as sizes.

    Raises InputError for a cache that has more than these.
    """
    values: list[Any] = []
    names: list[str] = []
    for k, layer in enumerate(cache.layers):
        window = getattr(layer, "sliding_window", 0)
        if type(layer) is not (module.DynamicSlidingWindowLayer if window else module.DynamicLayer):
            raise InputError(f"a cache has a {type(layer).__name__}, which is more than its tensors")
        if getattr(layer, "record_past", False):
            raise InputError("a cache records what it has lost")
        if layer.is_initialized:
            values += [layer.keys, layer.values]
            names += [f"keys.{k}", f"values.{k}"]
        if window:
            values.append(torch.zeros((layer.cumulative_length, 0)))
            names.append(f"seen.{k}.{window}")
    if getattr(cache, "offloading", False):
        raise InputError("a cache is offloaded")
    return values, names


def _cache(module: Any, values: Sequence[Any], names: Sequence[str]) -> Any:
    cache = module.DynamicCache()
    windows = {parts[1]: int(parts[2]) for parts in (name.split(".") for name in names) if len(parts) > 2}
    for name, value in zip(names, values, strict=True):
        what, number, *_ = name.split(".")
        while len(cache.layers) <= int(number):
            window = windows.get(str(len(cache.layers)))
            cache.layers.append(module.DynamicSlidingWindowLayer(window) if window else module.DynamicLayer())
        layer = cache.layers[int(number)]
        if what != "seen":
            setattr(layer, what, value)
            layer.dtype, layer.device, layer.is_initialized = value.dtype, value.device, True
        elif layer.is_initialized:
            layer.cumulative_length = value.shape[0]
    return cache


def caches_in(values: Sequence[Any]) -> list[Any]:
    """Those of some arguments that are caches."""
    module = sys.modules.get(_MODULE)
    return [] if module is None else [v for v in values if type(v) in (module.DynamicCache, module.EncoderDecoderCache)]


def places(caches: Sequence[Any], result: Any) -> tuple[str, ...]:
    """For each cache, under which name, or number, a result has it, the empty text where it has it nowhere."""
    if not isinstance(result, MutableMapping | tuple | list):
        return ("",) * len(caches)
    parts = result.items() if isinstance(result, MutableMapping) else enumerate(result)
    names = {id(value): str(name) for name, value in parts}
    return tuple(names.get(id(cache), "") for cache in caches)


def updated(caches: Sequence[Any], places: Sequence[str], result: Any, others: Sequence[Any]) -> Any:
    """A result, with the caches that a call was given where it has them, after these took what they have become: that of those
    without a place is in `others`, in order.
    """
    left = iter(others)
    for cache, place in zip(caches, places, strict=True):
        if not place:
            _take(cache, next(left))
        elif isinstance(result, MutableMapping):
            _take(cache, result[place])
            result[place] = cache
        else:
            _take(cache, result[int(place)])
            result = type(result)([cache if k == int(place) else v for k, v in enumerate(result)])
    return result


def _take(cache: Any, other: Any) -> None:
    if hasattr(cache, _PARTS[0]):
        for part in _PARTS:
            _take(getattr(cache, part), getattr(other, part))
        cache.is_updated = other.is_updated
    else:
        cache.layers = other.layers
