"""The pattern kind of a binding, found by analysis of its operator's loop-level definition (Relax, Algorithm 1)."""

from __future__ import annotations

from functools import lru_cache

from mirage.compiler.dim_names import with_own_names
from mirage.ir.graph.nodes import Binding, Block, Function, OpCall, Var
from mirage.ir.graph.traverse import atoms
from mirage.ir.loops.analysis import Kind, pattern_kind
from mirage.ir.loops.lower import lower_operator
from mirage.ir.loops.program import LoopProgram
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType


def binding_kind(binding: Binding) -> Kind:
    """The kind of a binding; opaque where it is no operator, or one without a loop-level definition."""
    args = tuple(a for a in atoms(binding.value) if isinstance(a, Var))
    alone = Function("alone", tuple(dict.fromkeys(args)), (Block((binding,)),), binding.var)
    program = lowered_binding(with_own_names(alone)[0].bindings[0])
    return Kind.OPAQUE if program is None else pattern_kind(program)


def lowered_binding(binding: Binding, dtype: str = "") -> LoopProgram | None:
    """The loop program of a binding over inputs `x0`, `x1`, ...; None where it has none.

    `dtype` is what a scalar constant is wanted as: it has no element type of its own.
    """
    value = binding.value
    types = [a.annotation for a in value.args] if isinstance(value, OpCall) else []
    out = binding.var.annotation
    known = [t for t in types if isinstance(t, TensorType)]
    if not isinstance(value, OpCall) or not isinstance(out, TensorType) or len(known) != len(types):
        return None
    if out.dtype == "scalar" and dtype:
        out, known = TensorType((), dtype), [TensorType((), dtype) for _ in known]
    return _lowered(value.op, value.attrs, tuple(known), out)


@lru_cache(maxsize=4096)
def _lowered(op: str, attrs: AttrItems, types: tuple[TensorType, ...], out: TensorType) -> LoopProgram | None:
    return lower_operator(op, types, dict(attrs), out)
