"""Simplification of index expressions: sums of multiples of loops, without // and % where they cancel.

An index is brought to the form `c0 + c1 a1 + c2 a2 + ...`: the coefficients are dims, the atoms loops, quotients,
remainders or anything else. Ranges are those of loops that run, so that a loop's extent is at least 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import sympy

from mirage.ir.dim_functions import FloorDiv, Maximum, Minimum, Modulo
from mirage.ir.dims import Dim
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import COMPARISONS, Binary, Checked, Const, Loop, Scalar, Select, Size, Unary, constant
from mirage.ir.loops.traverse import transform
from mirage.ir.polynomials import divide

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)
_INDEX_OPERATORS = ("add", "sub", "mul", "floordiv", "mod")


@lru_cache(maxsize=8192)
def nonnegative(d: Dim) -> bool:
    """Whether a dim expression is 0 or more at all sizes, as far as the signs of its terms tell."""
    return all(c >= 0 and _factors_nonnegative(t) for t, c in sympy.expand(d).as_coefficients_dict().items())


def _factors_nonnegative(term: Dim) -> bool:
    """Whether no factor of a product is negative: sizes are not, nor quotients and remainders of what is not."""
    for f in sympy.Mul.make_args(term):
        match f.as_base_exp()[0]:
            case FloorDiv() | Modulo() | Minimum() as function:
                if not all(nonnegative(x) for x in function.args):
                    return False
            case Maximum() as function:
                if not any(nonnegative(x) for x in function.args):
                    return False
            case base:
                if not (base.is_Symbol or base == 1):
                    return False
    return True


class Affine:
    """A sum of multiples of atoms, and a constant: all coefficients are dims."""

    def __init__(self, terms: Mapping[Scalar, Dim], const: Dim = _ZERO) -> None:
        self.terms = {a: c for a, c in terms.items() if c != 0}
        self.const = const

    @classmethod
    def of(cls, x: Scalar) -> Affine:
        """An index expression, already simplified, in this form."""
        match x:
            case Const():
                return cls({}, sympy.Integer(int(x.value)))
            case Size():
                return cls({}, x.dim)
            case Unary(op="neg"):
                return cls.of(x.x).scaled(sympy.Integer(-1))
            case Binary(op="add"):
                return cls.of(x.left).plus(cls.of(x.right))
            case Binary(op="sub"):
                return cls.of(x.left).plus(cls.of(x.right).scaled(sympy.Integer(-1)))
            case Binary(op="mul"):
                a, b = cls.of(x.left), cls.of(x.right)
                if not a.terms:
                    return b.scaled(a.const)
                if not b.terms:
                    return a.scaled(b.const)
        return cls({x: _ONE})

    def plus(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for a, c in other.terms.items():
            terms[a] = sympy.expand(terms.get(a, _ZERO) + c)
        return Affine(terms, sympy.expand(self.const + other.const))

    def scaled(self, factor: Dim) -> Affine:
        return Affine({a: sympy.expand(c * factor) for a, c in self.terms.items()}, sympy.expand(self.const * factor))

    def recombined(self) -> Affine:
        """With `(e // d) * d + e % d` written as `e`."""
        for a, c in self.terms.items():
            match a:
                case Binary(op="mod", left=e, right=d):
                    quotient = Binary("floordiv", e, d)
                    whole = Affine.of(d)
                    if quotient in self.terms and self.terms[quotient] == sympy.expand(c * whole.const):
                        rest = {b: k for b, k in self.terms.items() if b not in (a, quotient)}
                        return Affine(rest, self.const).plus(Affine.of(e).scaled(c)).recombined()
        return self

    def scalar(self) -> Scalar:
        """As an expression: one form for equal sums, what is added before what is subtracted."""
        added = [(a, c) for a, c in self.terms.items() if not nonnegative(-c)]
        taken = [(a, -c) for a, c in self.terms.items() if nonnegative(-c)]
        found = _sum([_times(a, c) for a, c in sorted(added, key=_order)])
        const = self.const
        if const != 0 and (found is None or not nonnegative(-const)):
            found = size_of(const) if found is None else Binary("add", found, size_of(const))
        elif const != 0 and found is not None:
            found = Binary("sub", found, size_of(-const))
        if found is None and taken:
            found = size_of(_ZERO)
        for a, c in sorted(taken, key=_order):
            assert found is not None
            found = Binary("sub", found, _times(a, c))
        return size_of(_ZERO) if found is None else found

    def bounds(self, extents: Mapping[str, Dim]) -> tuple[Dim, Dim] | None:
        """The least and the largest value while the loops run; None where that is not known."""
        low = high = self.const
        for a, c in self.terms.items():
            top = _top(a, extents)
            if top is None:
                return None
            if nonnegative(c):
                high += c * top
            elif nonnegative(-c):
                low += c * top
            else:
                return None
        return sympy.expand(low), sympy.expand(high)


def size_of(d: Dim) -> Scalar:
    """A dim expression, which may be negative, as a value."""
    return constant(int(d), "int64") if d.is_Integer else Size(d)


def _top(atom: Scalar, extents: Mapping[str, Dim]) -> Dim | None:
    """The largest value of an atom whose least is 0; None for others."""
    match atom:
        case Loop() if atom.name in extents:
            return extents[atom.name] - 1
        case Checked():
            return atom.extent - 1
        case Binary(op="mod", right=Const() | Size() as d):
            return Affine.of(d).const - 1
        case Binary(op="floordiv", left=e, right=Const() | Size() as d):
            inside = Affine.of(e).bounds(extents)
            divisor = Affine.of(d).const
            if inside is None or not nonnegative(inside[0]):
                return None
            # of e < count * d, the quotient is less than count
            count = divide(sympy.expand(inside[1] + 1), divisor)
            return count - 1 if count is not None else None
    return None


def _times(atom: Scalar, factor: Dim) -> Scalar:
    return atom if factor == 1 else Binary("mul", atom, size_of(factor))


def _sum(terms: Sequence[Scalar]) -> Scalar | None:
    found: Scalar | None = None
    for t in terms:
        found = t if found is None else Binary("add", found, t)
    return found


def _order(term: tuple[Scalar, Dim]) -> tuple[int, str]:
    atom = term[0]
    return (0, atom.name) if isinstance(atom, Loop) else (1, str(atom))


def within(x: Scalar, extent: Dim, extents: Mapping[str, Dim]) -> bool:
    """Whether an index is known to be one of `extent` elements while the loops run."""
    found = Affine.of(x).bounds(extents)
    return found is not None and nonnegative(found[0]) and nonnegative(extent - 1 - found[1])


def is_index(x: Scalar) -> bool:
    """Whether an expression is made of loops, dims and integers alone."""
    match x:
        case Loop() | Size():
            return True
        case Const():
            return x.dtype == "int64"
        case Unary(op="neg"):
            return is_index(x.x)
        case Binary() if x.op in _INDEX_OPERATORS:
            return is_index(x.left) and is_index(x.right)
        case Checked():
            return True
    return False


def simplify(x: Scalar, extents: Mapping[str, Dim]) -> Scalar:
    """An equal expression with simpler indices, for loops of these extents; conditions that always hold are gone."""

    def change(n: Scalar) -> Scalar | None:
        match n:
            case Binary(op="floordiv" | "mod") if is_index(n):
                return _divided(n, extents)
            case Binary(op="add" | "sub" | "mul") if is_index(n):
                return Affine.of(n).recombined().scalar()
            case Binary() if n.op in COMPARISONS and is_index(n.left) and is_index(n.right):
                return _compared(n, extents)
            case Select() if n.then is n.orelse:
                return n.then
            case Checked() if is_index(n.index) and within(n.index, n.extent, extents):
                return n.index
        return _decided(n)

    return transform(x, change)


def _divided(n: Binary, extents: Mapping[str, Dim]) -> Scalar:
    divisor = Affine.of(n.right)
    d = divisor.const
    if divisor.terms or not nonnegative(d) or d == 0:
        return n
    e = Affine.of(n.left)
    quotient: dict[Scalar, Dim] = {}
    rest: dict[Scalar, Dim] = {}
    for a, c in e.terms.items():
        times = divide(c, d)
        (rest if times is None else quotient)[a] = c if times is None else times
    parts = [divide(t, d) for t in sympy.Add.make_args(e.const)]
    whole = sympy.Add(*(p for p in parts if p is not None))
    left = sympy.Add(*(t for t, p in zip(sympy.Add.make_args(e.const), parts, strict=True) if p is None))
    if left.is_Integer and d.is_Integer:
        more, left = divmod(int(left), int(d))
        whole, left = whole + more, sympy.Integer(left)
    r = Affine(rest, left)
    bounds = r.bounds(extents)
    if bounds is not None and nonnegative(bounds[0]) and nonnegative(d - 1 - bounds[1]):
        return (Affine(quotient, whole) if n.op == "floordiv" else r).scalar()
    factored = _factored(n.op, r, d, extents)
    if factored is None and not quotient and whole == 0:
        return _nested(n, d)
    inner = _nested(Binary(n.op, r.scalar(), size_of(d)), d) if factored is None else factored
    return Affine(quotient, whole).plus(Affine.of(inner)).recombined().scalar() if n.op == "floordiv" else inner


def _factored(op: str, e: Affine, d: Dim, extents: Mapping[str, Dim]) -> Scalar | None:
    """Of `e = g a + r` with r in [0, g) and `d = g b`: the quotient is `a // b`, the remainder `(a % b) g + r`."""
    for g in dict.fromkeys(e.terms.values()):
        b = divide(d, g) if g != 1 else None
        if b is None or not nonnegative(g):
            continue
        times = {a: divide(c, g) for a, c in e.terms.items()}
        const = divide(e.const, g)
        r = Affine({a: e.terms[a] for a, t in times.items() if t is None}, e.const if const is None else _ZERO)
        bounds = r.bounds(extents)
        if bounds is None or not nonnegative(bounds[0]) or not nonnegative(g - 1 - bounds[1]):
            continue
        whole = Affine({a: t for a, t in times.items() if t is not None}, _ZERO if const is None else const)
        part = simplify(Binary(op, whole.scalar(), size_of(b)), extents)
        return part if op == "floordiv" else Affine.of(part).scaled(g).plus(r).recombined().scalar()
    return None


def _nested(n: Binary, d: Dim) -> Scalar:
    """Quotients and remainders of quotients and remainders of non-negative values."""
    match n.left:
        case Binary(op="floordiv", left=x, right=Const() | Size() as b) if n.op == "floordiv":
            return Binary("floordiv", x, size_of(sympy.expand(Affine.of(b).const * d)))
        case Binary(op="mod", left=x, right=Const() | Size() as b):
            times = divide(Affine.of(b).const, d)
            if times is not None and n.op == "mod":
                return Binary("mod", x, size_of(d))
            if times is not None:
                return Binary("mod", Binary("floordiv", x, size_of(d)), size_of(times))
    return n


def _compared(n: Binary, extents: Mapping[str, Dim]) -> Scalar | None:
    """True or False where the ranges of the two sides tell."""
    found = Affine.of(n.left).plus(Affine.of(n.right).scaled(sympy.Integer(-1))).bounds(extents)
    if found is None:
        return None
    low, high = found
    always = {
        "lt": nonnegative(-high - 1),
        "le": nonnegative(-high),
        "gt": nonnegative(low - 1),
        "ge": nonnegative(low),
        "eq": low == high == 0,
        "ne": nonnegative(low - 1) or nonnegative(-high - 1),
    }
    opposite = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
    if always[n.op]:
        return constant(True, "bool")
    return constant(False, "bool") if always[opposite[n.op]] else None


def _decided(n: Scalar) -> Scalar | None:
    """What a connective or a choice is where its operands decide it."""
    match n:
        case Binary(op="and" | "or"):
            for a, b in ((n.left, n.right), (n.right, n.left)):
                if isinstance(a, Const):
                    return b if bool(a.value) == (n.op == "and") else a
            return n.left if n.left is n.right else None
        case Unary(op="not", x=Const() as c):
            return constant(not c.value, "bool")
        case Select(condition=Const() as c):
            return n.then if c.value else n.orelse
    return None


def simplify_stage(stage: TensorExpr) -> TensorExpr:
    """The stage with a simplified body."""
    return replace(stage, body=simplify(stage.body, stage.extents))


def simplify_program(program: LoopProgram) -> LoopProgram:
    """The program with simplified bodies."""
    return replace(program, stages=tuple((n, simplify_stage(s)) for n, s in program.stages))


def resolve(x: Scalar, condition: Scalar, holds: bool) -> Scalar:
    """The expression where a condition is known."""
    known = constant(holds, "bool")

    def change(n: Scalar) -> Scalar | None:
        return known if n is condition else _decided(n)

    return transform(x, change)
