"""Loop nests over block tensors, and the loads and stores in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage.kernels.cpu.emit.layout import BlockAxes, View, function_of
from mirage.kernels.cpu.emit.writer import Writer

Index = dict[str, str]


class Nest:
    """Prints nested loops over axes of a block; `looping` says whether inside the kernel's for-loop."""

    def __init__(self, w: Writer, axes: BlockAxes, looping: bool) -> None:
        self.w = w
        self.axes = axes
        self.looping = looping
        self.index: Index = {}

    @contextmanager
    def over(self, names: Sequence[str]) -> Iterator[None]:
        """One plain loop per axis, outermost first; none for axes of constant extent 1."""
        if not names:
            yield
            return
        a, *rest = names
        if self.axes.constant(a, self.looping) == 1:
            self.index[a] = "0"
            with self.over(rest):
                yield
            return
        i = self.index[a] = f"i_{self.axes.names[a]}"
        extent = self.axes.extent(a, self.looping)
        with self.w.block(f"for (long {i} = 0; {i} < {extent}; {i}++)"), self.over(rest):
            yield

    def vectors(self, axis: str | None, body: Callable[[str], None]) -> None:
        """Print `body(lanes)` for whole vectors along an axis and, masked, for what is left."""
        if axis is None:
            body("1")
            return
        i = self.index[axis] = f"i_{self.axes.names[axis]}"
        constant = self.axes.constant(axis, self.looping)
        extent = self.axes.extent(axis, self.looping)
        if constant is not None and constant <= 2:
            # fewer lanes than any vector has
            self.index[axis] = "0"
            with self.w.block():
                body(extent)
            return
        with self.w.block():
            self.w.line(f"long {i} = 0;")
            with self.w.block(f"for (; {i} + MI_W <= {extent}; {i} += MI_W)"):
                body("")
            with self.w.block(f"if ({i} < {extent})"):
                self.w.line(f"const int lanes = (int)({extent} - {i});")
                body("lanes")

    def parts(self, axis: str | None, body: Callable[[str, str], None]) -> None:
        """Print `body(lanes, part)` for MI_PARTS whole vectors along an axis at a time, and for what is left one by one.

        `part` is the C index of the vector's partial result.
        """
        if axis is None:
            body("1", "0")
            return
        self._several(axis, lambda each: each(body), lambda lanes: body(lanes, "0"))

    def columns(
        self,
        axis: str,
        reduce: Sequence[str],
        start: Callable[[], None],
        body: Callable[[str, str], None],
        finish: Callable[[str, str], None],
    ) -> None:
        """The same with loops over `reduce` around each body, between `start()` and `finish(lanes, part)`."""

        def whole(each: Callable[[Callable[[str, str], None]], None]) -> None:
            start()
            with self.over(reduce):
                each(body)
            each(finish)

        def rest(lanes: str) -> None:
            start()
            with self.over(reduce):
                body(lanes, "0")
            finish(lanes, "0")

        self._several(axis, whole, rest)

    def _several(
        self,
        axis: str,
        whole: Callable[[Callable[[Callable[[str, str], None]], None]], None],
        rest: Callable[[str], None],
    ) -> None:
        """MI_PARTS vectors per turn: `whole` prints a turn, in which it is given a printer of a loop over the parts."""
        i = f"i_{self.axes.names[axis]}"
        constant = self.axes.constant(axis, self.looping)
        extent = self.axes.extent(axis, self.looping)

        def each(body: Callable[[str, str], None]) -> None:
            with self.w.block("MI_UNROLL for (int part = 0; part < MI_PARTS; part++)"):
                body("", "part")

        self.w.line(f"long {i} = 0;")
        # fewer lanes than MI_PARTS of the smallest vectors have
        if constant is None or constant >= 8:
            self.index[axis] = f"({i} + part * MI_W)"
            with self.w.block(f"for (; {i} + MI_PARTS * MI_W <= {extent}; {i} += MI_PARTS * MI_W)"):
                whole(each)
        self.index[axis] = i
        with self.w.block(f"for (; {i} < {extent}; {i} += MI_W)"):
            self.w.line(f"const int lanes = (int)least({extent} - {i}, MI_W);")
            rest("lanes")

    def load(self, view: View, axis: str | None, lanes: str) -> str:
        """C expression: the elements at the current index, as a vector along `axis`. No `lanes` means all."""
        if view.scalar:
            return f"mi_broadcast({view.scalar})"
        at = view.at(self.index)
        if axis is None or axis not in view.strides:
            return f"{function_of('mi_broadcast', view.narrow)}({at if view.narrow else f'*({at})'})"
        kind, given = ("", [at]) if view.unit == axis else ("_strided", [at, view.strides[axis]])
        if lanes:
            kind, given = f"{kind}_n", [*given, lanes]
        return f"{function_of('mi_load', view.narrow, kind)}({', '.join(given)})"

    def store(self, view: View, axis: str | None, lanes: str, value: str, accumulate: bool = False) -> None:
        """Print the store of a vector along `axis` at the current index."""
        at = view.at(self.index)
        # a sum in 16 bits would be rounded at every step: such targets are in scratch
        assert not (accumulate and (view.narrow or view.past))
        if axis is None or axis not in view.strides:
            if view.narrow:
                self.w.line(f"{function_of('mi_store', view.narrow, '_n')}({at}, {value}, 1);")
            else:
                self.w.line(f"*({at}) {'+=' if accumulate else '='} ({value})[0];")
            return
        if accumulate:
            value = f"{self.load(view, axis, lanes)} + {value}"
        if view.unit == axis:
            name, last = ("mi_put", [view.past]) if view.past else ("mi_store", [])
            given = [at, value, *([lanes] if lanes else []), *last]
            self.w.line(f"{function_of(name, view.narrow, '_n' if lanes else '')}({', '.join(given)});")
        else:
            name = function_of("mi_store", view.narrow, "_strided_n")
            self.w.line(f"{name}({at}, {view.strides[axis]}, {value}, {lanes or 'MI_W'});")


def vector_axis(axes: BlockAxes, looping: bool, space: Sequence[str], votes: Mapping[str, float]) -> str | None:
    """The axis to vectorise: the one along which most is contiguous, by its `votes`, then the longest."""
    if not space:
        return None
    return max(
        space, key=lambda a: (a in votes and axes.hint(a, looping) > 1, votes.get(a, 0.0), axes.hint(a, looping))
    )


def copy(
    w: Writer,
    axes: BlockAxes,
    looping: bool,
    source: View,
    target: View,
    space: Sequence[str],
    accumulate: bool = False,
) -> None:
    """Print target = source (or +=) over these axes, whatever the two layouts."""
    nest = Nest(w, axes, looping)
    crossed = [a for a in space if a in (target.unit, source.unit) and axes.constant(a, looping) != 1]
    apart = all(a in source.strides and a in target.strides for a in crossed)
    if len(crossed) == 2 and apart and not (accumulate or target.narrow):
        rows, columns = str(target.unit), str(source.unit)
        with nest.over([a for a in space if a not in crossed]):
            extents = f"{axes.extent(rows, looping)}, {axes.extent(columns, looping)}"
            moved = f"{source.at(nest.index)}, {source.stride(rows)}, {target.at(nest.index)}, {target.stride(columns)}"
            w.line(f"{function_of('mi_transpose', source.narrow)}({extents}, {moved});")
        return
    axis = vector_axis(axes, looping, space, {str(source.unit): 1.0, str(target.unit): 2.0})
    with nest.over([a for a in space if a != axis]):
        nest.vectors(axis, lambda lanes: nest.store(target, axis, lanes, nest.load(source, axis, lanes), accumulate))


def update(
    w: Writer,
    axes: BlockAxes,
    looping: bool,
    target: View,
    other: View,
    space: Sequence[str],
    value: Callable[[str, str], str],
) -> None:
    """Print target = value(target, other), as C text of vectors, over these axes."""
    axis = vector_axis(axes, looping, space, {str(target.unit): 1.0})
    nest = Nest(w, axes, looping)

    def body(lanes: str) -> None:
        text = value(nest.load(target, axis, lanes), nest.load(other, axis, lanes))
        nest.store(target, axis, lanes, text)

    with nest.over([a for a in space if a != axis]):
        nest.vectors(axis, body)


def fill(w: Writer, axes: BlockAxes, looping: bool, target: View, value: str, space: Sequence[str]) -> None:
    """Print target = value (C text of type mi_real) over these axes."""
    copy(w, axes, looping, View("", scalar=value), target, space)
