"""The library's front door: superoptimize, verify, load."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from mirage.cache import ResultStore, store_of
from mirage.cache.records import parse_json
from mirage.errors import (
    BudgetError,
    DimError,
    FormatError,
    InputError,
    SearchError,
    TraceError,
)
from mirage.folders import path_of
from mirage.frontends.spec import TensorFunction, check_constants
from mirage.frontends.spec import program as declare
from mirage.frontends.upstream import UpstreamFile
from mirage.ir.operator import REGISTRY
from mirage.ir.program import Program
from mirage.kernels.cuda.device import CudaDevice, is_cuda
from mirage.kernels.target import get_target, memory_bytes
from mirage.mugraph.degree import program_is_stable
from mirage.mugraph.graph import MuGraph
from mirage.progress import Say, Step
from mirage.results.candidates import verify_candidates
from mirage.results.cpu.recall import CpuMemory
from mirage.results.cpu.result import Superoptimized, result_from_json
from mirage.results.cpu.tune import tune_for_processor
from mirage.results.cuda.rank import rank_for_device
from mirage.results.cuda.recall import CudaMemory
from mirage.results.cuda.result import CudaSuperoptimized, cuda_result_from_json, device_shapes
from mirage.results.evidence import Verdict, compare, verdicts
from mirage.results.recall import search_key
from mirage.results.records import SCHEMA
from mirage.results.result import saved_from_json
from mirage.results.verified import Verified
from mirage.runtime.arrays import check_inputs
from mirage.runtime.binding import SizeBinder
from mirage.search.buckets import bytes_needed
from mirage.search.checkpoint import Checkpoint, checkpoint_path
from mirage.search.cost import CPU_RATES, cuda_rates
from mirage.search.generate import generate
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, WorkerPool, default_executor
from mirage.search.options import SearchOptions
from mirage.search.versions import MAX_VERSIONS
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

#: what a program becomes, as the target has it
Result: TypeAlias = Superoptimized | CudaSuperoptimized
#: the targets that begin with "cuda"
CudaTarget: TypeAlias = Literal["cuda", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100"]

#: shares of the budget: search, verification; tuning takes the rest
SEARCH_SHARE = 0.4
VERIFY_SHARE = 0.2
#: seconds that verification, and tuning, may each take after an interrupt
HASTE_S = 3.0
#: seconds of a budget below which the first kernel may take longer, and by which share
SMALL_BUDGET_S, GRACE_SHARE = 1.0, 0.3


class Options(TypedDict, total=False):
    """The options of `superoptimize`, but for the target."""

    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None
    constants: Collection[str] | None
    budget: float
    pruner: str | None
    canonical: bool
    max_kernels: int
    max_operators: int | None
    cache: ResultStore | bool
    executor: Executor | None
    seed: int
    progress: Say | None


@overload
def superoptimize(
    program: Program | TensorFunction, *, target: Literal["cpu"] = "cpu", **options: Unpack[Options]
) -> Superoptimized: ...
@overload
def superoptimize(
    program: Program | TensorFunction, *, target: CudaTarget, **options: Unpack[Options]
) -> CudaSuperoptimized: ...
@overload
def superoptimize(program: Program | TensorFunction, *, target: str, **options: Unpack[Options]) -> Result: ...
def superoptimize(
    program: Program | TensorFunction,
    *,
    target: str = "cpu",
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    constants: Collection[str] | None = None,
    budget: float = 30.0,
    pruner: str | None = "normal-form",
    canonical: bool = True,
    max_kernels: int = 5,
    max_operators: int | None = None,
    cache: ResultStore | bool = True,
    executor: Executor | None = None,
    seed: int = 0,
    progress: Say | None = None,
) -> Result:
    """The fastest verified way to run a program, for every size of its symbolic dims.

    `sizes` (dim symbol -> elements) are those it is tuned at, or a list of up to 8 such sets; the default is the first set of
    a `TensorFunction`. Other sizes are sampled around the first set: which version of the program runs where is learnt from
    measurements at all of them.
    `constants` names inputs whose contents never change between calls, such as weights; the default is those of a
    `TensorFunction`. Kernels that read them from packed copies compete: these are made when an array is first seen, kept as
    long as the array lives, and not made again when somebody writes to it (`forget` of the result drops them).
    `budget` is in seconds, for search, verification and tuning together, and kept but for a tenth; the program is run once by
    its library version in any case, which is the answer where no kernel could be compiled and checked in time. Of less than
    a second, the first kernel may take 30 % more. `pruner`
    ("normal-form", "smt" or None) and `canonical=False` are for ablations, and such searches are not cached. `cache` is
    the results store to use, True for the default one, False for none. `executor` runs the search and the verification;
    by default the search runs in this process and the verification in `MIRAGE_SEARCH_WORKERS` processes, which are started
    once it takes long. The same seed gives the same search and the same tests, whatever the executor. `progress` gets lines
    of text.

    `target` is "cpu", "cuda" or an architecture such as "cuda:sm_90". For CUDA the result is a `CudaSuperoptimized`: the search
    is the same, and the best graphs are printed as Triton and compiled ahead of time; without a device they are ranked by a
    model of it, and measured and ranked again when the result is first called where a device is. The best kernels for each of
    the given sizes are compiled before others, and in twice the budget if need be.

    A search that its budget cut short is searched again when a larger budget is given. With a results store, one that was
    interrupted or killed goes on from its checkpoint when it is asked for again.

    An interrupt (Ctrl-C) ends the search, the verification or the tuning; what was found by then is verified and measured
    within seconds and returned, and not kept in the results store. A second interrupt, or one before anything was found,
    raises KeyboardInterrupt.

    Raises AxisError if the program has no form over named axes, DimError for missing or impossible sizes, InputError for a
    constant that is no input, BudgetError, UnknownTarget, UnknownPruner, SearchError (for CUDA also if no graph compiles),
    NoCompilerError (without Triton, for CUDA), JobError, CacheError; VerificationError if the two checks of a graph disagree, an
    error of this package. Source: Mirage, Fig. 1.
    """
    begun = time.perf_counter()
    say = progress or (lambda _: None)
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < 1e9:
        raise BudgetError(f"budget={budget!r} must be a positive number of seconds")
    machine = get_target(target)
    traced = _program(program)
    named = program.sizes.values() if isinstance(program, TensorFunction) else ()
    if constants is None:
        constants = program.constants if isinstance(program, TensorFunction) else ()
    fixed = check_constants("superoptimize", constants, traced.input_names)
    anchors = _anchors(traced, sizes, next(iter(named), {}))
    bound = anchors[0]
    rates = cuda_rates(machine) if isinstance(machine, CudaDevice) else CPU_RATES
    options = SearchOptions(
        pruner, canonical, max_kernels=max_kernels, max_operators=max_operators, budget=budget * SEARCH_SHARE, rates=rates
    )
    options.check()
    if executor is not None and not isinstance(executor, Executor):
        raise SearchError(f"executor={executor!r} is not a concurrent.futures.Executor; pass one, or None")
    verifier = Verifier(traced, _seed(seed))
    whole = replace(options, budget=SearchOptions.budget, rates=SearchOptions.rates) == SearchOptions()
    store = store_of(cache)
    memory: CpuMemory | CudaMemory | None = None
    if whole and store is not None:
        if isinstance(machine, CudaDevice):
            memory = CudaMemory(store, verifier.axis_program, machine, budget, fixed)
        else:
            memory = CpuMemory(store, verifier.axis_program, machine, budget, fixed)

    start = time.perf_counter()
    remembered = memory.graphs(verifier) if memory else None
    if remembered is not None:
        graphs, stats, found = remembered
        seconds = {"verify": time.perf_counter() - start}
        search = Verified(verifier, anchors, graphs, stats, seconds, found, cache_hit=True, constants=fixed)
    else:
        key = search_key(traced, bound, options)
        checkpoint = Checkpoint(checkpoint_path(key), key) if store is not None else None
        with _workers(executor, traced) as pool:
            search = _search(verifier, anchors, fixed, options, pool, checkpoint, budget, say)
        if memory is not None and not search.interrupted:
            memory.keep_graphs(search.graphs, search.stats, search.found)
        if checkpoint is not None and not search.interrupted and OUT_OF_TIME not in search.stats.stop_reason:
            checkpoint.discard()

    left = max(begun + budget - time.perf_counter(), 0.1 * budget)
    if search.interrupted:
        left, memory = min(left, HASTE_S), None
    if isinstance(machine, CudaDevice):
        return rank_for_device(
            search, machine, budget=left, memory=memory if isinstance(memory, CudaMemory) else None,
            progress=lambda text: say(Step("compiling", text)),
        )  # fmt: skip
    return tune_for_processor(
        search, machine, budget=left, grace=GRACE_SHARE * budget if budget < SMALL_BUDGET_S else 0.0, seed=seed,
        memory=memory if isinstance(memory, CpuMemory) else None, progress=lambda text: say(Step("tuning", text)),
    )  # fmt: skip


def _search(
    verifier: Verifier,
    anchors: Sequence[Mapping[str, int]],
    constants: tuple[str, ...],
    options: SearchOptions,
    executor: Executor | None,
    checkpoint: Checkpoint | None,
    budget: float,
    say: Say,
) -> Verified:
    """Search, at the first of the given sizes, and verification."""
    say(Step("searching"))
    # units share what they compute: our own workers, which each build their own, gain nothing on two cores
    result = generate(
        verifier.axis_program, anchors[0], options, executor=None if isinstance(executor, WorkerPool) else executor,
        checkpoint=checkpoint,
        safe=program_is_stable(verifier.program),
        progress=lambda done, total, graphs: say(Step("searching", f"{graphs} graphs", done, total)),
    )  # fmt: skip
    stats = result.stats
    interrupted = INTERRUPTED in stats.stop_reason
    _interrupt_unless(not interrupted or bool(result.graphs))
    start = time.perf_counter()
    allowed = budget * VERIFY_SHARE
    candidates, run = verify_candidates(
        verifier, result.graphs, result.costs, seconds=min(allowed, HASTE_S) if interrupted else allowed,
        executor=executor, say=say,
    )  # fmt: skip
    # a second interrupt, or nothing to go on with
    _interrupt_unless(not (interrupted and run.interrupted))
    _interrupt_unless(not (interrupted or run.interrupted) or bool(candidates))
    for why, count in run.cuts.items():
        stats.stop_reason += f"; {count} candidates not verified, {why}"
    seconds = {"search": stats.seconds, "verify": time.perf_counter() - start}
    return Verified(verifier, anchors, candidates, stats, seconds, len(result.graphs), constants=constants)


def _interrupt_unless(useful: bool) -> None:
    """Raise an interrupt that was taken note of, unless there is something to go on with."""
    if not useful:
        raise KeyboardInterrupt


@contextmanager
def _workers(executor: Executor | None, program: Program) -> Iterator[Executor | None]:
    """The caller's executor, or our own; none where only this process knows the operators of the program."""
    operators = [REGISTRY[n.op] for n in program.nodes if n.op in REGISTRY]
    if executor is not None or not all(op.built_in for op in operators):
        yield executor
        return
    with default_executor() as pool:
        yield pool


def _program(program: object) -> Program:
    if isinstance(program, TensorFunction):
        return program.trace()
    if not isinstance(program, Program):
        raise TraceError(
            f"superoptimize: {type(program).__name__} is not a program; pass mi.trace(fn, x=mi.tensor(...)) or a function "
            "decorated with @mi.program(...)"
        )
    return program


def _anchors(traced: Program, sizes: object, default: Mapping[str, int]) -> list[dict[str, int]]:
    """Sets of sizes, without repetitions: the given one or ones, completed from `default`."""
    several = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
    if not 0 < len(several) <= MAX_VERSIONS:
        raise DimError(f"sizes: {len(several)} sets; pass 1 to {MAX_VERSIONS} sets of sizes to tune at")
    found: list[dict[str, int]] = []
    for one in several:
        bound = _sizes(traced, one, default)
        if bound not in found:
            found.append(bound)
    return found


def _sizes(traced: Program, sizes: object, default: Mapping[str, int]) -> dict[str, int]:
    """A size for every dim symbol of the program: the given ones, else those of `default`."""
    if sizes is not None and not isinstance(sizes, Mapping):
        raise DimError(
            f"sizes={sizes!r} is not a mapping; pass sizes={{'n': 4096}} for a dim 'n', or a list of such mappings"
        )
    given: dict[str, Any] = {**default, **(sizes or {})}
    wanted = traced.symbols()
    for name in given:
        if name not in wanted:
            raise DimError(
                f"sizes: {name!r} is not a dim of {traced.name}; its dims are {', '.join(wanted) or 'all fixed'}"
            )
    for name in wanted:
        n = given.get(name)
        if type(n) is bool or not isinstance(n, int | np.integer) or n < 1:
            raise DimError(
                f"sizes: dim {name!r} of {traced.name} needs a positive size to tune at, got {n!r}; pass sizes={{{name!r}: ...}}"
            )
    bound = {name: int(given[name]) for name in wanted}
    _check_memory(traced, bound)
    return bound


def _check_memory(program: Program, sizes: Mapping[str, int]) -> None:
    """Raises DimError where tuning could not even hold the arguments, the results and the largest tensor between."""
    # the yardstick of tuning is float64
    needed = bytes_needed(program, sizes)
    if needed > memory_bytes():
        at = ", ".join(f"{s}={n}" for s, n in sizes.items())
        raise DimError(
            f"sizes: {program.name} at {at} needs {needed >> 20} MiB, and this machine has {memory_bytes() >> 20}; "
            "tune at smaller sizes, the result runs at all"
        )


def _seed(seed: object) -> int:
    if type(seed) is bool or not isinstance(seed, int) or seed < 0:
        raise SearchError(f"seed={seed!r} must be an integer of at least 0")
    return seed


class LazySuperoptimized:
    """A function that superoptimizes itself at the sizes of its first call."""

    def __init__(self, function: TensorFunction, options: Mapping[str, Any]) -> None:
        self.function = function
        self.options = options
        self.result: Result | None = None

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The result for these arrays, as of `Superoptimized`."""
        if self.result is None:
            program = self.function.trace()
            if is_cuda(str(self.options.get("target", "cpu"))):
                shapes = device_shapes(program, arrays)
            else:
                shapes = [a.shape for a in check_inputs(program, arrays)]
            sizes = SizeBinder(program).bind(shapes)
            options = {"constants": self.function.constants, **self.options}
            self.result = superoptimize(program, sizes={k: max(n, 1) for k, n in sizes.items()}, **options)
        return self.result(*arrays, out=out)


def superoptimized(*, options: Mapping[str, Any] | None = None, **specs: Any) -> Callable[[Any], LazySuperoptimized]:
    """Decorator form: `@superoptimized(x=tensor("b", 4096), w=tensor(4096, "n"))`.

    The first call superoptimizes at its sizes, with `options` for `superoptimize`; its result is `.result`.
    """

    def decorate(fn: Any) -> LazySuperoptimized:
        function = fn if isinstance(fn, TensorFunction) else declare(**specs)(fn)
        return LazySuperoptimized(function, dict(options or {}))

    return decorate


def verify(
    a: Program | TensorFunction | MuGraph | Result,
    b: Program | TensorFunction | MuGraph | Result,
    *,
    seed: int = 0,
) -> Certificate:
    """The evidence that two programs, a program and a muGraph, or two muGraphs compute the same.

    A result stands for its best graph where it is `b`, and for its program where it is `a`. A graph that is equal is
    checked a second time, with other primes and another seed; of two graphs, `b` is checked against the program that `a`
    computes. The dims of a program may be products of the axes of a graph. Raises VerificationError if the two checks
    disagree, GraphError or InputError if the inputs differ.
    """
    left = a.program if isinstance(a, Result) else a
    right = (b.best.graph or b.program) if isinstance(b, Result) else b
    x = left if isinstance(left, MuGraph) else _program(left)
    y = right if isinstance(right, MuGraph) else _program(right)
    return compare(x, y, _seed(seed))


def verify_file(
    program: Program | TensorFunction | Result, file: UpstreamFile, *, seed: int = 0
) -> Iterator[Verdict]:
    """A verdict per candidate of a file of the upstream project, in order.

    Raises FormatError where the file is not a list of candidates; a candidate that is malformed, or that no muGraph of
    the program expresses, has a verdict that says so.
    """
    source = program.program if isinstance(program, Result) else _program(program)
    return verdicts(source, file, _seed(seed))


def load(path: str | os.PathLike[str], *, seed: int = 0) -> Result:
    """A saved result, verified again and compiled for this machine, or for the CUDA architecture that it was made for.

    Raises FormatError if the file is not a saved result, VerificationError if a graph in it does not compute the program.
    """
    path = path_of(path)
    try:
        if zipfile.is_zipfile(path):
            raise FormatError(f"{path}: a compiled program, not a result of superoptimize; use mirage.load_executable")
        text = path.read_text()
        obj = parse_json(text)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); pass a file that save() wrote") from None
    except ValueError:
        raise FormatError(f"{path}: not JSON; pass a file that save() wrote") from None
    if not isinstance(obj, dict) or obj.get("format") != "mirage result":
        raise FormatError(f"{path}: not a saved result; pass a file that save() wrote")
    if obj.get("schema") != SCHEMA:
        raise FormatError(f"{path}: schema {obj.get('schema')!r} is not {SCHEMA}; superoptimize the program again")
    try:
        saved = saved_from_json(obj)
        # raises for sizes that this machine has no memory for
        _anchors(saved.program, saved.anchors, {})
        machine = get_target(str(obj["target"]))
        if isinstance(machine, CudaDevice):
            return cuda_result_from_json(obj, saved, machine, str(path), _seed(seed))
        return result_from_json(obj, saved, machine, str(path), _seed(seed))
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError) as e:
        raise FormatError(f"{path}: a field is missing or malformed ({e}); superoptimize the program again") from None
