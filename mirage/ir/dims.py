"""Symbolic dims: integer expressions over symbols that are sizes, 0 or more.

A dim is a polynomial over symbols and over the functions `//`, `%`, `min` and `max` of dims (`FloorDiv`, `Modulo`,
`Minimum`, `Maximum`): a sympy expression in expanded form. Text such as `"4*n"` or `"min(n // 2, 64)"` is read with
Python's `ast`: nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

import sympy

from mirage.errors import DimError
from mirage.ir.dim_functions import DimFunction as DimFunction
from mirage.ir.dim_functions import FloorDiv as FloorDiv
from mirage.ir.dim_functions import Maximum as Maximum
from mirage.ir.dim_functions import Minimum as Minimum
from mirage.ir.dim_functions import Modulo as Modulo
from mirage.ir.dim_values import check_complete as check_complete
from mirage.ir.dim_values import evaluate as evaluate
from mirage.ir.dim_values import solve as solve
from mirage.ir.dim_values import symbols_of as symbols_of
from mirage.ir.dim_values import value_at as value_at
from mirage.ir.polynomials import divide as divide
from mirage.ir.trees import expression

Dim: TypeAlias = sympy.Expr
DimLike: TypeAlias = int | str | sympy.Expr

_WRITE = "use integers, dim names, +, -, *, //, %, ** with a literal exponent, min(...) and max(...)"


@cache
def symbol(name: str) -> sympy.Symbol:
    """The dim symbol of that name: an integer, 0 or more, equal wherever the name is equal."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise DimError(f"dim name {name!r} is not an identifier; use letters, digits and _ such as 'batch' or 'n'")
    return sympy.Symbol(name, integer=True, nonnegative=True)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes of dim symbols in words, "b=2, n=64"; empty where there are none."""
    return ", ".join(f"{s}={n}" for s, n in sizes.items())


def to_dim(value: DimLike, where: str = "dim") -> Dim:
    """A dim from an int, a name, text such as "4*n" or "(n + 7) // 8", or a sympy expression of dims, which may use
    `floor`, `ceiling`, `Mod`, `Min` and `Max`; raises DimError naming `where`.
    """
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


def floor_div(a: Dim, b: Dim) -> Dim:
    """a // b, rounded down."""
    return FloorDiv(a, b)


def ceil_div(a: Dim, b: Dim) -> Dim:
    """a / b rounded up, as -(-a // b): the tiles of size b that cover a."""
    return sympy.expand(-FloorDiv(-a, b))


def modulo(a: Dim, b: Dim) -> Dim:
    """a - b * (a // b)."""
    return Modulo(a, b)


def minimum(*dims: Dim) -> Dim:
    """The smallest of one or more dims."""
    return Minimum(*dims)


def maximum(*dims: Dim) -> Dim:
    """The largest of one or more dims."""
    return Maximum(*dims)


@lru_cache(maxsize=4096)
def is_polynomial(dim: Dim) -> bool:
    """Whether a dim is a sum of products of symbols and integers: what axes can have as sizes."""
    return bool(dim.is_polynomial(*dim.free_symbols))


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """The dim with dims for some of its symbols, by name, all at once."""
    if dim.is_Integer:
        return dim
    if dim.is_Symbol and dim.name in mapping:
        return mapping[dim.name]
    found = sympy.expand(dim.xreplace({symbol(name): d for name, d in mapping.items()}))
    return _canonical(found, f"{dim} with {', '.join(f'{k} = {v}' for k, v in mapping.items())}")


def dim_text(dim: Dim) -> str:
    """Text that `to_dim` reads back to the same dim."""
    return str(dim)


@lru_cache(maxsize=4096)
def _canonical(dim: Dim, where: str) -> Dim:
    """The expanded form over our own functions, so that equal dims are mostly equal objects; raises DimError."""
    if dim.is_Integer or (dim.is_Symbol and dim == symbol(dim.name)):
        return dim
    try:
        expanded = sympy.expand(_rebuilt(dim))
    except DimError as e:
        raise DimError(f"{where}: {dim} is not a dim: {e}") from None
    if any(not c.is_Integer for c in expanded.as_coefficients_dict().values()):
        raise DimError(f"{where}: {dim} is not an integer for every size; write the dim as a product such as '4*n'")
    return expanded


_OURS: dict[Any, type[DimFunction]] = {sympy.Mod: Modulo, sympy.Min: Minimum, sympy.Max: Maximum}


def _rebuilt(x: sympy.Expr) -> sympy.Expr:
    """The expression with sympy's functions of integers replaced by ours; raises DimError for any other."""
    match x:
        case sympy.Rational():
            return x
        case sympy.Symbol() if x.name.isidentifier() and x == symbol(x.name):
            return x
        case sympy.floor():
            return FloorDiv(*_quotient(x.args[0]))
        case sympy.ceiling():
            return ceil_div(*_quotient(x.args[0]))
        case sympy.Pow() if not (x.exp.is_Integer and x.exp > 0):
            pass
        case sympy.Add() | sympy.Mul() | sympy.Pow():
            return x.func(*map(_rebuilt, x.args))
        case DimFunction():
            return x.func(*(_canonical(a, "an operand") for a in x.args))
        case sympy.Mod() | sympy.Min() | sympy.Max():
            return _OURS[x.func](*(_canonical(a, "an operand") for a in x.args))
    raise DimError(f"{x} in it is not an integer expression; {_WRITE}")


def _quotient(x: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Dims whose quotient is an expression."""
    a, b = x.as_numer_denom()
    return sympy.expand(_rebuilt(a)), sympy.expand(_rebuilt(b))


#: characters of the text of one dim
_MAX_TEXT = 1000


@lru_cache(maxsize=4096)
def _parse(text: str, where: str) -> Dim:
    if len(text) > _MAX_TEXT:
        raise DimError(f"{where}: dim text of {len(text)} characters; write a dim in at most {_MAX_TEXT}")
    try:
        tree = expression(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise DimError(f"{where}: cannot read {text!r}; write an integer, a name or a product such as '4*n'") from None
    try:
        dim = _convert(tree, text)
    except RecursionError:
        raise DimError(f"{where}: {text[:40]!r} is nested too deeply; write a smaller dim") from None
    except DimError as e:
        raise DimError(f"{where}: {e}") from None
    if dim.is_Integer and dim < 0:
        raise DimError(f"{where}: {text!r} is negative; sizes are 0 or more")
    return dim


#: terms and bits that an intermediate result, or an operand of a function in it, may have, and all its numbers and
#: names: short text can denote a huge polynomial
_MAX_TERMS, _MAX_BITS, _MAX_LEAVES = 64, 63, 512


def _convert(node: ast.expr, text: str) -> Dim:
    dim = _convert_any(node, text)
    if not _fits(dim):
        raise DimError(f"{text[:40]!r} has more terms or digits than a size can; write a smaller dim")
    return dim


def _fits(dim: Dim) -> bool:
    leaves = 0
    for part in sympy.preorder_traversal(dim):
        leaves += part.is_Atom
        if leaves > _MAX_LEAVES or (part.is_Add and len(part.args) > _MAX_TERMS):
            return False
        if part.is_Integer and part.p.bit_length() > _MAX_BITS:
            return False
    return True


_OPERATIONS: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: sympy.expand(a * b),
    ast.FloorDiv: FloorDiv,
    ast.Mod: Modulo,
}


def _convert_any(node: ast.expr, text: str) -> Dim:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return sympy.Integer(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_convert(operand, text)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)) if 0 <= exponent <= 64:
            return _power(_convert(left, text), exponent, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_convert(left, text), _convert(right, text))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_] as args, keywords=[]):
            return (minimum if name == "min" else maximum)(*(_convert(a, text) for a in args))
    raise DimError(f"cannot read {text!r}; {_WRITE}")


def _power(base: Dim, exponent: int, text: str) -> Dim:
    """The product of equal factors, checked step by step: it must not grow unnoticed."""
    if base.is_Atom:
        return base**exponent
    found: Dim = sympy.Integer(1)
    for _ in range(exponent):
        found = sympy.expand(found * base)
        if not _fits(found):
            raise DimError(f"{text[:40]!r} has more terms or digits than a size can; write a smaller dim")
    return found
