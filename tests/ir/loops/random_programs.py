"""Random programs of operators on a few named values, as calls of loop programs to fuse, with arguments."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from mirage.ir.loops.fuse import Call
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import DTYPES, ELEMENTS, TensorType, tensor

SIZES = [dict(n=5, m=7), dict(n=19, m=67), dict(n=1, m=1), dict(n=0, m=4), dict(n=3, m=0)]
FULL, ROW, COLUMN = tensor("n", "m").shape, tensor("m").shape, tensor("n", 1).shape
UNARY = ["neg", "square", "sigmoid", "tanh", "relu", "gelu"]


class Values:
    """Named values of known types, computed by calls of loop programs."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.types = {
            "x": tensor("n", "m", dtype=dtype),
            "y": tensor("m", dtype=dtype),
            "z": tensor("n", 1, dtype=dtype),
            "mask": tensor("n", "m", dtype="bool"),
            "ids": tensor("n", "m", dtype="int64"),
        }
        self.calls: list[Call] = []

    def of(self, *shapes: tuple[Any, ...]) -> list[str]:
        """Floating-point values of one of these shapes."""
        return [v for v, t in self.types.items() if t.shape in shapes and t.dtype == self.dtype]

    def add(self, op: str, *args: str, **attrs: Any) -> str:
        definition = get_operator(op)
        given = definition.check_attrs(attrs)
        types = [self.types[a] for a in args]
        out = definition.annotate(types, given)
        assert isinstance(out, TensorType)
        program = lower_operator(op, types, given, out)
        assert program is not None
        name = f"v{len(self.calls)}"
        self.calls.append(Call(program, args, (name,)))
        self.types[name] = out
        return name

    def step(self, rng: Random) -> None:
        """One more value, of a random operator."""
        full, any_ = rng.choice(self.of(FULL)), rng.choice(self.of(FULL, ROW, COLUMN))
        axis = rng.randrange(2)
        match rng.randrange(9):
            case 0:
                self.add(rng.choice(UNARY), any_)
            case 1:
                self.add(rng.choice(["add", "mul", "sub"]), full, any_)
            case 2:
                self.add(rng.choice(["sum", "mean", "max"]), full, axes=(axis,), keepdims=True)
            case 3:
                self.add("softmax", full, axis=axis)
            case 4:
                self.add("reshape", self.add("reshape", full, shape=("n*m",)), shape=("n", "m"))
            case 5:
                joined = self.add("concat", full, rng.choice(self.of(FULL)), axis=1)
                self.add("sum", self.add("reshape", joined, shape=("n", 2, "m")), axes=(1,))
            case 6:
                self.add("where", "mask", full, any_)
            case 7:
                self.add("mul", full, self.add("cast", self.add("greater", full, any_), dtype=self.dtype))
            case 8:
                self.add("add", full, self.add("cast", "ids", dtype=self.dtype))


def random_calls(seed: int) -> tuple[Values, list[str]]:
    """The values of a random program, and those of them that are its results."""
    rng = Random(seed)
    v = Values(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    for _ in range(rng.randint(2, 9)):
        v.step(rng)
    computed = [a for a in v.types if a[0] == "v" and v.types[a].shape in (FULL, ROW, COLUMN)]
    return v, sorted({computed[-1], rng.choice(computed)})


def arguments(v: Values, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Random arrays for the values that no call computes."""
    random = np.random.default_rng(seed)
    return {
        n: np.asarray(
            random.uniform(-0.25, 1.0, t.bind(sizes)) if t.dtype in DTYPES else random.integers(0, 2, t.bind(sizes))
        ).astype(ELEMENTS[t.dtype])
        for n, t in v.types.items()
        if n[0] != "v"
    }
