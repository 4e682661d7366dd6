"""Convolution: products of windows of the last dims with weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import sympy

from mirage.errors import AttributeValueError, ShapeError
from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.dims import Dim, to_dim
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import wide
from mirage.ir.loops.program import TensorExpr, operands, reduction
from mirage.ir.loops.scalars import Scalar, size
from mirage.ir.operator import FLOATING, Attribute, Attrs, register, same_dtype
from mirage.ir.operators.sliding import FoldOfWindows, apart, element_of, elements, places_of, windows_of
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import TensorType, is_one, shape_text

#: operands of one concat
_JOINED = 16
#: bytes of the patches that are laid out as a matrix at a time
_PATCH_BYTES = 32 << 20


class Convolution(FoldOfWindows):
    """Products of windows with weights, summed: `x[b, groups * c, *space]`, `w[o, c, *kernel]` give `[b, o, *places]`.

    Results `o // groups` at a time are those of one group of channels of `x`. Nothing is flipped: a cross-correlation. To the
    search it is a product of matrices: of the weights, and of the windows.
    """

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        if attrs["groups"] < 1:
            raise AttributeValueError(f"{self.name}: groups={attrs['groups']} is not positive")
        return attrs

    def _kernel(self, w: TensorType) -> tuple[int, ...]:
        if w.rank < 3 or not all(d.is_Integer and d > 0 for d in w.shape[2:]):
            raise ShapeError(
                f"{self.name}: weights [{shape_text(w.shape)}]; they are [o, c, *kernel], the kernel of literal sizes"
            )
        return tuple(int(d) for d in w.shape[2:])

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, w = types
        groups = attrs["groups"]
        if x.rank != w.rank:
            raise ShapeError(
                f"{self.name}: [{shape_text(x.shape)}] with weights [{shape_text(w.shape)}]; give both one rank"
            )
        places = places_of(self.name, x.shape[2:], self._kernel(w), attrs)
        if sympy.expand(w.shape[1] * groups) != x.shape[1] or (groups > 1 and not (w.shape[0] / groups).is_integer):
            raise ShapeError(
                f"{self.name}: {x.shape[1]} channels in {groups} groups, with weights [{shape_text(w.shape)}]; the weights' "
                "second dim is the channels of a group, and the groups divide their first"
            )
        return TensorType((x.shape[0], w.shape[0], *places), same_dtype(self.name, types))

    def window(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[Sequence[Dim], Sequence[int]]:
        x, w = types
        return x.shape[2:], self._kernel(w)

    def folded(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]) -> int:
        x, w = args
        batch, (outputs, channels, *kernel) = b.type(x).shape[0], b.type(w).shape
        groups = sympy.Integer(attrs["groups"])
        sizes = {"kernel": tuple(map(int, kernel)), "strides": attrs["strides"], "dilations": attrs["dilations"]}
        # windows of one element are the places themselves
        own = [] if all(n == 1 for n in (*kernel, *attrs["strides"])) else [sizes]
        windows = x
        for window in (*own, *further):
            windows = b.op("windows", windows, **window)
        # with windows of the result, an element of such a window and its place
        places = b.type(windows).shape[2 + len(own) * len(kernel) :]
        inner, count = to_dim(channels * sympy.prod(kernel)), to_dim(sympy.prod(places))
        lead = () if groups == 1 else (groups,)
        columns = b.op("reshape", windows, shape=(batch, *lead, inner, count))
        weights = b.op("reshape", w, shape=(*lead, to_dim(outputs / groups), inner))
        product = b.op("matmul", weights, columns)
        return b.op("reshape", product, shape=(batch, outputs, *places))

    def gradient(self, b: Backward) -> Cotangents:
        g = b.full_g()
        return self._of_x(b, g) if b.wanted[0] else None, self._of_weights(b, g) if b.wanted[1] else None

    def _of_x(self, b: Backward, g: Any) -> Any:
        """The transposed convolution: that of the cotangent, set apart, with the weights turned round."""
        x, w = b.types()
        groups, kernel, attrs = b.attrs["groups"], self._kernel(w), b.attrs
        reach = [(k - 1) * d for k, d in zip(kernel, attrs["dilations"], strict=True)]
        wide_g = apart(b, g, attrs["strides"], x.shape[2:], reach)
        outer = to_dim(w.shape[0] / groups)
        turned = b.reshape(b.args[1], (groups, outer, *w.shape[1:]))
        turned = b.op("transpose", turned, perm=(0, 2, 1, *range(3, 3 + len(kernel))))
        turned = b.reshape(turned, (x.shape[1], outer, *w.shape[2:]))
        turned = b.op("flip", turned, axes=tuple(range(2, 2 + len(kernel))))
        ones = (1,) * len(kernel)
        return b.op("convolution", wide_g, turned, strides=ones, dilations=attrs["dilations"], groups=groups)

    def _of_weights(self, b: Backward, g: Any) -> Any:
        """For each element of the window, the product of the cotangent with what that element was."""
        x, w = b.types()
        groups, kernel = sympy.Integer(b.attrs["groups"]), self._kernel(w)
        batch, places = x.shape[0], b.type(g).shape[2:]
        count, outer = to_dim(sympy.prod(places)), to_dim(w.shape[0] / groups)
        many = to_dim(batch * count)
        left = b.op("transpose", b.reshape(g, (batch, groups, outer, count)), perm=(1, 2, 0, 3))
        left = b.reshape(left, (groups, outer, many))
        found = []
        for _, element in elements(b, b.args[0], kernel, places, b.attrs):
            right = b.op("transpose", b.reshape(element, (batch, groups, w.shape[1], count)), perm=(1, 0, 3, 2))
            one = b.op("matmul", left, b.reshape(right, (groups, many, w.shape[1])))
            found.append(b.reshape(one, (w.shape[0], w.shape[1], sympy.Integer(1))))
        while len(found) > 1:
            found = [
                b.op("concat", *part, axis=2) if len(part) > 1 else part[0]
                for part in (found[k : k + _JOINED] for k in range(0, len(found), _JOINED))
            ]
        return b.reshape(found[0], w.shape)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, w = (wide(a) for a in arrays)
        groups, kernel = attrs["groups"], w.shape[2:]
        views = windows_of(xp, x, kernel, attrs)
        batch, places = x.shape[0], views.shape[2 + len(kernel) :]
        found = xp.empty((batch, w.shape[0], *places), x.dtype)
        if w.shape[1] == 1 and groups == w.shape[0]:
            # channel by channel: sums of shifted windows
            found[...] = 0
            for at in product(*map(range, kernel)):
                found += views[(slice(None), slice(None), *at)] * w[(slice(None), 0, *at)].reshape(
                    -1, *(1,) * len(kernel)
                )
            return found.astype(arrays[0].dtype, copy=False)
        inner, outer = w.shape[1] * prod(kernel), w.shape[0] // groups
        factors = w.reshape(groups, outer, inner)
        views = (
            views.reshape(batch, groups, w.shape[1], *kernel, *places) if groups == 1 else _grouped(xp, views, groups)
        )
        at_once = max(_PATCH_BYTES // max(groups * inner * prod(places) * x.itemsize, 1), 1)
        for first in range(0, batch, at_once):
            part = xp.ascontiguousarray(views[first : first + at_once])
            columns = part.reshape(part.shape[0], groups, inner, prod(places))
            found[first : first + at_once] = (factors @ columns).reshape(part.shape[0], w.shape[0], *places)
        return found.astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | None:
        x, w = operands(types)
        kernel = self._kernel(types[1])
        if not is_one(types[1].shape[1]) or types[1].shape[0] != attrs["groups"]:
            # as a product of matrices it is faster
            return None

        def element(i: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
            return x[(i[0], i[1], *element_of(i[2:], r, attrs))] * w[(i[1], size(0), *r)]

        return reduction(out, [sympy.Integer(k) for k in kernel], "sum", element)


def _grouped(xp: ArrayModule, views: Any, groups: int) -> Any:
    """A view with the channels in groups."""
    batch, channels = views.shape[:2]
    strides = (views.strides[0], views.strides[1] * (channels // groups), *views.strides[1:])
    return xp.lib.stride_tricks.as_strided(views, (batch, groups, channels // groups, *views.shape[2:]), strides)


CONVOLUTION = register(
    Convolution(
        "convolution",
        2,
        2,
        (Attribute("strides", "ints"), Attribute("dilations", "ints"), Attribute("groups", "int", 1)),
        takes=FLOATING,
    )
)
