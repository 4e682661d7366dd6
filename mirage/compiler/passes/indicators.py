"""Conditions of whole numbers as real numbers: 1 where a condition holds and 0 elsewhere, as sums and clamps of vectors.

    j <= i                clamp(i - j + 1, 0, 1)
    i - j < 128           clamp(128 - i + j, 0, 1)
    d == e                1 - clamp(abs(d - e), 0, 1)
    a & b, a | b, ~a      a * b, clamp(a + b, 0, 1), 1 - a

A mask of positions that is such an expression is computed where a tile of scores is, and takes no memory, as the masks of
FlexAttention (Dong et al., 2024) do. float32 has 24 bits, so that a number of more bits is a sum of parts of `BITS` bits each:
differences are taken part by part, where they are exact, and added up from the largest part on. What is rounded then is far from
0, so that no difference that is not 0 becomes 0 or changes its sign, which is all that is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage.compiler.passes.rewrite import OperatorWriter, Rewriter
from mirage.ir.dims import Dim, evaluate
from mirage.ir.graph.nodes import Atom, Expr, OpCall, Var
from mirage.ir.operator import RENAMING
from mirage.ir.types import TensorType, is_one

#: bits of a part. Sums of `MOST` of them are exact in float32
BITS, MOST = 20, 8
#: parts of whole numbers by their type, and of positions, of which there are fewer than 2^40
PARTS: Mapping[str, int] = {"bool": 1, "int8": 1, "uint8": 1, "int16": 1, "int32": 2, "int64": 3}
POSITION_PARTS = 2
#: the difference that is above 0 where a comparison holds: which operand's, and what is added
_ORDERS: Mapping[str, tuple[int, int]] = {"less": (1, 0), "less_equal": (1, 1), "greater": (0, 0), "greater_equal": (0, 1)}
#: rows of a mask that is computed where it is read, at some of the sizes that are measured: one of fewer rows takes little
#: memory, and less to make than its vectors take
ROWS = 8
#: operators that only arrange elements
_VIEWS = (*RENAMING, "broadcast_to")
#: types in which such parts are exact
EXACT = ("float32", "float64")


@dataclass(frozen=True)
class _Linear:
    """A sum of multiples of tensors of whole numbers, and a number."""

    terms: Mapping[Var, int]
    number: int = 0

    def plus(self, other: _Linear, factor: int) -> _Linear:
        terms = {v: self.terms.get(v, 0) + factor * other.terms.get(v, 0) for v in {**self.terms, **other.terms}}
        return _Linear({v: n for v, n in terms.items() if n}, self.number + factor * other.number)


class Indicators:
    """Writes indicators of a type into the function that a rewriter writes; `values` are the old function's definitions, `sizes`
    the sets of sizes (dim symbol -> elements) that are measured.
    """

    def __init__(
        self, r: Rewriter, values: Mapping[Var, Expr], dtype: str, sizes: Sequence[Mapping[str, int]] = ()
    ) -> None:
        self.w = OperatorWriter(r)
        self.r, self.values, self.dtype, self.sizes = r, values, dtype, sizes
        self._parts: dict[Var, list[Atom]] = {}

    def find(self, condition: Atom) -> Atom | None:
        """The indicator of a condition of rows and columns; None where that is as large as a tensor that it reads, has few rows,
        or is none of those above.
        """
        shape = _type(condition).shape
        sources = self._sources(condition) if self.dtype in EXACT and self._has_rows(shape) else None
        if sources is None or any(prod(_type(v).shape) == prod(shape) for v in sources):
            return None
        return self._of(condition)

    def _has_rows(self, shape: Sequence[Dim]) -> bool:
        if len(shape) < 2 or any(map(is_one, shape[-2:])):
            return False
        known = [at for at in self.sizes if at.keys() >= {s.name for s in shape[-2].free_symbols}]
        return not known or any(evaluate(shape[-2], at) >= ROWS for at in known)

    def _call(self, atom: Atom) -> OpCall | None:
        value = self.values.get(atom) if isinstance(atom, Var) else None
        return value if isinstance(value, OpCall) else None

    def _sources(self, condition: Atom) -> list[Var] | None:
        """The tensors that an indicator is computed from; None where there is none."""
        call = self._call(condition)
        if call is not None and call.op in ("logical_and", "logical_or", "logical_not"):
            found = [self._sources(a) for a in call.args]
            return None if None in found else [v for sources in found for v in sources or ()]
        if call is not None and (call.op in _ORDERS or call.op in ("equal", "not_equal")):
            difference = self._difference(call)
            return list(difference.terms) if difference is not None else None
        return [condition] if isinstance(condition, Var) else None

    def _of(self, condition: Atom) -> Atom:
        match self._call(condition):
            case OpCall("logical_and", args):
                return self.w.op("mul", *map(self._of, args))
            case OpCall("logical_or", args):
                return self._clamped(self.w.op("add", *map(self._of, args)))
            case OpCall("logical_not", (arg,)):
                return self._other(self._of(arg))
            case OpCall("equal") as call:
                return self._other(self._apart(call))
            case OpCall("not_equal") as call:
                return self._apart(call)
            case OpCall(op) as call if op in _ORDERS:
                return self._clamped(self._written(call))
        return self.w.op("cast", self.r.read(condition), dtype=self.dtype)

    def _apart(self, call: OpCall) -> Atom:
        return self._clamped(self.w.op("abs", self._written(call)))

    def _clamped(self, atom: Atom) -> Atom:
        return self.w.op("clamp", atom, lo=0, hi=1)

    def _other(self, atom: Atom) -> Atom:
        return self.w.op("sub", self._number(1), atom)

    def _number(self, value: int) -> Atom:
        return self.w.op("constant", value=value)

    # differences

    def _difference(self, call: OpCall) -> _Linear | None:
        """What is above 0 where an order holds, and 0 where operands are equal; None where it is not exact."""
        a, b = (self._linear(x) for x in call.args)
        if a is None or b is None:
            return None
        for x in (a, b):
            # sums of other numbers than positions may leave their type
            alone = len(x.terms) == 1 and x == _Linear(dict.fromkeys(x.terms, 1))
            if not alone and not all(map(self._positions, x.terms)):
                return None
        greater, more = _ORDERS.get(call.op, (0, 0))
        found = (a, b)[greater].plus((b, a)[greater], -1).plus(_Linear({}, more), 1)
        small = sum(map(abs, found.terms.values())) <= MOST and abs(found.number) < 2**BITS
        return found if found.terms and small else None

    def _linear(self, atom: Atom) -> _Linear | None:
        call = self._call(atom)
        if call is not None and call.op == "constant":
            value = dict(call.attrs)["value"]
            return _Linear({}, int(value)) if value == int(value) else None
        if call is not None and call.op in ("add", "sub"):
            a, b = map(self._linear, call.args)
            if a is not None and b is not None:
                return a.plus(b, 1 if call.op == "add" else -1)
        if isinstance(atom, Var) and _type(atom).dtype in PARTS and _type(atom).rank:
            return _Linear({atom: 1})
        return None

    def _positions(self, atom: Atom) -> bool:
        """Whether numbers are positions, sizes, or sums of these and of constants."""
        call = self._call(atom)
        if call is not None and call.op in (*_VIEWS, "cast", "add", "sub"):
            return all(map(self._positions, call.args))
        small = call is not None and call.op == "constant" and abs(dict(call.attrs)["value"]) < 2**40
        return small or (call is not None and call.op in ("arange", "size"))

    def _count(self, v: Var) -> int:
        """The parts of its numbers."""
        call = self._call(v)
        if call is not None and call.op == "arange" and (stop := dict(call.attrs)["stop"]).is_Integer and stop <= 2**BITS:
            return 1
        return POSITION_PARTS if self._positions(v) else PARTS[_type(v).dtype]

    def _written(self, call: OpCall) -> Atom:
        """The difference of operands in floating point: too large ones are rounded, and none to 0."""
        difference = self._difference(call)
        assert difference is not None
        parts = {v: self._parts_of(v) for v in difference.terms}
        count = max(len(found) for found in parts.values())
        total: Atom | None = None
        for k in reversed(range(count)):
            terms = [(n, found[k]) for v, found in parts.items() if k < len(found) for n in [difference.terms[v]]]
            added = self._sum(terms, difference.number if k == 0 else 0)
            total = added if total is None else self.w.op("add", self.w.op("mul", total, self._number(2**BITS)), added)
        assert total is not None
        return total

    def _sum(self, terms: list[tuple[int, Atom]], number: int) -> Atom:
        # the number comes first, so that it is added to a vector; then what is not subtracted
        total = self._number(number) if number or all(n < 0 for n, _ in terms) else None
        for n, part in sorted(terms, key=lambda term: -term[0]):
            term = part if abs(n) == 1 else self.w.op("mul", part, self._number(abs(n)))
            total = term if total is None else self.w.op("add" if n > 0 else "sub", total, term)
        assert total is not None
        return total

    def _parts_of(self, v: Var) -> list[Atom]:
        """The parts of whole numbers, least significant ones first: all but the last are from 0 to 2^BITS - 1."""
        if v not in self._parts:
            call = self._call(v)
            if call is not None and call.op in _VIEWS and isinstance(call.args[0], Var):
                self._parts[v] = [self.w.op(call.op, part, **dict(call.attrs)) for part in self._parts_of(call.args[0])]
            else:
                self._parts[v] = self._divided(v)
        return self._parts[v]

    def _divided(self, v: Var) -> list[Atom]:
        found: list[Atom] = []
        rest = self.r.read(v)
        for _ in range(self._count(v) - 1):
            found.append(self.w.op("remainder", rest, self._number(2**BITS)))
            rest = self.w.op("floor_divide", rest, self._number(2**BITS))
        return [self.w.op("cast", part, dtype=self.dtype) for part in (*found, rest)]


def _type(atom: Atom) -> TensorType:
    assert isinstance(atom.annotation, TensorType)
    return atom.annotation
