"""Fused groups become calls of kernels (Relax, section 4.2: FuseTensorIR).

A group that no kernel computes stays a function, and runs operator by operator.
"""

from __future__ import annotations

from mirage.compiler.codegen import generate
from mirage.compiler.context import Context
from mirage.compiler.passes.superoptimize import calling
from mirage.compiler.sizes import sizes_of_functions
from mirage.errors import CompilerError, LoopError, NoCompilerError
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Module


def run(module: Module, context: Context) -> Module:
    sizes = sizes_of_functions(module, context.sizes)
    builder = ModuleBuilder(module)
    for function in module:
        if function.attr.get("origin") != "fused":
            continue
        hints = sizes.get(function.name, [])
        constraints = context.of(function.name)
        bounds = {s: bound for h in hints[:1] for s in h if (bound := constraints.upper_bound(s)) is not None}
        try:
            kernel, dims = generate(function, hints, bounds, constraints)
        except (LoopError, CompilerError, NoCompilerError) as e:
            context.report.fallbacks.append(f"{function.name} runs operator by operator: {e}")
            continue
        name = builder.add_kernel(f"{function.name}_kernel", kernel)
        builder.add(calling(function, builder, name, dims))
    return builder.finish(module.main)
