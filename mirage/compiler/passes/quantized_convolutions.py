"""Convolutions of dequantized tensors are convolutions of whole numbers, with the scales where results are stored.

    a: float32[b, c, n]  = pad(dequantize(x, sx, zx))              x of int8 or uint8; with zeros along spatial dims, if at all
    k: float32[o, c, 3]  = dequantize(w, sw)                       w of int8, constant, with one scale or those of outputs
    v: float32[b, o, m]  = convolution(a, k)
    u: float32[b, o, m]  = relu(add(add(v, bias), dequantize(z, sz, zz)))
    y: uint8[b, o, m]    = quantize(u, sy, zy)
    =>
    y: uint8[b, o, m]    = quantized_convolution(x, w, sx * sw / sy, bias / sy, z, x_zero=zx, other_scale=sz / sy, least=0, ...)

Each of what follows the convolution only where it is there, and only the next one reads it; bounds (`elementwise_max`,
`elementwise_min`) may stand in place of `relu`. The largest of windows are those of whole numbers, too: `quantize` never
decreases, so that `quantize(max_pool(u))` is `max_pool(quantize(u))`. Without a `quantize` the result is float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mirage.compiler.context import Context
from mirage.compiler.passes.quantized_products import Definitions, Whole, constant_of, whole_of
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.patterns.convolutions import is_per_output
from mirage.ir.graph.nodes import Atom, Binding, Constant, Function, Module, OpCall, Var
from mirage.ir.graph.traverse import uses, variables
from mirage.ir.operators.quantization import quantized_range
from mirage.ir.types import TensorType
from mirage.kernels.cpu.launch.convolution import RANK
from mirage.kernels.cpu.launch.quantized_convolution import ACTIVATIONS


@dataclass(frozen=True)
class _Windows:
    """A convolution of whole numbers: those of x without the zeros around them, and how many places of zeros there are."""

    x: Whole
    w: Whole
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class _Chain:
    """What follows a convolution and is computed where it is stored; `pools`, with padding, and the `quantize` come last."""

    last: Binding
    bias: Atom | None = None
    other: Atom | None = None
    least: float | None = None
    most: float | None = None
    pools: tuple[Binding, ...] = ()
    quantize: Binding | None = None
    #: variables that are not computed any more
    gone: frozenset[Var] = field(default_factory=frozenset)


def run(module: Module, context: Context) -> Module:
    """The module with convolutions of dequantized tensors as `quantized_convolution`, in every function."""
    if not any(isinstance(b.value, OpCall) and b.value.op == "convolution" for f in module for b in f.bindings):
        return module
    return Module({f.name: fold(f, module.functions) for f in module}, module.kernels, module.main)


def fold(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with convolutions of dequantized tensors as those of whole numbers."""
    counts = uses(function)
    found: dict[Var, tuple[Binding, _Chain, _Windows, Definitions]] = {}
    gone: set[Var] = set()
    for block in function.blocks:
        if not block.dataflow:
            continue
        definitions: Definitions = {b.var: b.value for b in block.bindings}
        readers = {v: b for b in block.bindings for v in variables(b.value)}
        for b in block.bindings:
            windows = _windows(b, definitions)
            if windows is not None:
                chain = _chain(b, counts, readers, definitions)
                found[chain.last.var] = (b, chain, windows, definitions)
                gone |= chain.gone
    if not found:
        return function
    r = Rewriter(function, functions)
    for b in function.bindings:
        if b.var in found:
            _emit(r, *found[b.var])
        elif b.var not in gone:
            r.keep(b)
    return r.finish()


def _is_one(w: Whole) -> bool:
    """Whether it has one scale and one zero point."""
    return w.scale.size == 1 and w.zero.size == 1 and not w.group


def _type(atom: Atom) -> TensorType:
    assert isinstance(atom.annotation, TensorType)
    return atom.annotation


def _windows(b: Binding, definitions: Definitions) -> _Windows | None:
    call = b.value
    if not isinstance(call, OpCall) or call.op != "convolution" or not isinstance(b.var.annotation, TensorType):
        return None
    operand, rank = call.args[0], b.var.annotation.rank - 2
    low, high = (0,) * rank, (0,) * rank
    padding = definitions.get(operand) if isinstance(operand, Var) else None
    if isinstance(padding, OpCall) and padding.op == "pad":
        attrs = dict(padding.attrs)
        edges = (*attrs["low"], *attrs["high"])
        if attrs["value"] != 0 or not all(n.is_Integer for n in edges) or any((*attrs["low"][:2], *attrs["high"][:2])):
            return None
        low, high = (tuple(map(int, attrs[side][2:])) for side in ("low", "high"))
        operand = padding.args[0]
    x, w = whole_of(operand, definitions), whole_of(call.args[1], definitions)
    if x is None or w is None or rank > RANK or not _is_one(x) or _type(x.numbers).dtype not in ACTIVATIONS:
        return None
    by_output = w.scale.size == 1 or (w.axis == 0 and not w.group)
    if _type(w.numbers).dtype != "int8" or w.zero.any() or not by_output or not _type(w.numbers).shape[0].is_Integer:
        return None
    return _Windows(x, w, low, high)


def _chain(conv: Binding, counts: Counter[Var], readers: Mapping[Var, Binding], definitions: Definitions) -> _Chain:
    out, chain, kept = _type(conv.var), _Chain(conv), _Chain(conv)
    while counts[chain.last.var] == 1 and chain.last.var in readers:
        b = readers[chain.last.var]
        if not isinstance(b.value, OpCall) or not isinstance(b.var.annotation, TensorType):
            break
        if b.value.op == "quantize":
            scales = b.value.args[1:]
            known = [s.array for s in scales if isinstance(s, Constant)]
            fits = len(known) == len(scales) and all(a.size == 1 for a in known) and 0 < float(known[0].reshape(())) < np.inf
            is_float = chain.other is not None and _other(chain.other, definitions) is None
            if not fits or is_float or b.value.args[0] != chain.last.var:
                break
            return replace(chain, quantize=b, last=b, gone=frozenset((*chain.gone, chain.last.var)))
        step = _step(b, b.value, chain, out, definitions)
        if step is None:
            break
        chain = replace(step, last=b, gone=frozenset((*chain.gone, chain.last.var)))
        if not chain.pools:
            kept = chain
    return kept


def _step(b: Binding, call: OpCall, chain: _Chain, out: TensorType, definitions: Definitions) -> _Chain | None:
    """The chain with one more operator; None where it ends before."""
    is_bounded = chain.least is not None or chain.most is not None
    if call.op in ("pad", "max_pool") and call.args[0] == chain.last.var:
        return replace(chain, pools=(*chain.pools, b))
    if chain.pools or b.var.annotation != out:
        return None
    if call.op == "relu" and not is_bounded:
        return replace(chain, least=0.0)
    added = next((a for a in call.args if a != chain.last.var), None)
    if added is None or len(call.args) != 2:
        return None
    if call.op == "add" and not is_bounded:
        if chain.bias is None and chain.other is None and is_per_output(added.annotation, out):
            return replace(chain, bias=added)
        if chain.other is None and isinstance(added, Var) and added.annotation == out:
            return replace(chain, other=added)
    number = _number(added, definitions)
    if call.op == "elementwise_max" and number is not None and not is_bounded:
        return replace(chain, least=number)
    if call.op == "elementwise_min" and number is not None and chain.most is None:
        return replace(chain, most=number)
    return None


def _number(atom: Atom, definitions: Definitions) -> float | None:
    """A finite number that is known."""
    value: Any = None
    call = definitions.get(atom) if isinstance(atom, Var) else None
    if isinstance(atom, Constant) and atom.array.size == 1:
        value = atom.array.reshape(())
    elif isinstance(call, OpCall) and call.op == "constant":
        value = dict(call.attrs)["value"]
    return float(value) if value is not None and np.isfinite(float(value)) else None


def _other(atom: Atom, definitions: Definitions) -> Whole | None:
    """Another summand as whole numbers that are added as such."""
    found = whole_of(atom, definitions)
    return found if found is not None and _is_one(found) and _type(found.numbers).dtype in ACTIVATIONS else None


def _emit(r: Rewriter, conv: Binding, chain: _Chain, windows: _Windows, definitions: Definitions) -> None:
    """Append the convolution of whole numbers, and the pooling of its result, in place of the last binding of a chain."""
    call, x, w = conv.value, windows.x, windows.w
    assert isinstance(call, OpCall)
    outputs = int(_type(w.numbers).shape[0])
    dtype, zero, step = "float32", 0, np.float32(1)
    if chain.quantize is not None:
        assert isinstance(chain.quantize.value, OpCall)
        known = [c.array.reshape(()) for c in chain.quantize.value.args[1:] if isinstance(c, Constant)]
        dtype, step = str(dict(chain.quantize.value.attrs)["dtype"]), np.float32(known[0])
        zero = int(known[1]) if len(known) > 1 else 0
    scale = (w.scale * x.scale.reshape(())).astype(np.float32) / step
    along = np.ascontiguousarray(np.broadcast_to(scale.astype(np.float32).reshape(-1), (outputs,)))
    operands: list[Atom] = [r.read(x.numbers), r.read(w.numbers), constant_of(along)]
    attrs: dict[str, Any] = {key: value for key, value in call.attrs if key != "value"}
    attrs |= {"low": windows.low, "high": windows.high, "x_zero": int(x.zero.reshape(())), "dtype": dtype, "zero": zero}
    if chain.bias is not None or chain.other is not None:
        operands.append(_bias(r, chain.bias, outputs, step, conv.where))
    if chain.other is not None:
        other = _other(chain.other, definitions)
        operands.append(r.read(chain.other if other is None else other.numbers))
        if other is not None:
            attrs |= {"other_scale": float(np.float32(other.scale.reshape(()) / step)), "other_zero": int(other.zero.reshape(()))}
    bounds = {"least": chain.least, "most": chain.most}
    attrs |= {key: float(np.float32(n) / step) for key, n in bounds.items() if n is not None}
    made = operator_call("quantized_convolution", *operands, **attrs)
    if not chain.pools:
        r.keep(Binding(chain.last.var, chain.last.value, conv.where), made)
        return
    pooled: Atom = r.emit(made, where=conv.where)
    *between, end = [_on_whole(b.value, float(step), zero, dtype) for b in chain.pools]
    for value in between:
        pooled = r.emit(OpCall(value.op, (pooled,), value.attrs), where=conv.where)
    assert chain.quantize is not None
    r.keep(chain.quantize, OpCall(end.op, (pooled,), end.attrs))


def _bias(r: Rewriter, bias: Atom | None, outputs: int, step: np.float32, where: str) -> Atom:
    """A summand along the outputs as the operand `[o]`, over the scale of the result."""
    if bias is None:
        return constant_of(np.zeros(outputs, np.float32))
    new = r.read(bias)
    if isinstance(new, Constant):
        return constant_of((new.array.reshape(-1) / step).astype(np.float32))
    flat = r.emit(operator_call("reshape", new, shape=(outputs,)), name="bias", where=where)
    return flat if step == 1 else r.emit(operator_call("div", flat, constant_of(np.asarray(step))), name="bias", where=where)


def _on_whole(value: Any, step: float, zero: int, dtype: str) -> OpCall:
    """A pooling, or the padding before it, of quantized numbers."""
    assert isinstance(value, OpCall)
    if value.op != "pad":
        return value
    attrs = dict(value.attrs)
    least, most = quantized_range(dtype)
    whole = int(np.clip(np.rint(float(attrs["value"]) / step) + zero, least, most))
    return OpCall("pad", value.args, tuple({**attrs, "value": whole}.items()))
