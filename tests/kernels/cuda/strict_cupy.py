"""A stand-in for CuPy that is as strict as CuPy where programs are concerned: arrays of the host are refused among those of the
device, only functions that CuPy has exist, and while a stream is recorded, nothing is computed and nothing can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special

from mirage.kernels.cuda.library.program import CupyArrays
from tests.kernels.cuda.fake_cupy import FakeArray, FakeCupy
from tests.kernels.cuda.memory import MemoryLt

#: functions of NumPy that CuPy 14 has, too, of those that programs may call
_NAMES = """
    abs absolute add all amax amin any arange argmax argmin argsort argwhere array broadcast_to ceil clip concatenate
    cos cumsum divide equal exp flip floor floor_divide full greater greater_equal isfinite isnan less less_equal log
    logical_and logical_not logical_or matmul max maximum may_share_memory min minimum moveaxis multiply negative
    not_equal ogrid ones power prod remainder repeat rint shape sign sin size sort sqrt square subtract sum take
    take_along_axis tanh transpose unique where zeros
"""
_FUNCTIONS = frozenset(_NAMES.split())


class StrictArray(FakeArray):
    """An array of the device; what is done with it is recorded while its stream is."""

    cupy: StrictCupy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        assert method in ("__call__", "at"), f"CuPy has no {ufunc.__name__}.{method}"
        return self.cupy.call(getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return getattr(self.cupy, func.__name__)(*args, **kwargs)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cupy.call(lambda to, k, v: np.ndarray.__setitem__(to, k, v), self, key, value)

    def __getitem__(self, key: Any) -> Any:
        if _has_arrays(key):
            return self.cupy.call(lambda x, k: np.ndarray.__getitem__(x, k), self, key)
        found = super().__getitem__(key)
        if isinstance(found, StrictArray):
            return found
        # an element is an array of rank 0
        return super().__getitem__((*(key if isinstance(key, tuple) else (key,)), None)).reshape(())

    def reshape(self, *shape: Any, **options: Any) -> Any:
        found = super().reshape(*shape, **options)
        if (
            np.ndarray.__array_interface__.__get__(found)["data"]
            == np.ndarray.__array_interface__.__get__(self)["data"]
        ):
            return found
        return self.cupy.call(lambda x: x.reshape(*shape, **options), self)

    def astype(self, dtype: Any, copy: bool = True, **options: Any) -> Any:  # type: ignore[override]
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return self.cupy.call(lambda x: x.astype(dtype, **options), self)

    def copy(self, order: Any = "C") -> Any:
        return self.cupy.call(lambda x: x.copy(order), self)

    def sum(self, axis: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.cupy.call(lambda x: x.sum(axis=axis, **options), self)

    def any(self, *args: Any, **options: Any) -> Any:
        return self.cupy.call(lambda x: x.any(*args, **options), self)

    def item(self, *args: Any) -> Any:
        return self.get().item(*args)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def get(self) -> np.ndarray:
        """A copy in main memory."""
        if self.cupy.recording is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: a stream that is recorded cannot be waited for")
        return np.array(self.view(np.ndarray))


def _has_arrays(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_arrays, value))
    return isinstance(value, np.ndarray)


class StrictCupy(FakeCupy):
    """See above; the latest one made is the one that arrays belong to."""

    def __init__(self) -> None:
        super().__init__()

        class Array(StrictArray):
            cupy = self

        self.ndarray = Array
        self.pool: _Pool | None = None
        self.cuda.MemoryPool = lambda: _Pool(self)

        def as_strided(x: Any, shape: Any, strides: Any) -> Any:
            return self.call(np.lib.stride_tricks.as_strided, x, shape, strides)

        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=as_strided))

    @contextmanager
    def _using(self, allocator: Any) -> Iterator[None]:
        self.pool, before = getattr(allocator, "__self__", self.pool), self.pool
        try:
            with super()._using(allocator):
                yield
        finally:
            self.pool = before

    def _alloc(self, size: int) -> Any:
        made = super()._alloc(size)
        if self.pool is not None:
            self.pool.held.append(made)
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS:
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        found = getattr(np, name)
        if name == "ogrid":
            return _Grid(self)
        return lambda *args, **options: self.call(found, *args, **options)

    def empty(self, shape: Any, dtype: Any = np.float64) -> Any:
        if isinstance(shape, int):
            shape = (shape,)
        made = super().empty(shape, dtype)
        if self.pool is not None:
            self.pool.held.append(made)
        return made

    def asarray(self, x: Any, dtype: Any = None, on: int = 0) -> Any:  # type: ignore[override]
        if isinstance(x, self.ndarray):
            return x if dtype is None else x.astype(dtype, copy=False)
        if self.recording is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: a copy from main memory is not recorded")
        if hasattr(x, "__cuda_array_interface__"):
            return super().asarray(x)
        return self._made(np.array(x, dtype))

    def ascontiguousarray(self, x: Any) -> Any:
        return x if x.flags.c_contiguous else x.copy()

    def broadcast_to(self, x: Any, shape: Any) -> Any:
        return self.call(np.broadcast_to, x, shape)

    def asnumpy(self, x: Any) -> np.ndarray:
        found: np.ndarray = x.get()
        return found

    def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A function of NumPy on arrays of the device: its result, in memory of the device; written when the graph is launched
        where one is recorded.
        """
        host = self._on_host((args, options))
        with np.errstate(all="ignore"):
            if self.recording is None:
                return self._placed(fn(*host[0], **host[1]), host)
            # of what shape and type it would be; what is in the arrays now is of no matter
            held = [(a, a.copy()) for a in _arrays(host)]
            result = self._placed(fn(*host[0], **host[1]), host)
            for a, before in held:
                if a.flags.writeable:
                    np.copyto(a, before)
            if isinstance(result, self.ndarray) and any(
                np.may_share_memory(result.view(np.ndarray), a) for a, _ in held
            ):
                # a view, or `out`
                if "out" not in options:
                    return result

        def run() -> None:
            with np.errstate(all="ignore"):
                found = fn(*host[0], **host[1])
            if isinstance(result, self.ndarray):
                np.copyto(result.view(np.ndarray), found)

        self.recording.append(run)
        return result

    def _on_host(self, value: Any) -> Any:
        """The values with arrays of the device as views of NumPy; raises TypeError for arrays of the host."""
        if isinstance(value, self.ndarray):
            return value.view(np.ndarray)
        if isinstance(value, tuple | list):
            return type(value)(self._on_host(v) for v in value)
        if isinstance(value, dict):
            return {k: self._on_host(v) for k, v in value.items()}
        if isinstance(value, np.ndarray):
            raise TypeError(f"Unsupported type {type(value)}")
        return value

    def _placed(self, found: Any, given: Any) -> Any:
        """What a function gave for operands `given` as the module gives it: an array of the device."""
        if isinstance(found, tuple | list):
            return type(found)(self._placed(f, given) for f in found)
        if not isinstance(found, np.ndarray | np.generic):
            return found
        if any(np.may_share_memory(found, a) for a in _arrays(given)):
            view = np.asarray(found).view(self.ndarray)
            view.on = self.device
            return view
        return self._made(np.asarray(found))

    def _made(self, a: np.ndarray) -> Any:
        made = a.view(self.ndarray)
        made.on = self.device
        low, high = np.lib.array_utils.byte_bounds(a)
        self.memory.append((low, max(high - low, 8)))
        if self.pool is not None:
            self.pool.held.append(made)
        return made


class _Pool:
    """Memory that lasts as long as the pool; nothing in it is given twice."""

    def __init__(self, cupy: StrictCupy) -> None:
        self._cupy = cupy
        self.held: list[Any] = []

    def malloc(self, size: int) -> Any:
        return self._cupy._alloc(size)


class _Grid:
    def __init__(self, cupy: StrictCupy) -> None:
        self._cupy = cupy

    def __getitem__(self, key: Any) -> Any:
        return tuple(self._cupy._made(g) for g in np.ogrid[key])


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [a for v in value for a in _arrays(v)] if isinstance(value, tuple | list) else []


class StrictLt(MemoryLt):
    """cuBLASLt on the stand-in."""

    def __init__(self, cupy: StrictCupy) -> None:
        super().__init__()
        self._cupy: Any = cupy

    def _run(self, asked: Any, x: Any, y: Any, d: Any, bias: Any) -> None:
        run = super()._run
        arrays = [None if a is None else a.view(np.ndarray) for a in (x, y, d, bias)]
        self._cupy.call(lambda: run(asked, *arrays))


class StrictArrays(CupyArrays):
    """What plans call of CuPy and cuBLASLt, on the stand-in."""

    def __init__(self, cupy: StrictCupy) -> None:
        class Special:
            """SciPy's functions as CuPy has them."""

            def __getattr__(self, name: str) -> Any:
                found = getattr(special, name)
                return lambda *args: cupy.call(found, *args)

        with pytest.MonkeyPatch.context() as patch:
            modules = {"cupy": cupy, "cupyx.scipy.special": Special()}
            patch.setattr("mirage.kernels.cuda.library.program.import_module", modules.__getitem__)
            super().__init__()
        self.lt = StrictLt(cupy)
        self.matmul = self.lt.matmul
