"""Programs from Python functions: the function runs once, on stand-ins that record what it computes."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any

from mirage.errors import MirageError, TraceError
from mirage.frontends.proxy import BUILDER, Proxy
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType


def trace(fn: Callable[..., Any], /, name: str | None = None, **specs: TensorType) -> Program:
    """The program that `fn` computes, for arguments of the types `specs`.

    `specs` gives each parameter of `fn` its type: `trace(f, x=tensor("b", 4096), w=tensor(4096, "4*n"))`; a
    parameter with a default that has no spec keeps the default. `fn` returns a tensor, or a tuple or list of
    them. Python control flow runs at trace time. `name` defaults to the function's.

    Raises TraceError where the function cannot be recorded, and errors of operators (ShapeError and others)
    with the line of `fn` in front. Other exceptions of `fn` propagate.
    """
    if not callable(fn):
        raise TraceError(f"trace: {fn!r} is not a function")
    name = program_name(fn, name)
    _check_specs(fn, name, specs)
    b = ProgramBuilder(name)
    args = {p: Proxy(b, b.input(p, t)) for p, t in specs.items()}
    token = BUILDER.set(b)
    try:
        result = fn(**args)
    except MirageError:
        raise
    except Exception as e:
        e.add_note(f"raised by {name} while mirage traced it")
        raise
    finally:
        BUILDER.reset(token)
    return b.finish([_index(b, r) for r in (result if isinstance(result, tuple | list) else [result])])


def program_name(fn: Callable[..., Any], name: object = None) -> str:
    """The name of a function's program, "program" for a lambda; raises TraceError where `name` is no identifier."""
    if name is None:
        name = getattr(fn, "__name__", "program")
        return str(name) if str(name).isidentifier() else "program"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise TraceError(f"trace: name={name!r} is not an identifier; use letters, digits and _")
    return name


def _check_specs(fn: Callable[..., Any], name: str, specs: dict[str, TensorType]) -> None:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise TraceError(f"{name}: has no signature to read; wrap it in a Python function") from None
    for p in parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise TraceError(f"{name}: parameter {p} cannot be traced; drop *, ** and / from the parameters")
        if p.name not in specs and p.default is p.empty:
            raise TraceError(f"{name}: parameter {p.name!r} has no type; pass {p.name}=tensor(...)")
    for p_name, spec in specs.items():
        if p_name not in parameters:
            wanted = ", ".join(parameters) or "none"
            raise TraceError(f"{name}: a type is given for {p_name!r}, but the parameters are: {wanted}")
        if not isinstance(spec, TensorType):
            raise TraceError(f"{name}: {p_name}={spec!r} is not a tensor type; pass {p_name}=tensor(...)")


def _index(b: ProgramBuilder, value: object) -> int:
    if not isinstance(value, Proxy):
        raise TraceError(
            f"{b.name}: returns a {type(value).__name__}; "
            "return a tensor, or a tuple of tensors, computed from the parameters"
        )
    if value._builder is not b:
        raise TraceError(f"{b.name}: returns {value!r} of another trace; return what is computed here")
    return value._index
