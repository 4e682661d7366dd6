"""Scales and zero points: what of a tensor's values the integers of a type reach."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mirage.errors import CalibrationError
from mirage.ir.operators.quantization import quantized_range

#: values of a tensor that are kept of each sample, drawn at random where there are more
KEPT = 1 << 14
#: cells of a histogram, and ranges that are tried
CELLS, TRIED = 2048, 64
#: the narrowest range that is tried, of the widest
NARROWEST = 0.1


@dataclass
class Seen:
    """What calibration saw of one activation: its extremes, and some of its values."""

    name: str
    least: float = 0.0
    most: float = 0.0
    values: list[np.ndarray] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, x: np.ndarray, sample: int) -> None:
        """See one more tensor; raises CalibrationError where a value is not finite."""
        if not np.isfinite(x).all():
            what = "NaN" if np.isnan(x).any() else "infinite values"
            raise CalibrationError(f"data[{sample}] gives {what} at {self.name}; scales are chosen from finite values alone")
        flat = np.asarray(x, np.float32).reshape(-1)
        if not flat.size:
            return
        # 0 is among the values of every range: it is what padding adds, and has to be exact
        self.least, self.most = min(self.least, float(flat.min())), max(self.most, float(flat.max()))
        if flat.size > KEPT:
            # an extreme that is not among the values would cost no error to cut off
            ends = np.array([flat.min(), flat.max()], np.float32)
            flat = np.concatenate([flat[self.rng.integers(0, flat.size, KEPT)], ends])
        self.values.append(flat.copy())

    @property
    def sample(self) -> np.ndarray:
        """The values that were kept."""
        return np.concatenate(self.values) if self.values else np.zeros(1, np.float32)


def powers_of_two(scale: np.ndarray) -> np.ndarray:
    """The least powers of two that are no less than these scales, which are normal numbers."""
    mantissa, exponent = np.frexp(scale)
    return np.asarray(np.ldexp(np.float32(1), np.where(mantissa == 0.5, exponent - 1, exponent)), np.float32)


def affine(least: float, most: float, dtype: str, power: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point, of rank 0, with which the integers of a type reach from `least` to `most`, 0 among them.

    Signed types have the zero point 0. With `power` the scale is a power of two.
    """
    low, high = quantized_range(dtype)
    if low < 0:
        scale = np.float32(max(-least, most) / high)
    else:
        scale = np.float32((most - least) / (high - low))
    if power and scale >= np.finfo(np.float32).tiny:
        scale = np.float32(powers_of_two(np.asarray(scale)))
    zero = 0
    if low == 0:
        zero = 0 if scale == 0 else int(np.clip(round(low - least / float(scale)), low, high))
    if not scale >= np.finfo(np.float32).tiny:
        scale = np.float32(1)
    return np.asarray(scale), np.asarray(zero, dtype)


def simulated(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, dtype: str) -> np.ndarray:
    """Values as the integers of a type have them."""
    low, high = quantized_range(dtype)
    z = zero.astype(np.float32)
    return np.asarray((np.clip(np.rint(x / scale) + z, low, high) - z) * scale, np.float32)


def choose(
    seen: Seen, method: str, percentile: float, dtype: str, power: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point of an activation by one of the methods of `Scheme`; with `power` the scale is a power of two."""
    least, most = seen.least, seen.most
    if method == "percentile":
        low, high = (float(v) for v in np.percentile(seen.sample, [100 - percentile, percentile]))
        least, most = min(low, 0.0), max(high, 0.0)
    elif method == "mse":
        least, most = _least_error(seen, dtype, power)
    elif method == "kl":
        least, most = _least_divergence(seen, dtype, power)
    return affine(least, most, dtype, power)


def _ranges(seen: Seen) -> list[tuple[float, float]]:
    """Ranges that are tried, from the widest: values beyond a threshold are cut off on both sides."""
    widest = max(-seen.least, seen.most)
    thresholds = widest * np.geomspace(1, NARROWEST / 10, TRIED)
    found = [(max(seen.least, -t), min(seen.most, t)) for t in thresholds.tolist()]
    return list(dict.fromkeys(found))


def _least_error(seen: Seen, dtype: str, power: bool) -> tuple[float, float]:
    """The range of the least squared error."""
    x = seen.sample

    def error(bounds: tuple[float, float]) -> float:
        difference = simulated(x, *affine(*bounds, dtype, power), dtype) - x
        return float(np.square(difference, dtype=np.float64).sum())

    return min(_ranges(seen), key=error)


def _least_divergence(seen: Seen, dtype: str, power: bool) -> tuple[float, float]:
    """The range whose quantized distribution diverges least from that of the values, those beyond it counted at its ends.

    Source: S. Migacz, 8-bit Inference with TensorRT, 2017, for ranges that need not be symmetric.
    """
    if seen.most <= seen.least:
        return seen.least, seen.most
    counts, edges = np.histogram(seen.sample, CELLS, (seen.least, seen.most))
    centers = (edges[:-1] + edges[1:]) / 2
    total = counts.sum()

    def divergence(bounds: tuple[float, float]) -> float:
        scale, zero = affine(*bounds, dtype, power)
        low, high = quantized_range(dtype)
        # cells within the range; the outermost ones hold what is cut off
        cells = np.clip(np.searchsorted(centers, np.clip(centers, *bounds)), 0, CELLS - 1)
        clipped = np.bincount(cells, counts, CELLS)
        inside = np.where((centers >= bounds[0]) & (centers <= bounds[1]), counts, 0)
        levels = np.clip(np.rint(centers / float(scale)) + int(zero), low, high).astype(np.int64) - low
        # each level spreads what it holds evenly over the cells that are not empty
        held = np.bincount(levels, inside, high - low + 1)
        filled = np.bincount(levels, inside > 0, high - low + 1)
        spread = np.where(inside > 0, held[levels] / np.maximum(filled[levels], 1), 0)
        p, q = clipped / total, spread / max(spread.sum(), 1)
        some = p > 0
        # what the range has no value for counts as nearly none
        return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-9))).sum())

    return min(_ranges(seen), key=divergence)


def weight_scales(w: np.ndarray, grain: str | int, method: str, axis: int = -1) -> np.ndarray:
    """Scales of a weight `w[k, n]` for int8: of rank 0, `[n]`, or `[k / group, n]`, with which no value is cut off by "max".

    Without groups, a weight has any rank, and a scale for each position along `axis`.

    Raises CalibrationError where a value is not finite.
    """
    if not np.isfinite(w).all():
        raise CalibrationError("a weight has values that are not finite; scales are chosen from finite values alone")
    if not isinstance(grain, int):
        w = np.moveaxis(w, axis, -1).reshape(-1, w.shape[axis])
    parts = w.reshape(-1, grain, w.shape[-1]) if isinstance(grain, int) else w.reshape(1, -1, w.shape[-1])
    if grain == "tensor":
        parts = parts.reshape(1, -1, 1)
    widest = np.abs(parts).max(1) / np.float32(127)
    best = np.where(widest >= np.finfo(np.float32).tiny, widest, 1).astype(np.float32)
    if method == "mse":
        none, first = np.zeros((), np.int8), best
        errors = np.full(best.shape, np.inf)
        for share in np.linspace(1, 0.5, TRIED // 2):
            tried = (first * np.float32(share)).astype(np.float32)
            found = np.square(simulated(parts, tried[:, None], none, "int8") - parts, dtype=np.float64).sum(1)
            best, errors = np.where(found < errors, tried, best), np.minimum(found, errors)
    return np.asarray(best if isinstance(grain, int) else best[0, 0] if grain == "tensor" else best[0])


def quantized(w: np.ndarray, scale: np.ndarray, axis: int = -1) -> np.ndarray:
    """A weight in int8 by scales as `weight_scales` gives them."""
    wide = np.repeat(scale, w.shape[0] // scale.shape[0], 0) if scale.ndim == 2 else scale
    if scale.ndim == 1:
        wide = np.moveaxis(scale.reshape(-1, *[1] * (w.ndim - 1)), 0, axis)
    return np.asarray(np.clip(np.rint(w / wide), *quantized_range("int8")), np.int8)
