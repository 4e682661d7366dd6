"""Calls of operators on named values, as loop programs to fuse, and what they give one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mirage.ir.loops.fuse import Call
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType


class Calls:
    """Named values of known types; those named v0, v1 and so on are computed by calls of loop programs."""

    def __init__(self, **inputs: TensorType) -> None:
        self.types = dict(inputs)
        self.calls: list[Call] = []

    def __call__(self, op: str, *args: str, **attrs: Any) -> str:
        """One more value."""
        definition = get_operator(op)
        given = definition.check_attrs(attrs)
        types = [self.types[a] for a in args]
        out = definition.infer(types, given)
        program = lower_operator(op, types, given, out)
        assert program is not None
        name = f"v{len(self.calls)}"
        self.calls.append(Call(program, args, (name,)))
        self.types[name] = out
        return name

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The values that no call computes."""
        return {n: t for n, t in self.types.items() if n[0] != "v"}

    def one_by_one(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """All values in float64, from arrays for the inputs."""
        values = dict(arrays)
        for c in self.calls:
            results = run_loops(c.program, [values[a] for a in c.args], sizes, "float64")
            values.update(zip(c.results, results, strict=True))
        return values
