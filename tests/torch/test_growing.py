"""Layers of caches with room for tokens to come."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mirage.torch.caches import give_room, register_caches  # noqa: E402
from mirage.torch.growing import GrowingLayer  # noqa: E402


def filled(tokens: int, layers: int = 2) -> Any:
    register_caches()
    cache = transformers.DynamicCache()
    for k in range(layers):
        cache.update(torch.randn(2, 3, tokens, 4), torch.randn(2, 3, tokens, 5), k)
    return cache


def room(cache: Any) -> list[int]:
    return [layer.growing_keys.data_ptr() for layer in cache.layers]


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def test_tokens_are_written_behind_the_others() -> None:
    cache, plain = filled(5), filled(5)
    for ours, theirs in zip(cache.layers, plain.layers, strict=True):
        theirs.keys, theirs.values = ours.keys.clone(), ours.values.clone()
    give_room([cache, torch.zeros(2, 3)])
    before = room(cache)
    for _ in range(3):
        k, v = torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 5)
        for layer in range(2):
            for a, b in zip(cache.update(k, v, layer), plain.update(k, v, layer), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert room(cache) == before and cache.get_seq_length() == 8
    give_room([cache, torch.zeros(2, 3)])
    assert room(cache) == before


def test_more_tokens_than_there_is_room_for() -> None:
    cache = filled(5)
    give_room([cache])
    k, v = torch.randn(2, 3, 500, 4), torch.randn(2, 3, 500, 5)
    assert cache.update(k, v, 0)[0].shape[2] == 505 and not cache.layers[0].has_room
    give_room([cache])
    assert all(layer.has_room and layer.growing_keys.shape[2] > layer.keys.shape[2] for layer in cache.layers)


def test_what_replaces_keys_has_no_room_until_it_is_given() -> None:
    for change in (
        lambda c: c.crop(-2), lambda c: c.batch_repeat_interleave(2), lambda c: c.reorder_cache(torch.tensor([1, 0])),
        lambda c: c.batch_select_indices(torch.tensor([0])),
    ):  # fmt: skip
        cache = filled(5)
        give_room([cache])
        before, kept = room(cache), [layer.keys for layer in cache.layers]
        copied = [t.clone() for t in kept]
        change(cache)
        assert not any(layer.has_room for layer in cache.layers)
        wanted = [layer.keys.clone() for layer in cache.layers]
        give_room([cache])
        assert not set(before) & set(room(cache))
        for layer, w in zip(cache.layers, wanted, strict=True):
            torch.testing.assert_close(layer.keys, w, rtol=0, atol=0)
            layer.update(torch.zeros(*w.shape[:2], 1, 4), torch.zeros(*w.shape[:2], 1, 5))
        # what somebody else still has is what it was
        for t, w in zip(kept, copied, strict=True):
            torch.testing.assert_close(t, w, rtol=0, atol=0)
    cache.reset()
    give_room([cache])
    assert cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)[0].shape[2] == 2


def test_copies_have_room_of_their_own() -> None:
    cache = filled(5)
    give_room([cache])
    other = copy.deepcopy(cache)
    assert all(layer.has_room for layer in other.layers) and not set(room(cache)) & set(room(other))
    other.update(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 1, 5), 0)
    assert cache.get_seq_length() == 5


def test_gradients_and_inference_mode() -> None:
    """What autograd keeps is not written to, nor what was made in inference mode outside of it."""
    with torch.inference_mode():
        cache = filled(5)
        give_room([cache])
        before = room(cache)
        cache.update(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 1, 5), 0)
        assert room(cache) == before
    assert not cache.layers[0].has_room
    assert cache.update(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 1, 5), 0)[0].shape[2] == 7
    with torch.enable_grad():
        again = filled(5)
        give_room([again])
        assert not any(isinstance(layer, GrowingLayer) for layer in again.layers)
        cache = filled(5)
        with torch.no_grad():
            give_room([cache])
        keys = torch.ones(2, 3, 1, 4, requires_grad=True)
        first = cache.update(keys, torch.ones(2, 3, 1, 5), 0)[0].sum()
        cache.update(keys, torch.ones(2, 3, 1, 5), 0)
        first.backward()
        assert keys.grad is not None


def test_an_encoders_keys_do_not_grow() -> None:
    both = transformers.EncoderDecoderCache(filled(5), filled(7))
    give_room([both])
    assert all(isinstance(layer, GrowingLayer) for layer in both.self_attention_cache.layers)
    assert not any(isinstance(layer, GrowingLayer) for layer in both.cross_attention_cache.layers)
    with pytest.raises(Exception, match="growing_values"):
        torch.utils._pytree.tree_unflatten(
            [torch.zeros(2, 2, 2, 2)],
            torch.utils._pytree.TreeSpec(transformers.DynamicCache, ["growing_keys.0"], [torch.utils._pytree.tree_flatten(0)[1]]),
        )


def test_layers_of_different_lengths() -> None:
    """Each has its own number of tokens, noted where it is another one than that before."""
    cache = filled(5, layers=3)
    cache.update(torch.zeros(2, 3, 2, 4), torch.zeros(2, 3, 2, 5), 1)
    give_room([cache])
    leaves, spec = torch.utils._pytree.tree_flatten(cache)
    assert [n for n in spec.context if n.startswith("tokens")] == ["tokens.0", "tokens.1", "tokens.2"]
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert [layer.keys.shape[2] for layer in again.layers] == [5, 7, 5]
    assert [layer.keys.shape[2] for layer in cache.layers] == [5, 7, 5]
