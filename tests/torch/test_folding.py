"""Gains, offsets and the scale of attention become a part of the weights of a module, and follow what is written to it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from benchmarks.flow.folding import model  # noqa: E402


@pytest.mark.parametrize("llama", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_layer(llama: bool) -> None:
    module, wide = (model(llama=llama, width=64, layers=1) for _ in range(2))
    wide = wide.double()
    compiled = mirage.torch.compile(module, without=("superoptimize",))
    x = torch.randn(2, 7, 64)

    def check() -> None:
        with torch.no_grad():
            found, wanted = compiled(x), wide(x.double())
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6 * float(wanted.abs().max()))

    check()
    # what is folded is made again after a parameter was written to
    with torch.no_grad():
        for m in (module, wide):
            layer = m[0]
            layer.norms[0].weight.mul_(-3)
            layer.norms[1].weight[::2] = 0
            layer.q.weight.add_(0.5)
            if not llama:
                layer.norms[0].bias.add_(1)
                layer.q.bias.zero_()
    check()


def test_gains_in_bfloat16() -> None:
    """Folded, the results are about as far from float64 as those of torch."""
    module, wide = (model(llama=False, width=64, layers=1) for _ in range(2))
    module, wide = module.bfloat16(), wide.bfloat16().double()
    compiled = mirage.torch.compile(module, without=("superoptimize",))
    x = torch.randn(2, 7, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = wide(x.double())
        errors = [float((y.double() - wanted).abs().max()) for y in (compiled(x), module(x))]
    assert errors[0] <= 2 * errors[1]
