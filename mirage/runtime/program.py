"""Code of the virtual machine, as plain data (Relax, section 4.7).

A program has functions, each a straight line of instructions over registers. A register is written once; the first ones
hold the parameters. Shapes are dim expressions: loading gives each a slot in the host tensor of sizes of its function.

    AllocStorage    memory, in the function's arena or of its own       CallFunction, If, Loop    other functions
    MakeTensor      a tensor in a storage, or one that outlives it      MatchShape                check a value, bind dims
    Reshape         a tensor under another shape                        MakeShape, ShapeOf        shapes as values
    CallKernel      compiled code, in destination-passing style         MakeTuple, GetItem        tuples
    CallLibrary     a registered library function, in the same style    Free                      drop values
    CallPacked      a registered Python function, with effects          Return                    the last instruction
    CallOperator    an operator's meaning in NumPy
    Construct       a value of a data type                              Match           another function for each form of it
    MakeClosure     a function as a value                               CallValue       a call of one
    Reference       a place that is read and written

A function that calls itself, or has one of the last five, is *stacked*, and so is one that calls such a function: its calls are
on a stack of the machine's own, as deep as memory allows, and it has no arena.

All tensors in registers are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import networkx as nx

from mirage.ir.annotations import Annotation
from mirage.ir.codec import register
from mirage.ir.data import DataDeclaration
from mirage.ir.dims import Dim, dim_text
from mirage.ir.graph.parse import parse_declaration
from mirage.ir.graph.patterns import Pattern
from mirage.ir.graph.text import print_declaration
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType, shape_text

# classes of users are not stored
register(DataDeclaration, None, print_declaration, parse_declaration)

Registers: TypeAlias = tuple[int, ...]
Dims: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter and what its values must be. One that the function updates `in_place` must be writable."""

    name: str
    annotation: Annotation
    in_place: bool = False


@dataclass(frozen=True)
class Guard:
    """What must be true of dims as soon as they are known: `dim` ==, >=, <= `value`, or (%) is a multiple of it.

    `reason` says who wants it.
    """

    dim: Dim
    relation: str
    value: Dim
    reason: str = ""

    def __str__(self) -> str:
        relation = "is a multiple of" if self.relation == "%" else self.relation
        return f"{dim_text(self.dim)} {relation} {dim_text(self.value)}"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What all instructions have: `where` is the user's line."""

    where: str = field(default="", compare=False)

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in ("where", "out")]
        text = f"{type(self).__name__}({', '.join(f'{name}={_text(value)}' for name, value in given)})"
        out = getattr(self, "out", None)
        return text if out is None else f"r{out} = {text}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_text(v) for v in value)}]"
    if isinstance(value, DataDeclaration):
        return value.name
    return repr(value) if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class AllocStorage(Instruction):
    """So many bytes of memory: from an offset of the function's arena, or (None) that grow with the sizes of calls."""

    storage: int
    bytes: Dim
    offset: int | None = None


@dataclass(frozen=True)
class MakeTensor(Instruction):
    """An uninitialised tensor at `offset` bytes of a storage; in fresh memory, which the caller owns, if that is None."""

    out: int
    storage: int | None
    offset: int
    shape: Dims
    dtype: str


@dataclass(frozen=True)
class Reshape(Instruction):
    """The elements of a tensor, in the same memory, under another shape."""

    out: int
    value: int
    shape: Dims


@dataclass(frozen=True)
class CallKernel(Instruction):
    """Run a kernel of the program: it writes `outputs`, and may write `workspace`."""

    kernel: int
    inputs: Registers
    outputs: Registers
    dims: Dims = ()
    workspace: Registers = ()


@dataclass(frozen=True)
class CallLibrary(Instruction):
    """Run a registered library function, which writes `outputs`; it gets the sizes of dims among its attributes."""

    function: str
    inputs: Registers
    outputs: Registers
    attrs: AttrItems = ()


@dataclass(frozen=True)
class CallPacked(Instruction):
    """Run a registered Python function, which may write the arguments at the positions `in_place`, and return these.

    Any other argument that it returns is copied.
    """

    out: int
    function: str
    args: Registers
    attrs: AttrItems = ()
    in_place: tuple[int, ...] = ()


@dataclass(frozen=True)
class CallOperator(Instruction):
    """Run an operator's NumPy meaning, which allocates its result."""

    out: int
    operator: str
    args: Registers
    attrs: AttrItems = ()


@dataclass(frozen=True)
class CallFunction(Instruction):
    """Call a function of the program; `dims` are its extra shape arguments (Relax, Fig. 8).

    Its arena is in `memory`, a storage; it has one of its own if that is None.
    """

    out: int
    function: str
    args: Registers
    dims: Dims = ()
    memory: int | None = None


@dataclass(frozen=True)
class If(Instruction):
    """Call `then` if the boolean scalar `condition` is true, else `orelse`."""

    out: int
    condition: int
    then: str
    orelse: str
    args: Registers
    dims: Dims = ()
    memory: int | None = None


@dataclass(frozen=True)
class Loop(Instruction):
    """carried = body(i, carried..., invariant...) for i = 0, 1, ... as an int64 scalar; the result is as that of the body.

    It runs `count` times, or as often as the integer scalar in register `times` says, at most `bound` then.
    """

    out: int
    body: str
    carried: Registers
    invariant: Registers = ()
    count: Dim | None = None
    times: int | None = None
    bound: Dim | None = None
    dims: Dims = ()
    memory: int | None = None


@dataclass(frozen=True)
class Construct(Instruction):
    """A value of a data type: its constructor of number `index` with these fields."""

    out: int
    data: DataDeclaration
    index: int
    fields: Registers


@dataclass(frozen=True)
class Match(Instruction):
    """Call the function of the first clause whose pattern matches a value, with what the pattern binds, and `args`."""

    out: int
    value: int
    patterns: tuple[Pattern, ...]
    functions: tuple[str, ...]
    args: Registers
    dims: Dims = ()


@dataclass(frozen=True)
class MakeClosure(Instruction):
    """A function as a value: its last arguments, and its extra shape arguments, are given now."""

    out: int
    function: str
    args: Registers
    dims: Dims = ()


@dataclass(frozen=True)
class CallValue(Instruction):
    """Call a function that is a value."""

    out: int
    value: int
    args: Registers


@dataclass(frozen=True)
class Reference(Instruction):
    """Make a reference to the last of `args` (`new`), or `read` or `write` the first."""

    out: int
    kind: str
    args: Registers


@dataclass(frozen=True)
class MatchShape(Instruction):
    """Check that a value, called `name`, is as annotated; dim symbols that are not known yet are bound."""

    value: int
    annotation: Annotation
    name: str


@dataclass(frozen=True)
class MakeShape(Instruction):
    """A shape as a value: a tuple of integers."""

    out: int
    dims: Dims


@dataclass(frozen=True)
class ShapeOf(Instruction):
    """The shape of a tensor as a value."""

    out: int
    value: int


@dataclass(frozen=True)
class MakeTuple(Instruction):
    """A tuple of values."""

    out: int
    items: Registers


@dataclass(frozen=True)
class GetItem(Instruction):
    """One item of a tuple."""

    out: int
    value: int
    index: int


@dataclass(frozen=True)
class Free(Instruction):
    """Drop values that nothing uses any more."""

    registers: Registers


@dataclass(frozen=True)
class Return(Instruction):
    """The result of the function."""

    value: int


@dataclass(frozen=True)
class Batched:
    """The batched form of a function of tensors: a function that does many calls at once, and of each tensor and shape in the
    arguments whether it is the same in all of them. The others get a leading dim, and the result is a tuple of tensors with one.
    """

    function: str
    shared: tuple[bool, ...]


@dataclass(frozen=True)
class OverList:
    """A function over a list, its first parameter, with a state, its second one, as a loop, which lists the states in a `scan`.

    A round is a function of its number, the tensors of the state, those of the item, those that are computed of the item
    beforehand, and all other parameters; it returns the tensors of the next state. What is computed beforehand, of all items at
    once, is a tuple of tensors, each with a row for every item, by the function `ahead`, if there is one: `given` has for each of
    its parameters which one it is of those that are neither list nor state, or -1 for the tensors of the items, each stacked.
    """

    function: str
    scan: bool
    ahead: str = ""
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class VMFunction:
    """A function: `dims` are extra shape parameters, `constants` (register, constant of the program), `arena` bytes.

    `registers` is how many it uses. Calls of one with a `batched` form may be recorded, and run together;
    one `over_list` may run as a loop.
    """

    name: str
    parameters: tuple[Parameter, ...]
    code: tuple[Instruction, ...]
    registers: int
    dims: tuple[str, ...] = ()
    constants: tuple[tuple[int, int], ...] = ()
    guards: tuple[Guard, ...] = ()
    arena: int = 0
    batched: Batched | None = None
    over_list: OverList | None = None

    def __str__(self) -> str:
        given = [f"r{k} {p.name}: {p.annotation}{' (in place)' * p.in_place}" for k, p in enumerate(self.parameters)]
        lines = [f"function {self.name}({', '.join([*given, *self.dims])}), arena of {self.arena} bytes"]
        if self.batched is not None:
            lines.append(f"    many calls at once: {self.batched.function}")
        if self.over_list is not None:
            lines.append(f"    items that are alike: {self.over_list.function}")
        lines += [f"    guard {g}" + f" ({g.reason})" * bool(g.reason) for g in self.guards]
        lines += [f"    r{register} = constant {k}" for register, k in self.constants]
        lines += [f"    {i}" + f"  # {i.where}" * bool(i.where) for i in self.code]
        return "\n".join(lines)


@dataclass(frozen=True)
class VMProgram:
    """Functions by name, of which users call `main`; names of the kernels and types of the constants that go with it.

    `data` are the data types that it declares.
    """

    functions: Mapping[str, VMFunction]
    kernels: tuple[str, ...] = ()
    constants: tuple[TensorType, ...] = ()
    main: str = "main"
    data: tuple[DataDeclaration, ...] = ()

    def __iter__(self) -> Iterator[VMFunction]:
        return iter(self.functions.values())

    def __str__(self) -> str:
        lines = [f"kernel {k}: {name}" for k, name in enumerate(self.kernels)]
        lines += [f"constant {k}: {t.dtype}[{shape_text(t.shape)}]" for k, t in enumerate(self.constants)]
        return "\n\n".join(["\n".join(lines)] * bool(lines) + [str(f) for f in self])


def called(i: Instruction) -> tuple[str, ...]:
    """Names of the functions that an instruction calls, or makes a value of."""
    match i:
        case CallFunction(function=name) | Loop(body=name) | MakeClosure(function=name):
            return (name,)
        case If(then=then, orelse=orelse):
            return (then, orelse)
        case Match(functions=names):
            return names
    return ()


def read(i: object) -> list[int]:
    """The registers whose values an instruction uses, also tensors that it writes to."""
    found: list[int] = []
    for name in ("value", "condition", "times"):
        r = getattr(i, name, None)
        found += [r] if isinstance(r, int) else []
    for name in ("args", "items", "fields", "carried", "invariant", "registers", "inputs", "outputs", "workspace"):
        found += getattr(i, name, ())
    return found


def stacked(program: VMProgram) -> frozenset[str]:
    """Names of the stacked functions of a program, see above."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(program.functions)
    graph.add_edges_from((f.name, name) for f in program for i in f.code for name in called(i))
    own = {n for group in nx.strongly_connected_components(graph) if len(group) > 1 for n in group}
    own |= {n for n in graph if graph.has_edge(n, n)}
    kinds = (Construct, Match, MakeClosure, CallValue, Reference)
    own |= {f.name for f in program if any(isinstance(i, kinds) for i in f.code)}
    # what a value is made of is called from the stack
    own |= {i.function for f in program for i in f.code if isinstance(i, MakeClosure)}
    own |= {name for f in program for i in f.code if isinstance(i, Match) for name in i.functions}
    return frozenset(own.union(*(nx.ancestors(graph, n) for n in own if n in graph)))
