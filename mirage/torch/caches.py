"""Caches of keys and values, of `transformers`, among the arguments and results of models: objects that a call changes.

A program takes and gives the tensors in them: they are pytrees. A cache that a call was given has what the model appended, as it
has in eager mode, and is the one in the result where the model returned it. Before a call without gradients, layers that grow get
room for its tokens (`mirage.torch.growing`), which the program writes to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage.errors import InputError

#: the module of the classes, once something has imported it
_MODULE = "transformers.cache_utils"


def register_caches() -> None:
    """Make pytrees of the classes of caches, where `transformers` is imported and nobody has."""
    module = sys.modules.get(_MODULE)
    if module is None or module.EncoderDecoderCache in pytree.SUPPORTED_NODES:
        return
    for static, name in enumerate(_NAMES):
        _register(getattr(module, name), partial(_tensors, module, bool(static)), partial(_cache, module, bool(static)))
    _register(
        module.EncoderDecoderCache,
        lambda cache: ([getattr(cache, name) for name in _PARTS], list(_PARTS)),
        lambda values, _: _both(module, values),
    )


#: the classes: of caches that grow, and of static ones, whose tensors keep their sizes and are written to
_NAMES = ("DynamicCache", "StaticCache")
#: what layers of static caches are made with
_OF_STATIC_LAYERS = ("max_cache_len", "_is_croppable")
_PARTS = ("self_attention_cache", "cross_attention_cache")
#: the tensors of a layer with room
_GROWING = ("growing_keys", "growing_values")
#: names of the tensors of a cache, see `_tensors`
_TENSOR = re.compile(r"(keys|values|growing_keys|growing_values|tokens|seen|length|room)\.(\d{1,4})(?:\.(\d{1,9}))?")


def _register(kind: type, flatten: Any, unflatten: Any) -> None:
    if kind in pytree.SUPPORTED_NODES:
        return

    def with_keys(cache: Any) -> tuple[list[Any], list[str]]:
        values, names = flatten(cache)
        return [(pytree.MappingKey(n), v) for n, v in zip(names, values, strict=True)], names

    name = f"{kind.__module__}.{kind.__name__}"
    pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=with_keys)


def _tensors(module: Any, static: bool, cache: Any) -> tuple[list[Any], list[str]]:
    """The tensors of a cache, with names such as "keys.3".

    A layer with a window of 4096 has "seen.3.4096", too, without elements, [n, 0], of which n is how many tokens there were:
    programs know numbers as sizes. One with room has "growing_keys.3", "growing_values.3", and "tokens.3", [n, 0], of which n is
    how many tokens it has, if the one before has not as many. One of a static cache has "length.3", and, before its first call,
    "room.3", [n, 0], with room for n tokens. Raises InputError for a cache that has more than these.
    """
    values: list[Any] = []
    names: list[str] = []
    tokens, growing = None, None if static else _growing_layer()
    for k, layer in enumerate(cache.layers):
        sliding = getattr(layer, "is_sliding", False)
        grows = type(layer) is growing
        if not grows and type(layer) is not _class(module, static, sliding):
            raise InputError(f"a cache has a {type(layer).__name__}, which is more than its tensors")
        if getattr(layer, "record_past", False):
            raise InputError("a cache records what it has lost")
        if grows and layer.has_room:
            values += [layer.growing_keys, layer.growing_values]
            names += [f"{name}.{k}" for name in _GROWING]
            if tokens is None or tokens != layer.keys.shape[2]:
                tokens = layer.keys.shape[2]
                values.append(torch.zeros((tokens, 0)))
                names.append(f"tokens.{k}")
        elif layer.is_initialized:
            values += [layer.keys, layer.values]
            names += [f"keys.{k}", f"values.{k}"]
        if static:
            values.append(layer.cumulative_length)
            names.append(f"length.{k}")
            if not layer.is_initialized:
                values.append(torch.zeros((layer.max_cache_len, 0)))
                names.append(f"room.{k}")
        if sliding:
            values.append(torch.zeros((layer.cumulative_length_int if static else layer.cumulative_length, 0)))
            names.append(f"seen.{k}" if static else f"seen.{k}.{layer.sliding_window}")
    if getattr(cache, "offloading", False):
        raise InputError("a cache is offloaded")
    return values, names


def _growing_layer() -> Any:
    return import_module("mirage.torch.growing").GrowingLayer


def give_room(values: Sequence[Any]) -> None:
    """Give room for more tokens to layers that grow, of the caches among some arguments: for as many as the arguments may have.

    What an encoder gives is in a cache of the same kind, and does not grow.
    """
    if torch.is_grad_enabled():
        return
    more = None
    for cache in caches_in(values):
        growing = getattr(cache, _PARTS[0], cache)
        if type(growing).__name__ != _NAMES[False]:
            continue
        if more is None:
            # tokens, embeddings, masks and positions have them in their second dim
            tensors = [t for t in pytree.tree_leaves(values, is_leaf=_is_cache) if isinstance(t, torch.Tensor)]
            more = max((t.shape[1] for t in tensors if t.ndim in (2, 3)), default=1)
        with_room = _growing_layer().of
        growing.layers = [with_room(layer, more) for layer in growing.layers]


def grows(key: Sequence[Any]) -> bool:
    """Whether a key of `arguments.split` has a cache with room."""
    return any(_GROWING[0] in repr(part) for part in key)


def _class(module: Any, static: bool, sliding: bool) -> Any:
    return getattr(module, f"{'Static' if static else 'Dynamic'}{'SlidingWindow' if sliding else ''}Layer")


def _cache(module: Any, static: bool, values: Sequence[Any], names: Sequence[str]) -> Any:
    """A cache of such tensors; raises InputError for names that none has, as a changed file may."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in zip(names, values, strict=True):
        parts = _TENSOR.fullmatch(name)
        if parts is None:
            raise InputError(f"a cache of keys and values has no tensor {name[:40]!r}")
        tensors = found.setdefault(int(parts[2]), {})
        tensors[parts[1]] = value
        if parts[3] is not None:
            tensors["window"] = int(parts[3])
    kind = getattr(module, _NAMES[static])
    cache = kind.__new__(kind)
    module.Cache.__init__(cache, **{"layers": []} if static else {"layer_class_to_replicate": module.DynamicLayer})
    layer = _static_layer if static else _dynamic_layer
    _note_equal_sizes(found.values())
    common: dict[str, Any] = {}
    try:
        for k in range(max(found, default=-1) + 1):
            tensors = {**common, **found.get(k, {})}
            common = {name: tensors[name] for name in ("tokens",) if name in tensors}
            cache.layers.append(layer(module, tensors))
    except KeyError as e:
        raise InputError(f"a cache of keys and values has a layer without {e}") from None
    return cache


def _note_equal_sizes(layers: Iterable[Mapping[str, Any]]) -> None:
    """Tell torch, which exports a model with these tensors, that layers of one kind have as many sequences, heads and tokens: a
    program with a symbol for the length of each would have kernels for each.
    """
    first: dict[tuple[bool, bool], Any] = {}
    for tensors in layers:
        for t, grows in ((tensors[name], name in _GROWING) for name in ("keys", "values", *_GROWING) if name in tensors):
            sizes = first.setdefault(("seen" in tensors, grows), t.shape)[:3]
            for a, b in zip(sizes, t.shape[:3], strict=False):
                if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.hint == b.node.hint:
                    torch._check(a == b)


def _dynamic_layer(module: Any, tensors: Mapping[str, Any]) -> Any:
    if _GROWING[0] in tensors:
        return _growing_layer()(*(tensors[name] for name in _GROWING), tensors["tokens"].shape[0])
    sliding = "seen" in tensors
    layer = _class(module, False, sliding)(**{"sliding_window": tensors["window"]} if sliding else {})
    if "keys" in tensors:
        _fill(layer, tensors)
        if sliding:
            layer.cumulative_length = tensors["seen"].shape[0]
    return layer


def _static_layer(module: Any, tensors: Mapping[str, Any]) -> Any:
    sliding = "seen" in tensors
    room = tensors["keys"].shape[2] if "keys" in tensors else tensors["room"].shape[0]
    layer = _class(module, True, sliding)(room, **{"sliding_window": room} if sliding else {})
    layer.cumulative_length = tensors["length"]
    if sliding:
        layer.cumulative_length_int = tensors["seen"].shape[0]
    if "keys" in tensors:
        _fill(layer, tensors)
        layer.batch_size, layer.num_heads, _, layer.k_head_dim = layer.keys.shape
        layer.v_head_dim = layer.values.shape[-1]
    return layer


def _fill(layer: Any, tensors: Mapping[str, Any]) -> None:
    layer.keys, layer.values = tensors["keys"], tensors["values"]
    layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True


def _both(module: Any, values: Sequence[Any]) -> Any:
    """The cache of a decoder, of that of its own tokens and that of the encoder's, whose layers are filled or not: its
    constructor would ask a static one for its length, which is the content of a tensor.
    """
    found = module.EncoderDecoderCache.__new__(module.EncoderDecoderCache)
    found.self_attention_cache, found.cross_attention_cache = values
    found.is_updated = {k: _is_filled(layer) for k, layer in enumerate(found.cross_attention_cache.layers)}
    return found


def _is_filled(layer: Any) -> bool:
    return bool(layer.is_initialized and (hasattr(layer, "max_cache_len") or layer.get_seq_length() > 0))


def caches_in(values: Sequence[Any]) -> list[Any]:
    """Those of some arguments that are caches."""
    return [v for v in values if _is_cache(v)]


def _is_cache(value: Any) -> bool:
    module = sys.modules.get(_MODULE)
    return module is not None and type(value) in (*(getattr(module, n) for n in _NAMES), module.EncoderDecoderCache)


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
    elif type(cache).__name__ == _NAMES[True]:
        # its layers keep their room, and the tensors that they have
        for layer, new in zip(cache.layers, other.layers, strict=True):
            vars(layer).update({n: v for n, v in vars(new).items() if n not in _OF_STATIC_LAYERS})
    else:
        cache.layers = other.layers
