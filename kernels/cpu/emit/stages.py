"""The stages of a muGraph on the CPU: runs of graph-defined kernels are C functions, runs of predefined kernel
operators are NumPy and BLAS calls (Mirage, section 2: predefined operators at the kernel level are library calls).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.ir.axes import AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.dims import Dim
from mirage.kernels.library_calls import Added, LibraryCalls, Maxima
from mirage.kernels.logs import Correction, corrections
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph, Ref


@dataclass(frozen=True)
class CodeStage:
    """Consecutive graph-defined kernels: the C function that runs them."""

    function: str


@dataclass(frozen=True)
class Write:
    """A tensor that takes the result of a step, its dims in the order `perm` where those of the result differ."""

    step: int
    tensor: int
    perm: tuple[int, ...] | None

    def view(self, array: np.ndarray) -> np.ndarray:
        """The tensor's array as one over the axes of the step's result."""
        return array if self.perm is None else array.transpose(self.perm)


@dataclass(frozen=True)
class LibraryStage:
    """Consecutive predefined kernel operators.

    `reads` are (step, tensor) of what the calls take. They compute `writes` in place; `copies` are inputs, scalars and
    what another tensor holds too.
    """

    calls: LibraryCalls
    reads: tuple[tuple[int, int], ...]
    writes: tuple[Write, ...]
    copies: tuple[Write, ...]

    def tensors(self) -> set[int]:
        """The tensors that the stage reads or writes."""
        return {t for _, t in self.reads} | {w.tensor for w in (*self.writes, *self.copies)}

    def run(self, values: list[Any], extents: Mapping[str, int], memory: Sequence[np.ndarray]) -> None:
        """Run the calls on the tensors' arrays, one dim per axis; `values` is a copy of `LibraryCalls.values`."""
        for step, t in self.reads:
            values[step] = memory[t]
        self.calls.run(values, extents, {w.step: w.view(memory[w.tensor]) for w in self.writes})
        for w in self.copies:
            w.view(memory[w.tensor])[...] = values[w.step]


def runs(mugraph: MuGraph, once: Collection[int] = ()) -> list[tuple[bool, list[int]]]:
    """The kernel-level operators in order, as runs of one kind: (whether they are graph-defined, their nodes); without those that
    are computed `once`.
    """
    nodes = mugraph.kernel.nodes
    operators = [i for i, n in enumerate(nodes) if n.op != "input" and i not in once]
    groups = itertools.groupby(operators, lambda i: nodes[i].op == "graph")
    return [(defined, list(run)) for defined, run in groups]


def computed_once(mugraph: MuGraph, constants: Collection[str], maximum: RunningMaximum) -> frozenset[int]:
    """The kernel-level operators that follow from constant arguments alone, and whose results only other operators read, with the
    numbers that nothing else needs.

    Not those of exps whose maximum goes along with their results.
    """
    nodes = mugraph.kernel.nodes
    if any(nodes[maximum.sites[s].path[0]].graph is None for degree in maximum.logs.values() for s in degree):
        return frozenset()  # a log and its exps are in one run of library calls
    shifted = {s.path[0] for s in maximum.sites}
    results = {r.node for r in mugraph.kernel.outputs}
    fixed: dict[int, bool | None] = {}
    for i, n in enumerate(nodes):
        if n.op == "input":
            fixed[i] = mugraph.inputs[n.attr["index"]].argument in constants
        elif n.op in ("constant", "size"):
            # what needs nothing is no reason
            fixed[i] = None if i not in results else False
        else:
            below = [fixed[r.node] for r in n.operands]
            fixed[i] = i not in shifted | results and True in below and False not in below
    once = {i for i, found in fixed.items() if found and nodes[i].op != "input"}
    # a number that nothing else reads goes along
    read = {r.node for i, n in enumerate(nodes) if i not in once for r in n.operands} | results
    return frozenset(once | {i for i, found in fixed.items() if found is None and i not in read})


def library_stage(
    mugraph: MuGraph,
    run: Sequence[int],
    sizes: Mapping[str, Dim],
    maximum: RunningMaximum,
    tensors: Mapping[Ref, int],
    maxima: Mapping[int, tuple[tuple[str, ...], int]],
    plan: Callable[..., LibraryCalls] = LibraryCalls,
) -> LibraryStage:
    """The calls for a run of predefined operators.

    `sizes` are those of all axes, partial ones included; `tensors` the numbers of the results so far and of the run's;
    `maxima` (index of an exp -> axes, tensor) the maxima of partial results. Partial results are brought to one
    maximum first, as a graph-defined kernel would do. `plan` makes the calls.
    """
    nodes = mugraph.kernel.nodes
    read = list(dict.fromkeys(r for i in run for r in nodes[i].operands if r.node not in run))
    reads = {tensors[r]: nodes[r.node].axes(r.out) for r in read}

    def parts(s: int) -> Maxima:
        axes, tensor = maxima[s]
        reads[tensor] = axes
        return Maxima(list(reads).index(tensor), tuple(a for a in axes if a not in maximum.sites[s].rows))

    scaled: dict[int, list[Maxima]] = {}
    for k, r in enumerate(read):
        for s in maximum.degree.get(((r.node,), r.out), {}):
            if s in maxima and maximum.sites[s].path[0] == r.node:
                if (found := parts(s)).parts:
                    scaled.setdefault(k, []).append(found)
    lacking = {path[0]: cs for path, cs in corrections(mugraph.kernel, maximum).items() if len(path) == 1}
    lacks = {s: parts(s) for i in run for _, s, *_ in lacking.get(i, ()) if s in maxima}
    stored = {
        tensors[r]: mugraph.inputs[nodes[r.node].attr["index"]].dtype for r in read if nodes[r.node].op == "input"
    }
    inputs = tuple(
        AxisInput(f"tensor{t}", tuple((a,) for a in axes), dtype=stored.get(t, "")) for t, axes in reads.items()
    )
    new = {r: k for k, r in enumerate(read)} | {Ref(i): len(inputs) + k for k, i in enumerate(run)}
    body = [AxisNode("input", (), (("name", x.name),), x.axes) for x in inputs]
    for i in run:
        n = nodes[i]
        body.append(AxisNode(n.op, tuple(new[r] for r in n.operands), n.attrs, n.axes(), n.reduce, n.joined))
    rows = {new[Ref(i)]: [s.rows for s in maximum.sites if s.path == (i,)] for i in run}
    later = {r for i, n in enumerate(nodes) if i not in run for r in n.operands} | set(mugraph.kernel.outputs)
    outputs = tuple(AxisOutput(new[Ref(i)], nodes[i].dims[0]) for i in run if Ref(i) in later)
    program = AxisProgram(mugraph.name, dict(sizes), inputs, tuple(body), outputs, mugraph.dtype)

    def added(c: Correction) -> Added:
        path = maximum.sites[c.site].path
        exps = [s for s, site in enumerate(maximum.sites) if site.path == path]
        return Added(c.operand, lacks.get(c.site) or (new[Ref(path[0])], exps.index(c.site)), c.times)

    calls = plan(program, rows, scaled, {new[Ref(i)]: [added(c) for c in lacking.get(i, ())] for i in run})
    writes: dict[int, Write] = {}
    copies: list[Write] = []
    for step, r in zip(calls.outputs, (Ref(i) for i in run if Ref(i) in later), strict=True):
        own, order = nodes[r.node].axes(), calls.axes(step)
        # a scalar fills an array of any axes
        perm = None if own == order or not order else tuple(own.index(a) for a in order)
        write = Write(step, tensors[r], perm)
        if calls.computes(step) and step not in writes:
            writes[step] = write
        else:
            copies.append(write)
    taken = zip(calls.inputs, reads, strict=True)
    return LibraryStage(calls, tuple(taken), tuple(writes.values()), tuple(copies))
