"""The subprograms of a model as tasks: what `mirage.compile` would search, and what share of the run time each takes.

The model is compiled as ever, but each distinct subprogram runs as library calls, whose time is taken while the model runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from mirage.cli_compile import load_model, load_source
from mirage.compilation import compile, context_of, to_module
from mirage.compiler.arguments import trial_arguments
from mirage.compiler.context import Sizes, surveyed
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.compiler.kernels.targets import kernels_for
from mirage.errors import InputError
from mirage.folders import path_of, save_file
from mirage.frontends.spec import TensorFunction
from mirage.ir.graph.nodes import Function
from mirage.ir.program import Program
from mirage.jobs.task import Task
from mirage.search.decision import MAX_VERSIONS


@dataclass(frozen=True)
class Part:
    """A subprogram as a task, whose weight is how often a run of the model calls it; `us` are microseconds of a call, `share` is
    that of all its calls in the run time of the model.
    """

    task: Task
    us: float
    share: float
    operators: int

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task.name, "share": self.share, "calls": self.task.weight, "us": self.us,
            "operators": self.operators, "sizes": [dict(s) for s in self.task.sizes], "constants": list(self.task.constants),
        }  # fmt: skip


@dataclass(frozen=True)
class Surveyed:
    """The subprograms of a model, those first that take most time, and the microseconds of a run of the model."""

    parts: tuple[Part, ...]
    run_us: float

    @property
    def share(self) -> float:
        """What the subprograms take of the run time together."""
        return sum(p.share for p in self.parts)


@dataclass
class _Subprograms:
    """Takes note of subprograms (`mirage.compiler.context.Survey`)."""

    interrupted: bool = False
    found: list[tuple[Task, Program, SwitchingKernel]] = field(default_factory=list)

    def __call__(
        self, program: Program, sizes: Sequence[Sizes], constants: Sequence[str], budget: float
    ) -> tuple[SwitchingKernel, str]:
        task = Task(
            name=program.name, program=str(program), constants=tuple(constants),
            sizes=tuple(dict(s) for s in list(sizes)[:MAX_VERSIONS]),
        )  # fmt: skip
        for known, _, kernel in self.found:
            if known.key == task.key:
                return kernel, kernel.outcome
        kernel = SwitchingKernel(kernels_for("cpu").library(program))
        self.found.append((task, program, kernel))
        return kernel, kernel.outcome


def subprograms(what: str, folder: Path) -> list[Task]:
    """The subprograms of a model of a job's file as tasks; their weights are calls per run of the model."""
    return [p.task for p in survey(what, folder, 1).parts]


def survey(what: str, folder: Path, calls: int) -> Surveyed:
    """The subprograms of `FILE.py:function`, or of whatever else `mirage compile` takes, such as an ONNX model, measured in so
    many runs.

    Paths are in the folder. Raises InputError for what cannot be run, and what compiling it raises.
    """
    if calls < 1:
        raise InputError(f"calls={calls} must be at least 1")
    noted = _Subprograms()
    with surveyed(noted):
        if what.endswith(".onnx"):
            run = _onnx(what, folder / what)
        else:
            path, colon, name = what.partition(":")
            source = load_source(f"{folder / path}{colon}{name}")
            run = _model(what, source) if isinstance(source, FunctionType) else _program(what, source)
    run()
    for _, _, kernel in noted.found:
        kernel.nanoseconds = kernel.calls = 0
    start = time.perf_counter()
    for _ in range(calls):
        run()
    seconds = time.perf_counter() - start
    parts = [
        Part(
            _weighted(task, kernel.calls / calls), 1e-3 * kernel.nanoseconds / kernel.calls, 1e-9 * kernel.nanoseconds / seconds,
            sum(n.op not in ("input", "constant", "size") for n in program.nodes),
        )
        for task, program, kernel in noted.found
        if kernel.calls
    ]  # fmt: skip
    return Surveyed(tuple(_named(sorted(parts, key=lambda p: -p.share))), 1e6 * seconds / calls)


def _model(what: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """A run of the model of PyTorch that a function gives; it is compiled here."""
    model, args, kwargs = load_model(what, make)
    import torch

    import mirage.torch

    compiled = mirage.torch.compile(model, background=False, strict=True, cache=False)

    def run() -> None:
        with torch.no_grad():
            compiled(*args, **kwargs)

    run()
    return run


def _onnx(what: str, path: Path) -> Callable[[], Any]:
    """A run of an ONNX model with arguments of the types of its inputs; it is compiled here."""
    model: Any = compile(path, cache=False)
    if model.deciding:
        deciding = ", ".join(model.deciding)
        raise InputError(f"{what}: values of {deciding} decide shapes, so that there is no one program; export it with constants")
    (program,) = model.programs
    module, inputs = program.imported.module, program.imported.inputs
    main = module.functions[module.main]
    # the weights are bound
    main = replace(main, parameters=main.parameters[: len(inputs)])
    given = dict(zip(inputs, _arguments(what, main, context_of(module, None, None, ()).sizes[0]), strict=True))
    every = [given.get(k) for k in range(len(model.inputs))]
    return lambda: program(every)


def _program(what: str, source: Any) -> Callable[[], Any]:
    """A run of a whole program with arguments of its types, at its first sizes."""
    sizes = list(source.sizes.values())[:MAX_VERSIONS] if isinstance(source, TensorFunction) else None
    constants = source.constants if isinstance(source, TensorFunction) else ()
    module = to_module(source, None)
    at = context_of(module, None, sizes or None, constants).sizes[0]
    arguments = _arguments(what, module.functions[module.main], at)
    executable = compile(module, sizes=sizes or None, constants=constants, cache=False)
    return lambda: executable(*arguments)


def _arguments(what: str, main: Function, at: Sizes) -> list[Any]:
    arguments = trial_arguments(main, at)
    if arguments is None:
        raise InputError(f"{what}: no arguments can be made for it: its types do not say enough, or there is no memory")
    return arguments


def _weighted(task: Task, weight: float) -> Task:
    return Task(name=task.name, program=task.program, sizes=task.sizes, constants=task.constants, weight=weight)


def _named(parts: Sequence[Part]) -> list[Part]:
    """The parts with names that differ."""
    found: list[Part] = []
    for number, p in enumerate(parts, 1):
        t = p.task
        task = Task(
            name=f"{number:02}-{t.name}", program=t.program, sizes=t.sizes, constants=t.constants, weight=t.weight
        )
        found.append(Part(task, p.us, p.share, p.operators))
    return found


def write_job(path: Path, found: Surveyed, target: str) -> None:
    """Write the subprograms as a file of tasks, and their programs to a folder beside it that is called as the file.

    Raises InputError if they cannot be written, or if there are none.
    """
    if not found.parts:
        raise InputError("the model has no subprogram that can be searched; nothing is written")
    folder = path_of(path).with_suffix("")
    if folder == path:
        raise InputError(f"{path}: give the file of tasks a suffix, such as {path}.toml: programs go to the folder {path}")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as e:
        raise InputError(f"{folder}: {e}; choose another name for the file of tasks") from e
    lines = [f"# {len(found.parts)} subprograms, {found.share:.1%} of {found.run_us:.1f} us per run of the model"]
    for p in found.parts:
        file = folder / f"{p.task.name}.txt"
        save_file(file, f"{p.task.program}\n")
        sizes = ", ".join("{ " + ", ".join(f"{json.dumps(s)} = {n}" for s, n in one.items()) + " }" for one in p.task.sizes)
        lines += [
            "",
            f"# {p.share:.1%} of the run time, {p.us:.1f} us per call",
            "[[task]]",
            f"name = {_text(p.task.name)}",
            f"program = {_text(f'{folder.name}/{file.name}')}",
            f"target = {_text(target)}",
            f"sizes = [{sizes}]",
            f"constants = [{', '.join(map(_text, p.task.constants))}]",
            f"weight = {p.task.weight!r}",
        ]
    save_file(path, "\n".join(lines) + "\n")


def _text(value: str) -> str:
    """A string of TOML, which are those of JSON where every character can be printed."""
    if not value.isprintable():
        raise InputError(f"{value!r} cannot be written to a file of tasks; choose a name that can be printed")
    return json.dumps(value, ensure_ascii=False)
