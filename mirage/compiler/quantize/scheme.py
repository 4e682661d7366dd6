"""How tensors are quantized: to which types, with how many scales, and how scales are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.errors import QuantizationError

#: ways to choose what of a tensor's values its integers reach
METHODS = ("max", "percentile", "kl", "mse")
#: element types of activations
ACTIVATIONS = ("uint8", "int8", "int16", "float32")
#: those of which convolutions are computed in whole numbers
WHOLE = ("uint8", "int8")
#: what has one scale of a weight, beside a number of terms of a sum
GRAINS = ("tensor", "channel")
#: how sums are scaled to whole numbers
SCALES = ("float32", "fixed point", "power of two")


@dataclass(frozen=True)
class Scheme:
    """How a program is quantized.

    `activations` is their element type: uint8 with a zero point, so that the range need not be symmetric, int8 or int16 without
    one, or float32, with which weights alone are quantized. Each has one scale, which `method` chooses from the values that
    calibration saw: all of them ("max"), all but the outermost ("percentile", of which `percentile` are kept), those that keep
    most information ("kl", the Kullback-Leibler divergence), or those of the least squared error ("mse"). Weights are int8
    without a zero point, with one scale per "tensor", per "channel" (of a result), or for so many terms of each sum: a multiple
    of 4, such as 32 or 128. `weight_method` is "max" or "mse".

    `scales` says what makes whole numbers of sums: a product in "float32"; in "fixed point", one with a multiplier that is a
    whole number, and a shift; or a shift alone, where all scales are a "power of two". The two have no floating-point numbers
    between products, and halves are rounded up.

    Raises QuantizationError for a choice that there is not.
    """

    activations: str = "uint8"
    method: str = "max"
    percentile: float = 99.99
    weights: str | int = "channel"
    weight_method: str = "max"
    scales: str = "float32"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("activations", self.activations, ACTIVATIONS),
            ("method", self.method, METHODS),
            ("weight_method", self.weight_method, ("max", "mse")),
            ("scales", self.scales, SCALES),
        ):
            if value not in allowed:
                raise QuantizationError(f"scheme: {name}={value!r}; it is one of {', '.join(allowed)}")
        w = self.weights
        if isinstance(w, bool) or not (w in GRAINS or (isinstance(w, int) and w > 0 and w % 4 == 0)):
            raise QuantizationError(f"scheme: weights={w!r}; it is one of {', '.join(GRAINS)}, or a multiple of 4, such as 32")
        if not 50 < self.percentile <= 100:
            raise QuantizationError(f"scheme: percentile={self.percentile}; it is above 50 and at most 100")

    def __str__(self) -> str:
        method = f"{self.percentile:g}th percentile" if self.method == "percentile" else self.method
        grain = f"group of {self.weights}" if isinstance(self.weights, int) else self.weights
        chosen = "" if self.activations == "float32" else f" by {method}"
        scales = {"float32": "", "fixed point": ", multipliers and shifts", "power of two": ", shifts"}[self.scales]
        return f"{self.activations} activations{chosen}, int8 weights per {grain} by {self.weight_method}{scales}"
