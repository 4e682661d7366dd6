"""`mirage.specialize`: a program of which some arguments are known, with all computed that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage.compilation import to_module
from mirage.compiler.partial.budget import BINDINGS, Budget
from mirage.compiler.partial.known import known_values
from mirage.compiler.partial.specialize import specialize_module
from mirage.errors import InputError
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import Module


def specialize(
    program: Any, known: Mapping[str, Any], *, specs: Mapping[str, Any] | None = None, limit: int = BINDINGS
) -> Module:
    """The module of a program in which parameters have these values: they are parameters no more.

    `program` and `specs` are as of `mirage.compile`, which takes the module. `known` has values by the names of parameters, as
    callers of the program pass them: arrays, numbers, tuples, lists, objects of data types. In place of an array within may stand
    its type, `mirage.tensor(1, 64)`: the tensor stays an argument, and only what it is in is known.

    Matches of known constructors, calls of known functions, recursion over known data, known conditions and short loops of known
    counts vanish; operators of known tensors are computed, where the result is not much larger than they are. What an unknown
    value decides is left, once for each known part of what it works with. `limit` is how many bindings may be written: of a
    recursion that needs more, the call is left, and the attribute `not_unrolled` of the main function, which
    `Executable.explain` shows, names it.

    Raises InputError for a name that is no parameter, or a value that is not of the parameter's type; GuardError for sizes that
    contradict each other; GraphError and others where the program fails with these values, whatever the others are.
    Source: Relay, section 4.3.
    """
    if not isinstance(known, Mapping):
        raise InputError(f"specialize: known={known!r} is not a mapping; pass {{'x': value}} for a parameter 'x'")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InputError(f"specialize: limit={limit!r} is no count of bindings; pass an integer of at least 1")
    module = to_module(program, specs)
    check(module)
    made = specialize_module(module, known_values(module, known), Budget(steps=10 * limit, bindings=limit))
    check(made)
    return made
