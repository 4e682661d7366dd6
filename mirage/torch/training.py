"""Graphs of which gradients are needed: a forward and a backward graph, each compiled.

AOTAutograd makes both of a graph of Dynamo, as it knows the derivatives of all of PyTorch's operators, and all that PyTorch
says of what is written to, viewed and aliased. What the backward graph needs is kept by the forward graph, or computed again:
torch's `min_cut_rematerialization_partition` decides, by a cut through the joint graph that keeps the least bytes, where products
of matrices, reductions and random numbers are never computed again, but elementwise functions of what is there anyway are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mirage.frontends.aten.decompose import decompositions
from mirage.torch.export import first_line
from mirage.torch.log import FALLBACKS

#: a graph of ATen's operators as a function in AOTAutograd's boxed convention
Boxed = Callable[[list[Any]], Sequence[Any]]


def with_gradients(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compiled: Callable[[torch.fx.GraphModule], Boxed],
    *,
    strict: bool,
) -> Callable[..., Any]:
    """A graph of Dynamo as a function whose results have gradients; `compiled` makes a function of a graph of ATen's operators.

    A graph that it raises an error for runs in eager mode, operator by operator, which is logged; with `strict` the error is
    raised.
    """
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def compiler(which: str) -> Callable[..., Boxed]:
        def compile(g: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
            try:
                return compiled(g)
            except torch._dynamo.exc.RestartAnalysis:
                # Dynamo makes the graph again
                raise
            except Exception as e:
                if strict:
                    raise
                FALLBACKS.warning("a %s graph of %d nodes runs in eager mode: %s", which, len(g.graph.nodes), first_line(e))
                eager: Boxed = make_boxed_func(g.forward)
                return eager

        return compile

    # of the fused attention, the backward operator wants what only the forward operator knows; in terms of others it is compiled
    with sdpa_kernel(SDPBackend.MATH):
        found: Callable[..., Any] = aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
    return found
