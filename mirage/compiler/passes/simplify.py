"""Rules of `canonicalize` for operators: what an application is exactly equal to, bit by bit, at every size.

x * 0 stays (x may be NaN or infinite), and so does x + 0 of floats (-0.0 + 0.0 is 0.0), but x + -0.0 and x - 0.0 are x.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.passes.rewrite import operator_call
from mirage.compiler.views import is_view
from mirage.errors import ShapeError
from mirage.ir.annotations import Annotation, PartialTensor
from mirage.ir.by_hand import Made, softmax_by_hand
from mirage.ir.dims import Dim
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Constant, Expr, MatchCast, OpCall, ShapeValue, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.types import DTYPES, ELEMENTS, INTEGERS, TensorType


@dataclass(frozen=True)
class Site:
    """An application of an operator, the annotation of its result, the definitions of earlier variables, what is known of
    dims, and the names of variables that an effect writes to."""

    call: OpCall
    annotation: Annotation
    definitions: Mapping[Var, Expr]
    constraints: Constraints
    written: Collection[str]

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.call.attrs)

    def producer(self, operand: int, op: str) -> OpCall | None:
        """The application of `op` that makes an operand."""
        return self.made(self.call.args[operand], op)

    def made(self, atom: Atom, op: str) -> OpCall | None:
        """The application of `op` that makes a value."""
        found = self.definitions.get(atom) if isinstance(atom, Var) else None
        if not isinstance(found, OpCall) or found.op != op:
            return None
        # what it has read may be something else by now
        return None if any(v.name in self.written for v in variables(found)) else found

    def operand_if(self, operand: int) -> Atom | None:
        """The operand, if it has the result's annotation, so that it can stand for the result."""
        atom = self.call.args[operand]
        return atom if atom.annotation == self.annotation else None

    def is_number(self, operand: int, accepts: Callable[[np.ndarray], bool]) -> bool:
        """Whether all elements of an operand are known, and accepted; a scalar 0 is +0.0."""
        scalar = self.producer(operand, "constant")
        if scalar is not None:
            value: Fraction = dict(scalar.attrs)["value"]
            return accepts(np.asarray(float(value)))
        atom = self.call.args[operand]
        return isinstance(atom, Constant) and accepts(atom.array)


def _is_one(x: np.ndarray) -> bool:
    return bool(np.all(x == 1))


def _is_negative_zero(x: np.ndarray) -> bool:
    return bool(np.all((x == 0) & np.signbit(x.astype(np.float64))))


def _is_positive_zero(x: np.ndarray) -> bool:
    return bool(np.all((x == 0) & ~np.signbit(x.astype(np.float64))))


def _is_zero(x: np.ndarray) -> bool:
    return bool(np.all(x == 0))


def _of_integers(site: Site) -> bool:
    return isinstance(site.annotation, TensorType | PartialTensor) and site.annotation.dtype in INTEGERS


def _add(site: Site) -> Expr | None:
    neutral = _is_zero if _of_integers(site) else _is_negative_zero
    for k in (0, 1):
        if site.is_number(1 - k, neutral) and (found := site.operand_if(k)) is not None:
            return found
    return None


def _sub(site: Site) -> Expr | None:
    neutral = _is_zero if _of_integers(site) else _is_positive_zero
    return site.operand_if(0) if site.is_number(1, neutral) else _softmax(site)


def _mul(site: Site) -> Expr | None:
    for k in (0, 1):
        if site.is_number(1 - k, _is_one) and (found := site.operand_if(k)) is not None:
            return found
    return None


def _div(site: Site) -> Expr | None:
    return site.operand_if(0) if site.is_number(1, _is_one) else _softmax(site)


def _softmax(site: Site) -> Expr | None:
    """The softmax or log_softmax that is written by hand, which computes just the same."""

    def made_by(x: Atom, op: str) -> Made[Atom] | None:
        call = site.made(x, op)
        return Made(call.args, dict(call.attrs)) if call is not None else None

    rank = _rank(site.annotation)
    found = softmax_by_hand(site.call.op, site.call.args, rank, made_by) if rank else None
    if found is None or found.x.annotation != site.annotation:
        return None
    return operator_call(found.op, found.x, axis=found.axis)


def _pow(site: Site) -> Expr | None:
    return site.operand_if(0) if site.attrs["exponent"] == 1 else None


def _neg(site: Site) -> Expr | None:
    inner = site.producer(0, "neg")
    return inner.args[0] if inner is not None else None


def _sum(site: Site) -> Expr | None:
    return site.operand_if(0) if not site.attrs["axes"] else None


def _cast(site: Site) -> Expr | None:
    if (same := _same_elements(site, 0)) is not None:
        return same
    inner = site.producer(0, "cast")
    if inner is None:
        return None
    # there and back loses nothing where every value has a place in the type between
    source, between = inner.args[0].annotation, dict(inner.attrs)["dtype"]
    known = isinstance(source, TensorType | PartialTensor) and source.dtype in ELEMENTS
    # which NumPy calls safe, though a float64 has 53 bits
    if known and source.dtype == "int64" and between in DTYPES:  # type: ignore[union-attr]
        return None
    if known and source == site.annotation and np.can_cast(ELEMENTS[source.dtype], ELEMENTS[between], "safe"):  # type: ignore[union-attr,index]
        return inner.args[0]
    return None


def _same_elements(site: Site, operand: int) -> Atom | None:
    found = site.operand_if(operand)
    return found if found is not None and isinstance(site.annotation, TensorType) else None


def _same_shape(site: Site) -> Expr | None:
    """The operand where its shape is the result's: itself, or cast where the store knows that other dims are equal."""
    if (same := _same_elements(site, 0)) is not None:
        return same
    x, to = site.call.args[0], site.annotation
    if isinstance(x.annotation, TensorType) and isinstance(to, TensorType) and x.annotation.dtype == to.dtype:
        if x.annotation.rank == to.rank and site.constraints.same_shape(x.annotation.shape, to.shape):
            return MatchCast((x,), to)
    return None


def _reshape(site: Site) -> Expr | None:
    if (same := _same_shape(site)) is not None:
        return same
    inner = site.producer(0, "reshape") or site.producer(0, "transpose")
    if (
        inner is not None
        and is_view(inner, site.call.args[0].annotation)
        and isinstance(inner.args[0].annotation, TensorType)
        and isinstance(site.annotation, TensorType)
    ):
        return operator_call("reshape", inner.args[0], shape=site.annotation.shape)
    return _broadcast_alone(site, range(_rank(site.call.args[0].annotation) or 0))


def _slice(site: Site) -> Expr | None:
    attrs = site.attrs
    if all(step == 1 for step in attrs["steps"]):
        if not any(attrs["starts"]) and (same := _same_elements(site, 0)) is not None:
            return same
        found = _part_of_piece(site) or _part_of_part(site)
        if found is not None:
            return found
    return _broadcast_alone(site, attrs["axes"])


def _part_of_piece(site: Site) -> Expr | None:
    """What lies within one operand of a concat, as a part of that."""
    joined = site.producer(0, "concat")
    rank = _rank(site.annotation)
    if joined is None or rank is None or len(site.attrs["axes"]) != 1:
        return None
    (axis,), (start,), (stop,) = (site.attrs[name] for name in ("axes", "starts", "stops"))
    if axis % rank != dict(joined.attrs)["axis"] % rank:
        return None
    before: Dim = sympy.Integer(0)
    for piece in joined.args:
        if not isinstance(piece.annotation, TensorType):
            return None
        size = piece.annotation.shape[axis % rank]
        if all(_at_least_zero(d) for d in (start - before, before + size - stop)):
            return _checked_slice(site, piece, site.attrs | {"starts": (start - before,), "stops": (stop - before,)})
        before += size
    return None


def _part_of_part(site: Site) -> Expr | None:
    """A slice of a slice along the same axes, as one, where both are known to be within what they are of."""
    inner = site.producer(0, "slice")
    attrs, first = site.attrs, dict(inner.attrs) if inner is not None else {}
    if inner is None or first["axes"] != attrs["axes"] or any(step != 1 for step in first["steps"]):
        return None
    for operand, stops in ((inner.args[0], first["stops"]), (site.call.args[0], attrs["stops"])):
        shape = operand.annotation.shape if isinstance(operand.annotation, TensorType) else None
        if shape is None or not all(_at_least_zero(shape[a] - d) for a, d in zip(attrs["axes"], stops, strict=True)):
            return None
    moved = {name: tuple(a + b for a, b in zip(first["starts"], attrs[name], strict=True)) for name in ("starts", "stops")}
    return _checked_slice(site, inner.args[0], attrs | moved)


def _checked_slice(site: Site, x: Atom, attrs: Mapping[str, Any]) -> Expr | None:
    """That slice of another value, if its type is the result's at every size."""
    call = operator_call("slice", x, **attrs)
    return call if deduce(call, {}) == site.annotation else None


def _at_least_zero(d: Dim | int) -> bool:
    return bool(sympy.sympify(d).is_nonnegative)


def _where(site: Site) -> Expr | None:
    condition, x, y = site.call.args
    if x == y:
        return site.operand_if(1)
    call = None
    if (opposite := site.producer(0, "logical_not")) is not None:
        call = operator_call("where", opposite.args[0], y, x)
    elif (inner := site.producer(1, "where")) is not None and inner.args[0] == condition:
        call = operator_call("where", condition, inner.args[1], y)
    elif (inner := site.producer(2, "where")) is not None and inner.args[0] == condition:
        call = operator_call("where", condition, x, inner.args[2])
    return call if call is not None and deduce(call, {}) == site.annotation else None


def _extreme(site: Site) -> Expr | None:
    x, y = site.call.args
    return site.operand_if(0) if x == y else None


def _bound(site: Site) -> Expr | None:
    """A bound by a number of what has one already."""
    inner = site.producer(0, "maximum")
    if inner is None:
        return None
    return operator_call("maximum", inner.args[0], value=max(site.attrs["value"], dict(inner.attrs)["value"]))


def _relu(site: Site) -> Expr | None:
    return site.operand_if(0) if site.producer(0, "relu") is not None else None


def _abs(site: Site) -> Expr | None:
    # of relu, -0.0 may be left
    if any(site.producer(0, op) is not None for op in ("abs", "exp", "sigmoid")):
        return site.operand_if(0)
    inner = site.producer(0, "neg")
    return operator_call("abs", inner.args[0]) if inner is not None else None


def _broadcast_alone(site: Site, axes: Iterable[int]) -> Expr | None:
    """The result as what was broadcast, where all elements along these axes of its operand are equal for that."""
    inner = site.producer(0, "broadcast_to")
    x = inner.args[0].annotation if inner is not None else None
    whole, to = site.call.args[0].annotation, site.annotation
    if inner is None or not all(isinstance(t, TensorType) for t in (x, whole, to)):
        return None
    assert isinstance(x, TensorType) and isinstance(whole, TensorType) and isinstance(to, TensorType)
    missing = whole.rank - x.rank
    if any(x.shape[at] != 1 for a in axes if (at := a % whole.rank - missing) >= 0):
        return None
    return operator_call("broadcast_to", inner.args[0], shape=to.shape) if x.rank <= to.rank else None


def _rank(annotation: Annotation) -> int | None:
    shape = annotation.shape if isinstance(annotation, TensorType | PartialTensor) else None
    return None if shape is None else len(shape)


def _transpose(site: Site) -> Expr | None:
    perm = site.attrs["perm"]
    perm = tuple(p % len(perm) for p in perm)
    if perm == tuple(range(len(perm))) and _rank(site.annotation) is not None:
        return site.operand_if(0)
    inner = site.producer(0, "transpose")
    if inner is not None:
        first = dict(inner.attrs)["perm"]
        return operator_call("transpose", inner.args[0], perm=tuple(first[p] % len(first) for p in perm))
    if perm != site.attrs["perm"]:
        return operator_call("transpose", site.call.args[0], perm=perm)
    return None


def _repeat(site: Site) -> Expr | None:
    return _same_elements(site, 0) if site.attrs["times"] == 1 else None


def _with_shape(op: str, attributes: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Site], Expr | None]:
    """The rule of an operator whose last operand is a shape, where `op` takes the shape as an attribute."""

    def rule(site: Site) -> Expr | None:
        *args, shape = site.call.args
        if not isinstance(shape, ShapeValue):
            return None
        if args and (same := _same_shape(site)) is not None:
            return same
        call = operator_call(op, *args, shape=shape.dims, **attributes(site.attrs))
        try:
            deduce(call, {})
        except ShapeError:
            # only the run can tell whether the shapes fit
            return None
        return call

    return rule


_RULES: dict[str, Callable[[Site], Expr | None]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "pow": _pow, "neg": _neg, "sum": _sum, "cast": _cast,
    "where": _where, "elementwise_max": _extreme, "elementwise_min": _extreme, "maximum": _bound,
    "relu": _relu, "abs": _abs,
    "reshape": _reshape, "slice": _slice, "broadcast_to": _same_shape, "transpose": _transpose, "repeat": _repeat,
    "reshape_to": _with_shape("reshape", lambda attrs: {}),
    "broadcast_to_shape": _with_shape("broadcast_to", lambda attrs: {}),
    "full_of": _with_shape("full", lambda attrs: attrs),
    # by then there are no gradients left to make
    "stop_gradient": lambda site: site.operand_if(0),
}  # fmt: skip


def simplify(
    call: OpCall, definitions: Mapping[Var, Expr], constraints: Constraints, written: Collection[str] = ()
) -> Expr | None:
    """What an application of an operator is equal to, a step simpler; None where no rule applies.

    `definitions` are the right-hand sides of earlier variables; `written` names variables that an effect writes to. Raises
    what the deduction raises.
    """
    rule = _RULES.get(call.op)
    return rule(Site(call, deduce(call, {}), definitions, constraints, written)) if rule is not None else None
