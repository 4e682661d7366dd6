"""Symbolic dims: sympy expressions over positive integer symbols.

Text such as `"4*n"` is read with Python's `ast` and only +, -, *, // and ** of integers and names are accepted: nothing
is ever evaluated as code.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TypeAlias

import sympy

from mirage.errors import DimError

Dim: TypeAlias = sympy.Expr
DimLike: TypeAlias = int | str | sympy.Expr


@cache
def symbol(name: str) -> sympy.Symbol:
    """The dim symbol of that name: a positive integer, equal wherever the name is equal."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise DimError(f"dim name {name!r} is not an identifier; use letters, digits and _ such as 'batch' or 'n'")
    return sympy.Symbol(name, integer=True, positive=True)


def to_dim(value: DimLike, where: str = "dim") -> Dim:
    """A dim from an int, a name, text such as "4*n", or a dim; raises DimError naming `where`."""
    if isinstance(value, bool):
        raise DimError(f"{where}: {value!r} is not a size; use a non-negative integer or a name")
    if isinstance(value, sympy.Expr):
        return _canonical(value, where)
    if isinstance(value, int) or hasattr(value, "__index__"):
        size = int(value)
        if size < 0:
            raise DimError(f"{where}: size {size} is negative; sizes are 0 or more")
        return sympy.Integer(size)
    if isinstance(value, str):
        return _parse(value, where)
    raise DimError(
        f"{where}: {value!r} of type {type(value).__name__} is not a dim; use an integer or a string such as '4*n'"
    )


@lru_cache(maxsize=4096)
def _canonical(dim: Dim, where: str) -> Dim:
    """The expanded form, so that equal dims are equal objects; raises DimError unless an integer polynomial."""
    if dim.is_Integer or (dim.is_Symbol and dim == symbol(dim.name)):
        return dim
    known = all(s == symbol(s.name) for s in dim.free_symbols)
    if not known or not dim.is_polynomial(*dim.free_symbols):
        raise DimError(f"{where}: {dim} is not a dim; use sums and products of dim names and integers")
    expanded = sympy.expand(dim)
    if any(not c.is_Integer for c in expanded.as_coefficients_dict().values()):
        raise DimError(f"{where}: {dim} is not an integer for every size; write the dim as a product such as '4*n'")
    return expanded


@lru_cache(maxsize=4096)
def _parse(text: str, where: str) -> Dim:
    if len(text) > 200:
        raise DimError(f"{where}: dim text of {len(text)} characters; write a dim in at most 200")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise DimError(f"{where}: cannot read {text!r}; write an integer, a name or a product such as '4*n'") from None
    dim = _convert(tree, text, where)
    if dim.is_Integer and dim < 0:
        raise DimError(f"{where}: {text!r} is negative; sizes are 0 or more")
    return dim


#: terms and bits that an intermediate result may have: short text can denote a huge polynomial
_MAX_TERMS, _MAX_BITS = 64, 63


def _convert(node: ast.expr, text: str, where: str) -> Dim:
    dim = _convert_any(node, text, where)
    terms = sympy.Add.make_args(dim)
    if len(terms) > _MAX_TERMS or any(t.as_coeff_Mul()[0].p.bit_length() > _MAX_BITS for t in terms):
        raise DimError(f"{where}: {text[:40]!r} has more terms or digits than a size can; write a smaller dim")
    return dim


def _convert_any(node: ast.expr, text: str, where: str) -> Dim:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return sympy.Integer(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_convert(operand, text, where)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _convert(left, text, where), _convert(right, text, where)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return sympy.expand(a * b)
                case ast.Pow() if b.is_Integer and 0 <= b <= 64 and a.is_Atom:
                    return a**b
                case ast.FloorDiv():
                    quotient = divide(a, b)
                    if quotient is not None:
                        return quotient
                    raise DimError(
                        f"{where}: in {text!r}, {b} does not divide {a} for every size; write the dim as a product"
                    )
    raise DimError(f"{where}: cannot read {text!r}; only integers, names, +, -, *, ** and exact // are allowed")


def divide(a: Dim, b: Dim) -> Dim | None:
    """a / b where that is an integer polynomial for every size, else None."""
    if a == b:
        return sympy.Integer(1)
    if b.is_Integer and a.is_Integer:
        return sympy.Integer(int(a) // int(b)) if int(b) != 0 and int(a) % int(b) == 0 else None
    if a == 0 or b == 0:
        return None
    quotient = sympy.expand(sympy.cancel(a / b))
    numerator, denominator = quotient.as_numer_denom()
    if denominator != 1:
        return None
    coefficients = sympy.Poly(numerator).coeffs() if numerator.free_symbols else [numerator]
    return quotient if all(c.is_Integer for c in coefficients) else None


def symbols_of(dim: Dim) -> set[str]:
    """Names of the symbols in a dim."""
    return {s.name for s in dim.free_symbols}


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """The dim with symbols replaced by dims."""
    if not symbols_of(dim) & values.keys():
        return dim
    return to_dim(dim.xreplace({symbol(name): value for name, value in values.items()}))


@lru_cache(maxsize=4096)
def _terms(dim: Dim) -> tuple[tuple[int, tuple[tuple[str, int], ...]], ...]:
    """Coefficient and (symbol, power) of every monomial: calls bind sizes, and sympy would take milliseconds."""
    found = []
    for term in sympy.Add.make_args(sympy.expand(dim)):
        coefficient, rest = term.as_coeff_Mul()
        powers = rest.as_powers_dict() if rest != 1 else {}
        found.append((int(coefficient), tuple((base.name, int(power)) for base, power in powers.items())))
    return tuple(found)


def value_at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value, of any sign, of a dim expression under a binding of its symbols; errors as of `evaluate`."""
    size = 0
    try:
        for value, powers in _terms(dim):
            for name, power in powers:
                value *= int(sizes[name]) ** power
            size += value
    except KeyError:
        missing = symbols_of(dim) - sizes.keys()
        raise DimError(f"dim {dim}: no size for {sorted(missing)}; give sizes={{'{min(missing)}': ...}}") from None
    return size


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The size of a dim under a binding of its symbols; raises DimError naming a missing symbol."""
    size = value_at(dim, sizes)
    if size < 0:
        raise DimError(f"dim {dim} is {size} at {dict(sizes)}; choose sizes that make every dim 0 or more")
    return size


def solve(dim: Dim, size: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """The (symbol, value) that makes `dim` equal `size`, given the symbols bound so far; None if two are open or none fits."""
    bound: dict[tuple[tuple[str, int], ...], int] = {}
    for value, powers in _terms(dim):
        for name, power in powers:
            value *= sizes[name] ** power if name in sizes else 1
        left = tuple((name, power) for name, power in powers if name not in sizes)
        bound[left] = bound.get(left, 0) + value
    if all(sum(power for _, power in left) <= 1 for left in bound):
        # linear, as almost every dim is
        open_ = [left[0][0] for left, value in bound.items() if left and value]
        if len(open_) != 1:
            return None
        found, remainder = divmod(size - bound.get((), 0), bound[((open_[0], 1),)])
        return (open_[0], found) if not remainder and found >= 0 else None
    rest = sympy.expand(dim.subs({symbol(k): v for k, v in sizes.items()}))
    free = sorted(rest.free_symbols, key=str)
    if len(free) != 1:
        return None
    for root in sympy.solve(rest - size, free[0]):
        if root.is_Integer and root >= 0:
            return free[0].name, int(root)
    # the symbols are positive, so sympy leaves out 0
    return (free[0].name, 0) if rest.subs(free[0], 0) == size else None


def dim_text(dim: Dim) -> str:
    """Text that `to_dim` reads back to the same dim."""
    return str(dim)
