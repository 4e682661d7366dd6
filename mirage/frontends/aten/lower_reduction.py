"""Lowerings of sums, extremes, norms and sorts."""

from __future__ import annotations

from math import prod
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, add, lowers
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import axis_of
from mirage.ir.types import DTYPES


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front; all of them for None and for none."""
    if axes is None or axes == []:
        return tuple(range(rank))
    return tuple(axis_of(a, rank) for a in (axes if isinstance(axes, list | tuple) else [axes]))


def reduced(c: Call, op: str, x: Any, axes: Any, keepdim: bool) -> Any:
    """A reduction over some axes; a tensor without dims is its own."""
    return apply(op, x, axes=axes_of(axes, x.ndim), keepdims=keepdim) if x.ndim else x


add(
    {
        "sum": lambda c, x, dtype=None: reduced(c, "sum", c.tensor(x), None, False),
        "sum.dim_IntList": lambda c, x, dim=None, keepdim=False, dtype=None: reduced(
            c, "sum", c.tensor(x), dim, keepdim
        ),
        "mean": lambda c, x, dtype=None: reduced(c, "mean", c.tensor(x), None, False),
        "mean.dim": lambda c, x, dim=None, keepdim=False, dtype=None: reduced(c, "mean", c.tensor(x), dim, keepdim),
        "amax": lambda c, x, dim=(), keepdim=False: reduced(c, _extreme_of(c, "max"), x, list(dim), keepdim),
        "amin": lambda c, x, dim=(), keepdim=False: reduced(c, _extreme_of(c, "min"), x, list(dim), keepdim),
        "any": lambda c, x: reduced(c, "any", c.tensor(x, "bool"), None, False),
        "any.dim": lambda c, x, dim=None, keepdim=False: reduced(c, "any", c.tensor(x, "bool"), dim, keepdim),
        "any.dims": lambda c, x, dim=None, keepdim=False: reduced(c, "any", c.tensor(x, "bool"), dim, keepdim),
        "all": lambda c, x: reduced(c, "all", c.tensor(x, "bool"), None, False),
        "all.dim": lambda c, x, dim=None, keepdim=False: reduced(c, "all", c.tensor(x, "bool"), dim, keepdim),
        "prod": lambda c, x, dtype=None: reduced(c, "prod", c.tensor(x), None, False),
        "prod.dim_int": lambda c, x, dim, keepdim=False, dtype=None: reduced(c, "prod", c.tensor(x), dim, keepdim),
        "_softmax": lambda c, x, dim, half=False: softmax(c, x, dim),
        "softmax.int": lambda c, x, dim, dtype=None: softmax(c, x, dim),
        "_log_softmax": lambda c, x, dim, half=False: log_softmax(c, x, dim),
        "cumsum": lambda c, x, dim, dtype=None: cumulative(c, "cumsum", x, dim),
        "cumprod": lambda c, x, dim, dtype=None: cumulative(c, "cumprod", x, dim),
        "logcumsumexp": lambda c, x, dim: cumulative(c, "cumlogsumexp", x, dim),
        "max": lambda c, x: reduced(c, _extreme_of(c, "max"), x, None, False),
        "min": lambda c, x: reduced(c, _extreme_of(c, "min"), x, None, False),
    }
)


def _extreme_of(c: Call, op: str) -> str:
    """The reduction that gives the largest or smallest element: of booleans, any and all."""
    return {"max": "any", "min": "all"}[op] if c.dtype == "bool" else op


def cumulative(c: Call, op: str, x: Any, dim: int) -> Any:
    """A sum, or another operator, of the elements so far along an axis."""
    x = c.tensor(x)
    return apply(op, x, axis=axis_of(dim, x.ndim)) if x.ndim else x


@lowers("cummax", "cummin")
def _cumulative_extreme(c: Call, x: Any, dim: int) -> Any:
    if not x.ndim:
        return x, array_ops.full((), 0, "int64")
    axis = axis_of(dim, x.ndim)
    x = c.tensor(x, "int32") if x.dtype == "bool" else x
    values = apply(c.name.split(".")[1], x, axis=axis)
    here = graph_ops.equal(x, values)
    if x.dtype in DTYPES:
        here = graph_ops.logical_or(here, graph_ops.isnan(x))
    size = x.shape[axis]
    places = array_ops.arange(0, size).reshape(tuple(size if k == axis else 1 for k in range(x.ndim)))
    # the last of equal ones so far
    return c.tensor(values), apply("cummax", graph_ops.where(here, places, 0), axis=axis)


def softmax(c: Call, x: Any, dim: int) -> Any:
    """exp(x) over its sum along an axis."""
    x = c.tensor(x)
    return ops.softmax(x, axis_of(dim, x.ndim)) if x.ndim else ops.exp(x - x)


def log_softmax(c: Call, x: Any, dim: int) -> Any:
    """The logarithm of a softmax."""
    x = c.tensor(x)
    return ops.log_softmax(x, axis_of(dim, x.ndim)) if x.ndim else x - x


@lowers("argmax", "argmin")
def _extreme(c: Call, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    op = c.name.split(".")[1]
    x = c.tensor(x, "int32") if x.dtype == "bool" else x
    if dim is None or not x.ndim:
        found = apply(op, x.reshape(-1), axis=0, keepdims=False)
        return found.reshape(c.shape) if keepdim else found
    return apply(op, x, axis=axis_of(dim, x.ndim), keepdims=keepdim)


@lowers("max.dim", "min.dim")
def _extreme_at(c: Call, x: Any, dim: int, keepdim: bool = False) -> Any:
    op = c.name.split(".")[1]
    if not x.ndim:
        return x, array_ops.full((), 0, "int64")
    axis = axis_of(dim, x.ndim)
    values = reduced(c, _extreme_of(c, op), x, axis, keepdim)
    x = c.tensor(x, "int32") if x.dtype == "bool" else x
    return values, apply(f"arg{op}", x, axis=axis, keepdims=keepdim)


def variance(c: Call, x: Any, dim: Any, correction: Any) -> tuple[Any, Any]:
    """The variance and the mean over axes: NaN where there are no more elements than the correction."""
    dtype = "float64" if x.dtype == "float64" else "float32"
    x = c.tensor(x, dtype)
    axes = axes_of(dim, x.ndim) if x.ndim else ()
    mean = x.mean(axes, keepdims=True) if axes else x
    squares = ops.square(x - mean).sum(axes, keepdims=True) if axes else ops.square(x - x)
    count = prod(x.shape[a] for a in axes)
    free = c.tensor(count, dtype) - (1 if correction is None else correction)
    found = squares / graph_ops.where(graph_ops.greater(free, 0), free, c.tensor(0.0, dtype))
    shape = c.shape
    return c.tensor(found.reshape(shape)), c.tensor(mean.reshape(shape))


@lowers("var.correction")
def _var(c: Call, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return variance(c, x, dim, correction)[0]


@lowers("var_mean.correction")
def _var_mean(c: Call, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return variance(c, x, dim, correction)


@lowers("native_layer_norm")
def _native_layer_norm(c: Call, x: Any, normalized: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    mean = x.mean(axes, keepdims=True)
    scale = ops.rsqrt(ops.square(x - mean).mean(axes, keepdims=True) + eps)
    return layer_norm(c, x, normalized, weight, bias, eps), mean, scale


@lowers("layer_norm")
def layer_norm(
    c: Call, x: Any, normalized: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Any:
    """The layer norm over the last dims, as one operator where it is over the last one."""
    if len(normalized) == 1 and (weight is not None or bias is None):
        scaled = [v for v in (weight, bias) if v is not None]
        return apply("layer_norm", x, *scaled, axis=-1, eps=eps)
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    y = centred * ops.rsqrt(ops.square(centred).mean(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@lowers("rms_norm")
def _rms_norm(c: Call, x: Any, normalized: Any, weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    least = 1.1920928955078125e-07 if eps is None else eps
    y = x * ops.rsqrt(ops.square(x).mean(axes, keepdims=True) + least)
    return y if weight is None else y * weight


@lowers("_native_batch_norm_legit_no_training")
def _batch_norm(c: Call, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    channels = (1, x.shape[1], *[1] * (x.ndim - 2))
    scale = ops.rsqrt(c.tensor(variance) + eps)
    scale = scale if weight is None else scale * c.tensor(weight)
    y = (x - c.tensor(mean).reshape(channels)) * scale.reshape(channels)
    y = y if bias is None else y + c.tensor(bias).reshape(channels)
    # what only training has
    return y, *(array_ops.full(t.shape, 0, t.dtype) for t in c.results[1:])
