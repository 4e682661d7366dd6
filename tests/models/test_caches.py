"""Caches of keys and values as arguments and results of exported models: calls append to them, as they do in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import mirage.torch  # noqa: E402
from mirage.errors import InputError  # noqa: E402
from mirage.torch.caches import places, register_caches, updated  # noqa: E402

_SMALL: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
_SMALL |= {"intermediate_size": 64, "num_key_value_heads": 2, "pad_token_id": 0}
#: without kernels, which take longer to compile than to run
QUICK: dict[str, Any] = {"background": False, "without": ("superoptimize", "fuse")}


def gpt2() -> Any:
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=99, n_positions=128, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**_SMALL, sliding_window=12))


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=99, **sizes))


def slow(model: Callable[[], Any]) -> Any:
    return pytest.param(model, marks=pytest.mark.slow)


def made(model: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return model().eval()


def ids(b: int, s: int) -> Any:
    return torch.randint(3, 99, (b, s))


def calls(model: Any) -> dict[str, Any]:
    """Arguments that all calls of a model have in common."""
    if not model.config.is_encoder_decoder:
        return {}
    with torch.no_grad():
        return {"encoder_outputs": model.get_encoder()(ids(2, 6))}


def tokens(model: Any, given: Any) -> dict[str, Any]:
    return {"decoder_input_ids" if model.config.is_encoder_decoder else "input_ids": given}


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("model", [slow(gpt2), llama, slow(t5)])
def test_a_call_appends_to_the_cache_that_it_is_given(model: Callable[[], Any]) -> None:
    eager = made(model)
    run = mirage.torch.compile(eager, **QUICK)
    common = calls(eager)
    for length in (5, 2, 1):
        given = ids(2, length)
        found, wanted = run(**tokens(eager, given), **common), eager(**tokens(eager, given), **common)
        ours, theirs = found.past_key_values, wanted.past_key_values
        assert type(ours) is type(theirs)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
        for k in range(3):
            given = ids(2, 1 + k % 2)
            found = run(**tokens(eager, given), cache=ours, **common)
            wanted = eager(**tokens(eager, given), cache=theirs, **common)
            torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
            assert found.past_key_values is ours and ours.get_seq_length() == theirs.get_seq_length()
    assert not run.eager and len(run.programs) == 2
    assert all(not p.imported.fallback for p in run.programs)


@pytest.mark.slow
def test_an_empty_cache_is_filled() -> None:
    eager = made(llama)
    run = mirage.torch.compile(eager, **QUICK)
    for empty in (transformers.DynamicCache, lambda: transformers.DynamicCache(config=eager.config)):
        cache = empty()
        assert run(input_ids=ids(2, 5), cache=cache).past_key_values is cache
        assert cache.get_seq_length() == 5 and len(cache.layers) == 1
        # another use of the same cache goes on
        run(input_ids=ids(2, 3), cache=cache)
        assert cache.get_seq_length() == 8
    assert not run.eager


@pytest.mark.slow
def test_an_empty_cache_of_a_sliding_window_is_filled() -> None:
    eager = made(gemma3)
    run = mirage.torch.compile(eager, **QUICK, strict=True)
    ours, theirs = (transformers.DynamicCache(config=eager.config) for _ in range(2))
    for length in (5, 2, 1):
        given = ids(2, length)
        found, wanted = run(input_ids=given, cache=ours), eager(input_ids=given, cache=theirs)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
        assert all(isinstance(a, type(b)) for a, b in zip(ours.layers, theirs.layers, strict=True))
    assert not run.eager


@pytest.mark.slow
def test_a_cache_that_is_not_returned_is_filled() -> None:
    class Scores(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = made(llama)

        def forward(self, tokens: Any, cache: Any) -> Any:
            return self.inner(input_ids=tokens, cache=cache).logits[:, -1]

    eager = Scores().eval()
    run = mirage.torch.compile(eager, **QUICK)
    ours, theirs = transformers.DynamicCache(), transformers.DynamicCache()
    for k, length in enumerate((4, 1, 1, 2)):
        given = ids(2, length)
        torch.testing.assert_close(run(given, ours), eager(given, theirs), atol=1e-4, rtol=1e-4)
        assert ours.get_seq_length() == theirs.get_seq_length() == (4, 5, 6, 8)[k]
    assert not run.eager


def generated(eager: Any, lengths: Sequence[int], **how: Any) -> Any:
    """A model's compiled method, after it gave the tokens that the model gives, to prompts of these lengths."""
    compiled = copy.deepcopy(eager)
    compiled.forward = run = mirage.torch.compile(compiled.forward, **QUICK)
    for length in lengths:
        given = ids(2, length)
        how |= {"attention_mask": torch.ones_like(given), "do_sample": False}
        assert torch.equal(compiled.generate(given, **how), eager.generate(given, **how))
    assert not run.eager
    return run


@pytest.mark.parametrize("model", [gpt2, slow(t5)])
def test_generate_runs_programs(model: Callable[[], Any]) -> None:
    assert len(generated(made(model), (5, 3), max_new_tokens=12).programs) == 2


def test_weights_of_a_method_may_change() -> None:
    eager = made(llama)
    run = mirage.torch.compile(eager.forward, **QUICK)
    given = ids(2, 4)
    before = run(input_ids=given).logits
    eager.lm_head.weight.mul_(2)
    torch.testing.assert_close(run(input_ids=given).logits, 2 * before, atol=1e-4, rtol=1e-4)
    eager.lm_head.weight = torch.nn.Parameter(eager.lm_head.weight * 2)
    torch.testing.assert_close(run(input_ids=given).logits, 4 * before, atol=1e-4, rtol=1e-4)


def gemma3() -> Any:
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "head_dim": 8}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**{**_SMALL, **layers}, sliding_window=12))


ALL = ((5, *[1] * 12, 3), (17, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sequences"),
    [(mistral, ((17, 1, 1),)), (mistral, ALL), (gemma3, ALL)],
)
def test_caches_of_sliding_windows(model: Callable[[], Any], sequences: Sequence[Sequence[int]]) -> None:
    """Within the window, across its edge, and beyond it; several tokens at once, and a prompt that is longer than it."""
    eager = made(model)
    run = mirage.torch.compile(eager, **QUICK, strict=True)
    for lengths in sequences:
        ours = theirs = None
        for length in lengths:
            given = ids(2, length)
            found, wanted = run(input_ids=given, cache=ours), eager(input_ids=given, cache=theirs)
            torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
            assert ours is None or found.past_key_values is ours
            ours, theirs = found.past_key_values, wanted.past_key_values
            for a, b in zip(ours.layers, theirs.layers, strict=True):
                assert isinstance(a, type(b)) and a.get_seq_length() == b.get_seq_length() and a.keys.shape == b.keys.shape
    # prompts shorter and longer than the window; tokens within it, at its last three places and beyond it; three tokens; and from
    # a prompt beyond it on
    assert not run.eager and len(run.programs) <= 10


@pytest.mark.parametrize("model", [llama, *map(slow, (gpt2, mistral, gemma3))])
def test_static_caches_are_written_in_place(model: Callable[[], Any]) -> None:
    """With room for more tokens than the window has, and for fewer; from the first token on, and from a prompt."""
    eager = made(model)
    run = mirage.torch.compile(eager, **QUICK, strict=True)
    for room, lengths in ((24, (5, *[1] * 12, 3)), (9, (4, 1, 2))):
        ours, theirs = (transformers.StaticCache(config=eager.config, max_cache_len=room) for _ in range(2))
        memory: list[int] = []
        for length in lengths:
            given = ids(2, length)
            found, wanted = run(input_ids=given, cache=ours), eager(input_ids=given, cache=theirs)
            torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
            assert found.past_key_values is ours
            for a, b in zip(ours.layers, theirs.layers, strict=True):
                assert type(a) is type(b) and int(a.get_seq_length()) == int(b.get_seq_length())
                assert a.max_cache_len == b.max_cache_len and a.is_croppable == b.is_croppable
                torch.testing.assert_close(a.keys, b.keys, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(a.values, b.values, atol=1e-4, rtol=1e-4)
            before, memory = memory, [layer.keys.data_ptr() for layer in ours.layers]
            assert before in ([], memory)
    assert not run.eager
    if model in (llama, gpt2):
        # one for prompts, one for tokens
        assert len(run.programs) == 2
        assert "scatter_" in str(run.programs[1].graph.executable.program)


def test_growing_caches_are_written_in_place() -> None:
    """From the first token to the last by one program, which neither joins nor copies keys; a new room is given now and then."""
    eager = made(gpt2)
    run = mirage.torch.compile(eager, **QUICK, strict=True)
    theirs = eager(input_ids=ids(2, 5)).past_key_values
    ours = copy.deepcopy(theirs)
    rooms: list[int] = []
    for k in range(70):
        given = ids(2, 1 + k % 2)
        found, wanted = run(input_ids=given, cache=ours), eager(input_ids=given, cache=theirs)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
        rooms.append(ours.layers[0].growing_keys.data_ptr())
        if k % 20 == 10:
            for cache in (ours, theirs):
                cache.crop(-3)
    # two of 5 tokens and more, and one after each crop
    assert len(run.programs) == 1 and len([a for a, b in pairwise(rooms) if a != b]) <= 6
    text = str(run.programs[0].graph.executable.program)
    assert text.count("scatter_") == 2 and "cpu.attention" in text and "concat" not in text
    torch.testing.assert_close(ours.layers[0].keys, theirs.layers[0].keys, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", [llama, t5])
def test_generate_with_a_static_cache(model: Callable[[], Any]) -> None:
    assert len(generated(made(model), (5, 3), max_new_tokens=64, cache_implementation="static").programs) == 2


@pytest.mark.slow
def test_generate_beyond_a_window() -> None:
    generated(made(mistral), (5,), max_new_tokens=30)


def grown(config: Any) -> Any:
    return None


def static(config: Any) -> Any:
    return transformers.StaticCache(config=config, max_cache_len=16)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "empty"), [(llama, grown), (llama, static), (mistral, grown)])
def test_saved_models_take_and_give_caches(model: Callable[[], Any], empty: Callable[[Any], Any], tmp_path: Path) -> None:
    eager = made(model)
    run = mirage.torch.compile(eager, **QUICK)
    prompt, more = ids(2, 5), ids(2, 1)
    run(input_ids=more, cache=run(input_ids=prompt, cache=empty(eager.config)).past_key_values)
    run.save(tmp_path / "llama.mirage")
    again = mirage.torch.load(tmp_path / "llama.mirage")
    cache = again(input_ids=prompt, cache=empty(eager.config)).past_key_values
    wanted = eager(input_ids=prompt, cache=empty(eager.config)).past_key_values
    for _ in range(3):
        found = again(input_ids=more, cache=cache)
        torch.testing.assert_close(found.logits, eager(input_ids=more, cache=wanted).logits, atol=1e-4, rtol=1e-4)
        assert found.past_key_values is cache and cache.get_seq_length() == wanted.get_seq_length()


def test_where_results_have_caches() -> None:
    register_caches()
    a, b, c = (transformers.DynamicCache() for _ in range(3))
    assert places([a, b], {"x": 1, "cache": b}) == ("", "cache") and places([a], (2, a)) == ("1",)
    assert places([a], a.layers) == ("",) and places([a], None) == ("",)
    b.layers = [transformers.cache_utils.DynamicLayer()]
    assert updated([a], ("1",), (2, b), []) == (2, a) and a.layers is b.layers
    assert updated([c], ("",), 5, [b]) == 5 and c.layers is b.layers
    recording = transformers.cache_utils.DynamicSlidingWindowLayer(4)
    recording.activate_past_recording()
    static = transformers.cache_utils.StaticLayer(4)
    for layer, why in ((static, "more than its tensors"), (recording, "records what it has lost")):
        c.layers = [layer]
        with pytest.raises(InputError, match=why):
            torch.utils._pytree.tree_flatten(c)


@pytest.mark.parametrize(
    ("kind", "names", "why"),
    [
        ("DynamicCache", ["keys.99999"], "has no tensor 'keys.99999'"),
        ("DynamicCache", ["update.0"], "has no tensor 'update.0'"),
        ("DynamicCache", ["keys.0"], "without 'values'"),
        ("DynamicCache", ["seen.0"], "without 'window'"),
        ("StaticCache", ["length.0"], "without 'room'"),
    ],
)
def test_tensors_that_no_cache_has(kind: str, names: list[str], why: str) -> None:
    """As a changed file may have them."""
    register_caches()
    leaf = torch.utils._pytree.tree_flatten(0)[1]
    spec = torch.utils._pytree.TreeSpec(getattr(transformers, kind), names, [leaf] * len(names))
    with pytest.raises(InputError, match=why):
        torch.utils._pytree.tree_unflatten([torch.zeros(2, 2, 2, 2)] * len(names), spec)
