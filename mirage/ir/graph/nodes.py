"""The nodes of the graph IR (Relax, sections 3.1 to 3.3), immutable and in A-normal form.

    Module    = functions by name, kernels by name, data types by name, the main function
    Function  = parameters, extra shape parameters, blocks, result
    Block     = bindings; those of a dataflow block are pure, and may be reordered or removed
    Binding   = variable, expression, the user's line
    Atom      = Var | Constant | ShapeValue          an operand
    Expr      = Atom | OpCall | FunctionCall | KernelCall | LibraryCall | PackedCall | MakeTuple | TupleItem
              | ShapeOf | ShapeCall | If | Loop | MatchCast | Construct | Match | Closure | CallValue | ReferenceCall

Nothing nests: the branches of an `If`, the body of a `Loop`, the clauses of a `Match` and the function of a `Closure` are
functions of the module. So every analysis sees straight lines, and dims reach a branch as they reach any function: through its
signature, or as extra shape arguments. Functions may call themselves, directly or not.
Annotations of calls that cannot be deduced from the operands (`out`, `annotation`) are part of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from mirage.drawing.show import Displayed
from mirage.ir.annotations import Annotation, ShapeType
from mirage.ir.data import DataDeclaration
from mirage.ir.dims import Dim
from mirage.ir.graph.patterns import Pattern
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType

#: the attribute of a main function that names the packages, by spaces, from which its program came
PACKAGES = "packages"


@dataclass(frozen=True, eq=False)
class Var:
    """A variable: the object is its identity, the name is unique within a function."""

    name: str
    annotation: Annotation

    def __repr__(self) -> str:
        return f"{self.name}: {self.annotation}"


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose elements the compiler knows; the array must not be written to."""

    array: np.ndarray
    annotation: TensorType

    def __repr__(self) -> str:
        return f"constant {self.annotation}"


@dataclass(frozen=True)
class ShapeValue:
    """A shape made of dim expressions."""

    dims: tuple[Dim, ...]

    @property
    def annotation(self) -> ShapeType:
        return ShapeType(self.dims)


Atom: TypeAlias = Var | Constant | ShapeValue


@dataclass(frozen=True)
class OpCall:
    """A registered operator applied to operands; attributes may hold dims."""

    op: str
    args: tuple[Atom, ...]
    attrs: AttrItems = ()


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function of the module; `dims` are the values of its extra shape parameters (Relax, Fig. 8)."""

    function: str
    args: tuple[Atom, ...]
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel in destination-passing style (the paper's call_tir); `dims` are the sizes of its `symbols`, in order.

    `workspace` are tensors that the kernel needs between its steps (Relax, section 4.4).
    """

    kernel: str
    args: tuple[Atom, ...]
    out: tuple[TensorType, ...]
    dims: tuple[Dim, ...] = ()
    workspace: tuple[TensorType, ...] = ()


@dataclass(frozen=True)
class LibraryCall:
    """A call of a registered library function in destination-passing style (the paper's call_dps_library)."""

    function: str
    args: tuple[Atom, ...]
    out: tuple[TensorType, ...]
    attrs: AttrItems = ()


@dataclass(frozen=True)
class PackedCall:
    """An effectful call of a registered Python function; `in_place` are positions of the arguments that it writes to."""

    function: str
    args: tuple[Atom, ...]
    annotation: Annotation
    attrs: AttrItems = ()
    in_place: tuple[int, ...] = ()


@dataclass(frozen=True)
class MakeTuple:
    """A tuple of values."""

    args: tuple[Atom, ...]


@dataclass(frozen=True)
class TupleItem:
    """One field of a tuple."""

    args: tuple[Atom]
    index: int


@dataclass(frozen=True)
class ShapeOf:
    """The shape of a tensor as a value."""

    args: tuple[Atom]


@dataclass(frozen=True)
class ShapeCall:
    """An opaque, pure shape function: a registered Python function from shapes to a shape of `rank` dims."""

    function: str
    args: tuple[Atom, ...]
    rank: int


@dataclass(frozen=True)
class If:
    """One of two functions with the same parameters and result, as a boolean scalar decides; `args[0]` is the condition."""

    args: tuple[Atom, ...]
    then: str
    orelse: str
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class Loop:
    """`count` times: carried values = body(i, carried..., invariant...), i = 0, 1, ... as an int64 scalar.

    `args` are the carried values, `carried` many, then the invariant ones. A count that depends on data is an int64 scalar
    tensor: the first of `args` then, and `count` is None; `bound` is the most that it may be. The result is the tuple of
    carried values, or the only one.
    """

    body: str
    args: tuple[Atom, ...]
    carried: int
    count: Dim | None
    bound: Dim | None = None
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class MatchCast:
    """The value under another annotation, checked at run time; dim symbols that occur for the first time are introduced."""

    args: tuple[Atom]
    annotation: Annotation


@dataclass(frozen=True)
class Construct:
    """A value of a data type: its constructor of number `index`, applied to the fields."""

    data: DataDeclaration
    index: int
    args: tuple[Atom, ...] = ()

    @property
    def name(self) -> str:
        """The name of the constructor."""
        return self.data.constructors[self.index].name


@dataclass(frozen=True)
class Clause:
    """A pattern, and the function for values that it matches: it takes what the pattern binds, then what the match hands on."""

    pattern: Pattern
    function: str


@dataclass(frozen=True)
class Match:
    """The function of the first clause whose pattern matches `args[0]`; the rest of `args` is handed on to it."""

    args: tuple[Atom, ...]
    clauses: tuple[Clause, ...]
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class Closure:
    """A function of the module as a value: `args` are its last parameters, `dims` its extra shape parameters."""

    function: str
    args: tuple[Atom, ...] = ()
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class CallValue:
    """A call of a function that is a value, `args[0]`, with the other arguments."""

    args: tuple[Atom, ...]


@dataclass(frozen=True)
class ReferenceCall:
    """An effect on a reference: `new` makes one that holds `args[0]`, `read` gives what `args[0]` holds, `write` puts `args[1]`
    into `args[0]`, and gives it.
    """

    kind: str
    args: tuple[Atom, ...]


Call: TypeAlias = (
    OpCall
    | FunctionCall
    | KernelCall
    | LibraryCall
    | PackedCall
    | MakeTuple
    | TupleItem
    | ShapeOf
    | ShapeCall
    | If
    | Loop
    | MatchCast
    | Construct
    | Match
    | Closure
    | CallValue
    | ReferenceCall
)
Expr: TypeAlias = Atom | Call


@dataclass(frozen=True)
class Binding:
    """`var = value`; `where` is the user's line."""

    var: Var
    value: Expr
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Block:
    """Bindings in order. All of a dataflow block are pure."""

    bindings: tuple[Binding, ...]
    dataflow: bool = True


@dataclass(frozen=True)
class Function:
    """A function of a module. `dims` names dim symbols that callers pass in addition to those of the parameters.

    `attrs` say where a function comes from, such as ("origin", "partition"), and of the main function which packages its
    program came from (`PACKAGES`), by spaces: their library functions may be called.
    """

    name: str
    parameters: tuple[Var, ...]
    blocks: tuple[Block, ...]
    result: Atom
    dims: tuple[str, ...] = ()
    attrs: AttrItems = ()

    @property
    def returns(self) -> Annotation:
        """The annotation of the result."""
        return self.result.annotation

    @property
    def attr(self) -> dict[str, object]:
        return dict(self.attrs)

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of all blocks, in order."""
        return tuple(b for block in self.blocks for b in block.bindings)

    def __str__(self) -> str:
        from mirage.ir.graph.text import print_function

        return print_function(self)


class Kernel(Protocol):
    """What a `KernelCall` names: code below the graph level."""

    @property
    def kind(self) -> str:
        """The kind of kernel, by which its text is read again."""
        ...

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dim symbols that calls give the sizes of."""
        ...

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of its results, over its symbols."""
        ...

    def to_text(self) -> str:
        """Text from which the kernel can be made again."""
        ...


@dataclass(frozen=True)
class Module(Displayed, drawn_by="mirage.ir.graph.draw"):
    """A whole program: functions and kernels by name, and the name of the function that users call.

    `data` are the data types that it declares, beside those of the prelude (`mirage.ir.data.PRELUDE`).
    """

    functions: Mapping[str, Function]
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    main: str = "main"
    data: Mapping[str, DataDeclaration] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions.values())

    def with_function(self, function: Function) -> Module:
        """The module with a function added or replaced."""
        return replace(self, functions={**self.functions, function.name: function})

    def __str__(self) -> str:
        from mirage.ir.graph.text import print_module

        return print_module(self, elide=64)
