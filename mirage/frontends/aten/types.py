"""Element types and symbolic sizes of torch as those of the graph IR."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_dims

from mirage.errors import UnsupportedNode
from mirage.ir.annotations import Annotation, ObjectType, TupleType
from mirage.ir.dim_functions import rounded_up
from mirage.ir.dims import Dim, ceil_div, floor_div, maximum, minimum, modulo, symbol
from mirage.ir.types import ELEMENTS, STORED_INTEGERS, TensorType

#: element types that the graph IR computes with, and that of quantized weights, which it reads; tensors of others are objects,
#: which only ATen's own calls look into
NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in ELEMENTS if name not in STORED_INTEGERS or name == "int8"
}
#: formulas of sizes, and the dims that stand for them: products of which a graph knows nothing else, and constants by guards
REPLACED: ContextVar[Mapping[Dim, Dim]] = ContextVar("REPLACED", default=MappingProxyType({}))


def annotation_of(value: Any) -> Annotation:
    """The annotation of what a node of a graph gives: a fake tensor, or a list of them."""
    if isinstance(value, torch.Tensor):
        if value.dtype in NAMES and value.layout == torch.strided and value.device.type == "cpu":
            return TensorType(shape_of(value), NAMES[value.dtype])
        return ObjectType()
    if isinstance(value, tuple | list):
        return TupleType(tuple(annotation_of(v) for v in value))
    return ObjectType()


def shape_of(tensor: torch.Tensor) -> tuple[Dim, ...]:
    """The dims of a fake tensor."""
    return tuple(dim_of(n) for n in tensor.shape)


def dim_of(size: int | torch.SymInt) -> Dim:
    """The dim that a size is; raises UnsupportedNode for an expression that no dim is.

    The expression alone is looked at: whoever asks a symbolic size for its value adds a guard to the graph.
    """
    if isinstance(size, int):
        return sympy.Integer(size)
    found = converted(size.node.expr)
    return found if found.is_Atom or not REPLACED.get() else found.subs(REPLACED.get())


_FUNCTIONS = {
    torch_dims.FloorDiv: floor_div,
    torch_dims.CleanDiv: floor_div,
    torch_dims.Mod: modulo,
    torch_dims.PythonMod: modulo,
    sympy.Mod: modulo,
    torch_dims.Max: maximum,
    sympy.Max: maximum,
    torch_dims.Min: minimum,
    sympy.Min: minimum,
}


#: numerators of binary fractions whose products with sizes no float64 rounds
_EXACT = 1 << 20


def converted(x: sympy.Expr) -> Dim:
    """An expression over torch's symbols and functions as a dim; raises UnsupportedNode where there is none."""
    match x:
        case sympy.Integer():
            return x
        case sympy.Symbol():
            return symbol(x.name)
        case sympy.Add() | sympy.Mul():
            return rounded_up(sympy.expand(x.func(*map(converted, x.args))))
        case sympy.Pow(exp=sympy.Integer() as exponent) if exponent > 0:
            return sympy.expand(converted(x.base) ** exponent)
        case torch_dims.PowByNatural(args=(base, sympy.Integer() as exponent)) if exponent > 0:
            return sympy.expand(converted(base) ** exponent)
        case torch_dims.ModularIndexing(args=(base, divisor, modulus)):
            return modulo(floor_div(converted(base), converted(divisor)), converted(modulus))
        case torch_dims.Identity(args=(inner,)):
            return converted(inner)
        case torch_dims.CeilToInt(args=(torch_dims.IntTrueDiv(args=(a, b)),)):
            return ceil_div(converted(a), converted(b))
        case (
            torch_dims.TruncToInt(args=(torch_dims.IntTrueDiv(args=(a, b)),))
            | torch_dims.FloorToInt(args=(torch_dims.IntTrueDiv(args=(a, b)),))
        ):
            return floor_div(converted(a), converted(b))
        case (
            torch_dims.TruncToInt(args=(sympy.Mul(args=(sympy.Float() as factor, torch_dims.ToFloat(args=(a,)))),))
            | torch_dims.FloorToInt(args=(sympy.Mul(args=(sympy.Float() as factor, torch_dims.ToFloat(args=(a,)))),))
        ) if (exact := sympy.Rational(float(factor))) > 0 and exact.p < _EXACT:
            return floor_div(sympy.expand(exact.p * converted(a)), sympy.Integer(exact.q))
    if x.func in _FUNCTIONS:
        return _FUNCTIONS[x.func](*map(converted, x.args))
    raise UnsupportedNode(f"the size {x} is no dim: {x.func.__name__} is not a function of dims")
