"""Whether arrays are those that a kernel of a program takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirage.errors import InputError
from mirage.ir.program import Program
from mirage.ir.types import ELEMENTS


def check_arrays(program: Program, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any]) -> None:
    """Raises InputError for arrays that do not fit a program at these sizes, naming the input or result and both shapes."""
    name = program.name
    results = [str(k) for k in range(len(program.outputs))]
    sides = ("input", program.input_names, program.input_types, inputs), ("result", results, program.output_types, out)
    for what, names, types, arrays in sides:
        if len(arrays) != len(types):
            raise InputError(f"{name}: takes {len(types)} {what}s, got {len(arrays)}")
        for label, t, a in zip(names, types, arrays, strict=True):
            if a.shape != t.bind(sizes) or a.dtype != ELEMENTS[t.dtype]:
                raise InputError(
                    f"{name}: {what} {label} is {a.dtype}{list(a.shape)}, but {t} is {list(t.bind(sizes))} at these sizes; "
                    "pass arrays of that shape and type"
                )
