"""A small language of patterns over the bindings of a dataflow block (Relax, section 4.6).

    x, w, b = value("x", rank=2), value("w"), value("bias", rank=1)
    product = op("matmul", x, w)
    linear = op("relu", optional(product, lambda p: op("add", p, b, commutative=True)))

A pattern matches from the result to the operands. Names capture operands and applications; a name that occurs twice has to
match the same operand twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mirage.errors import AttributeValueError, DimError, PatternError
from mirage.ir.annotations import Annotation, PartialTensor
from mirage.ir.dims import Dim, DimLike, to_dim
from mirage.ir.graph.nodes import Atom, Constant, Expr, OpCall, Var
from mirage.ir.operator import CONVERTERS, get_operator
from mirage.ir.types import TensorType, check_dtype


@dataclass(frozen=True)
class Match:
    """What a pattern matched so far: operands and applications by name.

    `inner` are the variables of the applications below the root that the match computes, `views` those that it only reads
    through. `readers` are the operators that read the root's result, known when a match is checked; "" is anything else.
    `constants` are the parameters that never change between calls, known at the same time.
    """

    operands: Mapping[str, Atom] = field(default_factory=dict)
    calls: Mapping[str, OpCall] = field(default_factory=dict)
    inner: tuple[Var, ...] = ()
    views: tuple[Var, ...] = ()
    readers: tuple[str, ...] = ()
    constants: frozenset[Var] = frozenset()

    def type(self, name: str) -> Annotation:
        """The annotation of a captured operand."""
        return self.operands[name].annotation

    def attr(self, name: str, attribute: str, default: Any = None) -> Any:
        """An attribute of a captured application; the default where an optional part did not match."""
        return dict(self.calls[name].attrs).get(attribute, default) if name in self.calls else default

    def captured(self, name: str, atom: Atom) -> Match | None:
        """The match with an operand under a name; None where the name has another one."""
        known = self.operands.get(name, atom)
        return replace(self, operands={**self.operands, name: atom}) if known == atom else None


#: the right-hand sides that a match may go through, by variable
Definitions = Mapping[Var, Expr]


class Pattern(ABC):
    """A set of expressions; `a | b` matches what either does, the left one first."""

    @abstractmethod
    def match(self, atom: Atom, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        """All ways in which an operand matches."""

    def roots(self, expr: Expr, definitions: Definitions) -> Iterator[Match]:
        """All ways in which a right-hand side matches."""
        return iter(())

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the operands that it may capture, in order of appearance."""

    def __or__(self, other: Pattern) -> Pattern:
        return one_of(self, other)


@dataclass(frozen=True)
class _Value(Pattern):
    name: str
    check: Callable[[Annotation], bool]

    def match(self, atom: Atom, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        found = so_far.captured(self.name, atom) if self.check(atom.annotation) else None
        if found is not None:
            yield found

    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class _Number(Pattern):
    value: Fraction | None
    name: str

    def match(self, atom: Atom, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        made = definitions.get(atom) if isinstance(atom, Var) else None
        known: Any = None
        if isinstance(atom, Constant) and atom.array.ndim == 0:
            known = atom.array.item()
        elif isinstance(made, OpCall) and made.op == "constant":
            known = dict(made.attrs)["value"]
        if known is None or (self.value is not None and known != float(self.value)):
            return
        found = Constant(np.array(float(known)), TensorType((), "float64"))
        yield replace(so_far, operands={**so_far.operands, self.name: found}) if self.name else so_far

    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.name else ()


@dataclass(frozen=True)
class _Op(Pattern):
    ops: tuple[str, ...]
    args: tuple[Pattern, ...]
    name: str
    where: Callable[[OpCall], bool]
    commutative: bool
    is_view: bool

    def match(self, atom: Atom, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        made = definitions.get(atom) if isinstance(atom, Var) else None
        if made is None or not isinstance(atom, Var):
            return
        for m in self._expression(made, definitions, so_far):
            if atom in (m.views if self.is_view else m.inner):
                yield m  # several operands may read it
            else:
                yield replace(m, views=(*m.views, atom)) if self.is_view else replace(m, inner=(*m.inner, atom))

    def roots(self, expr: Expr, definitions: Definitions) -> Iterator[Match]:
        return self._expression(expr, definitions, Match())

    def _expression(self, expr: Expr, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        if not isinstance(expr, OpCall) or expr.op not in self.ops or len(expr.args) != len(self.args):
            return
        if not self.where(expr):
            return
        named = replace(so_far, calls={**so_far.calls, self.name: expr}) if self.name else so_far
        orders = [expr.args, expr.args[::-1]] if self.commutative else [expr.args]
        for args in orders:
            yield from self._operands(args, self.args, definitions, named)

    def _operands(
        self, args: Sequence[Atom], patterns: Sequence[Pattern], definitions: Definitions, so_far: Match
    ) -> Iterator[Match]:
        if not args:
            yield so_far
            return
        for m in patterns[0].match(args[0], definitions, so_far):
            yield from self._operands(args[1:], patterns[1:], definitions, m)

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for a in self.args for n in a.names()))


@dataclass(frozen=True)
class _OneOf(Pattern):
    options: tuple[Pattern, ...]

    def match(self, atom: Atom, definitions: Definitions, so_far: Match) -> Iterator[Match]:
        for p in self.options:
            yield from p.match(atom, definitions, so_far)

    def roots(self, expr: Expr, definitions: Definitions) -> Iterator[Match]:
        for p in self.options:
            yield from p.roots(expr, definitions)

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for p in self.options for n in p.names()))


def value(
    name: str,
    *,
    dtype: str | Sequence[str] | None = None,
    rank: int | None = None,
    dims: Sequence[DimLike | None] | None = None,
    check: Callable[[Annotation], bool] | None = None,
) -> Pattern:
    """Any tensor, captured under a name.

    It has one of the element types `dtype`, `rank` dims, and the dims `dims` (None: any), where these are given; what is not
    known at compile time does not match. `check` gets the annotation.
    """
    dtypes = None if dtype is None else {check_dtype(t) for t in ([dtype] if isinstance(dtype, str) else dtype)}
    shape = None if dims is None else [None if d is None else to_dim(d, f"pattern {name!r}") for d in dims]
    if not name.isidentifier():
        raise PatternError(f"value({name!r}): the name of a captured operand has to be an identifier")

    def accepts(a: Annotation) -> bool:
        if not isinstance(a, TensorType | PartialTensor):
            return False
        if dtypes is not None and a.dtype not in dtypes:
            return False
        if rank is not None and (a.shape is None or len(a.shape) != rank):
            return False
        if shape is not None and not _has_dims(a, shape):
            return False
        return check is None or check(a)

    return _Value(name, accepts)


def _has_dims(a: TensorType | PartialTensor, dims: Sequence[Dim | None]) -> bool:
    if a.shape is None or len(a.shape) != len(dims):
        return False
    return all(d is None or d == g for d, g in zip(dims, a.shape, strict=True))


def number(exactly: int | float | Fraction | None = None, *, name: str = "") -> Pattern:
    """A scalar constant of this value, or of any; under a name, a Constant of float64 is captured."""
    return _Number(None if exactly is None else Fraction(exactly), name)


def op(
    ops: str | Sequence[str],
    *args: Pattern,
    name: str = "",
    where: Callable[[OpCall], bool] | None = None,
    commutative: bool = False,
    **attrs: Any,
) -> Pattern:
    """An application of an operator, or of one of several, to operands that match.

    `attrs` are values that attributes have to have; `where` gets the call; `commutative` tries both orders of two operands.
    `name` captures the call. Below the root of a pattern, only the match may read the result. Raises UnknownOperator,
    AttributeValueError, PatternError.
    """
    return _operation(ops, args, name, where, commutative, attrs, is_view=False)


def view(ops: str | Sequence[str], *args: Pattern, name: str = "", **attrs: Any) -> Pattern:
    """As `op`, for what the library function reads in another order at no cost: others may read its result, too."""
    return _operation(ops, args, name, None, False, attrs, is_view=True)


def _operation(
    ops: str | Sequence[str],
    args: tuple[Pattern, ...],
    name: str,
    where: Callable[[OpCall], bool] | None,
    commutative: bool,
    attrs: Mapping[str, Any],
    is_view: bool,
) -> Pattern:
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    for arg in args:
        if not isinstance(arg, Pattern):
            raise PatternError(f"op({', '.join(names)}): {arg!r} is not a pattern; write number(1), value('x') or op(...)")
    wanted: dict[str, dict[str, Any]] = {}
    for n in names:
        operator = get_operator(n)
        operator.check_arity(len(args))
        kinds = {a.name: a.kind for a in operator.attributes}
        for key in attrs.keys() - kinds.keys():
            raise AttributeValueError(
                f"pattern of {n}: it has no attribute {key!r}; its attributes are {sorted(kinds)}"
            )
        try:
            wanted[n] = {key: CONVERTERS[kinds[key]](v) for key, v in attrs.items()}
        except (TypeError, ValueError, DimError) as e:
            raise AttributeValueError(f"pattern of {n}: {dict(attrs)} is wrong: {e}") from None
    if commutative and len(args) != 2:
        raise PatternError(f"op({', '.join(names)}): commutative needs two operands, not {len(args)}")

    def accepts(call: OpCall) -> bool:
        given = dict(call.attrs)
        return all(given.get(k) == v for k, v in wanted[call.op].items()) and (where is None or where(call))

    return _Op(names, args, name, accepts, commutative, is_view)


def one_of(*options: Pattern) -> Pattern:
    """What any of the patterns matches, tried in order."""
    return _OneOf(options)


def optional(inner: Pattern, wrap: Callable[[Pattern], Pattern]) -> Pattern:
    """`wrap(inner)`, or only `inner`: for parts that may be there, such as a bias. Captures of the part are then absent."""
    return one_of(wrap(inner), inner)
