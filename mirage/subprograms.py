"""How a compilation superoptimizes its subprograms: at once, or in a process beside the program."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mirage.api import TargetResult, superoptimize
from mirage.background import Background, Job
from mirage.cache import ResultStore, store_of
from mirage.cache.records import label
from mirage.compiler.arguments import trial_sets
from mirage.compiler.choice import PLAIN, alone, call_seconds, fastest, form_of
from mirage.compiler.context import Context, Sizes
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.compiler.patterns import rules
from mirage.errors import SearchError
from mirage.ir.axes import to_axes
from mirage.ir.graph.nodes import Function, Module
from mirage.ir.graph.text import print_module
from mirage.ir.program import Program
from mirage.kernels.cpu.model.limits import limit_us, measure_limits, program_cost
from mirage.kernels.cpu.processor import processor
from mirage.progress import Say
from mirage.results.cpu.result import Superoptimized
from mirage.results.forms import FormMemory, StoredForms, SubprogramForm
from mirage.results.recall import Memory
from mirage.results.result import FROM_CACHE
from mirage.runtime.executable import Executable, Kernel
from mirage.search.decision import MAX_VERSIONS

#: share of a subprogram's time, and seconds at least and at most, for what there is without a search and for the race of what one
#: found against that; what they leave is the next subprogram's
RACE_SHARE, RACE_LEAST, RACE_SECONDS = 0.25, 1.0, 3.0
#: share of what a call takes that it is taken to gain at least
LEAST_GAIN = 0.1
#: seconds below which a search and the race after it are not worth their start
MIN_BUDGET = 1.5 * RACE_LEAST

#: forms of a subprogram beside the plain one: what a search found, and one kernel that is made without a search
FOUND, FUSED = "found", "fused"

#: seconds for which a search that is recalled is asked: whatever is kept took more
RECALL_BUDGET = 1e-3


@dataclass(frozen=True)
class Choice:
    """A form of a subprogram: its kernel, or None for what libraries and fusion make of it, and what is said of it."""

    form: str
    kernel: Kernel | None
    said: str

    @property
    def answer(self) -> tuple[Kernel | None, str]:
        """What a pass wants to know of it."""
        return self.kernel, self.said


@dataclass
class Later:
    """Kernels that run library calls until their subprograms are superoptimized."""

    beside: Background
    kernels: KernelMaker
    #: Ctrl-C does not reach the process beside
    interrupted = False

    def __call__(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[Kernel, str]:
        kernel = SwitchingKernel(self.kernels.library(program))
        self.beside.add(Job(kernel, program, tuple(sizes)[:MAX_VERSIONS], tuple(constants)))
        return kernel, kernel.outcome


@dataclass
class Searches:
    """The fastest of what `mirage.superoptimize` finds for a subprogram, of one kernel that is made without a search, and of what
    libraries and fusion make of it. They are made and raced within the budget, the search first; as it begins with what the
    second is made of, that takes part where the search left time, or found nothing. Where calls take too long for a race, it is
    the first, which the search has measured; after an interrupt, and where there is no time, it is the last, which costs none.

    What a search leaves of its budget is the next one's. What is recalled leaves nothing, so that a program whose subprograms are
    all known is compiled at once, also where their searches were cut short.
    """

    kernels: KernelMaker
    cache: ResultStore | bool
    seed: int
    say: Say
    interrupted: bool = False
    #: seconds that searches left, or, below 0, took beyond their budgets
    saved: float = 0.0
    #: what was chosen for each subprogram, and what a search found for it, or, without one, the same
    chosen: dict[str, Choice] = field(default_factory=dict)
    found: dict[str, Choice] = field(default_factory=dict)
    #: forms that are known of an earlier compilation of the same program, by subprogram; emptied where one cannot be had
    known: Mapping[str, SubprogramForm] = field(default_factory=dict)
    #: what was asked for each subprogram; `searched`: whether there was time to search any of them
    asked: dict[str, tuple[Program, list[dict[str, int]], tuple[str, ...]]] = field(default_factory=dict)
    searched: bool = False
    #: forms by libraries and fusion that were made to be measured
    _plain: dict[str, Executable] = field(default_factory=dict)

    def __call__(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[Kernel | None, str]:
        sizes = [dict(at) for at in sizes][:MAX_VERSIONS]
        self.asked[program.name] = program, sizes, tuple(constants)
        known = self.known.get(program.name)
        if known is not None and (again := self._again_as(known, program, sizes, constants)) is not None:
            self.chosen[program.name] = self.found[program.name] = again
            return again.answer
        # what was chosen is not there any more: all is compared again
        self.known = {}
        return self._choose(program, sizes, constants, budget).answer

    def promise(self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str]) -> float:
        """The seconds that calls of a subprogram take at all sizes together by libraries and fusion, without the least that the
        machine allows, but a share of them in any case: searches find more than limits of such a kind tell.
        """
        arguments = trial_sets(_main(program), sizes)
        if arguments is None:
            return 0.0
        form = self._plain_form(program, sizes, constants)
        took = sum(call_seconds(form, arguments))
        form.forget()
        form.release()
        limits, axes = measure_limits(), to_axes(program)
        least = sum(limit_us(*program_cost(axes, at), limits, processor()) for at in sizes)
        return max(took - 1e-6 * least, LEAST_GAIN * took)

    def _plain_form(self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str]) -> Executable:
        """The form of a subprogram by libraries and fusion, made once."""
        if program.name not in self._plain:
            self._plain[program.name] = form_of(program, None, sizes, constants, self.kernels)
        return self._plain[program.name]

    def _choose(self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float) -> Choice:
        """The fastest form of a subprogram, by measurement."""
        budget += self.saved
        deadline = time.perf_counter() + budget
        race = min(max(RACE_SHARE * budget, RACE_LEAST), RACE_SECONDS) if self.kernels.on_host else 0.0
        result, why = self._search(program, sizes, constants, budget, race)
        forms: dict[str, Kernel | None] = {PLAIN: None}
        name = PLAIN
        raced = race and budget >= MIN_BUDGET and not self.interrupted
        # a search begins with what the fused form is made of
        wanted = result is None if not race else raced and (result is None or deadline - time.perf_counter() > 2 * race)
        if wanted and (fused := self.kernels.fused(program, sizes, constants=constants)) is not None:
            name, forms[FUSED] = FUSED, fused
        if result is not None:
            name, forms[FOUND] = FOUND, self.kernels.superoptimized(result)
        if raced and len(forms) > 1:
            made = {
                n: self._plain_form(program, sizes, constants)
                if kernel is None
                else form_of(program, kernel, sizes, constants, self.kernels)
                for n, kernel in forms.items()
            }
            seconds = min(max(deadline - time.perf_counter(), race / 2), race)
            if (arguments := trial_sets(_main(program), sizes)) is not None:
                name = fastest(made, arguments, seconds, otherwise=name)
        choices = {n: Choice(n, forms[n], _said(n, result, why)) for n in (name, FOUND) if n in forms}
        self.chosen[program.name], self.found[program.name] = choices[name], choices.get(FOUND, choices[name])
        if result is None or not result.cache_hit:
            self.saved = deadline - time.perf_counter()
        return choices[name]

    @property
    def may_lose(self) -> bool:
        """Whether a program that runs what was chosen might be slower than without it."""
        used = any(c.kernel is not None for c in self.chosen.values())
        return used and not self.interrupted and self.kernels.on_host

    def forms(self, module: Module, context: Context, without: Collection[str]) -> FormMemory | None:
        """Where the forms of a module are kept whose subprograms are about to be searched; None without a store, and where forms
        do not race.
        """
        store = store_of(self.cache)
        if store is None or not self.kernels.on_host:
            return None
        parts = [
            print_module(module), str(context.bounds.describe()), str([sorted(at.items()) for at in context.sizes]),
            *(str(sorted(names)) for names in (context.constants, without, context.packages, [r.name for r in rules()])),
        ]  # fmt: skip
        return FormMemory(store, module.main, self.kernels.machine, parts)

    def keep(self, memory: FormMemory, whole: str, choices: Mapping[str, Choice], spent: float) -> None:
        """Keep the form that was chosen for the whole program, and of its subprograms the forms that it runs, for compilations of
        no more than `spent` seconds; not after an interrupt, nor where there was no time for any search, as the next compilation
        has more.
        """
        if self.interrupted or not self.searched:
            return
        found, dtype = [], ""
        for name, choice in choices.items():
            program, sizes, constants = self.asked[name]
            axes = to_axes(program)
            search = Memory(memory.store, axes, memory.target, constants)
            tuned, dtype = search.choice_key(sizes, memory.machine), dtype or axes.dtype
            found.append(SubprogramForm(name, choice.form, label(choice.said), tuned, memory.store.checksum(tuned)))
        memory.keep(StoredForms(whole=whole, subprograms=tuple(found), spent=spent), dtype)

    def again(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[Kernel | None, str]:
        """What the search found for a subprogram."""
        return self.found[program.name].answer

    def _again_as(
        self, known: SubprogramForm, program: Program, sizes: Sequence[Sizes], constants: Sequence[str]
    ) -> Choice | None:
        """The form that an earlier compilation has chosen for a subprogram; None where it cannot be made without a search."""
        if known.form == FOUND:
            result, why = self._ask(program, sizes, constants, RECALL_BUDGET)
            if result is None or result.tune_stop != FROM_CACHE:
                return None
            return Choice(FOUND, self.kernels.superoptimized(result), _said(FOUND, result, why))
        if known.form == FUSED:
            fused = self.kernels.fused(program, sizes, constants=constants)
            return None if fused is None else Choice(FUSED, fused, known.said)
        return Choice(PLAIN, None, known.said) if known.form == PLAIN else None

    def _search(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float, race: float
    ) -> tuple[TargetResult | None, str]:
        """What the search finds within `budget` seconds, but for those of the `race`, and where it is from, or None and why
        there is nothing.
        """
        if self.interrupted or budget < MIN_BUDGET:
            return None, "as the compilation was interrupted" if self.interrupted else "for which no time was left"
        return self._ask(program, sizes, constants, budget - race)

    def _ask(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[TargetResult | None, str]:
        """As `_search`, whatever the budget."""
        self.searched = True
        try:
            result: TargetResult = superoptimize(
                program, target=self.kernels.target, sizes=sizes, constants=constants, budget=budget, cache=self.cache,
                seed=self.seed, progress=self.say,
            )  # fmt: skip
        except SearchError as e:
            return None, f"as one found nothing that can be compiled ({str(e).partition('; ')[0]})"
        self.interrupted = result.interrupted
        where = "interrupted" if result.interrupted else "from the cache" if result.cache_hit else result.stats.stop_reason
        return result, where


def _main(program: Program) -> Function:
    module = alone(program)
    return module.functions[module.main]


def _said(name: str, result: TargetResult | None, why: str) -> str:
    """What is said of the form of this name that runs; `why` is as of `_search`."""
    if result is None:
        return ("fused" if name == FUSED else "libraries and fusion") + f" without a search, {why}"
    if name == FUSED:
        return f"fused, which was measured to be faster than {result.best}; {why}"
    if name == PLAIN:
        return f"libraries and fusion, which were measured to be faster than {result.best}; {why}"
    gain = ""
    if isinstance(result, Superoptimized) and (library := result.baselines.get("library")):
        gain = f", {library.min_us / result.best.timing.min_us:.2f} times as fast as the library"
    return f"{result.best}{gain}; {why}"
