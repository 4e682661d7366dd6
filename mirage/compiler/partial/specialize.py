"""A module with some of its parameters known: the partial evaluator from the main function on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage.compiler.functional import without_dead
from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.evaluator import Evaluator
from mirage.compiler.partial.frame import Frame, enter
from mirage.compiler.partial.program import Program, Request
from mirage.compiler.partial.residual import Residual, open_dims
from mirage.compiler.partial.trampoline import run
from mirage.compiler.partial.values import Value, in_order
from mirage.errors import InputError, MirageError
from mirage.ir.annotations import DataType, at_least, parts, substitute_dims, symbols_in
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.nodes import Function, FunctionCall, Module, Var
from mirage.ir.graph.order import call_graph, components, reachable
from mirage.ir.graph.traverse import signature_symbols

#: the attribute of a main function that says which calls were not written out, and why
STOPPED = "not_unrolled"


def specialize_module(module: Module, known: Mapping[str, Value], budget: Budget) -> Module:
    """The module whose main function has these parameters no more.

    Dims that known values tell are numbers in the module. The attribute `STOPPED` of the main function says which functions were
    not unrolled as far as they could be. Raises InputError for known tensors that may be written to, GraphError and others where
    a value cannot fit, or every run fails.
    """
    program = Program(module, budget)
    e = Evaluator(program)
    main = module.functions[module.main]
    for p in main.parameters:
        if p.name in known and program.is_own(main, p) and any(v.array is not None for v in in_order([known[p.name]], _parts)):
            raise InputError(
                f"{main.name}: known {p.name!r}: a tensor in it may be written to in place; leave it an argument, or pass "
                "its type"
            )
    if known:
        # others may call it, too
        program.rename(main.name)
        program.functions[main.name] = _main(e, main, known)
    else:
        program.general(main.name)
    while program.waiting:
        waiting = program.waiting.pop(0)
        made = _request(e, waiting) if isinstance(waiting, Request) else _general(e, waiting)
        program.functions[made.name] = made
    return _finished(program)


def _parts(v: Value) -> tuple[Value, ...]:
    return v.parts


def _main(e: Evaluator, f: Function, known: Mapping[str, Value]) -> Function:
    dims: dict[str, Dim] = {}
    for p in f.parameters:
        if p.name in known:
            match_dims(p.annotation, known[p.name].annotation, dims, f"{f.name}: {p.name}")
    r = e.residual(f.name)
    values = {}
    for p in f.parameters:
        if p.name not in known:
            values[p] = r.parameter(p.name, substitute_dims(p.annotation, dims))
            continue
        values[p] = known[p.name]
        for v in in_order([known[p.name]], _parts):
            if v.form is None and v.atom is None:
                v.atom = r.parameter(v.name, v.annotation).atom
    return r.finish(run(e.body(r, enter(r, f, list(values.values()), (), ""))), f.attrs)


def _general(e: Evaluator, name: str) -> Function:
    """A function of whose arguments nothing is known, evaluated as far as it can be."""
    f = e.module.functions[name]
    header = e.program.functions[e.program.general(name)]
    r = e.residual(header.name, f.dims)
    values = {p: r.parameter(p.name, p.annotation) for p in f.parameters}
    try:
        result = run(e.body(r, _frame(r, f, values)))
        return r.finish(_as(r, result, header), f.attrs)
    except MirageError:
        return e.program.copied(f)


def _frame(r: Residual, f: Function, values: Mapping[Var, Value]) -> Frame:
    """The frame of a function under its own name, whose dims are its own."""
    own = signature_symbols(f).union(f.dims, *(symbols_in(p.annotation) for p in f.parameters))
    r.symbols |= own
    return Frame(f, {s: symbol(s) for s in own}, dict(values))


def _request(e: Evaluator, request: Request) -> Function:
    """A branch for what is known of what it is handed on; where it cannot be evaluated, a call of the branch as it was."""
    header = e.program.functions[request.name]
    original = e.module.functions[request.original]
    if header.result in header.parameters:
        return header

    def begin() -> tuple[Residual, list[Value]]:
        r = e.residual(request.name, header.dims)
        bound = [r.parameter(p.name, a) for p, a in zip(original.parameters, request.bound, strict=False)]
        leaves = [r.parameter(v.name, v.annotation) for v in request.handed.leaves]
        return r, [*bound, *request.handed.opened(leaves)]

    r, args = begin()
    try:
        result = run(e.body(r, enter(r, original, args, request.dims, "")))
        return r.finish(_as(r, result, header), original.attrs)
    except MirageError:
        r, args = begin()
        call = FunctionCall(e.program.general(request.original), tuple(map(r.atom, args)), request.dims)
        return r.finish(r.emit(call), original.attrs)


def _as(r: Residual, result: Value, header: Function) -> Value:
    """The result of a function as its callers expect it."""
    wanted = open_dims(header.returns, r.known)
    r.atom(result)
    return result if at_least(wanted, result.annotation) else r.cast(result, wanted)


def _finished(program: Program) -> Module:
    """The module that is left, without what nothing uses; blocks are as pure as they have become."""
    module = Module(program.functions, program.module.kernels, program.module.main, program.module.data)
    names = reachable(module)
    functions = {n: f for n, f in program.functions.items() if n in names}
    groups = components(call_graph(replace(module, functions=functions)))
    for group in groups:
        for name in group:
            functions[name] = without_dead(_as_pure(functions[name], functions), functions)
    module = replace(module, functions=functions)
    names = reachable(module)
    main = functions[module.main]
    stopped = "; ".join(program.stopped.values())
    if stopped:
        main = replace(main, attrs=(*(a for a in main.attrs if a[0] != STOPPED), (STOPPED, stopped)))
    functions = {n: main if n == module.main else functions[n] for n in (module.main, *functions) if n in names}
    return replace(module, functions=functions, data=module.data if _has_data(functions) else {})


def _as_pure(f: Function, functions: Mapping[str, Function]) -> Function:
    """The function with its bindings in blocks as they are by now."""
    builder = FunctionBuilder(f.name, functions)
    builder.parameters.extend(f.parameters)
    builder.bind_all(f.bindings)
    return builder.finish(f.result, dims=f.dims, attrs=f.attrs)


def _has_data(functions: Mapping[str, Function]) -> bool:
    """Whether there is a value of a data type in these functions."""
    annotations = (v.annotation for f in functions.values() for v in (*f.parameters, *(b.var for b in f.bindings), f.result))
    return any(isinstance(a, DataType) for annotation in annotations for a in parts(annotation))
