"""Well-formedness of modules: what holds of every module that users give, and after every pass.

- `main` exists, functions call functions and kernels that exist; one that calls itself, directly or not, returns in some case.
- Data types are declared well; the clauses of a match cover every case, and each is reached (`mirage.ir.graph.patterns`).
- Names are unique; every variable is defined before it is used; bindings of dataflow blocks have no effects.
- Every dim that a binding uses is known before it: from the shapes of the parameters, as an extra shape parameter, or from
  an earlier match_cast.
- Every binding's annotation follows from its operands (`mirage.ir.graph.deduce`), or says less. More takes a match_cast.

A check is linear in the size of the module. Errors name the function and the binding, and the user's line where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NoReturn

import numpy as np

from mirage.errors import GraphError, MirageError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    NeverType,
    ObjectType,
    PartialTensor,
    ReferenceType,
    TupleType,
    TypeVariable,
    at_least,
    parts,
    symbols_in,
)
from mirage.ir.data import PRELUDE, DataDeclaration, check_declarations, check_types
from mirage.ir.dims import symbol, symbols_of
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.effects import callees, is_pure
from mirage.ir.graph.fit import check_cast
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Constant,
    Construct,
    Expr,
    Function,
    Kernel,
    KernelCall,
    LibraryCall,
    Match,
    MatchCast,
    Module,
    OpCall,
    PackedCall,
    ShapeCall,
    ShapeValue,
    Var,
)
from mirage.ir.graph.order import call_graph, components
from mirage.ir.graph.patterns import Case, Fields, Pattern, check_clauses, names
from mirage.ir.graph.text import free_text
from mirage.ir.graph.traverse import atoms, determined, signature_symbols, symbols_used, value_dims
from mirage.ir.graph_operator import check_number
from mirage.ir.operator import get_operator
from mirage.ir.operators.in_place import EFFECTS
from mirage.ir.program import identifier
from mirage.ir.types import ELEMENTS, TensorType


def check(module: Module) -> None:
    """Raises GraphError, or what operators raise, unless the module is well-formed; see above."""
    check_module(module)
    data = {**PRELUDE, **module.data}
    for group in components(call_graph(module)):
        for name in group:
            check_function(module.functions[name], module.functions, module.kernels, data)


def check_module(module: Module) -> None:
    """What `check` says of a module apart from the bodies of its functions."""
    check_declarations(module.data)
    for name, function in module.functions.items():
        if name != function.name:
            raise GraphError(f"function {function.name} stands in the module as {name!r}; use its name")
    for name in module.kernels:
        identifier("kernel", name)
        if name in module.functions:
            raise GraphError(f"{name!r} is a function and a kernel; give one of them another name")
    if module.main not in module.functions:
        known = ", ".join(module.functions) or "none"
        raise GraphError(f"the module has no function {module.main!r} to begin with; its functions are {known}")
    if dims := module.functions[module.main].dims:
        raise GraphError(f"{module.main}: nothing gives the extra shape parameters {', '.join(dims)} of the main function")
    for function in module:
        for b in function.bindings:
            for name in callees(b.value):
                if name not in module.functions:
                    _wrong(function, b, f"calls {name!r}, which is no function of the module")
    main = module.functions[module.main]
    for p in main.parameters:
        if variable := next((a for a in parts(p.annotation) if isinstance(a, TypeVariable)), None):
            raise GraphError(f"{main.name}: parameter {p.name!r}: nothing tells the type {variable} of a main function")
    for a in parts(main.returns):
        if isinstance(a, CallableType | ReferenceType):
            raise GraphError(f"{main.name}: the result is {main.returns}, and only programs have {a}; return what it gives")


def check_function(
    function: Function,
    functions: Mapping[str, Function],
    kernels: Mapping[str, Kernel],
    data: Mapping[str, DataDeclaration] = PRELUDE,
) -> None:
    """What `check` says of one function of a module with these functions, kernels and data types."""
    _Check(function, functions, kernels, data).run()


def _wrong(function: Function, b: Binding, problem: str) -> NoReturn:
    raise GraphError(_named(function, b, problem))


def _named(function: Function, b: Binding, problem: str) -> str:
    return f"{f'{b.where}: ' if b.where else ''}{function.name}: {b.var.name}: {problem}"


class _Check:
    def __init__(
        self,
        function: Function,
        functions: Mapping[str, Function],
        kernels: Mapping[str, Kernel],
        data: Mapping[str, DataDeclaration],
    ) -> None:
        self.function = function
        self.data = data
        self.functions = functions
        self.kernels = kernels
        self.defined: set[Var] = set()
        self.names: set[str] = set()
        #: scalar constants
        self.numbers: dict[Atom, Fraction] = {}
        self.known = signature_symbols(function)
        #: dims of what parameters hold, of which the values within tell the sizes when they are taken out
        self.held = set().union(*(symbols_in(p.annotation) for p in function.parameters))

    def run(self) -> None:
        f = self.function
        self.signature()
        for block in f.blocks:
            for b in block.bindings:
                if block.dataflow and not is_pure(b.value, self.functions):
                    _wrong(f, b, "has effects, but stands in a dataflow block; put it outside of the block")
                try:
                    self.binding(b)
                except MirageError as e:
                    raise type(e)(_named(f, b, str(e))) from None
        try:
            self.operand(f.result)
            if _has_scalar(f.returns):
                raise GraphError(
                    f"{f.returns} has no element type of its own; return a tensor: mirage.full((), value, dtype)"
                )
        except GraphError as e:
            raise GraphError(f"{f.name}: the result: {e}") from None
        # a clause for the values of an empty list is never called
        if isinstance(f.returns, NeverType) and not any(isinstance(p.annotation, NeverType) for p in f.parameters):
            raise GraphError(f"{f.name}: it never returns, since each of its cases calls itself; give it one that does not")

    def signature(self) -> None:
        f = self.function
        identifier("function", f.name)
        for name in f.dims:
            symbol(name)
        if len(set(f.dims)) != len(f.dims):
            raise GraphError(f"{f.name}: extra shape parameters {', '.join(f.dims)} repeat a name; use each once")
        for p in f.parameters:
            self.define(p, f"{f.name}: parameter {p.name!r}")
            if _has_scalar(p.annotation):
                raise GraphError(
                    f"{f.name}: parameter {p.name!r} is {p.annotation}, without an element type; give it one"
                )
            check_types(f"{f.name}: parameter {p.name!r}", p.annotation, self.data)
            self.bound(p.annotation, f"{f.name}: parameter {p.name!r} is {p.annotation}")
        for _, value in f.attrs:
            free_text(value)

    def define(self, var: Var, what: str) -> None:
        identifier("variable", var.name)
        if var in self.defined or var.name in self.names:
            raise GraphError(f"{what}: the name {var.name!r} is taken; names are unique in a function")
        self.defined.add(var)
        self.names.add(var.name)

    def bound(self, annotation: Annotation, what: str) -> None:
        """Every dim of an annotation is known."""
        for d in value_dims(annotation):
            if unknown := symbols_of(d) - self.known:
                raise GraphError(
                    f"{what}: nothing gives the size of {', '.join(sorted(unknown))}; use it as a dim of a parameter, add an "
                    "extra shape parameter, or a match_cast before"
                )

    def operand(self, atom: Atom) -> None:
        if isinstance(atom, Var):
            if atom not in self.defined:
                same = " (another variable of that name is)" if atom.name in self.names else ""
                raise GraphError(f"reads {atom.name!r}, which is not defined before{same}")
        elif isinstance(atom, Constant):
            t = atom.annotation
            if ELEMENTS.get(t.dtype) != atom.array.dtype or t.bind({}) != np.shape(atom.array):
                raise GraphError(f"a constant of {atom.array.dtype}{list(atom.array.shape)} is annotated as {t}")
        else:
            self.bound(atom.annotation, f"the shape {atom.annotation}")

    def binding(self, b: Binding) -> None:
        value = b.value
        for a in atoms(value):
            self.operand(a)
        self.expression(value)
        new: set[str] = set()
        if isinstance(value, MatchCast):
            new = determined([value.annotation], self.known) - self.known
        elif not isinstance(value, Var | Constant | ShapeValue | OpCall):
            new = (determined([b.var.annotation], self.known) - self.known) & self.held
        if unknown := symbols_used(value) - self.known - new:
            raise GraphError(
                f"nothing gives the size of {', '.join(sorted(unknown))}; use it as a dim of a parameter, add an extra shape "
                "parameter, or a match_cast before"
            )
        self.known |= new
        check_types("its annotation", b.var.annotation, self.data)
        found = deduce(value, self.functions)
        if not at_least(b.var.annotation, found):
            raise GraphError(
                f"is annotated as {b.var.annotation}, but its value is {found}; only a match_cast may say more"
            )
        self.define(b.var, b.var.name)
        if isinstance(value, OpCall) and value.op == "constant":
            self.numbers[b.var] = dict(value.attrs)["value"]

    def expression(self, value: Expr) -> None:
        match value:
            case OpCall(op, args, attrs):
                operator = get_operator(op)
                met = operator.scalar_dtype([a.annotation for a in args])
                for a in args:
                    if a in self.numbers:
                        check_number(op, self.numbers[a], met)
                if operator.check_attrs(dict(attrs)) != dict(attrs):
                    raise GraphError(
                        f"{op}: attributes {dict(attrs)} are not as the operator gives them; use check_attrs"
                    )
            case MatchCast((given,), wanted):
                check_cast(given.annotation, wanted, "match_cast: the value")
            case KernelCall(name, args, out, dims):
                if name not in self.kernels:
                    raise GraphError(f"calls kernel {name!r}, which is not in the module; add it")
                kernel = self.kernels[name]
                if len(dims) != len(kernel.symbols):
                    given_dims = f"{len(dims)} sizes for its symbols ({', '.join(kernel.symbols)})"
                    raise GraphError(f"kernel {name}: {given_dims}; pass one for each")
                wanted_out = [(t.rank, t.dtype) for t in kernel.output_types]
                if [(t.rank, t.dtype) for t in out] != wanted_out:
                    raise GraphError(
                        f"kernel {name}: results {_types(out)}, but it computes {_types(kernel.output_types)}"
                    )
                _tensors(f"kernel {name}", args)
            case LibraryCall(name, args, out, attrs):
                if not out or any(t.dtype not in ELEMENTS for t in out):
                    raise GraphError(f"library function {name!r}: results {_types(out)}; it gives at least one tensor")
                # what another function made for it is an object
                tensors = tuple(a for a in args if not isinstance(a.annotation, ObjectType))
                _tensors(f"library function {name!r}", tensors)
                for _, v in attrs:
                    free_text(v)
            case PackedCall(name, args, annotation, attrs, in_place):
                for i in in_place:
                    if not 0 <= i < len(args) or not isinstance(args[i], Var) or not _is_tensor(args[i].annotation):
                        raise GraphError(
                            f"packed function {name!r}: argument {i}, written in place, is no tensor variable"
                        )
                for _, v in attrs:
                    free_text(v)
                if name in EFFECTS:
                    effect = EFFECTS[name]
                    if in_place != (0,) or effect.check_attrs(dict(attrs)) != dict(attrs):
                        raise GraphError(
                            f"effect {name!r}: use in_place=(0,) and the attributes that its check_attrs gives"
                        )
                    given_to = effect.annotate([a.annotation for a in args], dict(attrs))
                    if given_to != annotation:
                        raise GraphError(f"effect {name!r} gives {given_to}, not {annotation}")
            case Construct(data):
                self.declared(data)
            case Match(_, clauses):
                patterns = [c.pattern for c in clauses]
                for p in patterns:
                    self.pattern(p)
                check_clauses(patterns)
            case ShapeCall(name, rank=rank) if rank < 0:
                raise GraphError(f"shape function {name!r}: rank {rank} is negative")


    def declared(self, data: DataDeclaration) -> None:
        if self.data.get(data.name) != data:
            raise GraphError(f"data type {data.name} is not declared in the module as it is used here; declare it")

    def pattern(self, pattern: Pattern) -> None:
        if len(set(names(pattern))) != len(names(pattern)):
            raise GraphError(f"match: the pattern {pattern} binds a name twice; use each once")
        if isinstance(pattern, Case):
            self.declared(pattern.data)
        for p in pattern.fields if isinstance(pattern, Case | Fields) else ():
            self.pattern(p)


def _types(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types)) or "none"


def _is_tensor(annotation: Annotation) -> bool:
    return isinstance(annotation, TensorType | PartialTensor) and annotation.dtype != "scalar"


def _tensors(what: str, args: tuple[Atom, ...]) -> None:
    for k, a in enumerate(args):
        if not _is_tensor(a.annotation):
            raise GraphError(f"{what}: argument {k} is {a.annotation}; it takes tensors only")


def _has_scalar(annotation: Annotation) -> bool:
    match annotation:
        case TensorType(dtype=dtype) | PartialTensor(dtype=dtype):
            return dtype == "scalar"
        case TupleType(fields):
            return any(map(_has_scalar, fields))
    return False
