"""Lowerings of reductions, norms and sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.lower_movement import axes_given, items
from mirage.frontends.onnx.table import Call, add, fitting, lowers
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import axis_of, size_of
from mirage.ir.types import DTYPES


def over(c: Call, op: str, x: Any, axes: tuple[int, ...]) -> Any:
    """A reduction over axes, which are kept as an attribute says."""
    return apply(op, x, axes=axes, keepdims=bool(c.attr("keepdims", 1)))


def reduction(
    fn: Callable[[Call, Any, tuple[int, ...]], Any], alone: Callable[[Any], Any] = lambda x: x
) -> Callable[..., Any]:
    """A reduction `fn` over the axes that are given, else over all; `alone` is what it makes of each element."""

    def lowering(c: Call, x: Any, given: Any = None) -> Any:
        axes = axes_given(c, given, x.ndim)
        if not axes:
            if c.attr("noop_with_empty_axes", 0):
                return alone(x)
            axes = list(range(x.ndim))
        return fn(c, x, tuple(axes)) if x.ndim else alone(x)

    return lowering


def _extreme(c: Call, x: Any, axes: tuple[int, ...], op: str) -> Any:
    booleans = {"max": "any", "min": "all"}
    return over(c, booleans[op] if x.dtype == "bool" else op, x, axes)


def _log_sum_exp(c: Call, x: Any, axes: tuple[int, ...]) -> Any:
    greatest = apply("max", x, axes=axes, keepdims=True)
    finite = graph_ops.where(graph_ops.isfinite(greatest), greatest, 0)
    total = apply("sum", ops.exp(x - finite), axes=axes, keepdims=True)
    found = ops.log(total) + finite
    if c.attr("keepdims", 1):
        return found
    return found.reshape(tuple(d for k, d in enumerate(x.shape) if k not in axes))


def _mean(c: Call, x: Any, axes: tuple[int, ...]) -> Any:
    if x.dtype in DTYPES:
        return over(c, "mean", x, axes)
    # whole numbers of a mean are cut off
    total = graph_ops.cast(over(c, "sum", x, axes), "float64")
    count = graph_ops.cast(array_ops.dim_value(size_of([x.shape[a] for a in axes])), "float64")
    return c.cast(total / count, x.dtype)


add(
    {
        "ReduceSum": reduction(lambda c, x, axes: over(c, "sum", x, axes)),
        "ReduceProd": reduction(lambda c, x, axes: over(c, "prod", x, axes)),
        "ReduceMax": reduction(lambda c, x, axes: _extreme(c, x, axes, "max")),
        "ReduceMin": reduction(lambda c, x, axes: _extreme(c, x, axes, "min")),
        "ReduceMean": reduction(_mean),
        "ReduceL1": reduction(lambda c, x, axes: over(c, "sum", ops.abs(x), axes), ops.abs),
        "ReduceL2": reduction(lambda c, x, axes: ops.sqrt(over(c, "sum", ops.square(x), axes)), ops.abs),
        "ReduceSumSquare": reduction(lambda c, x, axes: over(c, "sum", ops.square(x), axes), ops.square),
        "ReduceLogSum": reduction(lambda c, x, axes: ops.log(over(c, "sum", x, axes)), ops.log),
        "ReduceLogSumExp": reduction(_log_sum_exp),
    },
    static=(1,),
)


@lowers("ArgMax", "ArgMin")
def _arg(c: Call, x: Any) -> Any:
    op = "argmax" if c.node.op_type == "ArgMax" else "argmin"
    axis = axis_of(c.attr("axis", 0), x.ndim)
    if not c.attr("select_last_index", 0):
        return apply(op, x, axis=axis, keepdims=bool(c.attr("keepdims", 1)))
    found = apply(op, array_ops.flip(x, axis), axis=axis, keepdims=bool(c.attr("keepdims", 1)))
    return array_ops.dim_value(x.shape[axis]) - 1 - found


def _rows(c: Call, x: Any) -> tuple[Any, int]:
    """What is normalized, and along which axis: before opset 13 all dims from the axis on, as one."""
    if c.version >= 13:
        return x, axis_of(c.attr("axis", -1), x.ndim)
    axis = axis_of(c.attr("axis", 1), x.ndim)
    return x.reshape((size_of(x.shape[:axis]), size_of(x.shape[axis:]))), 1


@lowers("Softmax")
def _softmax(c: Call, x: Any) -> Any:
    if not x.ndim:
        return ops.exp(x - x)
    rows, axis = _rows(c, x)
    return ops.softmax(rows, axis).reshape(x.shape)


@lowers("LogSoftmax")
def _log_softmax(c: Call, x: Any) -> Any:
    if not x.ndim:
        return x - x
    rows, axis = _rows(c, x)
    return ops.log_softmax(rows, axis).reshape(x.shape)


@lowers("Hardmax", since=13)
def _hardmax(c: Call, x: Any) -> Any:
    axis = axis_of(c.attr("axis", -1), x.ndim)
    own = [1] * x.ndim
    own[axis] = x.shape[axis]
    first = graph_ops.argmax(x, axis, keepdims=True)
    return c.cast(graph_ops.equal(array_ops.arange(x.shape[axis]).reshape(tuple(own)), first), x.dtype)


@lowers("CumSum", "CumProd", static=(1,))
def _cumulative(c: Call, x: Any, axis: Any) -> Any:
    op, at = c.node.op_type.lower(), axis_of(int(np.asarray(axis).item()), x.ndim)
    if c.attr("reverse", 0):
        x = array_ops.flip(x, at)
    y = apply(op, x, axis=at)
    if c.attr("exclusive", 0):
        low = [int(k == at) for k in range(x.ndim)]
        size = x.shape[at]
        wide = array_ops.pad(y, low, [0] * x.ndim, 0 if op == "cumsum" else 1)
        y = apply("slice", wide, axes=(at,), starts=(0,), stops=(size,))
    return array_ops.flip(y, at) if c.attr("reverse", 0) else y


@lowers("TopK", static=(1,), since=10)
def _topk(c: Call, x: Any, k: Any) -> Any:
    (count,) = items(k)
    return graph_ops.topk(x, count, axis_of(c.attr("axis", -1), x.ndim), bool(c.attr("largest", 1)))


# norms


def _last(c: Call, x: Any, default: int = -1) -> tuple[int, ...]:
    """The axes from one on."""
    return tuple(range(axis_of(c.attr("axis", default), x.ndim), x.ndim))


def _computed_in(c: Call, x: Any) -> str:
    """The element type that a norm is computed in."""
    code = c.attr("stash_type", 1)
    return "float32" if code == 1 and x.dtype in ("float16", "bfloat16") else str(x.dtype)


def normalized(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """The elements less their mean, over their standard deviation; the mean, and what they are multiplied by."""
    mean = apply("mean", x, axes=axes, keepdims=True)
    centered = x - mean
    scale = ops.rsqrt(apply("mean", ops.square(centered), axes=axes, keepdims=True) + eps)
    return centered * scale, mean, scale


@lowers("LayerNormalization")
def _layer_norm(c: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    axes, eps, wide = _last(c, x), c.attr("epsilon", 1e-5), _computed_in(c, x)
    if axes == (x.ndim - 1,) and not c.wants(1) and wide == x.dtype and weight.shape == x.shape[-1:]:
        if bias is None or bias.shape == x.shape[-1:]:
            return ops.layer_norm(x, weight, bias, -1, eps)
    y, mean, scale = normalized(c.cast(x, wide), axes, eps)
    found: Any = c.cast(y, x.dtype) * fitting(x, weight)[1]
    found = found if bias is None else found + fitting(x, bias)[1]
    return (found, mean, scale) if c.outputs > 1 else found


@lowers("RMSNormalization")
def _rms_norm(c: Call, x: Any, weight: Any) -> Any:
    axes, eps, wide = _last(c, x), c.attr("epsilon", 1e-5), _computed_in(c, x)
    if axes == (x.ndim - 1,) and wide == x.dtype and weight.shape == x.shape[-1:]:
        return ops.rms_norm(x, weight, -1, eps)
    y: Any = c.cast(x, wide)
    y = y * ops.rsqrt(apply("mean", ops.square(y), axes=axes, keepdims=True) + eps)
    return c.cast(y, x.dtype) * fitting(x, weight)[1]


def along(v: Any, x: Any, axis: int = 1) -> Any:
    """A vector beside a tensor, along one of its axes."""
    return v.reshape(tuple(x.shape[k] if k == axis else 1 for k in range(x.ndim)))


@lowers("BatchNormalization")
def _batch_norm(c: Call, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    eps, momentum = c.attr("epsilon", 1e-5), c.attr("momentum", 0.9)
    if not c.attr("spatial", 1) or (c.version < 7 and not c.attr("is_test", 0)) or (c.version < 14 and c.outputs > 1):
        unsupported("it is of an opset in which it learns, or normalizes each place by itself")
    others = tuple(k for k in range(x.ndim) if k != 1)
    results: tuple[Any, ...] = ()
    if c.attr("training_mode", 0):
        now = apply("mean", x, axes=others, keepdims=False)
        spread = apply("mean", ops.square(x - along(now, x)), axes=others, keepdims=False)
        results = mean * momentum + now * (1 - momentum), variance * momentum + spread * (1 - momentum)
        mean, variance = now, spread
    # one product and one sum per element
    factor = c.cast(scale, mean.dtype) * ops.rsqrt(variance + eps)
    rest = c.cast(bias, mean.dtype) - mean * factor
    if factor.dtype == x.dtype:
        y = x * along(factor, x) + along(rest, x)
    else:
        y = c.cast(c.cast(x, factor.dtype) * along(factor, x) + along(rest, x), x.dtype)
    return (y, *results) if results else y


@lowers("InstanceNormalization")
def _instance_norm(c: Call, x: Any, scale: Any, bias: Any) -> Any:
    y, _, _ = normalized(x, tuple(range(2, x.ndim)), c.attr("epsilon", 1e-5))
    return y * along(scale, x) + along(bias, x)


@lowers("GroupNormalization")
def _group_norm(c: Call, x: Any, scale: Any, bias: Any) -> Any:
    groups = c.attr("num_groups")
    if c.version < 21:
        # a factor for each group
        unsupported("its factors are those of groups")
    parts = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    wide = _computed_in(c, x)
    y, _, _ = normalized(c.cast(parts, wide), tuple(range(2, parts.ndim)), c.attr("epsilon", 1e-5))
    y = c.cast(y, x.dtype).reshape(x.shape)
    return y * along(scale, x) + along(bias, x)


@lowers("LRN")
def _lrn(c: Call, x: Any) -> Any:
    size = c.attr("size")
    low, channels = (size - 1) // 2, x.shape[1]
    square = ops.square(x)
    edge = [int(k == 1) for k in range(x.ndim)]
    wide = array_ops.pad(square, [low * e for e in edge], [(size - 1 - low) * e for e in edge])
    total: Any = None
    for k in range(size):
        part = apply("slice", wide, axes=(1,), starts=(k,), stops=(channels + k,))
        total = part if total is None else total + part
    base = total * (c.attr("alpha", 1e-4) / size) + c.attr("bias", 1.0)
    return x * ops.pow(base, -c.attr("beta", 0.75))


@lowers("LpNormalization")
def _lp_norm(c: Call, x: Any) -> Any:
    axis = axis_of(c.attr("axis", -1), x.ndim)
    if c.attr("p", 2) == 1:
        norm = ops.abs(x).sum(axis, keepdims=True)
    else:
        norm = ops.sqrt(ops.square(x).sum(axis, keepdims=True))
    return graph_ops.where(graph_ops.equal(norm, 0), 0, x / norm)
