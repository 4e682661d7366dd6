"""Arrays of any library as NumPy arrays without copying, and results of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS

_BFLOAT16 = DTYPES["bfloat16"]


def to_numpy(x: Any, what: str) -> np.ndarray:
    """A view of an array: NumPy, `__array_interface__` or DLPack (torch CPU tensors). Raises InputError for others."""
    if isinstance(x, np.ma.MaskedArray):
        raise InputError(f"{what}: is a masked array, and masks are not part of a program; pass x.filled(...)")
    if isinstance(x, np.ndarray):
        # a view of the base class: operators of subclasses such as np.matrix mean something else
        return np.asarray(x)
    try:
        if hasattr(x, "__array_interface__"):
            return np.asarray(x)
        if hasattr(x, "__dlpack__"):
            if getattr(x, "requires_grad", False):
                x = x.detach()
            if hasattr(x, "resolve_neg"):
                # torch exports the memory of a lazily negated tensor without its sign
                x = x.resolve_neg()
                # a storage may have been resized under the tensor, and NumPy would take memory of its own
                if x.is_cpu and x.numel() and not x.data_ptr():
                    raise InputError(f"{what}: {type(x).__name__} has no memory; pass a tensor that holds data")
            if str(getattr(x, "dtype", "")) == "torch.bfloat16":
                # NumPy's DLPack has no such type: its bits go as integers
                return np.from_dlpack(x.view(import_module("torch").int16)).view(_BFLOAT16)
            return np.from_dlpack(x)
    except InputError:
        raise
    except Exception as e:
        # the object's own code runs here, and may raise anything
        raise InputError(f"{what}: {type(x).__name__} cannot be read in place ({e}); pass a CPU array") from e
    raise InputError(f"{what}: {type(x).__name__} is not an array; pass a NumPy array or anything with DLPack")


def like(result: np.ndarray, x: Any) -> Any:
    """A result as the kind of array that `x` is, sharing memory where that kind can hold the strides."""
    if isinstance(x, np.ndarray | np.generic):
        return result
    if any(s < 0 for s in result.strides):
        result = result.copy()
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is not None:
        return namespace().from_dlpack(result)
    if type(x).__module__.split(".")[0] == "torch":
        torch = import_module("torch")
        if result.dtype == _BFLOAT16:
            return torch.from_dlpack(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_dlpack(result)
    return result


def detached(results: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results, copied where they may share memory with an input or an earlier result."""
    found: list[np.ndarray] = []
    for r in results:
        found.append(r.copy() if any(np.may_share_memory(r, a) for a in (*inputs, *found)) else r)
    return found


def check_inputs(program: Program, args: Sequence[Any]) -> list[np.ndarray]:
    """The arguments as NumPy arrays of the program's ranks and dtype; raises InputError naming the input."""
    names, types = program.input_names, program.input_types
    if len(args) != len(names):
        raise InputError(
            f"{program.name}: takes {len(names)} arrays ({', '.join(names)}), got {len(args)}; pass each input once, in order"
        )
    arrays = []
    for x, name, t in zip(args, names, types, strict=True):
        a = x if type(x) is np.ndarray else to_numpy(x, f"{program.name}: input {name!r}")
        if a.dtype != ELEMENTS[t.dtype]:
            raise InputError(
                f"{program.name}: input {name!r} has dtype {a.dtype}, the program wants {t.dtype}; convert it"
            )
        if a.ndim != t.rank:
            raise InputError(
                f"{program.name}: input {name!r} has shape {list(a.shape)}, the program wants {t}; match the rank"
            )
        arrays.append(a)
    return arrays
