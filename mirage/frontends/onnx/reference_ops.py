"""Operators that ONNX's reference evaluator gets wrong, or does not bound: given to it as operators of users are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as ReferenceLoop

from mirage.frontends.onnx.values import memory_bytes

#: bytes of an array beside its elements
_OVERHEAD = sys.getsizeof(np.empty(0))


class Loop(ReferenceLoop):
    """A loop, after ONNX's operators: without a condition it goes on, and what its rounds give is stacked along a new dim.

    What the rounds give is kept for as long as there is room in this machine's memory: beyond, a MemoryError says how many there
    were. A loop that keeps nothing is the user's to end.
    """

    op_domain = ""
    #: what the evaluator makes of the attribute: the graph, and a function that runs it
    body: Any
    _run_body: Any

    def _run(
        self, M: Any, cond: Any, *args: Any, context: Any = None, body: Any = None, attributes: Any = None, bindings: Any = None
    ) -> tuple[Any, ...]:  # fmt: skip
        counter, going, *names = self.body.input_names
        states = list(args)
        kept: list[list[Any]] = [[] for _ in range(self.K)]
        held, i = 0, 0
        cond = np.asarray(True) if cond is None else cond
        while cond and (M is None or i < M):
            given = {
                **(context or {}),
                counter: np.asarray(i, np.int64),
                going: cond,
                **dict(zip(names, states, strict=True)),
            }
            cond, *found = self._run_body(given, attributes=attributes, bindings=bindings)
            states = found[: self.N]
            for all_rows, row in zip(kept, found[self.N :], strict=True):
                all_rows.append(row)
                held += row.nbytes + _OVERHEAD
            i += 1
            if held > memory_bytes():
                raise MemoryError(f"what its first {i} rounds give has no room in this machine's memory")
        (graph,) = (a.g for a in self.onnx_node.attribute if a.name == "body")
        types = list(graph.output)[1 + self.N :]
        stacked = (np.stack(rows) if rows else _nothing(t) for rows, t in zip(kept, types, strict=True))
        return tuple(self._check_and_fix_outputs((*states, *stacked)))


def _nothing(row: ValueInfoProto) -> np.ndarray:
    """What no rounds give: dims that only a round tells are 0."""
    kind = row.type.tensor_type
    return np.empty((0, *(d.dim_value for d in kind.shape.dim)), helper.tensor_dtype_to_np_dtype(kind.elem_type))


#: in the place of the evaluator's own
OPERATORS: list[type[OpRun]] = [Loop]
