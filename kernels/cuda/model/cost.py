"""The cost model of Triton kernels: microseconds of a muGraph with a schedule on a CUDA device (see `estimate.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from mirage.ir.operator import PRODUCTS, reduced_axes
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.model.cost import KernelWork
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.model.estimate import START_US, Counter, Estimate
from mirage.kernels.cuda.schedules.choices import Choices
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role


class CudaModel:
    """Estimates the time of kernels of a muGraph's element type on a device."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._work: dict[Node, KernelWork] = {}
        #: the same by the identity of nodes: equal ones are compared once
        self._same: dict[int, tuple[Node, KernelWork]] = {}
        #: microseconds of kernels that graphs share, by the work's identity and all that they depend on
        self._known: dict[tuple[object, ...], float] = {}

    def work(self, node: Node) -> KernelWork:
        """What the kernel does; graphs share kernels, so it is remembered."""
        if id(node) not in self._same:
            found = self._work.get(node)
            if found is None:
                found = self._work[node] = KernelWork.of(node)
            self._same[id(node)] = node, found
        return self._same[id(node)][1]

    def kernel(
        self,
        work: KernelWork,
        choices: Choices,
        sizes: Mapping[str, int],
        dtype: str,
        warm: Collection[int] = (),
        compiled: CompiledKernel | None = None,
        inner: Mapping[int, str] | None = None,
    ) -> Estimate:
        """The estimates of candidates of a kernel, at sizes of the muGraph's axes; `warm` are the inputs (by number) that an
        earlier kernel has written, `inner` the innermost axes of those that it stored in a layout of its own. What `compiled`
        says of shared memory and registers is taken for the model's guess.
        """
        return Counter(self.device, work, choices, sizes, dtype, warm, inner or {}).estimate(compiled)

    def describable(
        self, work: KernelWork, choices: Choices, sizes: Mapping[str, int], dtype: str, inner: Mapping[int, str] | None = None
    ) -> tuple[int, ...]:
        """The operands and then the results that the first candidate can have tensor descriptors of."""
        return Counter(self.device, work, choices, sizes, dtype, (), inner or {}).describable(0)

    def us(
        self,
        mugraph: MuGraph,
        schedule: CudaSchedule,
        sizes: Mapping[str, int],
        compiled: Sequence[CompiledKernel] = (),
    ) -> float:
        """Microseconds of a call at these sizes of the dim symbols; infinite where the schedule does not serve them. `compiled`
        are its kernels, where they have been compiled.
        """
        table = schedule.plain.axis_sizes(mugraph, sizes)
        schedules, kernels = iter(schedule.kernels), iter(compiled)
        inner: dict[Ref, str] = {}
        total = 0.0
        for i, node in enumerate(mugraph.kernel.nodes):
            if node.graph is not None:
                s = next(schedules)
                warm, own = warm_inputs(mugraph, node), next(kernels, None)
                laid = {k: inner[r] for k, r in enumerate(node.operands) if r in inner}
                inner |= {Ref(i, out): a for out, a in s.layouts}
                total += self._kernel_us(node, s, table, mugraph.dtype, warm, own, laid)
            elif node.op not in ("input", "constant", "size"):
                total += self.predefined(mugraph, node, table)
        return total

    def _kernel_us(
        self,
        node: Node,
        s: CudaKernelSchedule,
        table: Mapping[str, int],
        dtype: str,
        warm: frozenset[int],
        compiled: CompiledKernel | None,
        inner: Mapping[int, str],
    ) -> float:
        work = self.work(node)
        axes = {a for a, _ in work.graph.roles} | {a for k in range(len(node.dims)) for a in node.axes(k)}
        sizes = tuple((a, table[a]) for a in sorted(axes) if a in table)
        key = id(work), s, sizes, dtype, warm, compiled and compiled.folder, tuple(inner.items())
        if key not in self._known:
            found = self.kernel(work, Choices.of(s), table, dtype, warm, compiled, inner)
            self._known[key] = float(found.us[0])
        return self._known[key]

    def library_us(self, mugraph: MuGraph, schedule: CudaSchedule, sizes: Mapping[str, int]) -> float:
        """The part of `us` that predefined operators take."""
        table = schedule.plain.axis_sizes(mugraph, sizes)
        nodes = (n for n in mugraph.kernel.nodes if n.graph is None and n.op not in ("input", "constant", "size"))
        return sum(self.predefined(mugraph, n, table) for n in nodes)

    def predefined(self, mugraph: MuGraph, node: Node, sizes: Mapping[str, int]) -> float:
        """Microseconds of a predefined operator, as a library's kernel that reaches what large sizes sustain."""
        d, nodes = self.device, mugraph.kernel.nodes
        operands = [nodes[r.node].axes(r.out) for r in node.operands]
        volume = sum(prod(sizes[a] for a in axes) for axes in (*operands, node.axes()))
        flops = 0
        for (x, y), over in zip(PRODUCTS.get(node.op, ()), reduced_axes(node.op, operands, node.reduce), strict=False):
            flops += 2 * prod(sizes[a] for a in {*operands[x], *operands[y], *over})
        moved_s = volume * DTYPES[mugraph.dtype].itemsize / d.sustained_bandwidth
        return 1e6 * (d.launch_s + max(moved_s, flops / d.sustained_flops(mugraph.dtype))) + START_US


def held_whole(graph: Graph) -> frozenset[str]:
    """Axes that a tensor of a block holds whole: whole ones, and loop axes along which an accumulator concatenates, unless all
    that becomes of its pieces is that they are stored.
    """
    found = {a for a, role in graph.roles if role is Role.WHOLE}
    shifted = any(n.op == "exp" for n in graph.nodes)
    for i, n in enumerate(graph.nodes):
        if n.op == "accumulator" and n.attr["mode"] == "concat":
            read = any(r.node == i for m in graph.nodes for r in m.operands)
            if read or shifted or graph.summed_loops(i):
                found.add(n.attr["axis"])
    return frozenset(found)


def warm_inputs(mugraph: MuGraph, node: Node) -> frozenset[int]:
    """The inputs of a kernel, by number, that an earlier kernel of its muGraph has written."""
    nodes = mugraph.kernel.nodes
    return frozenset(k for k, r in enumerate(node.operands) if nodes[r.node].op != "input")


def floor_us(device: CudaDevice, moved: float, flops: float, dtype: str) -> float:
    """The least time (us) in which a device moves so many bytes and does so many operations, at the rates it sustains."""
    return 1e6 * max(moved / device.sustained_bandwidth, flops / device.sustained_flops(dtype))
