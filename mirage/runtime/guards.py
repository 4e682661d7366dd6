"""Guards: what values must be at function boundaries and checks, and the sizes that their shapes give (Relax, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirage.errors import DimError, GuardError, InputError
from mirage.ir.annotations import Annotation
from mirage.ir.dims import Dim, DimFunction, dim_text, solve, symbols_of
from mirage.remember import remember
from mirage.runtime.leaves import Leaf, Leaves, Shape, leaves_of
from mirage.runtime.places.host import HOST
from mirage.runtime.places.place import Place
from mirage.runtime.sizes import SizeTable, Slots

if TYPE_CHECKING:
    from mirage.runtime.program import Guard

#: binds one symbol from the shapes of all leaves and the sizes bound before
Solver = Callable[[Sequence[Shape], dict[str, int]], None]


class Pattern:
    """Annotations that values are matched with, at one stage of a size table: which symbols they bind, what they check.

    `values` are (what it is called in errors, annotation). `known` symbols are bound before; `owner` says where, in errors.
    Raises DimError for dims that no shape determines.
    """

    def __init__(
        self,
        owner: str,
        values: Sequence[tuple[str, Annotation]],
        table: SizeTable,
        stage: int,
        known: set[str],
        guards: Sequence[Guard] = (),
        place: Place = HOST,
    ) -> None:
        self.owner = owner
        self._table, self._stage = table, stage
        self._ready = place.ready
        self.values = [leaves_of(owner, what, annotation, place) for what, annotation in values]
        self._leaves: list[Leaf] = [leaf for value in self.values for leaf in value.leaves]
        #: symbol -> leaf and dim that gave it
        self._origin: dict[str, tuple[int, int]] = {}
        self._solvers: list[Solver] = []
        self._order(set(known))
        # what gave a symbol need not be checked
        self._checks = [
            (k, i, table.slot(d, stage), d)
            for k, leaf in enumerate(self._leaves)
            for i, d in enumerate(leaf.dims or ())
            if d is not None and not (d.is_Symbol and self._origin.get(d.name) == (k, i))
        ]
        self._guards = [(table.slot(g.dim, stage), table.slot(g.value, stage), g) for g in guards]

    def _order(self, known: set[str]) -> None:
        """In which order dims give symbols: plain ones first, which make products such as 4*n checks instead of equations."""
        open_ = [
            (k, i, d) for k, leaf in enumerate(self._leaves) for i, d in enumerate(leaf.dims or ()) if d is not None
        ]
        open_.sort(key=lambda item: not item[2].is_Symbol)
        while open_ := [e for e in open_ if not symbols_of(e[2]) <= known]:
            given = [(e, _determines(e[2], known)) for e in open_]
            name = next((found for _, found in given if found is not None), None)
            if name is None:
                k, i, d = open_[0]
                raise DimError(
                    f"{self.owner}: {self._leaves[k].what}, dim {i}: {dim_text(d)} does not determine "
                    f"{', '.join(sorted(symbols_of(d) - known))}; make one of these a dim of its own"
                )
            known.add(name)
            equations = [e for e, found in given if found == name]
            self._origin[name] = equations[0][:2]
            self._solvers.append(self._solver(name, equations))

    def _solver(self, name: str, equations: Sequence[tuple[int, int, Dim]]) -> Solver:
        """What binds a symbol so that dims of leaves are as given: (leaf, place, dim), of which the first that can decides."""
        k, i, dim = equations[0]
        if dim.is_Symbol:

            def bind(shapes: Sequence[Shape], sizes: dict[str, int]) -> None:
                sizes[name] = shapes[k][i]

            return bind

        def find(shapes: Sequence[Shape], sizes: dict[str, int]) -> None:
            for leaf, place, d in equations:
                # m*n does not say what n is where m is 0
                found = solve(d, shapes[leaf][place], sizes)
                if found is not None:
                    sizes[name] = found[1]
                    return
            raise GuardError(
                f"{self.owner}: {self._leaves[k].what}, dim {i}: no size of {name} makes {dim_text(dim)} equal {shapes[k][i]}"
            )

        return find

    def read(self, values: list[Any], readers: Sequence[Leaves] | None = None) -> tuple[Shape, ...]:
        """The shapes in the values; replaces those that are not C-contiguous arrays of the place by such.

        `readers` are those of the values, where these are not all of the pattern's. Raises GuardError or InputError for a value
        of another kind, rank or element type.
        """
        shapes: list[Shape] = []
        ready = self._ready
        for k, (a, reader) in enumerate(zip(values, self.values if readers is None else readers, strict=True)):
            if type(a) is ready and a.dtype is reader.dtype and a.ndim == reader.rank:
                flags = a.flags
                if flags.c_contiguous and flags.aligned:
                    shapes.append(a.shape)
                    continue
            values[k] = reader.read(a, shapes)
        return tuple(shapes)

    def bind(self, shapes: Sequence[Shape], sizes: dict[str, int], slots: Slots) -> None:
        """Bind the symbols beside the known `sizes`, evaluate what they determine, and check the rest.

        Raises GuardError naming the argument, the dim and both sizes.
        """
        for step in self._solvers:
            step(shapes, sizes)
        symbols = self._table.symbols
        for name, size in sizes.items():
            slots[symbols[name]] = size
        self._table.evaluate(self._stage, sizes, slots)
        for k, i, slot, dim in self._checks:
            if shapes[k][i] != slots[slot]:
                here = f"{dim_text(dim)} is {slots[slot]} here ({self._table.bound(dim, slots)})"
                raise GuardError(
                    f"{self.owner}: {self._leaves[k].what} has shape {list(shapes[k])}: dim {i} is {shapes[k][i]}, "
                    f"but {f'must be {dim}' if dim.is_Integer else here}; make the dims agree"
                )
        for left, right, guard in self._guards:
            if not _HOLDS[guard.relation](slots[left], slots[right]):
                raise GuardError(self._broken(guard, slots[left], slots))

    def _broken(self, guard: Guard, size: int, slots: Slots) -> str:
        names = sorted(symbols_of(guard.dim) | symbols_of(guard.value))
        given = [
            f"{s}={slots[self._table.symbols[s]]}"
            + (f" is dim {self._origin[s][1]} of {self._leaves[self._origin[s][0]].what}" if s in self._origin else "")
            for s in names
        ]
        reason = f" ({guard.reason})" if guard.reason else ""
        return f"{self.owner}: {dim_text(guard.dim)} is {size}, but {guard} is required{reason}; {', '.join(given)}"


def _determines(dim: Dim, known: set[str]) -> str | None:
    """The symbol that a dim gives, with those that are known; n // 2 does not determine n."""
    unknown = symbols_of(dim) - known
    inside = {s for f in dim.atoms(DimFunction) for s in symbols_of(f)}
    return next(iter(unknown)) if len(unknown) == 1 and not unknown & inside else None


_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "%": lambda a, b: b != 0 and a % b == 0,
}
RELATIONS = tuple(_HOLDS)


class Entry:
    """What the shapes of a call's arguments determine: the sizes of all dims that are known at its start."""

    __slots__ = ("slots",)

    def __init__(self, slots: Slots) -> None:
        self.slots = slots


class Signature:
    """A function's parameters and extra shape parameters; remembers the shapes that it has seen."""

    LIMIT = 256

    def __init__(self, pattern: Pattern, names: Sequence[str], dims: Sequence[str], table: SizeTable) -> None:
        self._pattern = pattern
        self._names = names
        self._dims = dims
        self._table = table
        self._seen: dict[tuple[tuple[Shape, ...], tuple[int, ...]], Entry] = {}

    def enter(self, args: list[Any], dims: tuple[int, ...]) -> Entry:
        """The entry for arguments, which are replaced as `Pattern.read` does, and the values of the extra shape parameters.

        Raises GuardError, or InputError for a wrong number of arguments.
        """
        _check_number(self._pattern, self._names, args)
        shapes = self._pattern.read(args)
        found = self._seen.get((shapes, dims))
        if found is None:
            found = self._entry(shapes, dims)
            remember(self._seen, (shapes, dims), found, self.LIMIT)
        return found

    def check_number(self, args: Sequence[Any]) -> None:
        """Raises InputError for another number of arguments than there are parameters."""
        _check_number(self._pattern, self._names, args)

    def bound(self, given: Mapping[int, Any]) -> BoundSignature:
        """The signature of the other arguments, where those at some places are always the `given` ones.

        Raises GuardError or InputError for a given value of another kind, rank or element type.
        """
        return BoundSignature(self._pattern, self._names, given, lambda shapes: self._entry(shapes, ()))

    def _entry(self, shapes: tuple[Shape, ...], dims: tuple[int, ...]) -> Entry:
        slots = self._table.new()
        self._pattern.bind(shapes, dict(zip(self._dims, dims, strict=True)), slots)
        return Entry(slots)


class BoundSignature:
    """A signature some of whose arguments are given: these are looked at once, and calls take the others."""

    def __init__(
        self,
        pattern: Pattern,
        names: Sequence[str],
        given: Mapping[int, Any],
        entry: Callable[[tuple[Shape, ...]], Entry],
    ) -> None:
        self._pattern = pattern
        self._entry = entry
        self._free = [k for k in range(len(names)) if k not in given]
        self._names = [names[k] for k in self._free]
        self._readers = [pattern.values[k] for k in self._free]
        self._seen: dict[tuple[Shape, ...], Entry] = {}
        #: all arguments, and all shapes in them, with gaps for those of a call
        self._args: list[Any] = [None] * len(names)
        self._shapes: list[Shape] = []
        #: where the shapes of a call's arguments belong
        self._places: list[int] = []
        for k, leaves in enumerate(pattern.values):
            if k in given:
                values = [given[k]]
                self._shapes += pattern.read(values, [leaves])
                (self._args[k],) = values
            else:
                self._places += range(len(self._shapes), len(self._shapes) + len(leaves.leaves))
                self._shapes += [()] * len(leaves.leaves)

    def enter(self, args: list[Any]) -> tuple[Entry, list[Any]]:
        """The entry for a call's arguments, which are replaced as `Pattern.read` does, and all arguments.

        Raises GuardError, or InputError for a wrong number of arguments.
        """
        _check_number(self._pattern, self._names, args)
        shapes = self._pattern.read(args, self._readers)
        found = self._seen.get(shapes)
        if found is None:
            every = self._shapes.copy()
            for at, shape in zip(self._places, shapes, strict=True):
                every[at] = shape
            found = self._entry(tuple(every))
            remember(self._seen, shapes, found, Signature.LIMIT)
        return found, self.completed(args)

    def completed(self, args: Sequence[Any]) -> list[Any]:
        """All arguments, of a call's."""
        every = self._args.copy()
        for k, a in zip(self._free, args, strict=True):
            every[k] = a
        return every


def _check_number(pattern: Pattern, names: Sequence[str], args: Sequence[Any]) -> None:
    if len(args) != len(names):
        raise InputError(
            f"{pattern.owner}: takes {len(names)} arguments ({', '.join(names)}), got {len(args)}; pass each once, in order"
        )
