"""Partially static values: what is known of a value, beside what holds it where a program is run.

A constructor, a tuple or a function as a value is known while its fields are not. So known and unknown parts of a value are kept
apart, and what is known is put into the program only where something unknown needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from mirage.ir.annotations import Annotation
from mirage.ir.graph.nodes import Atom, Closure, Constant, Construct, MakeTuple, OpCall, ReferenceCall, Var

#: how a value is made of its parts: an expression without its operands
Form: TypeAlias = Construct | MakeTuple | Closure | OpCall | ReferenceCall


@dataclass(eq=False, slots=True)
class Value:
    """A value in a function that is being written.

    `atom` holds it there, if it has been put there. `form`, where known, makes it of its `parts`: a constructor, a tuple, a
    function as a value, a scalar constant, or a reference, whose part is what it held at first. A tensor is known if its atom is
    a constant. `name` and `where` are for the binding that it becomes.
    """

    annotation: Annotation
    atom: Atom | None = None
    form: Form | None = None
    parts: tuple[Value, ...] = ()
    name: str = "v"
    where: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference of which every read and write is known."""
        return isinstance(self.form, ReferenceCall)

    @property
    def is_structure(self) -> bool:
        """Whether it is known to be of a constructor, a function or a reference, or a tuple with one."""
        if isinstance(self.form, MakeTuple):
            return any(p.is_structure for p in self.parts)
        return isinstance(self.form, Construct | Closure | ReferenceCall)

    @property
    def array(self) -> np.ndarray | None:
        """The elements of a known tensor."""
        return self.atom.array if isinstance(self.atom, Constant) else None

    @property
    def decides(self) -> bool:
        """Whether it is known and may decide what is computed next: a form, or a known integer or truth value."""
        return self.form is not None or is_control(self.array)


def is_control(array: np.ndarray | None) -> bool:
    """Whether a known tensor is of the kind that conditions and counts are made of."""
    return array is not None and array.ndim == 0 and array.dtype.kind in "biu"


def known_form(value: Value, kind: type) -> bool:
    """Whether a value is known to be made by this kind of expression."""
    return isinstance(value.form, kind)


def operands(parts: Iterable[Value]) -> tuple[Var, ...]:
    """Variables that stand for values where only annotations matter."""
    return tuple(Var(p.name, p.annotation) for p in parts)


def in_order(values: Sequence[Value], parts: Callable[[Value], Sequence[Value]]) -> list[Value]:
    """The values and all parts of them, once each, parts first. Nothing here recurs: data may be deep."""
    found: dict[Value, None] = {}
    for root in values:
        stack = [(root, False)]
        while stack:
            v, opened = stack.pop()
            if v in found:
                continue
            if opened:
                found[v] = None
                continue
            stack.append((v, True))
            stack += [(p, False) for p in reversed(parts(v)) if p not in found]
    return list(found)


@dataclass(frozen=True)
class Closed:
    """Values that go from one function to another: what is known of them, and `leaves`, the unknown parts.

    `key` is the same for values of which the same is known, whose leaves have the same annotations.
    """

    values: tuple[Value, ...]
    order: tuple[Value, ...]
    leaves: tuple[Value, ...]
    key: tuple[object, ...]

    def opened(self, given: Sequence[Value]) -> list[Value]:
        """The values in another function, where their leaves are these."""
        new = dict(zip(self.leaves, given, strict=True))
        for v in self.order:
            if v not in new:
                atom = v.atom if v.form is None else None
                new[v] = replace(v, atom=atom, parts=tuple(new[p] for p in v.parts))
        return [new[v] for v in self.values]


def close(values: Sequence[Value], *, arrays: bool) -> Closed:
    """What is known of values, apart from what is not. Known tensors are leaves, but for what decides, unless `arrays`.

    So are references: other functions may write to them.
    """

    def is_leaf(v: Value) -> bool:
        if v.form is not None:
            return v.is_reference
        return v.array is None or not (arrays or is_control(v.array))

    order = in_order(values, lambda v: () if is_leaf(v) else v.parts)
    at = {v: k for k, v in enumerate(order)}
    leaves = tuple(v for v in order if is_leaf(v))
    own = set(leaves)
    key = tuple(v.annotation if v in own else (_form_key(v), tuple(at[p] for p in v.parts)) for v in order)
    return Closed(tuple(values), tuple(order), leaves, (key, tuple(at[v] for v in values)))


def _form_key(v: Value) -> object:
    """What tells the forms of values apart."""
    if v.array is not None:
        a = v.array
        return (str(a.dtype), a.shape, a.tobytes() if a.nbytes <= 64 else id(a))
    form = v.form
    match form:
        case Construct(data, index):
            return data.name, index
        case Closure(function, dims=dims):
            return function, dims
        case OpCall(op, attrs=attrs):
            return op, attrs
    return "tuple"


class Structures:
    """Numbers of known structures: two values with one number have the same forms."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def numbers(self, value: Value) -> tuple[int, set[int]]:
        """The number of a value, and those of what is inside of it; an unknown one has 0."""
        found: dict[Value, int] = {}
        order = in_order([value], lambda v: v.parts if not v.is_reference else ())
        for v in order:
            if (v.form is None and v.array is None) or v.is_reference:
                found[v] = 0
                continue
            key = (_form_key(v), tuple(found[p] for p in v.parts))
            found[v] = self._numbers.setdefault(key, len(self._numbers) + 1)
        return found[value], {found[v] for v in order if v is not value}
