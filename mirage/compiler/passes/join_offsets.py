"""Constants that are added to a value or subtracted from it, one after the other, become one.

    a = add(x, b)
    r = sub(a, m)               ->      r = add(x, sub(b, m))

All are along the same dim, as a bias and the mean of a batch normalization, whose factor `fold_scales` and `fold_factors` find
behind one offset. What these leave is joined again. What is new is made of constants, so it is computed once (`lift_constants`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.passes.weights import Weights, along, in_main
from mirage.ir.graph.nodes import Atom, Binding, Function, Module, OpCall
from mirage.ir.types import DTYPES, TensorType


def run(module: Module, context: Context) -> Module:
    """The module with offsets joined in its main function; its parameters `context.constants` are constants."""
    return in_main(module, context, join)


@dataclass(frozen=True)
class _Shifted:
    """A value of the new function: `base` plus ("add") or minus ("sub") a constant that varies along one dim."""

    op: str
    base: Atom
    offset: Atom
    axis: int


def join(
    function: Function, constants: Collection[str], functions: Mapping[str, Function], store: Constraints
) -> Function:
    """The function with offsets joined; `constants` are names of its parameters that never change."""
    weights = Weights(function, constants, functions)
    r = Rewriter(function, functions)
    shifted: dict[Atom, _Shifted] = {}
    for b in function.bindings:
        last = _shifted(b, weights)
        if last is None:
            r.keep(b)
            continue
        base, offset = r.read(last.base), r.read(last.offset)
        first = shifted.get(base) if len(weights.readers[last.base]) == 1 else None
        if first is None or first.axis != last.axis:
            shifted[r.keep(b)] = _Shifted(last.op, base, offset, last.axis)
            continue
        # x - a + b is x - (a - b)
        both = r.emit(operator_call("add" if first.op == last.op else "sub", first.offset, offset), name="offset")
        var = r.keep(b, operator_call(first.op, first.base, both))
        shifted[var] = _Shifted(first.op, first.base, both, first.axis)
    return r.finish()


def _shifted(b: Binding, weights: Weights) -> _Shifted | None:
    """What a binding of the old function adds or subtracts; None where that is no constant along one dim."""
    out = b.var.annotation
    if not isinstance(b.value, OpCall) or not isinstance(out, TensorType) or out.dtype not in DTYPES:
        return None
    found = weights.shift(b.value)
    if found is None or found[0].annotation != out:
        return None
    base, offset = found
    axis = along(offset, out)
    return None if axis in (None, out.rank) else _Shifted(b.value.op, base, offset, axis)
