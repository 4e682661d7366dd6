"""Tiles of masked scores that need not be computed, as causal attention has them for half of its keys.

An exponent is a sum of terms, x * s + m say, where x takes a product of matrices, and s and m do not. Where s is 0, or m is -inf,
it is m, whatever x is (a finite number); and where m is less than the row's final maximum by more than any exp can tell from 0,
nothing of it reaches a sum of exps. So a tile is passed over in which each element is hidden in the first sense, with m low. The
largest m of what was passed over is kept per row: should a row's maximum turn out to be too near to it, as that of a row in which
everything is hidden, the cell is computed again, with all tiles.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirage.mugraph.graph import Graph
from mirage.mugraph.thread import is_elementwise

#: what is added to hidden scores at most: higher ones may be as large as others, and would be computed twice. Programs write
#: -inf, the lowest number of a type, or powers of ten from -1e4 on
LOW = -1000
#: by how much an exponent is below another one whose exp it does not change, by bytes of the type that is computed in
FAR = {4: 104, 8: 746}


def hidden_functions(itemsize: int) -> str:
    """C functions of tiles that are passed over."""
    return f"""\
/* What hides exponents, or +inf for those that are seen: which are hidden if `term` is so low, and what they are then. */
static inline mi_vec hidden_by(mi_ivec hidden, mi_vec term)
{{
    const mi_ivec low = (hidden | (term == mi_broadcast(-MI_INFINITY))) & (term <= mi_broadcast({LOW}));
    return mi_select(low, term, mi_broadcast(MI_INFINITY));
}}

/* Whether the maximum of one of n rows is so near to what was hidden that this counts. */
static inline int counts(mi_vec maximum, mi_vec hidden, int n)
{{
    const mi_vec zero = mi_broadcast(0), one = mi_broadcast(1);
    const mi_vec near = mi_select(maximum < hidden + mi_broadcast({FAR[itemsize]}), one, zero);
    return mi_hsum(mi_fill_tail(near, n, zero)) > 0;
}}
"""


@dataclass(frozen=True)
class Terms:
    """An exponent as a sum of terms, by nodes of a block graph.

    `factors`: per term that takes a product of matrices, or a sum, its factors that take none. `added`: the other terms, each
    with whether it is subtracted. These are computed from `inputs` by the elementwise nodes `members`, in order; `axes` are
    those of all.
    """

    factors: tuple[tuple[int, ...], ...]
    added: tuple[tuple[bool, int], ...]
    inputs: tuple[int, ...]
    members: tuple[int, ...]
    axes: frozenset[str]


def find_terms(graph: Graph, exponent: int) -> Terms | None:
    """The terms of an exponent; None where nothing is added that varies with the for-loop, or nothing is saved."""
    return _Reader(graph).read(exponent)


def mask_axes(graph: Graph) -> frozenset[str]:
    """The axes of what may hide tiles of all exponents in the for-loop; none where there is no such thing."""
    exps = [n for i, n in enumerate(graph.nodes) if n.op == "exp" and i in graph.in_loop]
    terms = [find_terms(graph, n.operands[0].node) for n in exps] if len(graph.loop) == 1 else []
    axes = [t.axes if t is not None else frozenset[str]() for t in terms]
    return frozenset.intersection(*axes) if axes else frozenset()


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.light: set[int] = set()
        for i, n in enumerate(graph.nodes):
            made = is_elementwise(n) and all(r.node in self.light for r in n.operands)
            if n.op in ("input", "constant", "size") or made:
                self.light.add(i)
        self.factors: list[tuple[int, ...]] = []
        self.added: list[tuple[bool, int]] = []

    def read(self, exponent: int) -> Terms | None:
        self._terms(exponent, False)
        needed = self._needed({*(i for f in self.factors for i in f), *(i for _, i in self.added)})
        axes = frozenset(a for i in needed for a in self.graph.nodes[i].axes())
        if not self.factors or not self.added or not axes & set(self.graph.loop):
            return None
        members = tuple(i for i in sorted(needed) if self.graph.nodes[i].operands)
        inputs = tuple(i for i in sorted(needed) if self.graph.nodes[i].op == "input")
        return Terms(tuple(self.factors), tuple(self.added), inputs, members, axes)

    def _terms(self, i: int, subtracted: bool) -> None:
        n = self.graph.nodes[i]
        if i in self.light:
            self.added.append((subtracted, i))
        elif n.op in ("add", "sub", "neg"):
            for k, r in enumerate(n.operands):
                self._terms(r.node, subtracted != (n.op == "neg" or (n.op == "sub" and k == 1)))
        else:
            self.factors.append(tuple(self._factors(i)))

    def _factors(self, i: int) -> list[int]:
        """Nodes of which each is 0 only where node i is."""
        n = self.graph.nodes[i]
        if i in self.light:
            return [i] if n.axes() else []
        if n.op not in ("mul", "div", "neg"):
            return []
        return [f for r in (n.operands if n.op == "mul" else n.operands[:1]) for f in self._factors(r.node)]

    def _needed(self, nodes: Collection[int]) -> set[int]:
        found, queue = set(nodes), list(nodes)
        while queue:
            new = {r.node for r in self.graph.nodes[queue.pop()].operands} - found
            found |= new
            queue += new
        return found
