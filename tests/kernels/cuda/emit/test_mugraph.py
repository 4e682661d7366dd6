"""MuGraphs as Triton source, run by Triton's interpreter against float64, and compared with golden files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.gpu.interpret.interpreter import Interpreter
from benchmarks.programs import PROGRAMS
from mirage.errors import DTypeError, GraphError, InputError, ScheduleError
from mirage.ir.axes import to_axes
from mirage.ir.functions import ScalarFunction
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cuda.arguments import divisible
from mirage.kernels.cuda.emit.algebra import FunctionSources, TritonAlgebra, literal
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.emitted import ArgumentKind, PredefinedStep, TritonKernel
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.mugraph.graph import MuGraph, Ref
from tests.kernels.cuda.simple import arguments, error, simple_schedule
from tests.mugraph.graphs import CASES, P, W, block, flash_attention, kernel, mugraph, node, one, reads
from tests.mugraph.loops import CASES as LOOPS
from tests.mugraph.split import twice_split
from tests.programs import retyped, search, widened

HAND = {**{name: make() for name, make in CASES.items()}, **LOOPS, "twice_split": twice_split()}
#: sizes of dims in the second and third run of searched graphs: primes, and one row
PRIMES = {"b": 2, "e": 2, "h": 1, "m": 3, "n": 37, "s": 3, "t": 37, "f": 19}
ROW = {"b": 1, "e": 1, "h": 2, "m": 5, "n": 61, "s": 1, "t": 61, "f": 17}


def changed(schedule: CudaSchedule, **fields: Any) -> CudaSchedule:
    return CudaSchedule(tuple(replace(k, **fields) for k in schedule.kernels))


def larger(sizes: dict[str, int]) -> dict[str, int]:
    """More than one tile along the axes that are looped over."""
    return {s: n + 16 if s in ("k", "m", "n", "t") else n for s, n in sizes.items()}


@pytest.mark.parametrize("name", HAND)
def test_hand_made_graphs_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    case = HAND[name]
    for sizes in (case.sizes, dict.fromkeys(case.sizes, 1), larger(case.sizes)):
        schedule = simple_schedule(case.graph, sizes)
        assert error(interpreter, case.program, case.graph, schedule, sizes) < 16
        swapped = changed(schedule, swap=True)
        assert error(interpreter, case.program, case.graph, swapped, sizes) < 16


@pytest.mark.parametrize("name", ("gated", "joined", "lora", "attention_2d_turned", "shared_factor"))
def test_products_as_sums_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    case = HAND[name]
    for sizes in (case.sizes, dict.fromkeys(case.sizes, 1)):
        schedule = simple_schedule(case.graph, sizes, dot=False)
        assert "tl.dot" not in emit(case.graph, schedule).source
        assert error(interpreter, case.program, case.graph, schedule, sizes) < 16


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("name", ("flash_decoding", "gated", "shares", "lora"))
def test_half_types_agree_with_float64(interpreter: Interpreter, name: str, dtype: str) -> None:
    case = HAND[name]
    program, graph = retyped(case.program, dtype), replace(case.graph, dtype=dtype)
    for rounded in (True, False):
        schedule = changed(simple_schedule(graph, case.sizes), rounded=rounded)
        assert error(interpreter, program, graph, schedule, case.sizes) < (4 if rounded else 1.5)


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [("flash_decoding", ["int8"]), ("gated", ["uint8", "int8"]), ("shares", ["bfloat16"]), ("lora", ["int8", "bfloat16"])],
)
def test_inputs_that_are_widened_agree_with_float64(interpreter: Interpreter, name: str, dtypes: list[str]) -> None:
    case = HAND[name]
    program, stored = case.program, [t for t, _ in zip(itertools.cycle(dtypes), case.graph.inputs, strict=False)]
    for k, dtype in enumerate(stored):
        program = widened(program, dtype, [k])
    graph = replace(case.graph, inputs=tuple(replace(x, dtype=t) for x, t in zip(case.graph.inputs, stored, strict=True)))
    for sizes in (case.sizes, dict.fromkeys(case.sizes, 1)):
        for dot in (True, False):
            assert error(interpreter, program, graph, simple_schedule(graph, sizes, dot=dot), sizes) < 16


def agreeing(interpreter: Interpreter, name: str, most: int) -> None:
    """Some of a program's searched graphs agree with float64 at three sizes each."""
    program = PROGRAMS[name].trace()
    graphs = search(name).graphs
    assert graphs
    chosen = graphs[:: max(len(graphs) // most, 1)][:most]
    for graph in chosen:
        for table in (dict.fromkeys(PRIMES, 1), PRIMES, ROW):
            sizes = {s: table[s] for s in program.symbols()}
            assert error(interpreter, program, graph, simple_schedule(graph, sizes), sizes) < 100


@pytest.mark.parametrize("name", ("rmsnorm_linear", "mqa_decode", "lora", "softmax", "rms_norm"))
def test_searched_graphs_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    agreeing(interpreter, name, most=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_every_program_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    agreeing(interpreter, name, most=8)


@pytest.mark.parametrize("name", ("flash_attention", "flash_decoding", "gated", "joined", "split_lora"))
def test_source_is_as_before(name: str, golden: Callable[[str, str], None]) -> None:
    case = HAND[name]
    sizes = {s: 64 for s in case.sizes}
    golden(f"cuda_{name}.py.txt", emit(case.graph, simple_schedule(case.graph, sizes)).source)


def one_operator(program: Program) -> MuGraph:
    """A program of elementwise operators as one kernel."""
    p = to_axes(program)
    nodes = reads(*(x.dims for x in p.inputs))
    nodes += [node(n.op, n.operands, n.axes, attrs=n.attrs) for n in p.nodes if n.op != "input"]
    roles = dict.fromkeys(p.outputs[0].dims[0] + p.outputs[0].dims[1], P)
    body = block(nodes, (len(nodes) - 1,), **roles)
    return mugraph(
        p, [kernel(body, tuple(Ref(i) for i in range(len(p.inputs))), p.outputs[0].dims)], Ref(len(p.inputs))
    )


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": mi.exp,
    "sqrt": lambda x: mi.sqrt(mi.abs(x)),
    "sigmoid": mi.sigmoid,
    "silu": mi.silu,
    "tanh": mi.tanh,
    "gelu": mi.gelu,
    "log": lambda x: mi.log(mi.abs(x)),
    "relu": mi.relu,
    "clamp": lambda x: mi.clamp(x, -0.5, 0.75),
    "log_step": lambda x: mi.exp(mi.log_step(x)),
    "floor": mi.floor,
    "ceil": mi.ceil,
    "round": mi.round,
    "sin": mi.sin,
    "cos": mi.cos,
    "cube": lambda x: mi.pow(x, 3),
    "inverse square": lambda x: mi.pow(x, -2),
    "root": lambda x: mi.pow(mi.abs(x), 0.3),
    "high power": lambda x: mi.pow(x, 17),
    "negative high power": lambda x: mi.pow(mi.abs(x) + 1, -18),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_float64(interpreter: Interpreter, name: str) -> None:
    program = mi.trace(lambda x: FUNCTIONS[name](x), "function", x=mi.tensor("m", "n"))
    graph = one_operator(program)
    sizes = {"m": 16, "n": 67}
    x = np.linspace(-4.5, 4.5, 16 * 67, dtype=np.float32).reshape(16, 67)
    x[0, :9] = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e-3, -1e-4, 0.25]
    (found,) = interpreter.run(emit(graph, simple_schedule(graph, sizes)), graph, [x], sizes)
    (want,) = run_reference(program, [x], sizes, "float64")
    np.testing.assert_allclose(found, want, rtol=3e-6, atol=1e-7 if name in ("sin", "cos", "gelu") else 1e-30)


def test_large_exponents_do_not_overflow(interpreter: Interpreter) -> None:
    case = HAND["flash_decoding"]
    given = arguments(case.program, case.sizes, scale=30.0)
    (found,) = interpreter.run(emit(case.graph, simple_schedule(case.graph, case.sizes)), case.graph, given, case.sizes)
    (want,) = run_reference(case.program, given, case.sizes, "float64")
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-3)


def test_predefined_operators_are_steps_of_their_own() -> None:
    case = CASES["library"]()
    emitted = emit(case.graph, CudaSchedule(()))
    assert all(isinstance(s, PredefinedStep) for s in emitted.steps)
    assert "@triton.jit" not in emitted.source


def test_arguments_are_those_of_the_function_in_order() -> None:
    case = flash_attention()
    emitted = emit(case.graph, simple_schedule(case.graph, case.sizes))
    (step,) = emitted.kernels
    assert isinstance(step, TritonKernel)
    head = emitted.source.split("def kernel_0(")[1].split("):")[0]
    names = [x.strip().split(":")[0] for x in head.split(",") if x.strip()]
    assert names == [*(a.name for a in step.arguments), *step.constexprs]
    heads = next(a for a in step.arguments if a.kind is ArgumentKind.STRIDE and a.name == "p0_h")
    assert (heads.tensor, heads.dim, heads.value) == (0, 1, 8)


# What cannot be printed says why.


def elementwise_case() -> tuple[MuGraph, CudaSchedule]:
    program = mi.trace(lambda x: mi.exp(x), "function", x=mi.tensor("m", "n"))
    graph = one_operator(program)
    return graph, simple_schedule(graph, {"m": 8, "n": 8})


def test_alignment_is_declared_where_neighbours_lie() -> None:
    """Of rows, which are strides apart, it would make two kernels of one."""
    graph = HAND["gated"].graph
    (step,) = emit(graph, simple_schedule(graph, HAND["gated"].sizes)).kernels
    sizes = {a.name: a.declared for a in step.arguments if a.kind is ArgumentKind.SIZE}
    assert sizes == {"n_m": False, "n_k": True, "n_n": True}
    assert all(a.declared for a in step.arguments if a.kind is not ArgumentKind.SIZE)
    values = {a.name: 32 for a in step.arguments}
    assert divisible(step, values, range(4)) == {a.name for a in step.arguments} - {"n_m"}


def test_double_precision_is_refused() -> None:
    graph, schedule = elementwise_case()
    with pytest.raises(DTypeError, match="float64 has no CUDA kernels"):
        emit(replace(graph, dtype="float64"), schedule)


def test_unknown_functions_are_refused() -> None:
    own = ScalarFunction("wiggle", np.sin, "wiggle")
    with pytest.raises(GraphError, match="wiggle: there is no Triton code"):
        TritonAlgebra(FunctionSources()).function(own, "x")


def test_functions_of_the_user_bring_their_code() -> None:
    sources = FunctionSources()
    own = ScalarFunction("wiggle", np.sin, "wiggle", triton="wiggle({x}, {0})", triton_source="def wiggle")
    assert TritonAlgebra(sources).function(own, "x", Fraction(1, 2)) == "wiggle(x, 0.5)"
    assert list(sources.sources) == ["def wiggle"]


def test_whole_axes_need_rooms() -> None:
    program = mi.trace(lambda x: mi.sum(x, axis=1), "total", x=mi.tensor("m", "n"))
    p = to_axes(program)
    body = block([*reads(p.inputs[0].dims), node("sum", (0,), ("m",), reduce=("n",))], (1,), m=P, n=W)
    graph = mugraph(p, [kernel(body, (Ref(0),), one("m"))], Ref(1))
    with pytest.raises(ScheduleError, match=r"axis n .* is held whole .* room"):
        emit(graph, CudaSchedule((CudaKernelSchedule((("m", 8),)),)))


def test_tiles_are_powers_of_two() -> None:
    graph, _ = elementwise_case()
    with pytest.raises(ScheduleError, match="axis n has a tile or room of 12"):
        emit(graph, CudaSchedule((CudaKernelSchedule((("m", 8), ("n", 12))),)))


def test_huge_block_tensors_name_their_node() -> None:
    graph, _ = elementwise_case()
    with pytest.raises(ScheduleError, match=r"kernel 0, node 0 \(input \[m, n\]\): a block tensor of 4194304 elements"):
        emit(graph, CudaSchedule((CudaKernelSchedule((("m", 2048), ("n", 2048))),)))


def test_literals_are_read_back() -> None:
    assert literal(Fraction(1, 8)) == "0.125"
    assert literal(Fraction(10**400)) == 'float("inf")'
    assert literal(Fraction(-(10**400))) == 'float("-inf")'


def test_sizes_are_nodes_of_their_own() -> None:
    b = ProgramBuilder("mean")
    x = b.input("x", tensor("m", "n"))
    with pytest.raises(GraphError, match="sizes as nodes"):
        TritonAlgebra(FunctionSources()).dim(b.finish([x]).nodes[0].type.shape[0])


def test_sizes_beyond_the_room_are_refused(interpreter: Interpreter) -> None:
    case = LOOPS["shares_after"]
    emitted = emit(case.graph, simple_schedule(case.graph, case.sizes))
    sizes = {"m": 3, "t": 1000}
    with pytest.raises(InputError, match=r"axis t has size \d+; this schedule has room for 16"):
        interpreter.run(emitted, case.graph, arguments(case.program, sizes), sizes)


def test_arguments_of_other_shapes_are_refused(interpreter: Interpreter) -> None:
    case = flash_attention()
    emitted = emit(case.graph, simple_schedule(case.graph, case.sizes))
    given = arguments(case.program, case.sizes)
    with pytest.raises(InputError, match="k: expected float32"):
        interpreter.run(emitted, case.graph, [given[0], given[0], given[2]], case.sizes)
