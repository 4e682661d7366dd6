"""From groups of operators to kernels: a muGraph built directly where all operators have an axis rule, else a loop program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mirage.compiler.constraints import Constraints
from mirage.compiler.dim_names import with_own_names
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kinds import lowered_binding
from mirage.compiler.lax import lax_program
from mirage.compiler.outline import is_scalar
from mirage.errors import LoopError, MirageError
from mirage.ir.dims import Dim, evaluate, substitute, symbol
from mirage.ir.graph.nodes import Binding, Function, Kernel, MakeTuple, OpCall, Var
from mirage.ir.graph.parse import parse_function
from mirage.ir.graph.text import print_function
from mirage.ir.loops.fuse import Call, can_stitch, fuse
from mirage.ir.loops.program import LoopProgram, extra_dims
from mirage.ir.operator import PRODUCTS, REDUCTIONS
from mirage.ir.requirements import AtMost
from mirage.ir.types import TensorType

#: why a kernel needs two dims to be at most each other
EQUAL_DIMS = "dims that are equal"


def fusible(function: Function) -> bool:
    """Whether one kernel can compute a function of operators."""
    try:
        return loop_program(with_own_names(function)[0]) is not None
    except MirageError:
        return False


def stitchable(function: Function, constraints: Constraints) -> bool:
    """Whether the operators of a function run in one loop nest, whatever the sizes (BladeDISC, section 4.2).

    Products do not: they want other tiles than what is around them.
    """
    if any(isinstance(b.value, OpCall) and b.value.op in PRODUCTS for b in function.bindings):
        return False
    own, dims = with_own_names(function)
    calls = _calls(own)
    if calls is None:
        return False
    try:
        return can_stitch(
            calls, _results(own), lambda a, b: constraints.equal(substitute(a, dims), substitute(b, dims))
        )
    except LoopError:
        return False


def loop_program(function: Function, equal: Callable[[Dim, Dim], bool] | None = None) -> LoopProgram | None:
    """The loop program of a function of operators, its inputs the function's parameters; None where one has no definition.

    Raises LoopError for dim symbols with names of the program (see `with_own_names`).
    """
    calls = _calls(function)
    if calls is None:
        return None
    names = _results(function)
    program = fuse(function.name, calls, names, equal) if equal else fuse(function.name, calls, names)
    types = dict(program.inputs)
    for p in function.parameters:
        # a parameter whose elements nothing reads
        if p.name not in types and isinstance(p.annotation, TensorType):
            types[p.name] = p.annotation
    inputs = tuple((p.name, types[p.name]) for p in function.parameters if p.name in types)
    return replace(program, inputs=inputs) if len(inputs) == len(types) else None


def loops_of(function: Function, equal: Callable[[Dim, Dim], bool]) -> LoopProgram | None:
    """The loop program of a function as `loop_program`, which says what it stands for: `operators` is the function's text, and
    among the `needs` are the equalities of dims that it relies on. So a reader can make it again (`from_operators`).
    """
    assumed: dict[AtMost, None] = {}

    def same(a: Dim, b: Dim) -> bool:
        if a == b:
            return True
        found = equal(a, b)
        if found:
            assumed.update({AtMost(a, b, EQUAL_DIMS): None, AtMost(b, a, EQUAL_DIMS): None})
        return found

    program = loop_program(function, same)
    if program is None:
        return None
    if assumed:
        needs = (*program.needs, *assumed)
        dims = extra_dims(program.input_types, [e for _, e in program.stages], needs)
        program = replace(program, needs=needs, dims=dims)
    return replace(program, operators=print_function(function))


def from_operators(program: LoopProgram) -> LoopProgram | None:
    """What `loops_of` makes of a program's operators and of the equalities among its needs: the program, unless it was altered.

    Raises ParseError, and what the operators raise, for operators that are none.
    """
    known = {(n.small, n.large) for n in program.needs if n.what == EQUAL_DIMS}
    return loops_of(parse_function(program.operators), lambda a, b: {(a, b), (b, a)} <= known)


def _results(function: Function) -> list[str]:
    if not function.bindings:
        raise LoopError(f"{function.name}: it computes nothing; give it an operator")
    last = function.bindings[-1]
    values = last.value.args if isinstance(last.value, MakeTuple) and last.var is function.result else (function.result,)
    return [v.name for v in values if isinstance(v, Var)]


def _calls(function: Function) -> list[Call] | None:
    """The operators of a function as loop programs applied to named values.

    A scalar constant becomes one value per element type that it meets.
    """
    calls: list[Call] = []
    scalars: dict[str, Binding] = {}
    made: set[str] = set()

    def operand(v: Var, dtype: str) -> str:
        if v.name not in scalars:
            return v.name
        name = f"{v.name}_{dtype}"
        if name not in made:
            b = scalars[v.name]
            program = lowered_binding(b, dtype)
            if program is None or not isinstance(b.value, OpCall):
                raise LoopError(f"{v.name} has no loop-level definition")
            given = tuple(operand(a, dtype) for a in b.value.args if isinstance(a, Var))
            calls.append(Call(program, given, (name,)))
            made.add(name)
        return name

    for b in function.bindings:
        if isinstance(b.value, MakeTuple) and b.var is function.result:
            continue
        if is_scalar(b.var.annotation):
            scalars[b.var.name] = b
            continue
        program = lowered_binding(b)
        if program is None or not isinstance(b.value, OpCall) or not all(isinstance(a, Var) for a in b.value.args):
            return None
        variables = [a for a in b.value.args if isinstance(a, Var)]
        args = tuple(operand(v, t.dtype) for v, (_, t) in zip(variables, program.inputs, strict=True))
        calls.append(Call(program, args, (b.var.name,)))
    return calls


def generate(
    function: Function,
    hints: Sequence[Mapping[str, int]],
    bounds: Mapping[str, int],
    constraints: Constraints,
    kernels: KernelMaker,
) -> tuple[Kernel, dict[str, Dim]]:
    """The kernel of a function of operators, and per dim symbol of the kernel the dim of the function that it is.

    `kernels` makes it. `hints` are typical sizes of the function's dim symbols, at which schedules are chosen, and `bounds` the
    most that they can be. Raises LoopError where no kernel can compute the function.
    """
    try:
        lax = lax_program(function)
    except MirageError:
        lax = None
    # tensors that are only moved, or joined element by element, gain nothing from tiles; loops read parts of them where they are
    moved = lax is not None and any(x.moved for x in lax.axes.inputs)
    operators = {n.op for n in lax.axes.nodes} - {"input"} if lax is not None else set()
    # and with a maximum, tiles would hold whole rows
    tiled = not moved and "max" not in operators
    if lax is not None and tiled and operators - {"concat"} and ("concat" not in operators or operators & REDUCTIONS):
        sizes = [{s: evaluate(d, h) for s, d in lax.dims.items()} for h in hints]
        most = {s: bounds[str(d)] for s, d in lax.dims.items() if str(d) in bounds}
        kernel = kernels.fused(lax.program, sizes, bounds=most)
        if kernel is not None:
            return kernel, lax.dims
    own, dims = with_own_names(function)
    program = loops_of(own, lambda a, b: constraints.equal(substitute(a, dims), substitute(b, dims)))
    if program is None:
        raise LoopError(f"{function.name}: no kernel can compute it; it has operators without a loop-level definition")
    given = {s: dims.get(s, symbol(s)) for s in program.symbols}
    return kernels.loops(program, [{s: evaluate(d, h) for s, d in given.items()} for h in hints]), given
