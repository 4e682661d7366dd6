"""Measurements on a CUDA device: versions of a program side by side, each as one CUDA graph of calls on copies of its arguments.

Everything is captured with PyTorch's graphs, CuPy's launches too: CuPy takes its memory from PyTorch's allocator here, which
keeps what a graph uses. A graph calls a version once on every copy, so what a call reads was last read many megabytes ago; gaps
between kernels and launches count, as they do in a model's graph. Graphs are replayed in turns.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.gpu.rows import CUTLASS, Case, GpuRow
from benchmarks.programs import batch_of
from mirage.errors import DeviceError, InputError, LibraryError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, epsilon
from mirage.kernels.cuda.library.libraries import library
from mirage.kernels.cuda.library.program import CudaLibraryProgram, CupyArrays
from mirage.kernels.library import LibraryProgram
from mirage.kernels.library_calls import Arrays
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.inputs import random_inputs

#: seconds in which the graphs of a case are replayed in turns, and the fewest rounds
RACE, ROUNDS = 0.6, 7
#: seconds in which the versions of a result are measured and decided among, once
PROFILE = 4.0
#: our result may be off by so many times the distance from 1 to the next number of its type, or twice what peers are
_ROUNDINGS = 4
_OURS = "mirage"
#: versions that are no peers
_OWN = (_OURS, CUTLASS)

Call = Callable[[int], Any]


class Device:
    """The current CUDA device.

    Raises InputError where PyTorch or CuPy is not installed, DeviceError where there is no device.
    """

    def __init__(self) -> None:
        try:
            self._torch: Any = import_module("torch")
            self._cupy: Any = import_module("cupy")
        except ImportError as e:
            raise InputError(
                f"{e}; this benchmark needs PyTorch and CuPy: run pip install -e '.[cuda,torch]'"
            ) from None
        if not self._torch.cuda.is_available():
            raise DeviceError("PyTorch finds no CUDA device; without one, --dry-run searches and compiles")
        self.name = str(self._torch.cuda.get_device_name())
        self._share_memory()

    def _share_memory(self) -> None:
        """CuPy's memory from PyTorch's allocator, which knows what graphs are being captured."""
        cuda = self._torch.cuda

        def malloc(size: int, device: int) -> int:
            return int(cuda.caching_allocator_alloc(size, device, self._cupy.cuda.get_current_stream().ptr))

        def free(pointer: int, device: int) -> None:
            cuda.caching_allocator_delete(pointer)

        self._allocator = self._cupy.cuda.PythonFunctionAllocator(malloc, free)
        self._cupy.cuda.set_allocator(self._allocator.malloc)

    def check(self) -> None:
        """Raises DeviceError where the device answers no more, as after a kernel that read what is not there."""
        try:
            self._torch.cuda.synchronize()
        except Exception as e:  # of PyTorch: an error that every later call repeats
            reason = _reason("synchronize", e)
            raise DeviceError(f"{self.name}: {reason}; run the same command again, in a new process") from None

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """CuPy launches on PyTorch's stream."""
        with self._cupy.cuda.Stream.from_external(self._torch.cuda.current_stream()):
            yield

    def row(self, case: Case, result: CudaSuperoptimized, compiled: bool) -> GpuRow:
        """The row of a case, with `torch.compile` if `compiled`.

        Raises DeviceError where our version fails, or all peers do.
        """
        left_out: list[str] = []
        if result.ranked_by_model:
            result.profile(PROFILE)
        with self._torch.inference_mode():
            copies = self._copies(result.program, case)
            wanted = self._reference(case, copies[0])
            calls = self._calls(case, result, copies)
            if compiled:
                calls |= self._compiled(case, copies)
            errors = self._errors(calls, wanted, left_out)
            times = self._race({n: c for n, c in calls.items() if n in errors}, len(copies), left_out)
        return self._row(case, result, errors, times, left_out, compiled)

    def _row(
        self,
        case: Case,
        result: CudaSuperoptimized,
        errors: Mapping[str, float],
        times: dict[str, float],
        left_out: list[str],
        compiled: bool,
    ) -> GpuRow:
        peers = {n: t for n, t in times.items() if n not in _OWN}
        if not peers or _OURS not in times:
            raise DeviceError(f"{case.program} {case.label} {case.dtype}: nothing to compare: {'; '.join(left_out)}")
        best = min(peers, key=lambda n: peers[n])
        peer_error = min(e for n, e in errors.items() if n not in _OWN)
        chosen, ours = result.choice(case.sizes), times[_OURS]
        limit = max(_ROUNDINGS * epsilon(DTYPES[case.dtype]), 2 * peer_error)
        wrong = {n: errors[n] for n in _OWN if n in errors and not errors[n] <= limit}
        if CUTLASS in wrong:
            left_out.append(f"{CUTLASS}: WRONG by {wrong[CUTLASS]:.1e}")
        return GpuRow(
            case.program,
            case.label,
            case.dtype,
            batch_of(case.program, case.sizes),
            case.first,
            self.name,
            time.strftime("%Y-%m-%d"),
            len(chosen.executable.emitted.steps),
            case.cold,
            case.memory_bound,
            errors[_OURS],
            peer_error,
            bool(wrong),
            ours,
            best,
            peers[best],
            peers[best] / ours,
            case.floor_us,
            case.floor_us / ours,
            times,
            left_out,
            compiled,
        )

    def _copies(self, program: Program, case: Case) -> list[list[Any]]:
        """The same arguments as PyTorch's tensors, in so many places."""
        torch, made = self._torch, random_inputs(program, case.sizes, seed=1)
        bits = [torch.from_numpy(x.view(np.int16)).cuda().view(getattr(torch, case.dtype)) for x in made]
        return [[x.clone() for x in bits] for _ in range(case.copies)]

    def _reference(self, case: Case, tensors: Sequence[Any]) -> Any:
        """The program in float64, by PyTorch."""
        forms = _forms(case.program, [t.double() for t in tensors])
        return next(iter(forms.values()))()

    def _calls(self, case: Case, result: CudaSuperoptimized, copies: Sequence[Sequence[Any]]) -> dict[str, Call]:
        """Every version that needs no compilation, as a function of which copy it takes."""
        library = self._library(result.program)

        @cache
        def cutlass() -> LibraryProgram:
            # where it cannot be had, its first call says why
            return self._cutlass(result, case)

        arrays = [[self._array(t) for t in tensors] for tensors in copies]
        forms = [_forms(case.program, tensors) for tensors in copies]

        def eager(label: str) -> Call:
            return lambda k: forms[k][label]()

        return {
            _OURS: lambda k: _first(result(*copies[k])),
            "cuBLASLt": lambda k: library(arrays[k], case.sizes)[0],
            CUTLASS: lambda k: cutlass()(arrays[k], case.sizes)[0],
            **{f"PyTorch {label}".strip(): eager(label) for label in forms[0]},
        }

    def _library(self, program: Program) -> LibraryProgram:
        return CudaLibraryProgram(to_axes(program))

    def _cutlass(self, result: CudaSuperoptimized, case: Case) -> LibraryProgram:
        return cutlass_program(result, case.sizes, CupyArrays())

    def _compiled(self, case: Case, copies: Sequence[Sequence[Any]]) -> dict[str, Call]:
        """The forms of PyTorch compiled; a first call compiles."""
        # code for other cases
        self._torch.compiler.reset()
        forms = [_forms(case.program, tensors) for tensors in copies]

        def compiled(label: str) -> Call:
            # its own CUDA graphs are left out: all versions are captured alike
            run = self._torch.compile(forms[0][label].run, mode="max-autotune-no-cudagraphs", dynamic=False)
            return lambda k: run(*forms[k][label].arguments)

        return {f"torch.compile {label}".strip(): compiled(label) for label in forms[0]}

    def _errors(self, calls: Mapping[str, Call], wanted: Any, left_out: list[str]) -> dict[str, float]:
        """Per version, the largest difference from float64 over the largest element; those that fail are left out."""
        errors = {}
        scale = float(wanted.abs().max())
        for name, call in calls.items():
            try:
                with self._stream():
                    found = self._tensor(call(0)).double()
                errors[name] = float((found.reshape(wanted.shape) - wanted).abs().max()) / scale
            except Exception as e:  # of a peer, or of our own: the row says why it has no time
                left_out.append(_reason(name, e))
        return errors

    def _race(self, calls: Mapping[str, Call], copies: int, left_out: list[str]) -> dict[str, float]:
        """Median microseconds per call of each version; those that cannot be captured are left out."""
        graphs = {}
        for name, call in calls.items():
            try:
                graphs[name] = self._captured(call, copies)
            except Exception as e:  # of a peer, or of our own: the row says why it has no time
                left_out.append(_reason(name, e))
        times: dict[str, list[float]] = {name: [] for name in graphs}
        order, turns, start = list(graphs), random.Random(0), time.monotonic()
        rounds = 0
        while order and (rounds < ROUNDS or time.monotonic() - start < RACE):
            turns.shuffle(order)
            for name in order:
                times[name].append(self._replayed(graphs[name]) / copies)
            rounds += 1
        return {name: statistics.median(t) for name, t in times.items()}

    def _captured(self, call: Call, copies: int) -> Any:
        """A CUDA graph of one call on every copy."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), self._stream():
            for k in (0, 1):
                call(k)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # other threads of CuPy and PyTorch may call the driver meanwhile
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"), self._stream():
            for k in range(copies):
                call(k)
        graph.replay()
        torch.cuda.synchronize()
        return graph

    def _replayed(self, graph: Any) -> float:
        """Microseconds of one replay."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end))

    def _array(self, tensor: Any) -> Any:
        """A contiguous tensor's memory as an array of CuPy."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor)
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        return self._cupy.ndarray(tuple(tensor.shape), dtype, cuda.MemoryPointer(memory, 0))

    def _tensor(self, result: Any) -> Any:
        """A result as a tensor of PyTorch."""
        if isinstance(result, self._torch.Tensor):
            return result
        # PyTorch knows no bfloat16 of other libraries
        bits = self._torch.from_dlpack(self._cupy.ascontiguousarray(result).view(np.int16))
        return bits.view(getattr(self._torch, result.dtype.name))


def cutlass_program(result: CudaSuperoptimized, sizes: Mapping[str, int], arrays: Arrays) -> LibraryProgram:
    """The program by CUTLASS kernels, compiled for these sizes; raises LibraryError where none serves it."""
    program, cutlass = to_axes(result.program), library("cutlass")
    if why := cutlass.why_not(program):
        raise LibraryError(f"{program.name}: no kernel serves it: {why}")
    run = CudaLibraryProgram(program, arrays, cutlass.calls(result.device, {}, arrays))
    run.prepare(sizes)
    return run


def _forms(name: str, tensors: Sequence[Any]) -> Mapping[str, Any]:
    from benchmarks.peers.in_torch import tensor_forms

    # in a CUDA graph, memory of results is allocated once
    return {label: form for label, form in tensor_forms(name, tensors).items() if form.out is None}


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) else result


def _reason(name: str, error: Exception) -> str:
    return f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
