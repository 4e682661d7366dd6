"""Products with the same matrix become one product with the rows of all of them: query heads that share keys and values.

    w = reshape(broadcast_to(reshape(k, (b, h, 1, s, d)), (b, h, g, s, d)), (b, h*g, s, d))
    r = matmul(x, w)                    ->      r = reshape(matmul(reshape(x, (b, h, g*t, s)), k), (b, h*g, t, d))

x is (b, h*g, t, s), so that both reshapes only look at the elements in another way. `repeat` is the same as the three operators
of w, and the last two dims of w may be transposed. Grouped-query attention is written so (Ainslie and others, 2023): k, which is
g times smaller, is read where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter, operator_call, reshaped
from mirage.ir.dims import Dim
from mirage.ir.graph.nodes import Atom, Expr, Function, MatchCast, Module, OpCall, Var
from mirage.ir.types import TensorType, is_one

#: the dim before rows and columns
_HEADS = -3


def run(module: Module, context: Context) -> Module:
    """The module with such products merged, in each function."""
    functions = {f.name: merge(f, module.functions, context.of(f.name)) for f in module}
    return Module(functions, module.kernels, module.main)


def merge(function: Function, functions: Mapping[str, Function], store: Constraints) -> Function:
    """The function with such products merged."""
    r = Rewriter(function, functions)
    for b in function.bindings:
        value = r.current(b)
        r.keep(b, _merged(value, r, store) or _cast(value, r) or value)
    return r.finish()


def _merged(value: Expr, r: Rewriter, store: Constraints) -> Expr | None:
    if not isinstance(value, OpCall) or value.op != "matmul":
        return None
    left, right = value.args
    turned = _made_by(right, "transpose", r)
    if turned is not None:
        if dict(turned.attrs)["perm"] != _turn(turned.args[0]):
            return None
        right = turned.args[0]
    x, w, found = left.annotation, right.annotation, _repeated(right, r)
    if found is None or not isinstance(x, TensorType) or not isinstance(w, TensorType) or x.rank < -_HEADS:
        return None
    original, shape, copies = found
    whole, rows = w.shape[_HEADS], x.shape[-2]
    if not store.equal(x.shape[_HEADS], whole) or sympy.expand(shape[_HEADS] * copies - x.shape[_HEADS]) != 0:
        # heads whose number is no product of theirs, such as 2 * (h // 2), are not reshaped
        return None
    matrices = reshaped(original, shape, r.emit)
    if turned is not None:
        matrices = r.emit(operator_call("transpose", matrices, perm=_turn(matrices)))
    together = (*x.shape[:_HEADS], shape[_HEADS], sympy.expand(copies * rows), x.shape[-1])
    product = r.emit(operator_call("matmul", r.emit(operator_call("reshape", left, shape=together)), matrices))
    assert isinstance(product.annotation, TensorType)
    apart = (*product.annotation.shape[:_HEADS], whole, rows, product.annotation.shape[-1])
    return operator_call("reshape", product, shape=apart)


def _turn(matrices: Atom) -> tuple[int, ...]:
    """The order of dims in which rows are columns."""
    rank = matrices.annotation.rank if isinstance(matrices.annotation, TensorType) else 0
    return (*range(rank - 2), rank - 1, rank - 2)


def _cast(value: Expr, r: Rewriter) -> Expr | None:
    """A cast of copies to other names of dims as copies of a cast: the check stays where the copies are not needed."""
    if not isinstance(value, MatchCast) or not isinstance(value.annotation, TensorType):
        return None
    wanted, given, found = value.annotation.shape, value.args[0].annotation, _repeated(value.args[0], r)
    if found is None or not isinstance(given, TensorType) or len(wanted) != given.rank or wanted[_HEADS] != given.shape[_HEADS]:
        return None
    original, shape, copies = found
    before, behind = (*wanted[:_HEADS], shape[_HEADS]), wanted[_HEADS + 1 :]
    cast = r.emit(MatchCast((reshaped(original, shape, r.emit),), TensorType((*before, *behind), value.annotation.dtype)))
    apart = r.emit(operator_call("reshape", cast, shape=(*before, 1, *behind)))
    wide = r.emit(operator_call("broadcast_to", apart, shape=(*before, copies, *behind)))
    return operator_call("reshape", wide, shape=wanted)


def _made_by(atom: Atom, op: str, r: Rewriter) -> OpCall | None:
    """The application of an operator that makes a value, also by way of casts to other names of its dims."""
    made = r.definitions.get(atom) if isinstance(atom, Var) else None
    while isinstance(made, MatchCast):
        (atom,) = made.args
        made = r.definitions.get(atom) if isinstance(atom, Var) else None
    return made if isinstance(made, OpCall) and made.op == op else None


def _repeated(atom: Atom, r: Rewriter) -> tuple[Atom, tuple[Dim, ...], Dim] | None:
    """What a value has copies of, one behind the other for each of its heads, the shape to see it in, and how many."""
    if (repeat := _made_by(atom, "repeat", r)) is not None:
        attrs, x = dict(repeat.attrs), repeat.args[0].annotation
        if not isinstance(x, TensorType) or x.rank < -_HEADS or attrs["axis"] not in (_HEADS, x.rank + _HEADS):
            return None
        return repeat.args[0], x.shape, attrs["times"]
    joined = _made_by(atom, "reshape", r)
    copied = _made_by(joined.args[0], "broadcast_to", r) if joined is not None else None
    if joined is None or copied is None:
        return None
    x, wide, out = copied.args[0].annotation, joined.args[0].annotation, atom.annotation
    if not isinstance(x, TensorType) or not isinstance(wide, TensorType) or not isinstance(out, TensorType):
        return None
    if x.rank != wide.rank or wide.rank != out.rank + 1 or out.rank < -_HEADS or not is_one(x.shape[_HEADS]):
        return None
    before, copies, behind = wide.shape[:_HEADS], wide.shape[_HEADS], wide.shape[_HEADS + 1 :]
    same = (*x.shape[:_HEADS], *x.shape[_HEADS + 1 :]) == (*before, *behind)
    if not same or out.shape != (*before[:-1], sympy.expand(before[-1] * copies), *behind):
        return None
    return copied.args[0], (*before, *behind), copies
