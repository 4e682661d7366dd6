"""Programs on a CUDA device: on the device and stream of their arguments, by CUDA graphs where that is possible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.launch.arrays import current_stream, device_of, external_stream
from mirage.kernels.cuda.launch.loaded import cupy_at_hand
from mirage.remember import remember
from mirage.runtime import program as vm
from mirage.runtime.places.cuda import CudaPlace
from mirage.runtime.places.place import Place
from mirage.runtime.recordable import constant_arguments, obstacle
from mirage.runtime.replay import Replays
from mirage.runtime.vm import VirtualMachine

#: streams whose memory and graphs are kept
_STREAMS = 8
#: checks of what a call's kernels found, made when all is enqueued
Checks = list[Callable[[], None]]


@dataclass
class _OnStream:
    """A stream of CuPy, the machine whose memory only that stream uses, in order, and its recorded calls."""

    stream: Any
    machine: VirtualMachine
    replays: Replays | None


class DeviceProgram:
    """A program whose tensors are on a CUDA device of one architecture; needs none before it is called.

    `kernels` are those that the program names, in order; they keep copies of inputs in their `constants`. Calls are enqueued on
    the current stream of the first array's library; they wait for the device only where a size, a condition or an index in the
    data has to be known. May be called from several threads at once. Raises what `VirtualMachine` raises.
    """

    def __init__(
        self, program: vm.VMProgram, kernels: Sequence[Any], constants: Sequence[np.ndarray], device: CudaDevice
    ) -> None:
        # what is wrong with a program shows without a device, too
        VirtualMachine(program, [_unbound] * len(kernels), constants)
        self.program = program
        self.device = device
        self._constants = [_fixed(a) for a in constants]
        self._kernels = [self._bound(k) for k in kernels]
        kept = [_kept(k) for k in kernels]
        #: why calls are not recorded as CUDA graphs; empty where they are
        self.obstacle = obstacle(program, kept)
        self._watched = frozenset[int]() if self.obstacle else constant_arguments(program, kept)
        self._names = [p.name for p in program.functions[program.main].parameters]
        self._lock = threading.Lock()
        self._places: dict[int, CudaPlace] = {}
        self._streams: dict[tuple[int, int], _OnStream] = {}
        self._calls = threading.local()

    def at_hand(self) -> Any:
        """CuPy; raises DeviceError where no device of the architecture is at hand."""
        return cupy_at_hand(self.program.main, self.device, "compile")

    def __call__(self, *args: Any) -> Any:
        """The result for arrays on the device, of CuPy, torch or anything with DLPack or `__cuda_array_interface__`, and tuples
        of integers for shapes. Arrays of the result are torch's where the first one is, else CuPy's, and belong to the caller.

        Raises DeviceError without a device of the architecture, before anything else; InputError for arrays elsewhere.
        """
        first = _first(args)
        device, on = self._on(first)
        with device, on.stream:
            found = None if on.replays is None else on.replays.run(args, first)
            # what was replayed is checked already
            return _like(self._launched(on.machine, args), first, on.machine.place) if found is None else found[0]

    def prepare(self, *args: Any) -> Any:
        """The result as arrays of CuPy, computed when this returns: for calls on all streams."""
        device, on = self._on(_first(args))
        with device, on.stream:
            result = self._launched(on.machine, args)
            on.stream.synchronize()
            return result

    def forget(self) -> None:
        """Drop the recorded calls: needed where kernels drop their copies of constants."""
        with self._lock:
            for s in self._streams.values():
                if s.replays is not None:
                    s.replays.clear()

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory on devices that is kept for the next calls, but for that of recorded calls."""
        with self._lock:
            return sum(s.machine.idle_bytes for s in self._streams.values())

    def release(self) -> None:
        """Give the memory that is kept for the next calls back, and drop the recorded ones."""
        with self._lock:
            self._streams.clear()

    def _checked(self, machine: VirtualMachine, args: Sequence[Any]) -> Any:
        """The result of a machine, which does not ask where its own kind of arrays is; raises InputError for those elsewhere."""
        for name, a in zip(self._names, args, strict=False):
            if isinstance(a, machine.place.array):
                machine.place.read(a, f"{self.program.main}: input {name!r}")
        return machine(*args)

    def _launched(self, machine: VirtualMachine, args: Sequence[Any]) -> Any:
        """The result of a call whose kernels are launched one by one."""
        before = getattr(self._calls, "checks", None)
        checks = self._begin()
        try:
            return self._checked(machine, args)
        finally:
            # this call may be one of a Python function within another
            self._calls.checks = before
            # also after an error: an index that is out of range explains others
            for check in checks:
                check()

    def _on(self, first: Any) -> tuple[Any, _OnStream]:
        """The device of the first array, for CuPy to use, and what runs on the current stream of its library."""
        cupy = self.at_hand()
        number = device_of(cupy, first)
        handle = current_stream(cupy, first, number)
        with self._lock:
            key = number, handle
            found = self._streams.pop(key, None)
            if found is None:
                place = self._places.setdefault(number, CudaPlace(cupy, number))
                found = _OnStream(external_stream(cupy, handle), self._machine(place), None)
                if not self.obstacle:
                    found.replays = Replays(cupy, place, self._machine(place), self._checked, self._watched, self._begin)
            # the last one used goes last
            return cupy.cuda.Device(number), remember(self._streams, key, found, _STREAMS)

    def _machine(self, place: CudaPlace) -> VirtualMachine:
        return VirtualMachine(self.program, self._kernels, self._constants, place)

    def _begin(self) -> Checks:
        found: Checks = []
        self._calls.checks = found
        return found

    def _bound(self, kernel: Any) -> Callable[..., None]:
        """The kernel as the machine calls it; what it checks is looked at when all is enqueued."""
        symbols, checked = tuple(kernel.symbols), getattr(kernel, "checked", False)

        def run(inputs: Sequence[Any], outputs: Sequence[Any], dims: Sequence[int], workspace: Sequence[Any]) -> None:
            words = kernel(inputs, dict(zip(symbols, dims, strict=True)), outputs, workspace)
            if checked:
                self._calls.checks.append(lambda: kernel.raise_failures(words))

        return run


def _kept(kernel: Any) -> tuple[int, ...]:
    """Positions of the inputs that a kernel may keep packed copies of."""
    constants: Sequence[str] = getattr(kernel, "constants", ())
    return tuple(k for k, name in enumerate(kernel.program.input_names) if name in constants) if constants else ()


def _fixed(a: np.ndarray) -> np.ndarray:
    """A constant that nobody writes to, so that its copy on the device is made once."""
    if a.flags.writeable or not a.flags.c_contiguous:
        a = np.array(a, order="C")
        a.flags.writeable = False
    return a


def _unbound(*_: Any) -> None:
    raise AssertionError("a program on a device is not run on the host")


def _first(args: Sequence[Any]) -> Any:
    """The first argument that is no shape; of a tuple of tensors, its first one."""
    for a in args:
        if isinstance(a, tuple | list):
            inner = _first(a)
            if inner is not None:
                return inner
        elif not isinstance(a, int):
            return a
    return None


def _like(result: Any, x: Any, place: Place) -> Any:
    if isinstance(result, tuple):
        return tuple(_like(r, x, place) for r in result)
    return place.like(result, x) if isinstance(result, place.array) else result
