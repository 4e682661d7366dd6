"""What quantization did to a program: the error of each layer, its scales, and what stayed float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mirage.ir.graph.nodes import Module


@dataclass
class Difference:
    """How far values are from those of the float program: the relative L2 norm of the difference, and its largest element."""

    squared: float = 0.0
    of: float = 0.0
    largest: float = 0.0

    def add(self, found: np.ndarray, wanted: np.ndarray) -> None:
        """Compare one more array."""
        wide = wanted.astype(np.float64)
        difference = np.abs(found.astype(np.float64) - wide)
        self.squared += float(np.square(difference).sum())
        self.of += float(np.square(wide).sum())
        self.largest = max(self.largest, float(difference.max(initial=0.0)))

    @property
    def relative(self) -> float:
        """The L2 norm of the difference over that of the float values; 0 where both are 0."""
        return float(np.sqrt(self.squared / self.of)) if self.of else float(self.squared > 0)


@dataclass
class Layer:
    """An operator with quantized operands: `scale` and `zero` are those of its activation, None where it has none."""

    name: str
    op: str
    where: str
    difference: Difference
    scale: float | None = None
    zero: int | None = None


@dataclass
class Report:
    """What quantization did: layers in order, the results, what stays float (operator, reason, count), and all scales.

    `whole` counts the products that are computed with whole numbers, `requantized` those of them whose results are whole numbers,
    too. Errors are those of the simulated program, whose layers read what the layers before them gave.
    """

    scheme: str
    layers: list[Layer] = field(default_factory=list)
    result: Difference = field(default_factory=Difference)
    stays: list[tuple[str, str, int]] = field(default_factory=list)
    scales: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    whole: int = 0
    requantized: int = 0

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [
            f"quantized: {self.scheme}",
            f"{len(self.layers)} layers, {self.whole} as products of whole numbers, {self.requantized} of them handed on as such",
            f"results: relative L2 error {self.result.relative:.2e}, largest {self.result.largest:.2e}",
            f"{'layer':<{width}}  operator     relative L2  largest   scale      zero",
        ]
        for layer in self.layers:
            d = layer.difference
            scale = "" if layer.scale is None else f"{layer.scale:.3e}  {layer.zero}"
            lines.append(f"{layer.name:<{width}}  {layer.op:<11}  {d.relative:.2e}     {d.largest:.2e}  {scale}".rstrip())
        if self.stays:
            lines.append("stays float")
            lines += [f"    {count} {op}: {reason}" for op, reason, count in self.stays]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Quantized:
    """A quantized program: its module, which `mirage.compile` takes, and what quantization did.

    The main function takes what the program takes, but for its weights, which are constants of the module. `simulated` is the
    same on floating-point numbers, rounded as the integers are.
    """

    module: Module
    simulated: Module
    report: Report

    def __str__(self) -> str:
        return str(self.report)
