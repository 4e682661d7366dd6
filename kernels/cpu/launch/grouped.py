"""Products of groups of rows, each with a matrix of its own, and those of gates (csrc/linear.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.ir.operator import get_operator
from mirage.ir.operators.grouped import wrong_ends
from mirage.kernels.cpu.launch.halves import in_float32, prepared_in_float32
from mirage.kernels.cpu.launch.linear import activation_number
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.panels import Panels, is_transposed
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.products import library as products
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

_OPERATOR = "grouped_matmul"
#: MI_WRONG_ENDS of mirage_groups.h
_WRONG_ENDS = 2


class _Arguments(ctypes.Structure):
    """`grouped` of linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "gate", "ends", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "groups")),
        *((name, ctypes.c_int) for name in ("transposed", "wide", "packed", "activation")),
    )


@functools.cache
def _function() -> Callable[..., int]:
    function = products().mi_grouped
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


@dataclass(frozen=True)
class _Call:
    """The operands of a call: matrices of each group, with those of the gate behind them if there is one, in panels where they
    are packed.
    """

    x: np.ndarray
    weights: Sequence[np.ndarray]
    panels: Sequence[Panels]
    ends: np.ndarray
    out: np.ndarray
    right: Sequence[int]
    activation: str

    @classmethod
    def of(
        cls,
        inputs: Sequence[Any],
        outputs: Sequence[np.ndarray],
        *,
        right: Sequence[int] = (),
        packed: bool = False,
        gated: bool = False,
        activation: str = "",
    ) -> _Call:
        """The operands of a call; raises LibraryError for another number of them, as changed files of programs have it."""
        x, *rest, ends = inputs
        count = 1 + gated
        if len(rest) != count * (1 + packed):
            raise LibraryError(f"{_OPERATOR}: {len(rest)} operands beside rows and ends; compile the program again")
        return cls(x, rest[:count], rest[count:], ends, outputs[0], right, activation)

    def arguments(self) -> _Arguments | None:
        """The arguments, with addresses of panels alone; None where the product is not of float32, the matrices are in another
        order, or shapes do not fit.
        """
        x, ends, out = self.x, self.ends, self.out
        if any(a.dtype != np.float32 for a in (x, *self.weights, out)) or tuple(self.right) not in ((), (0, 1, 2), (0, 2, 1)):
            return None
        transposed = is_transposed(self.right)
        shapes = {p.shape for p in (*self.panels, *(Panels(w, transposed) for w in self.weights))}
        shape = shapes.pop()
        if shapes or len(shape) != 3 or ends.dtype not in (np.int32, np.int64):
            return None
        groups, k, n = shape
        if x.shape[1:] != (k,) or ends.shape != (groups,) or out.shape != (len(x), n):
            return None
        w, gate, *_ = [address(p.array) for p in self.panels] + [0, 0]
        wide, activation = ends.dtype == np.int64, activation_number(self.activation)
        return _Arguments(0, w, gate, 0, 0, *x.shape, n, groups, transposed, wide, bool(self.panels), activation)

    def places(self) -> dict[str, int]:
        """The tensors that C reads where they are, and their places among the inputs and the output."""
        weights = {} if self.panels else dict(zip(("w", "gate"), range(1, 1 + len(self.weights)), strict=False))
        last = 1 + len(self.weights) + len(self.panels)
        return {"x": 0, **weights, "ends": last, "out": last + 1}


def error(status: int, rows: int) -> Exception:
    """What a status of C means for so many rows."""
    if status == _WRONG_ENDS:
        return wrong_ends(_OPERATOR, rows)
    return MirageError(f"there is no memory for products of {rows} rows; use smaller sizes")


@in_float32
def library(inputs: Sequence[Any], outputs: Sequence[np.ndarray], **attrs: Any) -> None:
    """What programs call as `cpu.grouped_matmul`, in C where the product is of float32 or 16 bits.

    The attributes are those of `_Call.of`; `right` permutes dims of w. `inputs` are x, w, the matrices of the gate if it is
    `gated`, the `Panels` of these if they are `packed`, and the ends. With a gate, the result is `activation(x w) * (x gate)`,
    group by group (Shazeer, "GLU Variants Improve Transformer", 2020).

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, InputError for wrong ends, LibraryError for
    a gate of arrays that do not fit, MirageError without memory.
    """
    call = _Call.of(inputs, outputs, **attrs)
    args = call.arguments()
    if args is None:
        if len(call.weights) > 1 or call.activation:
            shapes = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in (call.x, *call.weights, call.ends, call.out))
            raise LibraryError(f"there are no gated groups of {shapes}; compile the program again")
        w = call.weights[0].transpose(call.right) if call.right else call.weights[0]
        call.out[...] = get_operator(_OPERATOR).run([call.x, w, call.ends], {}, {})
        return
    arrays = (*inputs, call.out)
    for name, place in call.places().items():
        setattr(args, name, address(arrays[place]))
    if status := _function()(ctypes.addressof(args), run_address(), num_threads()):
        raise error(status, args.m)


def grouped_matmul(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `grouped_matmul` gives for arrays of NumPy. Raises as `library`."""
    x, w, ends = (np.ascontiguousarray(a) for a in arrays)
    out = np.empty((x.shape[0], w.shape[2]), x.dtype)
    library((x, w, ends), (out,))
    return out


@prepared_in_float32
def prepare(inputs: Sequence[Any], outputs: Sequence[np.ndarray], **attrs: Any) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and these panels; None where that is
    not in C.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails as `library`.
    """
    call = _Call.of(inputs, outputs, **attrs)
    args = call.arguments()
    if args is None:
        return None
    pointers = tuple((field(args, name), place) for name, place in call.places().items())
    run, rows = launcher(products().mi_grouped), args.m
    return Launch(run, ctypes.addressof(args), pointers, lambda status: error(status, rows), (args, call.panels))


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.grouped_matmul": library}
