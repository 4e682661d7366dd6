"""Fused groups become calls of kernels (Relax, section 4.2: FuseTensorIR).

Equal groups share one kernel. A group that no kernel computes stays a function, and runs operator by operator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mirage.compiler.codegen import generate
from mirage.compiler.context import Context, Subprogram
from mirage.compiler.outline import is_scalar
from mirage.compiler.passes.superoptimize import calling
from mirage.compiler.sizes import sizes_of_functions
from mirage.errors import CompilerError, LoopError, NoCompilerError
from mirage.ir.dims import Dim
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Atom, Function, Kernel, Module, OpCall
from mirage.ir.graph.traverse import atoms
from mirage.kernels.cpu.compile.together import together
from mirage.settings import num_threads


def run(module: Module, context: Context) -> Module:
    sizes = sizes_of_functions(module, context.sizes)
    groups = [f for f in module if f.attr.get("origin") == "fused"]
    # what is known of dims decides the form of the kernel, too
    keys = {f.name: (structure(f), tuple((g.dim, g.relation, g.value) for g in context.of(f.name).guards())) for f in groups}
    firsts = {keys[f.name]: f for f in reversed(groups)}
    # forms of one program have most groups in common
    asked = {key: (key, tuple(str(sorted(at.items())) for at in sizes.get(f.name, []))) for key, f in firsts.items()}
    made = context.kernels.made
    new = {k: f for key, f in firsts.items() if (k := asked[key]) not in made}
    pieces = [partial(_made, f, sizes.get(f.name, []), context) for f in new.values()]
    made.update(zip(new, together(pieces, num_threads()), strict=True))
    builder = ModuleBuilder(module)
    names: dict[Any, str] = {}
    for function in groups:
        key = keys[function.name]
        try:
            kernel, dims, seconds = made[asked[key]].result()
        except (LoopError, CompilerError, NoCompilerError) as e:
            context.report.fallbacks.append(f"{function.name} runs operator by operator: {e}")
            continue
        if key not in names:
            names[key] = builder.add_kernel(f"{function.name}_kernel", kernel)
            operators = [b.value.op for b in function.bindings if isinstance(b.value, OpCall) and not is_scalar(b.var.annotation)]
            form = "a muGraph" if kernel.kind.endswith("mugraph") else "a loop nest"
            outcome = f"fused into {form}: {', '.join(operators)}"
            context.report.subprograms.append(Subprogram(names[key], len(operators), outcome, seconds))
        builder.add(calling(function, builder, names[key], dims))
    return builder.finish(module.main)


def _made(
    function: Function, hints: Sequence[Mapping[str, int]], context: Context
) -> tuple[Kernel, dict[str, Dim], float]:
    """The kernel of a group, what its dim symbols are, and the seconds that it took."""
    constraints = context.of(function.name)
    bounds = {s: bound for h in hints[:1] for s in h if (bound := constraints.upper_bound(s)) is not None}
    start = time.perf_counter()
    kernel, dims = generate(function, hints, bounds, constraints, context.kernels)
    return kernel, dims, time.perf_counter() - start


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
