"""From a module to an executable: the order of the passes, lowering, and what the executable says of itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mirage.compiler.context import Context
from mirage.compiler.functional import compile_functional
from mirage.compiler.lower import Lowered, lower
from mirage.compiler.passes import (
    add_masks,
    append_keys,
    batch_matmuls,
    canonicalize,
    collect_constraints,
    cse,
    dead_code,
    fold_constants,
    fold_factors,
    fold_gains,
    fold_scales,
    fuse,
    generate,
    inline,
    join_convolutions,
    join_loops,
    join_offsets,
    lift_constants,
    lift_workspaces,
    lower_libraries,
    lower_packages,
    merge_matmuls,
    merge_repeats,
    pack_weights,
    partition,
    quantized_convolutions,
    quantized_products,
    rank_few,
    route_experts,
    superoptimize,
    write_stacks,
)
from mirage.compiler.pipeline import Pass, run_passes
from mirage.errors import InputError
from mirage.ir.graph.nodes import Module
from mirage.runtime.executable import Background, Executable, Facts, Kernel, MemoryPlan

#: optimizations that can be left out, for ablations, and the passes that make them
OPTIMIZATIONS: Mapping[str, tuple[Pass, ...]] = {
    "merge": (merge_matmuls.run, batch_matmuls.run, merge_repeats.run),
    "fold": (join_offsets.run, fold_scales.run, fold_factors.run, fold_gains.run),
    "superoptimize": (add_masks.run, partition.run, superoptimize.run),
    "libraries": (lower_packages.run, pack_weights.run, lower_libraries.run, append_keys.run, join_convolutions.run),
    "fuse": (fuse.run, generate.run),
    "plan": (),
    "batch": (),
    "loops": (),
}

#: the passes before subprograms are told apart
PREPARATION: tuple[Pass, ...] = (
    canonicalize.run,
    inline.run,
    collect_constraints.run,
    canonicalize.run,
    quantized_products.run,
    quantized_convolutions.run,
    fold_constants.run,
    cse.run,
    route_experts.run,
    rank_few.run,
    dead_code.run,
    merge_matmuls.run,
    batch_matmuls.run,
    join_offsets.run,
    dead_code.run,
    fold_scales.run,
    fold_factors.run,
    fold_gains.run,
    dead_code.run,
    join_offsets.run,
    dead_code.run,
    lift_constants.run,
    lower_packages.run,
    pack_weights.run,
    dead_code.run,
)

#: those that superoptimize them
SUPEROPTIMIZATION: tuple[Pass, ...] = OPTIMIZATIONS["superoptimize"]

#: those that give the rest to libraries and fuse it
COMPLETION: tuple[Pass, ...] = (
    inline.run,
    collect_constraints.run,
    merge_repeats.run,
    canonicalize.run,
    dead_code.run,
    lower_libraries.run,
    pack_weights.run,
    dead_code.run,
    append_keys.run,
    join_convolutions.run,
    fuse.run,
    generate.run,
    inline.run,
    join_loops.run,
    dead_code.run,
    write_stacks.run,
    lift_workspaces.run,
    collect_constraints.run,
)

#: the one order of the passes
PIPELINE: tuple[Pass, ...] = (*PREPARATION, *SUPEROPTIMIZATION, *COMPLETION)


def passed(module: Module, context: Context, passes: Sequence[Pass], without: Collection[str] = ()) -> Module:
    """The module after these passes, but for those of the optimizations that are left out."""
    left_out = {p for name in without for p in OPTIMIZATIONS[name]}
    return run_passes(module, context, [p for p in passes if p not in left_out])


def built_functional(
    module: Module, stacked: Collection[str], context: Context, without: Collection[str] = ()
) -> Executable:
    """The executable of a module of which these functions need a stack; the others go through the passes, but are not searched.

    Raises what `compile_functional` and `built` raise.
    """
    planned = "plan" not in without

    def lowered(part: Module, own: Context) -> tuple[Module, Lowered]:
        made = passed(part, own, (*PREPARATION, *COMPLETION), without)
        return made, lower(made, own, planned=planned)

    given = len(module.functions[module.main].parameters)
    made, code = compile_functional(module, stacked, context, lowered, batch="batch" not in without, loops="loops" not in without)
    kernels = _kernels(made)
    context.kernels.finish(kernels.values())
    return Executable(code.code, kernels, code.constants, _facts(made, context, code, given), target=context.kernels.target)


def built(
    module: Module, context: Context, *, given: int, planned: bool = True, background: Background | None = None
) -> Executable:
    """The executable of a module after all passes; users give the first `given` parameters of its main function.

    `planned` as of `lower`. Raises InputError for a kernel that cannot be called, and what `KernelMaker.finish` raises.
    """
    lowered = lower(module, context, planned=planned)
    kernels = _kernels(module)
    context.kernels.finish(kernels.values())
    facts = _facts(module, context, lowered, given)
    return Executable(lowered.code, kernels, lowered.constants, facts, background, context.kernels.target)


def _kernels(module: Module) -> dict[str, Kernel]:
    """The kernels of a module, all of which can be called after the passes."""
    found = {name: k for name, k in module.kernels.items() if isinstance(k, Kernel)}
    if lost := sorted(module.kernels.keys() - found.keys()):
        raise InputError(f"kernel {lost[0]!r} of the module cannot be called; pass kernels that run on arrays")
    return found


def _facts(module: Module, context: Context, lowered: Lowered, given: int) -> Facts:
    """The facts of a compilation; `given` is how many parameters users give."""
    main = module.functions[module.main]
    parameters = ", ".join(f"{p.name}: {p.annotation}" for p in main.parameters[:given])
    outcomes = {s.kernel: f"{s.operators} operator{'s' * (s.operators != 1)}, {s.outcome}" for s in context.report.subprograms}
    texts = {name: outcomes.get(name, k.kind) for name, k in module.kernels.items()}
    plans = {
        name: MemoryPlan(p.arena, p.most_live, tuple(map(str, p.storages))) for name, p in lowered.plans.items()
    }
    return Facts(
        f"{main.name}({parameters}) -> {main.returns}",
        tuple(f"{g} ({g.reason})" for g in lowered.code.functions[module.main].guards),
        texts,
        tuple(context.report.fallbacks),
        plans,
        dict(context.report.seconds),
        str(main.attr.get(lift_constants.PREPARE, "")),
        len(main.parameters) - given,
    )
