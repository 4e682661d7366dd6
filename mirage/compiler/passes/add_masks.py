"""Masks of scores become factors and terms, so that attention under a mask is a subprogram of sums and products to search.

With s = 1 where the condition m holds and 0 elsewhere, where(m, x, c) = x * s + (1 - s) * c for numbers c, and
x + where(m, 0, -inf) for c = -inf: exactly, for finite x. So x has to be made of operators that are defined everywhere, a
product of matrices among them, and only a softmax may read the result. The mask must lack a dim of x, as one of positions lacks
heads: s is a tensor that is read, or computed from vectors (`indicators`); the latter gives -inf as log_step(s), too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.compiler.context import Context
from mirage.compiler.passes.indicators import Indicators
from mirage.compiler.passes.rewrite import OperatorWriter, Rewriter, operator_call
from mirage.ir.graph.nodes import Atom, Constant, Expr, Function, Module, OpCall, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.types import DTYPES, INTEGERS, TensorType, is_one

#: operators whose results are finite where their operands are, in exact arithmetic
_DEFINED = frozenset({"matmul", "mul", "add", "sub", "neg", "tanh", "transpose", "reshape", "repeat", "broadcast_to"})


def run(module: Module, context: Context) -> Module:
    functions = {name: add_masks(f, module.functions, context.sizes) for name, f in module.functions.items()}
    return Module(functions, module.kernels, module.main)


def add_masks(
    function: Function, functions: Mapping[str, Function], sizes: Sequence[Mapping[str, int]] = ()
) -> Function:
    """The function whose masked scores are sums of products; itself where it has none. `sizes` are those that are measured."""
    read = _Read(function)
    masked = {b.var: mask for b in function.bindings if (mask := read.mask(b.var, b.value)) is not None}
    if not masked:
        return function
    r = Rewriter(function, functions)
    indicators = {dtype: Indicators(r, read.values, dtype, sizes) for dtype in {m.dtype for m in masked.values()}}
    for b in function.bindings:
        if b.var in masked:
            mask = masked[b.var]
            seen = indicators[mask.dtype].find(mask.condition)
            r.keep(b, _Writer(r, b.where).masked(mask, seen))
        else:
            r.keep(b)
    return r.finish()


class _Writer(OperatorWriter):
    """Writes scores under a mask; `seen` is the indicator of its condition, where that is computed from vectors."""

    def masked(self, mask: _Mask, seen: Atom | None) -> OpCall:
        condition, x, c = (self.r.read(atom) for atom in (mask.condition, mask.scores, mask.hidden))
        if isinstance(c, Constant):
            if seen is not None:
                hidden = self._bound("hidden", "log_step", seen if mask.shown else self._unseen(seen))
            else:
                zero = self._bound("zero", "constant", value=0)
                hidden = self._bound("hidden", "where", condition, *((zero, c) if mask.shown else (c, zero)))
            return operator_call("add", x, hidden)
        if seen is None:
            seen = self._bound("seen", "cast", condition, dtype=mask.dtype)
        other = self._unseen(seen)
        seen, unseen = (seen, other) if mask.shown else (other, seen)
        return operator_call("add", self._bound("scores", "mul", x, seen), self._bound("hidden", "mul", unseen, c))

    def _unseen(self, seen: Atom) -> Var:
        return self._bound("unseen", "sub", self._bound("one", "constant", value=1), seen)

    def _bound(self, name: str, op: str, *args: Atom, **attrs: object) -> Var:
        return self.r.emit(operator_call(op, *args, **attrs), name=name, where=self.where)


@dataclass(frozen=True)
class _Mask:
    """Scores under a condition, and the number in place of those that are hidden: where it does not hold if they are `shown`
    where it does.
    """

    condition: Atom
    scores: Var
    hidden: Atom
    shown: bool
    dtype: str


class _Read:
    """What a function's variables are made of, and what reads them."""

    def __init__(self, function: Function) -> None:
        self.values: dict[Var, Expr] = {b.var: b.value for b in function.bindings}
        self.users: dict[Var, list[Expr]] = {}
        for b in function.bindings:
            for v in variables(b.value):
                self.users.setdefault(v, []).append(b.value)
        self.result = function.result

    def mask(self, var: Var, value: Expr) -> _Mask | None:
        """The mask of scores that a variable is, if it is one."""
        if not isinstance(value, OpCall) or value.op != "where" or not self._only_softmax(var):
            return None
        condition, x, c = value.args
        shown = True
        if self._is_number(x):
            x, c, shown = c, x, False
        if not self._is_number(c) or not isinstance(x, Var) or not self._is_score(x):
            return None
        t = x.annotation
        if not isinstance(t, TensorType) or t.dtype not in DTYPES or not _is_smaller(condition, t):
            return None
        return _Mask(condition, x, c, shown, t.dtype)

    def _only_softmax(self, var: Var) -> bool:
        users = self.users.get(var, [])
        return bool(users) and var != self.result and all(isinstance(u, OpCall) and u.op == "softmax" for u in users)

    def _is_number(self, atom: Atom) -> bool:
        """Whether an operand is a scalar constant, or a constant tensor of one element, -inf."""
        if isinstance(atom, Constant):
            return atom.array.size == 1 and bool(np.isneginf(atom.array.astype(np.float64)).all())
        value = self.values.get(atom) if isinstance(atom, Var) else None
        return isinstance(value, OpCall) and value.op == "constant"

    def _is_score(self, var: Var) -> bool:
        """Whether a product of matrices and operators that are defined everywhere make it."""
        queue, seen, product = [var], {var}, False
        while queue:
            value = self.values.get(queue.pop())
            if value is None:
                continue
            if not isinstance(value, OpCall):
                return False
            if value.op == "matmul":
                product = True
                continue
            scalar = value.op == "div" and _is_of(value.args[1], {"scalar"})
            whole = value.op == "cast" and _is_of(value.args[0], {*INTEGERS, "bool"})
            if whole:
                continue
            if value.op not in _DEFINED and value.op != "constant" and not scalar:
                return False
            new = [v for v in variables(value) if v not in seen]
            seen.update(new)
            queue += new
        return product


def _is_of(atom: Atom, dtypes: Collection[str]) -> bool:
    t = atom.annotation
    return isinstance(t, TensorType) and t.dtype in dtypes


def _is_smaller(mask: Atom, scores: TensorType) -> bool:
    """Whether a mask lacks a dim of the scores."""
    m = mask.annotation
    if not isinstance(m, TensorType):
        return False
    shared = zip(reversed(m.shape), reversed(scores.shape), strict=False)
    return m.rank < scores.rank or any(is_one(a) and not is_one(b) for a, b in shared)
