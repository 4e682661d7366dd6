"""Random fused programs of operators on a few named values, with arguments and results."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from mirage.ir.loops.fuse import fuse
from mirage.ir.types import DTYPES, ELEMENTS, tensor
from tests.ir.loops.calls import Calls

SIZES = [dict(n=5, m=7), dict(n=19, m=67), dict(n=1, m=1), dict(n=0, m=4), dict(n=3, m=0)]
FULL, ROW, COLUMN = tensor("n", "m").shape, tensor("m").shape, tensor("n", 1).shape
UNARY = ["neg", "square", "sigmoid", "tanh", "relu", "gelu"]


class Values(Calls):
    """Named values of one floating-point type, a mask and indices."""

    def __init__(self, dtype: str) -> None:
        super().__init__(
            x=tensor("n", "m", dtype=dtype),
            y=tensor("m", dtype=dtype),
            z=tensor("n", 1, dtype=dtype),
            mask=tensor("n", "m", dtype="bool"),
            ids=tensor("n", "m", dtype="int64"),
        )
        self.dtype = dtype

    def of(self, *shapes: tuple[Any, ...]) -> list[str]:
        """Floating-point values of one of these shapes."""
        return [v for v, t in self.types.items() if t.shape in shapes and t.dtype == self.dtype]

    def step(self, rng: Random) -> None:
        """One more value, of a random operator."""
        full, any_ = rng.choice(self.of(FULL)), rng.choice(self.of(FULL, ROW, COLUMN))
        axis = rng.randrange(2)
        match rng.randrange(9):
            case 0:
                self(rng.choice(UNARY), any_)
            case 1:
                self(rng.choice(["add", "mul", "sub"]), full, any_)
            case 2:
                self(rng.choice(["sum", "mean", "max"]), full, axes=(axis,), keepdims=True)
            case 3:
                self("softmax", full, axis=axis)
            case 4:
                self("reshape", self("reshape", full, shape=("n*m",)), shape=("n", "m"))
            case 5:
                joined = self("concat", full, rng.choice(self.of(FULL)), axis=1)
                self("sum", self("reshape", joined, shape=("n", 2, "m")), axes=(1,))
            case 6:
                self("where", "mask", full, any_)
            case 7:
                self("mul", full, self("cast", self("greater", full, any_), dtype=self.dtype))
            case 8:
                self("add", full, self("cast", "ids", dtype=self.dtype))


class RandomProgram:
    """A random fused program, and what its calls give one by one."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        v = Values(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
        for _ in range(rng.randint(2, 9)):
            v.step(rng)
        computed = [a for a in v.types if a[0] == "v" and v.types[a].shape in (FULL, ROW, COLUMN)]
        self.outputs = sorted({computed[-1], rng.choice(computed)})
        self.program = fuse("fused", v.calls, self.outputs)
        # 16-bit results are rounded; comparisons decide by what is not
        self.tolerance = {"float64": 1e-9, "float32": 1e-4}.get(v.dtype, 0.05)
        self._values, self._seed = v, seed

    def trial(self, sizes: Mapping[str, int]) -> tuple[dict[str, int], list[np.ndarray], list[np.ndarray]]:
        """(sizes of the program's dims, random arguments, results)."""
        random = np.random.default_rng(self._seed)
        arrays = {
            n: np.asarray(
                random.uniform(-0.25, 1.0, t.bind(sizes)) if t.dtype in DTYPES else random.integers(0, 2, t.bind(sizes))
            ).astype(ELEMENTS[t.dtype])
            for n, t in self._values.inputs.items()
        }
        values = self._values.one_by_one(arrays, sizes)
        own = {s: sizes[s] for s in self.program.symbols}
        return own, [arrays[n] for n, _ in self.program.inputs], [values[o] for o in self.outputs]
