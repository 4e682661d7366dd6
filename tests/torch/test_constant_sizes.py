"""Models whose sizes' formulas grow, or are constants by torch's guards: windows, patches and chunks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.test_model import check, compiled  # noqa: E402


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


class Windows(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers that compute in windows of an image whose edges are padded, as Swin's do; each halves the image."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            batch, height, width, channels = x.shape
            x = torch.nn.functional.pad(x, (0, 0, 0, (3 - width % 3) % 3, 0, (3 - height % 3) % 3))
            _, h, w, _ = x.shape
            x = x.view(batch, h // 3, 3, w // 3, 3, channels).transpose(2, 3).contiguous().view(-1, 9, channels)
            x = layer(x - x.mean(1, keepdim=True)).view(-1, 3, 3, channels)
            x = x.view(-1, h // 3, w // 3, 3, 3, channels).transpose(2, 3).contiguous().view(-1, h, w, channels)
            x = x[:, :height, :width][:, ::2, ::2]
        return x


class Patches(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Patches of an image with an embedding for each position of 16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(3, 8, 4, 4)
        self.positions = torch.nn.Parameter(torch.randn(17, 8))
        self.first = torch.nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions


class Overlapping(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Patches that overlap, each with the embedding of one of 9 positions, as those of spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(1, 8, 4, 3)
        self.positions = torch.nn.Parameter(torch.randn(9, 8))

    def forward(self, x: Any) -> Any:
        return self.patches(x[:, None]).flatten(2).transpose(1, 2) + self.positions


class Chunks(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A recurrence over chunks of 8 steps, the last of which is padded, as linear attention's."""

    def forward(self, x: Any) -> Any:
        steps = x.shape[1]
        x = torch.nn.functional.pad(x, (0, 0, 0, (8 - steps % 8) % 8))
        x = x.reshape(x.shape[0], -1, 8, x.shape[-1])
        within = torch.tril(torch.ones(8, 8)) @ x
        before = torch.cumsum(within[:, :, -1:], 1) - within[:, :, -1:]
        return (within + before).reshape(x.shape[0], -1, x.shape[-1])[:, :steps]


@pytest.mark.slow
def test_sizes_in_large_formulas_are_constants_and_the_batch_is_none() -> None:
    model = Windows(3)
    run = compiled(model, strict=True)
    for batch in (2, 1, 5):
        check(run, model, torch.randn(batch, 32, 44, 4))
    assert len(run.programs) == 1
    check(run, model, torch.randn(2, 13, 30, 4))
    assert len(run.programs) == 2
    assert [str(p.guards.shapes[0][1:3]) for p in run.programs] == ["(32, 44)", "(13, 30)"]


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Patches(), ((2, 3, 16, 16), (4, 3, 8, 32), (1, 3, 18, 19))),
        (Overlapping(), ((2, 10, 11), (3, 11, 10), (1, 10, 10))),
    ],
)
def test_formulas_that_guards_say_are_constants_are_computed_with_as_such(model: Any, shapes: Any) -> None:
    run = compiled(model, strict=True)
    for shape in shapes:
        check(run, model, torch.randn(shape))
    assert [p.imported.fallback.total() for p in run.programs] == [0] * len(run.programs)


def test_a_size_that_is_padded_to_whole_chunks_is_one_program() -> None:
    model = Chunks()
    run = compiled(model, strict=True)
    for steps in (20, 31, 9, 101):
        check(run, model, torch.randn(2, steps, 5))
    assert [p.imported.fallback.total() for p in run.programs] == [0]


@pytest.mark.parametrize(
    ("options", "programs"),
    [
        ({"kernel_size": 1000, "ceil_mode": True}, 1),
        ({"kernel_size": 30, "ceil_mode": True, "divisor_override": 3}, 1),
        ({"kernel_size": (7, 1000), "ceil_mode": True}, 2),
        ({"kernel_size": (7, 11)}, 2),
    ],
)
def test_a_window_of_a_whole_image(options: dict[str, Any], programs: int) -> None:
    model = torch.nn.AvgPool2d(**options)
    run = compiled(model, strict=True)
    for shape in ((2, 3, 7, 11), (5, 3, 7, 11), (2, 4, 15, 23)):
        check(run, model, torch.randn(shape))
    assert len(run.programs) == programs
    assert not any(p.imported.fallback for p in run.programs)
