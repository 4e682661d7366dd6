"""Programs without what they know of themselves: functions as values, references, and data that is written in the program."""

from __future__ import annotations

from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.specialize import specialize_module
from mirage.errors import MirageError
from mirage.ir.graph.functional import FUNCTIONAL
from mirage.ir.graph.nodes import Closure, Construct, Module, ReferenceCall

#: bindings that are evaluated, and that are written: a program that users have not asked to be unrolled stays small
STEPS, BINDINGS = 20_000, 1_000


def simplified(module: Module) -> Module:
    """The module with what follows from itself computed; the module as it is where that makes nothing simpler.

    It is simpler with fewer expressions that need the machine's stack.
    """
    made = sum(isinstance(b.value, Closure | Construct | ReferenceCall) for f in module for b in f.bindings)
    if not made:
        return module
    try:
        found = specialize_module(module, {}, Budget(STEPS, BINDINGS))
    except MirageError:
        # the run says so, if it gets there
        return module
    return found if _functional(found) < _functional(module) else module


def _functional(module: Module) -> int:
    """How many expressions of a module need the machine's stack."""
    return sum(isinstance(b.value, FUNCTIONAL) for f in module for b in f.bindings)
