"""Programs whose main function is stacked: it calls itself, or functions that are values. They run on a machine in C
(csrc/machine.c), which has a stack of its own, as deep as memory allows, and values of its own: numbers, tuples, data, functions,
references, and arrays of Python's. What computes is called in Python, by the functions in `_HOST`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.errors import FormatError, GuardError, InputError, MirageError
from mirage.ir.annotations import Annotation, DataType, PartialTensor, TupleType
from mirage.ir.data import CONS, LIST, NIL, DataDeclaration, Record
from mirage.ir.graph.values import MAX_DEPTH, too_deep
from mirage.ir.types import ELEMENTS, TensorType
from mirage.kernels.cpu.launch.machine import ListLoop, MachineFunction, MachineProgram, library
from mirage.runtime import list_loops
from mirage.runtime.function import Function
from mirage.runtime.places.host import HOST
from mirage.runtime.stacked import StackedFunction
from mirage.runtime.steps import noted, scalar_of

#: calls that are recorded before they are run, at most: placeholders take memory, too
MOST = 1 << 16
#: nodes by which arguments are read, at most; what is of further types, Python converts
_NODES = 256
#: `node_kind` of mirage_convert.h
_TENSOR, _FIELDS, _ITEMS, _CASES, _ANYTHING = range(5)


class Machine:
    """A program, of functions that are known by their numbers, which are their places; `main` is stacked.

    `data` are the data types that it has values of. May be called from several threads at once, and by functions of its own.
    """

    def __init__(self, functions: Sequence[Function], main: Function, data: Sequence[DataDeclaration]) -> None:
        self._library = library()
        self._functions, self._main, self._data = functions, main, data
        #: what C knows by its address
        self._kept: list[Any] = []
        self._records = any(f.function.batched is not None for f in functions)
        table = (MachineFunction * len(functions))(*map(self._described, functions))
        nodes, host = _Nodes(data), _Host(functions, data, main.function.name)
        arguments = [nodes.of(p.annotation) for p in main.function.parameters]
        #: how arguments are read
        self._arguments = self._words(arguments)
        first = [0]
        for d in data:
            first.append(first[-1] + len(d.classes))
        dtypes = [*dict.fromkeys(ELEMENTS.values())]
        self._machine = MachineProgram(
            self._held(table), len(functions), self._objects([getattr(host, name) for name in _HOST]),
            self._words(nodes.words), len(nodes.symbols), self._objects([c for d in data for c in d.classes]),
            self._words(first), self._objects(data), len(data), [d.name for d in data].index(LIST.name), NIL, CONS,
            self._objects(dtypes), len(dtypes),
            *map(id, (np.ndarray, tuple, list, int, Record, ELEMENTS["bool"], ..., MirageError)),
            *map(id, self._names("data", "index", "fields", "nbytes")),
        )  # fmt: skip
        self._kept.append(nodes)

    def __del__(self) -> None:
        if hasattr(self, "_machine"):
            self._library.mi_end(ctypes.addressof(self._machine))

    def run(self, args: Sequence[Any], converted: Callable[[], Sequence[Any]]) -> Any:
        """The result for arguments as callers have them; those of which the machine cannot read some are `converted` first.

        Raises DepthError for calls that are nested too deep, and what the calls do.
        """
        found = self._run(tuple(args), self._arguments)
        return self._run(tuple(converted()), None) if found is ... else found

    def _run(self, args: tuple[Any, ...], nodes: int | None) -> Any:
        failed = (ctypes.c_long * 2)()
        try:
            return self._library.mi_run(
                ctypes.addressof(self._machine), self._main.number, args, nodes, MOST if self._records else -1, MAX_DEPTH, failed
            )
        except Exception as e:
            f = self._functions[failed[0]]
            if failed[0] >= 0 and isinstance(f, StackedFunction):
                noted(e, f.function.name, f.instructions[failed[1]])
            raise

    def _described(self, f: Function) -> MachineFunction:
        function = f.function
        size = len(function.parameters), function.registers
        if isinstance(f, StackedFunction):
            constants = (ctypes.c_void_p * max(function.registers, 1))()
            for register, a in f.constants:
                constants[register] = self._library.mi_constant(a)
            code, shaped = self._words(f.code), self._words([*f.shaped, -1])
            loop = None if f.loop is None else self._loop(f.loop)
            return MachineFunction(1, *size, code, self._held(constants), f.sized, f.copies, shaped, loop, -1)
        if f.batched is None or function.batched is None:
            return MachineFunction(0, *size, batched=-1)
        shared = function.batched.shared
        forms = self._words([w for p in function.parameters for w in _form(p.annotation)])
        same = self._held(ctypes.create_string_buffer(bytes(shared)))
        return MachineFunction(0, *size, batched=f.batched.number, forms=forms, leaves=len(shared), shared=same)

    def _loop(self, loop: list_loops.LoopOverList) -> int:
        most = list_loops.MOST_BYTES if loop.joins else -1
        item, state = self._words(_form(loop.item)), self._words(_form(loop.state))
        return self._held(ListLoop(list_loops.FEWEST, most, loop.scans, item, state))

    def _held(self, value: Any) -> int:
        self._kept.append(value)
        return ctypes.addressof(value)

    def _words(self, words: Sequence[int]) -> int:
        return self._held((ctypes.c_long * max(len(words), 1))(*words))

    def _objects(self, values: Sequence[Any]) -> int:
        return self._held((ctypes.c_void_p * max(len(values), 1))(*map(id, self._names(*values))))

    def _names(self, *values: Any) -> tuple[Any, ...]:
        self._kept.append(values)
        return values


class _Host:
    """What C calls of Python, for functions and data types by their numbers; `name` is that of the main function."""

    empty: Any = staticmethod(np.empty)

    def __init__(self, functions: Sequence[Function], data: Sequence[DataDeclaration], name: str) -> None:
        self._functions, self._data, self._name = functions, data, name

    def call(self, number: int, args: list[Any], sizes: tuple[int, ...]) -> Any:
        return self._functions[number].run(args, sizes, None)

    def loop_over(self, number: int, columns: tuple[list[np.ndarray], ...], args: list[Any]) -> Any:
        f = self._functions[number]
        assert isinstance(f, StackedFunction) and f.loop is not None
        return f.loop.run(columns, args)

    def sizes(self, number: int, args: list[Any], sizes: tuple[int, ...]) -> tuple[Any, int, int]:
        f = self._functions[number]
        assert isinstance(f, StackedFunction)
        slots = f.slots(args, sizes)
        return slots, *slots.buffer_info()

    def step(self, number: int, step: int, values: list[Any], slots: Any) -> Any:
        f = self._functions[number]
        assert isinstance(f, StackedFunction)
        return f.steps[step](values, slots)

    def scalar(self, value: Any, count: int) -> int:
        return int(scalar_of(value, np.ndarray, "i" if count else "b", "the count of a loop" if count else "a condition"))

    def index(self, number: int) -> np.ndarray:
        return np.array(number, np.int64)

    def record(self, data: int, index: int, fields: tuple[Any, ...]) -> Record:
        return Record(self._data[data], index, fields)

    def data_of(self, data: DataDeclaration) -> int:
        if data not in self._data:
            raise InputError(f"a value of {data.name} is returned to a program that has no such type; declare it there")
        return self._data.index(data)

    def tensor(self, value: np.ndarray) -> np.ndarray:
        """An array with an element type that is the same object for all."""
        known = next((t for t in ELEMENTS.values() if t == value.dtype), None)
        if known is None:
            return value
        dense = value if HOST.is_dense(value) else HOST.copy(value)
        return dense.view(known)

    def fail(self, what: int, about: int, more: int) -> None:
        name = self._functions[about].function.name if 0 <= about < len(self._functions) else self._name
        raise _FAILURES[what](name, about, more)


#: what the machine calls, in the order of mirage_run.h
_HOST = (
    "call", "loop_over", "sizes", "step", "scalar", "index", "empty", "record", "data_of", "fail", "tensor",
)  # fmt: skip
#: what is wrong, of a function, or of two numbers; in the order of mirage_run.h
_FAILURES: tuple[Callable[[str, int, int], Exception], ...] = (
    lambda name, *_: FormatError(f"function {name!r} uses values as what they are not; compile the program again"),
    lambda name, *_: too_deep(MAX_DEPTH, name),
    lambda name, *_: GuardError(f"{name}: no clause of a match fits a value; compile the program again"),
    lambda name, *_: FormatError(f"function {name!r}: many calls at once return other tensors; compile the program again"),
    lambda name, *_: InputError(f"{name}: functions and references are for programs only; return what they give"),
    lambda name, *_: InputError(f"{name}: a value is a part of itself; use data without cycles"),
    lambda _, n, most: GuardError(f"a loop is to run {n} times, and its bound is {most} here; raise the bound"),
)


def _form(annotation: Annotation) -> list[int]:
    """-1 for what is no tuple, else the number of fields and behind it their forms."""
    if isinstance(annotation, TupleType):
        return [len(annotation.fields), *(w for f in annotation.fields for w in _form(f))]
    return [-1]


class _Nodes:
    """Nodes by which arguments are read, see mirage_convert.h, for values of these data types."""

    def __init__(self, data: Sequence[DataDeclaration]) -> None:
        self._data = data
        self._numbers = {d.name: k for k, d in enumerate(data)}
        self.words: list[int] = []
        self._nodes: dict[Annotation, int] = {}
        #: of all dims that are symbols
        self.symbols: dict[str, int] = {}

    def of(self, annotation: Annotation) -> int:
        """The node of an annotation."""
        found = self._nodes.get(annotation)
        if found is None:
            # a type may be within itself, and, with other arguments, without end
            found = self._nodes[annotation] = self._room(self._length(annotation))
            self._write(found, annotation)
        return found

    def _room(self, words: int) -> int:
        self.words += [0] * words
        return len(self.words) - words

    def _length(self, annotation: Annotation) -> int:
        match annotation:
            case TensorType(dims) | PartialTensor(dims):
                return 3 + len(dims or ())
            case TupleType(fields):
                return 2 + len(fields)
            case DataType(name):
                return 2 + len(self._data[self._numbers[name]].constructors)
        return 1

    def _write(self, at: int, annotation: Annotation) -> None:
        words = [_ANYTHING]
        match annotation:
            case TensorType(dims, dtype) | PartialTensor(dims, dtype) if dims is not None and dtype is not None:
                words = [_TENSOR, id(ELEMENTS[dtype]), len(dims), *map(self._dim, dims)]
            case TupleType(fields) if len(self._nodes) < _NODES:
                words = [_FIELDS, len(fields), *map(self.of, fields)]
            case DataType(LIST.name, (item,)) if len(self._nodes) < _NODES:
                words = [_ITEMS, self.of(item)]
            case DataType(name, arguments) if len(self._nodes) < _NODES:
                number = self._numbers[name]
                words = [_CASES, number, *(self._fields(number, k, arguments) for k in range(self._length(annotation) - 2))]
        self.words[at : at + len(words)] = words

    def _fields(self, number: int, case: int, arguments: tuple[Annotation, ...]) -> int:
        data = self._data[number]
        names = [name for name, _ in data.constructors[case].fields]
        at = self._room(1 + 2 * len(names))
        self.words[at] = len(names)
        for k, (name, annotation) in enumerate(zip(names, data.fields(case, arguments), strict=True)):
            self.words[at + 1 + 2 * k : at + 3 + 2 * k] = id(name), self.of(annotation)
        return at

    def _dim(self, dim: Any) -> int:
        if dim is None or not (dim.is_Symbol or dim.is_Integer):
            return -1
        return -2 - self.symbols.setdefault(dim.name, len(self.symbols)) if dim.is_Symbol else int(dim)
