"""Constant factors and summands of what products read, such as gains and offsets of norms, become a part of constant weights.

    y = layer_norm(x, g, c)             y = layer_norm(x)
    p = matmul(y, w)                    p = matmul(y, mul(w, reshape(g, (k, 1))))
    q = add(p, b)              ->       q = add(p, add(b, matmul(c, w)))
    r = matmul(y, v)                    r = add(matmul(y, mul(v, reshape(g, (k, 1)))), matmul(c, v))

What is new is made of constants, so it is computed once (`lift_constants`); the products with offsets in float64.

A gain is folded where all that reads the scaled value is a product with constant weights, at once or through views; an offset
where the sums that are new cost no more than what goes. Weights that others read, too, are copied only where the copy is proved
to be smaller than what is saved, which is to write and read the scaled value. Not in float16, whose range is
small, and not of weights beyond 16 MiB, of which copies are dear.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import sympy

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
from mirage.ir.dims import Dim
from mirage.ir.graph.nodes import Atom, Binding, Function, Module, OpCall, Var
from mirage.ir.types import TensorType

_NORMS = ("rms_norm", "layer_norm")


def run(module: Module, context: Context) -> Module:
    """The module with gains folded in its main function; its parameters `context.constants` are constants."""
    return in_main(module, context, fold)


def fold(
    function: Function, constants: Collection[str], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with gains folded; `constants` are names of its parameters that never change."""
    weights = Weights(function, constants, functions)
    gains = {b.var: gain for b in function.bindings if (gain := _gain(b.var, weights, store)) is not None}
    paid = paying(weights, {v: gain.change for v, gain in gains.items()}, store)
    kept = {v: gain for v, gain in gains.items() if v in paid}
    return _folded(function, functions, kept, weights) if kept else function


@dataclass(frozen=True)
class _Product:
    """A product that reads a scaled value, with its constant weights, and the sum with a constant that alone reads it."""

    var: Var
    weights: Atom
    #: the dim of the weights that is summed, from the end: -2 for those on the right, -1 for those on the left
    summed: int
    biased: Var | None


@dataclass(frozen=True)
class _Gain:
    """A value that is `base`, times factors, plus an offset, along one dim, and the products that read it."""

    var: Var
    base: Atom | OpCall
    factors: tuple[Factor, ...]
    offset: Atom | None
    products: tuple[_Product, ...]

    @property
    def change(self) -> Change:
        return Change({p.var: self.factors for p in self.products}, 2 * size_in_bytes(self.var))


def _gain(v: Var, weights: Weights, store: Constraints) -> _Gain | None:
    """The gain of a value that products read; None where it has none that may be folded."""
    out = v.annotation
    if not isinstance(out, TensorType) or out.dtype not in SCALED or weights.is_constant(v):
        return None
    base, factors, offset = _taken_apart(v, weights)
    if base is v:
        return None
    given = [s for _, s in factors] + ([] if offset is None else [offset])
    axes = {along(s, out) for s in given} - {out.rank}
    if None in axes or len(axes) > 1 or (offset is not None and along(offset, out) == out.rank):
        return None
    axis = axes.pop() if axes else None
    products = tuple(_products(v, axis, weights))
    if not products or None in products:
        return None
    gain = _Gain(v, base, tuple(factors), offset, tuple(p for p in products if p is not None))
    return gain if offset is None or _offset_pays(gain, out, store) else None


def _taken_apart(v: Var, weights: Weights) -> tuple[Atom | OpCall, list[Factor], Atom | None]:
    """A value without its constant factors and, outermost, its offset."""
    out, offset = v.annotation, None
    base: Atom = v
    factors: list[Factor] = []
    made = weights.definitions.get(v)
    while isinstance(made, OpCall):
        if made.op in _NORMS and len(made.args) > 1:
            _, gain, *rest = made.args
            if not _is_last(made, out) or not all(map(weights.is_constant, (gain, *rest))) or (rest and factors):
                break
            factors.append(("mul", gain))
            return OpCall(made.op, made.args[:1], made.attrs), factors, rest[0] if rest else offset
        found = weights.factor(made)
        if found is not None:
            x, factor = found
            factors.append(factor)
        elif not factors and offset is None and (moved := weights.offset(made)) is not None:
            x, offset = moved
        else:
            break
        if x.annotation != out:
            return v, [], None
        base = x
        made = weights.definitions.get(x) if isinstance(x, Var) and len(weights.readers[x]) == 1 else None
    return base, factors, offset


def _is_last(norm: OpCall, out: object) -> bool:
    return isinstance(out, TensorType) and dict(norm.attrs)["axis"] in (-1, out.rank - 1)


def _products(v: Var, axis: int | None, weights: Weights) -> Iterator[_Product | None]:
    """The products with weights that read a value, which sum over one of its dims; None for what else reads it."""
    for b in weights.readers[v]:
        call = None if b is None else b.value
        if b is None or not isinstance(call, OpCall):
            yield None
        elif call.op == "matmul":
            yield _product(b, v, axis, weights)
        elif call.op in ("reshape", "transpose", "slice"):
            place = None if axis is None else _place(call, b.var, axis)
            if axis is not None and place is None:
                yield None
            else:
                yield from _products(b.var, place, weights)
        else:
            yield None


def _product(b: Binding, v: Var, axis: int | None, weights: Weights) -> _Product | None:
    assert isinstance(b.value, OpCall) and isinstance(v.annotation, TensorType)
    left, right = b.value.args
    on_right = left is v
    w = right if on_right else left
    if not weights.is_weight(w) or axis not in (None, v.annotation.rank - (1 if on_right else 2)):
        return None
    return _Product(b.var, w, -2 if on_right else -1, _sum_with_bias(b.var, weights))


def _sum_with_bias(v: Var, weights: Weights) -> Var | None:
    """The sum of a product's columns with constants, where nothing else reads the product."""
    (b, *others), out = weights.readers[v] or [None], v.annotation
    if others or b is None or not isinstance(b.value, OpCall) or b.var.annotation != out:
        return None
    moved = weights.offset(b.value)
    assert isinstance(out, TensorType)
    return b.var if moved is not None and along(moved[1], out) == out.rank - 1 else None


def _place(view: OpCall, seen: Var, axis: int) -> int | None:
    """Where a dim of its operand is in what a view makes, if it is there as it was."""
    before, after = view.args[0].annotation, seen.annotation
    attrs = dict(view.attrs)
    assert isinstance(before, TensorType) and isinstance(after, TensorType)
    if view.op == "transpose":
        return list(attrs["perm"]).index(axis)
    if view.op == "slice":
        return None if axis in [a % before.rank for a in attrs["axes"]] else axis
    ahead = sympy.expand(sympy.prod(before.shape[:axis]))
    for i, d in enumerate(after.shape):
        if d == before.shape[axis] and sympy.expand(sympy.prod(after.shape[:i])) == ahead:
            return i
    return None


def _offset_pays(gain: _Gain, out: TensorType, store: Constraints) -> bool:
    """Whether the sums of products with what an offset gives cost no more than the factors and the offset."""
    new: Dim = sympy.Integer(0)
    for p in gain.products:
        t = p.weights.annotation
        if p.summed != -2 or not isinstance(t, TensorType) or t.rank != 2:
            return False
        if p.biased is None:
            new += t.shape[-1]
    return store.at_most(new, (len(gain.factors) + 1) * out.shape[-1])


def _folded(
    function: Function, functions: Mapping[str, Function], gains: Mapping[Var, _Gain], weights: Weights
) -> Function:
    r = Rewriter(function, functions)
    scaling = Scaling(weights, r)
    products = {p.var: (p, gain) for gain in gains.values() for p in gain.products}
    biased = {p.biased: (p, gain) for p, gain in products.values() if p.biased is not None and gain.offset is not None}
    for b in function.bindings:
        if b.var in gains:
            base = gains[b.var].base
            if isinstance(base, OpCall):
                r.keep(b, OpCall(base.op, tuple(map(r.read, base.args)), base.attrs))
            else:
                r.replace(b.var, r.read(base))
        elif b.var in products:
            p, gain = products[b.var]
            assert isinstance(b.value, OpCall)
            w = scaling.scaled(r.read(p.weights), gain.factors, p.summed)
            x = r.read(b.value.args[0 if p.summed == -2 else 1])
            product = OpCall("matmul", (x, w) if p.summed == -2 else (w, x), b.value.attrs)
            if gain.offset is not None and p.biased is None:
                product = operator_call("add", r.emit(product), _moved(p, gain.offset, None, r))
            r.keep(b, product)
        elif b.var in biased:
            p, gain = biased[b.var]
            assert isinstance(b.value, OpCall) and gain.offset is not None
            (bias,) = (a for a in b.value.args if a is not p.var)
            r.keep(b, operator_call("add", r.read(p.var), _moved(p, gain.offset, bias, r)))
        else:
            r.keep(b)
    return r.finish()


def _moved(p: _Product, offset: Atom, bias: Atom | None, r: Rewriter) -> Var:
    """What an offset is behind the product, with the bias that is there: the sums in float64, as the ones of a row are."""
    w = p.weights.annotation
    assert isinstance(w, TensorType)

    def wide(x: Atom, *shape: Dim) -> Atom:
        x = r.read(x)
        if isinstance(x.annotation, TensorType) and x.annotation.shape != shape:
            x = r.emit(operator_call("reshape", x, shape=shape))
        return x if w.dtype == "float64" else r.emit(operator_call("cast", x, dtype="float64"))

    found = r.emit(operator_call("matmul", wide(offset, sympy.Integer(1), w.shape[0]), wide(p.weights, *w.shape)))
    found = r.emit(operator_call("reshape", found, shape=(w.shape[1],)))
    if bias is not None:
        found = r.emit(operator_call("add", wide(bias, w.shape[1]), found))
    return found if w.dtype == "float64" else r.emit(operator_call("cast", found, dtype=w.dtype), name="bias")
