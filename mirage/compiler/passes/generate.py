"""Fused groups become calls of kernels (Relax, section 4.2: FuseTensorIR).

A group that no kernel computes stays a function, and runs operator by operator.
"""

from __future__ import annotations

import time

from mirage.compiler.codegen import generate
from mirage.compiler.context import Context, Subprogram
from mirage.compiler.outline import is_scalar
from mirage.compiler.passes.superoptimize import calling
from mirage.compiler.sizes import sizes_of_functions
from mirage.errors import CompilerError, LoopError, NoCompilerError
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Module, OpCall


def run(module: Module, context: Context) -> Module:
    sizes = sizes_of_functions(module, context.sizes)
    builder = ModuleBuilder(module)
    for function in module:
        if function.attr.get("origin") != "fused":
            continue
        hints = sizes.get(function.name, [])
        constraints = context.of(function.name)
        bounds = {s: bound for h in hints[:1] for s in h if (bound := constraints.upper_bound(s)) is not None}
        start = time.perf_counter()
        try:
            kernel, dims = generate(function, hints, bounds, constraints)
        except (LoopError, CompilerError, NoCompilerError) as e:
            context.report.fallbacks.append(f"{function.name} runs operator by operator: {e}")
            continue
        name = builder.add_kernel(f"{function.name}_kernel", kernel)
        operators = [b.value.op for b in function.bindings if isinstance(b.value, OpCall) and not is_scalar(b.var.annotation)]
        form = "a muGraph" if kernel.kind == "mugraph" else "a loop nest"
        outcome = f"fused into {form}: {', '.join(operators)}"
        context.report.subprograms.append(Subprogram(name, len(operators), outcome, time.perf_counter() - start))
        builder.add(calling(function, builder, name, dims))
    return builder.finish(module.main)
