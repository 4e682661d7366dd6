"""The built-in pairs: products and contractions by BLAS.

An epilogue is taken along only where no other elementwise operator follows: the generated kernel that computes that one
reads the product once for all of them. Only epilogues that NumPy computes in place as fast as it reads memory are taken.
"""

from __future__ import annotations

from typing import Any

from mirage.compiler.patterns.groups import gated, group_attributes, grouped, swaps_last
from mirage.compiler.patterns.language import Match, Pattern, op, optional, value, view
from mirage.compiler.patterns.linear import adds_a_row, linear, linear_attributes
from mirage.compiler.patterns.registry import register_pattern, same_attributes
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.operator import REGISTRY, Elementwise
from mirage.ir.operators.contraction import normalize_axes
from mirage.ir.types import DTYPES, IN_FLOAT32, TensorType, is_one

_FLOATS = tuple(DTYPES)


def _product() -> Pattern:
    x, y = value("x", dtype=_FLOATS), value("y", dtype=_FLOATS)
    left = view("transpose", x, name="left") | x
    right = view("transpose", y, name="right") | y
    return op("matmul", left, right, name="product")


def _bias(product: Pattern) -> Pattern:
    return op("add", product, value("bias", dtype=_FLOATS), commutative=True, name="bias")


def _matmul_attributes(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side in ("left", "right"):
        if side in m.calls:
            found[side] = tuple(m.attr(side, "perm"))
    return found | {key: True for key in ("bias", "relu") if key in m.calls}


def _contraction() -> Pattern:
    product = op("mul", value("x", dtype=_FLOATS), value("y", dtype=_FLOATS), name="product")
    return op("sum", product, name="sum")


def contraction_labels(m: Match) -> dict[str, tuple[int, ...]] | None:
    """The labels of `mirage.kernels.blas.contraction`; None where no product of matrices is in it.

    The result has to have rows of the one operand and columns of the other: else it is a reduction of one pass, which a
    generated kernel fuses with what is around it.
    """
    types = [m.type("x"), m.type("y")]
    if not all(isinstance(t, TensorType) for t in types):
        return None
    shapes = [t.shape for t in types if isinstance(t, TensorType)]
    rank = max(map(len, shapes))
    axes = normalize_axes("sum", m.attr("sum", "axes"), rank)
    labels = [tuple(-1 if is_one(d) else rank - len(s) + i for i, d in enumerate(s)) for s in shapes]
    x, y = (set(row) - {-1} for row in labels)
    summed = {a for a in axes if a in x | y}
    if not summed or not summed <= x & y or not (x - y) or not (y - x):
        return None
    kept = m.attr("sum", "keepdims")
    present = [i if i in x | y else -1 for i in range(rank)]
    result = [-1 if i in axes else present[i] for i in range(rank) if kept or i not in axes]
    return {"left": labels[0], "right": labels[1], "result": tuple(result)}


def _ends(m: Match) -> bool:
    """Whether no elementwise operator reads the result, and the bias broadcasts to the product, not the other way round."""
    if any(isinstance(REGISTRY.get(name), Elementwise | GraphElementwise) for name in m.readers):
        return False
    return "bias" not in m.calls or deduce(m.calls["product"], {}) == deduce(m.calls["bias"], {})


def _is_no_stack(m: Match) -> bool:
    """Whether it is not the writing of one slice, which `write_stacks` may do in place."""
    at = m.operands.get("x1")
    return at is None or not isinstance(at.annotation, TensorType) or at.annotation.rank > 0 or m.attr("call", "add")


# below what users register without a priority
for _name, _groups, _inputs, _priority in (
    ("cpu_gated_groups", gated(*IN_FLOAT32), ("x", "w", "gate", "ends"), -4),
    ("cpu_grouped", grouped(*IN_FLOAT32), ("x", "w", "ends"), -5),
):
    register_pattern(
        _name,
        _groups,
        "cpu.grouped_matmul",
        swaps_last,
        priority=_priority,
        inputs=_inputs,
        attributes=group_attributes,
        package="cpu",
    )
for _op, _operands, _attributes in (
    ("topk", 1, ("axis", "largest")),
    ("sort", 1, ("axis", "descending")),
    ("argsort", 1, ("axis", "descending")),
    ("cumsum", 1, ("axis",)),
    ("scatter", 3, ("axis", "add")),
    ("put_along_axis", 3, ("axis", "add")),
):
    register_pattern(
        f"cpu_{_op}",
        op(_op, *(value(f"x{k}") for k in range(_operands)), name="call"),
        f"cpu.{_op}",
        _is_no_stack,
        priority=-5,
        attributes=same_attributes("call", *_attributes),
        package="cpu",
    )
register_pattern(
    "torch_linear",
    linear(value("w", dtype="float32", rank=2)),
    "blas.matmul",
    lambda m: m.operands["w"] in m.constants and adds_a_row(m),
    priority=-5,
    attributes=linear_attributes,
    package="torch",
)
register_pattern(
    "torch_convolution",
    op("convolution", value("x", dtype=_FLOATS), value("w", dtype=_FLOATS), name="window"),
    "torch.convolution",
    priority=-5,
    attributes=same_attributes("window", "strides", "dilations", "groups"),
    package="torch",
)
register_pattern(
    "matmul_relu",
    op("relu", optional(_product(), _bias), name="relu"),
    "blas.matmul",
    _ends,
    priority=-10,
    attributes=_matmul_attributes,
)
register_pattern("matmul_bias", _bias(_product()), "blas.matmul", _ends, priority=-20, attributes=_matmul_attributes)
register_pattern("matmul", _product(), "blas.matmul", priority=-30, attributes=_matmul_attributes)
register_pattern(
    "contraction",
    _contraction(),
    "blas.contraction",
    lambda m: contraction_labels(m) is not None,
    priority=-30,
    attributes=lambda m: contraction_labels(m) or {},
)
