"""Products of dequantized tensors are products of whole numbers, with the scales where results are stored.

    a: float32[m, k] = dequantize(x, sx, zx)                      x of int8 or uint8
    b: float32[k, n] = dequantize(w, sw)                          w of int8, constant, with scales of columns or groups along k
    c: float32[m, n] = matmul(a, b)
    d: float32[m, n] = relu(add(c, bias))                         each only where it is there
    y: int8[m, n]    = quantize(d, sy, zy)
    =>
    y: int8[m, n]    = quantized_matmul(x, w, sx * sw / sy, bias / sy, x_zero=zx, relu=True, dtype=int8, zero=zy)

Without a `quantize` behind it, or where others read the product too, the result stays float32. Scales are folded along the
axis that they belong to (Relay, section 4.3: scale folding), so that tensors between two products are whole numbers. Movements
in between (reshape, transpose) are made of these. Files with QuantizeLinear and DequantizeLinear come this way, and what
`mirage.quantize` has calibrated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import sympy

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.ir.graph.nodes import Atom, Binding, Constant, Expr, Function, Module, OpCall, Var
from mirage.ir.graph.traverse import uses, variables
from mirage.ir.types import TensorType

#: what only reads a tensor in another order
_MOVEMENTS = ("reshape", "transpose")
#: types of activations and weights that are multiplied
_ACTIVATIONS, _WEIGHTS = ("int8", "uint8", "int16"), ("int8",)

Definitions = Mapping[Var, Expr]


@dataclass(frozen=True)
class Whole:
    """A tensor of whole numbers behind a `dequantize`: the numbers, and what makes real ones of them."""

    numbers: Atom
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    #: positions along the axis that have one scale; 0 where each has its own, -1 of a matrix that is transposed once it is real
    group: int


@dataclass(frozen=True)
class _Chain:
    """What follows a product, each of which only the next one reads; `movements` and the `quantize` come last."""

    bias: Atom | None
    relu: bool
    movements: tuple[Binding, ...]
    quantize: Binding | None
    last: Binding
    #: variables that are not computed any more
    gone: frozenset[Var]


def run(module: Module, context: Context) -> Module:
    """The module with products of dequantized tensors as `quantized_matmul`, in every function."""
    if not any(isinstance(b.value, OpCall) and b.value.op == "dequantize" for f in module for b in f.bindings):
        return module
    functions = {f.name: fold(f, module.functions) for f in module}
    return Module(functions, module.kernels, module.main)


def fold(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with products of dequantized tensors as products of whole numbers."""
    counts = uses(function)
    # what is replaced is computed where its last variable was: operands of the chain may come after the product
    chains: dict[Var, tuple[Binding, _Chain, Whole, Whole]] = {}
    gone: set[Var] = set()
    for block in function.blocks:
        if not block.dataflow:
            continue
        definitions: Definitions = {b.var: b.value for b in block.bindings}
        readers = {v: b for b in block.bindings for v in variables(b.value)}
        for b in block.bindings:
            found = _product(b, definitions)
            if found is not None:
                chain = _chain(b, counts, readers)
                chains[chain.last.var] = (b, chain, *found)
                gone |= chain.gone
    if not chains:
        return function
    r = Rewriter(function, functions)
    for b in function.bindings:
        if b.var in chains:
            _emit(r, *chains[b.var])
        elif b.var not in gone:
            r.keep(b)
    return r.finish()


def whole_of(atom: Atom, definitions: Definitions) -> Whole | None:
    """The whole numbers of an operand, if scale and zero point are known."""
    call = definitions.get(atom) if isinstance(atom, Var) else None
    if not isinstance(call, OpCall) or call.op != "dequantize":
        return None
    numbers, *scales = call.args
    if not all(isinstance(s, Constant) for s in scales) or not isinstance(numbers.annotation, TensorType):
        return None
    arrays = [s.array for s in scales if isinstance(s, Constant)]
    if not np.isfinite(arrays[0]).all():
        return None
    attrs = dict(call.attrs)
    zero = arrays[1] if len(arrays) > 1 else np.zeros((), np.int64)
    return Whole(numbers, arrays[0], zero, attrs["axis"] % max(numbers.annotation.rank, 1), attrs["group"])


def _product(b: Binding, definitions: Definitions) -> tuple[Whole, Whole] | None:
    """Activations and weights of a product of dequantized tensors that `quantized_matmul` computes."""
    if not isinstance(b.value, OpCall) or b.value.op != "matmul" or not isinstance(b.var.annotation, TensorType):
        return None
    x = whole_of(b.value.args[0], definitions)
    w = _weights(b.value.args[1], definitions)
    if x is None or w is None:
        return None
    x_type, w_type = x.numbers.annotation, w.numbers.annotation
    assert isinstance(x_type, TensorType) and isinstance(w_type, TensorType)
    if x_type.dtype not in _ACTIVATIONS or x.scale.size != 1 or x.zero.size != 1 or x.group:
        return None
    if w_type.dtype not in _WEIGHTS or w_type.rank != 2 or w.zero.any():
        return None
    if not w_type.shape[0 if w.group < 0 else 1].is_Integer:
        return None
    by_column = w.scale.size == 1 or (w.axis == 1 and w.group <= 0)
    by_group = w.group > 0 and w.axis == 0 and w.group % 4 == 0
    return (x, w) if by_column or by_group else None


def _weights(atom: Atom, definitions: Definitions) -> Whole | None:
    """The whole numbers of weights, which may be transposed once they are real."""
    call = definitions.get(atom) if isinstance(atom, Var) else None
    if not isinstance(call, OpCall) or call.op != "transpose" or dict(call.attrs)["perm"] != (1, 0):
        return whole_of(atom, definitions)
    found = whole_of(call.args[0], definitions)
    if found is None or found.group or not isinstance(found.numbers, Constant | Var):
        return None
    if isinstance(found.numbers, Constant):
        turned = np.ascontiguousarray(found.numbers.array.T)
        t = found.numbers.annotation
        numbers: Atom = Constant(turned, TensorType(t.shape[::-1], t.dtype))
        return Whole(numbers, found.scale, found.zero, 1 - found.axis, 0)
    # a movement of whole numbers, which the packing reads through
    return Whole(found.numbers, found.scale, found.zero, 1 - found.axis, -1)


def _chain(product: Binding, counts: Counter[Var], readers: Mapping[Var, Binding]) -> _Chain:
    """What follows a product and is computed where it is stored."""
    bias: Atom | None = None
    relu = False
    movements: list[Binding] = []
    last, passed = product, {product.var}
    type = product.var.annotation
    assert isinstance(type, TensorType)
    kept = _Chain(None, False, (), None, product, frozenset())
    while counts[last.var] == 1 and last.var in readers and isinstance(readers[last.var].value, OpCall):
        b = readers[last.var]
        call = b.value
        assert isinstance(call, OpCall)
        if call.op == "quantize":
            scales = call.args[1:]
            known = [s.array for s in scales if isinstance(s, Constant)]
            fits = len(known) == len(scales) and all(a.size == 1 for a in known) and not dict(call.attrs)["group"]
            if not fits or not 0 < float(known[0].reshape(())) < np.inf or call.args[0] != last.var:
                break
            return _Chain(bias, relu, tuple(movements), b, b, frozenset(passed | {m.var for m in movements}))
        if call.op in _MOVEMENTS:
            movements.append(b)
        elif movements:
            break
        elif call.op == "add" and bias is None and not relu:
            bias = next((a for a in call.args if a != last.var), None)
            t = bias.annotation if bias is not None else None
            if not isinstance(t, TensorType) or t.dtype != "float32" or t.shape != type.shape[-1:]:
                break
        elif call.op == "relu" and not relu:
            relu = True
        else:
            break
        if not movements:
            passed.add(b.var)
            kept = _Chain(bias, relu, (), None, b, frozenset(passed))
        last = b
    return kept


def _emit(r: Rewriter, product: Binding, chain: _Chain, x: Whole, w: Whole) -> None:
    """Append the product of whole numbers, and what moves its result, in place of the last binding of a chain."""
    n = product.var.annotation
    assert isinstance(n, TensorType) and isinstance(w.numbers.annotation, TensorType)
    scale = (w.scale * x.scale.reshape(())).astype(np.float32)
    if w.group > 0:
        attrs = {"group": w.group}
    else:
        columns = w.numbers.annotation.shape[1 if w.group == 0 else 0]
        attrs, scale = {}, np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), (int(columns),)))
    weights: Atom = r.read(w.numbers)
    if w.group < 0:
        weights = r.emit(operator_call("transpose", weights, perm=(1, 0)), name="weights", where=product.where)
    bias = None if chain.bias is None else r.read(chain.bias)
    dtype, zero = "float32", 0
    if chain.quantize is not None:
        call = chain.quantize.value
        assert isinstance(call, OpCall)
        found = [c.array.reshape(()) for c in call.args[1:] if isinstance(c, Constant)]
        dtype, zero = str(dict(call.attrs)["dtype"]), int(found[1]) if len(found) > 1 else 0
        scale = (scale / found[0].astype(np.float32)).astype(np.float32)
        if isinstance(bias, Constant):
            bias = constant_of((bias.array / found[0]).astype(np.float32))
        elif bias is not None:
            bias = r.emit(operator_call("div", bias, constant_of(found[0].astype(np.float32))), name="bias", where=product.where)
    operands = (r.read(x.numbers), weights, constant_of(scale), *(() if bias is None else (bias,)))
    made = operator_call(
        "quantized_matmul", *operands, x_zero=int(x.zero.reshape(())), relu=chain.relu, dtype=dtype, zero=zero, **attrs
    )
    if not chain.movements:
        r.keep(Binding(chain.last.var, chain.last.value, product.where), made)
        return
    moved: Atom = r.emit(made, where=product.where)
    *between, end = chain.movements
    for b in between:
        assert isinstance(b.value, OpCall)
        moved = r.emit(OpCall(b.value.op, (moved,), b.value.attrs), where=b.where)
    assert isinstance(end.value, OpCall) and chain.quantize is not None
    r.keep(chain.quantize, OpCall(end.value.op, (moved,), end.value.attrs))


def constant_of(array: np.ndarray) -> Constant:
    """An array as an operand."""
    return Constant(array, TensorType(tuple(map(sympy.Integer, array.shape)), array.dtype.name))
