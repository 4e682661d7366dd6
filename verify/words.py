"""Random words that are a function of what they are for: both sides of a test find the same ones."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def keys(text: str) -> np.ndarray:
    """Two 64-bit words that are a function of a text."""
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), dtype=np.uint64)


def mix(h: Any) -> Any:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters them."""
    with np.errstate(over="ignore"):
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return h ^ (h >> np.uint64(31))
