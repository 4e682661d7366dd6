"""Loops that write one slice of a tensor in each round write it in place, where nobody else can see the tensor.

A loop that keeps something of every round, as the gradient of a loop does, carries a tensor of which each round returns a copy
with one more slice, so that its time grows with the square of the rounds. Where the tensor is made for the loop, is read in the
body by nothing but the `scatter` whose result is carried on, and is not used beside, that result is written over it. A tensor
that is made of nothing, such as zeros, is made again for each loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Function,
    KernelCall,
    Loop,
    MakeTuple,
    Module,
    OpCall,
    PackedCall,
    Var,
)
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import uses

#: the operator and the effect that does the same in place
_OPERATOR, _EFFECT = "scatter", "scatter_"


def run(module: Module, context: Context) -> Module:
    """The module with such loops, whose bodies have effects then."""
    calls = Counter(name for f in module for b in f.bindings for name in callees(b.value))
    #: by the name of a body: its results that are written over a parameter, and the positions of these among the carried values
    written: dict[str, dict[Var, int]] = {}
    for f in module:
        for b in f.bindings:
            if isinstance(b.value, Loop) and calls[b.value.body] == 1 and b.value.body != module.main:
                found = _stacks(f, b.value, module.functions[b.value.body])
                if found:
                    written[b.value.body] = found
    if not written:
        return module
    functions: dict[str, Function] = {}
    for name in callees_first(module):
        functions[name] = _rewritten(module.functions[name], functions, written)
    return Module({name: functions[name] for name in module.functions}, module.kernels, module.main)


def _stacks(caller: Function, loop: Loop, body: Function) -> dict[Var, int]:
    """The results of the body that may be written over the parameters that they are copies of."""
    here, there = uses(caller), uses(body)
    made = {b.var: b.value for b in caller.bindings}
    inside = {b.var: b.value for b in body.bindings}
    result = inside.get(body.result) if isinstance(body.result, Var) else None
    results: tuple[Atom, ...] = (body.result,) if loop.carried == 1 else result.args if isinstance(result, MakeTuple) else ()
    given = loop.args[loop.count is None :]
    found = {}
    for k, after in enumerate(results):
        first, parameter = given[k], body.parameters[1 + k]
        if not isinstance(first, Var) or not isinstance(after, Var):
            continue
        own = is_fresh(made.get(first), alone=here[first] == 1)
        if own and there[parameter] == there[after] == 1 and _writes(inside.get(after), parameter):
            found[after] = k
    return found


def is_fresh(value: object, alone: bool) -> bool:
    """Whether a value is a tensor that was made by its binding, and is used by one loop alone or can be made again."""
    if isinstance(value, KernelCall) and len(value.out) == 1:
        return alone or not value.args
    return isinstance(value, OpCall) and value.op == "full"


def _writes(value: object, to: Var) -> bool:
    """Whether a value is the tensor with other slices."""
    return isinstance(value, OpCall) and value.op == _OPERATOR and value.args[0] is to and not dict(value.attrs)["add"]


def _rewritten(
    function: Function, functions: Mapping[str, Function], written: Mapping[str, Mapping[Var, int]]
) -> Function:
    r = Rewriter(function, functions)
    here, own = uses(function), written.get(function.name, {})
    for b in function.bindings:
        value = r.current(b)
        if isinstance(value, Loop) and value.body in written:
            args = list(value.args)
            for k in written[value.body].values():
                at = (value.count is None) + k
                first = args[at]
                assert isinstance(first, Var)
                if here[first] > 1:
                    args[at] = r.emit(r.definitions[first], name=first.name, where=b.where)
            r.keep(b, replace(value, args=tuple(args)))
        elif b.var in own and isinstance(value, OpCall):
            attrs = tuple((k, v) for k, v in value.attrs if k != "add")
            effect = PackedCall(_EFFECT, value.args, value.args[0].annotation, attrs, (0,))
            r.builder.bind(Binding(b.var, effect, b.where))
            r.replace(b.var, value.args[0])
        else:
            r.keep(b, value)
    return r.finish()
