"""Convolutions of residual and mobile networks with their bias and ReLU, as programs for `benchmarks.gpu.programs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mirage as mi
from benchmarks.graphs.programs import GraphProgram


@dataclass(frozen=True)
class Convolution:
    """Square windows of `side` by `side` places of so many channels, padded so that strides of 1 keep the places."""

    inputs: int
    outputs: int
    side: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    dtype: str = "float16"

    @property
    def padding(self) -> int:
        return self.kernel // 2

    def specs(self) -> Mapping[str, Any]:
        shapes = {
            "x": ("b", self.inputs, self.side, self.side),
            "w": (self.outputs, self.inputs // self.groups, self.kernel, self.kernel),
            "bias": (self.outputs,),
        }
        return {name: mi.tensor(*shape, dtype=self.dtype) for name, shape in shapes.items()}

    def layer(self, x: Any, w: Any, bias: Any) -> Any:
        y = mi.convolution(x, w, padding=self.padding, strides=self.stride, groups=self.groups)
        return mi.relu(y + bias[:, None, None])

    def yardstick(self, x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
        p, g = self.padding, self.groups
        padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
        windows: Any = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))  # type: ignore[call-overload]
        windows = windows[:, :, :: self.stride, :: self.stride]
        b, c, *places = windows.shape
        grouped = windows.reshape(b, g, c // g, *places), w.reshape(g, -1, *w.shape[1:])
        y = np.einsum("bgcyxhw,gochw->bgoyx", *grouped, optimize=True).reshape(b, len(w), *places[:2])
        return np.maximum(y + bias[:, None, None], 0)

    def program(self, name: str) -> GraphProgram:
        sizes = {"batch1": {"b": 1}, "batch32": {"b": 32}}
        return GraphProgram(name, self.layer, self.specs(), self.yardstick, {"b": (1, 4)}, sizes, ("w", "bias"))


CONVOLUTIONS: Mapping[str, Convolution] = {
    "convolution": Convolution(64, 64, 56),
    "convolution_of_many": Convolution(256, 256, 14),
    "convolution_of_points": Convolution(256, 64, 56, kernel=1),
    "convolution_by_two": Convolution(128, 128, 56, stride=2),
    "convolution_depthwise": Convolution(96, 96, 56, groups=96),
}
