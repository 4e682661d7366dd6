"""Functions that compiled programs call by name: library functions and packed functions.

Programs hold names only, so functions are registered before a program that calls them is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mirage.errors import DuplicateFunction, UnknownFunction
from mirage.ir.operators.in_place import EFFECTS
from mirage.kernels import blas
from mirage.kernels.cpu.launch import (
    attention,
    convolution,
    dequantized,
    grouped,
    narrowed,
    narrowed_groups,
    order,
    panels,
    quantize,
    quantized,
    quantized_convolution,
    separable,
)

#: effects of the IR, and what packs weights, are packed functions that are always there
_packed: dict[str, Callable[..., Any]] = {
    **EFFECTS,
    **convolution.PACKING,
    **dequantized.PACKING,
    **narrowed.PACKING,
    **panels.PACKING,
    **quantized.PACKING,
    **quantized_convolution.PACKING,
}
#: the names of those: they have no effects but on their arguments
BUILT_IN = frozenset(_packed)
_library: dict[str, Callable[..., None]] = {
    **attention.FUNCTIONS,
    **blas.FUNCTIONS,
    **convolution.FUNCTIONS,
    **dequantized.FUNCTIONS,
    **grouped.FUNCTIONS,
    **narrowed.FUNCTIONS,
    **narrowed_groups.FUNCTIONS,
    **order.FUNCTIONS,
    **quantize.FUNCTIONS,
    **quantized.FUNCTIONS,
    **quantized_convolution.FUNCTIONS,
    **separable.FUNCTIONS,
}
#: name -> module that registers functions of that name when it is imported: it needs a package that may not be installed
_PROVIDERS = {
    "torch.ops": "mirage.frontends.aten.fallback",
    "onnx.reference": "mirage.frontends.onnx.fallback",
    "torch.matmul": "mirage.frontends.aten.products",
    "torch.convolution": "mirage.frontends.aten.products",
}


def register_packed(name: str, fn: Callable[..., Any]) -> None:
    """Register a Python function that programs call as `fn(*args, **attrs)`: it may have effects, and gives any value.

    Tensors are NumPy arrays, for CUDA targets CuPy's, shapes tuples of integers. The function must not keep arrays that it gets:
    their memory is used again. Raises DuplicateFunction if the name is taken.
    """
    _register(_packed, "packed", name, fn)


def register_library(name: str, fn: Callable[..., None]) -> None:
    """Register a library function that programs call as `fn(inputs, outputs, **attrs)`, in destination-passing style.

    Both are tuples of C-contiguous NumPy arrays, for CUDA targets CuPy's; the function writes every element of the outputs, which
    share no memory with the inputs, and nothing else. Dims among the attributes come as integers. It may be called from several
    threads at once.
    Raises DuplicateFunction if the name is taken.
    """
    _register(_library, "library", name, fn)


def packed_function(name: str) -> Callable[..., Any]:
    """The packed function of that name; raises UnknownFunction saying what to register."""
    return _find(_packed, "packed", name)


def library_function(name: str) -> Callable[..., None]:
    """The library function of that name; raises UnknownFunction saying what to register."""
    return _find(_library, "library", name)


def is_provided(name: str) -> bool:
    """Whether a function of that name comes from a package beside NumPy."""
    return name in _PROVIDERS


def _register(functions: dict[str, Callable[..., Any]], kind: str, name: str, fn: Callable[..., Any]) -> None:
    if functions.setdefault(name, fn) is not fn:
        raise DuplicateFunction(f"{kind} function {name!r} is registered already; use another name")


def _find(functions: dict[str, Callable[..., Any]], kind: str, name: str) -> Callable[..., Any]:
    if name not in functions and name in _PROVIDERS:
        try:
            import_module(_PROVIDERS[name])
        except ImportError as e:
            raise UnknownFunction(f"{kind} function {name!r} needs {e.name}, which is not installed; install it") from None
    try:
        return functions[name]
    except KeyError:
        raise UnknownFunction(
            f"{kind} function {name!r} is not registered; call register_{kind}({name!r}, fn) before the program is loaded"
        ) from None
