"""A tensor superoptimizer: faster kernels, proved equivalent, for every shape."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirage import verify
from mirage.errors import MirageError
from mirage.frontends.ops import (
    clamp,
    concat,
    constant,
    exp,
    gelu,
    layer_norm,
    matmul,
    maximum,
    mean,
    neg,
    pow,
    relu,
    repeat,
    reshape,
    rms_norm,
    rsqrt,
    sigmoid,
    silu,
    softmax,
    sqrt,
    square,
    sum,
    swapaxes,
    tanh,
    transpose,
)
from mirage.frontends.proxy import apply
from mirage.frontends.spec import TensorFunction, program
from mirage.frontends.trace import trace
from mirage.ir.functions import register_function
from mirage.ir.operator import Attribute, elementwise
from mirage.ir.types import tensor

if TYPE_CHECKING:
    from mirage.api import load, superoptimize, superoptimized
    from mirage.result import Superoptimized


#: loaded on first use, so that importing the package stays quick
_LATER = {
    "Superoptimized": "mirage.result",
    "load": "mirage.api",
    "superoptimize": "mirage.api",
    "superoptimized": "mirage.api",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'mirage' has no attribute {name!r}")


__all__ = [
    "Attribute",
    "MirageError",
    "Superoptimized",
    "TensorFunction",
    "apply",
    "clamp",
    "concat",
    "constant",
    "elementwise",
    "exp",
    "gelu",
    "layer_norm",
    "load",
    "matmul",
    "maximum",
    "mean",
    "neg",
    "pow",
    "program",
    "register_function",
    "relu",
    "repeat",
    "reshape",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "square",
    "sum",
    "superoptimize",
    "superoptimized",
    "swapaxes",
    "tanh",
    "tensor",
    "trace",
    "transpose",
    "verify",
]
