"""A group of operators as two graph-defined kernels: where reductions follow matmuls, the matmuls come first.

In one kernel, a norm after a matmul leaves blocks nothing to divide but rows. With many rows that is best, as nothing goes
through memory in between; with one row, all but one thread would wait. Both forms are versions of one fused kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from mirage.compiler.fused_graph import fused_graphs
from mirage.ir.axes import AxisDims, AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.dims import symbols_of
from mirage.ir.operator import PRODUCTS, REDUCTIONS
from mirage.kernels.separate import with_separate_exps
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Node, Ref
from mirage.mugraph.reference import reference_graph
from mirage.search.assemble import single_dims

#: forms of each kernel that are combined
_FORMS = 2


def staged_graphs(program: AxisProgram) -> Iterator[MuGraph]:
    """The forms of a program as two kernels: matmuls with what elementwise operators follow them, then the reductions of
    their results and all else. None where no reduction follows a matmul, where what is handed on grows with sizes that no
    argument or result has together (as the scores of attention do), or where a half has no form as one kernel.
    """
    separate = with_separate_exps(program)
    kept = _handed_on(separate)
    stored = [*(x.dims for x in program.inputs), *(o.dims for o in program.outputs)]
    known = [_symbols(program, [a for d in dims for a in d]) for dims in stored]
    handed_on = [_symbols(program, separate.nodes[i].axes) for i in kept]
    if not kept or not all(any(own <= other for other in known) for own in handed_on):
        return
    allowed = len(analyze(reference_graph(separate)).plain)
    for first in islice(fused_graphs(_first(separate, kept)), _FORMS):
        (matmuls,) = first.kernels
        for second in islice(fused_graphs(_second(separate, kept, matmuls.dims)), _FORMS):
            graph = _joined(program, first, second)
            if len(analyze(graph).plain) <= allowed:
                yield graph


def _symbols(program: AxisProgram, axes: Sequence[str]) -> set[str]:
    return {s for a in axes for s in symbols_of(program.axes[a])}


def _handed_on(program: AxisProgram) -> list[int]:
    """Values that depend on a matmul and that a reduction of such values reads, itself or what elementwise operators make of
    them; none where the second kernel would have nothing to do.
    """
    nodes = program.nodes
    product: set[int] = set()
    second: set[int] = set()
    for i, n in enumerate(nodes):
        # an exponent's maximum is that of a row, which the second kernel has
        after = (n.op in REDUCTIONS or n.op == "exp") and any(j in product for j in n.operands)
        if after or any(j in second for j in n.operands):
            second.add(i)
        if n.op in PRODUCTS or any(j in product for j in n.operands):
            product.add(i)
    read = {j for i in second for j in nodes[i].operands} | {o.value for o in program.outputs}
    found = {i for i in read if i in product and i not in second}
    # what follows from others that are handed on is not
    for i in sorted(found, reverse=True):
        n = nodes[i]
        elementwise = n.op not in REDUCTIONS and n.joined is None
        if elementwise and all(j in found or nodes[j].op in ("input", "constant", "size") for j in n.operands):
            found.discard(i)
    return sorted(found) if second else []


def _first(program: AxisProgram, kept: list[int]) -> AxisProgram:
    """The program of the values that the first kernel hands on, in the dims of outputs where they are such."""
    dims = {o.value: o.dims for o in program.outputs}
    outputs = []
    for i in kept:
        axes = program.nodes[i].axes
        own = dims.get(i, ())
        whole = {a for d in own for a in d} == set(axes)
        outputs.append(AxisOutput(i, own if whole else single_dims(axes)))
    return _pruned(replace(program, outputs=tuple(outputs)))


def _pruned(program: AxisProgram) -> AxisProgram:
    """The program with its inputs, and without other nodes that no output needs: kernels would be planned for them."""
    needed = {o.value for o in program.outputs} | {i for i, n in enumerate(program.nodes) if n.op == "input"}
    for i in range(len(program.nodes) - 1, -1, -1):
        if i in needed:
            needed.update(program.nodes[i].operands)
    new = {i: k for k, i in enumerate(sorted(needed))}
    nodes = tuple(replace(program.nodes[i], operands=tuple(new[j] for j in program.nodes[i].operands)) for i in new)
    return replace(program, nodes=nodes, outputs=tuple(replace(o, value=new[o.value]) for o in program.outputs))


def _second(program: AxisProgram, kept: list[int], dims: tuple[AxisDims, ...]) -> AxisProgram:
    """The program that reads what was handed on, stored with these dims, as inputs after its own."""
    taken = {x.name for x in program.inputs}
    given = [AxisInput(_unused(f"kept{i}", taken), d) for i, d in zip(kept, dims, strict=True)]
    reads = [n for n in program.nodes if n.op == "input"]
    reads += [
        AxisNode("input", (), (("name", x.name),), program.nodes[i].axes) for i, x in zip(kept, given, strict=True)
    ]
    own = [i for i, n in enumerate(program.nodes) if n.op == "input"]
    new = {i: k for k, i in enumerate([*own, *kept])}
    nodes = list(reads)
    for i, n in enumerate(program.nodes):
        if i not in new:
            new[i] = len(nodes)
            nodes.append(replace(n, operands=tuple(new[j] for j in n.operands)))
    outputs = tuple(replace(o, value=new[o.value]) for o in program.outputs)
    return _pruned(replace(program, inputs=(*program.inputs, *given), nodes=tuple(nodes), outputs=outputs))


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _joined(program: AxisProgram, first: MuGraph, second: MuGraph) -> MuGraph:
    """The muGraph of both kernels; the inputs of the second after the program's own are the results of the first."""
    count = len(program.inputs)
    nodes: list[Node] = [*first.kernel.nodes[:count], *first.kernels]
    new = {Ref(k): Ref(k) for k in range(count)}
    new |= {Ref(count + k): Ref(count, r.out) for k, r in enumerate(first.kernel.outputs)}
    for i, n in enumerate(second.kernel.nodes[len(second.inputs) :], len(second.inputs)):
        new |= {Ref(i, k): Ref(len(nodes), k) for k in range(len(n.dims))}
        nodes.append(replace(n, operands=tuple(new[r] for r in n.operands)))
    outputs = tuple(new[r] for r in second.kernel.outputs)
    kernel = replace(second.kernel, nodes=tuple(nodes), outputs=outputs)
    origin = f"{first.origin}; {second.origin}"
    return MuGraph(program.name, dict(program.axes), program.inputs, kernel, program.outputs, program.dtype, origin)
