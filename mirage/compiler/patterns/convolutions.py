"""The pairs of the processor's own convolutions: with the zeros around a tensor, what is added to the result, and its bounds."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

from mirage.compiler.patterns.language import Match, Pattern, number, op, optional, value, view
from mirage.compiler.patterns.registry import register_pattern
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Constant, OpCall, Var
from mirage.ir.types import HALVES, TensorType, is_one
from mirage.kernels.cpu.launch.convolution import RANK, REALS

_DTYPES = (*REALS, *HALVES)


def _is_edge(pad: OpCall) -> bool:
    """Whether these are zeros along spatial dims."""
    attrs = dict(pad.attrs)
    return attrs["value"] == 0 and not any((*attrs["low"][:2], *attrs["high"][:2]))


def _convolution() -> Pattern:
    x = optional(value("x", dtype=_DTYPES), lambda x: op("pad", x, name="pad", where=_is_edge))
    return op("convolution", x, value("w", dtype=_DTYPES), name="sum")


def _pointwise() -> Pattern:
    """A convolution with windows of one element, as front ends have it: a product of matrices. That of a small constant weight
    is known when the program is compiled.
    """
    w, x = value("w", dtype=_DTYPES), value("x", dtype=_DTYPES, rank=3)
    product = op("matmul", view("reshape", w, name="matrix") | value("w", dtype=_DTYPES, rank=2), x, name="sum")
    return optional(product, lambda p: op("reshape", p, name="space"))


def _with_epilogue(total: Pattern) -> Pattern:
    bias, other = value("bias", dtype=_DTYPES), value("other", dtype=_DTYPES)
    vector = view("reshape", bias) | bias
    total = optional(total, lambda p: op("add", p, vector, commutative=True, name="bias"))
    total = optional(total, lambda p: op("add", p, other, commutative=True, name="other"))
    above = optional(total, lambda p: op("relu", p, name="relu") | _bounded("elementwise_max", p, "least"))
    return optional(above, lambda p: _bounded("elementwise_min", p, "most"))


def _bounded(name: str, inner: Pattern, bound: str) -> Pattern:
    return op(name, inner, number(name=bound), commutative=True, name=bound)


def _is_fitting(m: Match) -> bool:
    """Whether C computes it: with constant weights, a bias per output, another summand of the result's shape, known bounds."""
    w, out = m.operands["w"], _type(m.calls.get("space", m.calls["sum"]))
    if not (isinstance(w, Constant) or w in m.constants) or out is None or len(out.shape) > RANK + 2:
        return False
    if _is_product(m) and not _is_window_of_one(m):
        return False
    if _is_product(m) and "matrix" not in m.calls and not isinstance(w, Constant):
        # a matrix that was none of a convolution's weights
        return False
    for name in ("bias", "other"):
        if name in m.calls and _type(m.calls[name]) != out:
            return False
    if "bias" in m.calls and not any(is_per_output(a.annotation, out) for a in m.calls["bias"].args):
        return False
    if "other" in m.operands and not (isinstance(m.operands["other"], Var) and m.type("other") == out):
        return False
    return all(_number(m, bound) is not None for bound in ("least", "most") if bound in m.operands)


def _type(call: OpCall) -> TensorType | None:
    found = deduce(call, {})
    return found if isinstance(found, TensorType) else None


def _is_window_of_one(m: Match) -> bool:
    """Whether the matrix is one of weights `[o, c, 1, ...]`, and only the spatial dims of the product are told apart."""
    w, product = m.type("w"), _type(m.calls["sum"])
    matrix = _type(m.calls["matrix"]) if "matrix" in m.calls else w
    out = _type(m.calls.get("space", m.calls["sum"]))
    if not (isinstance(w, TensorType) and isinstance(matrix, TensorType) and product and out):
        return False
    return w.shape[:2] == matrix.shape and all(map(is_one, w.shape[2:])) and out.shape[:2] == product.shape[:2]


def _is_product(m: Match) -> bool:
    return m.calls["sum"].op == "matmul"


def is_per_output(bias: Any, out: TensorType) -> bool:
    """Whether a summand broadcasts along all dims of the result but that of the outputs."""
    if not isinstance(bias, TensorType) or bias.dtype != out.dtype or len(bias.shape) > len(out.shape):
        return False
    place = len(bias.shape) - len(out.shape) + 1
    return place >= 0 and all(d == out.shape[1] if k == place else is_one(d) for k, d in enumerate(bias.shape))


def _number(m: Match, bound: str) -> float | None:
    atom = m.operands[bound]
    found = float(atom.array) if isinstance(atom, Constant) else None
    return None if found is None or isnan(found) else found


def _attributes(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not _is_product(m):
        found = {key: m.attr("sum", key) for key in ("strides", "dilations", "groups")}
        found["low"] = m.attr("pad", "low", (0,) * (len(found["strides"]) + 2))[2:]
    found |= {key: True for key in ("bias", "other") if key in m.calls}
    if "relu" in m.calls:
        found["least"] = 0.0
    bounds = {bound: _number(m, bound) for bound in ("least", "most") if bound in m.operands}
    return found | {bound: n for bound, n in bounds.items() if n not in (None, -inf, inf)}


for _name, _total in (("cpu_convolution", _convolution()), ("cpu_pointwise", _pointwise())):
    register_pattern(
        _name,
        _with_epilogue(_total),
        "cpu.convolution",
        _is_fitting,
        inputs=("x", "w", "bias", "other"),
        attributes=_attributes,
        package="cpu",
    )
