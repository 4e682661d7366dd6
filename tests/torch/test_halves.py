"""Models of PyTorch in 16 bits: all that takes time runs in C, and is no further from float64 than PyTorch's results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.torch.compare import difference  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "background": False, "cache": False, "strict": True}
HALVES = (torch.bfloat16, torch.float16)
#: functions of NumPy, which has no fast products of 16 bits
SLOW = ("blas.", "operator")


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Attention of some heads, with a mask or without."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64, bias=False)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.masked)
        return self.out(mixed.transpose(1, 2).reshape(b, t, 64))


class Experts(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Tokens that are routed to two of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(64, 4)
        self.up, self.down = (torch.nn.Parameter(torch.randn(4, a, b) / 8) for a, b in ((128, 64), (64, 128)))

    def forward(self, x: Any) -> Any:
        share, chosen = self.router(x).float().softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.nn.functional.one_hot(chosen.flatten(), 4).sum(0).cumsum(0).to(torch.int32)
        rows = torch._grouped_mm(x[order // 2], self.up.transpose(1, 2), offs=ends)
        rows = torch._grouped_mm(torch.nn.functional.silu(rows), self.down.transpose(1, 2), offs=ends)
        back = torch.empty_like(rows).index_copy(0, order, rows).view(-1, 2, 64)
        return (back * share.to(x.dtype)[..., None]).sum(1)


def mlp() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(63, 96), torch.nn.GELU(), torch.nn.LayerNorm(96), torch.nn.Linear(96, 96, bias=False), torch.nn.SiLU(),
        torch.nn.Linear(96, 10),
    )  # fmt: skip


def windows() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5),
    )  # fmt: skip


#: what makes a model, shapes of its inputs, and the functions that it calls
MODELS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]], set[str]]] = {
    "mlp": (mlp, [(1, 63), (5, 63), (200, 63)], {"cpu.narrowed_matmul"}),
    "attention": (lambda: Attention(False), [(1, 9, 64), (3, 40, 64)], {"cpu.narrowed_matmul", "cpu.attention"}),
    "causal": (lambda: Attention(True), [(1, 9, 64), (3, 40, 64)], {"cpu.narrowed_matmul", "cpu.attention"}),
    "windows": (windows, [(2, 3, 16, 12), (5, 3, 9, 20)], {"cpu.narrowed_matmul", "cpu.convolution"}),
}


def functions(run: Any) -> str:
    ((program, *_),) = [kind.programs for kind in run._kinds.values()]
    return str(program.graph.executable.program)


def error(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, dtype: Any) -> None:
    make, shapes, called = MODELS[name]
    model = make().eval().to(dtype)
    exact = make().eval().double()
    exact.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in model.state_dict().items()})
    run = mirage.torch.compile(model, **FAST)
    for shape in shapes:
        x = torch.randn(shape).to(dtype)
        found, own, wanted = run(x), model(x), exact(x.double())
        assert found.dtype == dtype
        assert error(found, wanted) < 1.5 * error(own, wanted) + torch.finfo(dtype).eps
    text = functions(run)
    assert all(f in text for f in called) and not any(f in text for f in SLOW) and not run.eager


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("weights", ["int8", "int8/32", "int8/dynamic"])
def test_weights_in_8_bits(weights: str, dtype: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)).eval().to(dtype)
    run = mirage.torch.compile(model, weights=weights, **FAST)
    for batch in (1, 30):
        x = torch.randn(batch, 64).to(dtype)
        assert error(run(x), model(x).double()) < 0.02
    assert functions(run).count("cpu.narrowed_matmul") == 2 and f"['dtype', '{str(dtype)[6:]}']" not in functions(run)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_routed_experts(weights: str) -> None:
    model = Experts().eval().to(torch.bfloat16)
    run = mirage.torch.compile(model, weights=weights, **FAST)
    for rows in (1, 7, 60):
        x = torch.randn(rows, 64).bfloat16()
        found, wanted = run(x).double(), model(x).double()
        # a token between two experts may be given to another one
        apart = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert (apart < 0.03).double().mean() >= 0.9
    assert functions(run).count("cpu.narrowed_groups") == 2


def test_some_rows_may_be_others_where_rounding_chooses() -> None:
    torch.manual_seed(0)
    wanted = torch.randn(10, 8).to(torch.bfloat16)
    found = wanted.clone()
    found[:3] += 3
    assert "differs by" in str(difference(found, wanted))
    assert difference(found, wanted, chooses=True) is None
    # not in 32 bits, and not most of them
    assert "differs by" in str(difference(found.float(), wanted.float(), chooses=True))
    assert difference(found.float(), wanted.float(), narrow=True, chooses=True) is None
    found[3:7] += 3
    assert "differs by" in str(difference(found, wanted, chooses=True))
    one = wanted[:1].clone()
    one += 3
    assert "differs by" in str(difference(one, wanted[:1], chooses=True))
    assert "differs by" in str(difference(one[0, 0], wanted[0, 0], chooses=True))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results_of_other_types_are_as_exact_as_what_they_are_computed_in(dtype: Any) -> None:
    """Logits in float32, and the places of the largest: a model in 16 bits is run, not refused."""

    class Logits(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            linear = torch.nn.Linear
            self.layers = torch.nn.Sequential(linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), linear(128, 32))

        def forward(self, x: Any) -> Any:
            logits = self.layers(x).float()
            return logits, logits.log_softmax(-1), logits.argmax(-1)

    torch.manual_seed(0)
    model = Logits().eval().to(dtype)
    run = mirage.torch.compile(model, without=("superoptimize",))
    with torch.no_grad():
        for rows in (5, 1, 40):
            run(torch.randn(rows, 64, dtype=dtype))
    (program,) = run.programs
    assert program.halves == {str(dtype).removeprefix("torch.")} and not run.eager


def test_what_is_computed_in_16_bits_may_differ_by_its_rounding_and_no_more() -> None:
    wanted = torch.linspace(-1, 1, 100)
    found, far = wanted + 0.01, wanted + 0.2
    assert "differs by" in str(difference(found, wanted))
    assert difference(found, wanted, halves=["bfloat16"]) is None
    assert "differs by" in str(difference(far, wanted, halves=["bfloat16"]))
    places = torch.arange(100)
    few, many = places.clone(), places.clone()
    few[:30] += 1
    many[:60] += 1
    assert "30 of 100" in str(difference(few, places))
    assert difference(few, places, halves=["float16"]) is None
    assert "60 of 100" in str(difference(many, places, halves=["float16"]))


def test_what_is_packed_may_be_a_view_of_a_weight() -> None:
    """The weight of a convolution whose windows lie side by side is a matrix of another shape."""
    model = torch.nn.Conv2d(3, 16, 4, stride=4).eval()
    for dtype in (torch.float32, torch.bfloat16):
        run = mirage.torch.compile(model.to(dtype), **FAST)
        x = torch.randn(2, 3, 8, 12).to(dtype)
        np.testing.assert_allclose(run(x).float(), model(x).float(), rtol=1e-2, atol=1e-2)
    assert "cpu.pack_narrowed" in functions(run)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_what_is_packed_may_be_computed_of_a_weight(dtype: Any) -> None:
    """Its memory is used again: what packs later than that must not read it."""
    first, second = torch.nn.Conv1d(8, 16, 3, padding=1), torch.nn.Conv1d(16, 16, 3, stride=2, padding=1)
    model = torch.nn.Sequential(first, torch.nn.GELU(), second).eval().to(dtype)
    run = mirage.torch.compile(model, **FAST)
    for length in (300, 40):
        x = torch.randn(2, 8, length).to(dtype)
        for _ in range(2):
            assert difference(run(x), model(x)) is None


def test_a_saved_model(tmp_path: Any) -> None:
    model = mlp().eval().to(torch.bfloat16)
    run = mirage.torch.compile(model, **FAST)
    x = torch.randn(3, 63).to(torch.bfloat16)
    found = run(x)
    run.save(tmp_path / "model.mirage")
    assert torch.equal(mirage.torch.load(tmp_path / "model.mirage")(x), found)


def test_the_backend_has_it_too() -> None:
    model = Attention(True).eval().to(torch.bfloat16)
    run = torch.compile(model, backend="mirage", dynamic=True, options=FAST)
    x = torch.randn(2, 7, 64).to(torch.bfloat16)
    assert difference(run(x), model(x)) is None
