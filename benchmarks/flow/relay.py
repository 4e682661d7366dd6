"""The models of Relay's evaluation that recur over lists and trees, compiled from Python, against PyTorch and `torch.compile`.

`python -m benchmarks.flow.relay [--only NAME] [--json] [--markdown]`. PyTorch runs loops and recursions of Python;
`torch.compile` unrolls the loops, and compiles what is computed in a recursion. Each peer runs with one thread and with all, and
the faster counts. Versions take turns within a race, so that ratios say more than times.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
import typer

import mirage as mi
from benchmarks.command import command
from benchmarks.fairness import Inputs, Referee
from benchmarks.graphs.relay import MODELS, Model, arrays_of, with_arrays
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table, mean_text
from benchmarks.timing import race
from mirage.errors import InputError, VerificationError
from mirage.settings import num_threads

OURS, EAGER, COMPILED = "Mirage", "PyTorch", "torch.compile"


@dataclass(frozen=True)
class RelayRow:
    """A model. Times are of calls, in microseconds: medians, and the `least`, by version; peers have the better count of threads.

    `compile_s` are the seconds of our compilation. `refused` are versions whose results are not right, and why.
    """

    model: str
    about: str
    times: dict[str, float]
    least: dict[str, float]
    compile_s: float
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The best peer's time over ours: above 1, ours is faster."""
        return min(t for name, t in self.times.items() if name != OURS) / self.times[OURS]


def measure(
    names: Sequence[str] = (), say: Callable[[str], None] = complain, seconds: float = 3.0
) -> Iterator[RelayRow]:
    """A row per model; `names` are of models, all if there are none.

    Raises InputError for a name of nothing, VerificationError where our results are not right.
    """
    if unknown := [n for n in names if n not in MODELS]:
        raise InputError(f"no model is named {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    before = torch.get_num_threads()
    try:
        for name in names or MODELS:
            with warnings.catch_warnings(action="ignore"), inference():
                yield _measured(MODELS[name], seconds, say)
    finally:
        torch.set_num_threads(before)


def with_threads(threads: int, run: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A call of PyTorch's with so many threads."""
    torch.set_num_threads(threads)
    return run(*args)


def peers(model: Model, args: Sequence[Any], say: Callable[[str], None] = complain) -> dict[str, Callable[[], Any]]:
    """PyTorch's versions, each with one thread and with all; `say` is told of what `torch.compile` cannot do."""
    found: dict[str, Callable[[], Any]] = {}
    for threads in sorted({1, num_threads()}):
        label = f"{threads} thread{'s' * (threads > 1)}"
        found[f"{EAGER}, {label}"] = partial(with_threads, threads, model.torch, args)
        torch.set_num_threads(threads)

        def compiled(function: Any) -> Callable[..., Any]:
            # what is compiled is kept with the code of a function: one of its own for so many threads
            own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
            return torch.compile(own, dynamic=model.compiled is not None)

        run = partial(with_threads, threads, (model.compiled or (lambda c: c(model.torch)))(compiled), args)
        try:
            run()
        except Exception as e:
            say(f"{model.name}: torch.compile, {label}: {type(e).__name__}: {str(e).splitlines()[0]}")
        else:
            found[f"{COMPILED}, {label}"] = run
    return found


def _flat(run: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    """A version whose results stand in one tuple."""

    def call() -> tuple[Any, ...]:
        found = run()
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    return call


def _measured(model: Model, seconds: float, say: Callable[[str], None]) -> RelayRow:
    args = model.arguments(np.random.default_rng(0))
    tensors = [with_arrays(a, torch.from_numpy) for a in args]
    start = time.perf_counter()
    ours: Any = mi.compile(model.ours, model.specs)
    compile_s = time.perf_counter() - start
    say(f"{model.name}: compiled in {compile_s:.1f} s")
    runs = {OURS: _flat(partial(ours, *args))} | {n: _flat(run) for n, run in peers(model, tensors, say).items()}

    def yardstick() -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        exact = [with_arrays(a, lambda x: torch.from_numpy(x).double()) for a in args]
        versions = (_flat(partial(model.torch, *given))() for given in (exact, tensors))
        wide, own = ([t.numpy() for t in found] for found in versions)
        return wide, own

    arrays = [a for x in args for a in arrays_of(x)]
    referee = Referee(Inputs(arrays, _changing(arrays), seed=0), yardstick)
    referee.examine_all(runs)
    times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
    if OURS in referee.refused:
        raise VerificationError(f"{model.name}: {referee.refused[OURS]}")
    raced = {n: t for n, t in times.items() if n not in referee.refused}
    best = {n: min((t for m, t in raced.items() if m.startswith(n)), key=lambda t: t.median_us, default=None)
            for n in (OURS, EAGER, COMPILED)}  # fmt: skip
    row = RelayRow(
        model.name, model.about, {n: t.median_us for n, t in best.items() if t}, {n: t.min_us for n, t in best.items() if t},
        compile_s, dict(referee.refused),
    )  # fmt: skip
    say(f"{model.name}: " + ", ".join(f"{n} {t:,.0f} us" for n, t in row.times.items()))
    return row


def _changing(arrays: Sequence[np.ndarray]) -> list[bool]:
    """Whether each array is no weight: rows of states and steps are not."""
    return [a.ndim == 2 and a.shape[0] == 1 and bool(a.any()) for a in arrays]


def relay_table(rows: Sequence[RelayRow]) -> Table:
    """A line per row, medians with the least in parentheses, and one of geometric means of peers' times over ours."""
    names = [n for n in (EAGER, COMPILED, OURS) if any(n in r.times for r in rows)]
    lines = []
    for r in rows:
        times = [f"{r.times[n]:,.0f} ({r.least[n]:,.0f})" if n in r.times else "" for n in names]
        lines.append([r.model, r.about, *times, f"{r.ratio:.2f}", f"{r.compile_s:.1f}"])
    means = [mean_text([r.times[n] / r.times[OURS] for r in rows if n in r.times]) for n in names]
    lines.append(["mean of times over ours", "", *means, mean_text([r.ratio for r in rows]), ""])
    return Table(["model", "of", *(f"{n}, us" for n in names), "ratio", "compile, s"], lines)


def section(rows: Sequence[RelayRow]) -> str:
    """The part of the page of benchmarks."""
    return relay_table(rows).markdown()


main = command(
    "Race the models of Relay's evaluation against PyTorch and torch.compile.",
    "A model", measure, section, relay_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
