"""Operators over constants are evaluated at compile time, if the result is not much larger than the operands.

What depends on a size stays, and so do scalar constants, which cost nothing and are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.errors import MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Constant, Function, MakeTuple, Module, OpCall, Var
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import dims_in
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS, TensorType

#: bytes that a folded result may have beyond those of its operands
MOST_BYTES = 1 << 16


def run(module: Module, context: Context) -> Module:
    """The module with constants folded, callees before callers."""
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = fold(functions[name], functions)
    return Module(functions, module.kernels, module.main)


def fold(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with operators over constants replaced by their results.

    An application that fails stays: the run says so, if it gets there. What has no array among its operands (such as `full`)
    stays, too: kernels make its elements faster than they read them.
    """
    r = Rewriter(function, functions)
    written = {v.name for v in written_variables(function, functions)}
    for b in function.bindings:
        value = r.current(b)
        known = isinstance(value, OpCall) and b.var.name not in written
        found = _evaluate(value, r, deduce(value, functions)) if known and isinstance(value, OpCall) else None
        if isinstance(found, Constant):
            r.replace(b.var, found)
        else:
            r.keep(b, found or value)
    return r.finish()


def _evaluate(call: OpCall, r: Rewriter, annotation: Annotation) -> Constant | MakeTuple | None:
    types = annotation.fields if isinstance(annotation, TupleType) else (annotation,)
    arrays = [_value(a, r) for a in call.args]
    if any(a is None for a in arrays) or any(d.free_symbols for d in dims_in(call)):
        return None
    given = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
    if not any(isinstance(a, np.ndarray) for a in arrays) or _nbytes(types) > given + MOST_BYTES:
        return None
    try:
        results = get_operator(call.op).run(arrays, dict(call.attrs), {})
    except MirageError:
        return None
    found: list[Atom] = []
    for t, array in zip(types, results if isinstance(annotation, TupleType) else (results,), strict=True):
        assert isinstance(t, TensorType)
        # a view would keep its base alive, or change with it
        found.append(Constant(np.array(array, ELEMENTS[t.dtype], order="C"), t))
    return MakeTuple(tuple(found)) if isinstance(annotation, TupleType) else found[0]  # type: ignore[return-value]


def _value(atom: Atom, r: Rewriter) -> Any:
    """The array or number that an operand is; None where that is not known."""
    if isinstance(atom, Constant):
        return atom.array
    made = r.definitions.get(atom) if isinstance(atom, Var) else None
    if isinstance(made, OpCall) and made.op == "constant":
        return get_operator("constant").run([], dict(made.attrs), {})
    return None


def _nbytes(types: Sequence[Annotation]) -> float:
    """The bytes of tensors of known shapes; infinite where one is not known."""
    total = 0
    for t in types:
        if not isinstance(t, TensorType) or t.dtype not in ELEMENTS or t.symbols():
            return inf
        total += prod(t.bind({})) * ELEMENTS[t.dtype].itemsize
    return total
