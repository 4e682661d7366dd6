"""Outputs that are views of other values: taken as torch takes them, after the program has run.

Programs give contiguous tensors of their own. What eager mode gives as a view, two names for one memory or strides with gaps, is
a view here as well: the program gives what it is a view of, and the operators that only make views are called of ATen's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


def split_views(graph: torch.fx.GraphModule) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """Take the views at the end of a graph of ATen's operators off it; gives what makes the outputs of the new ones.

    None, and the graph as it was, where no output is a view.
    """
    output = graph.graph.output_node()
    (wanted,) = output.args
    views = _views(wanted)
    if not views:
        return None
    tail = torch.fx.Graph()
    # what the views are of, and sizes that they are made with
    outside = dict.fromkeys(
        m for n in (*graph.graph.nodes,) if n in views or n is output for m in n.all_input_nodes if m not in views
    )
    names = {n: tail.placeholder(n.name) for n in outside}
    for n in graph.graph.nodes:
        if n in views:
            names[n] = tail.node_copy(n, names.__getitem__)
    tail.output(torch.fx.node.map_arg(wanted, names.__getitem__))
    output.args = (tuple(outside),)
    graph.graph.eliminate_dead_code()
    made = torch.fx.GraphModule({}, tail)
    return lambda values: made(*values)


def _views(outputs: Sequence[Any]) -> set[torch.fx.Node]:
    """The nodes that make views of which outputs are made, back to what they are views of."""
    found: set[torch.fx.Node] = set()
    left = [n for n in outputs if isinstance(n, torch.fx.Node)]
    while left:
        n = left.pop()
        if n not in found and is_view(n):
            found.add(n)
            left.append(n.args[0])
    return found


def is_view(n: torch.fx.Node) -> bool:
    """Whether a node only gives its first operand, or parts of it, in another shape."""
    if n.target is operator.getitem:
        return is_view(n.args[0])
    schema = getattr(n.target, "_schema", None)
    if n.op != "call_function" or schema is None or schema.is_mutable:
        return False
    return bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)
