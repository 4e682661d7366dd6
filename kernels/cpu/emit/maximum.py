"""Running maxima of exps (online softmax), as the exp-degrees allow (see mirage/mugraph/degree.py).
 A tensor of degree 1 in an exp is kept relative to the maximum of its row. Partial results that cross a
kernel boundary carry their maximum in a companion tensor; the kernel that reads them scales them to a common
maximum first. A kernel that takes the log of a sum of another kernel's exps reads the companion tensor, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mirage.kernels.logs import Correction, corrections
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
    """Per exp whose maxima other kernels need, its companion tensor: its partial results leave a kernel that splits an axis, or
    another kernel adds its maximum to the log of a sum of it.
    """
    added = corrections(mugraph.kernel, maximum).items()
    logs = {c.site for path, cs in added for c in cs if maximum.sites[c.site].path[0] != path[0]}
    found: dict[int, Companion] = {}
    for s, site in enumerate(maximum.sites):
        i = site.path[0]
        graph = mugraph.kernel.nodes[i].graph
        if graph is None:
            continue  # a predefined exp sees whole rows
        split = tuple(partial_axis(a) for a, r in graph.roles if r is Role.SPLIT)
        leaves = any(maximum.degree.get(((i,), k), {}).get(s) for k in range(len(graph.outputs)))
        if (split and leaves) or s in logs:
            found[s] = Companion(s, (*split, *site.rows))
    return found


@dataclass(frozen=True)
class Rescale:
    """Factors of one exp's partial results in a kernel that reads them: node `node` of its graph, over these axes."""

    node: int
    site: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Shift:
    """What one exp's exponents were shifted by, per row, where a log adds it again: node `node` of the graph. `own`: whether the
    exp is in the same kernel; else it is the largest of the maxima in the companion tensor.
    """

    node: int
    site: int
    own: bool


@dataclass(frozen=True)
class Block:
    """A block graph ready to print.

    `old` maps its nodes to those of the muGraph; `rescales` are factors to compute first, `shifts` what is added to logs. Both
    are inputs of the graph that the kernel computes itself.
    """

    graph: Graph
    old: Mapping[int, int]
    rescales: tuple[Rescale, ...]
    shifts: tuple[Shift, ...]

    @cached_property
    def computed(self) -> frozenset[int]:
        """The inputs of the graph that no tensor holds."""
        return frozenset([*(r.node for r in self.rescales), *(x.node for x in self.shifts)])

    def sites(self, maximum: RunningMaximum, kernel: int) -> dict[int, list[int]]:
        """Node -> its exps (sites of `maximum`) that subtract a maximum; `kernel` is the block's node in the muGraph."""
        new = {o: n for n, o in self.old.items()}
        found: dict[int, list[int]] = {}
        for s, site in enumerate(maximum.sites):
            if site.path[0] == kernel:
                found.setdefault(new[site.path[1]], []).append(s)
        return found


def with_maxima(mugraph: MuGraph, kernel: int, maximum: RunningMaximum, known: Mapping[int, Companion]) -> Block:
    """The block graph of a kernel with what its maxima make of it: its degree-1 partial inputs are multiplied by factors, and to
    its logs of sums of exps is added what was subtracted from the exponents.
    """
    node = mugraph.kernel.nodes[kernel]
    assert node.graph is not None
    added = {path[1]: cs for path, cs in corrections(mugraph.kernel, maximum).items() if path[0] == kernel}
    return _Prepared(node, node.graph, kernel, maximum, known, added).block()


class _Prepared:
    def __init__(
        self,
        node: Node,
        graph: Graph,
        kernel: int,
        maximum: RunningMaximum,
        known: Mapping[int, Companion],
        added: Mapping[int, Sequence[Correction]],
    ) -> None:
        self.node = node
        self.graph = graph
        self.kernel = kernel
        self.maximum = maximum
        self.known = known
        self.added = added
        self.nodes: list[Node] = []
        self.new: dict[int, int] = {}
        self.old: dict[int, int] = {}
        self.factors: dict[int, Rescale] = {}
        #: by site, and what a log is taken of
        self.shifts: dict[tuple[int, int | None], Shift] = {}

    def block(self) -> Block:
        for i, n in enumerate(self.graph.nodes):
            operands = [self.new[r.node] for r in n.operands]
            for c in self.added.get(i, ()):
                if c.operand is not None:
                    operands[c.operand] = self._corrected(operands[c.operand], c)
            refs = tuple(Ref(j, r.out) for j, r in zip(operands, n.operands, strict=True))
            self.new[i] = self._add(replace(n, operands=refs))
            self.old[self.new[i]] = i
            for c in self.added.get(i, ()):
                if c.operand is None:
                    self.new[i] = self._corrected(self.new[i], c)
            if n.op == "input":
                self._rescale(i, n)
        outputs = tuple(Ref(self.new[r.node], r.out) for r in self.graph.outputs)
        graph = Graph(self.graph.level, tuple(self.nodes), outputs, self.graph.roles)
        return Block(graph, self.old, tuple(self.factors.values()), tuple(self.shifts.values()))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _input(self, axes: tuple[str, ...], after: tuple[Ref, ...] = ()) -> int:
        """One more input, which is there after these nodes."""
        index = len(self.node.operands) + len(self.factors) + len(self.shifts)
        return self._add(Node("input", after, (tuple((a,) for a in axes),), (("index", index),)))

    def _corrected(self, i: int, c: Correction) -> int:
        """A node that adds to another one what a log lacks."""
        key = c.site, c.argument
        if key not in self.shifts:
            site = self.maximum.sites[c.site]
            made = self._input(site.rows, () if c.argument is None else (Ref(self.new[c.argument]),))
            self.shifts[key] = Shift(made, c.site, site.path[0] == self.kernel)
        shift = self.shifts[key].node
        dims = self.nodes[i].dims[0]
        missing = tuple((a,) for a in self.nodes[shift].axes() if a not in self.nodes[i].axes())
        for _ in range(abs(c.times)):
            i = self._add(Node("add" if c.times > 0 else "sub", (Ref(i), Ref(shift)), ((*dims, *missing),)))
        return i

    def _rescale(self, i: int, n: Node) -> None:
        """Bring an input to the largest maximum of its parts."""
        source = self.node.operands[n.attr["index"]]
        for s in sorted(self.maximum.degree.get(((source.node,), source.out), {})):
            # a kernel that computes the exp, or has scaled its parts, hands on whole results
            if s not in self.known or self.maximum.sites[s].path[0] != source.node:
                continue
            if not set(self.known[s].axes).difference(self.maximum.sites[s].rows):
                continue  # one part
            if s not in self.factors:
                self.factors[s] = Rescale(self._input(self.known[s].axes), s, self.known[s].axes)
            self.new[i] = self._add(Node("mul", (Ref(self.new[i]), Ref(self.factors[s].node)), n.dims))
