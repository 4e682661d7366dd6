"""Launches of the fake device that Triton's interpreter runs: it gets the bytes of their arguments alone."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.kernels.cuda.compile.functions import Request
from tests.kernels.cuda.fake_cupy import FakeCupy, Launched

_TYPES = {
    "*fp16": "float16",
    "*bf16": "bfloat16",
    "*fp32": "float32",
    "*fp64": "float64",
    "*i8": "int8",
    "*i32": "int32",
    "*i64": "int64",
}


class Interpreted:
    """Runs a launch: every pointer leads to the memory from there to the end of what it is in."""

    def __init__(self, cupy: FakeCupy, interpreter: Interpreter) -> None:
        self.cupy = cupy
        self.process: Any = interpreter._process

    def __call__(self, launched: Launched, r: Request) -> None:
        pointers = [name for name, kind in r.signature.items() if kind in _TYPES]
        memory = [self._from(launched.values[name], _TYPES[r.signature[name]]) for name in pointers]
        before = [m.copy() for m in memory]
        given = [
            ("pointer", pointers.index(name)) if kind in _TYPES else ("size", launched.values[name])
            for name, kind in r.signature.items()
        ]
        launch = {
            "name": r.function,
            "grid": launched.grid,
            "arguments": given,
            "constexprs": dict(r.constexprs),
        }
        asked = {
            "arrays": [[m.dtype.str, m.shape] for m in memory],
            "source": r.source,
            "dtypes": [_TYPES[r.signature[name]] for name in pointers],
            "launches": [launch],
        }
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        for m in memory:
            self.process.stdin.write(m.tobytes())
        self.process.stdin.flush()
        assert json.loads(self.process.stdout.readline()) == {"error": ""}
        for m, old in zip(memory, before, strict=True):
            new = np.frombuffer(self.process.stdout.read(m.nbytes), m.dtype)
            # what other pointers lead to may be the same memory
            changed = new != old
            m[changed] = new[changed]

    def _from(self, address: int, kind: str) -> np.ndarray:
        dtype = np.dtype(np.uint16 if kind == "bfloat16" else kind)
        inside = [(start, size) for start, size in self.cupy.memory if start <= address < start + size]
        start, size = inside[-1]
        count = (start + size - address) // dtype.itemsize
        raw = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memoryview(raw), dtype)
