"""Values that no kernel has to compute: views of tensors, and the rows that a loop's body reads at positions of its index."""

from __future__ import annotations

from collections.abc import Collection

from mirage.ir.annotations import Annotation
from mirage.ir.graph.nodes import Binding, Constant, Expr, Function, MakeTuple, OpCall, PackedCall, ShapeValue, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.types import TensorType


def is_view(value: Expr, annotation: Annotation) -> bool:
    """Whether what an expression of that annotation gives is its operand's memory under another shape."""
    if not isinstance(value, OpCall) or not isinstance(annotation, TensorType):
        return False
    if value.op == "reshape":
        return True
    if value.op == "reshape_to":
        # the run looks whether there are as many elements
        return isinstance(value.args[1], ShapeValue) and isinstance(value.args[0].annotation, TensorType)
    if value.op != "transpose":
        return False
    # dims of one element may be anywhere
    perm, shape = dict(value.attrs)["perm"], annotation.shape
    moved = [p % len(perm) for p, d in zip(perm, shape, strict=True) if d != 1]
    return moved == sorted(moved)


def positions(body: Function) -> frozenset[Var]:
    """The index of a loop's body, and sums and differences of it and given integers, which the virtual machine follows."""
    found = {body.parameters[0]}
    given = set(body.parameters)
    for b in body.bindings:
        value = b.value
        if isinstance(value, OpCall) and value.op in ("add", "sub") and found & set(variables(value)):
            known = all(isinstance(a, Constant) or a in found or a in given for a in value.args)
            if known and all(a.annotation == b.var.annotation for a in value.args):
                found.add(b.var)
    return frozenset(found)


def rows(body: Function, carried: int, at: Collection[Var]) -> frozenset[Var]:
    """The rows at these positions that a loop's body reads of tensors that stay as they are, for what it computes."""
    changed = {a for b in body.bindings if isinstance(b.value, PackedCall) for a in b.value.args}
    stay = {p for p in body.parameters[1 + carried :] if p not in changed}
    handed_on = {v for b in body.bindings if isinstance(b.value, MakeTuple) for v in variables(b.value)} | {body.result}
    return frozenset(b.var for b in body.bindings if _is_row(b, stay, at) and b.var not in handed_on)


def _is_row(b: Binding, tensors: Collection[Var], at: Collection[Var]) -> bool:
    value = b.value
    if not isinstance(value, OpCall) or value.op != "take" or dict(value.attrs)["axis"] != 0:
        return False
    return value.args[0] in tensors and value.args[1] in at
