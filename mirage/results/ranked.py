"""Answers of a superoptimization whose versions the model of a target has ranked: verified graphs become compiled versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.dims import check_complete, sizes_text
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.decision import leaves
from mirage.kernels.target import Target, get_target
from mirage.progress import Step
from mirage.results.recall import Chosen
from mirage.results.records import decision_record
from mirage.results.result import FROM_CACHE, FROM_FILE, Result, StoredResult
from mirage.results.turn import in_turn
from mirage.results.work import Request, Work
from mirage.runtime.arrays import check_inputs
from mirage.runtime.binding import SizeBinder
from mirage.search.decision import Decision, Version
from mirage.search.rank import Ranker, library_candidate
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

#: what a report says of times that are the model's
BY_MODEL = "ranked by model: no device"
#: shares of the budget: for search and verification, and what ranking has at least
SEARCH_SHARE, LEAST_SHARE = 0.6, 0.1
#: seconds that ranking may take after an interrupt
HASTE_S = 3.0


@dataclass(kw_only=True, repr=False)
class Ranked(Result):
    """A program with verified graphs as kernels for `machine`, for all sizes of its symbolic dims.

    `decision` says which of `versions` runs at which sizes; its times are those of the cost model (`ranked_by_model`) until
    somebody has measured them. `keep` is told of every new decision. `anchors` are the sizes (dim symbol -> elements) that
    were given. `constants` are inputs whose contents must not change between calls: kernels may read them from packed copies
    (`forget`).

    `graphs` are all verified graphs by modelled cost of the search. Those of versions have passed the second check of
    `Verifier.confirm`; making a result raises VerificationError where one does not.
    """

    machine: Target
    decision: Decision
    keep: Callable[[Decision], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        confirmed: dict[int, Certificate] = {}
        versions = tuple(
            replace(v, candidate=self._confirmed(v.candidate, confirmed)) if v.candidate else v
            for v in self.decision.versions
        )
        self.decision = replace(self.decision, versions=versions)
        self.graphs = [self._confirmed(c, confirmed) if id(c.graph) in confirmed else c for c in self.graphs]

    @property
    def _target_name(self) -> str:
        return self.machine.name

    @property
    def target(self) -> str:
        """The target's name, such as "cuda:sm_90"."""
        return self.machine.name

    @property
    def device_name(self) -> str:
        """What the kernels are for, such as "H200"."""
        return self.machine.name

    @property
    def ranked_by_model(self) -> bool:
        """Whether the times of the decision are the model's, and no device's."""
        return not self.decision.measured_on

    @property
    def versions(self) -> Sequence[Version]:
        """The ways to run the program that `decision` decides among."""
        return self.decision.versions[: self.decision.used]

    def choice(self, sizes: Mapping[str, int]) -> Version:
        """What a call at these sizes (dim symbol -> elements) runs.

        Raises DimError where a dim has no size, or no version serves them.
        """
        check_complete(self.program.name, self.sizes, sizes)
        return self.decision.at(sizes)

    @property
    def best(self) -> Version:
        """What a call at the first given sizes runs."""
        return self.choice(self.sizes)

    @property
    def best_us(self) -> float:
        """Microseconds of a call at the first given sizes: modelled, or measured on the device that the decision names."""
        return self.decision.points[0].times[self.decision.number(self.sizes)]

    @property
    def certificate(self) -> Certificate:
        """The evidence for what a call at the first given sizes runs; that of others is `candidate.certificate`."""
        assert self.best.candidate is not None
        return self.best.candidate.certificate

    @property
    def source(self) -> str:
        """The code of the best graph."""
        return str(self.executable(self.best).source)

    @property
    def floor_us(self) -> float:
        """The least time (us) that the machine's bandwidth and arithmetic allow at the first given sizes."""
        moved, flops = program_cost(self.verifier.axis_program, self.sizes)
        return self.machine.floor_us(moved, flops, self.program.dtype)

    def report_rows(self) -> list[tuple[str, str]]:
        what = "modelled" if self.ranked_by_model else "measured"
        compiled = f"{self.seconds.get('tune', 0):.2f} s, {self.compiled} schedules compiled, {len(self.rejected)} rejected"
        rows = [
            ("times", BY_MODEL if self.ranked_by_model else f"measured on {self.decision.measured_on}"),
            ("device", self.machine.note),
            *self._search_rows(("compile", compiled)),
            ("compilation stopped", self.tune_stop),
            (f"best: {self.best}", f"{self.best_us:,.2f} us {what}"),
            ("share of the floor", f"{self.floor_us / self.best_us:.0%} of {self.floor_us:,.2f} us"),
            *self.machine.report(self.verifier.axis_program, self.executable(self.best)),
            ("versions", f"{len(self.versions)} chosen of {len(self.decision.versions)} compiled"),
        ]
        rows += [(f"at {where}", f"version {k}: {self.versions[k]}") for where, k in leaves(self.decision.tree)]
        for p in self.decision.points:
            at = sizes_text(p.sizes) or "fixed sizes"
            us = min(p.times)
            rows.append((f"{what} at {at}", f"{us:,.2f} us" if us < np.inf else "no version serves it"))
        return rows

    def stored(self) -> StoredResult:
        return StoredResult(decision=decision_record(self.decision, self.graphs), **self._common())


    # calls

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The program's result (a tuple of results if it has several) for arrays of the target's library.

        With `out`, an array (or a tuple of arrays, one per result), results are written there, and `out` is returned; it must not
        overlap the arguments.

        Raises InputError if the arrays do not fit the program, DimError for sizes that no version serves.
        """
        return self._call(arrays, out)

    def _call(self, arrays: tuple[Any, ...], out: Any, *more: Any) -> Any:
        sizes = SizeBinder(self.program).bind(shapes(self.program, arrays))
        outs = None if out is None else out if isinstance(out, tuple | list) else (out,)
        found = self.executable(self.decision.at(sizes))(arrays, sizes, outs, *more)
        if out is not None:
            return out
        return found[0] if len(found) == 1 else tuple(found)

    @property
    def is_unmeasured(self) -> bool:
        """Whether the machine at hand would measure the versions, and has not."""
        return False

    def profile(self, seconds: float = 0.0) -> None:
        """Measure the versions on the machine at hand for about so many seconds, and decide among them again, where it can."""

    def forget(self) -> None:
        """Drop the packed copies of constants. The next call makes them again: needed where somebody wrote to a constant."""
        for v in self.decision.versions:
            self.executable(v).forget()

    def executable(self, version: Version) -> Any:
        """The kernels of a version, ready to be launched."""
        return version.executable

    def reference(self, *arrays: Any) -> Any:
        """The program itself on arrays in main memory, operator by operator with NumPy: its result, or a tuple of several.

        Raises InputError if the arrays do not fit the program.
        """
        inputs = check_inputs(self.program, arrays)
        found = run_reference(self.program, inputs, SizeBinder(self.program).bind([a.shape for a in inputs]))
        return found[0] if len(found) == 1 else tuple(found)


def shapes(program: Program, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a program's arguments; raises InputError for another number of them or of dims."""
    names, types = program.input_names, program.input_types
    if len(arrays) != len(names):
        raise InputError(
            f"{program.name}: takes {len(names)} arrays ({', '.join(names)}), got {len(arrays)}; pass each input once, in order"
        )
    for x, name, t in zip(arrays, names, types, strict=True):
        if not hasattr(x, "shape") or len(x.shape) != t.rank:
            raise InputError(
                f"{program.name}: input {name!r} must be an array on the device, {t}; got {type(x).__name__}"
            )
    return [tuple(int(n) for n in x.shape) for x in arrays]


def superoptimize(request: Request, kind: type[Ranked] = Ranked) -> Ranked:
    """The result for a target: as it was kept in the memory, unless more is wanted, or with the preferred ones of the verified
    graphs, as many as are found in `SEARCH_SHARE` of the time, compiled and ranked within the budget and kept there.

    Raises KeyboardInterrupt for an interrupt before anything was found, NoCompilerError without the target's compiler,
    SearchError if no graph compiles for it.
    """
    target, memory, verifier, anchors = request.target, request.memory, request.verifier, request.anchors

    def keep(work: Work, decision: Decision, stop_reason: str = "") -> None:
        if memory is not None:
            graphs = list({id(v.candidate.graph): v.candidate for v in decision.versions if v.candidate}.values())
            chosen = Chosen(decision, graphs, stop_reason, {})
            memory.keep_tuned(anchors, chosen, decision.measured_on, work.stats, work.elapsed())

    def made(work: Work, **more: Any) -> Ranked:
        return kind(
            program=verifier.program, verifier=verifier, anchors=[dict(a) for a in anchors], machine=target,
            constants=work.constants, keep=partial(keep, work), stats=work.stats, candidates=work.stats.candidates, **more,
        )  # fmt: skip

    def recall(end: str = "") -> Ranked | None:
        if memory is None or (request.more and not end):
            return None
        kept = memory.tuned(anchors, 0.0 if end else request.budget)
        recalled = kept.value.try_restored(verifier, target, request.constants) if kept is not None else None
        if recalled is None:
            return None
        work = request.work()
        graphs, decision = recalled
        return made(work, graphs=graphs, decision=decision, seconds=work.seconds, cache_hit=True, tune_stop=end or FROM_CACHE)

    def search(waited: float) -> Ranked:
        work = request.work()
        budget = max(request.budget - waited, LEAST_SHARE * request.budget)
        answer = _searched(request, work, budget, partial(made, work))
        if not answer.interrupted:
            keep(work, answer.decision, answer.tune_stop)
        return answer

    return in_turn(request, target.machines[0], recall, search)


def _searched(request: Request, work: Work, budget: float, made: Callable[..., Ranked]) -> Ranked:
    """What is found, compiled and ranked in so many seconds."""
    target, memory = request.target, request.memory
    verifier, anchors, source = work.verifier, work.anchors, work.candidates
    cache_hit = source.search is None
    end = time.perf_counter() + budget
    try:
        source.all(SEARCH_SHARE * budget)
    except KeyboardInterrupt:
        source.stop()
        if not source.found:
            raise
    if not source.stopped and memory is not None and not cache_hit:
        memory.keep_graphs(source.found, work.stats, complete=work.complete, spent=work.elapsed())
    work.save()
    start = time.perf_counter()
    graphs, preferred = list(source.found), source.preferred()
    left = HASTE_S if source.stopped else max(end - start, LEAST_SHARE * budget)
    ranker = Ranker(
        verifier.program, anchors, target, budget=left, constants=work.constants,
        progress=lambda text: request.say(Step("compiling", text)),
    )  # fmt: skip
    if len(ranker.tuning.libraries) > 1 and (library := library_candidate(verifier, graphs)) is not None:
        preferred, graphs = [*preferred, library], [*graphs, library]
    ranked = ranker.run(preferred)
    return made(
        graphs=graphs, decision=ranked.decision, seconds={**work.seconds, "tune": time.perf_counter() - start},
        cache_hit=cache_hit, compiled=ranked.compiled, rejected=ranked.rejected, tune_stop=ranked.stop_reason,
    )  # fmt: skip


def restored(stored: StoredResult, where: str, seed: int, kind: type[Ranked] = Ranked) -> Ranked:
    """The result that was stored: its graphs are verified again with this seed, and its kernels compiled if they are not in the
    cache. `where` says in errors where it comes from.

    Raises VerificationError for a graph that does not compute the program, and the errors of compilation.
    """
    verifier, target = Verifier(stored.program, seed), get_target(stored.target)
    start = time.perf_counter()
    graphs = stored.rechecked(verifier, where)
    seconds = {"verify": time.perf_counter() - start}
    return kind(
        program=stored.program, verifier=verifier, anchors=stored.anchors, machine=target, graphs=graphs,
        decision=stored.decision.restored(dict(enumerate(graphs)), target, stored.constants), stats=stored.stats,
        seconds=seconds, cache_hit=True, candidates=stored.candidates, tune_stop=FROM_FILE, constants=stored.constants,
    )  # fmt: skip
