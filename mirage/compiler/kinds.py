"""The pattern kind of a binding, found by analysis of its operator's loop-level definition (Relax, Algorithm 1)."""

from __future__ import annotations

from functools import lru_cache

from mirage.ir.graph.nodes import Binding, OpCall
from mirage.ir.loops.analysis import Kind, pattern_kind
from mirage.ir.loops.program import LoopProgram, single
from mirage.ir.operator import get_operator
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType


def binding_kind(binding: Binding) -> Kind:
    """The kind of a binding; opaque where it is no operator, or one without a loop-level definition."""
    value = binding.value
    if not isinstance(value, OpCall) or not isinstance(binding.var.annotation, TensorType):
        return Kind.OPAQUE
    types = tuple(a.annotation for a in value.args)
    if not all(isinstance(t, TensorType) for t in types):
        return Kind.OPAQUE
    program = lowered(value.op, value.attrs, types, binding.var.annotation)
    return Kind.OPAQUE if program is None else pattern_kind(program)


@lru_cache(maxsize=4096)
def lowered(op: str, attrs: AttrItems, types: tuple[TensorType, ...], out: TensorType) -> LoopProgram | None:
    """The loop program of one operator over inputs `x0`, `x1`, ...; None where it has none."""
    found = get_operator(op).to_loops(types, dict(attrs), out)
    return found if found is None or isinstance(found, LoopProgram) else single(op, types, found)
