"""Element types and types of values of ONNX as those of the graph IR."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from onnx import TensorProto, TypeProto, helper

from mirage.ir.annotations import Annotation, ObjectType, PartialShape, PartialTensor, tensor_annotation
from mirage.ir.types import ELEMENTS, TensorType

#: element types that the graph IR computes with; tensors of others are objects, which only ONNX's own calls look into
NAMES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
}
CODES = {name: code for code, name in NAMES.items()}
assert CODES.keys() == ELEMENTS.keys()


def annotation_of(value: TypeProto | None, dim: Callable[[str], sympy.Expr | None]) -> Annotation:
    """The annotation of a type; `dim` gives the dim that a name stands for, None where it is not known."""
    if value is None or value.WhichOneof("value") != "tensor_type" or value.tensor_type.elem_type not in NAMES:
        return ObjectType()
    dtype = NAMES[value.tensor_type.elem_type]
    if not value.tensor_type.HasField("shape"):
        return PartialTensor(None, dtype)
    shape: list[sympy.Expr | None] = []
    for d in value.tensor_type.shape.dim:
        kind = d.WhichOneof("value")
        shape.append(sympy.Integer(d.dim_value) if kind == "dim_value" else dim(d.dim_param) if kind else None)
    return tensor_annotation(tuple(shape), dtype)


def type_of(annotation: Annotation, name: Callable[[sympy.Expr], str]) -> TypeProto | None:
    """The type of ONNX of an annotation; `name` names dims that are no numbers. None for an object."""
    if not isinstance(annotation, TensorType | PartialTensor) or annotation.dtype is None:
        return None
    shape: PartialShape | None = annotation.shape
    dims = None if shape is None else [None if d is None else int(d) if d.is_Integer else name(d) for d in shape]
    return helper.make_tensor_type_proto(CODES[annotation.dtype], dims)
