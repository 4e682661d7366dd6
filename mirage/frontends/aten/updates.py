"""Caches: graphs without effects write a tensor anew and copy it back into the input, which here is written to in place.

Functionalization makes of `cache[:, t] = new` a whole new cache, `select_scatter(cache, new, 1, t)`, that all later operators
read, and at the end `copy_(cache, ...)`. Where nothing reads the old value any more, the new one may be written over it.
"""

from __future__ import annotations

from typing import Any

import torch

from mirage.frontends import effects
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.graph import GraphTrace
from mirage.frontends.tensors import GraphTensor
from mirage.ir.graph.nodes import OpCall, PackedCall

#: what functionalization ends with, of each input that is written to
COPY = torch.ops.aten.copy_.default
#: operators whose result is their first operand with a part written anew
_UPDATES = ("aten.slice_scatter", "aten.select_scatter", "aten.index_copy", "aten.index_put")


def updates(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """The nodes that may write over their first operand, with the input that this is: one that they are copied to in the end."""
    order = {n: k for k, n in enumerate(graph.nodes)}
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for n in graph.nodes:
        if n.target is COPY and n.args[0].op == "placeholder":
            chain = _chain(n.args[1], n.args[0])
            # results of operators are values of their own: only those that read the old value itself have to come before; an
            # input that is an output is given as it is in the end
            if all(user in (v, n) or user.op == "output" or order[user] < order[v] for v in chain for user in v.args[0].users):
                found |= dict.fromkeys(chain, n.args[0])
    return found


def written_inputs(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The inputs that a graph writes to."""
    return {n.args[0] for n in graph.nodes if n.target is COPY and n.args[0].op == "placeholder"}


def _chain(value: Any, target: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes from an input to a value where each writes a part of the one before; none where others are among them."""
    found = []
    while value is not target:
        if not isinstance(value, torch.fx.Node) or str(value.target).rpartition(".")[0] not in _UPDATES:
            return []
        found.append(value)
        value = value.args[0]
    return found


@lowers("copy_")
def _copy_(c: Call, x: Any, y: Any, non_blocking: bool = False) -> Any:
    return effects.copy_(x, c.tensor(y))


def in_place(trace: GraphTrace, x: GraphTensor, updated: GraphTensor) -> GraphTensor | None:
    """`x` after an effect that writes to it what an operator wrote to a copy of it to make `updated`; None where none does.

    What made the copy is left behind, and read by nothing.
    """
    target = trace.value("in_place", x)
    b = trace.function.definition(trace.value("in_place", updated))
    while b is not None and isinstance(b.value, OpCall) and b.value.op == "reshape" and b.var.annotation == target.annotation:
        # a shape that it has already
        b = trace.function.definition(b.value.args[0])
    if b is None or not isinstance(b.value, OpCall) or b.value.op not in _EFFECTS or b.value.args[0] != target:
        return None
    attrs = dict(b.value.attrs)
    if attrs.pop("add", False):
        return None
    call = PackedCall(_EFFECTS[b.value.op], b.value.args, target.annotation, tuple(attrs.items()), (0,))
    found: GraphTensor = trace.wrap(trace.emit(call, b.where))
    return found


#: operators that copy a tensor and write a part of it, and the effects that write to the tensor itself
_EFFECTS = {"update_slice": "update_slice_", "scatter": "scatter_"}
