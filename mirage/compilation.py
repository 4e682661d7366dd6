"""Whole programs: from a Python function, a module or its text to an executable for any shapes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from mirage.background import Background
from mirage.cache import ResultStore, check_cache
from mirage.compiler.arguments import argument_bytes, trial_sets
from mirage.compiler.build import (
    COMPLETION,
    OPTIMIZATIONS,
    PIPELINE,
    PREPARATION,
    built,
    built_functional,
    passed,
)
from mirage.compiler.choice import PLAIN, call_seconds, fastest
from mirage.compiler.constraints import Constraints
from mirage.compiler.constraints.bounds import from_bounds
from mirage.compiler.context import Context, current_survey
from mirage.compiler.kernels.kept import KeptKernels
from mirage.compiler.kernels.loops import loops_from_text, target_loops_from_text
from mirage.compiler.kernels.mugraph import kernel_from_text
from mirage.compiler.kernels.ranked_mugraph import ranked_from_text
from mirage.compiler.kernels.targets import kernels_for
from mirage.compiler.partial.simplify import simplified
from mirage.compiler.partial.specialize import STOPPED
from mirage.compiler.passes import add_masks, partition, superoptimize
from mirage.compiler.patterns.quantized import NARROW
from mirage.compiler.pipeline import printed
from mirage.compiler.quantize.report import Quantized
from mirage.compiler.sizes import DEFAULT_SIZE
from mirage.errors import BudgetError, DimError, InputError, TraceError
from mirage.frontends.functions import GraphFunction, trace_module
from mirage.frontends.spec import TensorFunction, check_constants
from mirage.ir.annotations import symbols_in
from mirage.ir.graph.check import check
from mirage.ir.graph.functional import functional
from mirage.ir.graph.monomorphic import monomorphic
from mirage.ir.graph.nodes import PACKAGES, Function, Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.programs import module_of
from mirage.ir.program import Program
from mirage.logs import configure, told
from mirage.progress import Say, Step
from mirage.runtime.executable import Executable, Kernel, read_executable
from mirage.runtime.packed import BUILT_IN
from mirage.runtime.program import CallPacked
from mirage.search.decision import MAX_VERSIONS
from mirage.subprograms import FOUND, Later, Searches

_LOG = logging.getLogger("mirage.compiler")
#: sets of sizes to tune at
MAX_SETS = MAX_VERSIONS
#: the race of the whole program against the same without a search takes as long as so many calls of that, but at most this share
#: of the budget: fewer calls may take a share that users notice, more may not
PROGRAM_RACES = ((20, 0.2), (500, 0.05))
#: constants of a program that races, at most: every form has packed ones of its own
RACED_BYTES = 1 << 28

#: what weights are stored in if users do not say
FLOAT32 = "float32"

#: the form of the whole program with what was chosen for each of its subprograms
FULL = "full"

#: makers of kernels from their texts, by kind
KERNEL_KINDS: Mapping[str, Callable[[str], Kernel]] = {
    "mugraph": kernel_from_text,
    "loops": loops_from_text,
    "ranked": ranked_from_text,
    "target_loops": target_loops_from_text,
}


def compile(
    program: Callable[..., Any] | Module | Program | Quantized | str | os.PathLike[str],
    specs: Mapping[str, Any] | None = None,
    *,
    bounds: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    constants: Collection[str] = (),
    target: str = "cpu",
    budget: float = 60.0,
    background: bool = False,
    without: Collection[str] = (),
    weights: str = FLOAT32,
    cache: ResultStore | bool = True,
    seed: int = 0,
    progress: Say | None = None,
) -> Executable:
    """One executable for all sizes of a program's symbolic dims.

    `program` is a Python function, with the annotations of its parameters in `specs` (`{"x": mi.tensor("n", 64)}`), a function
    under `@mi.program` or `@mi.function`, which has them, a program of `mi.trace`, a module of the graph IR, its text, or what
    `mirage.quantize` gives.
    `bounds` limits dims of the main function, `{"n": 4096}` or `{"n": (1, 4096)}`: with an upper bound for every dim all
    intermediate memory is one block planned ahead, and calls beyond the bounds are refused. `sizes` are those to tune at, a set
    or up to 8; the default is the bounds, and 128 where there is none. `constants` names parameters whose contents never change
    between calls, such as weights. `budget` is in seconds, for all of the compilation, but for what takes longer before the
    first search; what is in the results store costs less. On the processor, what is found is raced against libraries and
    fusion, at `sizes` with random arguments, so that the program is not slower than without a search; where constants take more
    than 256 MiB, its parts alone are raced. With `background` the executable is returned at once: subprograms run as library
    calls until a process beside has found better, which it goes on to improve until there is nothing left to try
    (`Executable.wait`, `Executable.close`). `target` is "cpu", "cuda" for the device at hand, or a CUDA architecture such as
    "cuda:sm_90", of which no device is needed but for calls: an executable may be saved, and loaded where one is.
    `without` leaves optimizations out ("merge", "fold", "superoptimize", "libraries", "fuse", "plan", "batch", "loops"), for
    ablations.
    `weights` is what those of products are stored in: "float32", or, on a processor, "bfloat16", or "int8" with a scale for each
    column, or for each 32 or 128 terms of a sum ("int8/32", "int8/128"). They are computed with in float32, each off by 2^-9 of
    itself in "bfloat16", by half a scale at most in "int8"; with "int8/dynamic" in whole numbers, for which each call makes the
    rows of the other operand int8. It says nothing of weights that are not among the `constants`, nor of those of other element
    types.
    `cache`, `seed` and `progress` are as of `superoptimize`.

    Functions that call themselves, data types and functions as values, where they are not known before, run on processors; the
    operators in them are compiled for all sizes, without a search: `bounds`, `sizes` and `constants` say nothing of them.

    A model of ONNX, or the path of its file, `"model.onnx"`, becomes a function that is called with arrays in the order of its
    inputs, or by their names (`mirage.onnx.CompiledModel`): its initializers are constants.

    A program of `torch.export` becomes a function that is called as its module is (`mirage.torch.CompiledPrograms`): `bounds` are
    by input and dim, `{"x": {0: 8}}`, and its weights are constants.

    An interrupt (Ctrl-C) of a search ends the superoptimization: subprograms that are not searched are fused as they are, and
    the executable says so (`Executable.interrupted`). A second interrupt, or one elsewhere, raises KeyboardInterrupt.

    Raises TraceError, ParseError, ShapeError and others for a program outside of the IR, naming the line; DimError for bounds or
    sizes that are none, BudgetError, UnknownTarget, CacheError, InputError for a constant that is no parameter.
    Source: Relax, sections 3 and 4; BladeDISC, sections 3 to 5.
    """
    configure()
    check_options(budget, without, weights)
    check_cache(cache)
    if is_onnx(program):
        try:
            from mirage.onnx.model import compile as compile_onnx
        except ImportError as e:
            raise InputError(f"a model of ONNX: {e}; install the package with the extra 'onnx'") from e
        return compile_onnx(  # type: ignore[no-any-return]
            program, specs=specs, constants=constants, bounds=bounds, sizes=sizes, target=target, budget=budget,
            background=background, without=without, weights=weights, cache=cache, seed=seed, progress=progress,
        )  # fmt: skip
    if _is_exported(program):
        from mirage.torch.exported import compile_exported

        return compile_exported(  # type: ignore[return-value]
            program, specs=specs, constants=constants, bounds=bounds, sizes=sizes, target=target, budget=budget,
            background=background, without=without, weights=weights, cache=cache, seed=seed, progress=progress,
        )  # fmt: skip
    start = time.perf_counter()
    say = told(progress, _LOG)
    kernels = kernels_for(target)
    module = monomorphic(to_module(program, specs))
    if isinstance(program, TensorFunction):
        constants = constants or program.constants
        sizes = sizes or list(program.sizes.values())[:MAX_SETS] or None
    context = context_of(module, bounds, sizes, constants)
    beside = Background(budget=budget, kernels=kernels, cache=cache, seed=seed) if background else None
    if kernels.on_host:
        context.packages = tuple(str(module.functions[module.main].attr.get(PACKAGES, "")).split())
        context.packages += () if weights == FLOAT32 else (weights,)
    elif weights != FLOAT32:
        raise InputError(f"weights={weights!r} is for processors; leave it out for target={target!r}")
    context.kernels, context.deadline, context.say = kernels, start + budget, say
    context.printed = printed(PIPELINE)
    search = current_survey() or (Later(beside, kernels) if beside else Searches(kernels, cache, seed, say))
    main = module.functions[module.main]
    if stopped := main.attr.get(STOPPED):
        context.report.fallbacks.append(str(stopped))

    def finished(module: Module, context: Context) -> Executable:
        module = passed(module, context, (superoptimize.run, *COMPLETION), without)
        planned = "plan" not in without
        return built(module, context, given=len(main.parameters), planned=planned, background=beside)

    if functional(module):
        module = simplified(module)
    if stacked := functional(module):
        return built_functional(module, stacked, context, without)
    module = passed(module, context, PREPARATION, without)
    prepared, unsearched = module, context.copy()
    masked = passed(module, context, (add_masks.run,), without)
    changed = masked.functions != module.functions
    module = passed(masked, context, (partition.run,), without)
    context.superoptimizer = search
    if isinstance(search, Searches) and kernels.on_host and superoptimize.subprograms(module):
        race_of = _Race(main, module, context, search, without, budget, changed)
        executable = race_of.fastest(finished, prepared, unsearched)
    else:
        executable = finished(module, context)
    if beside:
        beside.start()
    say(Step("compiled"))
    seconds = time.perf_counter() - start
    _LOG.info("%s: compiled in %.2f s", main.name, seconds, extra={"program": main.name, "seconds": round(seconds, 3)})
    facts = replace(executable.facts, seconds=dict(context.report.seconds), interrupted=search.interrupted)
    executable.facts = facts
    return executable


def is_onnx(program: object) -> bool:
    """Whether this is a model of ONNX, or the path of a file of one; onnx need not be there to know."""
    if isinstance(program, str | os.PathLike):
        path = os.fspath(program)
        return isinstance(path, str) and path.endswith(".onnx") and "\n" not in path
    kind = type(program)
    return kind.__name__ == "ModelProto" and kind.__module__.partition(".")[0] == "onnx"


def _is_exported(program: object) -> bool:
    """Whether this is a program of `torch.export`; torch need not be there to know."""
    kind = type(program)
    return kind.__name__ == "ExportedProgram" and kind.__module__.partition(".")[0] == "torch"


@dataclass
class _Race:
    """The forms of a program whose subprograms are about to be searched: with what is chosen for each of them, with what searches
    found, and without a search. `budget` are the seconds of the compilation, of which the race between them has a share.
    `changed`: what is searched is written otherwise than without a search, so that it may be slower even where nothing that was
    found is used.
    """

    main: Function
    module: Module
    context: Context
    search: Searches
    without: Collection[str]
    budget: float
    changed: bool
    #: the largest integer in arguments: 1, so that rows which an integer chooses are some of all, where the program takes that
    integer: int = 1

    def fastest(
        self, finished: Callable[[Module, Context], Executable], prepared: Module, unsearched: Context
    ) -> Executable:
        """The form that is measured to be the fastest, or was in an earlier compilation. `finished` makes forms of modules, of
        `prepared` that without a search.
        """
        search, context = self.search, self.context
        memory = search.forms(self.module, context, self.without)
        known = memory.recall(self.budget) if memory is not None else None
        if memory is not None:
            context.kernels.kept = KeptKernels(memory.store, memory.target, recalls=known is not None)
        if known is not None:
            search.known = {s.name: s for s in known.subprograms}
            if known.whole == PLAIN:
                return self._kept(_left_alone(finished(prepared, unsearched)))
        plain = None
        if known is None:
            context.promise = search.promise
            began = time.perf_counter()
            plain = finished(prepared, unsearched)
            # the program with what is found has other kernels beside the same ones
            context.deadline -= (time.perf_counter() - began) / 2
            context.deadline -= (race := self._seconds(plain))
        before = context.copy()
        executable = finished(self.module, context)
        if search.known:
            return self._kept(executable)
        whole, choices = FULL, search.chosen
        if search.may_lose or (self.changed and not search.interrupted):
            if plain is None:
                plain = finished(prepared, unsearched)
                race = self._seconds(plain)
            forms = {FULL: executable, PLAIN: plain}
            if search.chosen != search.found:
                forms[FOUND] = finished(self.module, replace(before, superoptimizer=search.again))
            whole = self._fastest(forms, race)
            executable = _left_alone(forms[PLAIN]) if whole == PLAIN else forms[whole]
            choices = search.found if whole == FOUND else choices
        if memory is not None:
            search.keep(memory, PLAIN if whole == PLAIN else FULL, choices, self.budget)
        return self._kept(executable)

    def _seconds(self, plain: Executable) -> float:
        """How long the race takes, of which this is the form without a search; 0 where that cannot be tried."""
        for self.integer in (1, 0):
            try:
                return race_seconds(sum(call_seconds(plain, self._trials(plain))), self.budget)
            except Exception:
                # arguments of the right types may have values that the program refuses
                continue
            finally:
                plain.forget()
                plain.release()
        return 0.0

    def _fastest(self, forms: Mapping[str, Executable], seconds: float) -> str:
        """The name of the form that is measured to be the fastest: that without a search where there is no time to measure, the
        full one where it cannot be tried.
        """
        return fastest(forms, self._trials(forms[FULL]), seconds, otherwise=PLAIN) if seconds else FULL

    def _trials(self, executable: Executable) -> list[list[Any]]:
        """Arguments at each set of sizes; none where calls have effects on more than these, or where types do not tell them."""
        called = {i.function for f in executable.program for i in f.code if isinstance(i, CallPacked)}
        if not called <= BUILT_IN or self._constant_bytes() > RACED_BYTES:
            return []
        return trial_sets(self.main, self.context.sizes, self.integer) or []

    def _constant_bytes(self) -> int:
        """The bytes of all constants, at the largest of the sizes."""
        types = [p.annotation for p in self.main.parameters if p.name in self.context.constants]
        return max((sum(argument_bytes(t, at) for t in types) for at in self.context.sizes), default=0)

    def _kept(self, executable: Executable) -> Executable:
        """The executable, whose kernels are kept for the next compilation."""
        kept, search = self.context.kernels.kept, self.search
        if kept is not None and (kept.recalls or search.searched) and not search.interrupted:
            kept.keep(executable.kernels.values())
        return executable


def race_seconds(call: float, budget: float) -> float:
    """How long whole programs race, of which a call for each set of sizes takes so many seconds; 0 where that is 0."""
    return max(min(calls * call, share * budget) for calls, share in PROGRAM_RACES)


def _left_alone(plain: Executable) -> Executable:
    """The form without a search, which says that it was the fastest."""
    why = "the kernels that searches found are not used: the program was measured to be slower with them"
    plain.facts = replace(plain.facts, fallbacks=(*plain.facts.fallbacks, why))
    return plain


def check_options(budget: Any, without: Any, weights: Any = FLOAT32) -> None:
    """Raise BudgetError or InputError for a budget, optimizations to leave out, or a type of stored weights that are none."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < 1e9:
        raise BudgetError(f"budget={budget!r} must be a positive number of seconds")
    if isinstance(without, str) or not isinstance(without, Collection) or any(name not in OPTIMIZATIONS for name in without):
        raise InputError(f"without={without!r}: the optimizations are {', '.join(OPTIMIZATIONS)}; pass a collection of them")
    if weights not in (stored := (FLOAT32, *NARROW)):
        raise InputError(f"weights={weights!r}; weights are stored as {', '.join(stored)}")


def context_of(module: Module, bounds: Any, sizes: Any, constants: Collection[str]) -> Context:
    """The state of a compilation of a module that is checked here, as the user's options for its main function have it."""
    check(module)
    main = module.functions[module.main]
    store = from_bounds(bounds or {})
    symbols = sorted(set().union(*(symbols_in(p.annotation) for p in main.parameters)))
    _check_names("bounds", bounds or {}, symbols, main.name)
    names = [p.name for p in main.parameters]
    return Context(
        bounds=store,
        constants=check_constants(main.name, constants, names),
        sizes=tuple(_anchors(sizes, symbols, store, main.name)),
    )


def to_module(program: Any, specs: Mapping[str, Any] | None) -> Module:
    """The module of a Python function, a program of the search, a module, or its text."""
    if isinstance(program, Module):
        return program
    if isinstance(program, Quantized):
        return program.module
    if isinstance(program, Program):
        return module_of(program)
    if isinstance(program, str):
        return parse_module(program, KERNEL_KINDS)
    if callable(program):
        typed = specs is not None or isinstance(program, GraphFunction | TensorFunction)
        names = () if typed else tuple(signature(program).parameters)
        if names:
            raise TraceError(f"compile: no types of the parameters; pass specs={{{names[0]!r}: mi.tensor(...), ...}}")
        return trace_module(program, specs)
    raise TraceError(
        f"compile: {type(program).__name__} is not a program; pass a Python function with specs, a module or its text"
    )


def load_executable(path: str | os.PathLike[str]) -> Executable:
    """A saved executable: its kernels are verified again and compiled for this machine.

    Nothing of the file is run as code. Functions that it calls by name have to be registered before. Raises InputError if it
    cannot be read, FormatError if it is no executable, altered or damaged, VerificationError if a kernel does not compute what
    it stands for, UnknownFunction.
    """
    return read_executable(path, KERNEL_KINDS)


def _check_names(what: str, given: Mapping[str, Any], symbols: Sequence[str], name: str) -> None:
    for s in given:
        if s not in symbols:
            raise DimError(f"{what}: {s!r} is not a dim of {name}; its dims are {', '.join(symbols) or 'all fixed'}")


def _anchors(sizes: Any, symbols: Sequence[str], bounds: Constraints, name: str) -> list[dict[str, int]]:
    """Complete sets of sizes to tune at."""
    several = list(sizes) if isinstance(sizes, list | tuple) else [sizes or {}]
    if not 0 < len(several) <= MAX_SETS:
        raise DimError(f"sizes: {len(several)} sets; pass 1 to {MAX_SETS} sets of sizes to tune at")
    found = []
    for one in several:
        if not isinstance(one, Mapping):
            raise DimError(f"sizes={one!r} is not a mapping; pass sizes={{'n': 4096}} for a dim 'n', or a list of such")
        _check_names("sizes", one, symbols, name)
        complete: dict[str, int] = {}
        for s in symbols:
            n = one.get(s)
            if n is None:
                n = bounds.upper_bound(s)
                n = DEFAULT_SIZE if n is None else max(n, 1)
            if isinstance(n, bool) or not hasattr(n, "__index__") or int(n) < 1:
                raise DimError(f"sizes: {s}={n!r} is not a size to tune at; use an integer of at least 1")
            complete[s] = int(n)
        if complete not in found:
            found.append(complete)
    return found
