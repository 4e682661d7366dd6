"""A muGraph and its schedule as C source (Mirage, section 2: grid, for-loop, thread graphs).
 One function per graph-defined kernel computes a cell of its grid; `mirage_run_k` runs the k-th sequence of
kernels without predefined operators between them on a pool of threads. Axis sizes and strides are arguments,
so that the code serves every shape; literal sizes are constants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import sympy

from mirage.errors import DimError
from mirage.ir.axes import stored_dtypes
from mirage.ir.dims import evaluate, symbols_of
from mirage.ir.moves import last_step
from mirage.ir.types import DTYPES, ELEMENTS, between_dtype, compute_dtype
from mirage.kernels.cpu.emit.algebra import FunctionSources
from mirage.kernels.cpu.emit.block import BlockEmitter
from mirage.kernels.cpu.emit.bounds import BOUNDS
from mirage.kernels.cpu.emit.hidden import hidden_functions
from mirage.kernels.cpu.emit.layout import c_names
from mirage.kernels.cpu.emit.matmul import product_parts, type_macros
from mirage.kernels.cpu.emit.maximum import RUNNING_MAXIMUM, Companion, companions, with_maxima
from mirage.kernels.cpu.emit.plan import VECTOR_BYTES, Program, Tensor
from mirage.kernels.cpu.emit.stages import CodeStage, LibraryStage, computed_once, library_stage, runs
from mirage.kernels.cpu.emit.stream import LAUNCH
from mirage.kernels.cpu.emit.writer import Writer, comment_text, without_unused
from mirage.kernels.cpu.launch.packing import Packing, packed_axes
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import Graph, MuGraph, Ref
from mirage.mugraph.schedule import BlockLayout, KernelSchedule, Schedule, kernel_numbers
from mirage.mugraph.thread import inline_threads

#: size assumed for a dim symbol that the hints do not name
DEFAULT_HINT = 256

_PREAMBLE = """\
typedef struct {
    const long *sizes;         /* of every axis, then the dims that the program computes with */
    mi_real *const *tensors;   /* inputs, then the results of each kernel */
    const long *strides;       /* in elements, of all axes of all tensors in this order */
} mirage_args;

static inline long blocks(long size, long tile) { return (size + tile - 1) / tile; }
static inline long least(long a, long b) { return a < b ? a : b; }
static inline long whole_vectors(long size) { return (size + MI_W - 1) / MI_W * MI_W; }
"""


@dataclass(frozen=True)
class Emitted:
    """The C source, what its arguments are, and the stages to run in order. `parts` are sources to compile with it.

    `tensors` are the axes of the kernel-level tensors: the inputs, what follows from constants alone, then per operator its
    outputs, then the companions with running maxima, and forms of inputs; `dtypes` are what they are stored in. `in_code` are
    those that C functions read or write. `outputs` are the tensors that the muGraph returns; `dims` are appended to the axis
    sizes. `packed` are tensors that hold inputs as a kernel's schedule wants them packed. `once` are tensors that follow from
    constants alone, with the results of kernels that they are: no stage computes them. `constants` are the inputs that they
    follow from. Stages read `kept`, which are some of these, and `kept_packed`, which hold some of these packed.
    """

    source: str
    parts: tuple[str, ...]
    axes: tuple[str, ...]
    dims: tuple[sympy.Expr, ...]
    tensors: tuple[tuple[str, ...], ...]
    dtypes: tuple[np.dtype, ...]
    inputs: int
    outputs: tuple[int, ...]
    stages: tuple[CodeStage | LibraryStage, ...]
    in_code: frozenset[int]
    packed: tuple[Packing, ...]
    once: tuple[tuple[int, Ref], ...] = ()
    constants: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    kept_packed: tuple[Packing, ...] = ()


def bind_hints(mugraph: MuGraph, hints: Mapping[str, int]) -> dict[str, int]:
    """A size for every dim symbol: the hint, or a default."""
    return {s: hints.get(s, DEFAULT_HINT) for d in mugraph.axes.values() for s in symbols_of(d)}


def hint_sizes(mugraph: MuGraph, schedule: Schedule, hints: Mapping[str, int]) -> dict[str, int]:
    """The expected size of every axis, for expected sizes of (some of) the dim symbols."""
    bound = bind_hints(mugraph, hints)
    found = {a: max(evaluate(d, bound), 1) for a, d in mugraph.axes.items()}
    found.update(schedule.axis_sizes(mugraph, bound).items() - found.items())
    return {a: max(n, 1) for a, n in found.items()}


class Emitter:
    """Plans all kernels of a muGraph for one schedule.

    Raises ScheduleError if the schedule does not fit the muGraph, and GraphError for nodes that this backend
    does not print.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        schedule: Schedule,
        maximum: RunningMaximum,
        hints: Mapping[str, int],
        constants: Collection[str] = (),
    ) -> None:
        schedule.check(mugraph)
        if any(n.graph for k in mugraph.kernels if k.graph for n in k.graph.nodes):
            mugraph = _without_threads(mugraph)
            # paths into thread graphs have changed
            maximum = analyze(mugraph)
        self.mugraph = mugraph
        self.schedule = schedule
        self.orders = schedule.orders(mugraph)
        self.functions = FunctionSources()
        splits = {
            a: sympy.Integer(n)
            for a, n in schedule.axis_sizes(mugraph, _ones(mugraph)).items()
            if a not in mugraph.axes
        }
        self.sizes = {**mugraph.axes, **splits}
        self.names = c_names(self.sizes)
        self.dims: dict[sympy.Expr, str] = {}
        self._collect_dims()
        self.tensors: list[Tensor] = []
        self.packed: list[Packing] = []
        hints = hint_sizes(mugraph, schedule, hints)
        self.storage = DTYPES[mugraph.dtype]
        self.real = compute_dtype(self.storage)
        self.stored = stored_dtypes(mugraph.inputs, mugraph.dtype)
        #: the names of the types that are computed in and that tensors are stored in
        self.dtypes = tuple(dict.fromkeys(t.name for t in (self.real, self.storage, *self.stored)))
        program = Program(self.names, self.sizes, hints, self.dims, self.functions, maximum, self.real.itemsize)
        self.kernels: list[BlockEmitter] = []
        self.code: list[list[BlockEmitter]] = []
        self.stages: list[CodeStage | LibraryStage] = []
        self._once = computed_once(mugraph, constants, maximum)
        self._values_once: list[tuple[int, Ref]] = []
        self._plan(program, companions(mugraph, maximum))

    def _collect_dims(self) -> None:
        for node in self.mugraph.kernels:
            assert node.graph is not None
            for n in node.graph.nodes:
                if n.op == "size" and n.attr["dim"] not in self.dims:
                    dim = n.attr["dim"]
                    index = len(self.sizes) + sum(1 for d in self.dims if not d.is_Integer)
                    self.dims[dim] = str(int(dim)) if dim.is_Integer else f"args->sizes[{index}]"

    def _tensor(
        self, axes: tuple[str, ...], dtype: np.dtype, packed: bool = False, result: bool = False, step: int = 1
    ) -> Tensor:
        offset = sum(len(t.axes) for t in self.tensors)
        narrow = dtype.name if dtype != self.real else ""
        self.tensors.append(Tensor(len(self.tensors), offset, axes, packed, narrow, result, step))
        return self.tensors[-1]

    def _result(self, r: Ref) -> Tensor:
        """A new tensor for the result of a kernel or predefined operator."""
        axes = self.mugraph.kernel.nodes[r.node].axes(r.out)
        if r in self.mugraph.kernel.outputs:
            return self._tensor(axes, self.storage, result=True)
        if (last := self.orders.get(r)) is not None:
            axes = (*(a for a in axes if a != last), last)
        # partial results are not rounded before they are put together
        partial = not self.mugraph.axes.keys() >= set(axes)
        return self._tensor(axes, self.real if partial else between_dtype(self.storage))

    def _packed(self, source: Tensor, graph: Graph, axis: str, tile: int) -> Tensor:
        """The form of an input, or of what is computed once, that is packed for a kernel: one for all that want the same."""
        if self.sizes[axis].is_Integer:
            tile = min(tile, max(int(self.sizes[axis]), 1))
        axes = packed_axes(graph, source.axes, axis)
        for p in self.packed:
            if (p.input, p.axes, p.tile) == (source.index, axes, tile):
                return self.tensors[p.tensor]
        tensor = self._tensor(axes, ELEMENTS[source.narrow] if source.narrow else self.real, packed=True)
        self.packed.append(Packing(source.index, tensor.index, axes, tile))
        return tensor

    def _plan(self, program: Program, known: dict[int, Companion]) -> None:
        """Give every kernel-level tensor its number, and every run of kernels its stage."""
        given = [
            self._tensor(x.axes, t, step=last_step(x.moved))
            for x, t in zip(self.mugraph.inputs, self.stored, strict=True)
        ]
        nodes = self.mugraph.kernel.nodes
        values = {Ref(i): given[n.attr["index"]] for i, n in enumerate(nodes) if n.op == "input"}
        carried: dict[int, tuple[Companion, Tensor]] = {}
        read = dict.fromkeys(r for i, n in enumerate(nodes) if i not in self._once for r in n.operands)
        for r in read:
            if r.node in self._once:
                values[r] = self._result(r)
                self._values_once.append((values[r].index, r))
        for defined, run in runs(self.mugraph, self._once):
            for i in run:
                values.update({r: self._result(r) for r in (Ref(i, k) for k in range(len(nodes[i].dims)))})
                if defined:
                    self._kernel(i, program, known, values, carried)
            if defined:
                self.stages.append(CodeStage(f"mirage_run_{len(self.code)}"))
                self.code.append(self.kernels[-len(run) :])
            else:
                numbers = {r: t.index for r, t in values.items()}
                maxima = {s: (c.axes, t.index) for s, (c, t) in carried.items()}
                stage = library_stage(self.mugraph, run, self.sizes, program.maximum, numbers, maxima)
                self.stages.append(stage)
        self.outputs = tuple(values[r].index for r in self.mugraph.kernel.outputs)

    def _kernel(
        self,
        i: int,
        program: Program,
        known: dict[int, Companion],
        values: Mapping[Ref, Tensor],
        carried: dict[int, tuple[Companion, Tensor]],
    ) -> None:
        n = self.mugraph.kernel.nodes[i]
        for s, c in known.items():
            if program.maximum.sites[s].path[0] == i:
                carried[s] = c, self._tensor(c.axes, self.real)
        block = with_maxima(self.mugraph, i, program.maximum, known)
        inputs = [values[r] for r in n.operands]
        outputs = [values[Ref(i, k)] for k in range(len(n.dims))]
        number = kernel_numbers(self.mugraph).index(i)
        schedule = self.schedule.kernels[number]
        for operand, axis in schedule.packed:
            assert n.graph is not None
            inputs[operand] = self._packed(inputs[operand], n.graph, axis, schedule.tile[axis])
        self.kernels.append(BlockEmitter(number, i, block, schedule, program, inputs, outputs, dict(carried)))

    def emit(self) -> Emitted:
        """Print the C source."""
        body = Writer()
        for k in self.kernels:
            cell, scratch = Writer(), Writer()
            k.cell(cell)
            self._scratch(scratch, k)
            body.lines += ["", *without_unused(cell.lines), "", *without_unused(scratch.lines)]
        for number, kernels in enumerate(self.code):
            self._run(body, number, kernels)
        w = Writer()
        w.line("/* Generated from a muGraph:")
        w.line(" *")
        for line in _describe(self.mugraph, self.schedule, self._once):
            w.line(f" * {comment_text(line)}".rstrip())
        w.line(" */")
        if self.kernels:
            self._preamble(w)
        w.lines += body.lines
        dims = tuple(d for d in self.dims if not d.is_Integer)
        tensors = tuple(t.axes for t in self.tensors)
        inputs = len(self.mugraph.inputs)
        return Emitted(
            w.text(),
            self._parts(),
            tuple(self.sizes),
            dims,
            tensors,
            tuple(ELEMENTS[t.narrow] if t.narrow else self.real for t in self.tensors),
            inputs,
            self.outputs,
            tuple(self.stages),
            self._in_code(),
            tuple(p for p in self.packed if p.input < inputs),
            tuple(self._values_once),
            self._fixed_inputs(),
            self._kept(),
            tuple(p for p in self.packed if p.input >= inputs),
        )

    def _fixed_inputs(self) -> tuple[int, ...]:
        """The inputs that are read by what is computed once."""
        nodes = self.mugraph.kernel.nodes
        read = {r.node for i in self._once for r in nodes[i].operands}
        return tuple(sorted(nodes[i].attr["index"] for i in read if nodes[i].op == "input"))

    def _kept(self) -> tuple[int, ...]:
        """What is computed once, and read as it is."""
        read = {t.index for k in self.kernels for t in k.inputs}
        for stage in self.stages:
            if isinstance(stage, LibraryStage):
                read |= stage.tensors()
        return tuple(t for t, _ in self._values_once if t in read)

    def _in_code(self) -> frozenset[int]:
        found = {t.index for k in self.kernels for t in (*k.inputs, *k.outputs)}
        return frozenset(found | {t.index for k in self.kernels for _, t in k.companions.values()})

    def _parts(self) -> tuple[str, ...]:
        """The micro-kernels of the products that the kernels call."""
        plans = [m for k in self.kernels for products in k.matmuls.values() for m in products]
        wanted = {"dot"} if any(m.dot for m in plans) else set()
        wanted |= {"outer"} if any(not m.dot for m in plans) else set()
        wanted |= {"stream"} if any(m.stream_rows for m in plans) else set()
        return product_parts(self.dtypes, wanted)

    def _preamble(self, w: Writer) -> None:
        """Headers, and what all kernels use."""
        real, *narrow = type_macros(self.dtypes)
        w.add([real, *narrow[:1]])
        streams = any(k.stream for k in self.kernels)
        w.add([f'#include "mirage_{"narrow_" if narrow else ""}gemm.h"', '#include "mirage_pool.h"'])
        w.add(['#include "mirage_stream.h"'] if streams else [])
        w.line('#include "mirage_vec.h"')
        for other in narrow[1:]:
            w.add(["#undef MI_NARROW", other, *(f'#include "mirage_narrow{part}.h"' for part in ("", "_gemm"))])
        w.add(["", *_PREAMBLE.splitlines()])
        if streams:
            w.add(["", *LAUNCH.splitlines()])
        if any(k.states for k in self.kernels):
            w.line()
            w.add(RUNNING_MAXIMUM.splitlines())
        if any(k.hidden for k in self.kernels):
            w.line()
            w.add(hidden_functions(self.real.itemsize).splitlines())
        if any(k.bounds for k in self.kernels):
            w.line()
            w.add(BOUNDS.splitlines())
        for source in self.functions.sources.values():
            w.line()
            w.add(source.splitlines())
        constants = {a: s for a, s in self.sizes.items() if s.is_Integer}
        if constants:
            w.line()
            w.line(f"enum {{ {', '.join(f'n_{self.names[a]} = {s}' for a, s in constants.items())} }};")

    def _scratch(self, w: Writer, k: BlockEmitter) -> None:
        w.comment("Bytes of scratch that a cell uses.")
        w.line(f"static size_t scratch_{k.number}(const mirage_args *args)")
        with w.block():
            w.line("(void)args;")
            k.declare_sizes(w)
            w.line("size_t count = 0;")
            for b in k.scratch:
                w.line(f"count += (size_t)({b.count(self.names)}); /* {b.name} */")
            w.line("return count * sizeof(mi_real);")

    def _run(self, w: Writer, number: int, kernels: list[BlockEmitter]) -> None:
        first, last = kernels[0].number, kernels[-1].number
        what = f"kernel {first}" if first == last else f"kernels {first} to {last}"
        w.line()
        w.comment(f"Runs {what}; 0, or -1 if there is no memory for scratch.")
        w.line(f"int mirage_run_{number}(const mirage_args *args, mi_pool_run_fn *pool, int threads)")
        with w.block():
            for k in kernels:
                with w.block():
                    of = dict.fromkeys([*k.graph.grid, *(k.stream.axes if k.stream else ())])
                    sizes = [a for a in of if a not in k.axes.literal]
                    for a in sizes:
                        w.line(f"const long n_{self.names[a]} = args->sizes[{list(self.sizes).index(a)}];")
                    w.add([" ".join(f"(void)n_{self.names[a]};" for a in sizes)] if sizes else [])
                    given = "(void *)args"
                    if k.stream:
                        w.line(f"const int past = {k.stream.past(self.names)};")
                        w.line("mirage_launch launch = {args, past};")
                        given = "&launch"
                    w.line(f"if (pool(cell_{k.number}, {given}, {k.cells()}, threads, scratch_{k.number}(args)))")
                    w.line("    return -1;")
            w.line("return 0;")


def emit(mugraph: MuGraph, schedule: Schedule, maximum: RunningMaximum, hints: Mapping[str, int]) -> str:
    """C source of a muGraph; `hints` are typical sizes of the dim symbols, by which layouts are chosen.

    Raises ScheduleError and GraphError as `Emitter` does.
    """
    return Emitter(mugraph, schedule, maximum, hints).emit().source


def scratch_bytes(emitter: Emitter, kernel: int, sizes: Mapping[str, int], vector_bytes: int = VECTOR_BYTES) -> int:
    """Bytes of scratch that a cell of a kernel uses at these sizes of the dim symbols."""
    block = emitter.kernels[kernel]
    itemsize = emitter.real.itemsize
    lengths = block.axes.lengths(emitter.schedule.axis_sizes(emitter.mugraph, sizes))
    return itemsize * sum(b.elements(lengths, vector_bytes // itemsize) for b in block.scratch)


def _without_threads(mugraph: MuGraph) -> MuGraph:
    """The muGraph whose block graphs hold the operators of their thread graphs: those are made again, by rule."""
    kernel = mugraph.kernel
    nodes = tuple(replace(n, graph=inline_threads(n.graph)) if n.graph is not None else n for n in kernel.nodes)
    return replace(mugraph, kernel=replace(kernel, nodes=nodes))


def _ones(mugraph: MuGraph) -> dict[str, int]:
    return {s: 1 for d in mugraph.axes.values() for s in symbols_of(d)}


def _layout_text(x: BlockLayout) -> str:
    parts = [f"{x.last} last"] * (x.last is not None) + ["padded rows"] * x.padded
    return f"{' and '.join(parts)} in w{x.node}"


def _describe(mugraph: MuGraph, schedule: Schedule, computed: Collection[int]) -> list[str]:
    try:
        text = str(mugraph)
    except (ImportError, DimError):
        text = mugraph.name
    once = [number in computed for number in kernel_numbers(mugraph)]
    kernels = zip(schedule.kernels, once, strict=True)
    tiles = [f"kernel {k}: {'computed once' if o else _schedule_text(s)}" for k, (s, o) in enumerate(kernels)]
    return [*text.splitlines(), "", *tiles]


def _schedule_text(s: KernelSchedule) -> str:
    return (
        f"tiles {', '.join(f'{a}={n}' for a, n in s.tiles) or 'none'}; "
        f"splits {', '.join(f'{a}={n}' for a, n in s.splits) or 'none'}"
        + "".join(f"; operand {operand} packed along {a}" for operand, a in s.packed)
        + "; padded rows" * s.padded
        + "".join(f"; {a} last in result {output}" for output, a in s.last)
        + "".join(f"; {_layout_text(x)}" for x in s.layouts)
        + "".join(f"; vectors along {a} in w{i}" for i, a in s.vectors)
        + (f"; half of {' and '.join(s.halved)}" if s.halved else "")
    )
