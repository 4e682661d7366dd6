"""What an exported program writes to is written in its graph, where it may be in place, as Dynamo's graphs have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mirage.frontends.aten.updates import COPY

#: kinds of outputs of an exported graph that are written back, before the others
_WRITTEN = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


def with_writes(exported: Any, returned: Sequence[str | None] = ()) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """The graph of an exported program with its writes at the end, and the positions of the inputs that are written to.

    `returned` has, for each part of the result, the name of the input that it is, if it is one: programs give the input itself
    where the exported graph has what was written to it.
    """
    signature = exported.graph_signature
    written = [s.target for s in signature.output_specs if s.kind.name in _WRITTEN]
    if not written:
        return exported.graph_module, ()
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    named = {n.name: n for n in placeholders}
    named |= {s.target: n for s, n in zip(signature.input_specs, placeholders, strict=True) if s.target}
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    outputs: Any = graph.graph_copy(exported.graph, copies)
    for name, value in zip(written, outputs, strict=False):
        target = copies[named[name]]
        graph.call_function(COPY, (target, value)).meta = {**value.meta, "val": target.meta["val"]}
    values = outputs[len(written) :]
    names = [*returned, *[None] * (len(values) - len(returned))]
    graph.output(tuple(v if n is None else copies[named[n]] for v, n in zip(values, names, strict=True)))
    return torch.fx.GraphModule(exported.graph_module, graph), tuple(placeholders.index(named[name]) for name in written)
