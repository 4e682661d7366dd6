"""Lowerings of products of tensors."""

from __future__ import annotations

from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import BROADCASTING, Call, fitting, lowers
from mirage.frontends.products import matmul, product
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, size_of


@lowers("MatMul")
def _matmul(c: Call, x: Any, y: Any) -> Any:
    return matmul(x, y)


@lowers("Gemm", since=BROADCASTING)
def _gemm(c: Call, a: Any, b: Any, bias: Any = None) -> Any:
    x, y = (t.swapaxes(0, 1) if c.attr(name, 0) else t for t, name in ((a, "transA"), (b, "transB")))
    alpha, beta = (c.attr(name, 1.0) for name in ("alpha", "beta"))
    found = product(x, y)
    found = found if alpha == 1 else found * alpha
    if bias is None or beta == 0:
        return found
    bias = fitting(found, bias)[1]
    return found + (bias if beta == 1 else bias * beta)


@lowers("Einsum")
def _einsum(c: Call, *xs: Any) -> Any:
    """Operands two by two: each pair is a product of matrices, after sums over what only one of them has."""
    left, _, right = c.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        unsupported(f"its equation has {len(terms)} operands")
    spare = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    if "..." in left:
        most = max(x.ndim - len(t.replace("...", "")) for t, x in zip(terms, xs, strict=True) if "..." in t)
        names = [next(s for s in spare if s not in left) for _ in range(most)]
        shared = "".join(names)
        terms = [
            t.replace("...", shared[most - (x.ndim - len(t.replace("...", ""))) :]) if "..." in t else t
            for t, x in zip(terms, xs, strict=True)
        ]
        if "->" not in c.attr("equation"):
            right = shared + "".join(sorted(s for s in set(left) - set(",.") if left.count(s) == 1))
        else:
            right = right.replace("...", shared)
    elif "->" not in c.attr("equation"):
        right = "".join(sorted(s for s in set(left) - {","} if left.count(s) == 1))
    operands = [_diagonal(t, x) for t, x in zip(terms, xs, strict=True)]
    while len(operands) > 1:
        (a, x), (b, y), *others = operands
        kept = set(right).union(*(t for t, _ in others)) if others else set(right)
        operands = [_pair(a, x, b, y, kept), *others]
    ((term, x),) = operands
    term, x = _summed(term, x, set(right))
    return ops.transpose(x, tuple(term.index(s) for s in right)) if x.ndim > 1 else x


def _diagonal(term: str, x: Any) -> tuple[str, Any]:
    """An operand in whose term no letter is twice: elements where the positions of both are equal."""
    for k, s in enumerate(term):
        if s in term[:k]:
            first = term.index(s)
            size = x.shape[k]
            rows = array_ops.arange(size).reshape(tuple(size if a == first else 1 for a in range(x.ndim)))
            columns = array_ops.arange(size).reshape(tuple(size if a == k else 1 for a in range(x.ndim)))
            x = graph_ops.where(graph_ops.equal(rows, columns), x, 0).sum(k)
            return _diagonal(term[:k] + term[k + 1 :], x)
    return term, x


def _summed(term: str, x: Any, kept: set[str]) -> tuple[str, Any]:
    """Without the dims that are not kept, over which it is summed."""
    axes = tuple(k for k, s in enumerate(term) if s not in kept)
    return "".join(s for s in term if s in kept), apply("sum", x, axes=axes, keepdims=False) if axes else x


def _pair(a: str, x: Any, b: str, y: Any, kept: set[str]) -> tuple[str, Any]:
    """The product of two operands, summed over what is not kept."""
    a, x = _summed(a, x, kept | set(b))
    b, y = _summed(b, y, kept | set(a))
    dims = {s: d for t, z in ((b, y), (a, x)) for s, d in zip(t, z.shape, strict=True)}
    for t, z in ((a, x), (b, y)):
        dims |= {s: d for s, d in zip(t, z.shape, strict=True) if dims[s] == 1 and d != 1}
    both = [s for s in a if s in b]
    for t, z in ((a, x), (b, y)):
        if any(d == 1 and dims[s] != 1 for s, d in zip(t, z.shape, strict=True) if s in both):
            unsupported("a dim of it is 1 in one operand alone")
    batch, inner = [s for s in both if s in kept], [s for s in both if s not in kept]
    rows, columns = [s for s in a if s not in both], [s for s in b if s not in both]

    def arranged(t: str, z: Any, first: list[str], then: list[str]) -> Any:
        order = [*batch, *first, *then]
        z = ops.transpose(z, tuple(t.index(s) for s in order)) if z.ndim > 1 else z
        z = as_shape(z, tuple(dims[s] for s in order))
        return z.reshape(
            (*(dims[s] for s in batch), size_of([dims[s] for s in first]), size_of([dims[s] for s in then]))
        )

    found = product(arranged(a, x, rows, inner), arranged(b, y, inner, columns))
    order = [*batch, *rows, *columns]
    return "".join(order), found.reshape(tuple(dims[s] for s in order))
