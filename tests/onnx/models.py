"""Small ONNX models, made of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

#: shapes by name; a tuple of a shape and an element type for those that are not float32
Types = Mapping[str, Any]


def value(name: str, given: Any) -> Any:
    shape, dtype = (
        given
        if given and isinstance(given[-1], int) and isinstance(given[0], tuple | list)
        else (given, TensorProto.FLOAT)
    )
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model(
    nodes: Sequence[NodeProto],
    inputs: Types,
    outputs: Types,
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
) -> ModelProto:
    """A model of these nodes."""
    graph = helper.make_graph(
        list(nodes), "small", [value(n, t) for n, t in inputs.items()], [value(n, t) for n, t in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


node = helper.make_node
