"""Calls that are made again with equal sizes and addresses: recorded once as a CUDA graph, then launched as one.

The second equal call is recorded, later ones replay it (Relax, section 4.5). A graph has frames and results of its own; what it
computed is copied for the caller.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage.errors import DeviceError
from mirage.kernels.cuda.launch.arrays import torch_layout
from mirage.kernels.cuda.launch.graphs import record
from mirage.remember import remember
from mirage.runtime.places.cuda import CudaPlace
from mirage.runtime.vm import VirtualMachine

#: graphs that are kept per stream, and calls that are remembered to have been made once
KEPT, REMEMBERED = 8, 256


@dataclass
class _Recorded:
    """A graph, what copies its results, and what has to live as long as it is launched. One launch at a time."""

    graph: Any
    result: Callable[[], Any]
    checks: Sequence[Callable[[], None]]
    held: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class Replays:
    """Calls of a machine on one stream, which is CuPy's current one; `machine` has frames for recordings alone, and is called by
    `run`, which checks the arguments.

    `watched` are positions of arguments of which kernels may have kept copies: a graph ends with any of these objects. `begin`
    starts a list of checks that the kernels of a call add to, and returns it. May be called from several threads.
    """

    def __init__(
        self,
        cupy: Any,
        place: CudaPlace,
        machine: VirtualMachine,
        run: Callable[[VirtualMachine, Sequence[Any]], Any],
        watched: Collection[int],
        begin: Callable[[], list[Callable[[], None]]],
    ) -> None:
        self._cupy, self._place, self._machine, self._run, self._begin = cupy, place, machine, run, begin
        self._watched = sorted(watched)
        self._lock = threading.Lock()
        self._once: dict[Any, None] = {}
        self._graphs: dict[Any, _Recorded] = {}
        #: why calls are not recorded any more; empty as long as they are
        self.refused = ""

    def run(self, args: Sequence[Any], first: Any) -> tuple[Any] | None:
        """The result of a call, of the library of its first array; None where it is to be run as usual."""
        key = self._key(args)
        if key is None:
            return None
        recorded = self._graphs.get(key)
        if recorded is None:
            with self._lock:
                if key not in self._graphs and not self._second(key):
                    return None
                recorded = self._graphs.get(key) or self._add(key, args, first)
            if recorded is None:
                return None
        with recorded.lock:
            recorded.graph.launch()
            result = recorded.result()
            for check in recorded.checks:
                check()
        return (result,)

    def clear(self) -> None:
        """Drop all graphs."""
        with self._lock:
            self._graphs.clear()
            self._once.clear()

    def _key(self, args: Sequence[Any]) -> Any:
        """What makes calls equal; None for calls that are not recorded.

        This is most of what a replayed call costs the processor, so that arrays are not read in here: what a graph was recorded
        for was read then.
        """
        torch = sys.modules.get("torch")
        # nothing is an instance of no type
        tensor = () if torch is None else torch.Tensor
        key: list[Any] = []
        for a in args:
            if isinstance(a, tensor):
                layout = torch_layout(a)
                if layout is None:
                    return None
                key.append(layout)
            elif isinstance(a, self._place.array):
                key.append((a.data.ptr, a.shape, a.strides, a.dtype))
            elif isinstance(a, tuple) and all(type(n) is int for n in a):
                key.append(a)
            else:
                return None
        # graphs with packed copies of an object are not for another one that is at its address
        return (*key, *(id(args[k]) for k in self._watched))

    def _second(self, key: Any) -> bool:
        """Whether a call is made at least the second time, and may be recorded."""
        if self.refused:
            return False
        if key in self._once:
            del self._once[key]
            return True
        remember(self._once, key, None, REMEMBERED)
        return False

    def _add(self, key: Any, args: Sequence[Any], first: Any) -> _Recorded | None:
        try:
            ends = [weakref.ref(args[k], lambda _: self._graphs.pop(key, None)) for k in self._watched]
        except TypeError:
            return None
        checks: list[Callable[[], None]] = []

        def run() -> Any:
            # those of the run that is recorded: the last one
            nonlocal checks
            checks = self._begin()
            return self._run(self._machine, args)

        try:
            graph, pool, result = record(self._cupy, run)
        except DeviceError as e:
            self.refused = str(e)
            return None
        finally:
            frames = self._machine.take_frames()
        return remember(self._graphs, key, _Recorded(graph, self._copies(result, first), checks, (pool, frames, ends)), KEPT)

    def _copies(self, value: Any, first: Any) -> Callable[[], Any]:
        """What gives a value with copies of its arrays, of the library of the first argument."""
        if isinstance(value, tuple):
            parts = [self._copies(v, first) for v in value]
            return lambda: tuple([part() for part in parts])
        return self._place.copier(value, first) if isinstance(value, self._place.array) else lambda: value
