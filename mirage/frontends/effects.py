"""Effects in graph functions: tensors that are written to in place, and registered Python functions.

Effects happen in the order in which the function makes them. Each returns the tensor that it wrote to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage.frontends.annotate import Spec, annotation
from mirage.frontends.calls import attributes, checked_name
from mirage.frontends.graph import graph_trace
from mirage.frontends.proxy import Operand, Proxy, Scalar, caller, fail, located, operand
from mirage.ir.dims import DimLike
from mirage.ir.graph.nodes import PackedCall, Var
from mirage.ir.operators.in_place import get_effect


def update_(x: Proxy, window: Operand, start: Sequence[DimLike]) -> Proxy:
    """Write `window` into `x`, in place: the window begins at `start`, a position per dim, and has to lie within `x`.

    A parameter that is written to is the caller's array.
    """
    return _effect("update_slice_", x, window, starts=tuple(start))


def scatter_(x: Proxy, indices: Operand, values: Operand, axis: int = 0) -> Proxy:
    """Write `values`, which broadcast, to `take(x, indices, axis)`, in place; the later of two that go to one place stays."""
    return _effect("scatter_", x, indices, values, axis=axis)


def copy_(x: Proxy, y: Operand) -> Proxy:
    """Write `y`, which broadcasts to `x`, over `x`, in place."""
    return _effect("copy_", x, y)


def add_(x: Proxy, y: Operand) -> Proxy:
    """Add `y`, which broadcasts to `x`, to `x`, in place."""
    return _effect("add_", x, y)


def fill_(x: Proxy, value: Scalar) -> Proxy:
    """Write a number to every element of `x`, in place."""
    return _effect("fill_", x, value=value)


def _effect(name: str, x: Proxy, *operands: Operand, **attrs: Any) -> Proxy:
    t = graph_trace(name)
    target = t.adopt(name, x) if isinstance(x, Proxy) else None
    if not isinstance(target, Var):
        fail(f"{name}: {x!r} cannot be written to; pass a tensor computed from the parameters")
    atoms = (target, *(operand(t, name, y) for y in operands))
    effect = get_effect(name)
    with located():
        checked = effect.check_attrs(attrs)
        returns = effect.annotate([a.annotation for a in atoms], checked)
    found: Proxy = t.wrap(t.emit(PackedCall(name, atoms, returns, tuple(checked.items()), (0,)), caller()))
    return found


def call_packed(name: str, *args: Operand, result: Spec, in_place: Sequence[int] = (), **attrs: Any) -> Any:
    """The result, of type `result`, of a registered Python function that may have effects; calls run in the order written.

    `in_place` are the positions of the arguments that it writes to. Raises TraceError for a position that no tensor is at.
    """
    t = graph_trace("call_packed")
    what = f"call_packed of {name}"
    with located():
        returns = annotation(f"{what}: result", result)
    atoms = tuple(t.value(f"{what}: argument {i}", a) for i, a in enumerate(args))
    for i in in_place:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(args) or not isinstance(args[i], Proxy):
            fail(f"{what}: in_place={i!r} is not the position of a tensor; the arguments are counted from 0")
    call = PackedCall(checked_name(what, name), atoms, returns, attributes(what, attrs), tuple(in_place))
    return t.wrap(t.emit(call, caller()))
