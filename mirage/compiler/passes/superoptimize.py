"""Lax subprograms become calls of verified kernels, found by a search or in the results cache (Mirage, Fig. 1).

The function of a subprogram keeps its signature and calls the kernel; inlining then puts the call into its callers. Equal
subprograms, as the layers of a model have them, share one kernel. The budget is divided by the square root of the time that each
may gain: what libraries and fusion take, as measured, without the least that the machine allows. Where no kernel is better than
these, the subprogram becomes an ordinary function, which is left to them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from mirage.compiler.context import Context, Sizes, Subprogram
from mirage.compiler.lax import LaxProgram, lax_program
from mirage.compiler.sizes import sizes_of_functions
from mirage.ir.annotations import TupleType
from mirage.ir.dims import Dim, evaluate
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import Function, FunctionCall, KernelCall, Module, Var
from mirage.ir.types import TensorType
from mirage.kernels.cpu.model.limits import program_cost
from mirage.progress import Step

#: what the memory moves is compared with what is computed as if a byte took as long as so many operations
_FLOPS_PER_BYTE = 16
#: bytes that the smallest subprogram is taken for: its launch counts, too; and for how many of them a second is gained
_LEAST_BYTES, _BYTES_PER_SECOND = 1 << 17, 1e11
#: share of the time in which it is measured what subprograms may gain
_PROMISE_SHARE = 0.15
#: seconds in which a search finds something, and that is compared: those that would have less have what others leave
_LEAST_SECONDS = 2.5


def run(module: Module, context: Context) -> Module:
    found = subprograms(module)
    if context.superoptimizer is None or not found:
        return module
    sizes = sizes_of_functions(module, context.sizes)
    builder = ModuleBuilder(module)
    works = [_work(module, f, sizes, context) for f in found]
    shares = {key: gain**0.5 for key, gain in _gains(works, context).items()}
    # what may gain most comes first: what takes longer than its share is missing at the end
    works.sort(key=lambda w: -shares[w.key])
    # equal ones are one piece of work
    budgets = _budgets({w.key: shares[w.key] for w in works}, context.seconds_left)
    kernels: dict[Any, str | None] = {}
    for k, w in enumerate(works):
        if w.key not in kernels:
            start = time.perf_counter()
            context.say(Step("subprograms", w.function.name, k, len(found)))
            kernel, outcome = context.superoptimizer(w.lax.program, w.anchors, w.constants, budgets[w.key])
            spent = time.perf_counter() - start
            if kernel is None:
                kernels[w.key] = None
                context.report.fallbacks.append(f"{w.function.name}: {outcome}")
            else:
                name = kernels[w.key] = builder.add_kernel(f"{w.function.name}_kernel", kernel)
                operators = sum(n.op not in ("input", "constant", "size") for n in w.lax.axes.nodes)
                context.report.subprograms.append(Subprogram(name, operators, outcome, spent))
        chosen = kernels[w.key]
        builder.add(left(w.function) if chosen is None else calling(w.function, builder, chosen, w.lax.dims))
    return builder.finish(module.main)


def subprograms(module: Module) -> list[Function]:
    """The functions that are to be superoptimized."""
    return [f for f in module if f.attr.get("origin") == "lax"]


def left(function: Function) -> Function:
    """The function without what says that it is a subprogram: inlining writes it out again."""
    return replace(function, attrs=tuple(pair for pair in function.attrs if pair[0] != "origin"))


@dataclass(frozen=True)
class _Work:
    """A subprogram to search, with the names of its constant inputs: `key` is equal for equal ones."""

    function: Function
    lax: LaxProgram
    anchors: list[Sizes]
    constants: list[str]
    key: Any


def _work(module: Module, function: Function, sizes: Mapping[str, list[dict[str, int]]], context: Context) -> _Work:
    lax = lax_program(function)
    constants = _constants(module, function, context)
    anchors = _anchors(lax, sizes.get(function.name, []))
    key = (lax.program.nameless(), constants, tuple(tuple(a.items()) for a in anchors))
    names = lax.program.input_names
    return _Work(function, lax, anchors, [names[i] for i in constants], key)


def _gains(works: Sequence[_Work], context: Context) -> dict[Any, float]:
    """By how many seconds calls of each subprogram may become faster, by its key: measured where there is time, which those of
    many operators have first, as libraries do single ones well; else a part of what they take as modelled.
    """
    gains = {w.key: _modelled(w) for w in works}
    stop = time.perf_counter() + _PROMISE_SHARE * context.seconds_left
    if context.promise is not None and len(gains) > 1 and context.seconds_left > _LEAST_SECONDS:
        firsts = {w.key: w for w in reversed(works)}
        for w in sorted(firsts.values(), key=lambda w: -len(w.lax.program.nodes)):
            if time.perf_counter() < stop:
                gains[w.key] = context.promise(w.lax.program, w.anchors, w.constants)
    return gains


def _modelled(w: _Work) -> float:
    costs = [program_cost(w.lax.axes, at) for at in w.anchors]
    return sum(_LEAST_BYTES + moved + flops / _FLOPS_PER_BYTE for moved, flops in costs) / _BYTES_PER_SECOND or 1.0


def _budgets(shares: Mapping[Any, float], seconds: float) -> dict[Any, float]:
    """The seconds by these shares, which go down: for as many as can have `_LEAST_SECONDS`, but for one in any case."""
    totals = list(accumulate(shares.values()))
    enough = [seconds * share >= _LEAST_SECONDS * total for share, total in zip(shares.values(), totals, strict=True)]
    n = max((k + 1 for k, e in enumerate(enough) if e), default=1)
    return {key: seconds * share / totals[n - 1] * (k < n) for k, (key, share) in enumerate(shares.items())}


def _anchors(lax: LaxProgram, sizes: list[dict[str, int]]) -> list[Sizes]:
    """The sets of sizes of the program's symbols; a tuned size is at least 1."""
    found: list[Sizes] = []
    for s in sizes:
        one = {name: max(evaluate(d, s), 1) for name, d in lax.dims.items()}
        if one not in found:
            found.append(one)
    return found


def _constants(module: Module, function: Function, context: Context) -> tuple[int, ...]:
    """Positions of the parameters that every call gives a constant parameter of the main function."""
    positions: set[int] = set(range(len(function.parameters)))
    called = False
    for caller in module:
        for b in caller.bindings:
            if isinstance(b.value, FunctionCall) and b.value.function == function.name:
                called = True
                own = set(caller.parameters) if caller.name == module.main else set()
                positions &= {
                    i
                    for i, a in enumerate(b.value.args)
                    if isinstance(a, Var) and a in own and a.name in context.constants
                }
    return tuple(sorted(positions)) if called else ()


def calling(function: Function, builder: ModuleBuilder, kernel: str, dims: Mapping[str, Dim]) -> Function:
    """The function as one call of a kernel, whose dim symbols are these dims of the function."""
    returns = function.returns
    out = returns.fields if isinstance(returns, TupleType) else (returns,)
    tensors = tuple(t for t in out if isinstance(t, TensorType))
    b = FunctionBuilder(function.name, builder.functions)
    for p in function.parameters:
        b.names.add(p.name)
        b.parameters.append(p)
    given = tuple(p for p in function.parameters if isinstance(p.annotation, TensorType))
    call = KernelCall(kernel, given, tensors, tuple(dims.values()))
    result = b.emit(call, where=function.bindings[-1].where)
    # an ordinary function now, which inlining may write out
    return b.finish(result, dims=function.dims)
