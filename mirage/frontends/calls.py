"""Casts, shapes, and calls of registered functions in graph functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from mirage.errors import TraceError
from mirage.frontends.annotate import Spec, annotation
from mirage.frontends.graph import graph_trace
from mirage.frontends.proxy import TRACE, Operand, Proxy, Traced, caller, fail, located
from mirage.frontends.tensors import Shape
from mirage.ir.annotations import ShapeType, dims_of, symbols_in
from mirage.ir.dims import DimLike, to_dim
from mirage.ir.graph.fit import check_cast
from mirage.ir.graph.nodes import LibraryCall, MatchCast, ShapeCall, ShapeOf, ShapeValue
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType


def match_cast(x: Traced, spec: Spec) -> Any:
    """`x` as a value of type `spec`, checked at run time; dim symbols that are new in the function are introduced.

    `match_cast(x, tensor("m", 4))` is how a function names the dims of a result whose shape depends on data. Raises
    GraphError where `x` can never be of that type.
    """
    t = graph_trace("match_cast")
    if not isinstance(x, Traced):
        fail(f"match_cast: a {type(x).__name__} is no traced value; pass what is computed from the parameters")
    with located():
        wanted = annotation("match_cast: the type", spec)
        atom = t.value("match_cast", x)
        check_cast(atom.annotation, wanted, "match_cast: the value")
        alone = {d.name for d in dims_of(wanted) if d.is_Symbol}
        for name in sorted(symbols_in(wanted) - t.scope - alone):
            raise TraceError(f"match_cast: to {wanted}: no dim is {name!r} alone; give the dim a name of its own")
    return t.wrap(t.emit(MatchCast((atom,), wanted), caller()))


def shape(*dims: DimLike | None) -> Any:
    """A shape as a value, `shape("n", "2*m")`; as the type of a parameter or in `match_cast`, a dim may be None: unknown."""
    with located():
        known = tuple(None if d is None else to_dim(d, f"shape(), dim {i}") for i, d in enumerate(dims))
    trace = TRACE.get(None)
    if trace is None or trace.graph is None or None in known:
        return ShapeType(known)
    return Shape(trace, ShapeValue(tuple(d for d in known if d is not None)))


def shape_of(x: Proxy) -> Shape:
    """The shape of a tensor as a value, also where dims are only known at run time."""
    t = graph_trace("shape_of")
    if not isinstance(x, Proxy):
        fail(f"shape_of: a {type(x).__name__} is no traced tensor; pass what is computed from the parameters")
    found: Shape = t.wrap(t.emit(ShapeOf((t.value("shape_of", x),)), caller()))
    return found


def call_shape(name: str, *shapes: Any, rank: int) -> Shape:
    """The result of a registered shape function, a Python function from shapes to a shape of `rank` dims.

    The dims are unknown: `match_cast` gives them names. Raises TraceError for arguments that are no shapes.
    """
    t = graph_trace("call_shape")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        fail(f"call_shape: rank={rank!r} is not a number of dims; pass an integer >= 0")
    what = f"call_shape of {name}"
    atoms = tuple(t.value(what, s, ShapeType(None)) for s in shapes)
    for a in atoms:
        if not isinstance(a.annotation, ShapeType):
            fail(f"{what}: {a.annotation} is no shape; pass mirage.shape_of(x) or mirage.shape(...)")
    found: Shape = t.wrap(t.emit(ShapeCall(checked_name(what, name), atoms, rank), caller()))
    return found


def call_library(name: str, *args: Operand, out: Spec, **attrs: Any) -> Any:
    """The tensors that a registered library function writes: of type `out`, one `tensor(...)` or a tuple of them.

    Raises TraceError where their shapes are not known before the call.
    """
    t = graph_trace("call_library")
    what = f"call_library of {name}"
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    found: list[TensorType] = []
    for o in outs:
        if not isinstance(o, TensorType):
            fail(f"{what}: out={o!r} is not a tensor of known shape; pass out=mirage.tensor(...)")
        found.append(o)
    atoms = tuple(t.value(f"{what}: argument {i}", a) for i, a in enumerate(args))
    return t.wrap(t.emit(LibraryCall(checked_name(what, name), atoms, tuple(found), attributes(what, attrs)), caller()))


def checked_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        fail(f"{what}: {name!r} is not a name; pass the name under which the function is registered")
    return name


def attributes(what: str, attrs: Mapping[str, Any]) -> AttrItems:
    for key, value in attrs.items():
        for v in value if isinstance(value, tuple) else (value,):
            if not isinstance(v, bool | int | float | str | sympy.Expr):
                fail(f"{what}: {key}={value!r} is no constant; pass numbers, text, dims or tuples of them")
    return tuple(attrs.items())
