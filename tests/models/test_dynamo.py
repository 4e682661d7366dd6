"""Transformer models by torch.compile with the backend "mirage": right at all sizes from few graphs, also in generation."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.models.tiny import MODELS, ids  # noqa: E402
from tests.torch.compared import compiled, counted  # noqa: E402

#: the others compile for half a minute
QUICK = ("vit",)
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
#: graphs for all sizes: Dynamo makes one for sizes from 2 on, and others where a size is 1
MOST = 3


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_right_at_twenty_sizes_from_three_graphs(name: str) -> None:
    tiny = MODELS[name]
    model = tiny.made()
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for call in [*tiny.calls(20), tiny.call(2, 30, 7), tiny.call(5, 9, 3)]:
            found, expected = run(**call), model(**call)
            assert type(found) is type(expected) and list(found) == list(expected)
            for key in expected:
                torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-4)
    assert counted().keys() == {"compiled"}
    assert counted()["compiled"] <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_generation_gives_the_tokens_of_eager_mode_from_two_graphs(name: str, cache: str) -> None:
    model = MODELS[name].made()
    options: dict[str, Any] = {
        "max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0, "disable_compile": True,
        "cache_implementation": None if cache == "dynamic" else cache,
    }  # fmt: skip
    torch.manual_seed(0)
    prompt = ids(2, 7)
    with torch.no_grad():
        expected = model.generate(prompt, **options)
        model.forward = compiled(model.forward, dynamic=True)
        assert torch.equal(model.generate(prompt, **options), expected)
        assert counted() == {"compiled": 2}
        # the weights have changed, and the cache is another one
        model.lm_head.weight.mul_(-1)
        found = model.generate(prompt, **options)
        del model.forward
        assert torch.equal(found, model.generate(prompt, **options))
    assert counted() == {"compiled": 2}
