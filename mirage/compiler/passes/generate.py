"""Fused groups become calls of kernels (Relax, section 4.2: FuseTensorIR).

Equal groups share one kernel. A group that no kernel computes stays a function, and runs operator by operator.
"""

from __future__ import annotations

import time
from typing import Any

from mirage.compiler.codegen import generate
from mirage.compiler.context import Context, Subprogram
from mirage.compiler.outline import is_scalar
from mirage.compiler.passes.superoptimize import calling
from mirage.compiler.sizes import sizes_of_functions
from mirage.errors import CompilerError, LoopError, NoCompilerError
from mirage.ir.dims import Dim
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Atom, Function, Module, OpCall
from mirage.ir.graph.traverse import atoms


def run(module: Module, context: Context) -> Module:
    sizes = sizes_of_functions(module, context.sizes)
    builder = ModuleBuilder(module)
    made: dict[Any, tuple[str, dict[str, Dim]]] = {}
    for function in module:
        if function.attr.get("origin") != "fused":
            continue
        constraints = context.of(function.name)
        # what is known of dims decides the form of the kernel, too
        key = structure(function), tuple((f.dim, f.relation, f.value) for f in constraints.guards())
        if key in made:
            builder.add(calling(function, builder, *made[key]))
            continue
        hints = sizes.get(function.name, [])
        bounds = {s: bound for h in hints[:1] for s in h if (bound := constraints.upper_bound(s)) is not None}
        start = time.perf_counter()
        try:
            kernel, dims = generate(function, hints, bounds, constraints, context.kernels)
        except (LoopError, CompilerError, NoCompilerError) as e:
            context.report.fallbacks.append(f"{function.name} runs operator by operator: {e}")
            continue
        name = builder.add_kernel(f"{function.name}_kernel", kernel)
        operators = [b.value.op for b in function.bindings if isinstance(b.value, OpCall) and not is_scalar(b.var.annotation)]
        form = "a muGraph" if kernel.kind.endswith("mugraph") else "a loop nest"
        outcome = f"fused into {form}: {', '.join(operators)}"
        context.report.subprograms.append(Subprogram(name, len(operators), outcome, time.perf_counter() - start))
        made[key] = name, dims
        builder.add(calling(function, builder, name, dims))
    return builder.finish(module.main)


def structure(function: Function) -> Any:
    """What makes two functions of operators the same: all but their names."""
    numbers: dict[Atom, int] = {p: k for k, p in enumerate(function.parameters)}
    for b in function.bindings:
        numbers[b.var] = len(numbers)

    def place(a: Atom) -> Any:
        return numbers.get(a, a)

    lines = tuple(
        (type(b.value), getattr(b.value, "op", ""), tuple(map(place, atoms(b.value))), getattr(b.value, "attrs", ()))
        for b in function.bindings
    )
    return tuple(p.annotation for p in function.parameters), function.dims, lines, place(function.result)
