"""The library's front door: superoptimize, verify, load."""

from __future__ import annotations

import logging
import os
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from mirage.cache import ResultStore, store_of
from mirage.errors import (
    DimError,
    FormatError,
    SearchError,
    TraceError,
)
from mirage.folders import path_of
from mirage.frontends.spec import TensorFunction, check_constants
from mirage.frontends.spec import program as declare
from mirage.ir.codec import RESULT, read_json
from mirage.ir.dims import sizes_text
from mirage.ir.program import Program
from mirage.kernels.cpu.processor import memory_bytes
from mirage.kernels.target import get_target
from mirage.logs import configure, told
from mirage.mugraph.graph import MuGraph
from mirage.progress import Say
from mirage.results import cuda
from mirage.results.cpu.result import Superoptimized
from mirage.results.evidence import Verdict, compare, verdicts
from mirage.results.recall import Memory
from mirage.results.result import Result, StoredResult, checked_budget
from mirage.results.work import Request, answers
from mirage.runtime.binding import SizeBinder
from mirage.search.buckets import bytes_needed
from mirage.search.decision import MAX_VERSIONS
from mirage.search.options import SearchOptions
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

if TYPE_CHECKING:
    from mirage.frontends.upstream import UpstreamFile
    from mirage.results.ranked import Ranked

_LOG, _VERIFY = logging.getLogger("mirage.search"), logging.getLogger("mirage.verify")
#: what a program becomes, as the target has it
TargetResult: TypeAlias = "Superoptimized | Ranked"
#: the targets that begin with "cuda"
CudaTarget: TypeAlias = Literal["cuda", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100"]


class Options(TypedDict, total=False):
    """The options of `superoptimize`, but for the target."""

    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None
    constants: Collection[str] | None
    budget: float
    pruner: str | None
    canonical: bool
    max_kernels: int
    max_operators: int | None
    rules: bool
    cache: ResultStore | bool
    executor: Executor | None
    more: bool
    seed: int
    progress: Say | None


@overload
def superoptimize(
    program: Program | TensorFunction, *, target: Literal["cpu"] = "cpu", **options: Unpack[Options]
) -> Superoptimized: ...
@overload
def superoptimize(
    program: Program | TensorFunction, *, target: CudaTarget, **options: Unpack[Options]
) -> cuda.CudaSuperoptimized: ...
@overload
def superoptimize(program: Program | TensorFunction, *, target: str, **options: Unpack[Options]) -> TargetResult: ...
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
    rules: bool = True,
    cache: ResultStore | bool = True,
    executor: Executor | None = None,
    more: bool = False,
    seed: int = 0,
    progress: Say | None = None,
) -> TargetResult:
    """The fastest verified way to run a program, for every size of its symbolic dims.

    `sizes` (dim symbol -> elements) are those it is tuned at, or a list of up to 8 such sets; the default is the first set of
    a `TensorFunction`. Other sizes are sampled around the first set: which version of the program runs where is learnt from
    measurements at all of them.
    `constants` names inputs whose contents never change between calls, such as weights; the default is those of a
    `TensorFunction`. Kernels that read them from packed copies compete, and kernels that read what follows from constants alone,
    such as a gain times a weight: both are made when an array is first seen, kept as long as the array lives, and not made again
    when somebody writes to it (`forget` of the result drops them).
    `budget` is a deadline in seconds for all together, kept but for a tenth: graphs are proved, compiled and measured as the
    search finds them, and what is fastest then is the answer. The program is run once by its library version in any case, which
    is the answer where no kernel could be compiled and checked in time. `pruner`
    ("normal-form", "smt" or None), `canonical=False` and `rules=False` are for ablations, and such searches are not cached.
    `cache` is the results store to use, True for the default one, False for none. `executor` runs the search, by default this
    process does. The same seed gives the same search and the same tests, whatever the executor. `progress` gets lines of text.

    `target` is "cpu", "cuda" or an architecture such as "cuda:sm_90". For CUDA the result is a `CudaSuperoptimized`: the search
    is the same, and the best graphs are printed as Triton and compiled ahead of time; without a device they are ranked by a
    model of it, and measured and ranked again when the result is first called where a device is. The best kernels for each of
    the given sizes are compiled before others, and in twice the budget if need be.

    With a results store, what was found is kept, and recalled where as much time was taken for it or no more can be found. What a
    deadline, an interrupt or the end of a process cut short goes on where it was when it is asked for again, with the part of
    the budget that was not spent, or with all of it while there is no kernel. With `more`, what was kept goes on for all of the
    budget in any case, as `improve` of a result does.

    An interrupt (Ctrl-C) ends the search and the tuning; what was found by then is measured within seconds and returned. A second
    interrupt, or one before anything was found, raises KeyboardInterrupt.

    Raises AxisError if the program has no form over named axes, DimError for missing or impossible sizes, InputError for a
    constant that is no input, BudgetError, UnknownTarget, UnknownPruner, SearchError (for CUDA also if no graph compiles),
    NoCompilerError (without Triton, for CUDA), JobError, CacheError; VerificationError if the two checks of a graph disagree, an
    error of this package. Source: Mirage, Fig. 1.
    """
    begun = time.perf_counter()
    configure()
    say = told(progress, _LOG)
    budget = checked_budget(budget)
    machine = get_target(target)
    traced = _program(program)
    named = program.sizes.values() if isinstance(program, TensorFunction) else ()
    if constants is None:
        constants = program.constants if isinstance(program, TensorFunction) else ()
    fixed = check_constants("superoptimize", constants, traced.input_names)
    anchors = anchors_of(traced, sizes, next(iter(named), {}))
    options = SearchOptions(
        pruner, canonical, max_kernels=max_kernels, max_operators=max_operators, budget=budget, rules=rules,
        constants=tuple(sorted(fixed)), rates=machine.rates,
    )
    options.check()
    if executor is not None and not isinstance(executor, Executor):
        raise SearchError(f"executor={executor!r} is not a concurrent.futures.Executor; pass one, or None")
    verifier = Verifier(traced, _seed(seed))
    whole = replace(options, budget=SearchOptions.budget, constants=(), rates=SearchOptions.rates) == SearchOptions()
    store = store_of(cache)
    memory = Memory(store, verifier.axis_program, machine, fixed, traced) if whole and store is not None else None
    request = Request(
        verifier, anchors, machine, options, constants=fixed, budget=budget, more=more, memory=memory,
        checkpointed=store is not None, executor=executor, say=say, begun=begun,
    )  # fmt: skip
    about: dict[str, object] = {"program": traced.name, "target": target, "sizes": anchors[0], "budget": budget}
    _LOG.info("%s on %s at %s, %.3g s", *about.values(), extra=about)
    found: TargetResult = answers(machine).superoptimize(request)
    seconds, stop = time.perf_counter() - begun, found.stats.stop_reason
    figures = {"seconds": round(seconds, 3), "candidates": found.candidates, "cache_hit": found.cache_hit, "stop_reason": stop}
    _LOG.info("%s: %s after %.2f s, search %s", traced.name, found.best, seconds, stop, extra=about | figures)
    return found


def _program(program: object) -> Program:
    if isinstance(program, TensorFunction):
        return program.trace()
    if not isinstance(program, Program):
        raise TraceError(
            f"superoptimize: {type(program).__name__} is not a program; pass mi.trace(fn, x=mi.tensor(...)) or a function "
            "decorated with @mi.program(...)"
        )
    return program


def anchors_of(traced: Program, sizes: object, default: Mapping[str, int]) -> list[dict[str, int]]:
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
        raise DimError(
            f"sizes: {program.name} at {sizes_text(sizes)} needs {needed >> 20} MiB, and this machine has "
            f"{memory_bytes() >> 20}; tune at smaller sizes, the result runs at all"
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
        self.result: TargetResult | None = None

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The result for these arrays, as of `Superoptimized`."""
        if self.result is None:
            program = self.function.trace()
            target = get_target(str(self.options.get("target", "cpu")))
            sizes = SizeBinder(program).bind(answers(target).shapes(program, arrays))
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
    a: Program | TensorFunction | MuGraph | TargetResult,
    b: Program | TensorFunction | MuGraph | TargetResult,
    *,
    seed: int = 0,
) -> Certificate:
    """The evidence that two programs, a program and a muGraph, or two muGraphs compute the same.

    A result stands for its best graph where it is `b`, and for its program where it is `a`. A graph that is equal is
    checked a second time, with other primes and another seed; of two graphs, `b` is checked against the program that `a`
    computes. The dims of a program may be products of the axes of a graph. Where there is neither a proof, nor tests that speak
    for all sizes, nor a counterexample, rules are looked for that lead from one to the other, for about a second at most; they
    are the certificate's `chain`. Raises VerificationError if the two checks disagree, GraphError or InputError if the inputs
    differ.
    """
    configure()
    left = a.program if isinstance(a, Result) else a
    right = (b.best.graph or b.program) if isinstance(b, Result) else b
    x = left if isinstance(left, MuGraph) else _program(left)
    y = right if isinstance(right, MuGraph) else _program(right)
    found = compare(x, y, _seed(seed))
    _VERIFY.info("%s", found, extra={"equal": found.equal, "proof": found.proof})
    return found


def verify_file(program: Program | TensorFunction | TargetResult, file: UpstreamFile, *, seed: int = 0) -> Iterator[Verdict]:
    """A verdict per candidate of a file of the upstream project, in order.

    Raises FormatError where the file is not a list of candidates; a candidate that is malformed, or that no muGraph of
    the program expresses, has a verdict that says so.
    """
    configure()
    source = program.program if isinstance(program, Result) else _program(program)
    return verdicts(source, file, _seed(seed))


def load(path: str | os.PathLike[str], *, seed: int = 0) -> TargetResult:
    """A saved result, verified again and compiled for this machine, or for the CUDA architecture that it was made for.

    Raises FormatError if the file is not a saved result, VerificationError if a graph in it does not compute the program.
    """
    configure()
    path = path_of(path)
    if zipfile.is_zipfile(path):
        raise FormatError(f"{path}: a compiled program, not a result of superoptimize; use mirage.load_executable")
    stored = RESULT.from_json(StoredResult, read_json(path), str(path))
    # raises for sizes that this machine has no memory for
    anchors_of(stored.program, stored.anchors, {})
    found: TargetResult = answers(get_target(stored.target)).restored(stored, str(path), _seed(seed))
    return found
