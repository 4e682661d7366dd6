"""`jobs.toml`: what the user writes, and the job that it describes.

```toml
budget = 600.0            # seconds of all rounds of tuning together; none: until nothing is gained
round = 10.0              # seconds of a round
seed = 0

[[task]]
program = "layers.py:attention"   # or a file with a program's text
name = "attention"                # of the program, if it is not given
target = "cpu"
sizes = ["decode", { b = 8, t = 512 }]   # named sets of the program, or sizes; the first set of the program
constants = ["w"]                 # those of the program
weight = 2.0                      # what a microsecond counts
budget = 60.0                     # seconds of this task's rounds
rounds = 5                        # and how many
search = 60.0                     # seconds of its search, or
search_steps = 20000              # a number of steps, which is the same on every machine

[[model]]                         # every distinct subprogram of a model is a task
model = "models.py:make_model"    # or "model.onnx"
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

from mirage.api import anchors_of
from mirage.errors import FormatError, JobFileError, MirageError
from mirage.folders import read_text
from mirage.frontends.files import load_function, load_program
from mirage.frontends.spec import TensorFunction, check_constants
from mirage.ir.codec import decode, few, within
from mirage.ir.program import Program
from mirage.jobs.journal import Job
from mirage.jobs.task import Count, Name, Seconds, Task
from mirage.kernels.decision import Sizes
from mirage.kernels.target import get_target

T = TypeVar("T")
_Sizes = Annotated[tuple[str | Sizes, ...], few]
_Weight = Annotated[float, within(1e-12, 1e12)]


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What tasks and models have in common."""

    name: Name | None = None
    target: Name = "cpu"
    weight: _Weight = 1.0
    budget: Seconds | None = None
    rounds: Count | None = None
    search: Seconds = 60.0
    search_steps: Count | None = None


@dataclass(frozen=True, kw_only=True)
class _Task(_Limits):
    program: str
    sizes: _Sizes = ()
    constants: tuple[Name, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Model(_Limits):
    model: str


@dataclass(frozen=True, kw_only=True)
class _Job:
    name: Name | None = None
    budget: Seconds | None = None
    round: Seconds = 10.0
    seed: Annotated[int, within(0, 2**63 - 1)] = 0


#: the subprograms of the model that `FILE.py:make_model` names, or that a file of ONNX holds, in a folder, as tasks
Extract = Callable[[str, Path], list[Task]]


def read_job(path: Path, extract: Extract, name: str | None = None) -> Job:
    """The job that a file describes, called `name`, or as the file says, or as the file is called.

    Programs are traced, and models compiled by `extract`, in the folder of the file. Raises JobFileError, which names the task
    and the key, and InputError if the file cannot be read.
    """
    try:
        data = tomllib.loads(read_text(path, "a job as TOML"))
    except tomllib.TOMLDecodeError as e:
        raise JobFileError(
            f"{path}: not valid TOML: {e}; write the programs under [[task]], with program = 'FILE.py:function'"
        ) from None
    parts = {kind: data.pop(kind, []) for kind in ("task", "model")}
    for kind, items in parts.items():
        if not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
            raise JobFileError(f"{path}: key {kind!r}: write each one as a table of its own, under [[{kind}]]")
    job = _read(_Job, data, str(path), more=tuple(parts))
    tasks: list[Task] = []
    for number, item in enumerate(parts["task"], 1):
        tasks.append(_task(item, _place(path, "task", item, "program", number), path.parent))
    for number, item in enumerate(parts["model"], 1):
        tasks += _model(item, _place(path, "model", item, "model", number), path.parent, extract)
    if not tasks:
        raise JobFileError(f"{path}: there is no task; write one under [[task]], with its program, or a model under [[model]]")
    _check_distinct(path, tasks)
    return Job(name=name or job.name or path.stem, tasks=tuple(tasks), budget=job.budget, round=job.round, seed=job.seed)


def _place(path: Path, kind: str, item: Mapping[str, Any], what: str, number: int) -> str:
    """How errors call a task: by its name or its program, if it has one, else by its number."""
    told = item.get("name", item.get(what))
    return f"{path}: {kind} {told!r}" if isinstance(told, str) else f"{path}: {kind} {number}"


def _read(kind: type[T], data: Mapping[str, Any], where: str, more: tuple[str, ...] = ()) -> T:
    """The value of a table; each key on its own, so that errors name it."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            close = get_close_matches(key, [*known, *more], 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join([*known, *more])}"
            raise JobFileError(f"{where}: unknown key {key!r}; {hint}")
    required = next((k for k in ("program", "model") if k in known), None)
    if required is not None and required not in data:
        raise JobFileError(f"{where}: the key {required!r} is missing; it says which {required} this is")
    for key, value in data.items():
        try:
            decode(kind, {**({required: ""} if required else {}), key: value}, "")
        except FormatError as e:
            # the message begins with the place in the table
            raise JobFileError(f"{where}: key {str(e).removeprefix('.')}") from None
    return decode(kind, dict(data), where)


def _task(item: Mapping[str, Any], where: str, folder: Path) -> Task:
    item = {**item}
    if isinstance(item.get("sizes"), str | dict):
        item["sizes"] = [item["sizes"]]
    given = _read(_Task, item, where)
    with _named(where, "program"):
        found = _load(given.program, folder)
        program = found.trace() if isinstance(found, TensorFunction) else found
    with _named(where, "target"):
        get_target(given.target)
    named = dict(found.sizes) if isinstance(found, TensorFunction) else {}
    with _named(where, "sizes"):
        chosen = [_named_set(s, named) if isinstance(s, str) else s for s in given.sizes]
        sizes = anchors_of(program, chosen or None, next(iter(named.values()), {}))
    with _named(where, "constants"):
        own = found.constants if isinstance(found, TensorFunction) else ()
        constants = check_constants(program.name, own if given.constants is None else given.constants, program.input_names)
    return Task(
        name=given.name or program.name, program=str(program), target=given.target, sizes=tuple(sizes), constants=constants,
        weight=given.weight, budget=given.budget, rounds=given.rounds, search=given.search, search_steps=given.search_steps,
    )  # fmt: skip


def _model(item: Mapping[str, Any], where: str, folder: Path, extract: Extract) -> list[Task]:
    given = _read(_Model, item, where)
    with _named(where, "target"):
        get_target(given.target)
    with _named(where, "model"):
        found = extract(given.model, folder)
    prefix = given.name or Path(given.model.rpartition(":")[2]).stem
    return [
        replace(
            t, name=f"{prefix}/{t.name}", target=given.target, weight=given.weight * t.weight, budget=given.budget,
            rounds=given.rounds, search=given.search, search_steps=given.search_steps,
        )
        for t in found
    ]  # fmt: skip


def _load(text: str, folder: Path) -> TensorFunction | Program:
    path, _, name = text.partition(":")
    if path.endswith(".py"):
        return load_function(folder / path, name)
    found = load_program(folder / text)
    if found is None:
        raise FormatError(f"{text} is a saved result; name its program")
    return found


def _named_set(name: str, named: Mapping[str, Sizes]) -> Sizes:
    if name not in named:
        raise JobFileError(f"the program has no sizes {name!r}; it has {', '.join(named) or 'none'}")
    return named[name]


@contextmanager
def _named(where: str, key: str) -> Iterator[None]:
    """Errors name the task and the key."""
    try:
        yield
    except MirageError as e:
        raise JobFileError(f"{where}: key {key!r}: {e}") from e
    except Exception as e:
        # tracing runs the user's code
        raise JobFileError(f"{where}: key {key!r}: {type(e).__name__}: {e}") from e


def _check_distinct(path: Path, tasks: list[Task]) -> None:
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    for t in tasks:
        if t.name in names:
            raise JobFileError(f"{path}: task {t.name!r}: key 'name': two tasks have this name; give one of them another")
        if t.key in keys:
            raise JobFileError(
                f"{path}: task {t.name!r}: key 'program': task {keys[t.key]!r} is the same program with the same target, sizes "
                "and constants; leave one out, and add their weights"
            )
        names[t.name] = keys[t.key] = t.name
