"""Kernel graphs of several graph-defined and predefined operators equal their programs."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage.errors import InputError, NoCompilerError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.stages import CodeStage
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Node, Ref, Role
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.validate import validate
from mirage.verify.proof import prove
from tests.kernels.kernels import bound, call_from_threads, cut, error, random_cut, random_inputs, tiles
from tests.mugraph.graphs import OUT, P, W, block, flash_decoding, kernel, mugraph, node, one, reads
from tests.programs import SMALL, axes, program
from tests.sampled import crossed, thinned

#: of every dim: one, a prime, and about a tile of 16
SIZES = (1, 13, 15, 16, 17)


def stages(exe: CpuExecutable) -> str:
    return "".join("C" if isinstance(s, CodeStage) else "l" for s in exe.emitted.stages)


def compare(p: Program, graph: MuGraph, exe: CpuExecutable) -> None:
    most = bound(p.dtype)
    for n in SIZES:
        sizes = {s: n + 2 * k for k, s in enumerate(p.symbols())}
        inputs = random_inputs(p, sizes, n)
        if p.name == "cosine":
            inputs = [np.abs(x) + 1 for x in inputs]
        found = error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64"))
        assert found < most, f"{graph} {stages(exe)} {sizes}: {found}"


@pytest.mark.parametrize("name", SMALL)
def test_every_operator_predefined(name: str) -> None:
    p = program(name)
    graph = reference_graph(axes(name))
    exe = CpuExecutable(graph, Schedule(()), analyze(graph))
    assert stages(exe) == "l" and "mirage_run" not in exe.source
    compare(p, graph, exe)


@pytest.mark.parametrize("name", thinned(SMALL))
def test_random_kernels(name: str) -> None:
    p = program(name)
    rng = random.Random(name)
    for _ in range(3):
        graph = random_cut(p, rng)
        assert prove(axes(name), graph) == "proved"
        compare(p, graph, CpuExecutable(graph, tiles(graph, 16), analyze(graph), {"b": 16}))


def attention(*, split: bool, second: str) -> tuple[Program, MuGraph]:
    """FlashDecoding, or a kernel without split, whose results predefined ("l") or graph-defined ("C") operators finish.

    With "lC", a predefined operator sums the partial sums of exponents, and a graph-defined kernel does the rest.
    """
    case = flash_decoding()
    first, last = case.graph.kernels
    assert first.graph is not None
    sums, values = first.dims
    inputs = list(case.graph.kernel.nodes[:3])
    if not split:
        roles = tuple((a, Role.LOOP if r is Role.SPLIT else r) for a, r in first.graph.roles)
        first = replace(first, dims=(sums[1:], values[1:]), graph=replace(first.graph, roles=roles))
        tail = [Node("div", (Ref(3, 1), Ref(3, 0)), last.dims)]
    elif second == "C":
        tail = [last]
    elif second == "l":
        tail = [
            Node("sum", (Ref(3, 0),), (sums[1:],), reduce=("t.grid",)),
            Node("sum", (Ref(3, 1),), (values[1:],), reduce=("t.grid",)),
            Node("div", (Ref(5), Ref(4)), last.dims),
        ]
    else:
        body = block(
            [
                *reads(values, sums[1:]),
                node("sum", (0,), OUT, reduce=("t.grid",)),
                node("div", (2, 1), OUT),
            ],
            (3,),
            b=P, h=P, d8=P, s=P, t_grid=W, d64_2=P,
        )  # fmt: skip
        tail = [
            Node("sum", (Ref(3, 0),), (sums[1:],), reduce=("t.grid",)),
            kernel(body, (Ref(3, 1), Ref(4)), *last.dims),
        ]
    nodes = (*inputs, first, *tail)
    top = replace(case.graph.kernel, nodes=nodes, outputs=(Ref(len(nodes) - 1),))
    graph = replace(case.graph, kernel=top)
    validate(graph)
    assert prove(to_axes(case.program), graph) == "proved"
    return case.program, graph


ATTENTION = [(True, "C"), (True, "l"), (True, "lC"), (False, "l")]


@pytest.mark.parametrize(("kind", "scale"), crossed(ATTENTION, [1, 1e4]))
def test_maxima_of_partial_results_reach_predefined_operators(kind: tuple[bool, str], scale: float) -> None:
    split, second = kind
    p, graph = attention(split=split, second=second)
    assert analyze(graph).safe
    schedule = tiles(graph, {"b": 1, "h": 1, "s": 2, "t": 4, "d8": 3, "d64_2": 50})
    exe = CpuExecutable(graph, schedule, analyze(graph))
    for s, t in [(1, 1), (3, 2), (2, 67), (5, 13)]:
        sizes = {"b": 2, "h": 3, "s": s, "t": t}
        inputs = random_inputs(p, sizes)
        inputs[0] *= np.float32(scale)
        # logits are exact to about 1e-7 of their size, and that error is in the exponent
        found = error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64"))
        assert found < (1e-6 if scale == 1 else 2e-2), (sizes, found)


@pytest.mark.parametrize(("split", "second"), ATTENTION)
def test_masked_keys_and_special_values(split: bool, second: str) -> None:
    """Logits of -inf in whole parts give no NaN; a NaN spoils its row only."""
    p, graph = attention(split=split, second=second)
    exe = CpuExecutable(graph, tiles(graph, {"t": 16}), analyze(graph))
    sizes = {"b": 1, "h": 1, "s": 2, "t": 200}
    inputs = random_inputs(p, sizes)
    inputs[0][:] = np.abs(inputs[0])
    inputs[1][0, 0, :100, 0] = -np.inf
    inputs[1][0, 0, 150:, 0] = -np.inf
    inputs[0][0, 5, 1, 3] = np.nan
    (got,), (want,) = exe(inputs, sizes), run_reference(p, inputs, sizes, "float64")
    assert np.isnan(want[0, 5, 1]).all() and np.isfinite(want[0, :5]).all()
    assert error([got], [want]) < 1e-6


def softmax_program() -> Program:
    b = ProgramBuilder("softmax_matmul")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    return b.finish([b.op("matmul", b.op("softmax", x), w)])


@pytest.mark.parametrize("parts", [(), ((3, 4, 5),), ((5,), (3,)), ((2, 3),), ((4, 5),)], ids=str)
def test_an_exp_on_either_side_keeps_its_maximum(parts: tuple[tuple[int, ...], ...]) -> None:
    p = softmax_program()
    assert [to_axes(p).nodes[i].op for i in (2, 3, 4, 5)] == ["exp", "sum", "div", "matmul"]
    graph = cut(p, *parts)
    assert analyze(graph).safe
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    for n in SIZES:
        sizes = {"m": 3, "k": n, "n": 5}
        inputs = random_inputs(p, sizes)
        inputs[0] *= np.float32(1000)
        assert error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64")) < 2e-5


def test_without_a_maximum_the_same_exp_overflows() -> None:
    """Blocks of a kernel of the exp alone share no maximum: the graph is not safe, and nothing is subtracted."""
    p = softmax_program()
    graph = cut(p, (2,))
    assert "its blocks share no maximum" in analyze(graph).reason
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"m": 3, "k": 7, "n": 5}
    inputs = random_inputs(p, sizes)
    want = run_reference(p, inputs, sizes, "float64")
    assert error(exe(inputs, sizes), want) < 1e-6
    inputs[0] += 1000
    assert not np.isfinite(exe(inputs, sizes)[0]).any()


def many_outputs() -> Program:
    """Results of several operators, one transposed, one that others read, and inputs: one repeated, one as it is."""
    b = ProgramBuilder("many_outputs")
    x, y = b.input("x", tensor("m", "k")), b.input("y", tensor("k", "m"))
    product = b.op("matmul", x, y)
    e = b.op("tanh", product)
    total = b.op("sum", e, axes=(1,))
    return b.finish(
        [
            b.op("transpose", product, perm=(1, 0)),
            product,
            e,
            b.op("transpose", e, perm=(1, 0)),
            total,
            x,
            b.op("repeat", y, axis=0, times=3),
            b.op("repeat", total, axis=0, times=2),
            b.op("reshape", b.op("mul", x, x), shape=("m*k",)),
        ]
    )


MANY = [(), ((2,),), ((3,),), ((2, 3),), ((2,), (4,)), ((3,), (5,)), ((2, 3, 4),)]


@pytest.mark.parametrize("parts", MANY, ids=str)
def test_outputs_of_any_kernel(parts: tuple[tuple[int, ...], ...]) -> None:
    p = many_outputs()
    assert [to_axes(p).nodes[i].op for i in (2, 3, 4, 5)] == ["matmul", "tanh", "sum", "mul"]
    graph = cut(p, *parts)
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    for m, k in [(1, 1), (17, 3), (16, 31)]:
        sizes = {"m": m, "k": k}
        inputs = random_inputs(p, sizes)
        want = run_reference(p, inputs, sizes, "float64")
        found = exe(inputs, sizes)
        assert error(found, want) < 2e-5
        for f in found:
            f[...] = np.nan  # results are nobody else's memory
        assert error(exe(inputs, sizes), want) < 2e-5


@pytest.mark.parametrize("parts", MANY, ids=str)
def test_results_in_given_arrays_of_any_strides(parts: tuple[tuple[int, ...], ...]) -> None:
    p = many_outputs()
    graph = cut(p, *parts)
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"m": 7, "k": 18}
    inputs = random_inputs(p, sizes)
    want = run_reference(p, inputs, sizes, "float64")
    wide = [np.full((*w.shape[:-1], 2 * w.shape[-1]), np.nan, np.float32) for w in want]
    for out in (
        [np.full(w.shape, np.nan, np.float32) for w in want],
        [np.full(w.shape[::-1], np.nan, np.float32).T for w in want],
        [a[..., ::2] for a in wide],
        [a[..., 1::2][..., ::-1] for a in wide],
    ):
        got = exe(inputs, sizes, out)
        assert all(g is o for g, o in zip(got, out, strict=True))
        assert error(out, want) < 2e-5


@pytest.mark.parametrize("parts", [(), ((2,),), ((3,),)], ids=str)
def test_strided_and_unaligned_inputs(parts: tuple[tuple[int, ...], ...]) -> None:
    p = many_outputs()
    graph = cut(p, *parts)
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"m": 7, "k": 18}
    x, y = random_inputs(p, sizes)
    want = run_reference(p, [x, y], sizes, "float64")
    raw = np.zeros(x.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(x.shape)
    odd[...] = x
    reversed_ = np.ascontiguousarray(y[::-1])[::-1]
    reversed_.flags.writeable = False
    for a, b in [(np.asfortranarray(x), reversed_), (odd, np.asfortranarray(y))]:
        assert error(exe([a, b], sizes), want) < 2e-5


def test_bad_arrays_are_refused() -> None:
    p = many_outputs()
    sizes = {"m": 7, "k": 18}
    inputs = random_inputs(p, sizes)
    for parts in MANY[:2]:
        graph = cut(p, *parts)
        exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
        good = exe(inputs, sizes)
        with pytest.raises(InputError, match="takes 2 arrays, got 1"):
            exe(inputs[:1], sizes)
        with pytest.raises(InputError, match="input y has shape"):
            exe([inputs[0], inputs[1].T], sizes)
        with pytest.raises(InputError, match="input x has dtype float64"):
            exe([inputs[0].astype(np.float64), inputs[1]], sizes)
        locked = good[0].copy()
        locked.flags.writeable = False
        for bad in (good[:-1], [*good, good[0]], [good[0].astype(np.float64), *good[1:]], [locked, *good[1:]]):
            with pytest.raises(InputError, match="pass writable arrays"):
                exe(inputs, sizes, bad)
        with pytest.raises(InputError, match="pass writable arrays"):
            exe(inputs, sizes, [good[0][:-1], *good[1:]])


def no_kernel() -> Program:
    b = ProgramBuilder("no_kernel")
    x = b.input("x", tensor("m", "k"))
    return b.finish([x, b.op("transpose", x, perm=(1, 0)), b.op("repeat", x, axis=1, times=2)])


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise NoCompilerError("no C compiler")

    monkeypatch.setattr(toolchain, "find_compiler", none)


def test_a_program_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    p = no_kernel()
    graph = reference_graph(to_axes(p))
    assert schedules(graph, {"m": 3}, 1 << 20, 2) == [Schedule(())]
    exe = CpuExecutable(graph, Schedule(()), analyze(graph))
    assert stages(exe) == ""
    sizes = {"m": 3, "k": 4}
    inputs = random_inputs(p, sizes)
    found = exe(inputs, sizes)
    assert error(found, run_reference(p, inputs, sizes)) == 0
    assert not any(np.may_share_memory(f, inputs[0]) for f in found)


def test_only_graph_defined_kernels_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    p = softmax_program()
    graph = cut(p)
    exe = CpuExecutable(graph, Schedule(()), analyze(graph))
    sizes = {"m": 3, "k": 4, "n": 5}
    inputs = random_inputs(p, sizes)
    assert error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64")) < 1e-6
    with pytest.raises(NoCompilerError):
        mixed = cut(p, (2, 3))
        CpuExecutable(mixed, tiles(mixed, 16), analyze(mixed))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_are_apart_in_memory_and_scalars(dtype: str) -> None:
    """A matmul whose rows are two dims with a batch dim between them, times a constant."""
    b = ProgramBuilder("rows")
    x, w = b.input("x", tensor("m", "h", "r", "k", dtype=dtype)), b.input("w", tensor("h", "k", "n", dtype=dtype))
    rows = b.op("transpose", x, perm=(1, 0, 2, 3))
    product = b.op("matmul", b.op("reshape", rows, shape=("h", "m*r", "k")), w)
    p = b.finish([b.op("mul", product, b.op("constant", value=Fraction(3, 7)))])
    ap = to_axes(p)
    (product_at,) = (i for i, n in enumerate(ap.nodes) if n.op == "matmul")
    for graph in (cut(p), cut(p, (product_at,))):
        turned = []
        for n in graph.kernel.nodes:
            # the result is stored with its rows around the batch dim
            order = tuple((a,) for a in ("r", "n", "h", "m")) if n.op == "matmul" else n.dims[0]
            turned.append(replace(n, dims=(order,)) if n.op != "graph" else n)
        graph = replace(graph, kernel=replace(graph.kernel, nodes=tuple(turned)))
        validate(graph)
        exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
        for size in SIZES:
            sizes = {"m": 2, "h": 3, "r": 5, "k": size, "n": size + 1}
            inputs = random_inputs(p, sizes)
            found = error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64"))
            assert found < (2e-5 if dtype == "float32" else 1e-12)


def test_scalars_of_the_kernel_graph() -> None:
    """A mean whose kernel reads the number of columns, and a constant, as tensors without axes."""
    b = ProgramBuilder("mean")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("mul", b.op("mean", x, axes=(1,)), b.op("constant", value=Fraction(3, 7)))])
    ap = to_axes(p)
    assert [n.op for n in ap.nodes] == ["input", "sum", "size", "div", "constant", "mul"]
    body = block(
        [
            *reads(one("m", "n"), (), ()),
            node("sum", (0,), ("m",), reduce=("n",)),
            node("div", (3, 1), ("m",)),
            node("mul", (4, 2), ("m",)),
        ],
        (5,),
        m=P,
        n=W,
    )
    size, constant = (Node(n.op, (), ((),), n.attrs) for n in (ap.nodes[2], ap.nodes[4]))
    graph = mugraph(ap, [size, constant, kernel(body, (Ref(0), Ref(1), Ref(2)), one("m"))], Ref(3))
    assert prove(ap, graph) == "proved"
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    assert stages(exe) == "lC"
    compare(p, graph, exe)


def test_equal_operators_fill_a_tensor_each() -> None:
    b = ProgramBuilder("equal")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("relu", x), b.op("relu", x)])
    ap = to_axes(p)
    twice = [node("relu", (0,), ("m", "n")), node("relu", (0,), ("n", "m"))]
    graph = mugraph(ap, twice, Ref(1), Ref(2))
    exe = CpuExecutable(graph, Schedule(()), analyze(graph))
    compare(p, graph, exe)
    sizes = {"m": 3, "n": 4}
    first, second = exe(random_inputs(p, sizes), sizes)
    assert not np.may_share_memory(first, second)
    # the same, read by a kernel that adds the two
    add = block([*reads(one("m", "n"), one("n", "m")), node("add", (0, 1), ("m", "n"))], (2,), m=P, n=P)
    b = ProgramBuilder("sum_of_equal")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("mul", b.op("relu", x), b.op("constant", value=Fraction(2)))])
    graph = mugraph(to_axes(p), [*twice, kernel(add, (Ref(1), Ref(2)), one("m", "n"))], Ref(3))
    compare(p, graph, CpuExecutable(graph, tiles(graph, 16), analyze(graph)))


def test_sizes_of_zero() -> None:
    p = softmax_program()
    for parts in ((), ((2, 3),), ((4, 5),)):
        graph = cut(p, *parts)
        exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
        for sizes in ({"m": 0, "k": 3, "n": 2}, {"m": 3, "k": 2, "n": 0}):
            inputs = random_inputs(p, sizes)
            assert error(exe(inputs, sizes), run_reference(p, inputs, sizes)) == 0


def test_calls_from_several_threads() -> None:
    p = many_outputs()
    graph = cut(p, (3,))
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    assert stages(exe) == "lCl"

    def right(seed: int, m: int) -> bool:
        sizes = {"m": m, "k": 7}
        inputs = random_inputs(p, sizes, seed)
        return error(exe(inputs, sizes), run_reference(p, inputs, sizes)) <= 1e-5

    call_from_threads(right)
