"""Compiled programs: callable with arrays of any sizes, from any thread; they explain, save and load themselves."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mirage.drawing.show import Displayed
from mirage.errors import FormatError, InputError
from mirage.folders import path_of, save_file
from mirage.ir.codec import EXECUTABLE
from mirage.ir.graph import nodes
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.device import cuda_device
from mirage.kernels.target import get_target
from mirage.runtime import archive
from mirage.runtime.arrays import like
from mirage.runtime.bound_kernel import bound
from mirage.runtime.device import DeviceProgram
from mirage.runtime.places.host import HOST
from mirage.runtime.prepared import Prepared
from mirage.runtime.program import (
    AllocStorage,
    CallFunction,
    CallKernel,
    CallLibrary,
    CallOperator,
    CallPacked,
    CallValue,
    Construct,
    If,
    Loop,
    MakeClosure,
    Match,
    VMProgram,
)
from mirage.runtime.vm import VirtualMachine


@runtime_checkable
class Kernel(nodes.Kernel, Protocol):
    """A kernel of an executable: code in destination-passing style."""

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray] = (),
    ) -> None: ...


class Background(Protocol):
    """Work that goes on beside calls."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all of it has had its turn, within so many seconds if a timeout is given."""
        ...

    def close(self) -> None:
        """End it; returns at once."""
        ...


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one function's intermediate tensors.

    `arena` is one block of so many bytes for all tensors whose sizes have bounds, `most_live` the least that any plan could
    do with; `storages` are the sizes (bytes, over the dims) of blocks whose size a call's shapes decide.
    """

    arena: int
    most_live: int
    storages: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What a compilation did, in words: for `Executable.explain`."""

    signature: str
    guards: tuple[str, ...] = ()
    #: what each kernel is, and why it runs as it does
    kernels: Mapping[str, str] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    plans: Mapping[str, MemoryPlan] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    #: the function that computes the last parameters from constant ones, and how many it computes
    prepare: str = ""
    prepared: int = 0
    #: whether Ctrl-C ended the superoptimization before all subprograms had theirs
    interrupted: bool = False


class Executable(Displayed, drawn_by="mirage.runtime.draw"):
    """A compiled program. `program` is its code, `kernels` what it calls by name, `facts` what the compilation did.

    `target` is "cpu", or a CUDA architecture such as "cuda:sm_90": its device is only needed for calls. Raises FormatError for
    kernels of another target, and what `VirtualMachine` raises.
    """

    def __init__(
        self,
        program: VMProgram,
        kernels: Mapping[str, Kernel],
        constants: Sequence[np.ndarray],
        facts: Facts,
        background: Background | None = None,
        target: str = "cpu",
    ) -> None:
        self.program = program
        self.kernels = dict(kernels)
        self.facts = facts
        self.target = target
        self._background = background
        if background is not None:
            # at the end of the process it ends by itself
            weakref.finalize(self, background.close).atexit = False
        self._constants = tuple(constants)
        _check_kernels(self.kernels, target)
        _check_calls(program, self.kernels)
        self._device: DeviceProgram | None = None
        self._machine: VirtualMachine | DeviceProgram
        if get_target(target).on_host:
            self._machine = VirtualMachine(program, [bound(self.kernels[n]) for n in program.kernels], constants)
        else:
            self._machine = self._device = self._on_device(program)
        names = tuple(p.name for p in program.functions[program.main].parameters)
        self._parameters = names
        self._prepared: Prepared | None = None
        if facts.prepare:
            self._prepared = Prepared(self._preparing(replace(program, main=facts.prepare)))
            wanted = [p.name for p in program.functions[facts.prepare].parameters]
            self._parameters = names[: len(names) - facts.prepared]
            self._places = [self._parameters.index(name) for name in wanted]

    def _on_device(self, program: VMProgram) -> DeviceProgram:
        kernels = [self.kernels[n] for n in program.kernels]
        return DeviceProgram(program, kernels, self._constants, cuda_device(self.target))

    def _preparing(self, program: VMProgram) -> Callable[..., tuple[Any, ...]]:
        """What computes the last parameters from constant ones."""
        machine: VirtualMachine | DeviceProgram
        run: Callable[..., Any]
        if self._device is None:
            run = machine = VirtualMachine(program, [bound(self.kernels[n]) for n in program.kernels], self._constants)
        else:
            machine = self._on_device(program)
            run = machine.prepare

        def prepare(*arrays: Any) -> tuple[Any, ...]:
            values = _as_tuple(run(*arrays))
            # constants are seldom others
            machine.release()
            return values

        return prepare

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return self._parameters

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The program's result for arrays of any kind (NumPy, torch and what has DLPack), given in order or by name.

        Arrays of the result are of the kind of the first array. For a CUDA target, arrays are those of CuPy, CUDA tensors of
        torch, and what has DLPack or `__cuda_array_interface__`; results are torch's where the first array is, else CuPy's. What
        is to be done is enqueued on that library's current stream, and waited for only where a size, a condition or an index in
        the data has to be known.

        Raises GuardError, which names the dim, its constraint and its size, where shapes break a constraint, or the argument that
        is updated in place where it is read-only or shares memory with another one; InputError for what does not fit otherwise;
        for a CUDA target DeviceError, before anything else, without a device of the architecture.
        """
        if named or len(args) != len(self._parameters):
            args = self._ordered(args, named)
        if self._prepared is not None:
            args = (*args, *self._prepared.get([args[k] for k in self._places]))
        result = self._machine(*args)
        return result if self._device is not None else _as_first(result, args)

    def bind(self, **given: Any) -> Callable[..., Any]:
        """The program with some arguments given by name for all calls, as constants are: a function of the others, in order.

        What is computed from constants is computed here. Calls look at the other arguments only, and cost the same however many
        are given; whoever writes to one that is a constant has to `forget`, and to bind anew. Arrays of the result are of the
        kind of the first array of a call, of NumPy where there is none. Raises InputError for a name that is no argument, and
        what calls raise for an array that does not fit.
        """
        if unknown := [name for name in given if name not in self._parameters]:
            raise InputError(
                f"{self.program.main}: there is no argument {unknown[0]!r}; the arguments are {', '.join(self._parameters)}"
            )
        places = {self._parameters.index(name): value for name, value in given.items()}
        if self._device is not None or (self._prepared is not None and not set(self._places) <= places.keys()):
            free = [k for k in range(len(self._parameters)) if k not in places]
            return lambda *args: self(*_merged(len(self._parameters), places, dict(zip(free, args, strict=True))))
        if self._prepared is not None:
            # the same arrays are read by both: each is converted once
            where = f"{self.program.main}: input"
            for k, v in places.items():
                places[k] = HOST.read(v, f"{where} {self._parameters[k]!r}") if HOST.is_readable(v) else v
            values = self._prepared.get([places[k] for k in self._places])
            places |= dict(enumerate(values, len(self._parameters)))
        assert isinstance(self._machine, VirtualMachine)
        bound = self._machine.bound(places)

        def run(*args: Any) -> Any:
            return _as_first(bound(*args), args)

        return run

    def _ordered(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        if self._device is not None:
            self._device.at_hand()
        name, wanted = self.program.main, self._parameters
        given = dict(zip(wanted, args, strict=False))
        for k, value in named.items():
            if k not in wanted:
                raise InputError(f"{name}: there is no argument {k!r}; the arguments are {', '.join(wanted)}")
            if k in given:
                raise InputError(f"{name}: argument {k!r} is given twice; give it in order or by name")
            given[k] = value
        if len(args) > len(wanted) or len(given) < len(wanted):
            missing = ", ".join(p for p in wanted if p not in given)
            why = f"{missing} missing" if missing else f"got {len(args)}"
            raise InputError(f"{name}: takes {len(wanted)} arguments ({', '.join(wanted)}): {why}")
        return tuple(given[p] for p in wanted)

    def forget(self) -> None:
        """Drop what was computed from constant arguments: needed where somebody wrote to one of them."""
        if self._prepared is not None:
            self._prepared.forget()
        for kernel in self.kernels.values():
            if hasattr(kernel, "forget"):
                kernel.forget()
        if self._device is not None:
            self._device.forget()

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory for intermediate tensors that is kept for the next calls, but for that of recorded calls."""
        return self._machine.idle_bytes

    def release(self) -> None:
        """Give the memory of intermediate tensors back, and recorded calls with theirs: the next calls take it anew."""
        self._machine.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether superoptimization in the background has given every subprogram its part of the budget, within so many seconds
        if a timeout is given. It goes on after that, until there is nothing left to try.
        """
        return self._background is None or self._background.wait(timeout)

    def close(self) -> None:
        """End superoptimization in the background, as the end of this object does; calls run the kernels that there are."""
        if self._background is not None:
            self._background.close()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the superoptimization, so that subprograms run as they could be made without it."""
        return self.facts.interrupted

    @property
    def memory_plan(self) -> Mapping[str, MemoryPlan]:
        """The plan of each function's intermediate tensors."""
        return self.facts.plans

    def to_json(self) -> dict[str, Any]:
        """What `explain` says, for programs: the calls of each function by kind, plans in bytes, seconds per pass."""
        return {
            "signature": self.facts.signature,
            "target": self.target,
            "parameters": list(self.parameters),
            "guards": list(self.facts.guards),
            "functions": {f.name: self._counts(f.code) for f in self.program},
            "kernels": self.told(),
            "fallbacks": list(self.facts.fallbacks),
            "memory": {name: asdict(plan) for name, plan in self.memory_plan.items()},
            "seconds": {name: round(s, 4) for name, s in self.facts.seconds.items()},
            "interrupted": self.interrupted,
            **({} if self._device is None else {"graphs": self._graphs()}),
        }

    def explain(self) -> str:
        """The signature with symbolic dims, the guards, what became of each part and why, and the memory plan."""
        lines = [self.facts.signature, ""] if self._device is None else [f"{self.facts.signature}, for {self.target}", ""]
        lines += ["guards", *(f"    {g}" for g in self.facts.guards or ("none beyond the signature",)), ""]
        for f in self.program:
            calls = ", ".join(f"{n} {what}" for what, n in self._counts(f.code).items()) or "no calls"
            lines.append(f"function {f.name}: {calls}")
        lines += ["", "kernels", *(f"    {name}: {text}" for name, text in self.told().items())]
        if not self.facts.kernels:
            lines.append("    none")
        if self.facts.fallbacks:
            lines += ["", "fallbacks", *(f"    {f}" for f in self.facts.fallbacks)]
        lines += ["", "memory"]
        for name, plan in self.facts.plans.items():
            storages = f", blocks of {', '.join(plan.storages)} bytes" if plan.storages else ""
            lines.append(f"    {name}: an arena of {plan.arena} bytes (at least {plan.most_live} are in use){storages}")
        if self._device is not None:
            lines += ["", f"CUDA graphs: {self._graphs()}"]
        if self.facts.seconds:
            spent = ", ".join(f"{name} {s:.2f}" for name, s in self.facts.seconds.items() if s >= 0.005)
            lines += ["", f"compiled in {sum(self.facts.seconds.values()):.2f} s: {spent}"]
        return "\n".join(lines) + "\n"

    def _outcomes(self) -> dict[str, str]:
        """What each kernel is; one may have become another since the compilation."""
        return {n: getattr(self.kernels[n], "outcome", t) for n, t in self.facts.kernels.items()}

    def told(self) -> dict[str, str]:
        """What each kernel is, with what kernels add of themselves, such as who ranked their versions."""
        notes = {n: getattr(k, "note", "") for n, k in self.kernels.items()}
        return {n: f"{t}; {notes[n]}" if notes.get(n) else t for n, t in self._outcomes().items()}

    def _counts(self, code: Sequence[object]) -> dict[str, int]:
        """How many calls of each kind a function's code makes, of those that it makes any of."""
        kinds = {
            "kernels": CallKernel, "library functions": CallLibrary,
            "NumPy operators" if self._device is None else "CuPy operators": CallOperator, "packed functions": CallPacked,
            "functions": CallFunction, "branches": If, "loops": Loop, "matches": Match, "calls of values": CallValue,
            "constructors": Construct, "closures": MakeClosure, "storages": AllocStorage,
        }  # fmt: skip
        counts = {what: sum(isinstance(i, kind) for i in code) for what, kind in kinds.items()}
        return {what: n for what, n in counts.items() if n}

    def _graphs(self) -> str:
        """Whether calls are recorded, in words."""
        assert self._device is not None
        if self._device.obstacle:
            return f"none, kernels are launched one by one, as {self._device.obstacle}"
        return "the second call with equal sizes and addresses is recorded, and replayed from then on"

    def __repr__(self) -> str:
        return f"Executable({self.facts.signature})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable to one file, which `mirage.load_executable` reads in any process: complete or not at all.

        Raises InputError if the file cannot be written.
        """
        save_file(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the file that `save` writes."""
        kernels = {name: _StoredKernel(k.kind, k.to_text()) for name, k in self.kernels.items()}
        head = _Stored(self.program, kernels, replace(self.facts, kernels=self._outcomes()), self.target)
        constants = {f"constants/{k}": np.ascontiguousarray(a).tobytes() for k, a in enumerate(self._constants)}
        return archive.pack(EXECUTABLE, head, constants)


@dataclass(frozen=True)
class _StoredKernel:
    kind: str
    text: str


@dataclass(frozen=True)
class _Stored:
    """The head of a saved executable."""

    program: VMProgram
    kernels: Mapping[str, _StoredKernel]
    facts: Facts
    target: str


def read_executable(path: str | os.PathLike[str], kinds: Mapping[str, Callable[[str], Kernel]]) -> Executable:
    """A saved executable; `kinds` makes kernels from their texts.

    Nothing of the file is run as code: kernels are made and compiled by this package. Raises InputError if it cannot be read
    and FormatError if it is no executable, or was altered.
    """
    path = path_of(path)
    with archive.reading(EXECUTABLE, path):
        return _read(path, kinds)


def executable_from_bytes(content: bytes, kinds: Mapping[str, Callable[[str], Kernel]]) -> Executable:
    """An executable of what `Executable.to_bytes` gave, as `read_executable`."""
    with archive.reading(EXECUTABLE, "executable"):
        return _read(BytesIO(content), kinds)


def _read(file: Path | BytesIO, kinds: Mapping[str, Callable[[str], Kernel]]) -> Executable:
    head, members = archive.unpack(EXECUTABLE, _Stored, file)
    constants = [
        np.frombuffer(members[f"constants/{k}"], ELEMENTS[t.dtype]).reshape(t.bind({}))
        for k, t in enumerate(head.program.constants)
    ]
    kernels = {name: kinds[k.kind](k.text) for name, k in head.kernels.items()}
    return Executable(head.program, kernels, constants, head.facts, target=head.target)


def _check_kernels(kernels: Mapping[str, Kernel], target: str) -> None:
    """Raise FormatError for a kernel of another target."""
    for name, kernel in kernels.items():
        own = getattr(kernel, "target", "cpu")
        if own != target:
            raise FormatError(f"kernel {name!r} is for {own}, the program for {target}; compile the program again")


def _check_calls(program: VMProgram, kernels: Mapping[str, Kernel]) -> None:
    """Raise FormatError for a call that gives a kernel another number of dims or results than it has."""
    for f in program:
        for i in f.code:
            if isinstance(i, CallKernel):
                kernel = kernels[program.kernels[i.kernel]]
                given, wanted = (len(i.dims), len(i.outputs)), (len(kernel.symbols), len(kernel.output_types))
                if given != wanted:
                    raise FormatError(
                        f"function {f.name!r}: {i}: kernel {program.kernels[i.kernel]!r} has {wanted[0]} dims and {wanted[1]} "
                        f"results, not {given[0]} and {given[1]}; compile the program again"
                    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _as_first(result: Any, args: Sequence[Any]) -> Any:
    """The result with arrays of the kind of the first argument that is one."""
    for a in args:
        if type(a) is np.ndarray:
            return result
        if not isinstance(a, tuple | list):
            return _like(result, a)
    return result


def _like(result: Any, x: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_like(r, x) for r in result)
    return like(result, x) if isinstance(result, np.ndarray) else result


def _merged(count: int, given: Mapping[int, Any], others: Mapping[int, Any]) -> list[Any]:
    return [given[k] if k in given else others[k] for k in range(count)]
