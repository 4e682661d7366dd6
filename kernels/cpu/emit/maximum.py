"""Running maxima of exps (online softmax), as the exp-degrees allow (see mirage/mugraph/degree.py).
 A tensor of degree 1 in an exp is kept relative to the maximum of its row. Partial results that cross a
kernel boundary carry their maximum in a companion tensor; the kernel that reads them scales them to a common
maximum first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role, partial_axis

#: C functions of running maxima
RUNNING_MAXIMUM = """\
/* Raises the maxima of n rows to `high`. `shift` is what to subtract from exponents, `factor` what to multiply earlier
 * results by; true if a maximum grew. NaN is no maximum, and a maximum of -inf shifts by nothing. */
static inline int running_maximum(mi_real *maximum, mi_real *shift, mi_real *factor, mi_vec high, int n)
{
    const mi_vec old = mi_load_n(maximum, n), zero = mi_broadcast(0), one = mi_broadcast(1);
    const mi_vec now = mi_max(high, old);
    const mi_ivec grew = now > old;
    mi_store_n(maximum, now, n);
    mi_store_n(shift, mi_select(now == mi_broadcast(-MI_INFINITY), zero, now), n);
    mi_store_n(factor, mi_select(grew, mi_exp_falling(old - now), one), n);
    return mi_hsum(mi_fill_tail(mi_select(grew, one, zero), n, zero)) > 0;
}

/* The same for rows that are seen once, whole. */
static inline void only_maximum(mi_real *maximum, mi_real *shift, mi_vec high, int n)
{
    mi_store_n(maximum, high, n);
    mi_store_n(shift, mi_select(high == mi_broadcast(-MI_INFINITY), mi_broadcast(0), high), n);
}
"""


@dataclass(frozen=True)
class Companion:
    """A kernel-level tensor with the maxima of an exp's rows: written by the kernel of the exp, one per split."""

    site: int
    axes: tuple[str, ...]


def companions(mugraph: MuGraph, maximum: RunningMaximum) -> dict[int, Companion]:
    """Per exp whose partial results leave a kernel that splits an axis, its companion tensor."""
    found: dict[int, Companion] = {}
    for s, site in enumerate(maximum.sites):
        i = site.path[0]
        graph = mugraph.kernel.nodes[i].graph
        if graph is None:
            continue  # a predefined exp sees whole rows
        split = tuple(partial_axis(a) for a, r in graph.roles if r is Role.SPLIT)
        leaves = any(maximum.degree.get(((i,), k), {}).get(s) for k in range(len(graph.outputs)))
        if split and leaves:
            found[s] = Companion(s, (*split, *site.rows))
    return found


@dataclass(frozen=True)
class Rescale:
    """Factors of one exp's partial results in a kernel that reads them: node `node` of its graph, over these axes."""

    node: int
    site: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A block graph ready to print.

    `old` maps its nodes to those of the muGraph; `rescales` are factors to compute first.
    """

    graph: Graph
    old: Mapping[int, int]
    rescales: tuple[Rescale, ...]

    def sites(self, maximum: RunningMaximum, kernel: int) -> dict[int, list[int]]:
        """Node -> its exps (sites of `maximum`) that subtract a maximum; `kernel` is the block's node in the muGraph."""
        new = {o: n for n, o in self.old.items() if not any(r.node == n for r in self.rescales)}
        found: dict[int, list[int]] = {}
        for s, site in enumerate(maximum.sites):
            if site.path[0] == kernel:
                found.setdefault(new[site.path[1]], []).append(s)
        return found


def with_rescaled_inputs(
    mugraph: MuGraph, kernel: int, maximum: RunningMaximum, known: Mapping[int, Companion]
) -> Block:
    """The block graph of a kernel, its degree-1 partial inputs multiplied by factors (inputs of their own)."""
    node = mugraph.kernel.nodes[kernel]
    graph = node.graph
    assert graph is not None
    nodes: list[Node] = []
    new: dict[int, int] = {}
    old: dict[int, int] = {}
    factors: dict[int, Rescale] = {}
    for i, n in enumerate(graph.nodes):
        nodes.append(replace(n, operands=tuple(Ref(new[r.node], r.out) for r in n.operands)))
        new[i] = len(nodes) - 1
        old[new[i]] = i
        if n.op != "input":
            continue
        source = node.operands[n.attr["index"]]
        for s in sorted(maximum.degree.get(((source.node,), source.out), {})):
            # a kernel that computes the exp, or has scaled its parts, hands on whole results
            if s not in known or maximum.sites[s].path[0] != source.node:
                continue
            if s not in factors:
                dims = (tuple((a,) for a in known[s].axes),)
                nodes.append(Node("input", (), dims, (("index", len(node.operands) + len(factors)),)))
                factors[s] = Rescale(len(nodes) - 1, s, known[s].axes)
            nodes.append(Node("mul", (Ref(new[i]), Ref(factors[s].node)), n.dims))
            new[i] = len(nodes) - 1
    outputs = tuple(Ref(new[r.node], r.out) for r in graph.outputs)
    return Block(Graph(graph.level, tuple(nodes), outputs, graph.roles), old, tuple(factors.values()))
