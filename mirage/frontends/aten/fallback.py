"""Operators without a lowering: one call of ATen's own, within a compiled program.

The program names the operator and has its arguments as JSON: `{"tensor": 0}` is the first operand, `{"dim": 0}` the first dim.
Operators of pure tensors are library calls, which the compiler may move, share and leave out; those with effects, random
numbers, or other values than tensors of known types are packed calls, in the order of the graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
import torch

from mirage.errors import FormatError, InputError, UnsupportedNode
from mirage.frontends.aten.types import NAMES, annotation_of, dim_of
from mirage.frontends.calls import call_library, match_cast
from mirage.frontends.effects import call_packed
from mirage.frontends.graph import GraphTrace
from mirage.frontends.proxy import Traced
from mirage.ir.annotations import Annotation, ObjectType, ShapeType, TupleType, symbols_in, tensor_annotation
from mirage.ir.types import ELEMENTS, TensorType
from mirage.runtime.packed import register_library, register_packed

#: the name under which compiled programs call ATen
NAME = "torch.ops"
#: the one operator that may write to an operand, which is a tensor of a type that only ATen computes with
COPY = "aten.copy_.default"
#: operators that reach outside of their operands
FORBIDDEN = ("aten.from_file.",)


def call_operator(
    trace: GraphTrace, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], value: Any
) -> Any:
    """The result of an operator that ATen computes; `value` is what torch says that it gives.

    Raises UnsupportedNode for arguments that no program can hold.
    """
    _check(op)
    if str(op) == COPY and isinstance(args[0].annotation, TensorType):
        raise UnsupportedNode("its operands do not fit the effect that writes to an array")
    text = Arguments()
    attrs: dict[str, Any] = {"op": str(op), "call": json.dumps([text.encode(list(args)), text.encode(kwargs)])}
    if text.dims:
        attrs["dims"] = tuple(text.dims)
    if isinstance(value, torch.SymInt):
        found = call_packed(NAME, *text.operands, result=ShapeType((None,)), **attrs)
        return match_cast(found, ShapeType((dim_of(value),)))[0]
    returns = annotation_of(value)
    known = symbols_in(returns) <= trace.scope
    fields = returns.fields if isinstance(returns, TupleType) else (returns,)
    plain = all(isinstance(a, TensorType) for a in fields) and all(
        isinstance(x.annotation, TensorType) for x in text.operands
    )
    if plain and known and fields and is_pure(op):
        return call_library(NAME, *text.operands, out=fields if isinstance(returns, TupleType) else returns, **attrs)
    if known:
        return call_packed(NAME, *text.operands, result=returns, **attrs)
    found = call_packed(NAME, *text.operands, result=_without_new(returns, trace.scope), **attrs)
    if isinstance(returns, TupleType):
        return tuple(f if isinstance(a, ObjectType) else match_cast(f, a) for f, a in zip(found, fields, strict=True))
    return match_cast(found, returns)


def is_pure(op: torch._ops.OpOverload) -> bool:
    """Whether calls with equal operands give equal results and change nothing."""
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _without_new(annotation: Annotation, scope: set[str]) -> Annotation:
    """The annotation in which dims that only the call tells are unknown."""
    if isinstance(annotation, TupleType):
        return TupleType(tuple(_without_new(a, scope) for a in annotation.fields))
    if isinstance(annotation, TensorType):
        return tensor_annotation(
            tuple(d if {s.name for s in d.free_symbols} <= scope else None for d in annotation.shape), annotation.dtype
        )
    return annotation


class Arguments:
    """Collects the tensors and dims of a call while its arguments become JSON."""

    def __init__(self) -> None:
        self.operands: list[Any] = []
        self.dims: list[sympy.Expr] = []

    def encode(self, x: Any) -> Any:
        """An argument as JSON; raises UnsupportedNode for one that cannot be."""
        match x:
            case None | bool() | int() | float() | str():
                return x
            case Traced():
                self.operands.append(x)
                return {"tensor": len(self.operands) - 1}
            case sympy.Integer():
                return int(x)
            case sympy.Expr():
                self.dims.append(x)
                return {"dim": len(self.dims) - 1}
            case list() | tuple():
                return [self.encode(v) for v in x]
            case dict():
                return {key: self.encode(v) for key, v in x.items()}
            case complex():
                return {"complex": [x.real, x.imag]}
            case torch.dtype() | torch.layout() | torch.memory_format():
                return {"torch": str(x).removeprefix("torch.")}
            case torch.device() if x.type == "cpu":
                return {"device": "cpu"}
        raise UnsupportedNode(f"an argument of it is a {type(x).__name__}, {x!r}")


Read = Callable[[Sequence[Any], Sequence[int]], Any]


def _decoded(x: Any) -> tuple[bool, Any]:
    """Whether an argument is a constant; and the constant, or what reads it from tensors and dims."""
    match x:
        case {"tensor": int() as k}:
            return False, lambda tensors, dims: tensors[k]
        case {"dim": int() as k}:
            return False, lambda tensors, dims: dims[k]
        case {"complex": [real, imag]}:
            return True, complex(real, imag)
        case {"torch": str() as name} if isinstance(
            found := getattr(torch, name, None), torch.dtype | torch.layout | torch.memory_format
        ):
            return True, found
        case {"device": "cpu"}:
            return True, torch.device("cpu")
        case dict():
            raise FormatError(f"{NAME}: {x} is no argument")
        case list():
            parts = [_decoded(v) for v in x]
            if all(constant for constant, _ in parts):
                return True, [v for _, v in parts]
            return False, lambda tensors, dims: [v if constant else v(tensors, dims) for constant, v in parts]
    return True, x


def operator(name: str) -> torch._ops.OpOverload:
    """The operator that a program names, such as `aten.add.Tensor`; raises FormatError where there is none that may be called."""
    parts = name.split(".")
    found: Any = torch.ops
    if len(parts) == 3:
        try:
            for part in parts:
                found = getattr(found, part)
        except (AttributeError, RuntimeError):
            found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise FormatError(f"{NAME}: there is no operator {name!r}; import the library that registers it before")
    _check(found)
    return found


def _check(op: torch._ops.OpOverload) -> None:
    """Raise UnsupportedNode for an operator that programs may not call: programs come from files, too."""
    if (op._schema.is_mutable and str(op) != COPY) or str(op).startswith(FORBIDDEN):
        raise UnsupportedNode(f"{op} writes to its operands, or reaches outside of them; use a form that gives a new tensor")


@dataclass(frozen=True)
class _Prepared:
    """A call whose arguments are read.

    `run` gives what the operator gives for tensors and dims. `into` writes it to tensors, where torch has an overload for that,
    and None where it has none. `aliases`: what it gives may be memory of its operands, which is used again.
    """

    run: Callable[[Sequence[Any], Sequence[int]], Any]
    into: Callable[[Sequence[Any], Sequence[int], Sequence[torch.Tensor]], None] | None
    aliases: bool


_prepared: dict[tuple[str, str], _Prepared] = {}


def _prepare(op: str, call: str) -> _Prepared:
    """The call of an operator with arguments as JSON."""
    overload = operator(op)
    try:
        args, kwargs = json.loads(call)
        read = [_decoded(x) for x in args]
        named = {key: _decoded(x) for key, x in kwargs.items()}
    except (AttributeError, TypeError, ValueError) as e:
        raise FormatError(f"{NAME}: the arguments of {overload} cannot be read: {e}") from None
    run = _called(overload, read, named)
    aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in overload._schema.returns)
    found = _prepared[op, call] = _Prepared(run, _writing(overload, read, named), aliases)
    return found


def _called(
    op: torch._ops.OpOverload,
    read: Sequence[tuple[bool, Any]],
    named: dict[str, tuple[bool, Any]],
    results: Sequence[str] = (),
) -> Callable[..., Any]:
    """A function from tensors and dims to what an operator gives; where it writes to `results`, from tensors for these, too."""
    # calls copy what never changes, and read the rest
    given, fixed = [v for _, v in read], {key: v for key, (constant, v) in named.items() if constant}
    open_ = [(k, v) for k, (constant, v) in enumerate(read) if not constant]
    options = [(key, v) for key, (constant, v) in named.items() if not constant]
    run = op._op

    def called(tensors: Sequence[Any], dims: Sequence[int], outs: Sequence[torch.Tensor] = ()) -> Any:
        arguments, by_name = given.copy(), fixed.copy()
        for k, v in open_:
            arguments[k] = v(tensors, dims)
        for key, v in options:
            by_name[key] = v(tensors, dims)
        for key, t in zip(results, outs, strict=True):
            by_name[key] = t
        try:
            return run(*arguments, **by_name)
        except (IndexError, RuntimeError, TypeError, ValueError) as e:
            raise InputError(f"{op}: {str(e).partition(chr(10))[0]}") from e

    return called


def _writing(
    op: torch._ops.OpOverload, read: Sequence[tuple[bool, Any]], named: dict[str, tuple[bool, Any]]
) -> Callable[[Sequence[Any], Sequence[int], Sequence[torch.Tensor]], None] | None:
    """What calls the overload of an operator that writes to given tensors; None where torch has none of its own for it."""
    schema = op._schema
    arguments = [(a.name, str(a.type)) for a in schema.arguments]
    packet = op.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        names = [a.name for a in other._schema.arguments if a.is_out]
        if (
            names
            and len(names) == len(schema.returns)
            and [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out] == arguments
            # what torch derives from the operator itself copies, too
            and torch.Tag.generated not in other.tags
        ):
            return _called(other, read, named, names)
    return None


def _cloned(x: Any) -> Any:
    return [_cloned(v) for v in x] if isinstance(x, tuple | list) else x.clone() if isinstance(x, torch.Tensor) else x


def packed(*arrays: Any, op: str, call: str, dims: Sequence[int] = ()) -> Any:
    """What an operator gives, for a packed call: arrays for tensors of known types, a shape for an integer."""
    prepared = _prepared.get((op, call)) or _prepare(op, call)
    if op == COPY and isinstance(arrays[0], np.ndarray):
        raise FormatError(f"{NAME}: {op} of an array: programs write to arrays by effects of their own")
    # tensors of other types are passed on as they are, those of known ones as arrays, without gradients
    with torch.no_grad():
        found = prepared.run([to_torch(a) if isinstance(a, np.ndarray) else a for a in arrays], dims)
        return _to_numpy(_cloned(found) if prepared.aliases else found)


def library(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, op: str, call: str, dims: Sequence[int] = ()
) -> None:
    """What an operator gives, written to `outputs`."""
    prepared = _prepared.get((op, call)) or _prepare(op, call)
    tensors = [to_torch(a) for a in inputs]
    outs = [to_torch(a) for a in outputs]
    if prepared.into is not None:
        prepared.into(tensors, dims, outs)
        for t, a in zip(outs, outputs, strict=True):
            if t.shape != a.shape:
                # torch makes what it is given fit
                raise InputError(f"{op}: it gives {list(t.shape)}, where torch says {list(a.shape)}")
        return
    found = prepared.run(tensors, dims)
    for t, x in zip(outs, [found] if isinstance(found, torch.Tensor) else found, strict=True):
        t.copy_(x)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor in the memory of an array."""
    if array.dtype == ELEMENTS["bfloat16"]:
        return to_torch(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable:
        # torch has no such tensors, and warns; nothing here writes to what is only read
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """An array in the memory of a tensor without gradients."""
    brain = tensor.dtype == torch.bfloat16
    array: np.ndarray = (tensor.view(torch.int16) if brain else tensor).numpy()
    return array.view(ELEMENTS["bfloat16"]) if brain else array


class _Writable:
    """An array that may only be read, as one that may be written."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _to_numpy(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        known = x.dtype in NAMES and x.layout == torch.strided
        return to_array(x.contiguous().resolve_conj().resolve_neg()) if known else x
    if isinstance(x, tuple | list):
        return tuple(map(_to_numpy, x))
    return (x,) if isinstance(x, int) and not isinstance(x, bool) else x


register_packed(NAME, packed)
register_library(NAME, library)
