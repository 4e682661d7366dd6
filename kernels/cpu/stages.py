"""The stages of a muGraph on the CPU: runs of graph-defined kernels are C functions, runs of predefined kernel
operators are NumPy and BLAS calls (Mirage, section 2: predefined operators at the kernel level are library calls).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.ir.axes import AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.dims import Dim
from mirage.kernels.library import LibraryCalls, Maxima
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph, Ref


@dataclass(frozen=True)
class CodeStage:
    """Consecutive graph-defined kernels: the C function that runs them."""

    function: str


@dataclass(frozen=True)
class LibraryStage:
    """Consecutive predefined kernel operators.

    `reads` are the tensors that the calls take, `writes` pairs of a call's step and the tensor that takes its result.
    """

    calls: LibraryCalls
    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]


def runs(mugraph: MuGraph) -> list[tuple[bool, list[int]]]:
    """The kernel-level operators in order, as runs of one kind: (whether they are graph-defined, their nodes)."""
    nodes = mugraph.kernel.nodes
    operators = [i for i, n in enumerate(nodes) if n.op != "input"]
    return [(defined, list(run)) for defined, run in itertools.groupby(operators, lambda i: nodes[i].op == "graph")]


def library_stage(
    mugraph: MuGraph,
    run: Sequence[int],
    sizes: Mapping[str, Dim],
    maximum: RunningMaximum,
    tensors: Mapping[Ref, int],
    maxima: Mapping[int, tuple[tuple[str, ...], int]],
) -> LibraryStage:
    """The calls for a run of predefined operators.

    `sizes` are those of all axes, partial ones included; `tensors` the numbers of the results so far and of the run's;
    `maxima` (index of an exp -> axes, tensor) the maxima of partial results. Partial results are brought to one
    maximum first, as a graph-defined kernel would do.
    """
    nodes = mugraph.kernel.nodes
    read = list(dict.fromkeys(r for i in run for r in nodes[i].operands if r.node not in run))
    reads = {tensors[r]: nodes[r.node].axes(r.out) for r in read}
    scaled: dict[int, list[Maxima]] = {}
    for k, r in enumerate(read):
        for s in maximum.degree.get(((r.node,), r.out), {}) if maximum.safe else ():
            if s in maxima and maximum.sites[s].path[0] == r.node:
                axes, tensor = maxima[s]
                reads[tensor] = axes
                parts = tuple(a for a in axes if a not in maximum.sites[s].rows)
                scaled.setdefault(k, []).append(Maxima(list(reads).index(tensor), parts))
    inputs = tuple(AxisInput(f"tensor{t}", tuple((a,) for a in axes)) for t, axes in reads.items())
    new = {r: k for k, r in enumerate(read)} | {Ref(i): len(inputs) + k for k, i in enumerate(run)}
    body = [AxisNode("input", (), (("name", x.name),), x.axes) for x in inputs]
    for i in run:
        n = nodes[i]
        body.append(AxisNode(n.op, tuple(new[r] for r in n.operands), n.attrs, n.axes(), n.reduce, n.joined))
    rows = {new[Ref(i)]: [s.rows for s in maximum.sites if s.path == (i,)] for i in run if maximum.safe}
    later = {r for i, n in enumerate(nodes) if i not in run for r in n.operands} | set(mugraph.kernel.outputs)
    outputs = tuple(AxisOutput(new[Ref(i)], nodes[i].dims[0]) for i in run if Ref(i) in later)
    program = AxisProgram(mugraph.name, dict(sizes), inputs, tuple(body), outputs, mugraph.dtype)
    calls = LibraryCalls(program, rows, scaled)
    kept = [Ref(i) for i in run if Ref(i) in later]
    return LibraryStage(
        calls, tuple(reads), tuple((step, tensors[r]) for step, r in zip(calls.outputs, kept, strict=True))
    )
