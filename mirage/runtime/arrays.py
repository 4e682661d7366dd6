"""Arrays of any library as NumPy arrays without copying, and results of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.program import Program


def to_numpy(x: Any, what: str) -> np.ndarray:
    """A view of an array: NumPy, `__array_interface__` or DLPack (torch CPU tensors). Raises InputError for others."""
    if isinstance(x, np.ndarray):
        return x
    try:
        if hasattr(x, "__array_interface__"):
            return np.asarray(x)
        if hasattr(x, "__dlpack__"):
            if getattr(x, "requires_grad", False):
                x = x.detach()
            return np.from_dlpack(x)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as e:
        raise InputError(f"{what}: {type(x).__name__} cannot be read in place ({e}); pass a CPU array") from None
    raise InputError(f"{what}: {type(x).__name__} is not an array; pass a NumPy array or anything with DLPack")


def like(result: np.ndarray, x: Any) -> Any:
    """A result as the kind of array that `x` is, sharing memory."""
    if isinstance(x, np.ndarray):
        return result
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is not None:
        return namespace().from_dlpack(result)
    if type(x).__module__.split(".")[0] == "torch":
        return import_module("torch").from_dlpack(result)
    return result


def check_inputs(program: Program, args: Sequence[Any]) -> list[np.ndarray]:
    """The arguments as NumPy arrays of the program's ranks and dtype; raises InputError naming the input."""
    names, types = program.input_names, program.input_types
    if len(args) != len(names):
        raise InputError(
            f"{program.name}: takes {len(names)} arrays ({', '.join(names)}), got {len(args)}; pass each input once, in order"
        )
    arrays = []
    for x, name, t in zip(args, names, types, strict=True):
        a = to_numpy(x, f"{program.name}: input {name!r}")
        if a.dtype.name != t.dtype:
            raise InputError(
                f"{program.name}: input {name!r} has dtype {a.dtype.name}, the program wants {t.dtype}; convert it"
            )
        if a.ndim != t.rank:
            raise InputError(
                f"{program.name}: input {name!r} has shape {list(a.shape)}, the program wants {t}; match the rank"
            )
        arrays.append(a)
    return arrays
