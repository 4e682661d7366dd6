"""The one interface through which operators are defined.

An operator is a function over an `Algebra`; floats, finite fields, abstract expressions, the exact form of proofs, SMT
terms, exp-degrees and C text are interpretations of it. So an operator's meaning, its abstract expression and its code
can't disagree: they are the same definition read differently.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol, TypeVar

import sympy

from mirage.ir.functions import ScalarFunction

T = TypeVar("T")


class Algebra(Protocol[T]):
    """Arithmetic over values of type T; elementwise and broadcasting where T is a tensor."""

    def constant(self, value: Fraction) -> T: ...
    def dim(self, size: sympy.Expr) -> T: ...
    def add(self, x: T, y: T) -> T: ...
    def sub(self, x: T, y: T) -> T: ...
    def mul(self, x: T, y: T) -> T: ...
    def div(self, x: T, y: T) -> T: ...
    def neg(self, x: T) -> T: ...
    def function(self, fn: ScalarFunction, x: T, *params: Fraction) -> T: ...


class TensorAlgebra(Algebra[T], Protocol[T]):
    """An algebra whose values are tensors over named axis parts, so that they can be summed."""

    def sum(self, x: T, parts: frozenset[str]) -> T: ...
