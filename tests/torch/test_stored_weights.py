"""Models of PyTorch whose weights are stored in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.errors import InputError  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "background": False, "cache": False}


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 96, bias=False), torch.nn.ReLU(), torch.nn.Linear(96, 10)
    ).eval()


def stored(model: Any, x: Any) -> Any:
    """What the model gives with weights that were rounded to 8 bits."""
    rounded = {}
    for name, p in model.named_parameters():
        scale = p.abs().amax(1, keepdim=True) / 127 if p.ndim == 2 else None
        rounded[name] = p if scale is None else torch.round(p / scale) * scale
    return torch.func.functional_call(model, rounded, (x,))


def functions(run: Any) -> str:
    ((program,),) = [kind.programs for kind in run._kinds.values()]
    return str(program.graph.executable.program)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_every_size_is_that_of_the_stored_weights(tmp_path: Path) -> None:
    model = network()
    run = mirage.torch.compile(model, weights="int8", strict=True, **FAST)
    for batch in (1, 5, 200):
        x = torch.randn(batch, 64)
        close(run(x), stored(model, x))
    assert functions(run).count("cpu.narrowed_matmul") == 3 and "blas" not in functions(run)
    run.save(tmp_path / "model.mirage")
    close(mirage.torch.load(tmp_path / "model.mirage")(x), stored(model, x))


def test_a_change_of_weights_is_seen() -> None:
    model = network()
    run = mirage.torch.compile(model, weights="int8", strict=True, **FAST)
    x = torch.randn(3, 64)
    run(x)
    model[0].weight.mul_(3)
    close(run(x), stored(model, x))


def test_the_backend_has_it_too() -> None:
    model = network()
    run = torch.compile(model, backend="mirage", options={**FAST, "weights": "int8", "strict": True})
    x = torch.randn(3, 64)
    close(run(x), stored(model, x))


def test_a_model_that_8_bits_spoil_runs_as_it_is() -> None:
    model = torch.nn.Linear(64, 8, bias=False)
    model.weight[:, 0] = 1e4
    run = mirage.torch.compile(model, weights="int8", **FAST)
    x = torch.randn(3, 64)
    x[:, 0] = 0
    close(run(x), model(x))
    assert "differs by" in str(run.eager)
    spared = mirage.torch.compile(model, weights="int8/32", **FAST)
    x[:, :32] = 0
    assert float((spared(x) - model(x)).norm() / model(x).norm()) < 0.02 and not spared.eager


def test_the_largest_element_may_be_another_one() -> None:
    """Whole numbers that follow from results are not compared."""
    model = network()
    run = mirage.torch.compile(lambda x: (model(x), model(x).argmax(-1)), weights="int8", strict=True, **FAST)
    x = torch.randn(300, 64)
    close(run(x)[0], stored(model, x))


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="weights='int4'; weights are stored as float32, bfloat16, int8"):
        mirage.torch.compile(network(), weights="int4")
