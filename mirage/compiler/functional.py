"""Programs whose functions call themselves, make data or are values: what they compute is compiled as any program.

Functions that need the machine's stack (`mirage.runtime.program`) only move values and decide what is called next. The operators
in them are outlined, as many together as can be, into functions that go through all passes, each as a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import networkx as nx
import numpy as np

from mirage.compiler.batched import batched
from mirage.compiler.context import Context
from mirage.compiler.independent import independent_callees, shared_parameters
from mirage.compiler.list_loops import list_loop
from mirage.compiler.lower import Lowered
from mirage.compiler.memory.buffers import Plan
from mirage.compiler.outline import Group, Outliner, is_scalar
from mirage.compiler.passes.in_place import written_parameters
from mirage.compiler.passes.inline import inline_calls
from mirage.errors import GraphError, InputError
from mirage.ir.annotations import symbols_in
from mirage.ir.dims import symbol
from mirage.ir.graph import nodes
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.effects import callees, is_pure
from mirage.ir.graph.functional import FUNCTIONAL, plain
from mirage.ir.graph.nodes import Atom, Binding, Block, Constant, Function, FunctionCall, Module, ShapeValue, Var
from mirage.ir.graph.order import call_graph, reachable
from mirage.ir.graph.traverse import atoms, determined, signature_symbols, variables
from mirage.ir.types import TensorType
from mirage.runtime import program as vm

#: what computes nothing
_MOVES = (nodes.MakeTuple, nodes.TupleItem)
#: compiles and lowers a module of tensors
LowerModule = Callable[[Module, Context], tuple[Module, Lowered]]


@dataclass
class _Program:
    """Code of all functions, with the kernels, constants and memory plans of those that are compiled."""

    functions: dict[str, vm.VMFunction] = field(default_factory=dict)
    kernels: dict[str, nodes.Kernel] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    plans: dict[str, Plan] = field(default_factory=dict)

    def constant(self, c: Constant) -> int:
        """The number of a constant, which is added."""
        self.constants.append(c.array)
        self.types.append(c.annotation)
        return len(self.constants) - 1

    def add(self, name: str, module: Module, lowered: Lowered) -> None:
        """Add a compiled module, whose main function gets a name, and the others names that begin with it."""
        names = {f: name if f == module.main else f"{name}.{f}" for f in lowered.code.functions}
        kernel, constant = len(self.kernels), len(self.constants)
        self.kernels |= {f"{name}.{k}": made for k, made in module.kernels.items()}
        self.constants += lowered.constants
        self.types += lowered.code.constants
        for f in lowered.code:
            code = tuple(_renamed(i, names, kernel) for i in f.code)
            constants = tuple((r, k + constant) for r, k in f.constants)
            self.functions[names[f.name]] = replace(f, name=names[f.name], code=code, constants=constants)
        self.plans |= {names[f]: p for f, p in lowered.plans.items()}


def _renamed(i: vm.Instruction, names: Mapping[str, str], kernel: int) -> vm.Instruction:
    match i:
        case vm.CallFunction():
            return replace(i, function=names[i.function])
        case vm.If():
            return replace(i, then=names[i.then], orelse=names[i.orelse])
        case vm.Loop():
            return replace(i, body=names[i.body])
        case vm.CallKernel():
            return replace(i, kernel=i.kernel + kernel)
    return i


def compile_functional(
    module: Module, stacked: Collection[str], context: Context, lowered: LowerModule, *, batch: bool = True,
    loops: bool = True,
) -> tuple[Module, Lowered]:
    """The code of a module of which these functions need a stack; `lowered` compiles modules of the others, with `batch` also
    batched forms of those of which several calls may be ready at once, and with `loops` functions over lists as loops.

    The module that comes back has the kernels of all. Raises InputError for a target that has no such stack.
    """
    if not context.kernels.on_host:
        raise InputError(
            f"{module.main}: functions that call themselves, data types and functions as values run on processors only, not on "
            f"{context.kernels.target}"
        )

    def own_context() -> Context:
        # bounds and constants are those of the main function
        return Context(kernels=context.kernels, deadline=context.deadline, report=context.report, say=context.say)

    program = _Program()
    builder = ModuleBuilder(module)
    outlined = [_outlined(module.functions[name], builder, stacked) for name in module.functions if name in stacked]
    called = {name for f in outlined for b in f.bindings for name in callees(b.value)} - set(stacked)
    everything = builder.finish(module.main)
    for f in outlined:
        _check_effects(f, everything, stacked)
    sized: dict[str, tuple[str, ...]] = {}
    flow = replace(everything, functions={**everything.functions, **{f.name: f for f in outlined}})
    together = independent_callees(flow, stacked) if batch else set()
    shared = shared_parameters(flow) if together else {}
    for name in sorted(called):
        f = everything.functions[name]
        sized[name] = f.dims
        own = nx.descendants(call_graph(everything), name)
        functions = {name: _with_shape(f), **{n: g for n, g in everything.functions.items() if n in own}}
        program.add(name, *lowered(Module(functions, module.kernels, name), own_context()))
        found = batched(functions[name], functions, shared[name]) if name in together else None
        if found is not None:
            many, same = found
            program.add(many.name, *lowered(Module({many.name: many}, module.kernels, many.name), own_context()))
            program.functions[name] = replace(program.functions[name], batched=vm.Batched(many.name, tuple(same)))
    for f in outlined:
        program.functions[f.name] = _Lowering(f, program, sized).run()
        loop = list_loop(module.functions[f.name], module.functions, stacked) if loops else None
        if loop is not None:
            plain = {n: g for n, g in module.functions.items() if n not in stacked} | {g.name: g for g in loop.called}
            for g in filter(None, (loop.round, loop.ahead)):
                whole = Module({**plain, g.name: g}, module.kernels, g.name)
                program.add(g.name, *lowered(_only_called(whole), own_context()))
            over = vm.OverList(loop.round.name, loop.scan, loop.ahead.name if loop.ahead else "", loop.given)
            program.functions[f.name] = replace(program.functions[f.name], over_list=over)
    code = vm.VMProgram(program.functions, tuple(program.kernels), tuple(program.types), module.main, tuple(module.data.values()))
    return replace(everything, kernels=program.kernels), Lowered(code, tuple(program.constants), program.plans)


def _only_called(module: Module) -> Module:
    """The module without functions that its main one does not call."""
    called = reachable(module)
    return replace(module, functions={n: f for n, f in module.functions.items() if n in called})


def _check_effects(f: Function, module: Module, stacked: Collection[str]) -> None:
    """Raises GraphError where a function that needs a stack has a tensor written to: others may hold the same one."""
    for b in f.bindings:
        written = isinstance(b.value, nodes.PackedCall) and bool(b.value.in_place)
        for name in callees(b.value):
            if name not in stacked:
                written |= bool(written_parameters(module.functions[name], module.functions))
        if written:
            raise GraphError(
                f"{f'{b.where}: ' if b.where else ''}{f.name}: {b.var.name}: a tensor is written to in place, in a function that "
                "works with data types, recursion or functions as values, where others may hold it; compute a new one, or use "
                "mirage.ref"
            )


def _with_shape(f: Function) -> Function:
    """The function with its extra shape parameters as the dims of a shape: a main function has none."""
    if not f.dims:
        return f
    names = {p.name for p in f.parameters} | {b.var.name for b in f.bindings}
    name = next(n for k in range(len(names) + 1) if (n := f"sizes{k}") not in names)
    return replace(f, dims=(), parameters=(*f.parameters, Var(name, ShapeValue(tuple(symbol(d) for d in f.dims)).annotation)))


def _outlined(f: Function, builder: ModuleBuilder, stacked: Collection[str]) -> Function:
    """The function with groups of operators as functions of their own."""
    called = {name for b in f.bindings if isinstance(b.value, FunctionCall) for name in callees(b.value)} - set(stacked)
    moves = {n for n in called if all(isinstance(b.value, _MOVES) for b in builder.functions[n].bindings)}
    if moves:
        f = inline_calls(f, builder.functions, moves, few=-1)
    f = without_dead(f, builder.functions)
    for number, block in enumerate(f.blocks):
        if not block.dataflow:
            continue
        outliner = Outliner(f, number)
        groups = _groups(block, outliner, stacked, f"{f.name}_part")
        if groups:
            made = outliner.outline(groups, builder)
            f = replace(f, blocks=(*f.blocks[:number], made, *f.blocks[number + 1 :]))
    # what is returned comes last
    bindings = list(f.bindings)
    if all(block.dataflow for block in f.blocks) and isinstance(f.result, Var):
        bindings.sort(key=lambda b: b.var is f.result)
        f = replace(f, blocks=(Block(tuple(bindings)),))
    return f


def without_dead(f: Function, functions: Mapping[str, Function]) -> Function:
    """The function without bindings that nothing uses, but for effects and checks."""
    live = {f.result}
    for b in reversed(f.bindings):
        if b.var in live or not is_pure(b.value, functions) or isinstance(b.value, nodes.MatchCast):
            live |= {b.var, *variables(b.value)}
    blocks = (replace(block, bindings=tuple(b for b in block.bindings if b.var in live)) for block in f.blocks)
    return replace(f, blocks=tuple(block for block in blocks if block.bindings))


def _groups(block: Block, outliner: Outliner, stacked: Collection[str], hint: str) -> list[Group]:
    """Operators that can be computed together: between two calls that need the stack, those that the second waits for; behind the
    last one all others. So an operator is computed with those that read its result, where that is possible.
    """
    bindings = block.bindings
    scalars = {i for i, b in enumerate(bindings) if is_scalar(b.var.annotation)}
    done, groups = set(scalars), []
    cheap = {i for i, b in enumerate(bindings) if isinstance(b.value, Atom | nodes.MakeTuple | nodes.TupleItem)} - scalars
    tensors = {i for i, b in enumerate(bindings) if _outlines(b, stacked)} - cheap - scalars

    def ready(among: set[int], known: set[int]) -> list[int]:
        found: list[int] = []
        for i in sorted(among - known):
            if outliner.needs[i] <= known | set(found):
                found.append(i)
        return found

    def needed_by(i: int) -> set[int]:
        found, left = set(outliner.needs[i]), list(outliner.needs[i])
        while left:
            new = outliner.needs[left.pop()] - found
            found |= new
            left += new
        return found

    while len(done) < len(bindings):
        done |= set(ready(cheap, done))
        waiting = set(range(len(bindings))) - done - tensors - cheap
        wanted = tensors & needed_by(min(waiting)) if waiting else tensors
        group = ready(wanted, done)
        if group:
            needed = _scalars_of(group, outliner, scalars)
            groups.append(Group(tuple(group), tuple(sorted(needed)), hint))
            done |= set(group)
            continue
        # then the next call
        done |= set(ready(waiting, done)[:1])
    return groups


def _scalars_of(group: Sequence[int], outliner: Outliner, scalars: set[int]) -> set[int]:
    found: set[int] = set()
    left = list(group)
    while left:
        new = (outliner.needs[left.pop()] & scalars) - found
        found |= new
        left += new
    return found


def _outlines(b: Binding, stacked: Collection[str]) -> bool:
    """Whether a binding computes tensors from tensors, without a stack."""
    if isinstance(b.value, (*FUNCTIONAL, Var, Constant, ShapeValue, nodes.MatchCast)):
        return False
    if any(name in stacked for name in callees(b.value)):
        return False
    return plain(b.var.annotation) and all(plain(a.annotation) for a in atoms(b.value))


class _Lowering:
    """Code of one function that needs the stack. `sized` has the dims of functions that take these as a shape."""

    def __init__(self, function: Function, program: _Program, sized: Mapping[str, tuple[str, ...]]) -> None:
        self.function, self.program, self.sized = function, program, sized
        self.registers: dict[Var, int] = {}
        self.count = 0
        self.constants: dict[int, tuple[int, int]] = {}
        self.code: list[vm.Instruction] = []
        self.known = signature_symbols(function)
        self.held = set().union(*(symbols_in(p.annotation) for p in function.parameters))

    def run(self) -> vm.VMFunction:
        f = self.function
        for p in f.parameters:
            self.registers[p] = self.fresh()
        for b in self.needed():
            self.binding(b)
        self.code.append(vm.Return(self.value(f.result)))
        parameters = tuple(vm.Parameter(p.name, p.annotation) for p in f.parameters)
        return vm.VMFunction(f.name, parameters, tuple(self.code), self.count, f.dims, tuple(self.constants.values()))

    def needed(self) -> list[Binding]:
        """The bindings but for numbers that only outlined functions read: these have copies."""
        read: set[Atom] = {self.function.result}
        found: list[Binding] = []
        for b in reversed(self.function.bindings):
            if b.var in read or not is_scalar(b.var.annotation):
                read |= set(variables(b.value))
                found.append(b)
        return found[::-1]

    def fresh(self) -> int:
        self.count += 1
        return self.count - 1

    def value(self, a: Atom) -> int:
        match a:
            case Var():
                return self.registers[a]
            case Constant():
                if id(a) not in self.constants:
                    self.constants[id(a)] = (self.fresh(), self.program.constant(a))
                return self.constants[id(a)][0]
        out = self.fresh()
        self.code.append(vm.MakeShape(out, a.dims))
        return out

    def binding(self, b: Binding) -> None:
        value, where = b.value, b.where
        if isinstance(value, Var | Constant | ShapeValue):
            self.registers[b.var] = self.value(value)
            return
        args = tuple(self.value(a) for a in value.args)
        if isinstance(value, nodes.MatchCast):
            self.code.append(vm.MatchShape(args[0], value.annotation, b.var.name, where=where))
            self.registers[b.var] = args[0]
            self.known |= determined([value.annotation], self.known)
            return
        if isinstance(value, FunctionCall) and self.sized.get(value.function):
            args = (*args, self.value(ShapeValue(value.dims)))
        out = self.registers[b.var] = self.fresh()
        self.code.append(self.instruction(b, out, args))
        new = (determined([b.var.annotation], self.known) - self.known) & self.held
        checked = isinstance(value, nodes.PackedCall | nodes.ShapeCall) and plain(b.var.annotation)
        if new or checked:
            # sizes that only the run tells
            self.code.append(vm.MatchShape(out, b.var.annotation, b.var.name, where=where))
            self.known |= new

    def instruction(self, b: Binding, out: int, args: tuple[int, ...]) -> vm.Instruction:
        where = b.where
        match b.value:
            case nodes.Construct(data, index):
                return vm.Construct(out, data, index, args, where=where)
            case nodes.Match(clauses=clauses, dims=dims):
                patterns, functions = tuple(c.pattern for c in clauses), tuple(c.function for c in clauses)
                return vm.Match(out, args[0], patterns, functions, args[1:], dims, where=where)
            case nodes.Closure(name, dims=dims):
                return vm.MakeClosure(out, name, args, dims, where=where)
            case nodes.CallValue():
                return vm.CallValue(out, args[0], args[1:], where=where)
            case nodes.ReferenceCall(kind):
                return vm.Reference(out, kind, args, where=where)
            case FunctionCall(name, dims=dims):
                return vm.CallFunction(out, name, args, () if name in self.sized else dims, where=where)
            case nodes.If(then=then, orelse=orelse, dims=dims):
                return vm.If(out, args[0], then, orelse, args[1:], dims, where=where)
            case nodes.Loop(body=body, carried=carried, count=count, bound=bound, dims=dims):
                times, rest = (args[0], args[1:]) if count is None else (None, args)
                return vm.Loop(out, body, rest[:carried], rest[carried:], count, times, bound, dims, where=where)
            case nodes.MakeTuple():
                return vm.MakeTuple(out, args, where=where)
            case nodes.TupleItem(index=index):
                return vm.GetItem(out, args[0], index, where=where)
            case nodes.ShapeOf():
                return vm.ShapeOf(out, args[0], where=where)
            case nodes.OpCall(op, attrs=attrs):
                return vm.CallOperator(out, op, args, attrs, where=where)
            case nodes.PackedCall(name, attrs=attrs, in_place=in_place):
                return vm.CallPacked(out, name, args, attrs, in_place, where=where)
            case nodes.ShapeCall(name):
                return vm.CallPacked(out, name, args, where=where)
        raise GraphError(f"{self.function.name}: {b.var.name}: {type(b.value).__name__} cannot be lowered")
