"""Products of groups of rows, each with a matrix of its own, as mixtures of experts have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy

from mirage.errors import DTypeError, InputError, ShapeError
from mirage.ir.annotations import Annotation, tensor_annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import GraphOperator, wide
from mirage.ir.operator import Attrs, register
from mirage.ir.types import DTYPES, TensorType, shape_text

#: element types of the ends of groups
ENDS = ("int32", "int64")


class GroupedMatmul(GraphOperator):
    """`x[t, k]`, whose rows lie in groups, times `w[g, k, n]`, a matrix per group: `[t, n]`.

    The rows of group j are those from `ends[j - 1]`, or 0, to `ends[j]`; groups may have none, and rows from `ends[g - 1]` on
    give 0. A run raises InputError where ends decrease or exceed t.
    Source: MegaBlocks (Gale et al., 2022), section 3; as `torch.nn.functional.grouped_mm` and `jax.lax.ragged_dot`.
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, w, ends = types
        both = f"x [{shape_text(x.shape)}] and w [{shape_text(w.shape)}]"
        if x.rank != 2 or w.rank != 3 or x.shape[1] != w.shape[1]:
            raise ShapeError(f"{self.name}: {both}; they are [t, k] and [g, k, n]")
        if ends.shape != w.shape[:1]:
            raise ShapeError(f"{self.name}: {both} with ends [{shape_text(ends.shape)}]; there is one end per matrix")
        if x.dtype != w.dtype or x.dtype not in DTYPES:
            raise DTypeError(f"{self.name}: x is of {x.dtype} and w of {w.dtype}; cast them to one type of real numbers")
        if ends.dtype not in ENDS:
            raise DTypeError(f"{self.name}: ends are of {ends.dtype}; cast them to int64")
        return TensorType((x.shape[0], w.shape[2]), x.dtype)

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation((None, None), getattr(args[0], "dtype", None))

    def gradient(self, b: Backward) -> Cotangents:
        (x, w, ends), (tx, tw, te), g = b.args, b.types(), b.full_g()
        gx = gw = None
        if b.wanted[0]:
            gx = b.op(self.name, g, b.swapped(w), ends)
        if b.wanted[1]:
            # each group's product is of its own rows, and of zeros in the place of all others
            t, groups = tx.shape[0], tw.shape[0]
            at = b.op("cast", b.along(t, 1, 2), dtype=te.dtype)
            starts = b.op("concat", b.zeros(TensorType((sympy.Integer(1),), te.dtype)), ends, axis=0)
            starts = b.op("slice", starts, axes=(0,), starts=(0,), stops=(groups,))
            start, end = (b.reshape(edge, (groups, sympy.Integer(1))) for edge in (starts, ends))
            own = b.op("logical_and", b.op("greater_equal", at, start), b.op("less", at, end))
            rows = b.op("where", b.reshape(own, (groups, sympy.Integer(1), t)), b.swapped(x), 0)
            gw = b.op("matmul", rows, g)
        return gx, gw, None

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, w, ends = arrays
        out = xp.zeros((x.shape[0], w.shape[2]), x.dtype)
        start = 0
        for weights, end in zip(w, check_ends(self.name, ends, x.shape[0]), strict=True):
            out[start:end] = (wide(x[start:end]) @ wide(weights)).astype(x.dtype, copy=False)
            start = end
        return out


def check_ends(op: str, ends: Any, rows: int) -> list[int]:
    """The ends of groups of rows; raises InputError where one is not among the rows, or before the last."""
    found: list[int] = ends.tolist()
    if found and (found[0] < 0 or found[-1] > rows or bool(np.any(np.diff(found) < 0))):
        raise wrong_ends(op, rows)
    return found


def wrong_ends(op: str, rows: int) -> InputError:
    """The error of groups that do not lie among the rows one after the other."""
    return InputError(f"{op}: ends of groups of {rows} rows have to be 0 to {rows}, and none before the last")


GROUPED_MATMUL = register(GroupedMatmul("grouped_matmul", 3, 3))
