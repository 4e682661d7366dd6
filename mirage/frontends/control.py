"""Control flow that depends on data: `cond` and `loop`, whose branches and bodies become functions of the module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage.errors import MirageError
from mirage.frontends.graph import GraphTrace, UnknownResult, graph_trace
from mirage.frontends.proxy import Operand, Proxy, caller, fail, located
from mirage.frontends.trace import program_name
from mirage.ir.annotations import Annotation, TupleType, symbols_in, without_symbols
from mirage.ir.dims import Dim, DimLike, symbol, symbols_of, to_dim
from mirage.ir.graph.deduce import located as with_line
from mirage.ir.graph.fit import join
from mirage.ir.graph.nodes import Atom, FunctionCall, If, Loop
from mirage.ir.types import TensorType

_INDEX = TensorType((), "int64")


def cond(pred: Proxy, then: Callable[..., Any], orelse: Callable[..., Any], *operands: Operand) -> Any:
    """`then(*operands)` where the boolean scalar `pred` holds, else `orelse(*operands)`; only one of them runs.

    Both are Python functions that return values of the same kind; they may use tensors of the functions around them. Dims
    in which the results differ are unknown in the result. Raises GraphError where the results cannot be one value.
    """
    t = graph_trace("cond")
    where = caller()
    if isinstance(pred, bool):
        fail(f"cond: the condition is {pred}, which is known now; use Python's `if`")
    if not isinstance(pred, Proxy) or pred.annotation != TensorType((), "bool"):
        fail(f"cond: the condition is {pred!r}, not a boolean scalar; compare, and reduce with .any() or .all()")
    condition = t.value("cond", pred)
    atoms = tuple(t.value(f"cond: operand {i}", x) for i, x in enumerate(operands))
    given = [a.annotation for a in atoms]
    parts = branches(t, [(hint(fn, h), fn, _named(t, fn, given)) for fn, h in ((then, "then"), (orelse, "orelse"))])
    known = [part for part in parts if part is not None]
    captured, dims = t.close(known, [len(atoms)] * len(known))
    names, sizes = [inside.name for inside, _ in known], tuple(map(symbol, dims))
    if len(known) == 1:
        return t.wrap(t.emit(FunctionCall(names[0], (*atoms, *captured), sizes), where))
    return t.wrap(t.emit(If((condition, *atoms, *captured), names[0], names[1], sizes), where))


def branches(
    t: GraphTrace, cases: Sequence[tuple[str, Callable[..., Any], Mapping[str, Annotation]]]
) -> list[tuple[GraphTrace, Atom] | None]:
    """The traces and results of branches: a hint for the name, the function, its parameters.

    While the result of a function that calls itself is sought, those that need it are None: the others tell what it is.
    """
    parts: list[tuple[GraphTrace, Atom] | None] = []
    unknown: UnknownResult | None = None
    for case in cases:
        try:
            parts.append(t.inner(*case))
        except UnknownResult as e:
            parts.append(None)
            unknown = e.with_traceback(None)
    if unknown is not None and not any(parts):
        raise unknown
    return parts


def loop(
    count: DimLike | Proxy,
    body: Callable[..., Any],
    *carried: Operand,
    invariant: Sequence[Operand] = (),
    bound: DimLike | None = None,
) -> Any:
    """`count` times `carried = body(i, *carried, *invariant)`, i = 0, 1, ... as an int64 scalar; returns the carried values.

    `count` is an integer, a dim, or an int64 scalar tensor, which is at most `bound`. `body` may use tensors of the functions
    around it. A carried dim that the body changes is unknown in the body and in the result. One carried value is passed and
    returned by itself, several as a tuple. Raises TraceError for a body that returns another number of values.
    """
    t = graph_trace("loop")
    where = caller()
    if not carried:
        fail("loop: nothing is carried; pass the values that the body changes")
    times, counter = _count(t, count)
    limit: Dim | None = None
    with located():
        if bound is not None:
            limit = to_dim(bound, "loop: bound")
            t.check_symbols(symbols_of(limit))
        elif counter is not None:
            fail("loop: the count is a tensor, and without bound; pass bound=, the most that it may be")
    first = tuple(t.value(f"loop: carried value {i}", x) for i, x in enumerate(carried))
    fixed = tuple(t.value(f"loop: invariant {i}", x) for i, x in enumerate(invariant))
    state = [a.annotation for a in first]
    restore = t.module.snapshot()
    while True:
        given = [_INDEX, *state, *(a.annotation for a in fixed)]
        inside, result = t.inner(hint(body, "body"), body, _named(t, body, given))
        after = _next_state(t, inside.name, state, result, where)
        if after == state:
            break
        # what the first round returns is less known than what went in, and goes into the second one
        restore()
        state = after
    captured, dims = t.close([(inside, result)], [len(given)])
    args = (*(() if counter is None else (counter,)), *first, *fixed, *captured)
    call = Loop(inside.name, args, len(first), times, limit, tuple(map(symbol, dims)))
    return t.wrap(t.emit(call, where))


def _count(t: GraphTrace, count: Any) -> tuple[Dim | None, Atom | None]:
    if isinstance(count, Proxy):
        if count.annotation not in (_INDEX, TensorType((), "int32")):
            fail(f"loop: the count is {count!r}, not an int64 scalar; cast and reshape it")
        return None, t.value("loop: the count", count)
    with located():
        times = to_dim(count, "loop: count")
    t.check_symbols(symbols_of(times))
    return times, None


def _next_state(t: GraphTrace, body: str, state: Sequence[Annotation], result: Atom, where: str) -> list[Annotation]:
    """What is known of the carried values before any round, given that before one round and its result."""
    found = result.annotation
    found = without_symbols(found, symbols_in(found) - t.scope)
    fields = found.fields if isinstance(found, TupleType) and len(state) > 1 else (found,)
    if len(fields) != len(state):
        fail(f"loop: {body} returns {len(fields)} values for {len(state)} carried ones; return one for each, in order")
    try:
        return [
            join(a, b, f"loop: carried value {i} of {body}") for i, (a, b) in enumerate(zip(state, fields, strict=True))
        ]
    except MirageError as e:
        raise with_line(e, where) from None


def hint(fn: Any, otherwise: str) -> str:
    name = program_name(fn) if callable(fn) else otherwise
    return otherwise if name == "program" else name


def _named(t: GraphTrace, fn: Callable[..., Any], annotations: Sequence[Annotation]) -> Mapping[str, Annotation]:
    """The parameters of a branch or body: under its own names where it has as many and no dim has them."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = []
    if len(names) != len(annotations) or not t.scope.isdisjoint(names):
        names = [f"arg{i}" for i in range(len(annotations))]
    return dict(zip(names, annotations, strict=True))
