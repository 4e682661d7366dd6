"""Programs from Python functions: the function runs once, on stand-ins that record what it computes."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from mirage.errors import MirageError, TraceError
from mirage.frontends.proxy import TRACE, Proxy, Trace, Traced, fail, raised_at
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType


class ProgramTrace:
    """Records a program."""

    #: not a function of a graph
    graph = None

    def __init__(self, name: str) -> None:
        self.builder = ProgramBuilder(name)

    @property
    def name(self) -> str:
        return self.builder.name

    def call(self, op: str, operands: Sequence[int], attrs: Mapping[str, Any], where: str) -> int:
        return self.builder.op(op, *operands, where=where, **attrs)

    def wrap(self, value: int) -> Proxy:
        return Proxy(self, value)

    def annotation(self, value: int) -> TensorType:
        return self.builder.type(value)

    def adopt(self, name: str, value: Traced) -> int:
        if value._trace is not self:
            fail(f"{name}: {value!r} belongs to another trace; pass it as an argument of this function")
        return int(value._value)

    def array(self, name: str, array: np.ndarray) -> NoReturn:
        fail(f"{name}: an array of shape {array.shape} as an operand; make it a parameter of the function")


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
    t = ProgramTrace(name)
    result = record(t, fn, (), {p: t.wrap(t.builder.input(p, s)) for p, s in specs.items()})
    return t.builder.finish([_index(t, r) for r in (result if isinstance(result, tuple | list) else [result])])


def record(t: Trace, fn: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What `fn` returns for these stand-ins, what it computes being recorded; other exceptions than ours get a note."""
    token = TRACE.set(t)
    try:
        return fn(*args, **named)
    except MirageError:
        raise
    except Exception as e:
        if isinstance(e, TypeError) and "truth value of Relational" in str(e):
            # sympy's refusal to compare what is not known
            raise TraceError(
                f"{raised_at(e)}: {e}; a dim has no value while {t.name} is traced: move this decision out of the function, or "
                "use mirage.cond with mirage.dim_value"
            ) from None
        e.add_note(f"raised by {t.name} while mirage traced it")
        raise
    finally:
        TRACE.reset(token)


def program_name(fn: Callable[..., Any], name: object = None) -> str:
    """The name of a function's program, "program" for a lambda; raises TraceError where `name` is no identifier."""
    if name is None:
        name = getattr(fn, "__name__", "program")
        return str(name) if str(name).isidentifier() else "program"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise TraceError(f"trace: name={name!r} is not an identifier; use letters, digits and _")
    return name


def check_parameters(fn: Callable[..., Any], name: str, typed: Collection[str]) -> None:
    """Raises TraceError unless these are parameters of `fn`, can be passed by name, and all others have defaults."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise TraceError(f"{name}: has no signature to read; wrap it in a Python function") from None
    for p in parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise TraceError(f"{name}: parameter {p} cannot be traced; drop *, ** and / from the parameters")
        if p.name not in typed and p.default is p.empty:
            raise TraceError(f"{name}: parameter {p.name!r} has no type; pass {p.name}=tensor(...)")
    for p_name in typed:
        if p_name not in parameters:
            wanted = ", ".join(parameters) or "none"
            raise TraceError(f"{name}: a type is given for {p_name!r}, but the parameters are: {wanted}")


def _check_specs(fn: Callable[..., Any], name: str, specs: dict[str, TensorType]) -> None:
    check_parameters(fn, name, specs)
    for p_name, spec in specs.items():
        if not isinstance(spec, TensorType):
            raise TraceError(f"{name}: {p_name}={spec!r} is not a tensor type; pass {p_name}=tensor(...)")


def _index(t: ProgramTrace, value: object) -> int:
    if not isinstance(value, Proxy):
        raise TraceError(
            f"{t.name}: returns a {type(value).__name__}; "
            "return a tensor, or a tuple of tensors, computed from the parameters"
        )
    if value._trace is not t:
        raise TraceError(f"{t.name}: returns {value!r} of another trace; return what is computed here")
    return int(value._value)
