"""For which sizes of its tensors an exported program holds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import sympy
from torch.utils._sympy import functions as torch_dims

from mirage.errors import DimError, UnsupportedNode
from mirage.frontends.aten.types import converted, dim_of
from mirage.ir.codec import one_of
from mirage.ir.dim_values import value_at
from mirage.ir.dims import Dim, dim_text, solve, substitute, symbols_of

Shape: TypeAlias = tuple[int, ...]
#: the least and the largest size of a dim, None for any
Range: TypeAlias = "tuple[int, int | None]"

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
#: how torch writes them
_CLASSES: Mapping[Any, str] = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.Le: "<=", sympy.Ge: ">=", sympy.Lt: "<", sympy.Gt: ">",
}  # fmt: skip
#: denominators of fractions that quotients of sizes are compared with exactly
_EXACT = 1 << 10
_QUOTIENTS = (torch_dims.FloatTrueDiv, torch_dims.IntTrueDiv)
#: sizes for which torch makes a symbol, where an example has them; it takes all symbols to be as large
LEAST = 2


def within(n: int, bound: Range) -> bool:
    """Whether a size is in a range."""
    low, high = bound
    return low <= n and (high is None or n <= high)


@dataclass(frozen=True)
class SizeGuard:
    """`left` and `right` stand in a relation, such as "<="."""

    relation: Annotated[str, one_of(*_RELATIONS)]
    left: Dim
    right: Dim

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it does at these sizes; False where a size that it needs is unknown."""
        try:
            return _RELATIONS[self.relation](value_at(self.left, sizes), value_at(self.right, sizes))
        except DimError:
            return False

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in it."""
        return symbols_of(self.left) | symbols_of(self.right)

    def __str__(self) -> str:
        return f"{dim_text(self.left)} {self.relation} {dim_text(self.right)}"


@dataclass(frozen=True)
class Guards:
    """The shapes that a program takes, over dim symbols, and what has to hold of these."""

    shapes: tuple[tuple[Dim, ...], ...]
    conditions: tuple[SizeGuard, ...] = ()

    def sizes(self, shapes: Sequence[Shape]) -> dict[str, int] | None:
        """The sizes of all symbols where the program takes such shapes, which are in order; else None."""
        if [len(s) for s in shapes] != [len(s) for s in self.shapes]:
            return None
        sizes: dict[str, int] = {}
        symbols, others = self._dims
        for t, k, name in symbols:
            n = shapes[t][k]
            if sizes.setdefault(name, n) != n:
                return None
        for t, k, d in others:
            if len(symbols_of(d) - sizes.keys()) == 1 and (found := solve(d, shapes[t][k], sizes)) is not None:
                sizes[found[0]] = found[1]
        wanted = (SizeGuard("==", d, sympy.Integer(shapes[t][k])) for t, k, d in others)
        return sizes if all(g.holds(sizes) for g in (*wanted, *self.conditions)) else None

    @cached_property
    def _dims(self) -> tuple[list[tuple[int, int, str]], list[tuple[int, int, Dim]]]:
        """The number of a tensor and of a dim: with its name for each that is a symbol, and with the dim for all others."""
        places = [(t, k, d) for t, dims in enumerate(self.shapes) for k, d in enumerate(dims)]
        return [(t, k, d.name) for t, k, d in places if d.is_Symbol], [p for p in places if not p[2].is_Symbol]

    def shapes_at(self, sizes: Mapping[str, int]) -> list[Shape] | None:
        """The shapes at these sizes of the symbols; None where there are none."""
        known = {name: sympy.Integer(n) for name, n in sizes.items()}
        found = [[substitute(d, known) for d in dims] for dims in self.shapes]
        if not all(d.is_Integer and d >= 0 for dims in found for d in dims):
            return None
        return [tuple(int(d) for d in dims) for dims in found]


def _without_minus(relation: str, left: Dim, right: Dim) -> SizeGuard:
    """The same with terms on the side where they are not negative, as sizes are: torch writes `-n > -23`."""
    terms = sympy.Add.make_args(sympy.expand(left - right))
    negative = [t for t in terms if t.could_extract_minus_sign()]
    return SizeGuard(relation, sympy.Add(*(t for t in terms if t not in negative)), sympy.Add(*(-t for t in negative)))


def _numerator(difference: Any) -> Any:
    """What compares with 0 as this difference does, which has quotients of sizes, such as the factor by which an image grows.

    None where it has none, or divides by what may not be positive.
    """
    if not difference.has(*_QUOTIENTS):
        return None
    real = difference.replace(lambda e: isinstance(e, _QUOTIENTS), lambda e: e.args[0] / e.args[1])
    real = real.replace(lambda e: isinstance(e, torch_dims.ToFloat), lambda e: e.args[0])
    above, below = sympy.fraction(sympy.cancel(real.replace(lambda e: e.is_Float, sympy.Rational)))
    positive = all(t.is_polynomial() and t.as_coeff_Mul()[0] > 0 for t in sympy.Add.make_args(sympy.expand(below)))
    # a third is no float64, and no quotient is exactly what stands for it
    exact = all(sympy.Rational(f).q <= _EXACT for f in difference.atoms(sympy.Float))
    return sympy.expand(above) if positive and (exact or not above.free_symbols) else None


def _condition(guard: Any) -> SizeGuard | None:
    """What torch demands of sizes; None where all sizes satisfy it. Raises an error for what is no relation of dims."""
    if guard is sympy.true or (isinstance(guard, sympy.Or) and any(_condition(part) is None for part in guard.args)):
        return None
    try:
        left, right = converted(guard.lhs), converted(guard.rhs)
    except UnsupportedNode:
        if (numerator := _numerator(guard.lhs - guard.rhs)) is None:
            raise
        if not numerator.free_symbols:
            # the same for all sizes, as far as float64 tells
            return None
        left, right = converted(numerator), sympy.Integer(0)
    found = _without_minus(_CLASSES[guard.func], left, right)
    always = found.left == found.right and found.relation in ("==", "<=", ">=")
    return None if always or found.holds({}) else found


def guards_of(tensors: Sequence[Any]) -> Guards:
    """The guards of a program with these fake tensors as its inputs, of `torch.export`.

    Its lower bounds of 2 are none: torch takes them for granted of all sizes, so what happens below has to be checked.
    """
    shapes = tuple(tuple(dim_of(n) for n in t.shape) for t in tensors)
    nodes = [n.node for t in tensors for n in t.shape if not isinstance(n, int)]
    if not nodes:
        return Guards(shapes)
    environment = nodes[0].shape_env
    used = {s for dims in shapes for d in dims for s in symbols_of(d)}
    sizes = hints(tensors)
    example = {dim_of(n): int(n.node.hint) for t in tensors for n in t.shape if not isinstance(n, int)}
    conditions: list[SizeGuard] = []
    for guard in environment.guards:
        # symbols that were found to be equal are written as one in the shapes
        for part in sympy.And.make_args(environment.replace(guard.expr)):
            try:
                condition = _condition(part)
                if condition is not None and condition.symbols <= sizes.keys() and not condition.holds(sizes):
                    raise UnsupportedNode(f"{condition} does not hold for the example, by rounding")
            except (KeyError, AttributeError, UnsupportedNode, DimError):
                # what is no relation of dims is only known to hold for the sizes of the example
                own = {str(s) for s in part.free_symbols}
                fixed = own if own <= used else used
                conditions += (SizeGuard("==", d, sympy.Integer(n)) for d, n in example.items() if fixed & symbols_of(d))
                continue
            if condition is not None:
                conditions.append(condition)
    for s, found in environment.var_to_range.items():
        if str(s) in used:
            if found.lower.is_Integer and found.lower > LEAST:
                conditions.append(SizeGuard(">=", converted(s), converted(found.lower)))
            if found.upper.is_Integer:
                conditions.append(SizeGuard("<=", converted(s), converted(found.upper)))
    return Guards(shapes, tuple(dict.fromkeys(conditions)))


def hints(values: Sequence[Any]) -> dict[str, int]:
    """The sizes that dim symbols have in the example of which a graph was made; `values` are its inputs as torch knows them."""
    sizes = (n for v in values for n in (getattr(v, "shape", None) or (v,)) if not isinstance(n, int) and hasattr(n, "node"))
    return {str(n.node.expr): int(n.node.hint) for n in sizes if n.node.expr.is_Symbol and n.node.hint is not None}
