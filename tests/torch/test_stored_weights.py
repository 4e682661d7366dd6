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


class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A product with weights of 8 bits, whose sums are scaled: what torchao makes of a linear layer."""

    def __init__(self, terms: int, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(-128, 128, (columns, terms), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(columns, 1) / 127)
        self.register_buffer("bias", torch.rand(columns))

    def forward(self, x: Any) -> Any:
        rows = torch.mm(x.reshape(-1, x.shape[-1]), self.weight.t().to(x.dtype)) * self.scale.view(-1)
        return rows.reshape(*x.shape[:-1], len(self.bias)) + self.bias


def test_sums_of_whole_numbers_that_a_model_scales_are_products_of_stored_weights(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Scaled(64, 96), torch.nn.ReLU(), Scaled(96, 40)).eval()
    run = mirage.torch.compile(model, strict=True, **FAST)
    for shape in ((3, 64), (2, 5, 64), (1, 64), (0, 64), (200, 64)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)
    assert all(str(p.graph.executable.program).count("cpu.dequantized_matmul") == 2 for p in run.programs)
    assert not any(p.imported.fallback for p in run.programs)
    x = torch.randn(3, 64)
    model[0].weight.copy_(torch.randint(-128, 128, (96, 64)))
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)
    run.save(tmp_path / "model.mirage")
    torch.testing.assert_close(mirage.torch.load(tmp_path / "model.mirage")(x), model(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("function", "native"),
    [
        (lambda w: w.t()[1:].float() / 2, True),
        (lambda w: w.reshape(-1, 2)[None].to(torch.int32) + 100, True),
        (lambda w: w + w, False),
        (lambda w: (w.float() * 3).to(torch.int8), False),
        (lambda w: w.sum(0), False),
        (lambda w: torch.cat([w, w]).float(), False),
        (lambda w: (w, w.t()), True),
        (lambda w: w.copy_(torch.ones_like(w)), False),
        (lambda w: w.copy_(w.flip(0)), False),
        (lambda w: torch.where(w > 0, w, -w), False),
    ],
)
def test_tensors_of_8_bits_are_read_and_computed_with_by_torch(function: Any, native: bool) -> None:
    run = mirage.torch.compile(function, **FAST)
    for shape in ((4, 6), (2, 10)):
        w = torch.randint(-128, 128, shape, dtype=torch.int8)
        found, wanted = run(w.clone()), function(w.clone())
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert run.programs and all(native != bool(p.imported.fallback) for p in run.programs)


def test_what_is_written_to_tensors_of_8_bits_is_seen() -> None:
    def model(cache: Any, x: Any) -> Any:
        cache[:, 1:3] = x.to(torch.int8)
        return cache.float().sum(1)

    run = mirage.torch.compile(model, strict=True, **FAST)
    caches = [torch.zeros(3, 5, dtype=torch.int8) for _ in range(2)]
    for k in range(3):
        x = torch.full((3, 2), float(k + 1))
        torch.testing.assert_close(run(caches[0], x), model(caches[1], x))
        assert torch.equal(*caches)
