"""A tensor superoptimizer: faster kernels, proved equivalent, for every shape."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirage import verify
from mirage.errors import MirageError
from mirage.frontends.annotate import tensor
from mirage.frontends.calls import call_library, call_shape, match_cast, shape, shape_of
from mirage.frontends.control import cond, loop
from mirage.frontends.effects import add_, call_packed, copy_, fill_, update_
from mirage.frontends.functions import GraphFunction, function, trace_module
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
    "GraphFunction",
    "MirageError",
    "Superoptimized",
    "TensorFunction",
    "add_",
    "apply",
    "call_library",
    "call_packed",
    "call_shape",
    "clamp",
    "concat",
    "cond",
    "constant",
    "copy_",
    "elementwise",
    "exp",
    "fill_",
    "function",
    "gelu",
    "layer_norm",
    "load",
    "loop",
    "match_cast",
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
    "shape",
    "shape_of",
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
    "trace_module",
    "transpose",
    "update_",
    "verify",
]
