"""One function for each of the types that a function with type variables is used at (monomorphization).

Then all types are known where a program is compiled: a function of any type that is used at tensors is inlined and fused as one
of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirage.errors import GraphError
from mirage.ir.annotations import (
    Annotation,
    NeverType,
    TupleType,
    TypeVariable,
    map_dims,
    parts,
    substitute_types,
    symbols_in,
)
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.deduce import pattern_types
from mirage.ir.graph.effects import callees
from mirage.ir.graph.fit import match_dims
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Clause,
    Closure,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    Match,
    Module,
    Var,
)
from mirage.ir.graph.traverse import rename
from mirage.ir.types import TensorType

Types = dict[str, Annotation]


def variables_in(annotation: Annotation) -> set[str]:
    """Names of the type variables."""
    return {a.name for a in parts(annotation) if isinstance(a, TypeVariable)}


def own_dims(types: Mapping[str, Annotation], taken: set[str]) -> tuple[Types, str]:
    """The types with dims of the function's own, none of which is `taken`, and a key that uses of the same types share.

    A dim that is a symbol keeps its name, where that is free.
    """
    names: dict[Dim, Dim] = {}
    symbols = {s for a in types.values() for s in symbols_in(a)}

    def own(d: Dim) -> Dim:
        if symbols_of(d) and d not in names:
            free = d.is_Symbol and d.name not in taken
            fresh = (f"d{k}" for k in range(1 << 16) if f"d{k}" not in taken | symbols)
            names[d] = d if free else symbol(next(n for n in fresh if symbol(n) not in names.values()))
        return names.get(d, d)

    def numbered(d: Dim) -> Dim:
        return symbol(f"k{list(names.values()).index(d)}") if d in names.values() else d

    found = {n: map_dims(a, own) for n, a in types.items()}
    return found, ", ".join(f"{n}={map_dims(a, numbered)}" for n, a in sorted(found.items()))


def grows(before: Mapping[str, Annotation], now: Mapping[str, Annotation]) -> str | None:
    """A type variable whose type is, now, one around what it was before; None where there is none."""
    for n, a in now.items():
        was = before.get(n)
        if was is not None and not isinstance(was, NeverType) and _kind(was) in map(_kind, list(parts(a))[1:]):
            return n
    return None


def _kind(a: Annotation) -> Annotation:
    return map_dims(a, lambda _: None)


def growing(name: str, variable: str, before: Mapping[str, Annotation], now: Mapping[str, Annotation]) -> str:
    """What is said of a function that calls itself at types that grow."""
    return (
        f"call of {name}: within {name} for {variable} = {before[variable]}, it is called for {variable} = {now[variable]}, so "
        "that the types would grow without end (polymorphic recursion); give what grows a data type of its own"
    )


def monomorphic(module: Module) -> Module:
    """The module without type variables; raises GraphError for a function that calls itself at types that grow."""
    if not any(variables_in(p.annotation) for f in module for p in f.parameters):
        return module
    return _Uses(module).run()


@dataclass(frozen=True)
class _Use:
    """A function at some types, and what uses it."""

    function: Function
    name: str
    types: Types
    parent: _Use | None


class _Uses:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[tuple[str, str], _Use] = {}
        self.names = {*module.functions, *module.kernels}
        self.left: list[_Use] = []
        self.functions: dict[str, Function] = {}

    def run(self) -> Module:
        main = self.module.functions[self.module.main]
        self.use(main, {}, None, "")
        while self.left:
            use = self.left.pop(0)
            self.functions[use.name] = self.specialized(use)
        # those that nothing calls have no types
        order = {n: k for k, n in enumerate(self.module.functions)}
        names = sorted(self.functions, key=lambda n: order.get(n, len(order)))
        return replace(self.module, functions={n: self.functions[n] for n in names})

    def use(self, f: Function, types: Types, parent: _Use | None, where: str) -> str:
        """The name of a function at these types, which is made if it is new."""
        own_symbols = set(f.dims).union(*(symbols_in(p.annotation) for p in f.parameters))
        own, key = own_dims(types, own_symbols)
        if (f.name, key) not in self.known:
            above = parent
            while above is not None:
                if above.function is f and (n := grows(above.types, own)) is not None:
                    raise GraphError(f"{f'{where}: ' if where else ''}{growing(f.name, n, above.types, own)}")
                above = above.parent
            # the first use keeps the name
            name, k = f.name, 0
            while name in self.names and any(u.function is f for u in self.known.values()):
                name, k = f"{f.name}_{k}", k + 1
            self.names.add(name)
            self.known[f.name, key] = _Use(f, name, own, parent)
            self.left.append(self.known[f.name, key])
        return self.known[f.name, key].name

    def specialized(self, use: _Use) -> Function:
        f = use.function
        new: dict[Var, Atom] = {p: Var(p.name, substitute_types(p.annotation, use.types)) for p in f.parameters}
        parameters = tuple(new[p] for p in f.parameters)
        blocks = []
        for block in f.blocks:
            bindings = []
            for b in block.bindings:
                value = self.called(use, rename(b, new).value, substitute_types(b.var.annotation, use.types), b.where)
                var = Var(b.var.name, substitute_types(b.var.annotation, use.types))
                new[b.var] = var
                bindings.append(Binding(var, value, b.where))
            blocks.append(replace(block, bindings=tuple(bindings)))
        result = new[f.result] if isinstance(f.result, Var) else f.result
        return Function(use.name, parameters, tuple(blocks), result, f.dims, f.attrs)  # type: ignore[arg-type]

    def called(self, use: _Use, value: Expr, out: Annotation, where: str) -> Expr:
        """An expression whose callees are those of the types that it calls them at."""
        if not callees(value):
            return value
        given = [a.annotation for a in value.args]  # type: ignore[union-attr]

        def at(name: str, args: Sequence[Annotation]) -> str:
            f = self.module.functions[name]
            types: Types = {}
            for p, a in zip(f.parameters[len(f.parameters) - len(args) :], args, strict=True):
                match_dims(p.annotation, a, {}, f"call of {name}: argument {p.name!r}", types)
            free = set().union(*(variables_in(p.annotation) for p in f.parameters), variables_in(f.returns))
            return self.use(f, {n: types.get(n, NeverType()) for n in free}, use, where)

        match value:
            case FunctionCall(name) | Closure(name):
                return replace(value, function=at(name, given))
            case If(then=then, orelse=orelse):
                return replace(value, then=at(then, given[1:]), orelse=at(orelse, given[1:]))
            case Loop(body=body, carried=many):
                fixed = given[(value.count is None) + many :]
                state = out.fields if isinstance(out, TupleType) and many != 1 else (out,)
                return replace(value, body=at(body, [TensorType((), "int64"), *state, *fixed]))
            case Match(clauses=clauses):
                return replace(
                    value,
                    clauses=tuple(
                        Clause(c.pattern, at(c.function, [*pattern_types(c.pattern, given[0]), *given[1:]])) for c in clauses
                    ),
                )
        return value

