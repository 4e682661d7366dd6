"""Functions of a module: the main one, and those under `@function`, each with dim symbols of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirage.errors import GraphError, TraceError
from mirage.frontends.annotate import annotation
from mirage.frontends.graph import GraphTrace, ModuleTrace, open_symbols
from mirage.frontends.proxy import TRACE, caller, fail, located
from mirage.frontends.spec import TensorFunction
from mirage.frontends.trace import check_parameters, program_name
from mirage.ir.annotations import Annotation, symbols_in
from mirage.ir.dims import Dim, symbol, symbols_of, to_dim
from mirage.ir.graph.fit import match_dims, solve_dims
from mirage.ir.graph.nodes import FunctionCall, Module
from mirage.ir.program import AttrItems, identifier


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """A Python function that becomes a function of the module wherever it is called; made by `function`.

    `dims` are the dim symbols that a caller passes by keyword, as shape arguments.
    """

    name: str
    fn: Callable[..., Any]
    specs: Mapping[str, Annotation]
    dims: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a traced function; anywhere else, the plain function."""
        trace = TRACE.get(None)
        if trace is None or trace.graph is None:
            return self.fn(*args, **kwargs)
        return _call_function(trace.graph, self, args, kwargs)


def function(*, dims: Sequence[str] = (), **specs: Any) -> Callable[[Callable[..., Any]], GraphFunction]:
    """Decorator: `@function(x=tensor("n", "m"))` makes a function that is compiled on its own, with dim symbols of its own.

    Where a traced function calls it, its symbols are bound by the arguments' dims: by those that are a symbol alone, else by
    solving, as n of `tensor("2*n")`. `dims` names symbols that the arguments do not tell: callers pass them by keyword, and the
    function, too, gets them as arguments if it has parameters of these names. Raises TraceError for what is no type.
    """
    declared = {name: annotation(f"function: {name}", spec) for name, spec in specs.items()}
    extra = tuple(identifier("dim", d) for d in dims)

    def decorate(fn: Callable[..., Any]) -> GraphFunction:
        if not callable(fn) or isinstance(fn, GraphFunction | TensorFunction):
            raise TraceError(f"function: {fn!r} is not a plain function; decorate a function, once")
        name = program_name(fn)
        check_parameters(fn, name, {*declared, *(d for d in extra if d in inspect.signature(fn).parameters)})
        return GraphFunction(name, fn, declared, extra)

    return decorate


def trace_module(fn: Callable[..., Any], specs: Mapping[str, Any] | None = None, *, name: str | None = None) -> Module:
    """The graph module that `fn` computes, for arguments of the types `specs`; its main function is `fn`.

    `specs` gives each parameter its type: `tensor("b", 64)`, `tensor(None, 4)` where only the run tells a dim, `shape("n")`,
    a tuple of these; a parameter with a default that has no spec keeps the default. A function under `@function` or `@program`
    has its own. `fn` returns a value or a tuple of them. Python control flow runs at trace time. `name` defaults to
    the function's.

    Raises TraceError where the function cannot be recorded, and errors of operators (ShapeError and others) with the line of
    `fn` in front. Other exceptions of `fn` propagate.
    """
    plain: Callable[..., Any] = fn
    if isinstance(fn, GraphFunction | TensorFunction):
        plain, given = fn.fn, fn.specs if specs is None else specs
    else:
        given = specs or {}
    if not isinstance(given, Mapping):
        raise TraceError(f"trace_module: specs={given!r} is not a mapping; pass {{'x': mi.tensor(...)}} for a parameter 'x'")
    if not callable(plain):
        raise TraceError(f"trace_module: {fn!r} is not a function")
    if isinstance(fn, GraphFunction) and fn.dims:
        raise TraceError(
            f"{fn.name}: its dims {', '.join(fn.dims)} come from a caller; compile a function that calls it, or give it a "
            f"parameter of type mirage.shape({fn.dims[0]!r})"
        )
    name = program_name(plain, name)
    declared = {p: annotation(f"{name}: {p}", s) for p, s in given.items()}
    check_parameters(plain, name, declared)
    return recorded(name, plain, declared, fn if isinstance(fn, GraphFunction) else None)


def recorded(
    name: str,
    fn: Callable[..., Any],
    declared: Mapping[str, Annotation],
    active: GraphFunction | None = None,
    attrs: AttrItems = (),
) -> Module:
    """The module whose main function is what `fn` computes of parameters that it takes by name, without calling `active`.

    `attrs` are the attributes of the main function.
    """
    module = ModuleTrace()
    trace = GraphTrace(module, module.reserve(name))
    if active is not None:
        module.active.append(active)
    result = trace.record(fn, declared, by_name=True)
    module.builder.add(trace.function.finish(result, attrs=attrs))
    # the main function first
    functions = {name: module.builder.functions.pop(name), **module.builder.functions}
    return Module(functions, main=name)


def _call_function(t: GraphTrace, f: GraphFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    where = caller()
    given = dict(kwargs)
    passed = {d: given.pop(d) for d in f.dims if d in given}
    signature = inspect.signature(f.fn)
    names = [p for p in signature.parameters if p in f.specs]
    if len(args) > len(names):
        fail(f"call of {f.name}: {len(args)} arguments for {len(names)} parameters; pass one for each")
    values = dict(zip(names, args, strict=False))
    for key, value in given.items():
        if key not in f.specs or key in values:
            fail(
                f"call of {f.name}: argument {key!r} is not a parameter that is still open; they are {', '.join(names)}"
            )
        values[key] = value
    missing = [p for p in f.specs if p not in values]
    if missing:
        fail(f"call of {f.name}: no argument for {missing[0]!r}; pass one")
    atoms = tuple(t.value(f"call of {f.name}: argument {p!r}", values[p], a) for p, a in f.specs.items())
    name = _trace_once(t.module, f)
    callee = t.module.builder.functions[name]
    bound: dict[str, Dim] = {}
    with located():
        for d, value in passed.items():
            bound[d] = to_dim(value, f"call of {f.name}: {d}")
            t.check_symbols(symbols_of(bound[d]))
        for p, a, atom in zip(f.specs, f.specs.values(), atoms, strict=True):
            match_dims(a, atom.annotation, bound, f"call of {f.name}: argument {p!r}")
        for a, atom in zip(f.specs.values(), atoms, strict=True):
            solve_dims(a, atom.annotation, bound)
        for d in callee.dims:
            if d not in bound:
                raise GraphError(
                    f"call of {f.name}: the arguments do not tell its dim {d!r}; declare it with dims=({d!r},) and pass {d}=..."
                )
    return t.wrap(t.emit(FunctionCall(name, atoms, tuple(bound[d] for d in callee.dims)), where))


def _trace_once(module: ModuleTrace, f: GraphFunction) -> str:
    if f in module.active:
        circle = " -> ".join(g.name for g in [*module.active[module.active.index(f) :], f])
        fail(f"call of {f.name}: {circle} is a recursion, which graphs do not have; use mirage.loop")
    if f not in module.traced:
        name = module.reserve(f.name)
        trace = GraphTrace(module, name)
        trace.add_symbols(set(f.dims))
        module.active.append(f)
        try:
            parameters = inspect.signature(f.fn).parameters
            sizes = {d: symbol(d) for d in f.dims if d in parameters}
            result = trace.record(partial(f.fn, **sizes), f.specs, by_name=True)
        finally:
            module.active.pop()
        made = trace.function.finish(result)
        solved = open_symbols(made) & set().union(*(symbols_in(a) for a in f.specs.values()), set())
        dims = (*f.dims, *sorted(solved - set(f.dims)))
        for d in dims:
            if d in f.specs:
                fail(f"call of {f.name}: {d!r} is a parameter and a dim that callers pass; rename one of them")
        module.builder.add(replace(made, dims=dims))
        module.traced[f] = name
    return module.traced[f]
