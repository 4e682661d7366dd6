"""Small pure functions are written out where they are called, so that fusion and planning see across the call.

A function is inlined if it is called once, or has at most `FEW` bindings. Branches, loop bodies and functions that a pass has
made (with an "origin" among their attributes) stay functions. The callee's dims become the caller's, and what its signature
would check at run time is checked by casts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter
from mirage.compiler.passes.signatures import Fit, calls_by_callee, fit
from mirage.ir.annotations import symbols_in
from mirage.ir.dims import Dim, substitute, symbol
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import Atom, Binding, Function, FunctionCall, MatchCast, Module, ShapeValue, Var
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import determined, signature_symbols, symbols_used, with_atoms, with_dims

#: bindings of a function that is inlined wherever it is called
FEW = 8


def run(module: Module, context: Context) -> Module:
    """The module with small functions inlined; callees before callers, so that a function is inlined as it has become."""
    calls = calls_by_callee(module)
    once = {name for name, found in calls.items() if len(found) == 1 and isinstance(found[0][1], FunctionCall)}
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = inline_calls(functions[name], functions, once - {module.main})
    return Module(functions, module.kernels, module.main)


def inline_calls(
    function: Function, functions: Mapping[str, Function], once: Collection[str], few: int = FEW
) -> Function:
    """The function with calls inlined; `once` names the functions of any size that are called at one place only, or for another
    reason inlined; others have at most `few` bindings then.
    """
    r = _Inliner(function, functions)
    for b in function.bindings:
        value = r.current(b)
        if isinstance(value, FunctionCall) and is_inlined(functions[value.function], once, few):
            r.replace(b.var, r.inline(value, b))
        else:
            r.keep(b, value)
    return r.finish()


def is_inlined(callee: Function, once: Collection[str], few: int = FEW) -> bool:
    """Whether calls of a function are inlined."""
    if "origin" in callee.attr or not is_pure_function(callee):
        return False
    return callee.name in once or len(callee.bindings) <= few


def _in_order(callee: Function, found: Fit) -> Iterator[int]:
    """The arguments to check, each behind those that determine the symbols in its dims."""
    known = set(found.values)
    left = list(found.unchecked)
    while left:
        annotations = {i: callee.parameters[i].annotation for i in left}
        ready = (i for i in left if symbols_in(annotations[i]) <= determined([annotations[i]], known))
        i = next(ready, left[0])
        known |= determined([annotations[i]], known)
        left.remove(i)
        yield i


class _Inliner(Rewriter):
    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        super().__init__(function, functions)
        self.symbols = signature_symbols(function) | set().union(*(symbols_used(b.value) for b in function.bindings))

    def inline(self, call: FunctionCall, site: Binding) -> Atom:
        """The callee's bindings under names of their own; returns the result."""
        callee = self.functions[call.function]
        found = fit(callee, [a.annotation for a in call.args], call.dims)
        values = self._symbols(callee, found.values)
        new: dict[Var, Atom] = {}
        args = list(call.args)
        for i in _in_order(callee, found):
            args[i] = self._checked(callee.parameters[i], args[i], values, site)
        new.update(zip(callee.parameters, args, strict=True))

        def read(atom: Atom) -> Atom:
            return new[atom] if isinstance(atom, Var) else atom

        for b in callee.bindings:
            value = with_atoms(with_dims(b.value, lambda d: substitute(d, values)), read)
            new[b.var] = self.emit(value, name=b.var.name, where=b.where or site.where)
        result = callee.result
        if isinstance(result, ShapeValue):
            return ShapeValue(tuple(substitute(d, values) for d in result.dims))
        return read(result)

    def _symbols(self, callee: Function, known: Mapping[str, Dim]) -> dict[str, Dim]:
        """Values of all symbols of a callee: those that it introduces itself get names that are free here."""
        own = signature_symbols(callee)
        for b in callee.bindings:
            own |= symbols_used(b.value)
        values = dict(known)
        for name in sorted(own - known.keys()):
            fresh, k = name, 0
            while fresh in self.symbols:
                fresh, k = f"{name}_{k}", k + 1
            self.symbols.add(fresh)
            values[name] = symbol(fresh)
        return values

    def _checked(self, parameter: Var, arg: Atom, values: Mapping[str, Dim], site: Binding) -> Atom:
        cast = with_dims(MatchCast((arg,), parameter.annotation), lambda d: substitute(d, values))
        return self.emit(cast, name=parameter.name, where=site.where)
