"""Jobs without searches: tasks, and workers that answer what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mirage.cache.records import SCHEMA, Record, canonical_json, sha256
from mirage.ir.codec import JOB_STEP
from mirage.jobs.task import Answer, Asked, Done, Task
from mirage.jobs.workers import Workers

PROGRAM = "def {name}(x: float32[m, n]) -> float32[m, n]:\n    y = exp(x)\n    return y\n"


def task(name: str = "a", **more: object) -> Task:
    """A task whose key differs with its name."""
    return Task(**{"name": name, "program": PROGRAM.format(name=name), "sizes": ({"m": 2, "n": 3},), **more})  # type: ignore[arg-type]


def done(t: Task, kind: str = "tune", *, seconds: float = 1.0, ended: float = 1.0, **more: object) -> Done:
    given = {"task": t.key, "kind": kind, "ended": ended, "seconds": seconds, "host": "here", "process": 1, **more}
    return Done(**given)  # type: ignore[arg-type]


def record(name: str, payload: dict[str, object], best_us: float | None = None) -> Record:
    text = canonical_json(payload, name)
    return Record(
        key=sha256(name), program="p", target="cpu", dtype="float32", version=SCHEMA, created="2026-01-01T00:00:00+00:00",
        best_us=best_us, cut_s=None, family=None, processor=None, payload=text, payload_sha256=sha256(text),
    )  # fmt: skip


def answered(asked: Asked, *, times: Sequence[float] = (100.0, 50.0, 40.0), complete_after: int = 10**6) -> Answer:
    """What a worker says: the latencies are `times`, by the round; the records hold the number of the step."""
    kept = record(f"{asked.kind} {asked.task.key}", {"number": asked.number})
    us = times[min(asked.number, len(times) - 1)]
    tuned: Any = {"library_us": 200.0, "best_us": us, "best": "mugraph"} if asked.kind == "tune" else {}
    return Answer(
        done=done(
            asked.task, asked.kind, seconds=asked.seconds if asked.kind == "tune" else 0.5, graphs=3,
            complete=asked.kind == "search" or asked.number + 1 >= complete_after, records=(kept.key,), **tuned,
        ),
        records=(kept,),
    )  # fmt: skip


@dataclass
class Fake(Workers):
    """Workers of this process: `answer` makes the answer to a step, or raises."""

    answer: Callable[[Asked], Answer] = answered
    count: int = 1
    log: list[tuple[str, str, int]] = field(default_factory=list)
    closed: bool = False

    def free(self, target: str | None) -> int:
        return self.count

    def submit(self, asked: Asked) -> Future[str]:
        self.log.append((asked.task.name, asked.kind, asked.number))
        future: Future[str] = Future()
        try:
            future.set_result(JOB_STEP.to_text(self.answer(asked)))
        except Exception as e:
            future.set_exception(e)
        return future

    def close(self, wait: bool) -> None:
        self.closed = True
