"""Lowerings: what an operator of ATen is in the graph IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import sympy
import torch

from mirage.frontends.array_ops import dim_value
from mirage.frontends.aten.types import NAMES
from mirage.frontends.graph import GraphTrace
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import as_tensor, unsupported
from mirage.frontends.proxy import Traced
from mirage.frontends.tensors import GraphTensor
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.types import DTYPES, ELEMENTS, TensorType


@dataclass(frozen=True)
class Call:
    """One call of an ATen operator: what its lowering may ask about it.

    `returns` is the annotation of what torch says that it gives: the lowering gives the same.
    """

    name: str
    trace: GraphTrace
    returns: Annotation

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of its results; raises UnsupportedNode for tensors that the graph IR does not compute with."""
        found = self.returns.fields if isinstance(self.returns, TupleType) else (self.returns,)
        return tuple(t if isinstance(t, TensorType) else unsupported(f"a result of it is {t}") for t in found)

    @property
    def result(self) -> TensorType:
        """The type of its only, or first, result."""
        return self.results[0]

    @property
    def dtype(self) -> str:
        return self.result.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Dims of the result: integers where literal, else expressions."""
        return tuple(int(d) if d.is_Integer else d for d in self.result.shape)

    def tensor(self, x: Any, dtype: str | None = None) -> GraphTensor:
        """A tensor or a number as a tensor, of the result's element type if no other is given."""
        wanted = dtype or self.dtype
        if isinstance(x, GraphTensor):
            return x if x.dtype == wanted else as_tensor(cast(x, wanted))
        if isinstance(x, sympy.Expr) and not x.is_Number:
            return self.tensor(dim_value(x), wanted)
        if isinstance(x, Traced | complex):
            unsupported(f"{x!r} is not of an element type that is computed with")
        array = np.asarray(int(x) if isinstance(x, sympy.Integer) else x)
        return as_tensor(self.trace.wrap(self.trace.array(self.name, array.astype(ELEMENTS[wanted]))))

    def number(self, x: Any, dtype: str | None = None) -> Any:
        """An operand beside tensors of an element type: a number stays one where the operator takes it."""
        wanted = dtype or self.dtype
        literal = isinstance(x, int) or (isinstance(x, float) and isfinite(x) and wanted in DTYPES)
        if isinstance(x, bool) or not (literal or isinstance(x, sympy.Expr)) or wanted == "bool":
            return self.tensor(x, wanted)
        return x

    def promoted(self, *xs: Any) -> tuple[Any, ...]:
        """Operands of one element type, as torch promotes them: tensors before numbers, those with dims before those without."""
        wanted = promoted_type(xs)
        return tuple(self.number(x, wanted) for x in xs)


def promoted_type(xs: Iterable[Any]) -> str:
    """The element type to which torch promotes operands: that of tensors with dims, unless those without, or numbers, are of a
    higher kind (booleans, integers, floats).
    """
    ranked: list[torch.dtype | None] = [None, None, None]
    for x in xs:
        place, dtype = _rank(x)
        ranked[place] = dtype if ranked[place] is None else torch.promote_types(ranked[place], dtype)
    found = _combined(ranked[0], _combined(ranked[1], ranked[2]))
    assert found is not None, "an operator has operands"
    return NAMES[found] if found in NAMES else unsupported(f"operands become {found}")


def _rank(x: Any) -> tuple[int, torch.dtype]:
    if isinstance(x, GraphTensor):
        return int(x.ndim == 0), getattr(torch, x.dtype)
    if isinstance(x, bool):
        return 2, torch.bool
    return 2, torch.int64 if isinstance(x, int | sympy.Expr) else torch.get_default_dtype()


def _combined(first: torch.dtype | None, then: torch.dtype | None) -> torch.dtype | None:
    if first is None or then is None:
        return first or then
    higher = then.is_floating_point and not first.is_floating_point
    return torch.promote_types(first, then) if higher or first == torch.bool else first


Lowering: TypeAlias = Callable[..., Any]
#: name of an overload, such as "add.Tensor", "exp" for the default one, with the namespace before it if that is not ATen's ->
#: the function that gives, from the call and its operands, the result: a tensor, or a tuple of them
LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Decorator: the function lowers these overloads."""

    def decorate(fn: Lowering) -> Lowering:
        add(dict.fromkeys(names, fn))
        return fn

    return decorate


def add(lowerings: dict[str, Lowering]) -> None:
    """Add lines to the table; an overload is lowered in one place."""
    for name, fn in lowerings.items():
        assert name not in LOWERINGS, f"{name} is lowered twice"
        LOWERINGS[name] = fn
