"""Pooling: reductions over windows of the last dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import sympy

from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.dims import to_dim
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import wide
from mirage.ir.loops.program import TensorExpr, operands, reduction
from mirage.ir.loops.scalars import Scalar
from mirage.ir.operator import NUMERIC, ORDERED, Attrs, register
from mirage.ir.operators.sliding import (
    WINDOW,
    FoldOfWindows,
    apart,
    element_of,
    elements,
    lead_of,
    places_of,
    windows_of,
)
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Pool(FoldOfWindows):
    """A reduction over windows of the last dims: `x[..., *space]` gives `[..., *places]`."""

    combiner: str = field(default="sum", kw_only=True)

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        lead = lead_of(self.name, x, attrs)
        return TensorType((*x.shape[:lead], *places_of(self.name, x.shape[lead:], attrs["kernel"], attrs)), x.dtype)

    def gradient(self, b: Backward) -> Cotangents:
        (x,), g, attrs = b.types(), b.full_g(), b.attrs
        space = x.shape[lead_of(self.name, x, attrs) :]
        if self.combiner == "sum":
            reach = [(k - 1) * d for k, d in zip(attrs["kernel"], attrs["dilations"], strict=True)]
            ones = (1,) * len(reach)
            return (b.op("sum_pool", apart(b, g, attrs["strides"], space, reach), **{**attrs, "strides": ones}),)
        # the first of the largest elements of a window gets all
        found, free = None, None
        places = b.type(g).shape[lead_of(self.name, x, attrs) :]
        for starts, element in elements(b, b.args[0], attrs["kernel"], places, attrs):
            here = b.op("equal", element, b.out)
            chosen = here if free is None else b.op("logical_and", here, free)
            other = b.op("logical_not", here)
            free = other if free is None else b.op("logical_and", free, other)
            rest = [to_dim(n - start) for n, start in zip(space, starts, strict=True)]
            part = apart(b, b.where(chosen, g), attrs["strides"], rest, starts)
            found = part if found is None else b.add(found, part)
        return (found,)

    def folded(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]) -> int:
        lead, (x,) = lead_of(self.name, b.type(args[0]), attrs), args
        for window in (attrs, *further):
            x = b.op("windows", x, **window)
        return b.op(self.combiner, x, axes=tuple(range(lead, lead + len(attrs["kernel"]))))

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x = wide(arrays[0])
        kernel = attrs["kernel"]
        views = windows_of(xp, x, kernel, attrs)
        lead = (slice(None),) * (x.ndim - len(kernel))
        found: Any = None
        for at in product(*map(range, kernel)):
            part = views[(*lead, *at)]
            if found is None:
                found = part.copy()
            elif self.combiner == "sum":
                found += part
            else:
                found = xp.maximum(found, part)
        return found.astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        lead = out.rank - len(attrs["kernel"])

        def element(i: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
            return x[(*i[:lead], *element_of(i[lead:], r, attrs))]

        return reduction(out, [sympy.Integer(k) for k in attrs["kernel"]], self.combiner, element)


MAX_POOL = register(Pool("max_pool", 1, 1, WINDOW, takes=ORDERED, combiner="max"))
SUM_POOL = register(Pool("sum_pool", 1, 1, WINDOW, takes=NUMERIC, combiner="sum"))
