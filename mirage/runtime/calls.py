"""Calls of a result with arrays: what depends on their layout alone is prepared once, and kept for the next call.

Most calls have NumPy arrays or torch tensors that C code reads in place; these take a short way, which looks at each array
once. Where a layout of NumPy arrays has been seen before, that way is all in C (`DirectCalls`). All others, and all errors,
take the general one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from mirage.ir.interpret import Runner, run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cpu.launch.direct import DirectCalls
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.frames import BoundCall
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.library import CpuLibraryProgram
from mirage.remember import remember
from mirage.runtime.arrays import check_inputs, detached, like
from mirage.runtime.binding import SizeBinder
from mirage.runtime.leases import is_large, lease
from mirage.runtime.outputs import Overlap, check_outputs, may_write_in_place

#: layouts of all arguments together whose calls are kept
_KEPT = 64

Layout = tuple[tuple[int, ...], ...]


@dataclass
class _Ready:
    """A call for one layout of the arguments: it computes results of these shapes, all of them `large`, or not. `overlap` is for
    results that are given. `direct`: whether the next call is, as far as it can be.
    """

    call: BoundCall
    large: bool
    shapes: tuple[tuple[int, ...], ...]
    overlap: Overlap | None
    direct: bool = False


class Caller:
    """Runs a program on arrays of any kind; `choose` gives what to run at some sizes (dim symbol -> elements).

    May be called from several threads at once.
    """

    def __init__(self, program: Program, choose: Callable[[Mapping[str, int]], Runner]) -> None:
        self.program = program
        self._choose = choose
        self._binder = SizeBinder(program)
        types = program.input_types
        self._count = len(types)
        self._ranks = [t.rank for t in types]
        # all results have the program's dtype
        self._dtype = DTYPES[program.dtype]
        self._results = len(program.output_types)
        names = [t.dtype for t in (*types, *program.output_types)]
        #: of the arguments, then of the results: dtypes, bytes of an element, and bits of an address that have to be 0
        self._dtypes = [ELEMENTS[name] for name in names]
        self._itemsizes = [t.itemsize for t in self._dtypes]
        self._alignments = [n - 1 for n in self._itemsizes]
        #: strides of NumPy are in bytes
        self._bytes = [1] * len(names)
        #: direct calls with NumPy arrays: the result, or None where a call has to be made the other way
        self._direct = DirectCalls(self._dtypes[: self._count], self._dtypes[self._count :])
        #: None where a layout needs the general way
        self._numpy: dict[Layout, _Ready | None] = {}
        self._torch = TorchTensors(names, program.dtype)
        self._of_torch: dict[Layout, _Ready | None] = {}

    def __call__(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """The program's result for these arrays, or a tuple of its results: of the kind of the first array, or written to
        `out` and that itself.

        Raises InputError if the arrays do not fit the program, naming the input and the dim, or `out` does not fit.
        """
        found = self._direct.call(arrays, out)
        if found is not None:
            return found
        if arrays and len(arrays) == self._count:
            first = type(arrays[0])
            if first is np.ndarray:
                found = self._with_numpy(arrays, out)
            elif self._torch.has(first):
                found = self._with_torch(self._torch, arrays, out)
            if found is not None:
                return found
        return self._general(arrays, out)

    def _with_numpy(self, arrays: Sequence[Any], out: Any) -> Any:
        """The short way; None where it does not lead there."""
        given = arrays
        if out is not None:
            outs = out if type(out) is tuple else (out,)
            given = (*arrays, *outs)
            if len(outs) != self._results or not all(type(a) is np.ndarray and a.flags.writeable for a in outs):
                return None
        layout: list[tuple[int, ...]] = []
        addresses = []
        bits = 0
        for a, dtype, alignment in zip(given, self._dtypes, self._alignments, strict=False):
            if type(a) is not np.ndarray or a.dtype is not dtype:
                return None
            layout += a.shape, a.strides
            addresses.append(at := address(a))
            bits |= at & alignment
        ready = self._find(self._numpy, tuple(layout), self._bytes, addresses, bits)
        if ready is None:
            return None
        if not ready.direct and not ready.large:
            # not where another thread is in such a call: the next one then tries again
            spans = ready.overlap.spans if ready.overlap is not None else ()
            ready.direct = self._direct.add(ready.call, layout, ready.shapes, spans)
        if out is not None:
            ready.call.run(addresses, arrays)
            return outs[0] if len(outs) == 1 else outs
        results = [(lease if ready.large else np.empty)(s, self._dtype) for s in ready.shapes]
        for r in results:
            addresses.append(address(r))
        ready.call.run(addresses, arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def _with_torch(self, torch: TorchTensors, arrays: Sequence[Any], out: Any) -> Any:
        """The same for tensors of torch."""
        given = arrays
        types = torch.types
        layout: list[tuple[int, ...]] = []
        addresses = []
        bits = 0
        try:
            if out is not None:
                outs = out if type(out) is tuple else (out,)
                given = (*arrays, *outs)
                if len(outs) != self._results or any(t.requires_grad for t in outs):
                    return None
            for t, dtype, alignment in zip(given, torch.dtypes, self._alignments, strict=False):
                if type(t) not in types or t.dtype is not dtype or not t.is_cpu or t.is_neg():
                    return None
                layout += t.shape, t.stride()
                addresses.append(at := t.data_ptr())
                if not at:
                    return None
                bits |= at & alignment
        except (AttributeError, RuntimeError):
            # tensors without memory or strides: the general way names them
            return None
        ready = self._find(self._of_torch, tuple(layout), self._itemsizes, addresses, bits)
        if ready is None:
            return None
        if out is not None:
            ready.call.run(addresses, arrays)
            torch.wrote(outs)
            return outs[0] if len(outs) == 1 else outs
        results = [torch.lease(s, self._dtype) if ready.large else torch.empty(s) for s in ready.shapes]
        for r in results:
            addresses.append(r.data_ptr())
        ready.call.run(addresses, arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def _find(
        self, kept: dict[Layout, _Ready | None], key: Layout, units: Sequence[int], addresses: Sequence[int], bits: int
    ) -> _Ready | None:
        """The call for a layout, strides of each array in so many bytes, of arrays at these addresses, in which `bits` are set
        that have to be 0.

        None where it takes the general way: arrays are not aligned, or given results overlap others.
        """
        try:
            ready = kept[key]
        except KeyError:
            ready = self._prepare(kept, key, units)
        if ready is None or bits:
            return None
        return None if ready.overlap is not None and ready.overlap.found(addresses) else ready

    def _prepare(self, kept: dict[Layout, _Ready | None], key: Layout, units: Sequence[int]) -> _Ready | None:
        """The call for shapes and strides (of each in so many bytes) of the arguments and given results.

        None where it takes the general way, or does not fit the program.
        """
        shapes = key[::2]
        strides = [tuple(n * unit for n in s) for s, unit in zip(key[1::2], units, strict=False)]
        given = len(shapes) - self._count
        if [len(s) for s in shapes[: self._count]] != self._ranks or given not in (0, self._results):
            return None
        ready = self._ready(shapes, strides, given > 0) if all(all(s) for s in shapes) else None
        return remember(kept, key, ready, _KEPT)

    def _ready(self, shapes: Layout, strides: list[tuple[int, ...]], given: bool) -> _Ready | None:
        sizes = self._binder.bind(shapes[: self._count])
        run = self._choose(sizes)
        if not isinstance(run, CpuExecutable):
            return None
        wanted = tuple(t.bind(sizes) for t in self.program.output_types)
        overlap = None
        if given:
            if shapes[self._count :] != wanted:
                return None
            overlap = Overlap(shapes, strides, self._itemsizes, self._results)
            if overlap.inside:
                return None
        else:
            strides += [_contiguous(s, self._dtype.itemsize) for s in wanted]
        call = run.bind(sizes, strides)
        large = all(is_large(s, self._dtype) for s in wanted)
        return None if call is None else _Ready(call, large, wanted, overlap)

    def _general(self, arrays: Sequence[Any], out: Any) -> Any:
        """The way of all other calls: by way of NumPy arrays."""
        inputs = check_inputs(self.program, arrays)
        sizes = self._binder.bind([a.shape for a in inputs])
        outs = None
        if out is not None:
            outs = check_outputs(self.program, out, [t.bind(sizes) for t in self.program.output_types])
        # no kernel runs on nothing: an empty dim is NumPy's case
        run = self._choose(sizes) if all(a.size for a in inputs) else self._reference
        if isinstance(run, CpuExecutable):
            direct = outs if outs is not None and may_write_in_place(outs, inputs) else None
            found = run(inputs, sizes, direct, arrays)
        else:
            results = run(inputs, sizes, given=arrays) if isinstance(run, CpuLibraryProgram) else run(inputs, sizes)
            # NumPy may answer with views
            found = detached(results, inputs)
        if outs is None:
            results = [like(r, arrays[0]) for r in found]
            return results[0] if len(results) == 1 else tuple(results)
        for o, r in zip(outs, found, strict=True):
            if o is not r:
                o[...] = r
        given = tuple(out) if isinstance(out, tuple | list) else (out,)
        self._torch.wrote(given)
        return given[0] if len(given) == 1 else given

    def _reference(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        return run_reference(self.program, inputs, sizes)


def _contiguous(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))


class TorchTensors:
    """What calls need of torch, which is only imported once somebody passes a tensor."""

    def __init__(self, given: Sequence[str], result: str) -> None:
        """Of tensors of the types `given`, for new results of the type `result`."""
        self._given, self._result = given, result
        self.types: frozenset[type] = frozenset()
        self.dtypes: tuple[Any, ...] = ()
        self.dtype: Any = None
        self.empty: Callable[..., Any] = _no_torch
        self._from_numpy = _no_torch
        self._increment: Callable[[Any], None] | None = None

    def has(self, kind: type) -> bool:
        """Whether this is the type of plain tensors or parameters."""
        if kind in self.types:
            return True
        return not self.types and kind.__module__.split(".")[0] == "torch" and self._load(kind)

    def _load(self, kind: type) -> bool:
        torch = import_module("torch")
        self.dtypes = tuple(getattr(torch, name, None) for name in self._given)
        self.dtype = getattr(torch, self._result, None)
        # whatever device is the default one
        self.empty = partial(torch.empty, dtype=self.dtype, device=torch.device("cpu"))
        self._from_numpy = torch.from_numpy
        self._increment = getattr(torch.autograd.graph, "increment_version", None)
        self.types = frozenset({torch.Tensor, torch.nn.Parameter})
        return kind in self.types

    def lease(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A large tensor in memory that may have been used before."""
        array = lease(shape, dtype)
        # by way of bytes: NumPy does not know all dtypes of torch
        return self._from_numpy(array.reshape(-1).view(np.uint8)).view(self.dtype).reshape(shape)

    def wrote(self, tensors: Sequence[Any]) -> None:
        """Tell torch, whose gradients depend on it, that the contents of these tensors have changed."""
        for t in tensors:
            if type(t) in self.types and self._increment is not None and not t.is_inference():
                self._increment(t)


def _no_torch(*args: Any) -> Any:
    raise AssertionError("no tensor has been seen yet")
