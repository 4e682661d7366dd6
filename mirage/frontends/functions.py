"""Functions of a module: the main one, and those under `@function`, each with dim symbols of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirage.errors import GraphError, TraceError
from mirage.frontends.annotate import annotation
from mirage.frontends.data import with_declarations
from mirage.frontends.graph import Assumption, GraphTrace, ModuleTrace, UnknownResult, open_symbols
from mirage.frontends.proxy import TRACE, caller, definition, fail, located
from mirage.frontends.spec import TensorFunction
from mirage.frontends.specialize import polymorphic, types_of_use
from mirage.frontends.trace import check_parameters, program_name
from mirage.ir.annotations import Annotation, TypeVariable, at_least, substitute_types, symbols_in
from mirage.ir.dims import Dim, symbol, symbols_of, to_dim
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.fit import join, match_dims, solve_dims
from mirage.ir.graph.monomorphic import growing, grows, own_dims
from mirage.ir.graph.nodes import Atom, Block, Function, FunctionCall, MatchCast, Module, Var
from mirage.ir.graph.traverse import value_dims
from mirage.ir.program import AttrItems, identifier

#: traces of a function that calls itself in which its result is to be found
MAX_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """A Python function that becomes a function of the module wherever it is called; made by `function`.

    `dims` are the dim symbols that a caller passes by keyword, as shape arguments; `returns` is the type of the result, where
    that is declared.
    """

    name: str
    fn: Callable[..., Any]
    specs: Mapping[str, Annotation]
    dims: tuple[str, ...] = ()
    returns: Annotation | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a traced function; anywhere else, the plain function."""
        trace = TRACE.get(None)
        if trace is None or trace.graph is None:
            return self.fn(*args, **kwargs)
        return _call_function(trace.graph, self, args, kwargs)


def function(
    *, dims: Sequence[str] = (), returns: Any = None, **specs: Any
) -> Callable[[Callable[..., Any]], GraphFunction]:
    """Decorator: `@function(x=tensor("n", "m"))` makes a function that is compiled on its own, with dim symbols of its own.

    Where a traced function calls it, its symbols are bound by the arguments' dims: by those that are a symbol alone, else by
    solving, as n of `tensor("2*n")`. `dims` names symbols that the arguments do not tell: callers pass them by keyword, and the
    function, too, gets them as arguments if it has parameters of these names.

    Types may have type variables (`mirage.type_variable`), and a parameter without one is of any type: the function is compiled
    for each of the types that it is used at.

    The function may call itself, directly or through others, where `mirage.cond` or `mirage.match` chooses between that and a
    case that does not. The type of its result is `returns`, or found from these cases. Raises TraceError for what is no type.
    """
    declared = {name: annotation(f"function: {name}", spec) for name, spec in specs.items()}
    extra = tuple(identifier("dim", d) for d in dims)
    result = None if returns is None else annotation("function: returns", returns)

    def any_types(fn: Callable[..., Any]) -> dict[str, Annotation]:
        """The types of all parameters: any for one that has none, and no default."""
        own = {p.name: p.default is p.empty for p in inspect.signature(fn).parameters.values()}
        free = {p: TypeVariable(f"type_of_{p}") for p, needed in own.items() if needed and p not in declared and p not in extra}
        return {p: declared.get(p) or free[p] for p in own if p in declared or p in free} | declared

    def decorate(fn: Callable[..., Any]) -> GraphFunction:
        if not callable(fn) or isinstance(fn, GraphFunction | TensorFunction):
            raise TraceError(f"function: {fn!r} is not a plain function; decorate a function, once")
        name = program_name(fn)
        specs = any_types(fn)
        check_parameters(fn, name, {*specs, *(d for d in extra if d in inspect.signature(fn).parameters)})
        return GraphFunction(name, fn, specs, extra, result)

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
        module.assumed[active] = Assumption(name, None)
    # where it calls itself in every case, that is said below
    with suppress(UnknownResult):
        result = trace.record(fn, declared, by_name=True)
    if active is not None and module.assumed.pop(active).used:
        # what calls itself is a function that the main one calls
        module = ModuleTrace()
        trace = GraphTrace(module, module.reserve(name))
        result = trace.record(lambda **values: active(**values), declared, by_name=True)
    module.builder.add(trace.function.finish(result, attrs=attrs))
    # the main function first
    functions = {name: module.builder.functions.pop(name), **module.builder.functions}
    return with_declarations(Module(functions, main=name))


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
    if polymorphic(f.specs):
        f, atoms = _specialized(t, f, values)
    else:
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


def _specialized(t: GraphTrace, f: GraphFunction, values: Mapping[str, Any]) -> tuple[GraphFunction, tuple[Atom, ...]]:
    """The function of the types that it is called at, the same for all calls at these, and its arguments.

    Raises TraceError for a function that calls itself at types that grow: there would be no end of functions.
    """
    types, atoms = types_of_use(t, f.name, f.specs, values)
    taken = set(f.dims).union(*(symbols_in(a) for a in f.specs.values()))
    own, key = own_dims(types, taken)
    for g, active in t.module.uses.get(f, {}).values():
        if g in t.module.assumed and (n := grows(active, own)) is not None:
            fail(growing(f.name, n, active, own))
    uses = t.module.uses.setdefault(f, {})
    if key not in uses:
        specs = {p: substitute_types(a, own) for p, a in f.specs.items()}
        returns = None if f.returns is None else substitute_types(f.returns, own)
        uses[key] = replace(f, specs=specs, returns=returns), own
    return uses[key][0], tuple(atoms[p] for p in f.specs)


def _trace_once(module: ModuleTrace, f: GraphFunction) -> str:
    """The name of a function in the module, of which it becomes one when it is first called.

    Of one that calls itself, the result is assumed: what is declared, else nothing at first, and then what a trace finds, until a
    trace finds no more.
    """
    if f in module.traced:
        return module.traced[f]
    if (assumed := module.assumed.get(f)) is not None:
        assumed.used = True
        if assumed.header is None:
            raise UnknownResult(assumed.name)
        module.builder.add(assumed.header)
        return assumed.name
    name = module.reserve(f.name)
    assumed = Assumption(name, None if f.returns is None else _header(f, name, f.returns, True))
    for _ in range(MAX_ROUNDS):
        restore = module.snapshot()
        module.assumed[f] = assumed
        try:
            made = _traced(module, f, name)
        except UnknownResult as e:
            if e.name != name:
                raise
            fail(f"call of {f.name}: it never returns, since each of its cases calls itself; give it one that does not")
        finally:
            del module.assumed[f]
        if f.returns is not None and not at_least(f.returns, made.returns):
            fail(f"call of {f.name}: its result is declared as {f.returns}, but is {made.returns}; correct one of them")
        if not assumed.used:
            made = replace(made, dims=_extra_dims(f, made))
            break
        result, pure = made.returns, is_pure_function(made)
        known = assumed.header
        if known is not None:
            with located():
                result = join(known.returns, result, f"{f.name}: what it returns in several cases")
            if (known.returns, is_pure_function(known)) == (result, pure):
                made = replace(made, dims=known.dims)
                break
        restore()
        assumed = Assumption(name, _header(f, name, result, pure))
    else:
        fail(f"call of {f.name}: its result is another one in every round, {made.returns} at last; declare it with returns=")
    for d in made.dims:
        if d in f.specs:
            fail(f"call of {f.name}: {d!r} is a parameter and a dim that callers pass; rename one of them")
    module.builder.add(made)
    module.traced[f] = name
    return name


def _header(f: GraphFunction, name: str, returns: Annotation, pure: bool) -> Function:
    """The function as its own trace sees it: symbols that no parameter tells by itself are passed."""
    parameters = tuple(Var(p, a) for p, a in f.specs.items())
    alone = {d.name for a in f.specs.values() for d in value_dims(a) if d.is_Symbol}
    solved = set().union(*(symbols_of(d) for a in f.specs.values() for d in value_dims(a))) - alone
    dims = (*f.dims, *sorted(solved - set(f.dims)))
    return Function(name, parameters, () if pure else (Block((), dataflow=False),), Var(name, returns), dims)


def _extra_dims(f: GraphFunction, made: Function) -> tuple[str, ...]:
    solved = open_symbols(made) & set().union(*(symbols_in(a) for a in f.specs.values()), set())
    return (*f.dims, *sorted(solved - set(f.dims)))


def _traced(module: ModuleTrace, f: GraphFunction, name: str) -> Function:
    trace = GraphTrace(module, name)
    trace.add_symbols(set(f.dims))
    parameters = inspect.signature(f.fn).parameters
    sizes = {d: symbol(d) for d in f.dims if d in parameters}
    result = trace.record(partial(f.fn, **sizes), f.specs, by_name=True)
    if f.returns is not None and result.annotation != f.returns and at_least(result.annotation, f.returns):
        result = trace.emit(MatchCast((result,), f.returns), definition(f.fn))
    return trace.function.finish(result)
