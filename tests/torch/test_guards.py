"""For which sizes a program of a model of PyTorch is made: factors of sizes that cancel are no conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="models of PyTorch; pip install torch")

import mirage.torch  # noqa: E402
from mirage.ir.dims import symbol  # noqa: E402
from mirage.torch.guards import Guards, SizeGuard  # noqa: E402

interpolate = torch.nn.functional.interpolate
IMAGES = ((2, 3, 14, 14), (2, 3, 14, 16), (3, 3, 14, 14), (1, 3, 14, 14), (2, 3, 7, 9))


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, fn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Any) -> Any:
        return self.fn(x)


def compiled(fn: Callable[[Any], Any], shapes: Any = IMAGES) -> Any:
    """The compiled model, which gave what the model gives for images of these shapes."""
    run = mirage.torch.compile(Model(fn), without=("superoptimize",))
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), fn(x), rtol=1e-5, atol=1e-5)
    return run


RESIZED: Mapping[str, Callable[[Any], Any]] = {
    "twice as large": lambda x: interpolate(x, scale_factor=2),
    "three times as large": lambda x: interpolate(x, scale_factor=3, mode="nearest-exact"),
    "half as large": lambda x: interpolate(x, scale_factor=0.5),
    "sizes of the image": lambda x: interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2)),
    "as large as it is": lambda x: interpolate(x, size=x.shape[2:], mode="bilinear"),
    "a factor of sizes": lambda x: interpolate(x, scale_factor=2, recompute_scale_factor=True),
}


@pytest.mark.parametrize("name", RESIZED)
def test_resized_images_of_all_sizes_are_one_program(name: str) -> None:
    (program,) = compiled(RESIZED[name]).programs
    assert all(g.relation != "==" for g in program.guards.conditions)


def test_a_condition_that_is_none_of_dims_fixes_the_dims_in_it_alone() -> None:
    """The factor between corners is another one for each size; it says nothing of the batch."""
    run = compiled(lambda x: interpolate(x, scale_factor=2, mode="bilinear", align_corners=True))
    assert [len(p.guards.conditions) for p in run.programs] == [2, 2, 2]
    sizes = [sorted(int(g.right) for g in p.guards.conditions) for p in run.programs]
    assert sizes == [[14, 14], [14, 16], [7, 9]]


def test_quotients_that_round_hold_for_the_example() -> None:
    """A third of a size is no float64."""

    def fn(x: Any) -> Any:
        return x * 2 if x.shape[0] / x.shape[1] == 1 / 3 else x * 3

    run = compiled(fn, ((3, 9), (4, 12), (3, 8), (5, 15)))
    assert len(run.programs) <= 4


def test_a_program_takes_the_sizes_of_its_guards() -> None:
    b, s = symbol("b"), symbol("s")
    guards = Guards(((b, s), (s,)), (SizeGuard("==", s, symbol("s") * 0 + 14), SizeGuard("<=", b, s)))
    assert guards.sizes([(3, 14), (14,)]) == {"b": 3, "s": 14}
    for wrong in ([(3, 15), (15,)], [(15, 14), (14,)], [(3, 14), (13,)], [(3, 14)]):
        assert guards.sizes(wrong) is None
