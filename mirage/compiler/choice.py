"""Which of several compiled forms of one program runs: the fastest by measurement, of those that are never slower than the form
without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import geometric_mean
from typing import Any, NamedTuple

from mirage.compiler.build import COMPLETION, PREPARATION, built, passed
from mirage.compiler.context import Context, Sizes
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.passes.superoptimize import calling
from mirage.ir.annotations import ShapeType
from mirage.ir.dims import symbol
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Kernel, Module, Var
from mirage.ir.graph.programs import module_of
from mirage.ir.program import Program
from mirage.kernels.profile import Timing, interleave, score, settle, wall_ns
from mirage.runtime.executable import Executable

#: the form of a program of library calls and fused kernels, made without a search
PLAIN = "plain"
#: how many times as long as that a form may take at any sizes: two measurements of the same differ by as much
EQUAL = 1.02
#: the fewest rounds of a race, where there is time; the fewest calls of a form in a race, the first of which is not timed
ROUNDS, CALLS = 3, 2
#: nanoseconds of calls in a turn, and the most of them; a call that takes so long finds in the caches what any other form left
TURN_NS, TURN_CALLS = 2_000_000, 20
LONG_NS = 50_000_000


def fastest(
    forms: Mapping[str, Executable], arguments: Sequence[Sequence[Any]], seconds: float, otherwise: str
) -> str:
    """The name of the form that takes the least time for these sets of arguments, in the geometric mean, of those that take no
    longer than `PLAIN` for any set; by races of so many seconds together. It is `PLAIN` unless another one gains more than two
    measurements of the same differ by, and `otherwise` where calls take so long that not even one of each form could be measured.

    Each form is called as in a program that runs it alone: with its own threads awake, those of others asleep, and with what
    its own calls leave in the caches.
    """
    try:
        ratios = _ratios(forms, arguments, seconds)
    finally:
        for form in forms.values():
            form.forget()
            form.release()
    if not ratios:
        return otherwise
    allowed = [name for name, found in ratios.items() if max(r.least for r in found) <= EQUAL]
    means = {name: geometric_mean(r.score for r in ratios[name]) for name in allowed}
    best = min(means, key=means.__getitem__)
    return best if means[best] * EQUAL < 1 else PLAIN


class _Ratio(NamedTuple):
    """How long a form takes, times as long as `PLAIN`: as kernels are compared, and by the least time of each, if that speaks
    more for it. On a busy machine the median of few calls is that of whatever ran beside them.
    """

    score: float
    least: float

    @classmethod
    def of(cls, form: Timing, plain: Timing) -> _Ratio:
        scores = score(form) / score(plain)
        return cls(scores, min(scores, form.min_us / plain.min_us))


def call_seconds(form: Executable, arguments: Sequence[Sequence[Any]]) -> list[float]:
    """The seconds of the faster of two calls of a form for each set of arguments: the first of all packs weights, too."""
    return list(map(min, *([1e-9 * wall_ns(partial(form, *given)) for given in arguments] for _ in range(2))))


def _ratios(
    forms: Mapping[str, Executable], arguments: Sequence[Sequence[Any]], seconds: float
) -> dict[str, list[_Ratio]]:
    """How long each form takes for each set of arguments, times as long as `PLAIN`; empty where there is no time."""
    took = call_seconds(forms[PLAIN], arguments)
    if CALLS * len(forms) * sum(took) > seconds:
        return {}
    ratios: dict[str, list[_Ratio]] = {name: [] for name in forms}
    for given, first in zip(arguments, took, strict=True):
        runs = {name: _Turns(partial(form, *given)) for name, form in forms.items()}
        # half of the time is for all alike, half goes to those of long calls; the least rounds take up to twice as long
        share = (1 / len(arguments) + first / sum(took)) / 2
        timings = interleave(runs, seconds=share * seconds / 2, min_runs=ROUNDS, measure=_Turns.nanoseconds, clear=True)
        for name, t in timings.items():
            ratios[name].append(_Ratio.of(t, timings[PLAIN]))
    return ratios


class _Turns:
    """A form of a program in a race; `nanoseconds` are those of the fastest call of a turn, `last` those that were last taken."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.last = 0

    def __call__(self) -> None:
        self.last = wall_ns(self._run)

    def nanoseconds(self) -> int:
        settle()
        if self.last < LONG_NS:
            self()
        calls = min(max(TURN_NS // max(self.last, 1), 1), TURN_CALLS)
        self.last = min(wall_ns(self._run) for _ in range(calls))
        return self.last


def form_of(
    program: Program, kernel: Kernel | None, sizes: Sequence[Sizes], constants: Sequence[str], kernels: KernelMaker
) -> Executable:
    """A subprogram as an executable of its own, for these sizes: a call of this kernel, or without one the plain form. Its
    arguments are those of `alone`.
    """
    module = alone(program)
    parameters = len(module.functions[module.main].parameters)
    # without bounds, its kernels are those that the whole program has made
    context = Context(constants=tuple(constants), sizes=tuple(sizes), kernels=kernels)
    if kernel is None:
        module = passed(module, context, PREPARATION)
    else:
        builder = ModuleBuilder(module)
        name = builder.add_kernel("kernel", kernel)
        dims = {s: symbol(s) for s in program.symbols()}
        builder.add(calling(module.functions[module.main], builder, name, dims))
        module = builder.finish(module.main)
    return built(passed(module, context, COMPLETION), context, given=parameters)


def alone(program: Program) -> Module:
    """A subprogram as a module of its own. A whole program has other inputs that tell its dims; where those of the subprogram do
    not, as b*s alone tells neither b nor s, it is given a shape of all of them, besides.
    """
    module = module_of(program)
    told = {str(d) for t in program.input_types for d in t.shape if d.is_Symbol}
    symbols = program.symbols()
    if told >= set(symbols):
        return module
    main = module.functions[module.main]
    taken = {v.name for v in (*main.parameters, *(b.var for b in main.bindings))}
    name = next(n for k in count() if (n := f"sizes{k or ''}") not in taken)
    sizes = Var(name, ShapeType(tuple(map(symbol, symbols))))
    return module.with_function(replace(main, parameters=(*main.parameters, sizes)))
