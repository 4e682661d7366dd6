"""Indexing of traced tensors: `x[:, 1:n, None]`, `x[0]`, `x[..., -1]`, `x[ids]`, `x[mask]`.

Starts and stops may be dims. They are cut to the size as in Python only where the size is literal: elsewhere they have to lie
within the dim, which is checked at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import sympy

from mirage.frontends.proxy import Proxy, Traced, apply, fail, located
from mirage.ir.dims import Dim, to_dim


def item(x: Proxy, key: Any) -> Proxy:
    """`x[key]`; raises TraceError for what is no index, and ShapeError for one that cannot be within `x`."""
    keys = list(key) if isinstance(key, tuple) else [key]
    masks = [k for k in keys if isinstance(k, Proxy) and k.dtype == "bool"]
    if masks:
        if len(keys) > 1:
            fail(f"indexing of {x!r}: a mask beside other indices; apply the mask on its own")
        return apply("boolean_mask", x, masks[0])
    return _Index(x, keys).result()


class _Index:
    """An index with its parts sorted by what they become: a slice, then a reshape, then a take."""

    def __init__(self, x: Proxy, keys: Sequence[Any]) -> None:
        self.x = x
        self.dims = x.shape
        #: axis -> start, stop, step
        self.windows: dict[int, tuple[Dim, Dim, int]] = {}
        #: dims of the result: axes of `x`, None for a new one
        self.axes: list[int | None] = []
        #: position in the result and indices of the one part that is a tensor
        self.taken: tuple[int, Proxy] | None = None
        axis = 0
        for k in self._without_ellipsis(keys):
            if k is None:
                self.axes.append(None)
                continue
            self._part(axis, k)
            axis += 1

    def _without_ellipsis(self, keys: Sequence[Any]) -> list[Any]:
        # `in` and `count` would compare traced tensors
        ellipses = [i for i, k in enumerate(keys) if isinstance(k, EllipsisType)]
        used = sum(k is not None and not isinstance(k, EllipsisType) for k in keys)
        if used > self.x.ndim:
            fail(f"indexing of {self.x!r}: {used} indices for {self.x.ndim} dims; leave some out")
        if len(ellipses) > 1:
            fail(f"indexing of {self.x!r}: more than one ellipsis; write one")
        at = ellipses[0] if ellipses else len(keys)
        return [*keys[:at], *[slice(None)] * (self.x.ndim - used), *keys[at + 1 :]]

    def _part(self, axis: int, k: Any) -> None:
        match k:
            case slice(start=None, stop=None, step=None):
                self.axes.append(axis)
            case slice():
                self.windows[axis] = self._window(axis, k)
                self.axes.append(axis)
            case Proxy():
                if self.taken is not None:
                    fail(f"indexing of {self.x!r}: two tensors as indices; use mirage.take one after the other")
                self.taken = (len(self.axes), k)
                self.axes.append(axis)
            case bool() | np.bool_():
                fail(f"indexing of {self.x!r}: {k!r} is not an index; use an integer, a slice, None or a tensor")
            case np.ndarray():
                fail(
                    f"indexing of {self.x!r}: an array as an index; use mirage.take(x, mirage.constant(array), axis=...)"
                )
            case _:
                start, size = self._at(axis, k, "index"), self.dims[axis]
                if start.is_Integer and isinstance(size, int) and not 0 <= start < size:
                    fail(f"indexing of {self.x!r}: index {k} is outside of dim {axis} of {size} elements")
                self.windows[axis] = (start, to_dim(start + 1), 1)

    def _at(self, axis: int, k: Any, what: str) -> Dim:
        """A position as a dim, counted from 0."""
        if isinstance(k, Traced) or not (isinstance(k, str | sympy.Expr) or hasattr(k, "__index__")):
            fail(f"indexing of {self.x!r}: {k!r} is no {what}; use an integer or a dim, and mirage.take for tensors")
        with located():
            if not isinstance(k, str | sympy.Expr) and int(k) < 0:
                return to_dim(self.dims[axis] + int(k))
            return to_dim(k, f"{what} {k} of dim {axis}")

    def _window(self, axis: int, k: slice) -> tuple[Dim, Dim, int]:
        step = 1 if k.step is None else k.step
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            fail(f"indexing of {self.x!r}: step {step!r} is not a positive integer; use mirage.flip to go backwards")
        size = self.dims[axis]
        if isinstance(size, int) and all(v is None or isinstance(v, int) for v in (k.start, k.stop)):
            first, last, _ = slice(k.start, k.stop, step).indices(size)
            return sympy.Integer(first), sympy.Integer(max(first, last)), step
        start = sympy.Integer(0) if k.start is None else self._at(axis, k.start, "start")
        # a dim that only the run tells says so when it is added to
        stop = to_dim(size + 0) if k.stop is None else self._at(axis, k.stop, "stop")
        return start, stop, step

    def result(self) -> Proxy:
        y: Proxy = self.x
        if self.windows:
            starts, stops, steps = zip(*self.windows.values(), strict=True)
            y = apply("slice", y, axes=tuple(self.windows), starts=starts, stops=stops, steps=steps)
        if self.axes != list(range(self.x.ndim)):
            shape = y.type.shape
            y = apply("reshape", y, shape=tuple(1 if a is None else shape[a] for a in self.axes))
        return y if self.taken is None else apply("take", y, self.taken[1], axis=self.taken[0])
