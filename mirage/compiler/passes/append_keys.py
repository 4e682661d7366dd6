"""Attention writes the keys and values that it reads, where these are those of a cache with others behind them.

    keys = concat(k_cache, k, axis=2)
    values = concat(v_cache, v, axis=2)
    r = library["cpu.attention", ...](q, keys, values)

A cache that is copied first, and then read, comes from memory twice, where it is larger than the processor's caches. Attention
that copies a few keys and reads them at once reads it once:

    all = library["cpu.attention", ...](q, k_cache, k, v_cache, v, appended=True)
    r, keys, values = all

Where something else reads the keys before the attention, they are copied as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.graph.nodes import Atom, Binding, Expr, Function, LibraryCall, Module, OpCall, TupleItem, Var
from mirage.ir.graph.traverse import variables
from mirage.ir.types import TensorType

_ATTENTION = "cpu.attention"
#: attributes of attention that reads keys in another way than those of `concat` lie
_OTHERS = ("keys", "pages", "values")


def run(module: Module, context: Context) -> Module:
    functions = {f.name: append(f, module.functions) for f in module}
    return Module(functions, module.kernels, module.main)


def append(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function whose attention appends keys; itself where it has none."""
    found = _found(function)
    if not found:
        return function
    gone = {v for a in found.values() for v in a.made}
    r = Rewriter(function, functions)
    for b in function.bindings:
        appended = found.get(b.var)
        if appended is not None:
            whole = r.emit(appended.call(r), name=f"{b.var.name}_appended", where=b.where)
            for place, var in enumerate((b.var, *appended.made)):
                r.replace(var, r.emit(TupleItem((whole,), place), name=var.name, where=b.where))
        elif b.var not in gone:
            r.keep(b)
    return r.finish()


@dataclass(frozen=True)
class _Appended:
    """A call of attention, the keys and values that it reads, and what these are made of."""

    attention: LibraryCall
    made: tuple[Var, Var]
    parts: tuple[Atom, ...]

    def call(self, r: Rewriter) -> LibraryCall:
        call = self.attention
        q, _, _, *rest = call.args
        args = tuple(map(r.read, (q, *self.parts, *rest)))
        made = [v.annotation for v in self.made]
        types = [t for t in made if isinstance(t, TensorType)]
        assert types == made, "attention reads tensors of known rank"
        return replace(call, args=args, out=(*call.out, *types), attrs=(*call.attrs, ("appended", True)))


def _found(function: Function) -> dict[Var, _Appended]:
    """Attention that may append what it reads, by its result."""
    found: dict[Var, _Appended] = {}
    for block in function.blocks:
        made: dict[Var, Expr] = {}
        read: set[Var] = set()
        for b in block.bindings:
            appended = _appends(b, made) if block.dataflow else None
            if appended is not None and not read & set(appended.made):
                found[b.var] = appended
            made[b.var] = b.value
            read |= set(variables(b.value))
    return found


def _appends(b: Binding, made: Mapping[Var, Expr]) -> _Appended | None:
    """The attention of a binding, if its keys and values are made by joining two tensors along the keys."""
    call = b.value
    if not isinstance(call, LibraryCall) or call.function != _ATTENTION or any(name in dict(call.attrs) for name in _OTHERS):
        return None
    _, k, v, *_ = call.args
    if dict(call.attrs).get("right") != (0, 1, 3, 2) or not isinstance(k, Var) or not isinstance(v, Var) or k is v:
        return None
    parts: list[Atom] = []
    for whole in (k, v):
        match made.get(whole):
            case OpCall("concat", (_, _) as two, attrs) if dict(attrs)["axis"] in (2, -2):
                parts += two
            case _:
                return None
    return _Appended(call, (k, v), tuple(parts))
