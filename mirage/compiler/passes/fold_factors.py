"""Constant factors of what products make become a part of their constant weights, as 1/sqrt(d) of attention does.

    q = matmul(x, w)                    q = matmul(x, mul(w, s))
    p = add(q, b)              ->       p = add(q, mul(b, s))
    a = matmul(p, k)                    r = matmul(p, k)
    r = mul(a, s)

A factor is one number, or varies along the columns of a product and its bias. One number also goes through views and, to
one of the operands, through products of what is no weight. What is new is made of constants, so it is computed once
(`lift_constants`). Weights that others read, too, are copied only where the copy is proved to be smaller than what is saved,
which is to write and read the result. Not in float16, whose range is small, and not of weights beyond
16 MiB, of which copies are dear. `fold_scales` does the same for convolutions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.passes.weights import (
    SCALED,
    Change,
    Factor,
    Scaling,
    Weights,
    along,
    in_main,
    paying,
    size_in_bytes,
)
from mirage.ir.graph.nodes import Atom, Function, Module, OpCall, Var
from mirage.ir.types import TensorType


def run(module: Module, context: Context) -> Module:
    """The module with factors folded in its main function; its parameters `context.constants` are constants."""
    return in_main(module, context, fold)


def fold(
    function: Function, constants: Collection[str], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with factors folded; `constants` are names of its parameters that never change."""
    weights = Weights(function, constants, functions)
    found: dict[Var, _Scaled] = {}
    taken: set[Var] = set()
    for b in reversed(function.bindings):
        scaled = _scaled(b.var, weights)
        # what a later factor has reached may have one of its own, which stays
        if scaled is not None and scaled.product not in taken:
            found[b.var] = scaled
            taken.add(scaled.product)
    paid = paying(weights, {v: s.change for v, s in found.items()}, store)
    kept = {v: s for v, s in found.items() if v in paid}
    return _folded(function, functions, kept, weights) if kept else function


@dataclass(frozen=True)
class _Scaled:
    """A value that is `base` times factors, and the product with weights, and sum with a bias, behind it."""

    var: Var
    base: Var
    factors: tuple[Factor, ...]
    product: Var
    weights: Atom
    #: the dim of the weights that the factors are along, from the end
    kept: int
    biased: Var | None
    bias: Atom | None

    @property
    def change(self) -> Change:
        return Change({self.product: (self.factors, self.kept)}, 2 * size_in_bytes(self.var))


def _scaled(v: Var, weights: Weights) -> _Scaled | None:
    """What becomes of a product with constant factors; None where a value is none."""
    out = v.annotation
    if not isinstance(out, TensorType) or out.dtype not in SCALED or weights.is_constant(v):
        return None
    factors: list[Factor] = []
    base: Atom = v
    made = weights.definitions.get(v)
    while isinstance(made, OpCall) and (found := weights.factor(made)) is not None and found[0].annotation == out:
        base, factor = found
        factors.append(factor)
        made = weights.call(base, "mul", "div")
    axes = {along(s, out) for _, s in factors} - {out.rank}
    if not factors or not isinstance(base, Var) or None in axes or len(axes) > 1:
        return None
    return _behind(base, axes.pop() if axes else None, weights, v, base, tuple(factors))


def _behind(
    v: Atom, axis: int | None, weights: Weights, var: Var, base: Var, factors: tuple[Factor, ...]
) -> _Scaled | None:
    """The product with weights that a value is, but for views, products of others and a bias, added or subtracted."""
    call = weights.call(v, "matmul", "add", "sub", "transpose", "reshape")
    if call is None or not isinstance(v, Var) or not isinstance(v.annotation, TensorType):
        return None
    if call.op in ("transpose", "reshape"):
        return _behind(call.args[0], None, weights, var, base, factors) if axis is None else None
    biased = bias = None
    product, out = v, v.annotation
    if call.op in ("add", "sub"):
        x, bias = weights.shift(call) or (v, None)
        inner = weights.call(x, "matmul")
        if bias is None or inner is None or not isinstance(x, Var) or x.annotation != out:
            return None
        if along(bias, out) not in (out.rank, out.rank - 1):
            return None
        biased, product, call = v, x, inner
    left, right = call.args
    if weights.is_weight(right) and not weights.is_constant(left) and axis in (None, out.rank - 1):
        return _Scaled(var, base, factors, product, right, -1, biased, bias)
    if weights.is_weight(left) and not weights.is_constant(right) and axis in (None, out.rank - 2):
        # a bias along the columns would not fit factors of rows
        fits = biased is None or axis is None
        return _Scaled(var, base, factors, product, left, -2, biased, bias) if fits else None
    if axis is None and biased is None:
        return _behind(left, None, weights, var, base, factors) or _behind(right, None, weights, var, base, factors)
    return None


def _folded(
    function: Function, functions: Mapping[str, Function], found: Mapping[Var, _Scaled], weights: Weights
) -> Function:
    r = Rewriter(function, functions)
    scaling = Scaling(weights, r)
    products = {s.product: s for s in found.values()}
    biased = {s.biased: s for s in found.values() if s.biased is not None}
    for b in function.bindings:
        if b.var in found:
            r.replace(b.var, r.read(found[b.var].base))
        elif b.var in products:
            s = products[b.var]
            assert isinstance(b.value, OpCall)
            # factors may be made behind the product
            for made in (made for _, factor in s.factors for made in weights.behind(factor)):
                if made.var not in r.definitions:
                    r.keep(made)
            w = scaling.scaled(r.read(s.weights), s.factors, s.kept)
            r.keep(b, OpCall("matmul", tuple(w if a is s.weights else r.read(a) for a in b.value.args), b.value.attrs))
        elif b.var in biased:
            s = biased[b.var]
            assert s.bias is not None and isinstance(b.value, OpCall)
            r.keep(b, operator_call(b.value.op, r.read(s.product), _scaled_bias(s, scaling, r)))
        elif b.var not in r.definitions:
            r.keep(b)
    return r.finish()


def _scaled_bias(s: _Scaled, scaling: Scaling, r: Rewriter) -> Atom:
    """The bias times the factors, along the columns."""
    assert s.bias is not None
    bias = r.read(s.bias)
    for op, factor in s.factors:
        bias = r.emit(operator_call(op, bias, scaling.spread(factor, -1)), name="scaled")
    return bias
