"""A layer of a cache of keys and values that has room for tokens to come.

`transformers` copies all keys and values of a layer in each call, to append those of a token to them. Here they are the first
ones of larger tensors, and a call writes behind them. A module of its own, as it needs `transformers`, which programs do not.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

#: a new room is for so many times the tokens that need it, and so many more
_TIMES, _MORE = 1.5, 64


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values, [batch, heads, tokens, width], that are views of `growing_keys` and `growing_values`, with more tokens.

    Whatever else replaces them, as beams and crops do, is a layer as any until it is given room again.
    """

    def __init__(self, keys: Any, values: Any, tokens: Any) -> None:
        super().__init__()
        self.growing_keys, self.growing_values = keys, values
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._see(tokens)

    def _see(self, tokens: Any) -> None:
        self.keys, self.values = self.growing_keys[:, :, :tokens], self.growing_values[:, :, :tokens]
        self._seen = self.keys, self.values

    @classmethod
    def of(cls, layer: Any, more: int) -> Any:
        """A layer with the keys and values of another one and room for so many tokens more: itself, if it has that, or nothing
        that grows.
        """
        if type(layer) not in (DynamicLayer, cls) or not layer.is_initialized or layer.keys.ndim != 4:
            return layer
        if type(layer) is cls and layer.fits(more):
            return layer
        tokens = layer.keys.shape[2]
        room = int(_TIMES * (tokens + more)) + _MORE
        return cls(_larger(layer.keys, room), _larger(layer.values, room), tokens)

    @property
    def has_room(self) -> bool:
        """Whether keys and values are still those of the larger tensors, and these may be written to."""
        if self._seen[0] is not self.keys or self._seen[1] is not self.values or torch.is_grad_enabled():
            return False
        return torch.is_inference_mode_enabled() or not self.growing_keys.is_inference()

    def fits(self, more: Any) -> bool:
        """Whether there is room for so many tokens more, and another one: torch tells a part of a tensor from all of it, whose
        elements follow each other, and a program is for parts alone.
        """
        return self.has_room and bool(self.keys.shape[2] + more < self.growing_keys.shape[2])

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Appends the keys and values of tokens: in place, where there is room."""
        if not self.fits(key_states.shape[2]):
            found: tuple[Any, Any] = super().update(key_states, value_states, *args, **kwargs)
            return found
        before = self.keys.shape[2]
        after = before + key_states.shape[2]
        places = torch.arange(before, after)
        self.growing_keys.index_copy_(2, places, key_states)
        self.growing_values.index_copy_(2, places, value_states)
        self._see(after)
        return self.keys, self.values


def _larger(t: Any, tokens: int) -> Any:
    found = t.new_zeros((*t.shape[:2], tokens, t.shape[3]))
    found[:, :, : t.shape[2]] = t
    return found
