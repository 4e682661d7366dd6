"""Graph modules from Python functions: each function runs once, on stand-ins that record what it computes.

A plain function that is called is recorded in place; one under `@function` becomes a function of the module. Branches and
loop bodies become functions, too (see `control.py`): what they use of the functions around them is handed to them as
arguments, and dims that their parameters do not bind as shape arguments (Relax, Fig. 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.frontends.data import constructor_of
from mirage.frontends.proxy import Traced, caller, definition, fail, located, placed, running
from mirage.frontends.tensors import GraphTensor, Shape, TracedFunction
from mirage.frontends.trace import record
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    ObjectType,
    PartialTensor,
    ShapeType,
    TupleType,
    symbols_in,
)
from mirage.ir.data import CONS, LIST, NIL, DataDeclaration
from mirage.ir.dims import symbol, symbols_of, to_dim
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.deduce import new_symbols
from mirage.ir.graph.nodes import (
    Atom,
    Closure,
    Constant,
    Construct,
    Expr,
    Function,
    MakeTuple,
    MatchCast,
    OpCall,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import determined, symbols_used, value_dims, with_atoms
from mirage.ir.operator import as_arrays, get_operator
from mirage.ir.types import ELEMENTS, TensorType, check_dtype

if TYPE_CHECKING:
    from mirage.frontends.functions import GraphFunction

#: bytes of an array that becomes part of a module, beyond which it has to be a parameter
MAX_CONSTANT_BYTES = 4 << 20

#: the element type of a Python number that stands where a tensor is needed
_NUMBERS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int64"),
    ((float, np.floating, Fraction), "float32"),
)


@dataclass
class Assumption:
    """What is assumed of a function while its own trace calls it: its parameters and result, None where that is not known yet."""

    name: str
    header: Function | None
    used: bool = False


class UnknownResult(BaseException):
    """A function calls itself, and its result is not known yet: another branch tells. Users do not catch it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class ModuleTrace:
    """What the traces of one module's functions share."""

    builder: ModuleBuilder = field(default_factory=ModuleBuilder)
    names: set[str] = field(default_factory=set)
    #: the functions that are in the module, and those whose trace runs
    traced: dict[GraphFunction, str] = field(default_factory=dict)
    #: what is assumed of functions whose trace runs
    assumed: dict[GraphFunction, Assumption] = field(default_factory=dict)
    #: functions of any types, as they are used: by the types, that of these, and what its type variables are
    uses: dict[GraphFunction, dict[str, tuple[GraphFunction, dict[str, Annotation]]]] = field(default_factory=dict)

    def reserve(self, hint: str) -> str:
        """A name for a function: the hint, with a number behind if it is taken."""
        name, k = hint, 0
        while name in self.names:
            name, k = f"{hint}_{k}", k + 1
        self.names.add(name)
        return name

    def snapshot(self) -> Callable[[], None]:
        """A function that drops what is added from here on."""
        functions, names, traced = dict(self.builder.functions), set(self.names), dict(self.traced)

        def restore() -> None:
            for name in self.builder.functions.keys() - functions.keys():
                del self.builder.functions[name]
            self.names, self.traced = set(names), dict(traced)

        return restore


class GraphTrace:
    """Records one function of a module; `parent` is the trace of the function around it, for branches and loop bodies."""

    def __init__(self, module: ModuleTrace, name: str, parent: GraphTrace | None = None) -> None:
        self.module = module
        self.parent = parent
        self.function = FunctionBuilder(name, module.builder.functions)
        if parent is not None:
            # dims that become shape parameters keep their names
            self.function.names |= parent.scope
        #: variables of the parent -> the parameters that stand for them here
        self.captured: dict[Var, Var] = {}
        self._symbols: set[str] = set()
        #: rank-0 values without an element type: calls hand over tensors, so inner functions compute them again
        self._scalars: dict[Var, Expr] = {}
        self._copies: dict[Var, Var] = {}

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def graph(self) -> GraphTrace:
        return self

    @property
    def scope(self) -> set[str]:
        """The dim symbols that have a value here."""
        return self._symbols | (self.parent.scope if self.parent else set())

    def add_symbols(self, names: set[str]) -> None:
        """Make dim symbols known from here on."""
        self._symbols |= names

    # what operators need

    def call(self, op: str, operands: Sequence[Any], attrs: Mapping[str, Any], where: str) -> Var:
        with located():
            checked = get_operator(op).check_attrs(attrs)
        value = OpCall(op, tuple(operands), tuple(checked.items()))
        var = self.emit(value, where)
        if isinstance(var.annotation, TensorType) and var.annotation.dtype == "scalar":
            self._scalars[var] = value
        return var

    def wrap(self, value: Atom) -> Any:
        match value.annotation:
            case TensorType() | PartialTensor():
                return GraphTensor(self, value)
            case ShapeType():
                return Shape(self, value)
            case TupleType(fields):
                return tuple(self.wrap(self.emit(TupleItem((value,), i), caller())) for i in range(len(fields)))
            case CallableType():
                return TracedFunction(self, value)
        return Traced(self, value)

    def annotation(self, value: Atom) -> Annotation:
        return value.annotation

    def adopt(self, name: str, value: Traced) -> Atom:
        found = self._reach(value)
        if found is None:
            inside = value._trace.graph
            while inside is not None and inside is not self:
                inside = inside.parent
            how = "return it from there" if inside is self else "pass it as an argument of this function"
            fail(f"{name}: {value!r} belongs to another trace, of {value._trace.name}; {how}")
        if isinstance(found, ShapeValue):
            self.check_symbols(symbols_in(found.annotation))
        return found

    def array(self, name: str, array: np.ndarray) -> Constant:
        if array.nbytes > MAX_CONSTANT_BYTES:
            fail(
                f"{name}: an array of {array.nbytes} bytes as an operand; make it a parameter of the function: at most "
                f"{MAX_CONSTANT_BYTES} bytes become part of a module"
            )
        with located():
            dtype = check_dtype(array.dtype.name)
        literal = np.array(array, dtype=ELEMENTS[dtype], order="C")
        literal.setflags(write=False)
        return Constant(literal, TensorType(tuple(map(sympy.Integer, array.shape)), dtype))

    # what functions need

    def emit(self, value: Expr, where: str) -> Var:
        """Bind an expression; raises TraceError for a dim symbol without a value, and what the deduction raises."""
        if isinstance(value, MatchCast):
            self.add_symbols(new_symbols(value.annotation, self.scope))
        else:
            self.check_symbols(symbols_used(value))
        return self.function.emit(value, where=where)

    def check_symbols(self, names: Set[str]) -> None:
        """Raises TraceError for dim symbols that have no value here."""
        unknown = sorted(names - self.scope)
        if unknown:
            known = ", ".join(sorted(self.scope)) or "none"
            fail(
                f"dim {unknown[0]!r} is not known here; known are: {known}. A dim is known from the type of a parameter, "
                "or from mirage.match_cast"
            )

    def value(self, what: str, x: Any, annotation: Annotation | None = None) -> Atom:
        """The atom of what a user passes or returns; `annotation` is that of the parameter that it is for, if any.

        Raises TraceError, which begins with `what`.
        """
        match x:
            case Traced():
                found = self.adopt(what, x)
                if isinstance(found.annotation, TensorType) and found.annotation.dtype == "scalar":
                    fail(f"{what}: {x!r} has no element type; give it one with .astype('float32')")
                return found
            case _ if (constructor := constructor_of(type(x))) is not None:
                return self.construct(what, constructor, vars(x).values(), annotation)
            case tuple() | list() if isinstance(annotation, DataType) and annotation.name == LIST.name:
                return self.linked(what, x, annotation)
            case tuple() | list() if isinstance(annotation, ShapeType):
                with located():
                    dims = ShapeValue(tuple(to_dim(d, what) for d in x))
                self.check_symbols(symbols_in(dims.annotation))
                return dims
            case tuple() | list():
                fields = annotation.fields if isinstance(annotation, TupleType) else ()
                wanted = fields if len(fields) == len(x) else (None,) * len(x)
                items = tuple(self.value(what, v, a) for v, a in zip(x, wanted, strict=True))
                return self.emit(MakeTuple(items), caller())
            case np.ndarray():
                return self.array(what, x)
            case _ if callable(x):
                return self.closure(what, x, annotation)
            case sympy.Expr():
                fail(f"{what}: the dim {x} is no value by itself; use mirage.shape({x}) or mirage.dim_value({x})")
        for types, dtype in _NUMBERS:
            if isinstance(x, types):
                if isinstance(annotation, TensorType | PartialTensor) and annotation.dtype is not None:
                    dtype = annotation.dtype
                with located():
                    (number,) = as_arrays(what, [x], ELEMENTS[dtype])
                return self.array(what, number.astype(ELEMENTS[dtype]))
        fail(
            f"{what}: a {type(x).__name__} is no value of a graph; use a tensor, number or shape computed from the "
            "parameters, or a tuple of these"
        )

    def construct(
        self, what: str, constructor: tuple[DataDeclaration, int], fields: Iterable[Any], annotation: Annotation | None
    ) -> Var:
        """A value of a data type, of what a user passes as its fields."""
        data, index = constructor
        types: tuple[Annotation, ...] = (NeverType(),) * len(data.parameters)
        if isinstance(annotation, DataType) and annotation.name == data.name:
            types = annotation.arguments
        wanted = data.fields(index, types)
        names = [name for name, _ in data.constructors[index].fields]
        values = [
            self.value(f"{what}: field {name!r} of {data.constructors[index].name}", v, a)
            for name, v, a in zip(names, fields, wanted, strict=True)
        ]
        return self.emit(Construct(data, index, tuple(values)), caller())

    def linked(self, what: str, values: Sequence[Any], annotation: DataType) -> Var:
        """The list of what a user passes in a Python list."""
        found = self.emit(Construct(LIST, NIL), caller())
        for k in reversed(range(len(values))):
            item = self.value(f"{what}, item {k}", values[k], annotation.arguments[0])
            found = self.emit(Construct(LIST, CONS, (item, found)), caller())
        return found

    def closure(self, what: str, fn: Callable[..., Any], annotation: Annotation | None) -> Var:
        """A Python function as a value; raises TraceError where nothing tells the types of its parameters."""
        specs = getattr(fn, "specs", None)
        if annotation is None and isinstance(specs, Mapping):
            # a function under a decorator has the types of its parameters
            annotation = CallableType(tuple(specs.values()), ObjectType())
        if not isinstance(annotation, CallableType) or annotation.parameters is None:
            fail(f"{what}: nothing tells the types of the parameters of {fn!r}; use mirage.closure(fn, mirage.tensor(...), ...)")
        inside, result = self.inner("closure", fn, {f"arg{i}": a for i, a in enumerate(annotation.parameters)})
        captured, dims = self.close([(inside, result)], [len(annotation.parameters)])
        return self.emit(Closure(inside.name, captured, tuple(map(symbol, dims))), caller())

    def capture(self, var: Var) -> Var:
        """The parameter, added if need be, that stands for a variable of the parent."""
        if var not in self.captured:
            self.captured[var] = self._parameter(self.function.fresh(var.name), var.annotation)
        return self.captured[var]

    def _parameter(self, name: str, annotation: Annotation) -> Var:
        self.function.parameters.append(Var(name, annotation))
        self.function.names.add(name)
        return self.function.parameters[-1]

    def _reach(self, value: Traced) -> Atom | None:
        """The atom of a stand-in of this trace, or, captured, of one around it; None for any other."""
        if value._trace is self:
            found: Atom = value._value
            return found
        outer = self.parent._reach(value) if self.parent else None
        return self._inner(outer) if isinstance(outer, Var) else outer

    def _inner(self, outer: Var) -> Var:
        assert self.parent is not None
        definition = self.parent._scalars.get(outer)
        if definition is None:
            return self.capture(outer)
        if outer not in self._copies:
            again = with_atoms(definition, lambda a: self._inner(a) if isinstance(a, Var) else a)
            self._copies[outer] = self.emit(again, caller())
            self._scalars[self._copies[outer]] = again
        return self._copies[outer]

    def inner(self, hint: str, fn: Callable[..., Any], parameters: Mapping[str, Annotation]) -> tuple[GraphTrace, Atom]:
        """Record a function within this one: its trace and its result."""
        if not callable(fn):
            fail(f"{hint}: {fn!r} is not a function; pass a Python function")
        inside = GraphTrace(self.module, self.module.reserve(hint), self)
        return inside, inside.record(fn, parameters)

    def record(self, fn: Callable[..., Any], parameters: Mapping[str, Annotation], by_name: bool = False) -> Atom:
        """Declare the parameters, run the function on their stand-ins, return the atom of its result."""
        declared = {name: self._parameter(name, a) for name, a in parameters.items()}
        self.add_symbols(set().union(*(symbols_in(a) for a in parameters.values())))
        named = {name: self.wrap(var) for name, var in declared.items()}
        result = record(self, fn, () if by_name else tuple(named.values()), named if by_name else {})
        with placed(definition(fn)):
            if result is None or (isinstance(result, tuple | list) and not result):
                fail(f"{self.name}: returns nothing; return at least one value computed from the parameters")
            return self.value(f"{self.name}: the result", result)

    def close(
        self, parts: Sequence[tuple[GraphTrace, Atom]], given: Sequence[int]
    ) -> tuple[tuple[Var, ...], tuple[str, ...]]:
        """Add functions within this one, which are handed the same values of it, to the module.

        `given` are the numbers of parameters that they have before those that stand for captured variables. Returns the variables
        to pass for these, and the names of the dims to pass as shape arguments.
        """
        captured = tuple(dict.fromkeys(v for inside, _ in parts for v in inside.captured))
        functions: list[Function] = []
        for (inside, result), many in zip(parts, given, strict=True):
            made = inside.function.finish(result)
            extra = tuple(inside.capture(v) for v in captured)
            functions.append(replace(made, parameters=made.parameters[:many] + extra))
        dims = tuple(sorted(set().union(*map(open_symbols, functions)) & self.scope))
        for f in functions:
            self.module.builder.add(replace(f, dims=dims))
        return captured, dims


def open_symbols(function: Function) -> set[str]:
    """The dim symbols that a function uses before anything tells their sizes: dims of parameters that are symbols alone do, and
    the shapes of values that are taken out of others.
    """
    given = [d for p in function.parameters for d in value_dims(p.annotation)]
    known = {d.name for d in given if d.is_Symbol}
    held = set().union(*(symbols_in(p.annotation) for p in function.parameters))
    found = set().union(*map(symbols_of, given)) - known
    for b in function.bindings:
        if not isinstance(b.value, Var | Constant | ShapeValue | OpCall):
            new = determined([b.var.annotation], known)
            known |= new if isinstance(b.value, MatchCast) else new & held
        found |= symbols_used(b.value) - known
        found |= set().union(*map(symbols_of, value_dims(b.var.annotation))) - known
    return found | set().union(*map(symbols_of, value_dims(function.returns))) - known


def graph_trace(name: str) -> GraphTrace:
    """The graph function that is being traced; raises TraceError where there is none."""
    found = running(name).graph
    if found is None:
        fail(f"{name}: programs have no such thing; compile the function with mirage.compile")
    return found
