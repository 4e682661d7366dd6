"""Random arrays for tests of programs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

#: different numbers in an array: larger ones repeat them, as they take long to draw. A prime: no two rows are alike
DRAWN = 1_000_003


def filled(shape: tuple[int, ...], draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """An array of this shape with the numbers of `draw`, which is asked for `DRAWN` of them at most."""
    return np.resize(draw(min(math.prod(shape), DRAWN)), shape)
