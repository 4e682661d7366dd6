"""Convolutional and recurrent networks as modules of PyTorch with random weights, and what it exports of them.

They are small, for tests; `scale` is a factor of their widths, at which they are those of the papers.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import onnx
import torch
from torch import Tensor, nn


class Basic(nn.Module):  # type: ignore[misc]
    """ResNet's block of two convolutions."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = (
            nn.Identity()
            if channels == out and stride == 1
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """ResNet's block of three convolutions."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        inner = out // 4
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(block: Callable[[int, int, int], nn.Module], counts: Sequence[int], widths: Sequence[int]) -> nn.Module:
    """ResNet of so many blocks of each width."""
    stem = widths[0] // (4 if block is Bottleneck else 1)
    layers: list[nn.Module] = [
        nn.Conv2d(3, stem, 7, 2, 3, bias=False),
        nn.BatchNorm2d(stem),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = stem
    for level, (count, width) in enumerate(zip(counts, widths, strict=True)):
        for k in range(count):
            layers.append(block(channels, width, 2 if level and k == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Inverted(nn.Module):  # type: ignore[misc]
    """MobileNetV2's block: wide, channel by channel, narrow."""

    def __init__(self, channels: int, out: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = channels * factor
        self.same = channels == out and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


def mobilenet(scale: int = 1) -> nn.Module:
    a, b, c = 8 * scale, 12 * scale, 24 * scale
    return nn.Sequential(
        nn.Conv2d(3, a, 3, 2, 1, bias=False), nn.BatchNorm2d(a), nn.ReLU6(), Inverted(a, a, 1, 1), Inverted(a, b, 2, 6),
        Inverted(b, b, 1, 6), nn.Conv2d(b, c, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10),
    )  # fmt: skip


def vgg(scale: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (w * scale for w in (8, 8, 0, 12, 12, 0, 16, 16, 16, 0)):
        layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.ReLU()] if width else [nn.MaxPool2d(2, 2)]
        channels = width or channels
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64 * scale, 32 * scale), nn.ReLU(), nn.Dropout(),
        nn.Linear(32 * scale, 10),
    )


def dqn(scale: int = 1, places: int = 9) -> nn.Module:
    """The network of Atari's games; `places` are those of its last convolution."""
    a, b = 8 * scale, 16 * scale
    return nn.Sequential(
        nn.Conv2d(4, a, 8, 4), nn.ReLU(), nn.Conv2d(a, b, 4, 2), nn.ReLU(), nn.Conv2d(b, b, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(b * places, 32 * scale), nn.ReLU(), nn.Linear(32 * scale, 6),
    )  # fmt: skip


class UNet(nn.Module):  # type: ignore[misc]
    """Down, up by a transposed convolution and by interpolation, and what is joined from the way down."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        a, b = 8 * scale, 16 * scale
        self.first = nn.Sequential(nn.Conv2d(3, a, 3, padding=1), nn.GroupNorm(2, a), nn.SiLU())
        self.down = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b, affine=True), nn.ReLU()
        )
        self.deep = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(b, b, 3, padding=2, dilation=2), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(b, a, 2, 2)
        self.last = nn.Conv2d(b, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        down = self.down(first)
        deep = nn.functional.interpolate(self.deep(down), scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([self.up(deep + down), first], 1))


class Recurrent(nn.Module):  # type: ignore[misc]
    """A network over time, the batch first."""

    def __init__(self, kind: str, layers: int, both: bool, features: int = 6, width: int = 5) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(features, width, layers, batch_first=True, bidirectional=both)
        self.out = nn.Linear(2 * width if both else width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x)[0])


class Characters(nn.Module):  # type: ignore[misc]
    """A network of convolutions over embedded characters, of several widths."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.rows = nn.ModuleList([nn.Conv1d(8, 6, k) for k in (2, 3, 4)])
        self.out = nn.Linear(18, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).transpose(1, 2)
        return self.out(torch.cat([torch.relu(c(x)).amax(-1) for c in self.rows], 1))


def exported(model: nn.Module, example: Tensor, dims: dict[int, str]) -> onnx.ModelProto:
    """What `torch.onnx` writes of a model; `dims` of its input have any size."""
    program = None
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        shapes: Any = ({k: torch.export.Dim.DYNAMIC for k in dims},)
        program = torch.onnx.export(
            model.eval(), (example,), dynamo=True, dynamic_shapes=shapes, verbose=False, optimize=True
        )
    assert program is not None
    return program.model_proto
