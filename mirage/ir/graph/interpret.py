"""The meaning of modules with NumPy: the yardstick for compiled programs.

Tensors are arrays, scalar constants Python numbers, shapes tuples of integers, values of data types records. Every value is
checked against its annotation; what data holds is checked where it is taken out. Calls are kept on a stack of the machine's own,
so that functions may call themselves as deep as `MAX_DEPTH`; last calls of functions that call themselves need no room on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from mirage.errors import GraphError, GuardError, InputError, MirageError, UnknownFunction
from mirage.ir.annotations import Annotation, PartialTensor, ShapeType, TupleType
from mirage.ir.data import PRELUDE, Record
from mirage.ir.dims import Dim, dim_text, evaluate
from mirage.ir.graph.match import match_sizes
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    CallValue,
    Closure,
    Constant,
    Construct,
    Function,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    Module,
    OpCall,
    PackedCall,
    ReferenceCall,
    ShapeCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.order import recursive
from mirage.ir.graph.patterns import bound
from mirage.ir.graph.values import (
    MAX_DEPTH,
    FunctionValue,
    Reference,
    Where,
    from_value,
    to_value,
    too_deep,
)
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.operator import as_arrays, get_operator
from mirage.ir.operators.in_place import EFFECTS
from mirage.ir.program import AttrItems
from mirage.ir.types import DTYPES, ELEMENTS, TensorType

Functions = Mapping[str, Callable[..., Any]]
#: a function to call, its arguments and shape arguments
Request = tuple[Function, Sequence[Any], Sequence[int]]
#: expressions that call functions
CALLS = FunctionCall | If | Loop | Match | CallValue


def run_module(
    module: Module,
    args: Sequence[Any],
    *,
    packed: Functions | None = None,
    library: Functions | None = None,
    wide: bool = False,
) -> Any:
    """The result of the main function.

    Values of data types are given and returned as lists, as objects of the classes of the type, or as records.

    `packed` holds packed functions, called as `fn(*args, **attrs)`, besides the built-in effects, and shape functions;
    `library` library functions, called as `fn(inputs, outputs, **attrs)`. A kernel that is no loop program is called as
    `kernel(inputs, sizes, outputs)`. With `wide`, every floating-point tensor is kept and computed in float64, whatever its
    type: arguments of other types are converted, so that what the program writes in place does not reach them.

    Raises GuardError where a size breaks a constraint of a function or match_cast, naming the dim; InputError for
    arguments of another number, kind or type; DepthError for calls that are nested too deep; UnknownFunction; and what operators
    raise.
    """
    return _Machine(module, packed or {}, library or {}, wide).main(args)


class _Machine:
    def __init__(self, module: Module, packed: Functions, library: Functions, wide: bool) -> None:
        self.module = module
        self.packed = packed
        self.library = library
        self.wide = wide
        self.groups = recursive(module)

    def dtype(self, name: str) -> np.dtype:
        """What tensors of an element type are kept in."""
        return DTYPES["float64"] if self.wide and name in DTYPES else ELEMENTS[name]

    def main(self, args: Sequence[Any]) -> Any:
        """The result of the main function, as callers have it."""
        function = self.module.functions[self.module.main]
        known = {**PRELUDE, **self.module.data}
        self.numbered(function, args)
        held: list[tuple[str, Annotation, Any]] = []

        def leaf(annotation: Annotation, value: Any, where: Where) -> Any:
            what = str(where)
            held.append((what, annotation, self.converted(annotation, value, what)))
            return held[-1][2]

        names = [f"{function.name}: argument {p.name!r}" for p in function.parameters]
        types = [p.annotation for p in function.parameters]
        given = [to_value(t, v, known, name, leaf) for t, v, name in zip(types, args, names, strict=True)]
        return from_value(self.run(self.enter(function, given, (), held)))

    def numbered(self, function: Function, args: Sequence[Any]) -> None:
        if len(args) != len(function.parameters):
            names = ", ".join(p.name for p in function.parameters)
            raise InputError(f"{function.name}: takes {len(function.parameters)} arguments ({names}), got {len(args)}")

    def enter(
        self, function: Function, args: Sequence[Any], dims: Sequence[int], held: Iterable[tuple[str, Annotation, Any]] = ()
    ) -> _Frame:
        """A call that begins; `held` are values within the arguments that tell sizes, too."""
        self.numbered(function, args)
        frame = _Frame(self, function, dict(zip(function.dims, dims, strict=True)))
        given = []
        for p, value in zip(function.parameters, args, strict=True):
            what = f"{function.name}: argument {p.name!r}"
            frame.values[p] = self.converted(p.annotation, value, what)
            given.append((what, p.annotation, frame.values[p]))
        match_sizes([*given, *held], frame.sizes, self.dtype)
        return frame

    def run(self, frame: _Frame) -> Any:
        """The result of a call, and of all that it calls."""
        stack = [frame]
        while True:
            frame = stack[-1]
            try:
                request = frame.advance()
                if request is not None:
                    called = self.enter(*request)
                    if self.is_last(frame, called):
                        stack[-1] = called
                        continue
                    if len(stack) >= MAX_DEPTH:
                        raise too_deep(len(stack), called.function.name)
                    stack.append(called)
                    continue
            except MirageError as e:
                b = frame.function.bindings[frame.at]
                where = f"{b.where}: " if b.where else ""
                raise type(e)(f"{where}{frame.function.name}: {b.var.name}: {e}") from None
            stack.pop()
            result = frame.value(frame.function.result)
            if not stack:
                return result
            stack[-1].returned = (result,)

    def is_last(self, frame: _Frame, called: _Frame) -> bool:
        """Whether the result of a call is that of its caller, which needs no more room."""
        f = frame.function
        b = f.bindings[frame.at]
        if frame.at != len(f.bindings) - 1 or b.var is not f.result or isinstance(b.value, Loop):
            return False
        group = self.groups.get(f.name)
        return isinstance(b.value, CallValue) or (group is not None and group == self.groups.get(called.function.name))

    def converted(self, annotation: Annotation, value: Any, what: str) -> Any:
        """An argument as a value: numbers and arrays of other float types, where `wide`, become arrays."""
        match annotation:
            case TensorType(dtype="scalar"):
                return value
            case TensorType(dtype=dtype) | PartialTensor(dtype=dtype):
                if isinstance(value, np.ndarray | np.generic):
                    return self.widened(np.asarray(value))
                if isinstance(value, bool | int | float):
                    return as_arrays(what, [value], self.dtype(dtype or "float64"))[0]
                raise InputError(f"{what} is {type(value).__name__}, not {annotation}; pass an array of NumPy")
            case TupleType(fields):
                if not isinstance(value, tuple | list) or len(value) != len(fields):
                    raise InputError(f"{what} is not a tuple of {len(fields)} values; pass one, {annotation}")
                return tuple(
                    self.converted(f, v, f"{what}, field {i}")
                    for i, (f, v) in enumerate(zip(fields, value, strict=True))
                )
            case ShapeType():
                if not isinstance(value, tuple | list) or not all(isinstance(v, int | np.integer) for v in value):
                    raise InputError(f"{what} is no shape; pass a tuple of integers, {annotation}")
                return tuple(map(int, value))
        return value

    def widened(self, value: Any) -> Any:
        """Floating-point arrays in float64 where `wide`."""
        if isinstance(value, tuple):
            return tuple(map(self.widened, value))
        narrow = self.wide and isinstance(value, np.ndarray | np.generic) and value.dtype.name in DTYPES
        return np.asarray(value, np.float64) if narrow else value

    def registered(self, functions: Functions, name: str, kind: str) -> Callable[..., Any]:
        if name not in functions:
            known = ", ".join(functions) or "none"
            raise UnknownFunction(f"{kind} function {name!r} is not given to run_module; given are {known}")
        return functions[name]


class _Frame:
    """One call of a function: its variables and the sizes of its dim symbols."""

    __slots__ = ("at", "function", "machine", "returned", "round", "sizes", "values")

    def __init__(self, machine: _Machine, function: Function, sizes: dict[str, int]) -> None:
        self.machine = machine
        self.function = function
        self.sizes = sizes
        self.values: dict[Var, Any] = {}
        #: the binding that is computed, what its call has returned, and the rounds of a loop that are done
        self.at = 0
        self.returned: tuple[Any] | None = None
        self.round = 0

    def advance(self) -> Request | None:
        """Compute bindings up to one that needs a call: its function, arguments and shape arguments. None at the end."""
        bindings = self.function.bindings
        while self.at < len(bindings):
            b = bindings[self.at]
            if isinstance(b.value, CALLS):
                if (request := self.call(b.value)) is not None:
                    return request
                assert self.returned is not None
                value, self.returned = self.returned[0], None
            else:
                value = self.expression(b)
            self.values[b.var] = self.checked(b, value)
            self.at += 1
        return None

    def value(self, atom: Atom) -> Any:
        match atom:
            case Var():
                return self.values[atom]
            case Constant(array):
                return self.machine.widened(array)
        return self.shape(atom.dims)

    def shape(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(evaluate(d, self.sizes) for d in dims)

    def attrs(self, attrs: AttrItems) -> dict[str, Any]:
        """Attributes for a function of Python: dims are integers."""

        def bound(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(bound, value))
            return evaluate(value, self.sizes) if isinstance(value, sympy.Expr) else value

        return {k: bound(v) for k, v in attrs}

    def checked(self, b: Binding, value: Any) -> Any:
        if not isinstance(b.value, MatchCast):
            try:
                match_sizes([("its value", b.var.annotation, value)], self.sizes, self.machine.dtype)
            except InputError as e:
                if isinstance(b.value, PackedCall | ShapeCall):
                    raise
                raise GraphError(f"{e}: the annotation {b.var.annotation} is wrong") from None
        return value

    def call(self, expr: FunctionCall | If | Loop | Match | CallValue) -> Request | None:
        """The call that an expression needs next; None where it has returned."""
        functions = self.machine.module.functions
        if isinstance(expr, Loop):
            return self.next_round(expr)
        if self.returned is not None:
            return None
        args = [self.value(a) for a in expr.args]
        match expr:
            case FunctionCall(function, dims=dims):
                return functions[function], args, self.shape(dims)
            case If(then=then, orelse=orelse, dims=dims):
                return functions[then if bool(args[0]) else orelse], args[1:], self.shape(dims)
            case Match(clauses=clauses, dims=dims):
                for c in clauses:
                    found: list[Any] = []
                    if bound(c.pattern, args[0], found):
                        return functions[c.function], [*found, *args[1:]], self.shape(dims)
                raise GraphError("match: no clause matches the value; check the module")
            case CallValue():
                called = args[0]
                return called.function, [*args[1:], *called.args], called.dims

    def expression(self, b: Binding) -> Any:
        machine, expr = self.machine, b.value
        if isinstance(expr, Var | Constant | ShapeValue):
            return self.value(expr)
        args = [self.value(a) for a in expr.args]
        match expr:
            case OpCall():
                return self.operator(expr, args)
            case Construct(data, index):
                return Record(data, index, tuple(args))
            case Closure(function, dims=dims):
                return FunctionValue(machine.module.functions[function], tuple(args), self.shape(dims))
            case ReferenceCall("new"):
                return Reference(args[0])
            case ReferenceCall("read"):
                return args[0].value
            case ReferenceCall("write"):
                args[0].value = args[1]
                return args[0]
            case KernelCall():
                return self.kernel(expr, args)
            case LibraryCall(function, out=out, attrs=attrs):
                results = self.outputs(out)
                machine.registered(machine.library, function, "library")(tuple(args), results, **self.attrs(attrs))
                return results if len(results) != 1 else results[0]
            case PackedCall(function, annotation=annotation, attrs=attrs):
                found = machine.registered({**EFFECTS, **machine.packed}, function, "packed")(
                    *args, **self.attrs(attrs)
                )
                return machine.converted(annotation, found, f"the result of {function!r}")
            case ShapeCall(function, rank=rank):
                found = machine.registered(machine.packed, function, "shape")(*args)
                return machine.converted(ShapeType((None,) * rank), found, f"the result of {function!r}")
            case MakeTuple():
                return tuple(args)
            case TupleItem(index=index):
                return args[0][index]
            case ShapeOf():
                return tuple(np.shape(args[0]))
            case MatchCast(annotation=annotation):
                value = machine.converted(annotation, args[0], "the value of the match_cast")
                match_sizes([("the value of the match_cast", annotation, value)], self.sizes, machine.dtype)
                return value
        raise GraphError(f"{type(expr).__name__}: not an expression of a graph")

    def operator(self, expr: OpCall, args: list[Any]) -> Any:
        operator = get_operator(expr.op)
        attrs = dict(expr.attrs)
        if self.machine.wide:
            for a in operator.attributes:
                if a.kind == "dtype" and attrs.get(a.name) in DTYPES:
                    attrs[a.name] = "float64"
        result = self.machine.widened(operator.run(args, attrs, self.sizes))
        arrays = [a for a in args if isinstance(a, np.ndarray)]

        def own(value: Any) -> Any:
            # results are values of their own: what is written to operands later does not show in them
            if isinstance(value, tuple):
                return tuple(map(own, value))
            shared = isinstance(value, np.ndarray) and any(np.may_share_memory(value, a) for a in arrays)
            return value.copy() if shared else value

        return own(result)

    def next_round(self, expr: Loop) -> Request | None:
        """The call of a loop's next round; None after the last one, whose result is that of the loop."""
        args = [self.value(a) for a in expr.args]
        count = int(args.pop(0)) if expr.count is None else evaluate(expr.count, self.sizes)
        if expr.bound is not None and count > (most := evaluate(expr.bound, self.sizes)):
            raise GuardError(f"loop of {expr.body}: {count} rounds, but its bound {dim_text(expr.bound)} is {most}")
        carried, invariant = tuple(args[: expr.carried]), args[expr.carried :]
        if self.returned is not None:
            carried = self.returned if expr.carried == 1 else self.returned[0]
        if self.round >= count:
            self.returned, self.round = (carried[0] if expr.carried == 1 else carried,), 0
            return None
        index = np.asarray(self.round, np.int64)
        self.round, self.returned = self.round + 1, None
        return self.machine.module.functions[expr.body], [index, *carried, *invariant], self.shape(expr.dims)

    def outputs(self, types: Iterable[TensorType]) -> tuple[np.ndarray, ...]:
        return tuple(np.empty(self.shape(t.shape), self.machine.dtype(t.dtype)) for t in types)

    def narrowed(self, array: np.ndarray, annotation: Annotation) -> np.ndarray:
        """An array in the element type of its annotation."""
        dtype = annotation.dtype if self.machine.wide and isinstance(annotation, TensorType | PartialTensor) else None
        return array.astype(ELEMENTS[dtype], copy=False) if dtype else array

    def kernel(self, expr: KernelCall, args: list[Any]) -> Any:
        kernel = self.machine.module.kernels[expr.kernel]
        sizes = dict(zip(kernel.symbols, self.shape(expr.dims), strict=True))
        if isinstance(kernel, LoopProgram):
            results = tuple(run_loops(kernel, args, sizes, "float64" if self.machine.wide else None))
        elif callable(kernel):
            # kernels have types of their own
            given = [self.narrowed(x, a.annotation) for x, a in zip(args, expr.args, strict=True)]
            results = tuple(np.empty(self.shape(t.shape), ELEMENTS[t.dtype]) for t in expr.out)
            kernel(given, sizes, results)
            results = self.machine.widened(results)
        else:
            raise GraphError(
                f"kernel {expr.kernel} of kind {kernel.kind} cannot be run here; run the module before it is lowered"
            )
        return results[0] if len(results) == 1 else results
