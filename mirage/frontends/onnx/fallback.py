"""Operators without a lowering: one call of ONNX's reference evaluator, within a compiled program.

The program has the node as a model of its own, as text. Operators of tensors whose types are known are library calls, which the
compiler may move, share and leave out; those with other values, or random ones, are packed calls, in the order of the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sympy
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from mirage.errors import InputError, UnsupportedNode
from mirage.frontends.calls import call_library, match_cast
from mirage.frontends.effects import call_packed
from mirage.frontends.graph import GraphTrace
from mirage.frontends.onnx.node_models import NAME, decoded, encoded
from mirage.frontends.onnx.objects import listed
from mirage.frontends.onnx.reference_ops import OPERATORS
from mirage.frontends.onnx.types import annotation_of, type_of
from mirage.frontends.onnx.values import SMALL, Value
from mirage.frontends.shapes import fresh_dims
from mirage.ir.annotations import Annotation, ObjectType, PartialTensor, TupleType
from mirage.ir.types import ELEMENTS, TensorType
from mirage.remember import remember
from mirage.runtime.packed import register_library, register_packed

#: operators whose results differ from call to call
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
#: models of one node that are kept ready
_KEPT = 4096


def evaluated(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX's reference evaluator gives; raises InputError, which says why, where it fails."""
    return _run(ReferenceEvaluator(model, new_ops=OPERATORS), feeds)


def _run(evaluator: Any, feeds: Mapping[str, Any]) -> list[Any]:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(evaluator.run(None, dict(feeds)))
    except Exception as e:
        ops = ", ".join(n.op_type for n in evaluator.proto_.graph.node)
        raise InputError(f"{ops}: {type(e).__name__}: {str(e).partition(chr(10))[0]}") from e


class Typing:
    """Names of dims within one call of shape inference."""

    def __init__(self) -> None:
        self.dims: dict[str, sympy.Expr] = {}

    def name(self, dim: sympy.Expr) -> str:
        """The name of a dim."""
        name = (
            f"dim_{len(self.dims)}"
            if dim not in self.dims.values()
            else next(n for n, d in self.dims.items() if d == dim)
        )
        self.dims[name] = dim
        return name

    def type_of(self, value: Value) -> TypeProto | None:
        """The type of ONNX of a value."""
        if value.type is not None:
            return value.type
        if value.traced is not None:
            return type_of(value.traced.annotation, self.name)
        assert value.known is not None
        if value.is_symbolic:
            return helper.make_tensor_type_proto(TensorProto.INT64, value.known.shape)
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.known.dtype), value.known.shape)


def types_of(
    node: NodeProto, schema: Any, values: Mapping[str, Value], opsets: Mapping[str, int], typing: Typing
) -> list[TypeProto | None]:
    """What ONNX's shape inference says of the results of a node; None where it says nothing."""
    nothing: list[TypeProto | None] = [None] * len(node.output)
    types = {name: t for name, v in values.items() if (t := typing.type_of(v)) is not None}
    if schema is None or len(types) < len(values):
        return nothing
    data = {
        name: numpy_helper.from_array(v.known, name)
        for name, v in values.items()
        if v.known is not None and v.known.dtype != object and v.known.size <= SMALL
    }
    try:
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except Exception:
        # what the run finds is the yardstick
        return nothing
    return [found.get(name) for name in node.output]


def call_operator(
    trace: GraphTrace, model: ModelProto, values: Mapping[str, Value], types: Sequence[TypeProto | None], typing: Typing
) -> list[Value]:
    """The results of a node, a model of its own, that the reference evaluator computes.

    Raises UnsupportedNode for an operator that it does not have.
    """
    node = model.graph.node[0]
    operands = [v.tensor(trace) for v in values.values()]
    wanted = [k for k, name in enumerate(node.output) if name]
    returns = [annotation_of(types[k], lambda n: typing.dims.get(n)) for k in wanted]
    attrs: dict[str, Any] = {"node": encoded(model)}
    # an operator that the evaluator does not have is found here, not in a call
    _evaluator(attrs["node"])
    given = all(isinstance(x.annotation, TensorType) for x in operands)
    if given and returns and all(isinstance(a, TensorType) for a in returns) and node.op_type not in RANDOM:
        outs: Any = tuple(returns) if len(returns) > 1 else returns[0]
        found = call_library(NAME, *operands, out=outs, **attrs)
    else:
        result: Annotation = TupleType(tuple(returns)) if len(returns) != 1 else returns[0]
        found = call_packed(NAME, *operands, result=result, **attrs)
    parts = found if len(returns) != 1 else (found,)
    results = [Value() for _ in node.output]
    for k, part, annotation in zip(wanted, parts, returns, strict=True):
        results[k] = Value(
            named(trace, part, annotation), type=types[k] if isinstance(annotation, ObjectType) else None
        )
    return results


def named(trace: GraphTrace, x: Any, annotation: Annotation) -> Any:
    """A tensor whose rank is known with names for the dims that only the run tells."""
    if not isinstance(annotation, PartialTensor) or annotation.shape is None or annotation.dtype is None:
        return x
    fresh = iter(fresh_dims(trace, annotation.shape.count(None)))
    return match_cast(x, TensorType(tuple(next(fresh) if d is None else d for d in annotation.shape), annotation.dtype))


_evaluators: dict[str, tuple[ReferenceEvaluator, tuple[str, ...]]] = {}


def _evaluator(node: str) -> tuple[ReferenceEvaluator, tuple[str, ...]]:
    found = _evaluators.get(node)
    if found is None:
        model = decoded(node)
        try:
            found = ReferenceEvaluator(model, new_ops=OPERATORS), tuple(i.name for i in model.graph.input)
        except Exception as e:
            raise UnsupportedNode(f"{NAME}: {type(e).__name__}: {e}") from e
        remember(_evaluators, node, found, _KEPT)
    return found


def packed(*arrays: Any, node: str) -> Any:
    """What a node gives, for a packed call: arrays for tensors, lists for sequences."""
    evaluator, names = _evaluator(node)
    found = [_plain(x) for x in _run(evaluator, dict(zip(names, map(listed, arrays), strict=True)))]
    return found[0] if len(found) == 1 else tuple(found)


def library(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, node: str) -> None:
    """What a node gives, written to `outputs`."""
    evaluator, names = _evaluator(node)
    for out, x in zip(outputs, _run(evaluator, dict(zip(names, inputs, strict=True))), strict=True):
        x = _plain(x)
        if x.shape != out.shape:
            raise InputError(f"{NAME}: a result is {list(x.shape)}, where ONNX says {list(out.shape)}")
        out[...] = x


def _plain(x: Any) -> Any:
    """A result as the runtime has it: an array, not a number; memory of its own."""
    if isinstance(x, np.generic):
        return np.asarray(x)
    if isinstance(x, np.ndarray):
        return np.array(x, order="C") if x.dtype in ELEMENTS.values() else x
    return x


register_packed(NAME, packed)
register_library(NAME, library)
