"""Tasks of a job, and the steps in which they are worked on, as they are stored and sent to workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from mirage.cache.records import Record, check_key, sha256
from mirage.ir.codec import above_zero, at_least, few, short, within
from mirage.ir.dims import sizes_text
from mirage.kernels.decision import Sizes

#: what a step does: find the verified graphs of a program, or compile and measure kernels for a while
Kind: TypeAlias = Literal["search", "tune"]
Seconds: TypeAlias = Annotated[float, above_zero]
Name: TypeAlias = Annotated[str, short]
Count: TypeAlias = Annotated[int, within(1, 10**12)]
_Us: TypeAlias = Annotated[float, above_zero] | None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A program to superoptimize, as text, for a target, at sets of sizes (dim symbol -> elements).

    `constants` are inputs whose contents never change. `weight` is what a microsecond of it counts: how often it is called, for
    example. `budget` (seconds) and `rounds` limit its tuning, `search` (seconds) and `search_steps` its search.
    """

    name: Name
    program: str
    target: Name = "cpu"
    sizes: Annotated[tuple[Sizes, ...], few]
    constants: tuple[Name, ...] = ()
    weight: Annotated[float, above_zero] = 1.0
    budget: Seconds | None = None
    rounds: Count | None = None
    search: Seconds = 60.0
    search_steps: Count | None = None

    @cached_property
    def key(self) -> str:
        """What the steps of the task depend on, and no limits: with other limits, it goes on."""
        sizes = [sorted(s.items()) for s in self.sizes]
        return sha256(json.dumps([self.program, self.target, sizes, sorted(self.constants)]))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A step to be done anywhere: the task, what is known of it, and for how many seconds; `number` counts the steps of its kind
    from 0. `seed` is that of all random choices.
    """

    task: Task
    kind: Kind
    number: Annotated[int, within(0, 10**9)]
    seconds: Seconds
    seed: Annotated[int, within(0, 2**63)]
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Done:
    """A finished step of the task with this key: when it ended (seconds since 1970), how long it took, where, what came of it.

    `machine` is what times are valid for. `graphs` are verified ones, `compiled` kernels of this step. `complete`: nothing of the
    kind is left to do; `stopped` says why it ended. Times are microseconds of a call at the first sizes: of the library version,
    None where there is none, and of the best version, `best` in words; without a device, the model's. `records` are keys of the
    results store.
    """

    task: Annotated[str, check_key]
    kind: Kind
    ended: Annotated[float, at_least(0)]
    seconds: Annotated[float, at_least(0)]
    host: str
    process: int
    machine: str = ""
    graphs: Annotated[int, within(0, 10**9)] = 0
    compiled: Annotated[int, within(0, 10**9)] = 0
    complete: bool = False
    stopped: str = ""
    library_us: _Us = None
    best_us: _Us = None
    best: str = ""
    records: tuple[Annotated[str, check_key], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A step of the task that failed for good, after so many attempts, and its error."""

    task: Annotated[str, check_key]
    kind: Kind
    ended: Annotated[float, at_least(0)]
    error: str
    attempts: Count


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The results of the task are not in the store any more: its steps before this do not count."""

    task: Annotated[str, check_key]
    ended: Annotated[float, at_least(0)]


#: what the journal of a job holds, in order
Event: TypeAlias = Done | Failed | Lost


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker answers: the step, and the records that it made or changed."""

    done: Done
    records: tuple[Record, ...]


def at(sizes: Mapping[str, int]) -> str:
    """Sizes in words."""
    return sizes_text(sizes) or "its own sizes"
