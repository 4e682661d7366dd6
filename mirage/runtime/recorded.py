"""Calls of functions of tensors that are recorded, and run when something needs their results: equal ones as one batched call.

The control flow of stacked functions goes on with placeholders. Calls wait in levels, each for results of lower ones alone; those
of a level that are of one function, with tensors of the same shapes and the same shared tensors, are one call of the function's
batched form, whose results they are parts of. Sources: TensorFlow Fold (Looks and others, 2017), DyNet (Neubig and others, 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from mirage.errors import FormatError, MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.runtime.leaves import Shape
from mirage.runtime.steps import Callee

#: a value without its tensors: None where one is, tuples of such for tuples
_Form: TypeAlias = "tuple[_Form, ...] | None"
#: calls that are recorded before they are run, at most: placeholders take memory, too
_MOST = 1 << 16


class Recordable(Callee, Protocol):
    """A loaded function, with its batched form where it has one."""

    batching: Batching | None


class Pending:
    """A tensor that a recorded call returns: result `leaf` of call `row` of a group."""

    __slots__ = ("group", "leaf", "row")

    def __init__(self, group: Group, row: int, leaf: int) -> None:
        self.group, self.row, self.leaf = group, row, leaf

    @property
    def shape(self) -> Shape:
        return self.group.kind.shapes[self.leaf]

    @property
    def array(self) -> np.ndarray:
        """The tensor: whatever is recorded runs first."""
        group = self.group
        if group.results is None:
            group.recorder.flush()
            assert group.results is not None
        found: np.ndarray = group.results[self.leaf][self.row]
        return found


class Kind:
    """What is known of the results of a function for arguments of some shapes."""

    def __init__(self, result: Any) -> None:
        self.form = _form(result)
        found = _flat((result,), (self.form,))
        self.shapes: list[Shape] = [a.shape for a in found]
        self.dtypes: list[np.dtype[Any]] = [a.dtype for a in found]
        self.stand_ins = [np.empty(s, t) for s, t in zip(self.shapes, self.dtypes, strict=True)]
        #: a tuple of so many tensors, or (0) another value
        self.width = len(found) if self.form is not None and not any(self.form) else 0


class Batching:
    """A function of arguments of these annotations with its batched form; `shared` as of `mirage.runtime.program.Batched`."""

    def __init__(self, function: Callee, batched: Callee, shared: Sequence[bool], annotations: Sequence[Annotation]) -> None:
        self.function, self.batched, self.shared = function, batched, shared
        forms = tuple(_form_of(a) for a in annotations)
        #: None where no argument is a tuple
        self.forms = forms if any(f is not None for f in forms) else None
        #: what is known of results, by the shapes of arguments
        self.kinds: dict[tuple[Shape, ...], Kind] = {}

    def given(self, args: list[Any]) -> list[Any]:
        """The tensors and shapes in arguments."""
        return args if self.forms is None else _flat(args, self.forms)

    def together(self, calls: Sequence[list[Any]]) -> list[np.ndarray] | None:
        """The stacked results of calls; None where they cannot be one call."""
        given = [
            settled(calls[0][k]) if same else stacked([call[k] for call in calls]) for k, same in enumerate(self.shared)
        ]
        try:
            return list(self.batched.run(given, (), None))
        except MirageError:
            # one by one, the call that is wrong says why
            return None

    def one(self, args: Sequence[Any]) -> list[np.ndarray]:
        """The results of a call by itself."""
        found = self.function.run([settled(a) for a in args], (), None)
        return _flat((found,), (_form(found),))


class Group:
    """Equal calls of one level, with their arguments; `results` are the stacked tensors once they have run."""

    __slots__ = ("args", "batching", "calls", "kind", "level", "recorder", "results")

    def __init__(self, recorder: Recorder, batching: Batching, kind: Kind, level: int) -> None:
        self.recorder, self.batching, self.kind, self.level = recorder, batching, kind, level
        #: the tensors and shapes in the arguments, and the arguments, of each call
        self.calls: list[list[Any]] = []
        self.args: list[list[Any]] = []
        self.results: list[np.ndarray] | None = None

    def run(self) -> None:
        """Compute the results; raises what the calls do."""
        many = len(self.calls)
        found = self.batching.together(self.calls) if many > 1 else None
        if found is None:
            each = [self.batching.one(args) for args in self.args]
            found = [np.stack(leaf) if many > 1 else leaf[0][None] for leaf in zip(*each, strict=True)]
        if [(a.shape, a.dtype) for a in found] != [
            ((many, *s), t) for s, t in zip(self.kind.shapes, self.kind.dtypes, strict=True)
        ]:
            raise FormatError(f"{self.batching.function}: many calls at once return other tensors; compile the program again")
        self.results = found
        self.calls, self.args = [], []


class _Site:
    """Calls of one function with the same shapes and shared values: their groups by level."""

    def __init__(self, kind: Kind, given: Sequence[Any], batching: Batching) -> None:
        self.kind = kind
        shapes = [_shape(a) for a in given]
        self.shared = [(k, given[k]) for k, same in enumerate(batching.shared) if same]
        self.varying = [(k, shapes[k]) for k, same in enumerate(batching.shared) if not same]
        self.groups: dict[int, Group] = {}

    def level(self, given: Sequence[Any]) -> int:
        """The level of a call, -1 for one that belongs elsewhere."""
        for k, value in self.shared:
            # shapes are made anew
            if given[k] is not value and (type(value) is not tuple or given[k] != value):
                return -1
        level = 0
        for k, shape in self.varying:
            a = given[k]
            if type(a) is Pending:
                group = a.group
                if group.kind.shapes[a.leaf] != shape:
                    return -1
                if group.results is None and group.level >= level:
                    level = group.level + 1
            elif a.shape != shape:
                return -1
        return level


class Recorder:
    """The calls of one run of a program, in one thread."""

    def __init__(self) -> None:
        self._sites: dict[Batching, list[_Site]] = {}
        #: groups that have not run, by level
        self._levels: dict[int, list[Group]] = {}
        self._count = 0

    def call(self, function: Recordable, args: list[Any], dims: tuple[int, ...]) -> Any:
        """The result of a call, of placeholders where it is recorded."""
        batching = function.batching
        if batching is None:
            return function.run([settled(a) for a in args], dims, None)
        given = batching.given(args)
        sites = self._sites.setdefault(batching, [])
        for site in sites:
            level = site.level(given)
            if level >= 0:
                break
        else:
            shapes = tuple(map(_shape, given))
            kind = batching.kinds.get(shapes)
            if kind is None:
                # once, to know the shapes of results
                result = function.run([settled(a) for a in args], dims, None)
                batching.kinds[shapes] = Kind(result)
                return result
            site = _Site(kind, given, batching)
            sites.append(site)
            level = site.level(given)
        group = site.groups.get(level)
        if group is None or group.results is not None:
            group = site.groups[level] = Group(self, batching, site.kind, level)
            self._levels.setdefault(level, []).append(group)
        row = len(group.calls)
        group.calls.append(given)
        group.args.append(args)
        self._count += 1
        if self._count > _MOST:
            self.flush()
        width = site.kind.width
        if width == 2:
            return Pending(group, row, 0), Pending(group, row, 1)
        if width:
            return tuple([Pending(group, row, k) for k in range(width)])
        return _placeholders(site.kind.form, iter(range(len(site.kind.shapes))), group, row)

    def flush(self) -> None:
        """Run all that is recorded."""
        levels, self._levels, self._count = self._levels, {}, 0
        for level in sorted(levels):
            for group in levels[level]:
                group.run()


def stacked(values: Sequence[Any]) -> np.ndarray:
    """Tensors of one shape in one, C-contiguous: a part of where they stand, if they stand there in order."""
    first = values[0]
    if type(first) is Pending:
        group, leaf = first.group, first.leaf
        if all(type(v) is Pending and v.group is group and v.leaf == leaf for v in values):
            assert group.results is not None
            whole, rows, start = group.results[leaf], [v.row for v in values], first.row
            return whole[start : start + len(rows)] if rows == list(range(start, start + len(rows))) else whole.take(rows, 0)
    return joined([v.array if type(v) is Pending else v for v in values])


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of one shape in one, a row each."""
    shape = arrays[0].shape
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.array(arrays)


def settled(value: Any) -> Any:
    """A value of tensors and shapes with tensors in the place of placeholders."""
    if type(value) is Pending:
        return value.array
    if type(value) is tuple:
        return tuple([settled(v) for v in value])
    return value


def settling(step: Callable[..., Any], registers: Sequence[int]) -> Callable[..., Any]:
    """A step that reads tensors in these registers."""

    def settle(held: list[Any], frame: Any) -> Any:
        for r in registers:
            held[r] = settled(held[r])
        return step(held, frame)

    return settle


def stand_ins(value: Any) -> Any:
    """A value with tensors of the same shapes in the place of placeholders, whose elements nobody may read."""
    if type(value) is Pending:
        return value.group.kind.stand_ins[value.leaf]
    if type(value) is tuple:
        return tuple([stand_ins(v) for v in value])
    return value


def _shape(value: Any) -> Shape:
    """The shape of a tensor or a placeholder, or a value that is a shape."""
    return value if type(value) is tuple else value.shape


def _form_of(annotation: Annotation) -> _Form:
    return tuple(map(_form_of, annotation.fields)) if isinstance(annotation, TupleType) else None


def _form(value: Any) -> _Form:
    return tuple(map(_form, value)) if type(value) is tuple else None


def _flat(values: Sequence[Any], forms: Sequence[_Form]) -> list[Any]:
    found: list[Any] = []
    for value, form in zip(values, forms, strict=True):
        if form is None:
            found.append(value)
        else:
            found += _flat(value, form)
    return found


def _placeholders(form: _Form, leaves: Any, group: Group, row: int) -> Any:
    if form is None:
        return Pending(group, row, next(leaves))
    return tuple([_placeholders(f, leaves, group, row) for f in form])
