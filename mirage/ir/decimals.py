"""Constants as they are written: 0.1 and 0.2 are 0.3 together."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

#: bits of a numerator up to which a number is taken to be a quotient, such as 3 / 2**24: decimals use all 53 of binary64
_QUOTIENT_BITS = 24


@lru_cache(maxsize=4096)
def as_written(value: Fraction) -> Fraction:
    """The decimal as which a number of binary64 prints, which is less than a rounding away; other numbers as they are."""
    if value.numerator.bit_length() <= _QUOTIENT_BITS:
        return value
    near = float(value)
    return Fraction(repr(near)) if near == value else value
