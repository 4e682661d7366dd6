"""Caches of keys and values, of `transformers`, among the arguments and results of models: objects that a call changes.

A program takes and gives the tensors in them: they are pytrees. A cache that a call was given has what the model appended, as it
has in eager mode, and is the one in the result where the model returned it.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from typing import Any

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
        lambda cache: _layers(module, cache),
        _names,
        lambda values, kinds: _cache(module, values, kinds),
    )
    _register(
        module.EncoderDecoderCache,
        lambda cache: ([getattr(cache, name) for name in _PARTS], list(_PARTS)),
        list,
        lambda values, _: module.EncoderDecoderCache(*values),
    )


_PARTS = ("self_attention_cache", "cross_attention_cache")
#: the tensors of a layer: keys and values, and of one with a window another one without elements, [n, 0], of which n is how many
#: tokens there were; a program knows numbers as sizes
_TENSORS = ("keys", "values", "seen")


def _register(kind: type, flatten: Any, names: Any, unflatten: Any) -> None:
    def with_keys(cache: Any) -> tuple[list[Any], list[str]]:
        values, context = flatten(cache)
        return [(pytree.MappingKey(n), v) for n, v in zip(names(context), values, strict=True)], context

    name = f"{kind.__module__}.{kind.__name__}"
    pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=with_keys)


def _layers(module: Any, cache: Any) -> tuple[list[Any], list[str]]:
    """The tensors of a cache, and the kind of each layer: its window, 0 for none, and how many tensors it has, as "4096.3".

    Raises InputError for a cache that has more than these.
    """
    values: list[Any] = []
    kinds: list[str] = []
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", 0)
        if type(layer) is not (module.DynamicSlidingWindowLayer if window else module.DynamicLayer):
            raise InputError(f"a cache has a {type(layer).__name__}, which is more than its tensors")
        if getattr(layer, "record_past", False):
            raise InputError("a cache records what it has lost")
        own = [layer.keys, layer.values] if layer.is_initialized else []
        if own and window:
            own.append(layer.keys.new_zeros((layer.cumulative_length, 0)))
        values += own
        kinds.append(f"{window}.{len(own)}")
    if getattr(cache, "offloading", False):
        raise InputError("a cache is offloaded")
    return values, kinds


def _kind(text: str) -> tuple[int, int]:
    """The window of a layer, and how many tensors it has."""
    window, _, count = text.partition(".")
    return int(window), int(count)


def _names(kinds: Sequence[str]) -> list[str]:
    return [f"{name}.{k}" for k, kind in enumerate(kinds) for name in _TENSORS[: _kind(kind)[1]]]


def _cache(module: Any, values: Sequence[Any], kinds: Sequence[str]) -> Any:
    cache, left = module.DynamicCache(), iter(values)
    for window, count in map(_kind, kinds):
        layer = module.DynamicSlidingWindowLayer(window) if window else module.DynamicLayer()
        tensors = dict(zip(_TENSORS, [next(left) for _ in range(count)], strict=False))
        if tensors:
            layer.keys, layer.values, layer.is_initialized = tensors["keys"], tensors["values"], True
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        if "seen" in tensors:
            layer.cumulative_length = tensors["seen"].shape[0]
        cache.layers.append(layer)
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
