"""One step of a job, as a worker does it: text in, text out, so that a worker needs the package and nothing else.

A step works on a results store of its own, which holds the records that it is given, and answers with those that it made: so
what it keeps is what `mirage.superoptimize` keeps, under the same keys, and whoever asked merges it into the job's store.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from mirage.api import superoptimize
from mirage.cache import CallStore, ResultStore
from mirage.errors import DeviceError
from mirage.ir.codec import JOB_STEP
from mirage.ir.program import Program
from mirage.jobs.quiet import quiet
from mirage.jobs.task import Answer, Asked, Done, Task
from mirage.kernels.target import get_target
from mirage.results.cpu.result import Superoptimized
from mirage.results.ranked import Ranked
from mirage.results.recall import Memory
from mirage.results.work import Request
from mirage.search.jobs import was_cut
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier

#: seconds of the search at a time, where no number of steps limits it
_SLICE_S = 0.05


def run_step(text: str) -> str:
    """Do the step that is asked for in JSON (`Asked`); the answer (`Answer`) as JSON.

    Measuring waits until the machine is quiet (`quiet`). Raises FormatError for another text, and what `superoptimize` raises.
    """
    asked = JOB_STEP.from_text(Asked, text)
    with tempfile.TemporaryDirectory(prefix="mirage-step-") as folder, quiet(alone=asked.kind == "tune"):
        store = ResultStore(f"sqlite:///{Path(folder)}/results.sqlite")
        store.add(asked.records)
        start = time.perf_counter()
        try:
            done = _search(asked, store) if asked.kind == "search" else _tune(asked, store)
        finally:
            # the folder goes with its file
            store.settle()
        given = {r.key: r.payload_sha256 for r in asked.records}
        records = list(store.sound_records())
        found = Done(
            **done, task=asked.task.key, kind=asked.kind, ended=time.time(), seconds=time.perf_counter() - start,
            host=socket.gethostname(), process=os.getpid(), records=tuple(r.key for r in records),
        )  # fmt: skip
        changed = tuple(r for r in records if given.get(r.key) != r.payload_sha256)
    return JOB_STEP.to_text(Answer(done=found, records=changed))


def memory_of(task: Task, store: ResultStore, verifier: Verifier) -> Memory:
    """What the store remembers of a task, under the keys of `superoptimize`."""
    return Memory(CallStore(store), verifier.axis_program, get_target(task.target), task.constants, verifier.program)


def _search(asked: Asked, store: ResultStore) -> dict[str, Any]:
    """Find and verify graphs, and keep them; the search of `superoptimize`, without its kernels."""
    task, target = asked.task, get_target(asked.task.target)
    verifier = Verifier(Program.from_text(task.program), asked.seed)
    memory = memory_of(task, store, verifier)
    options = SearchOptions(budget=asked.seconds, steps=task.search_steps, rates=target.rates)
    work = Request(
        verifier, task.sizes, target, options, constants=task.constants, budget=asked.seconds, memory=memory,
        # one that is counted begins at its beginning: what another one left on this machine would have it come further
        checkpointed=task.search_steps is None,
    ).work()  # fmt: skip
    source = work.candidates
    if task.search_steps is None:
        end = time.perf_counter() + asked.seconds
        while not source.done and time.perf_counter() < end:
            source.more(_SLICE_S)
    else:
        # without time, each call takes one step: as many on every machine
        for _ in range(task.search_steps):
            if source.done:
                break
            source.more(0.0)
    if source.search is not None:
        memory.keep_graphs(source.found, work.stats, complete=work.complete, spent=work.elapsed())
    work.save()
    return {"graphs": len(source.found), "complete": work.complete, "stopped": work.stats.stop_reason}


def _tune(asked: Asked, store: ResultStore) -> dict[str, Any]:
    """A round of `superoptimize`, which goes on from what there is."""
    task = asked.task
    result = superoptimize(
        Program.from_text(task.program), target=task.target, sizes=task.sizes, constants=task.constants,
        budget=asked.seconds, cache=store, more=asked.number > 0, seed=asked.seed,
    )  # fmt: skip
    common = {"graphs": len(result.graphs), "compiled": result.compiled, "best": result.best.kind, "stopped": result.tune_stop}
    machine = get_target(task.target).machines[0].replace("\n", ", ")
    if isinstance(result, Superoptimized):
        # what is recalled was complete, or had the seconds of this round before it
        kept = memory_of(task, store, result.verifier).tuned(task.sizes)
        complete = kept is not None and kept.complete
        library = result.baselines["library"].median_us
        return {
            **common, "machine": machine, "complete": complete, "library_us": library, "best_us": result.best.timing.median_us,
        }  # fmt: skip
    assert isinstance(result, Ranked)
    try:
        if result.is_unmeasured:
            result.profile(asked.seconds)
    except DeviceError:
        # without a device, the model's order is the answer
        pass
    return {**common, "machine": result.device_name, "complete": not was_cut(result.tune_stop), "best_us": result.best_us}
