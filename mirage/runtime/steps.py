"""Instructions as closures over registers and frame, made when a program is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import sympy

from mirage.errors import GuardError, LibraryError, MirageError
from mirage.ir.dims import Dim, symbol, symbols_of, value_at
from mirage.ir.program import AttrItems
from mirage.ir.types import ELEMENTS
from mirage.kernels import blas
from mirage.runtime import program as vm
from mirage.runtime.frame import Frame, Getter, TensorLayout, getter
from mirage.runtime.packed import is_provided, packed_function
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.sizes import SizeTable, Slots

if TYPE_CHECKING:
    from mirage.kernels.cpu.launch.rounds import Launch
    from mirage.runtime.rounds import Rounds

#: for each of some parameters of a loop's body, its tensors of all rounds, or one with a row for each
Items: TypeAlias = Sequence[list[np.ndarray] | np.ndarray]
Step: TypeAlias = Callable[[list[Any], Frame], None]


@dataclass(frozen=True)
class Source:
    """An instruction of a function and its step."""

    at: vm.Instruction
    step: Step


def noted(error: Exception, owner: str, at: vm.Instruction) -> Exception:
    """The error, with a note where it was raised."""
    error.add_note(f"in function {owner!r}{', ' * bool(at.where)}{at.where}: {at}")
    return error


class Kernel(Protocol):
    """Compiled code in destination-passing style: writes every element of the outputs, and maybe the workspace.

    All arrays are C-contiguous, and may be empty; `dims` are the kernel's extra shape arguments. Called from several threads at
    once, with arrays of their own. It keeps none of the arrays.
    """

    def __call__(
        self,
        inputs: tuple[PlacedArray, ...],
        outputs: tuple[PlacedArray, ...],
        dims: tuple[int, ...],
        workspace: tuple[PlacedArray, ...],
        /,
    ) -> None: ...


class Callee(Protocol):
    """A loaded function."""

    #: the loops over it; None where they are left to the machine, and before it is loaded
    loops: Rounds | None

    def run(self, args: list[Any], dims: tuple[int, ...], memory: PlacedArray | None) -> Any:
        """The result for arguments and extra shape arguments; `memory` has room for the arena, if it is given."""
        ...

    def rounds(
        self,
        count: int,
        args: list[Any],
        carried: int,
        dims: tuple[int, ...],
        items: Items = (),
        kept: Sequence[np.ndarray] = (),
    ) -> tuple[Any, ...] | None:
        """What a loop over the function carries after so many rounds, 1 at least, in C; None where it runs round by round.

        `args` are those of the first round, of which the first is the index and so many behind it are carried. Behind these are
        those that each round has others of: `items` has them for all rounds. `kept`, if given, takes what is carried after each
        round, along a leading dim.
        """
        ...

    def launch(
        self, count: int, args: list[Any], carried: int, dims: tuple[int, ...], results: Mapping[int, int]
    ) -> Launch | None:
        """Such a loop as a launch; see `Ready.launch`."""
        ...


class Steps:
    """Makes the closures of one function: `stage` is the number of checks before the instruction.

    `callees` maps names to functions, which may be loaded later.
    """

    def __init__(
        self, owner: str, table: SizeTable, kernels: Sequence[Kernel], callees: Mapping[str, Callee], place: Place
    ) -> None:
        self.owner, self.table, self.kernels, self.callees, self.place = owner, table, kernels, callees, place
        self.stage = 0

    def slots(self, dims: Iterable[Dim]) -> Getter:
        """What gives the sizes of dims."""
        return getter([self.table.slot(d, self.stage) for d in dims])

    def tensor(self, i: vm.MakeTensor, storage: int) -> TensorLayout:
        return TensorLayout(i.out, storage, i.offset, self.slots(i.shape), ELEMENTS[i.dtype], self.place.view)

    def fresh(self, i: vm.MakeTensor) -> Step:
        """A tensor that outlives the call."""
        out, shape, dtype = i.out, self.slots(i.shape), ELEMENTS[i.dtype]
        empty, large, most = self.place.empty, self.place.large, self.place.most // dtype.itemsize

        def step(registers: list[Any], frame: Frame) -> None:
            s = shape(frame.slots)
            try:
                registers[out] = (large if prod(s) > most else empty)(s, dtype)
            except (MemoryError, ValueError, OverflowError):
                raise MirageError(f"{self.owner}: there is no memory for {dtype}{list(s)}; use smaller sizes") from None

        return step

    def dynamic_storage(self, i: vm.AllocStorage) -> Step:
        """A storage whose size a check gives."""
        storage, size = i.storage, self.table.slot(i.bytes, self.stage)

        def step(registers: list[Any], frame: Frame) -> None:
            frame.storages[storage] = frame.arena.grow(storage, frame.slots[size])

        return step

    def dynamic_tensor(self, layout: TensorLayout) -> Step:
        """A tensor whose place is only known during the call."""

        def step(registers: list[Any], frame: Frame) -> None:
            memory = frame.storages[layout.storage]
            assert memory is not None
            registers[layout.out] = layout.make(self.owner, memory, frame.slots)

        return step

    def reshape(self, i: vm.Reshape) -> Step:
        out, value, shape = i.out, i.value, self.slots(i.shape)

        def step(registers: list[Any], frame: Frame) -> None:
            s = shape(frame.slots)
            try:
                registers[out] = registers[value].reshape(s)
            except ValueError:
                found = list(registers[value].shape)
                raise GuardError(
                    f"a tensor of shape {found} has not the elements of shape {list(s)}; make the dims agree"
                ) from None

        return step

    def kernel(self, i: vm.CallKernel) -> Step:
        run = self.kernels[i.kernel]
        inputs, outputs, workspace = getter(i.inputs), getter(i.outputs), getter(i.workspace)
        dims = self.slots(i.dims)

        def step(registers: list[Any], frame: Frame) -> None:
            run(inputs(registers), outputs(registers), dims(frame.slots), workspace(registers))

        return step

    def library(self, i: vm.CallLibrary) -> Step:
        run, inputs, outputs = self.place.library(i.function), getter(i.inputs), getter(i.outputs)
        attrs = self.attrs(i.attrs)
        own = i.function in blas.FUNCTIONS
        if is_provided(i.function):
            # it does not warn of what is not finite, as NumPy does; and its errors are for the user
            def call(registers: list[Any], frame: Frame) -> None:
                run(inputs(registers), outputs(registers), **attrs(frame.slots))

            return call

        def step(registers: list[Any], frame: Frame) -> None:
            try:
                with np.errstate(all="ignore"):
                    run(inputs(registers), outputs(registers), **attrs(frame.slots))
            except Exception as e:
                # what a function of the user raises is for the user
                if not own or isinstance(e, MirageError):
                    raise
                raise LibraryError(f"{self.owner}: {i.function} refuses its tensors: {e}; compile the program again") from None

        return step

    def packed(self, i: vm.CallPacked) -> Step:
        run, out, args, attrs = packed_function(i.function), i.out, getter(i.args), self.attrs(i.attrs)
        kept = getter([k for k in range(len(i.args)) if k not in i.in_place])
        place = self.place

        def step(registers: list[Any], frame: Frame) -> None:
            given = args(registers)
            registers[out] = owned(run(*given, **attrs(frame.slots)), kept(given), place)

        return step

    def operator(self, i: vm.CallOperator) -> Step:
        run, out, args, place = self.place.operator(i.operator), i.out, getter(i.args), self.place
        attrs = dict(i.attrs)
        sizes = self._sizes(attrs.values())

        def step(registers: list[Any], frame: Frame) -> None:
            given = args(registers)
            try:
                with np.errstate(all="ignore"):
                    registers[out] = owned(run(given, attrs, sizes(frame.slots)), given, place)
            except MemoryError as e:
                raise MirageError(f"{self.owner}: {i.operator}: there is no memory for its result: {e}; use smaller sizes") from e
            except (AttributeError, IndexError, TypeError, ValueError) as e:
                raise MirageError(f"{self.owner}: {i.operator} refuses its operands: {e}; compile the program again") from e

        return step

    def call(self, i: vm.CallFunction) -> Step:
        out, callee, args, dims, memory = i.out, self.callees[i.function], getter(i.args), self.slots(i.dims), i.memory

        def step(registers: list[Any], frame: Frame) -> None:
            lent = None if memory is None else frame.storages[memory]
            registers[out] = callee.run(list(args(registers)), dims(frame.slots), lent)

        return step

    def branch(self, i: vm.If) -> Step:
        out, condition, args, dims, memory = i.out, i.condition, getter(i.args), self.slots(i.dims), i.memory
        then, orelse = self.callees[i.then], self.callees[i.orelse]
        array = self.place.array

        def step(registers: list[Any], frame: Frame) -> None:
            callee = then if scalar_of(registers[condition], array, "b", "a condition") else orelse
            lent = None if memory is None else frame.storages[memory]
            registers[out] = callee.run(list(args(registers)), dims(frame.slots), lent)

        return step

    def loop(self, i: vm.Loop) -> Step:
        out, body, carried, invariant = i.out, self.callees[i.body], getter(i.carried), getter(i.invariant)
        dims, memory, times, many = self.slots(i.dims), i.memory, i.times, len(i.carried)
        count = 0 if i.count is None else self.table.slot(i.count, self.stage)
        most = None if i.bound is None else self.table.slot(i.bound, self.stage)
        where = f"{self.owner}{', ' * bool(i.where)}{i.where}"
        array, array_of = self.place.array, self.place.array_of
        first = array_of(0, np.int64)

        def step(registers: list[Any], frame: Frame) -> None:
            slots = frame.slots
            n = slots[count] if times is None else int(scalar_of(registers[times], array, "i", "the count of a loop"))
            if most is not None and n > slots[most]:
                bound = f"its bound {i.bound} is {slots[most]} here"
                raise GuardError(f"{where}: a loop is to run {n} times, and {bound}; raise the bound")
            state, fixed, extra = carried(registers), invariant(registers), dims(slots)
            if n > 1 and (found := body.rounds(n, [first, *state, *fixed], many, extra)) is not None:
                registers[out] = found if many != 1 else found[0]
                return
            lent = None if memory is None else frame.storages[memory]
            for k in range(n):
                result = body.run([array_of(k, np.int64), *state, *fixed], extra, lent)
                state = result if many != 1 else (result,)
            registers[out] = state if many != 1 else state[0]

        return step

    def make_shape(self, i: vm.MakeShape) -> Step:
        out, dims = i.out, self.slots(i.dims)

        def step(registers: list[Any], frame: Frame) -> None:
            registers[out] = dims(frame.slots)

        return step

    def _sizes(self, values: Iterable[Any]) -> Callable[[Slots], dict[str, int]]:
        """What gives the sizes of the symbols in attributes."""
        names = sorted({s for d in dims_in(values) for s in symbols_of(d)})
        places = [(s, self.table.slot(symbol(s), self.stage)) for s in names]
        return lambda slots: {s: slots[at] for s, at in places}

    def attrs(self, items: AttrItems) -> Callable[[Slots], dict[str, Any]]:
        """What gives attributes, with dims among them, also in tuples, as integers."""
        fixed = {name: value for name, value in items if not list(dims_in([value]))}
        open_ = {name: value for name, value in items if name not in fixed}
        if not open_:
            return lambda slots: fixed
        sizes = self._sizes(open_.values())

        def attrs(slots: Slots) -> dict[str, Any]:
            known = sizes(slots)
            return fixed | {name: _evaluated(value, known) for name, value in open_.items()}

        return attrs


def _evaluated(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_evaluated(v, sizes) for v in value)
    return value_at(value, sizes) if isinstance(value, sympy.Expr) else value


def shape_of(i: vm.ShapeOf) -> Step:
    out, value = i.out, i.value

    def step(registers: list[Any], frame: Frame) -> None:
        registers[out] = registers[value].shape

    return step


def make_tuple(i: vm.MakeTuple) -> Step:
    out, items = i.out, getter(i.items)

    def step(registers: list[Any], frame: Frame) -> None:
        registers[out] = items(registers)

    return step


def get_item(i: vm.GetItem) -> Step:
    out, value, index = i.out, i.value, i.index

    def step(registers: list[Any], frame: Frame) -> None:
        registers[out] = registers[value][index]

    return step


def free(registers: Sequence[int]) -> Step:
    def step(held: list[Any], frame: Frame) -> None:
        for r in registers:
            held[r] = None

    return step


def scalar_of(value: Any, array: type[Any], kinds: str, what: str) -> Any:
    """The number in a tensor of rank 0, for which the host waits where it is on a device; raises GuardError for other values."""
    if isinstance(value, array) and (value.ndim or value.dtype.kind not in kinds):
        raise GuardError(
            f"{what} is {value.dtype}{list(value.shape)}; it must be a {'bool' if kinds == 'b' else 'n integer'} scalar"
        )
    return value.item() if isinstance(value, array) else value


def dims_in(values: Iterable[Any]) -> Iterable[Dim]:
    for v in values:
        if isinstance(v, sympy.Expr):
            yield v
        elif isinstance(v, tuple):
            yield from dims_in(v)


def arrays_in(value: Any, array: type[Any] = np.ndarray) -> Iterable[PlacedArray]:
    """The tensors in a value, also in tuples."""
    if isinstance(value, array):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from arrays_in(v, array)


def owned(value: Any, others: Sequence[Any], place: Place) -> Any:
    """What a Python function returned, as the machine holds it: tensors are C-contiguous, and not in memory of `others`."""
    if isinstance(value, tuple | list):
        return tuple(owned(v, others, place) for v in value)
    if isinstance(value, np.generic):
        return place.constant(np.asarray(value))
    if not isinstance(value, place.array):
        return value
    if not place.is_dense(value):
        return place.copy(value)
    for other in arrays_in(tuple(others), place.array):
        # an array with memory of its own can only be another array itself
        if other is value or (not place.owns(value) and place.may_share(value, other)):
            return place.copy(value)
    return value
