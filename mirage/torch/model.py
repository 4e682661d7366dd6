"""Models compiled by export: one program for all sizes, checked against the model, which runs itself where none can be made."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import signature
from operator import attrgetter
from os import PathLike
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from mirage.cache import ResultStore
from mirage.compilation import FLOAT32
from mirage.drawing.show import Displayed
from mirage.errors import InputError, MirageError, UnsupportedNode
from mirage.logs import configure
from mirage.remember import remember
from mirage.torch.arguments import Given, Key, names_of, split
from mirage.torch.background import Later
from mirage.torch.caches import register_caches
from mirage.torch.compare import compare_small, compared
from mirage.torch.dynamo import graph_of_dynamo
from mirage.torch.export import Call, export, exported_elsewhere, first_line, module_of, program_of, widened
from mirage.torch.guards import Shape
from mirage.torch.log import FALLBACKS, GRAPHS, RECOMPILES
from mirage.torch.model_options import ModelOptions, ranges_of
from mirage.torch.program import KNOWN, Program, check_bounds
from mirage.torch.saved import save
from mirage.torch.weights import requires_grad

#: a kind of arguments, and which modules are in training, if any is
Place: TypeAlias = tuple[Key, tuple[bool, ...]]
#: programs for arguments of one kind, and kinds of arguments, beyond which the model itself runs
MAX_PROGRAMS, MAX_KINDS = 8, 32


def compile(
    model: Callable[..., Any],
    *,
    dynamic: bool = True,
    budget: float = 60.0,
    bounds: Mapping[str, Mapping[int, Any]] | None = None,
    background: bool = True,
    target: str = "cpu",
    without: Collection[str] = (),
    strict: bool = False,
    cache: ResultStore | bool = True,
    seed: int = 0,
    weights: str = FLOAT32,
) -> CompiledModel:
    """A model, or a function of tensors, compiled for all sizes: called as the model is, it gives what the model gives.

    The first call exports the model with every size a symbol (`dynamic=False`: with none) and compiles it, and is compared with
    the model itself. Arguments beside tensors, such as flags, are a part of the program: other ones lead to another program, as
    do sizes that the first one does not hold for. Weights are packed once; a change of them is seen. Where gradients are needed,
    `torch.compile` with the backend "mirage" and these options runs instead: its graphs are compiled forward and backward. What
    cannot be exported runs as it is, which is logged once; with `strict` it raises UnsupportedNode instead.

    With `background`, subprograms are fused at once and superoptimized in a process beside, for `budget` seconds, after which
    calls run what was found; otherwise the first call waits for it. `bounds` limits dims by the names of arguments,
    `{"input_ids": {0: 8, 1: (1, 512)}}`: calls beyond raise GuardError. `target` is "cpu"; `without`, `weights`, `cache` and
    `seed` are as of `mirage.compile`.

    Raises BudgetError, InputError, DimError and UnknownTarget for options that are none.
    """
    if not callable(model):
        raise InputError(f"{type(model).__name__} is not a model; pass a torch.nn.Module, or a function of tensors")
    options = ModelOptions(budget, bounds, background, target, without, strict, dynamic, cache, seed, weights)
    configure()
    return CompiledModel(model, options)


@dataclass
class Kind:
    """The programs for arguments of one kind: those of `call`, with tensors of these names and element types."""

    call: Call
    names: list[str]
    dtypes: list[Any]
    programs: list[Program] = field(default_factory=list)
    #: what runs for shapes that were seen, or why the model itself does
    known: dict[tuple[Shape, ...], Program | str] = field(default_factory=dict)


class CompiledModel(Displayed, drawn_by="mirage.torch.draw"):
    """A model with its compiled programs. May be called from several threads."""

    def __init__(self, model: Callable[..., Any], options: ModelOptions) -> None:
        self.model = model
        self.options = options
        self._parameters = _parameters(model)
        self._bounds = ranges_of(options.bounds)
        self._kinds: dict[Place, Kind] = {}
        self._lock = threading.RLock()
        self._later = Later(options) if options.background else None
        if self._later is not None:
            weakref.finalize(self, self._later.close).atexit = False
        #: why calls ran in torch, and how many
        self.eager: Counter[str] = Counter()
        #: calls of which gradients were needed
        self.training_calls = 0
        #: why there is a program beside the first one
        self.recompiles: list[str] = []
        #: the module whose weights the model has, if that is known
        self._module = module_of(model)
        with suppress(TypeError, ValueError):
            # what asks a model for its arguments, as `generate` does, asks its stand-in
            self.__signature__ = signature(getattr(model, "forward", model))
        #: whether a function was seen to give a result that needs gradients
        self._has_gradients = False
        register_caches()
        self._note_modules()
        if unknown := sorted(self._bounds.keys() - set(self._parameters)):
            raise InputError(f"bounds: there is no argument {unknown[0]!r}; the arguments are {', '.join(self._parameters)}")

    def _note_modules(self) -> None:
        module = self._module
        self._modules = [] if module is None else list(module.modules())
        self._weights = [] if module is None else [*module.parameters(), *module.buffers()]

    @property
    def programs(self) -> list[Program]:
        """All programs, in the order in which they were made for each kind of arguments."""
        return [p for kind in self._kinds.values() for p in kind.programs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for these arguments.

        Raises GuardError for a size beyond the declared bounds, naming the dim; with `strict`, UnsupportedNode where no program
        can be made; and what the model raises.
        """
        why = self._obstacle()
        if why is None:
            try:
                given = split(args, kwargs, grows=True)
            except InputError as e:
                why = str(e)
            else:
                if torch.is_grad_enabled() and (
                    self._has_gradients or requires_grad(given.tensors) or requires_grad(self._weights)
                ):
                    self.training_calls += 1
                    return self._with_gradients(*args, **kwargs)
        if why is not None:
            return self._run_eagerly(why, args, kwargs)
        shapes = tuple(t.shape for t in given.tensors)
        training = tuple(map(_training, self._modules))
        key = given.key, training if True in training else ()
        kind = self._kinds.get(key)
        if kind is None or shapes not in kind.known:
            with self._lock:
                return self._first(key, given, shapes, args, kwargs)
        program = kind.known[shapes]
        if isinstance(program, str):
            return self._run_eagerly(program, args, kwargs)
        return program.finished(program(given.tensors), given.caches)

    @cached_property
    def _with_gradients(self) -> Callable[..., Any]:
        """The model under torch.compile, for calls of which gradients are needed."""
        found: Callable[..., Any] = torch.compile(
            self.model, backend=partial(graph_of_dynamo, chosen=self.options), dynamic=self.options.dynamic
        )
        return found

    def _obstacle(self) -> str | None:
        """Why no program may run now, whatever the arguments."""
        if torch.compiler.is_compiling() and not exported_elsewhere():
            return "torch traces it"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        return None

    def _run_eagerly(self, why: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of the model itself; says once why, or raises that with `strict`."""
        self._tell_eager(why)
        return self.model(*args, **kwargs)

    def _tell_eager(self, why: str) -> None:
        if self.options.strict:
            raise UnsupportedNode(f"{self._name}: {why}")
        if why not in self.eager:
            FALLBACKS.warning("%s runs in torch: %s", self._name, why)
        self.eager[why] += 1

    @property
    def _name(self) -> str:
        return getattr(self.model, "__name__", type(self.model).__name__)

    def _first(
        self, key: Place, given: Given, shapes: tuple[Shape, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The result of the first call with such arguments: that of a program that takes them, or of a new one."""
        kind = self._kinds.get(key)
        if kind is None:
            if torch.is_grad_enabled() and self._module is None:
                # of a function, the result alone tells whether it has weights that need gradients
                # a call with copies of caches, which it would change
                copied = Call(self.model, args, kwargs).with_tensors(given.tensors) if given.caches else None
                result = self.model(*args, **kwargs) if copied is None else copied
                if requires_grad([t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]):
                    self._has_gradients = True
                    return result if copied is None else self.model(*args, **kwargs)
            if len(self._kinds) >= MAX_KINDS:
                return self._run_eagerly(f"there are {MAX_KINDS} kinds of arguments, such as flags, already", args, kwargs)
            names = names_of(args, kwargs, self._parameters)
            kind = Kind(Call(self.model, args, kwargs), names, [t.dtype for t in given.tensors])
        check_bounds(self._bounds, kind.names, shapes)
        refused = False
        for program in kind.programs:
            small = program.small(shapes)
            if small is None:
                continue
            if not small or small in program.checked or program.random:
                return program.finished(self._noted(key, kind, shapes, program)(given.tensors), given.caches)
            result, why = compared(program, given.tensors, self._itself(kind, given, args, kwargs))
            if why is None:
                program.checked.add(small)
                self._noted(key, kind, shapes, program)
                return program.finished(result, given.caches)
            program.refused.add(small)
            refused = True
            RECOMPILES.info("%s: at %s, %s", self._name, _text(kind.names, shapes), why)
        if len(kind.programs) >= MAX_PROGRAMS:
            why = self._noted(key, kind, shapes, f"there are {MAX_PROGRAMS} programs for other sizes already")
            return self._run_eagerly(why, args, kwargs)
        # a program that is wrong at these sizes of 0 and 1 would be made again of larger ones
        return self._new(key, kind, given, shapes, args, kwargs, widen=not refused)

    def _new(
        self, key: Place, kind: Kind, given: Given, shapes: tuple[Shape, ...], args: Sequence[Any], kwargs: Mapping[str, Any],
        *, widen: bool,
    ) -> Any:  # fmt: skip
        """The result of a first call, for which a program is made if that is possible."""
        # strides would be symbols, too
        examples: list[Sequence[Any]] = [[t.detach().contiguous() for t in given.tensors]]
        if widen and self.options.dynamic and any(n < 2 for s in shapes for n in s):
            examples.insert(0, widened(examples[0]))
        failed: MirageError | None = None
        for tensors in examples:
            try:
                program = self._program(kind, tensors, shapes)
            except MirageError as e:
                # its traceback has frames, with the tensors of this call
                failed = e.with_traceback(None)
                continue
            small = program.small(shapes)
            if small is None:
                failed = UnsupportedNode(f"a program for sizes of 2 does not take {_text(kind.names, shapes)}")
                continue
            if program.random and any(map(_training, self._modules)):
                failed = UnsupportedNode("it draws random numbers in training mode; call model.eval()")
                break
            result, why = None, None
            if not program.random:
                result, why = compared(program, given.tensors, self._itself(kind, given, args, kwargs))
            if why is not None:
                failed = UnsupportedNode(f"its program is not right: {why}")
                continue
            program.checked.add(small)
            self._made(kind, program, shapes)
            self._noted(key, kind, shapes, program)
            return program.finished(program(given.tensors) if program.random else result, given.caches)
        self._noted(key, kind, shapes, str(failed))
        if self.options.strict and failed is not None:
            raise failed
        return self._run_eagerly(str(failed), args, kwargs)

    def _itself(self, kind: Kind, given: Given, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
        """The model as programs are compared with it: caches stay as they are."""
        return partial(kind.call.with_tensors, given.tensors) if given.caches else partial(self.model, *args, **kwargs)

    def _program(self, kind: Kind, tensors: Sequence[Any], shapes: Sequence[Shape]) -> Program:
        """The program of an example, tuned for calls of these shapes; raises UnsupportedNode, and other errors of ours."""
        exported = export(kind.call, tensors, self.options.dynamic)
        try:
            options = self.options.compilation(search=not self.options.background)
            return program_of(exported, kind.call, kind.names, bounds=self._bounds, shapes=shapes, **options)
        except MirageError:
            raise
        except Exception as e:
            # whatever goes wrong in a compilation, the model runs
            raise UnsupportedNode(f"its program cannot be compiled: {first_line(e)}") from e

    def _made(self, kind: Kind, program: Program, shapes: tuple[Shape, ...]) -> None:
        """Note and tell a new program, and have it superoptimized."""
        if self.programs or kind.programs:
            why = "they are of another kind" if not kind.programs else "no program takes such sizes"
            self.recompiles.append(f"{_text(kind.names, shapes)}: {why}")
            RECOMPILES.info("%s: another program for %s: %s", self._name, _text(kind.names, shapes), why)
        kind.programs.append(program)
        self._note_modules()
        imported = program.imported
        GRAPHS.info(
            "%s: a program for %s: %d operators, %d of them calls of ATen's; %s", self._name,
            program.signature(), imported.native.total() + imported.fallback.total(), imported.fallback.total(),
            ", ".join(f"{s:.1f} s ({what})" for what, s in program.seconds.items()),
        )  # fmt: skip
        for name, why in imported.reasons.items():
            FALLBACKS.info("%s: %s is a call of ATen's own: %s", self._name, name, why)
        if not self.options.background and self.options.searches:
            program.told = "superoptimized"
        if self._later is not None:
            self._later.add(program)

    def _noted(self, key: Place, kind: Kind, shapes: tuple[Shape, ...], found: Program | str) -> Any:
        remember(kind.known, shapes, found, KNOWN)
        self._kinds[key] = kind
        return found

    def wait(self, timeout: float | None = None) -> bool:
        """Whether superoptimization in the background is done, within so many seconds if a timeout is given."""
        return self._later is None or self._later.wait(timeout)

    def close(self) -> None:
        """End superoptimization in the background; calls run the programs that there are."""
        if self._later is not None:
            self._later.close()

    def explain(self) -> str:
        """The programs with their guards and operators, what runs in torch and why, and why there is more than one program."""
        lines = [f"{self._name}: {len(self.programs)} program{'s' * (len(self.programs) != 1)}"]
        for k, program in enumerate(self.programs):
            lines += ["", *program.described(k)]
        if self.recompiles:
            lines += ["", "recompilations", *(f"    {text}" for text in self.recompiles)]
        if self.training_calls:
            lines += ["", f"calls with gradients, by torch.compile: {self.training_calls}"]
        if self.eager:
            lines += ["", "calls in torch", *(f"    {n}: {why}" for why, n in self.eager.items())]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """What `explain` says, for programs."""
        return {
            "programs": [p.to_json() for p in self.programs],
            "recompilations": list(self.recompiles),
            "calls with gradients": self.training_calls,
            "calls in torch": dict(self.eager),
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the programs with their weights to one file, which `mirage.torch.load` reads in any process.

        Sizes of 0 and 1 are compared with the model before, as no call of what is loaded can be. Raises InputError if there are
        no programs, as nothing was called, or if the file cannot be written.
        """
        with self._lock:
            # those for inference, if there are any
            kinds = {key: kind for (key, training), kind in self._kinds.items() if training}
            kinds |= {key: kind for (key, training), kind in self._kinds.items() if not training and kind.programs}
            for kind in kinds.values():
                for program in kind.programs:
                    compare_small(program, kind.dtypes, kind.call.with_tensors)
            save(path, [(key, program) for key, kind in kinds.items() for program in kind.programs], self._name)

    def __repr__(self) -> str:
        return f"CompiledModel({self._name})"


def _parameters(model: Callable[..., Any]) -> list[str]:
    """The names of a model's parameters; none of a function of C."""
    try:
        return list(signature(getattr(model, "forward", model)).parameters)
    except ValueError:
        return []


_training: Callable[[torch.nn.Module], bool] = attrgetter("training")


def _text(names: Sequence[str], shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{n} {list(s)}" for n, s in zip(names, shapes, strict=True)) or "no tensors"


