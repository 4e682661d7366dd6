"""A process that runs Triton functions through Triton's interpreter, on the CPU: the other end of `interpreter.py`.

The interpreter has to be chosen before triton is imported, for a whole process: so this one has no other task. A
request is a line of JSON and the bytes of its arrays, a reply a line of JSON and the same arrays, unless it has an error.
16-bit brain floats travel as integers.
"""

from __future__ import annotations

import functools
import itertools
import json
import linecache
import math
import os
import sys
from dataclasses import replace
from typing import IO, Any

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
from triton.runtime import interpreter


class _Pointer:
    """An array as the interpreter wants its pointers: with the methods of torch's tensors that it calls."""

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array = array
        self.dtype = dtype

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> _Pointer:
        return self

    def cpu(self) -> _Pointer:
        return self

    def new_empty(self, *_: Any, **__: Any) -> _Pointer:
        return self

    def set_(self, *_: Any) -> None:
        """The storage is the array's own."""

    def copy_(self, _: _Pointer) -> None:
        """Functions wrote to the array itself."""

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)


def _exact_dot(builder: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
    """Products of 16-bit brain floats, whose bits the interpreter multiplies as if they were integers."""

    def real(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        data = (x.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(data, tl.float32)

    return _create_dot(builder, real(a), real(b), d, *more)


_create_dot = interpreter.InterpreterBuilder.create_dot
interpreter.InterpreterBuilder.create_dot = _exact_dot


def _nearest(builder: Any, source: Any, to: Any) -> Any:
    """A conversion; to 16-bit brain floats it rounds to nearest even as a GPU does, where the interpreter cuts off."""
    if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
        return _cast(builder, source, to)
    bits = np.asarray(source.data, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    # not carried from the significand of a NaN
    found = np.where(np.isnan(source.data), 0x7FC0 | (bits >> 16 & 0x8000), rounded)
    return interpreter.TensorHandle(found.astype(np.uint16), tl.bfloat16)


_cast = interpreter.InterpreterBuilder.cast_impl
interpreter.InterpreterBuilder.cast_impl = _nearest


def _reduce(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """A reduction by any function, of which the interpreter would call it for each element apart."""
    operands, axis = self.unravel(inputs, self.axis)
    data = [x.handle.data for x in operands]
    total = [self.to_tensor(d.take(0, axis), x.dtype) for d, x in zip(data, operands, strict=True)]
    for k in range(1, data[0].shape[axis]):
        following = [self.to_tensor(d.take(k, axis), x.dtype) for d, x in zip(data, operands, strict=True)]
        found = self.combine_fn.fn(*total, *following)
        total = list(found) if isinstance(found, tuple) else [found]
    if self.keep_dims:
        return [self.to_tensor(np.expand_dims(t.handle.data, axis), t.dtype) for t in total]
    return total


interpreter.ReduceOps.generic_reduce = _reduce


# a third of the interpreter's time: sums, differences and products of integers are computed again in 64 bits, and then compared
# with their limits, but what is found is told in Triton's debug mode only
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)


class _Patched:
    """The language as the interpreter wants it, which this process never needs otherwise."""

    def restore(self) -> None:
        """It stays."""


def _patch(fn: Any) -> _Patched:
    """Patch the modules of the language that a function sees, once: the interpreter would for each call of a function, which
    takes longer than most functions.
    """
    seen = frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)
    if seen not in _patches:
        _patch_lang(fn)
        _patches.add(seen)
    return _Patched()


_patch_lang = interpreter._patch_lang
_patches: set[frozenset[int]] = set()
interpreter._patch_lang = _patch


_numbers = itertools.count()


@functools.lru_cache(maxsize=256)
def load(source: str) -> dict[str, Any]:
    """The functions of a Triton module, which the interpreter rewrites at their first call."""
    name = f"<triton {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def _run(request: dict[str, Any], arrays: list[np.ndarray]) -> None:
    functions = load(request["source"])
    for launch in request["launches"]:
        args = [
            _Pointer(arrays[value], request["dtypes"][value]) if kind == "pointer" else value
            for kind, value in launch["arguments"]
        ]
        with np.errstate(all="ignore"):
            functions[launch["name"]][tuple(launch["grid"])](*args, **launch["constexprs"])


def read_array(stream: IO[bytes], dtype: str, shape: list[int]) -> np.ndarray:
    """An array of that NumPy type and shape from its bytes."""
    kind = np.dtype(dtype)
    data = stream.read(kind.itemsize * math.prod(shape))
    return np.frombuffer(bytearray(data), kind).reshape(shape)


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        arrays = [read_array(requests, *header) for header in request["arrays"]]
        try:
            _run(request, arrays)
            error = ""
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        replies.write(json.dumps({"error": error}).encode() + b"\n")
        for a in arrays if not error else ():
            replies.write(a.tobytes())
        replies.flush()


if __name__ == "__main__":
    # what the interpreted code prints must not get between replies
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, out)
