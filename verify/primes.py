"""Primes for the random tests, drawn anew for all that is compared, and constants modulo them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import TypeVar

import numpy as np
import sympy

from mirage.errors import ConstantsCollide, FieldError

T = TypeVar("T")


@dataclass(frozen=True)
class Primes:
    """Primes p and q with q | p - 1, both below 2^31, and a generator of the q-th roots of unity mod p."""

    p: int
    q: int
    generator: int

    def __post_init__(self) -> None:
        if not (2 < self.q < self.p < 1 << 31) or (self.p - 1) % self.q:
            raise FieldError(f"p={self.p}, q={self.q}: p must be below 2^31 and q a divisor of p - 1")
        if not (sympy.isprime(self.p) and sympy.isprime(self.q)):
            raise FieldError(f"p={self.p}, q={self.q}: both must be prime")
        if self.generator % self.p == 1 or pow(self.generator, self.q, self.p) != 1:
            raise FieldError(
                f"{self.generator} does not generate the roots of unity of order {self.q} mod {self.p}"
            )


#: their product: most numbers with such a factor need no other test
_SMALL_PRIMES = math.prod(sympy.primerange(3, 50))


@lru_cache(maxsize=64)
def draw_primes(key: int | str) -> Primes:
    """Random primes p = 2q + 1 with 2^29 < q < 2^30: q is as large as products in 64 bits allow. `key` decides which."""
    rng = Random(f"primes {key}")
    while True:
        q = rng.randrange(1 << 29, 1 << 30) | 1
        p = 2 * q + 1
        if math.gcd(p * q, _SMALL_PRIMES) == 1 and sympy.isprime(q) and sympy.isprime(p):
            # every square other than 1 has order q
            return Primes(p, q, pow(rng.randrange(2, p - 1), 2, p))


class Residues:
    """Constants modulo p and q, each of which has residues of its own.

    Primes that do not tell two constants apart would take programs for equal that are not.
    """

    def __init__(self, primes: Primes) -> None:
        self.primes = primes
        self._found: dict[Fraction, tuple[np.ndarray, np.ndarray]] = {}
        self._by_residue: dict[tuple[int, int], Fraction] = {}
        self.of(Fraction(0))

    def of(self, value: Fraction) -> tuple[np.ndarray, np.ndarray]:
        """A constant mod p and mod q; raises ConstantsCollide where it has none, or that of another constant."""
        if value not in self._found:
            parts = []
            for m in (self.primes.p, self.primes.q):
                if value.denominator % m == 0:
                    raise ConstantsCollide(f"constant {value}: its denominator is 0 modulo {m}; draw other primes")
                residue = value.numerator * pow(value.denominator, -1, m) % m
                other = self._by_residue.setdefault((m, residue), value)
                if other != value:
                    raise ConstantsCollide(f"constants {value} and {other} are equal modulo {m}; draw other primes")
                parts.append(np.asarray(residue, dtype=np.int64))
                parts[-1].flags.writeable = False
            self._found[value] = parts[0], parts[1]
        return self._found[value]


#: primes that are drawn before constants are found to collide modulo any
_PRIMES = 32


def with_primes(key: str, run: Callable[[Residues], T]) -> T:
    """What `run` returns with random primes, or others where constants collide. `key` decides which primes are drawn.

    The key holds the seed and the text of all that is compared, so that a run can be repeated, and nobody can write constants
    that vanish modulo primes known beforehand. Raises ConstantsCollide where they collide modulo all that are tried.
    """
    for k in range(_PRIMES - 1):
        with suppress(ConstantsCollide):
            return run(Residues(draw_primes(f"{key} {k}")))
    return run(Residues(draw_primes(key)))
