"""Transformer models by mirage.torch.compile: right at all sizes from one compilation, nearly all of it native."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import mirage.torch  # noqa: E402
from mirage.errors import MirageError  # noqa: E402
from tests.models.tiny import MODELS, Call  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "background": False, "cache": False, "strict": False}
#: the others compile for half a minute
QUICK = ("bert",)
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
#: share of operators that are native at least, for models whose experts are not chosen by data
NATIVE = 0.95


@functools.cache
def compiled(name: str) -> tuple[Any, Any]:
    """A model, and the same compiled, once for all tests: an export takes seconds."""
    model = MODELS[name].made()
    return model, mirage.torch.compile(model, **FAST)


def check(run: Any, model: Any, call: Call) -> None:
    """A call gives what the model gives, in the model's class."""
    found, expected = run(**call), model(**call)
    assert type(found) is type(expected) and list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_right_at_twenty_sizes_from_one_compilation(name: str, tmp_path: Path) -> None:
    tiny, (model, run) = MODELS[name], compiled(name)
    with torch.no_grad():
        for call in [*tiny.calls(20), tiny.call(1, 1, 1), tiny.call(2, 1, 3), tiny.call(1, 7, 1), tiny.call(3, 30, 2)]:
            check(run, model, call)
        assert len(run.programs) == 1 and not run.eager
        imported = run.programs[0].imported
        native, fallback = imported.native.total(), imported.fallback.total()
        assert native >= NATIVE * (native + fallback), run.explain()
        run.save(tmp_path / "model.mirage")
        loaded = mirage.torch.load(tmp_path / "model.mirage")
        for call in tiny.calls(3, seed=1):
            check(loaded, model, call)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_an_empty_batch_is_as_in_torch(name: str) -> None:
    tiny, (model, run) = MODELS[name], compiled(name)
    with torch.no_grad():
        check(run, model, tiny.call(2, 5, 3))
        try:
            model(**tiny.call(0, 5, 3))
        except (RuntimeError, IndexError, ValueError) as e:
            with pytest.raises(type(e)):
                run(**tiny.call(0, 5, 3))
        else:
            check(run, model, tiny.call(0, 5, 3))


WRONG: dict[str, Call] = {
    "a float": {"input_ids": torch.ones(2, 3)},
    "too few dims": {"input_ids": torch.ones(3, dtype=torch.long), "attention_mask": torch.ones(3, dtype=torch.long)},
    "another length": {"attention_mask": torch.tensor([[1, 1, 0, 0]] * 2)},
    "another batch": {"attention_mask": torch.tensor([[1, 1, 0]])},
    "too long": {"input_ids": torch.ones(2, 65, dtype=torch.long), "attention_mask": torch.ones(2, 65, dtype=torch.long)},
    "an unknown token": {"input_ids": torch.full((2, 3), 1000)},
    "a list": {"input_ids": [[1, 2, 3], [4, 5, 6]]},
    "a text": {"input_ids": "to be"},
    "nothing": {"input_ids": None},
    "a mask of no device": {"attention_mask": torch.ones(2, 3, dtype=torch.long, device="meta")},
    "two inputs at once": {"inputs_embeds": torch.ones(2, 3, 32)},
}


@pytest.fixture(scope="module")
def bert() -> tuple[Any, Any]:
    """A model, and the same compiled for other sizes."""
    model, run = compiled("bert")
    with torch.no_grad():
        run(**MODELS["bert"].call(3, 7, 1))
    return model, run


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_the_errors_that_they_are_in_torch(bert: tuple[Any, Any], what: str) -> None:
    model, run = bert
    call = {"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3, dtype=torch.long)}
    call |= WRONG[what]
    with torch.no_grad():
        with pytest.raises(Exception) as expected:
            model(**call)
        with pytest.raises((type(expected.value), MirageError)) as found:
            run(**call)
    assert str(found.value)
