"""The C source of a loop program: a function per loop nest, and one that runs them in order on the pool."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.ir.dims import Dim
from mirage.ir.loops.nests import nests
from mirage.ir.loops.program import LoopProgram
from mirage.ir.loops.regroup import regrouped
from mirage.ir.loops.share import shared_reductions
from mirage.ir.loops.simplify import simplify_program
from mirage.ir.loops.split import with_split_outputs
from mirage.ir.loops.traverse import reads_of, walk
from mirage.ir.types import TensorType
from mirage.kernels.cpu.emit.writer import Writer, comment_text, without_unused
from mirage.kernels.cpu.loops.frame import STORAGE, Frame, Tensor, is_half, tensor_name
from mirage.kernels.cpu.loops.nest import NestEmitter

_PREAMBLE = """\
/* How the rows and columns of a nest are split into cells. */
typedef struct {
    long rows, columns, row_cells, column_cells;
} mi_split;

static inline long mi_lines(long bytes) { return (bytes + 63) / 64 * 64; }
static inline long mi_blocks(long size, long step) { return (size + step - 1) / step; }
"""


@dataclass(frozen=True)
class Source:
    """C code of a loop program with its arguments in order.

    `dims` are the sizes that it takes, `workspace` tensors that its nests hand on, and `checks` what may go wrong, by
    number - 1. Strides are given of the inputs alone, in elements, whose last dims are contiguous.
    """

    text: str
    dims: tuple[Dim, ...]
    workspace: tuple[TensorType, ...]
    checks: tuple[str, ...]


def emit(program: LoopProgram) -> Source:
    """The C source of a loop program."""
    whole = with_split_outputs(regrouped(simplify_program(program)))
    shared = shared_reductions(whole)
    program = simplify_program(shared)
    values = {n.dtype for _, s in program.stages for n in walk(s.body)}
    stored = [t.dtype for t in (*program.input_types, *(s.type for _, s in program.stages))]
    real = "float64" if "float64" in (*values, *stored) else "float32"
    half = next((d for d in stored if is_half(d)), "") if real == "float32" else ""
    frame = Frame(real, half)
    groups = nests(program, vectors=shared is whole)
    kept = frozenset(program.outputs) | _handed_on(program, [set(g.stages) for g in groups])
    between = [n for n, _ in program.stages if n in kept and n not in program.outputs]
    workspace = []
    tensors: dict[str, Tensor] = {}
    pointers: dict[str, str] = {}
    for k, (name, t) in enumerate(program.inputs):
        tensors[name] = frame.input(name, t.dtype, t.shape)
        pointers[tensor_name(name)] = _pointer(name, t.dtype, k, "const ")
    for k, name in enumerate((*program.outputs, *between), len(program.inputs)):
        e = program.expressions[name]
        # between nests, 16-bit results are not rounded
        dtype = e.dtype if name in program.outputs else _wide(e.dtype)
        tensors[name] = frame.contiguous(tensor_name(name), dtype, e.shape)
        pointers[tensor_name(name)] = _pointer(name, dtype, k, "")
        if name in between:
            workspace.append(TensorType(e.shape, dtype))
    emitters = [NestEmitter(k, program, g, frame, tensors, kept) for k, g in enumerate(groups)]
    functions = [f for e in emitters for f in (e.emit_split(), e.emit_cell(pointers))]
    functions.append(_runner(emitters, frame))
    w = Writer()
    w.line("/* Generated from a loop program:")
    w.line(" *")
    for line in program.to_text().splitlines():
        w.line(f" * {comment_text(line)}".rstrip())
    w.line(" */")
    w.line(f"#define MI_REAL {'double' if real == 'float64' else 'float'}")
    if half:
        w.line(f"#define MI_NARROW {half}")
    w.line('#include "mirage_loops.h"')
    w.line()
    w.add(_PREAMBLE.splitlines())
    for source in frame.functions.sources.values():
        w.line()
        w.add(source.splitlines())
    for f in functions:
        w.line()
        w.lines += f
    return Source(w.text(), tuple(frame.dims), tuple(workspace), tuple(frame.checks))


def _wide(dtype: str) -> str:
    return "float32" if is_half(dtype) else dtype


def _handed_on(program: LoopProgram, groups: list[set[str]]) -> frozenset[str]:
    """Stages that another nest reads."""
    found = set()
    for name, s in program.stages:
        own = next(g for g in groups if name in g)
        found |= {r.tensor for r in reads_of(s.body) if r.tensor in program.expressions and r.tensor not in own}
    return frozenset(found)


def _pointer(name: str, dtype: str, k: int, const: str) -> str:
    ctype = STORAGE[dtype]
    return f"{const}{ctype} *restrict const {tensor_name(name)} = args->tensors[{k}];"


def _runner(emitters: list[NestEmitter], frame: Frame) -> list[str]:
    scratch = [e.scratch() for e in emitters]
    w = Writer()
    w.comment("Runs the nests; 0, -1 if there is no memory for scratch, or 1 if a check failed.")
    w.line("int mirage_run(mi_loops *args, mi_pool_run_fn *pool, int threads)")
    with w.block():
        w.add(frame.declarations())
        w.line("args->failed = 0;")
        for e, size in zip(emitters, scratch, strict=True):
            with w.block():
                w.line(f"const mi_split s = split_{e.number}(args);")
                w.line(f"if (pool(cell_{e.number}, args, s.row_cells * s.column_cells, threads, (size_t)({size})))")
                w.line("    return -1;")
                w.line("if (args->failed) return 1;")
        w.line("return 0;")
    return without_unused(w.lines)
