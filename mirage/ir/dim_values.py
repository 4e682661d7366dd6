"""The values of dims under bindings of their symbols, and back.

Calls bind sizes, and sympy takes milliseconds, so it is asked once for each dim: what remains is plain functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

import sympy

from mirage.errors import DimError
from mirage.ir.dim_functions import DimFunction, FloorDiv, Minimum, Modulo

Sizes: TypeAlias = Mapping[str, int]
#: computes an integer of sizes; raises KeyError where one is missing
_Function: TypeAlias = Callable[[Sizes], int]
#: (name of a symbol, or function; power) for each factor of a monomial
_Powers: TypeAlias = tuple[tuple[str | sympy.Expr, int], ...]


@lru_cache(maxsize=4096)
def symbols_of(dim: sympy.Expr) -> frozenset[str]:
    """Names of the symbols in a dim."""
    return frozenset(s.name for s in dim.free_symbols)


@lru_cache(maxsize=4096)
def _terms(dim: sympy.Expr) -> tuple[tuple[int, _Powers], ...]:
    """Coefficient and factors of every monomial over symbols and functions."""
    found = []
    for term in sympy.Add.make_args(sympy.expand(dim)):
        coefficient, rest = term.as_coeff_Mul()
        powers = rest.as_powers_dict() if rest != 1 else {}
        found.append((int(coefficient), tuple((x.name if x.is_Symbol else x, int(p)) for x, p in powers.items())))
    return tuple(found)


@lru_cache(maxsize=4096)
def _function(dim: sympy.Expr) -> _Function:
    """What computes a dim, or an operand of a function in one, of either sign."""
    if dim.is_Integer:
        value = int(dim)
        return lambda sizes: value
    if dim.is_Symbol:
        return operator.itemgetter(dim.name)
    if isinstance(dim, DimFunction):
        return _of_function(dim)
    if dim.has(sympy.floor, sympy.ceiling, sympy.Mod, sympy.Min, sympy.Max):
        # sympy's own functions, not yet canonical
        from mirage.ir.dims import to_dim

        return _function(to_dim(dim))
    return _of_terms([(c, [(_factor(x), power) for x, power in powers]) for c, powers in _terms(dim)])


def _factor(x: str | sympy.Expr) -> str | _Function:
    return x if isinstance(x, str) else _function(x)


def _of_terms(parts: list[tuple[int, list[tuple[str | _Function, int]]]]) -> _Function:
    def total(sizes: Sizes) -> int:
        value = 0
        for term, factors in parts:
            for x, power in factors:
                term *= (int(sizes[x]) if isinstance(x, str) else x(sizes)) ** power
            value += term
        return value

    return total


def _of_function(dim: DimFunction) -> _Function:
    operands = [_function(x) for x in dim.args]
    if isinstance(dim, FloorDiv | Modulo):
        left, right = operands
        combine: Callable[[int, int], int] = operator.floordiv if isinstance(dim, FloorDiv) else operator.mod

        def divided(sizes: Sizes) -> int:
            divisor = right(sizes)
            if divisor == 0:
                raise DimError(f"dim {dim}: {dim.args[1]} is 0 at {dict(sizes)}; choose sizes that make no divisor 0")
            return combine(left(sizes), divisor)

        return divided
    choose: Callable[..., int] = min if isinstance(dim, Minimum) else max
    return lambda sizes: choose(f(sizes) for f in operands)


def check_complete(owner: str, symbols: Iterable[str], sizes: Sizes) -> None:
    """Raises DimError, for the program called `owner`, naming its dim symbols that have no size."""
    if missing := [s for s in symbols if s not in sizes]:
        raise DimError(f"{owner}: no size for {', '.join(missing)}; give one for every dim")


def value_at(dim: sympy.Expr, sizes: Sizes) -> int:
    """The value, of either sign, of a dim expression under a binding of its symbols.

    Raises DimError naming a symbol that is missing, or a divisor that is 0.
    """
    try:
        return _function(dim)(sizes)
    except KeyError:
        missing = symbols_of(dim) - sizes.keys()
        raise DimError(f"dim {dim}: no size for {sorted(missing)}; give sizes={{'{min(missing)}': ...}}") from None


def shapes_function(shapes: Iterable[Iterable[sympy.Expr]]) -> Callable[[Sizes], list[tuple[int, ...]]]:
    """What computes shapes as `evaluate` does their dims, each dim once, for many calls."""
    given = [tuple(shape) for shape in shapes]
    dims = list(dict.fromkeys(d for shape in given for d in shape))
    functions = [_function(d) for d in dims]
    places = [[dims.index(d) for d in shape] for shape in given]

    def bind(sizes: Sizes) -> list[tuple[int, ...]]:
        try:
            found = [int(f(sizes)) for f in functions]
        except KeyError:
            found = [-1]
        if min(found, default=0) < 0:
            # which says what is wrong
            found = [evaluate(d, sizes) for d in dims]
        return [tuple([found[k] for k in at]) for at in places]

    return bind


def evaluate(dim: sympy.Expr, sizes: Sizes) -> int:
    """The size of a dim under a binding of its symbols.

    Raises DimError naming a symbol that is missing, a divisor that is 0, or a dim that is negative.
    """
    size = value_at(dim, sizes)
    if size < 0:
        raise DimError(f"dim {dim} is {size} at {dict(sizes)}; choose sizes that make every dim 0 or more")
    return size


def solve(dim: sympy.Expr, size: int, sizes: Sizes) -> tuple[str, int] | None:
    """The (symbol, value) that makes `dim` equal `size`, given the symbols bound so far.

    None if two are open, if none or several values fit, or if the open symbol is an operand of a function.
    """
    bound: dict[_Powers, int] = {}
    for value, powers in _terms(dim):
        left = []
        for x, power in powers:
            if isinstance(x, str) and x in sizes:
                value *= sizes[x] ** power
            elif not isinstance(x, str) and symbols_of(x) <= sizes.keys():
                value *= value_at(x, sizes) ** power
            else:
                left.append((x, power))
        bound[tuple(left)] = bound.get(tuple(left), 0) + value
    open_ = {x for left, value in bound.items() if value for x, _ in left}
    if len(open_) != 1:
        return None
    (name,) = open_
    if not isinstance(name, str):
        return None
    constant = bound.pop((), 0)
    if bound.keys() == {((name, 1),)}:
        # linear, as almost every dim is
        found, remainder = divmod(size - constant, bound[((name, 1),)])
        return (name, found) if not remainder and found >= 0 else None
    free = sympy.Symbol(name, integer=True, nonnegative=True)
    rest = sum((c * free ** left[0][1] for left, c in bound.items()), sympy.Integer(constant - size))
    roots = [int(root) for root in sympy.solve(rest, free) if root.is_Integer and root >= 0]
    return (name, roots[0]) if len(roots) == 1 else None
