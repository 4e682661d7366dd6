"""The measured and many small programs, and searches of them, that tests of the search and of proofs share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.programs import retyped as retyped
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.dims import evaluate
from mirage.ir.program import Program, ProgramBuilder
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.search.closure import Closure
from mirage.search.generate import SearchResult, generate
from mirage.search.options import SearchOptions
from mirage.search.plan import KernelPlan
from mirage.search.space import Space
from mirage.search.steps import finish

T = mi.tensor

SMALL: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "matmul": (lambda x, w: x @ w, dict(x=T("b", 64), w=T(64, "n"))),
    "elementwise": (lambda x, y: mi.relu(x) * y + 1, dict(x=T("b", 64), y=T(64))),
    "neg": (lambda x, w: mi.exp(-x) @ w, dict(x=T("b", 64), w=T(64, "n"))),
    "double neg": (lambda x, w: mi.neg(-x) @ w, dict(x=T("b", 64), w=T(64, "n"))),
    "scale": (lambda x, w: (x * 2) @ w * 0.5, dict(x=T("b", 64), w=T(64, "n"))),
    "sum then matmul": (lambda x, y, w: (x + y) @ w, dict(x=T("b", 64), y=T("b", 64), w=T(64, "n"))),
    "difference then matmul": (lambda x, y, w: (x - y) @ w, dict(x=T("b", 64), y=T("b", 64), w=T(64, "n"))),
    "mean": (lambda x: x - mi.mean(x, axis=-1, keepdims=True), dict(x=T("b", "n"))),
    "normalized": (
        lambda x, w: (x / mi.sum(x, axis=1, keepdims=True)) @ w,
        dict(x=T("b", 64), w=T(64, "n")),
    ),
    "softmax matmul": (lambda x, w: mi.softmax(x) @ w, dict(x=T("b", 64), w=T(64, "n"))),
    "chain": (lambda x, a, b: (x @ a) @ b, dict(x=T("m", "k"), a=T("k", "l"), b=T("l", "n"))),
    "shared": (lambda x, w: _gate(x @ w), dict(x=T("b", 64), w=T(64, "n"))),
    "two outputs": (lambda x, w, u: (x @ w, mi.exp(x) @ u), dict(x=T("b", 64), w=T(64, "n"), u=T(64, "n"))),
    "outputs of other axes": (lambda x, w: (x @ w, mi.sum(x, axis=1)), dict(x=T("b", 64), w=T(64, "n"))),
    "nested outputs": (lambda x, w: (x @ w, mi.relu(x @ w)), dict(x=T("b", 64), w=T(64, "n"))),
    "equal outputs": (lambda x, w: (x @ w, x @ w), dict(x=T("b", 64), w=T(64, "n"))),
    "concat": (lambda x, y, w: mi.concat([x, y @ w], axis=1), dict(x=T("b", 64), y=T("b", 32), w=T(32, "n"))),
    "concat matmul": (
        lambda x, y, w: mi.concat([x, y], axis=1) @ w,
        dict(x=T("b", 64), y=T("b", 32), w=T(96, "n")),
    ),
    "dot": (lambda x, y: mi.sum(x * y, axis=0), dict(x=T("n"), y=T("n"))),
    "cosine": (lambda x, y: mi.sum(x * y, axis=0) / mi.sqrt(mi.sum(x * x, axis=0)), dict(x=T("n"), y=T("n"))),
    "frobenius": (lambda x: x / mi.sqrt(mi.sum(x * x, axis=(0, 1), keepdims=True)), dict(x=T("b", "n"))),
    "scalar inputs": (lambda x, s, u: x * (s * mi.exp(u)), dict(x=T("n"), s=T(1), u=T(1))),
    "self division": (lambda x: x / x, dict(x=T("b", 64))),
}

#: seconds that no search takes: each ends when it is complete, on any machine
UNLIMITED = 600.0

#: measured programs whose whole search takes well under a second
QUICK = ("gqa_decode", "mqa_decode", "rmsnorm_linear", "gated_mlp", "adapter_mlp", "lora", "softmax", "rms_norm")


def _gate(h: Any) -> Any:
    return h * mi.sigmoid(h) + h


@cache
def program(name: str) -> Program:
    """A measured or a small program."""
    if name in PROGRAMS:
        return PROGRAMS[name].trace()
    fn, types = SMALL[name]
    return mi.trace(fn, name.replace(" ", "_"), **types)


def widened(program: Program, dtype: str, inputs: Collection[int] | None = None) -> Program:
    """The program with some of its inputs, or all, stored in another type that is cast to its own."""
    b = ProgramBuilder(program.name)
    new: list[int] = []
    for i, n in enumerate(program.nodes):
        if n.op != "input":
            new.append(b.op(n.op, *(new[j] for j in n.inputs), **n.attr))
        elif inputs is None or program.inputs.index(i) in inputs:
            x = b.input(n.attr["name"], replace(n.type, dtype=dtype))
            new.append(b.op("cast", x, dtype=n.type.dtype))
        else:
            new.append(b.input(n.attr["name"], n.type))
    return b.finish([new[i] for i in program.outputs])


@cache
def axes(name: str) -> AxisProgram:
    return to_axes(program(name))


def sizes(name: str) -> dict[str, int]:
    """The first sizes of a measured program; 16 for every dim of a small one."""
    if name in PROGRAMS:
        return dict(next(iter(PROGRAMS[name].sizes.values())))
    return dict.fromkeys(program(name).symbols(), 16)


@cache
def search(name: str, **options: Any) -> SearchResult:
    """The complete search of a program at its sizes with these `SearchOptions`."""
    return generate(axes(name), sizes(name), SearchOptions(**{"budget": UNLIMITED, **options}))


def kernels_only(name: str, count: int) -> list[MuGraph]:
    """The cheapest graphs of a program without predefined operators, as many as there are, of different structure."""
    found = search(name).graphs
    return [g for g in found if all(n.op in ("input", "graph") for n in g.kernel.nodes)][:count]


def space(name: str, **options: Any) -> Space:
    """Everything that kernels of a program can compute."""
    table = {a: evaluate(d, sizes(name)) for a, d in axes(name).axes.items()}
    found = Space(axes(name), table, SearchOptions(**options))
    finish(found.close())
    return found


def close(name: str, plan: KernelPlan, **options: Any) -> Closure:
    """The closure of a kernel that reads the program's inputs."""
    found = space(name, **{"max_kernels": 1, **options}).tensors.closures
    return next(c for c in found if c.plan == plan)


# What a muGraph does, whatever its nodes are called.


def block(graph: MuGraph, k: int = 0) -> Graph:
    """The block graph of the k-th kernel."""
    found = graph.kernels[k].graph
    assert found is not None
    return found


def producer(g: Graph, i: int, operand: int = 0) -> Node:
    """The node that yields an operand of node i."""
    return g.nodes[g.nodes[i].operands[operand].node]


def where(g: Graph, *ops: str) -> list[int]:
    """The nodes with one of these operators."""
    return [i for i, n in enumerate(g.nodes) if n.op in ops]


def before_loop_ends(g: Graph, i: int) -> bool:
    return i not in g.after_loop


def role(g: Graph, axis: str) -> Role | None:
    return g.role.get(axis)
