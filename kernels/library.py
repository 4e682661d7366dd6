"""The library version of a program, which competes with generated kernels: a NumPy or BLAS call per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.axes import AxisDims, AxisProgram, argument_places, read_arguments, stored_dtypes
from mirage.ir.dims import evaluate
from mirage.ir.moves import moved
from mirage.ir.types import DTYPES
from mirage.kernels.library_calls import NUMPY, Added, Arrays, Axes, Extents, LibraryCalls, aligned, merged
from mirage.kernels.logs import corrections
from mirage.kernels.separate import with_separate_exps
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.remember import remember

#: bindings of the dim symbols whose extents are kept
_KEPT = 16


@dataclass(frozen=True)
class _Bound:
    """What one binding of the dim symbols fixes: extents of axes, shapes of arrays, values of scalars."""

    extents: dict[str, int]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    values: list[Any]


def _maxima(program: AxisProgram) -> tuple[dict[int, list[Axes]], dict[int, list[Added]]]:
    """Per node, the rows of its exps whose scale cancels in the program's results, and what its logs of their sums lack."""
    graph = reference_graph(program)
    maximum = analyze(graph)
    rows: dict[int, list[Axes]] = {}
    exps: list[tuple[int, int]] = []
    for site in maximum.sites:
        own = rows.setdefault(site.path[0], [])
        exps.append((site.path[0], len(own)))
        own.append(site.rows)
    found = corrections(graph.kernel, maximum).items()
    return rows, {i: [Added(c.operand, exps[c.site], c.times) for c in cs] for (i,), cs in found}


class LibraryProgram:
    """A program over named axes as NumPy and BLAS calls.

    Every exp whose scale cancels in the results (see `mirage.mugraph.degree`) subtracts its row's maximum, so
    logits of any magnitude neither overflow nor vanish. May be called from several threads at once.
    """

    #: what runs the plan
    calls: Callable[..., LibraryCalls] = LibraryCalls

    def __init__(self, axis_program: AxisProgram, arrays: Arrays = NUMPY) -> None:
        self.program = axis_program
        self._dtype = DTYPES[axis_program.dtype]
        self._stored = stored_dtypes(axis_program.inputs, axis_program.dtype)
        separate = with_separate_exps(axis_program)
        self._xp = arrays.xp
        rows, added = _maxima(separate)
        self._calls = self.calls(separate, rows, added=added, arrays=arrays)
        self._bindings: dict[tuple[tuple[str, int], ...], _Bound] = {}
        needed = self._calls.reads()
        #: the inputs that no call reads, and so nobody moves
        self._unread = {k for k, i in enumerate(self._calls.inputs) if axis_program.inputs[k].moved and i not in needed}
        self._inputs = [replace(x, moved=()) if k in self._unread else x for k, x in enumerate(axis_program.inputs)]
        self._places = argument_places(axis_program.inputs)

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray] | None = None,
        given: Sequence[Any] | None = None,
    ) -> list[np.ndarray]:
        """The results for arguments of the shapes that `sizes` (symbol -> size) binds, in arrays of their own, or in `out`:
        C-contiguous arrays of the results' shapes and dtype that do not overlap the arguments. `given` are the objects that the
        arrays are views of, where they are not arrays of NumPy: packed copies of constants belong to these.

        Raises InputError for arrays of another number, shape or dtype, DimError for a symbol without size.
        """
        bound = self._bind(sizes)
        values = bound.values.copy()
        read = read_arguments(
            self.program.name, self._inputs, inputs, lambda moves, a: moved(moves, a, sizes, self._xp)
        )
        self._check(read, bound)
        for k, (i, x, a) in enumerate(zip(self._calls.inputs, self._inputs, read, strict=True)):
            if k in self._unread:
                continue
            one_each = all(len(d) == 1 for d in x.dims)
            values[i] = a if one_each else a.reshape([bound.extents[e] for e in x.axes])
        self._prepare(values, bound.extents, inputs, inputs if given is None else given)
        if out is None:
            self._calls.run(values, bound.extents, {})
            return self._results(values, bound)
        direct = self._direct(out, bound)
        self._calls.run(values, bound.extents, dict(direct.values()))
        for k, o in enumerate(out):
            if k not in direct:
                o[...] = self._value(k, values, bound).reshape(o.shape)
        return list(out)

    def _prepare(
        self, values: list[Any], extents: Extents, inputs: Sequence[np.ndarray], given: Sequence[Any]
    ) -> None:
        """Fill in values of steps that need not be computed, of those of the inputs; `inputs` are the arguments, and `given` the
        objects that these are views of.
        """

    def _direct(self, out: Sequence[np.ndarray], bound: _Bound) -> dict[int, tuple[int, np.ndarray]]:
        """Results that a call computes in place: which -> its step, and the array over the step's axes."""
        found: dict[int, tuple[int, np.ndarray]] = {}
        taken: set[int] = set()
        for k, (i, o) in enumerate(zip(self._calls.outputs, self.program.outputs, strict=True)):
            axes = tuple(a for d in o.dims for a in d)
            own = self._calls.axes(i)
            if i not in taken and self._calls.computes(i) and sorted(own) == sorted(axes):
                taken.add(i)
                view = out[k].reshape([bound.extents[a] for a in axes])
                found[k] = i, view.transpose([axes.index(a) for a in own])
        return found

    def _bind(self, sizes: Mapping[str, int]) -> _Bound:
        key = tuple(sizes.items())
        if (found := self._bindings.get(key)) is not None:
            return found
        extents = {a: evaluate(d, sizes) for a, d in self.program.axes.items()}

        def shapes(tensors: Sequence[AxisDims]) -> list[tuple[int, ...]]:
            return [tuple(merged(extents, *dims)) for dims in tensors]

        inputs, outputs = [x.dims for x in self.program.inputs], [o.dims for o in self.program.outputs]
        bound = _Bound(extents, shapes(inputs), shapes(outputs), self._calls.values(sizes))
        return remember(self._bindings, key, bound, _KEPT)

    def _check(self, inputs: Sequence[np.ndarray], bound: _Bound) -> None:
        name = self.program.name
        for k, (x, a, dtype, want) in enumerate(zip(self._inputs, inputs, self._stored, bound.inputs, strict=True)):
            if k in self._unread:
                continue
            if a.dtype != dtype:
                raise InputError(f"{name}: input {x.argument} has dtype {a.dtype}, not {dtype}; convert it with astype")
            if a.shape != want:
                raise InputError(
                    f"{name}: input {x.argument} has shape {a.shape}, but the sizes make it {want}; "
                    "pass the sizes of these arrays"
                )

    def _value(self, k: int, values: Sequence[Any], bound: _Bound) -> np.ndarray:
        """The k-th result as a view over its axes."""
        axes = tuple(a for d in self.program.outputs[k].dims for a in d)
        i = self._calls.outputs[k]
        view = aligned(self._calls.axes(i), axes)
        value: np.ndarray = self._xp.asarray(values[i] if view is None else view(values[i]))
        full = tuple(bound.extents[a] for a in axes)
        if value.shape != full:
            value = self._xp.broadcast_to(value, full)
        return value

    def _results(self, values: Sequence[Any], bound: _Bound) -> list[np.ndarray]:
        results: list[np.ndarray] = []
        taken: set[int] = set()
        for k, (i, shape) in enumerate(zip(self._calls.outputs, bound.outputs, strict=True)):
            value = self._value(k, values, bound)
            if not self._calls.fresh(i) or i in taken or value.size != np.size(values[i]):
                # someone else's array, or one to be repeated
                value = self._xp.array(value, order="C")
            taken.add(i)
            results.append(value.reshape(shape))
        return results
