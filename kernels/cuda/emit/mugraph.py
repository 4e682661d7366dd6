"""A muGraph and its schedule as Triton source (Mirage, section 2: grid, for-loop and block tensors).

One Triton function per graph-defined kernel computes a cell of its grid. Axis sizes and strides are arguments, so that the
code serves every shape that the schedule has room for; literal sizes are constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import sympy

from mirage.errors import DTypeError
from mirage.ir.axes import AxisDims, stored_dtypes
from mirage.ir.dims import Dim, ceil_div
from mirage.ir.types import DTYPES, ELEMENTS, between_dtype, compute_dtype
from mirage.kernels.cpu.emit.layout import c_names
from mirage.kernels.cpu.emit.maximum import Companion, companions, with_maxima
from mirage.kernels.cuda.emit.algebra import FunctionSources
from mirage.kernels.cuda.emit.block import BlockEmitter
from mirage.kernels.cuda.emit.descriptors import describable
from mirage.kernels.cuda.emit.plan import Program, Tensor
from mirage.kernels.cuda.emit.writer import Writer, comment_text, without_unused, words
from mirage.kernels.cuda.emitted import (
    DIVISIBILITY,
    Argument,
    ArgumentKind,
    Described,
    DeviceOutput,
    DeviceTensor,
    EmittedTriton,
    PackedInput,
    PredefinedStep,
    TritonKernel,
)
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.decision import Limit
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph, Ref, Role, partial_axis
from mirage.mugraph.thread import inline_threads

_ONE = sympy.Integer(1)


class Emitter:
    """Plans all kernels of a muGraph for one schedule.

    Raises ScheduleError if the schedule does not fit the muGraph, DTypeError for types that Triton kernels do not compute
    with, and GraphError for nodes that this backend does not print.
    """

    def __init__(self, mugraph: MuGraph, schedule: CudaSchedule, maximum: RunningMaximum) -> None:
        schedule.check(mugraph)
        self.storage = DTYPES[mugraph.dtype]
        self.real = compute_dtype(self.storage)
        if self.real.itemsize != 4:
            raise DTypeError(f"{mugraph.name}: {mugraph.dtype} has no CUDA kernels; use float32, float16 or bfloat16")
        if any(n.graph for k in mugraph.kernels if k.graph for n in k.graph.nodes):
            mugraph = _without_threads(mugraph)
            maximum = analyze(mugraph)  # paths into thread graphs have changed
        self.mugraph = mugraph
        self.schedule = schedule
        self.sizes = _all_sizes(mugraph, schedule)
        self.functions = FunctionSources()
        self.dims = self._dims()
        self.program = Program(c_names(self.sizes), self.sizes, self.dims, self.functions, maximum, self.storage)
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        #: (input, innermost axis) -> its copy
        self.packed: dict[tuple[int, str], Tensor] = {}
        self.kernels: list[BlockEmitter] = []
        self.steps: list[TritonKernel | PredefinedStep] = []
        self.bodies: list[list[str]] = []

    def _dims(self) -> dict[Dim, str]:
        """A name for every dim of no literal size that kernels compute with."""
        graphs = [n.graph for n in self.mugraph.kernels if n.graph is not None]
        found = dict.fromkeys(n.attr["dim"] for g in graphs for n in g.nodes if n.op == "size")
        return {d: f"d_{k}" for k, d in enumerate(d for d in found if not d.is_Integer)}

    def _tensor(self, name: str, dims: AxisDims, dtype: np.dtype, contiguous: bool = True) -> Tensor:
        unit = max((k for k, d in enumerate(dims) if d), default=-1)
        literal: dict[str, int] = {}
        if contiguous:
            axes = [a for d in dims for a in d]
            strides = {a: prod((self.sizes[b] for b in axes[k + 1 :]), start=_ONE) for k, a in enumerate(axes)}
            literal = {a: int(s) for a, s in strides.items() if s.is_Integer}
        self.tensors.append(Tensor(len(self.tensors), dims, dtype, unit, literal))
        self.names.append(name)
        return self.tensors[-1]

    def _result(self, r: Ref) -> Tensor:
        """A new tensor for the result of a kernel or predefined operator; a result of the program is in its order."""
        node = self.mugraph.kernel.nodes[r.node]
        axes = node.axes(r.out)
        name = f"v{r.node}" if len(node.dims) == 1 else f"v{r.node}_{r.out}"
        outputs = self.mugraph.kernel.outputs
        if r in outputs:
            order = [a for d in self.mugraph.outputs[outputs.index(r)].dims for a in d]
            axes = tuple(sorted(axes, key=order.index)) if set(axes) <= set(order) else axes
            return self._tensor(name, tuple((a,) for a in axes), self.storage)
        number = [k for k, m in enumerate(self.mugraph.kernels) if m is node]
        layouts = dict(self.schedule.kernels[number[0]].layouts) if number else {}
        if (inner := layouts.get(r.out)) is not None:
            axes = (*(a for a in axes if a != inner), inner)
        # partial results are not rounded before they are put together
        partial = not self.mugraph.axes.keys() >= set(axes)
        return self._tensor(name, tuple((a,) for a in axes), self.real if partial else between_dtype(self.storage))

    def emit(self) -> EmittedTriton:
        """Print the Triton source."""
        mugraph, nodes = self.mugraph, self.mugraph.kernel.nodes
        stored = zip(mugraph.inputs, stored_dtypes(mugraph.inputs, mugraph.dtype), strict=True)
        given = [self._tensor(x.name, x.dims, t, contiguous=False) for x, t in stored]
        values = {Ref(i): given[n.attr["index"]] for i, n in enumerate(nodes) if n.op == "input"}
        known = companions(mugraph, self.program.maximum)
        carried: dict[int, tuple[Companion, Tensor]] = {}
        limits: list[Limit] = []
        for i, n in enumerate(nodes):
            if n.op in ("input", "constant", "size"):
                continue
            values.update({r: self._result(r) for r in (Ref(i, k) for k in range(len(n.dims)))})
            if n.op == "graph":
                self._kernel(i, known, values, carried)
                limits += [Limit(a, value, most) for a, (value, most) in self.kernels[-1].limits.items()]
            else:
                reads = tuple(values[r].index if r in values else -1 for r in n.operands)
                maxima = tuple((s, t.index) for s, (_, t) in carried.items())
                self.steps.append(PredefinedStep(i, reads, values[Ref(i)].index, maxima))
        outputs = tuple(
            DeviceOutput(values[r].index, o.dims, tuple(self._size(d) for d in o.dims))
            for r, o in zip(mugraph.kernel.outputs, mugraph.outputs, strict=True)
        )
        return EmittedTriton(
            self._source(),
            tuple(self.steps),
            tuple(self._device_tensor(t) for t in self.tensors),
            len(given),
            outputs,
            tuple(dict.fromkeys(limits)),
            self.sizes,
            tuple(PackedInput(i, t.index) for (i, _), t in self.packed.items()),
            tuple(d for k in self.kernels for d in self._described_by(k)),
            self._fallback(),
            self.schedule.library,
        )

    def _fallback(self) -> EmittedTriton | None:
        plain = self.schedule.without_descriptors
        return None if plain == self.schedule else Emitter(self.mugraph, plain, self.program.maximum).emit()

    def _described_by(self, kernel: BlockEmitter) -> Iterator[Described]:
        """What descriptors of a kernel ask of its tensors."""
        for tensor, descriptor in kernel.described.values():
            strides = []
            for k, d in enumerate(tensor.dims):
                for j, a in enumerate(d):
                    inside = a in descriptor.axes
                    unit = k == tensor.unit and j == len(d) - 1
                    if not unit and not (self.sizes[a].is_Integer and self.sizes[a] == 1):
                        strides.append((k, self._size(d[j + 1 :]), inside))
            yield Described(tensor.index, tuple(strides), tuple(self.sizes[a] for a in descriptor.axes))

    def _packed(self, operand: Tensor, axis: str) -> Tensor:
        """The copy of an input whose innermost axis is this one."""
        key = operand.index, axis
        if key not in self.packed:
            axes = (*(a for a in operand.axes if a != axis), axis)
            name = f"{self.names[operand.index]} packed along {axis}"
            self.packed[key] = self._tensor(name, tuple((a,) for a in axes), operand.dtype, contiguous=False)
        return self.packed[key]

    def _size(self, dim: tuple[str, ...]) -> Dim:
        return sympy.expand(prod((self.sizes[a] for a in dim), start=_ONE))

    def _device_tensor(self, t: Tensor) -> DeviceTensor:
        shape = [self._size(d) for d in t.dims]
        if any(t is p for p in self.packed.values()):
            # rows of whole 16 bytes
            whole = sympy.Integer(DIVISIBILITY // t.dtype.itemsize)
            shape[-1] = sympy.expand(ceil_div(shape[-1], whole) * whole)
        return DeviceTensor(self.names[t.index], tuple(shape), t.dims, _dtype_name(t.dtype), t.unit)

    def _kernel(
        self,
        i: int,
        known: Mapping[int, Companion],
        values: Mapping[Ref, Tensor],
        carried: dict[int, tuple[Companion, Tensor]],
    ) -> None:
        n = self.mugraph.kernel.nodes[i]
        number = len(self.kernels)
        for s, c in known.items():
            if self.program.maximum.sites[s].path[0] == i:
                carried[s] = c, self._tensor(f"maxima{s}", tuple((a,) for a in c.axes), self.real)
        block = with_maxima(self.mugraph, i, self.program.maximum, known)
        packed = dict(self.schedule.kernels[number].packed)
        inputs = [self._packed(values[r], packed[k]) if k in packed else values[r] for k, r in enumerate(n.operands)]
        outputs = [values[Ref(i, k)] for k in range(len(n.dims))]
        kernel = BlockEmitter(
            number, i, block, self.schedule.kernels[number], self.program, inputs, outputs, dict(carried)
        )
        w = Writer(1)
        kernel.body(w)
        lines = without_unused(w.lines)
        step = self._step(kernel, lines)
        parameters = [*(a.name for a in step.arguments), *(f"{c}: tl.constexpr" for c in step.constexprs)]
        grid = ", ".join(f"{a} {r.value}" for a, r in kernel.graph.roles)
        head = Writer()
        head.line("@triton.jit")
        head.line(f"def {step.name}(")
        for p in parameters:
            head.line(f"    {p},")
        head.line("):")
        head.depth = 1
        head.comment(f"one cell of the grid: {grid}")
        self.kernels.append(kernel)
        self.steps.append(step)
        self.bodies.append([*head.lines, *lines])

    def _step(self, kernel: BlockEmitter, lines: list[str]) -> TritonKernel:
        used = words(lines)
        pointers = self._pointers(kernel)
        arguments = [Argument(p, ArgumentKind.POINTER, _ONE, t.index) for p, t, _ in pointers if p in used]
        for p, t, _ in pointers:
            for k, d in enumerate(t.dims):
                for j, a in enumerate(d):
                    name = f"{p}_{self.program.names[a]}"
                    if name in used:
                        arguments.append(Argument(name, ArgumentKind.STRIDE, self._size(d[j + 1 :]), t.index, k))
        beside = {t.dims[t.unit][-1] for p, t, _ in pointers if p in used and t.unit >= 0}
        for a, d in self.sizes.items():
            if (name := f"n_{self.program.names[a]}") in used:
                arguments.append(Argument(name, ArgumentKind.SIZE, d, declared=a in beside))
        arguments += [Argument(x, ArgumentKind.SIZE, d, declared=False) for d, x in self.dims.items() if x in used]
        space, schedule = kernel.space, kernel.schedule
        constexprs = {space.size_name(a): n for a, n in space.tiles.items()}
        constexprs |= {space.size_name(a, True): n for a, n in space.rooms.items()}
        constexprs |= {f"SPLIT_{self.program.names[a]}": n for a, n in schedule.splits}
        blocks: Dim = _ONE
        for a in kernel.graph.grid:
            split = kernel.graph.role[a] is Role.SPLIT
            count = (
                sympy.Integer(schedule.split[a]) if split else ceil_div(self.sizes[a], sympy.Integer(space.tiles[a]))
            )
            blocks = sympy.expand(blocks * count)
        return TritonKernel(
            f"kernel_{kernel.number}",
            tuple(arguments),
            {c: n for c, n in constexprs.items() if c in used},
            (blocks, _ONE, _ONE),
            schedule.num_warps,
            schedule.num_stages,
            tuple(dict.fromkeys(t.index for p, t, written in pointers if p in used and not written)),
            tuple(dict.fromkeys(t.index for p, t, written in pointers if p in used and written)),
        )

    def _pointers(self, kernel: BlockEmitter) -> list[tuple[str, Tensor, bool]]:
        """The names of pointers in a kernel, their tensors, and whether it writes them."""
        read = {
            i: n.attr["index"] for i, n in enumerate(kernel.graph.nodes) if n.op == "input" and i not in kernel.block.computed
        }
        own = {s for found in kernel.sites.values() for s in found}
        found = [(f"p{i}", kernel.inputs[k], False) for i, k in read.items()]
        found += [(f"q{s}", t, s in own) for s, (_, t) in kernel.companions.items()]
        return found + [(f"o{k}", t, True) for k, t in enumerate(kernel.outputs)]

    def _source(self) -> str:
        lines = ["# Generated from a muGraph:", "#"]
        lines += [f"# {comment_text(x)}".rstrip() for x in _describe(self.mugraph, self.schedule)]
        lines += ["", "import triton", "import triton.language as tl"]
        for text in self.functions.sources:
            lines += ["", "", *text.splitlines()]
        for body in self.bodies:
            lines += ["", "", *body]
        return "\n".join(lines) + "\n"


def emit(mugraph: MuGraph, schedule: CudaSchedule, maximum: RunningMaximum | None = None) -> EmittedTriton:
    """The Triton source of a muGraph under a schedule, and how to launch it; `maximum` is `analyze(mugraph)`.

    Raises ScheduleError, DTypeError and GraphError as `Emitter` does.
    """
    return Emitter(mugraph, schedule, maximum if maximum is not None else analyze(mugraph)).emit()


def with_descriptors(mugraph: MuGraph, schedule: CudaSchedule, maximum: RunningMaximum | None = None) -> CudaSchedule:
    """The schedule with descriptors of all operands and results that can have one.

    Raises ScheduleError, DTypeError and GraphError as `Emitter` does.
    """
    emitter = Emitter(mugraph, schedule.without_descriptors, maximum if maximum is not None else analyze(mugraph))
    emitter.emit()
    kernels = zip(schedule.kernels, emitter.kernels, strict=True)
    return replace(schedule, kernels=tuple(replace(s, descriptors=describable(k)) for s, k in kernels))


def _all_sizes(mugraph: MuGraph, schedule: CudaSchedule) -> dict[str, Dim]:
    return {**mugraph.axes, **{partial_axis(a): sympy.Integer(n) for k in schedule.kernels for a, n in k.splits}}


def _dtype_name(dtype: np.dtype) -> str:
    return next(name for name, d in ELEMENTS.items() if d == dtype)


def _without_threads(mugraph: MuGraph) -> MuGraph:
    """The muGraph whose block graphs hold the operators of their thread graphs: Triton divides a block over threads."""
    kernel = mugraph.kernel
    nodes = tuple(replace(n, graph=inline_threads(n.graph)) if n.graph is not None else n for n in kernel.nodes)
    return replace(mugraph, kernel=replace(kernel, nodes=nodes))


def _operand(mugraph: MuGraph, k: int, number: int) -> str:
    """What a schedule calls operand or result `number` of the k-th kernel."""
    count = len(mugraph.kernels[k].operands)
    return f"operand {number}" if number < count else f"result {number - count}"


def _describe(mugraph: MuGraph, schedule: CudaSchedule) -> list[str]:
    def table(items: tuple[tuple[str, int], ...]) -> str:
        return ", ".join(f"{a}={n}" for a, n in items) or "none"

    lines = str(mugraph).splitlines()
    for k, s in enumerate(schedule.kernels):
        lines += ["", f"kernel {k}: tiles {table(s.tiles)}; splits {table(s.splits)}; rooms {table(s.rooms)};"]
        products = "tensor cores" if s.dot else "sums of products"
        lines.append(
            f"  {s.num_warps} warps, {s.num_stages} stages, products by {products}"
            + ", rounded" * s.rounded
            + ", swapped" * s.swap
        )
        more = [f"grid {', '.join(s.order)}"] * bool(s.order) + [f"groups of {s.group} tiles"] * (s.group > 1)
        more += [f"descriptors of {', '.join(_operand(mugraph, k, d) for d in s.descriptors)}"] * bool(s.descriptors)
        more += [f"{_operand(mugraph, k, i)} packed along {a}" for i, a in s.packed]
        more += [f"result {i} with {a} innermost" for i, a in s.layouts]
        if more:
            lines.append(f"  {'; '.join(more)}")
    return lines
