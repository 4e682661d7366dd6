"""Tensor expressions and loop programs: the lowered form of operators (Relax, section 3.2), free of any schedule."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import sympy

from mirage.errors import InputError, LoopError
from mirage.ir.dims import Dim, symbols_of, to_dim
from mirage.ir.loops.scalars import Checked, Loop, Operand, Read, Scalar, Size, size, value_dtype
from mirage.ir.loops.traverse import loops_of, reads_of, walk
from mirage.ir.requirements import AtMost
from mirage.ir.types import ELEMENTS, TensorType

#: what reductions combine their elements with; argmax and argmin give the first index (int64) of the extreme element
COMBINERS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


@dataclass(frozen=True)
class TensorExpr:
    """`out[i0, i1, ...] = body`, or the reduction of `body` over further loops.

    Loop k of `loops` runs over dim k of `shape`. `reduce` are (loop, extent) from the outermost to the innermost, and
    `combiner` one of `COMBINERS` where there are any. The maximum of no elements is -inf or the least integer, the minimum
    inf or the largest; argmax and argmin of none are 0. Raises LoopError.
    """

    shape: tuple[Dim, ...]
    dtype: str
    loops: tuple[str, ...]
    body: Scalar
    reduce: tuple[tuple[str, Dim], ...] = ()
    combiner: str = ""

    def __post_init__(self) -> None:
        names = [*self.loops, *(r for r, _ in self.reduce)]
        if len(self.loops) != len(self.shape) or len(set(names)) != len(names):
            raise LoopError(
                f"loops {', '.join(names) or 'none'} for a tensor of rank {len(self.shape)}; name one per dim"
            )
        if unknown := loops_of(self.body) - set(names):
            raise LoopError(f"the body depends on loops {', '.join(sorted(unknown))}, which the tensor does not have")
        if self.dtype not in ELEMENTS:
            raise LoopError(f"dtype {self.dtype!r} is not known; one of {', '.join(ELEMENTS)}")
        if bool(self.reduce) != (self.combiner in COMBINERS):
            raise LoopError(
                f"combiner {self.combiner!r} with {len(self.reduce)} reduction loops; a reduction needs both"
            )
        found, wanted = self.body.dtype, value_dtype(self.dtype)
        if self.combiner.startswith("arg"):
            if len(self.reduce) != 1 or self.dtype != "int64":
                raise LoopError(f"{self.combiner}: reduces one loop to int64, not {len(self.reduce)} to {self.dtype}")
        elif found != wanted:
            raise LoopError(f"the body is {found}, the tensor {self.dtype}; cast the body")
        if (self.combiner in ("any", "all")) != (found == "bool") and self.combiner:
            raise LoopError(f"{self.combiner}: the body is {found}; any and all reduce bools, the others numbers")
        for r in reads_of(self.body):
            if any(_is_data(i) for i in r.index):
                raise LoopError(f"{r.tensor}: an index is read from a tensor; put it in checked(...)")

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    @cached_property
    def extents(self) -> dict[str, Dim]:
        """The extent of every loop, output loops first."""
        return {**dict(zip(self.loops, self.shape, strict=True)), **dict(self.reduce)}

    def symbols(self) -> set[str]:
        """The dim symbols of extents and body."""
        dims = [*self.extents.values(), *(n.dim for n in walk(self.body) if isinstance(n, Size))]
        dims += [n.extent for n in walk(self.body) if isinstance(n, Checked)]
        return set().union(*(symbols_of(d) for d in dims)) if dims else set()


def _is_data(index: Scalar) -> bool:
    """Whether an index depends on data outside of `checked`."""
    stack = [index]
    while stack:
        node = stack.pop()
        if isinstance(node, Read):
            return True
        if not isinstance(node, Checked):
            stack += node.operands
    return False


@dataclass(frozen=True)
class LoopProgram:
    """A kernel at loop level: stages in order, each a `TensorExpr` over the inputs and earlier stages.

    `outputs` are names of stages; the others are intermediate, local to the kernel. Every dim symbol is a dim of some
    input as it stands, or one of `dims`: extra shape parameters (Relax, Fig. 8). `needs` must hold of the sizes of a call:
    reads and writes are within their tensors only then. `operators` is what it stands for, as text of one function of the
    graph IR: empty where it was written by hand. Raises LoopError.
    """

    name: str
    inputs: tuple[tuple[str, TensorType], ...]
    dims: tuple[str, ...]
    stages: tuple[tuple[str, TensorExpr], ...]
    outputs: tuple[str, ...]
    needs: tuple[AtMost, ...] = ()
    operators: str = ""

    kind = "loops"

    def __post_init__(self) -> None:
        known: dict[str, TensorType] = {}
        for name, type in self.inputs:
            self._add(known, name, type)
        for name, stage in self.stages:
            for r in reads_of(stage.body):
                if r.tensor not in known:
                    raise LoopError(f"{self.name}, {name}: reads {r.tensor!r}, which is no input and no earlier stage")
                t = known[r.tensor]
                if len(r.index) != t.rank or r.type != value_dtype(t.dtype):
                    raise LoopError(
                        f"{self.name}, {name}: reads {r.tensor!r} as {r.type} of rank {len(r.index)}; it is {t}"
                    )
            self._add(known, name, stage.type)
        stages = {n for n, _ in self.stages}
        if not self.outputs or len(set(self.outputs)) != len(self.outputs) or not set(self.outputs) <= stages:
            raise LoopError(f"{self.name}: outputs {', '.join(self.outputs) or 'none'}; name stages, each once")
        if loose := sorted(set(self.symbols) - {str(d) for _, t in self.inputs for d in t.shape} - set(self.dims)):
            raise LoopError(f"{self.name}: nothing gives the dims {', '.join(loose)}; add them to the extra dims")
        used = set(known) | {loop for _, s in self.stages for loop in s.extents}
        if clash := sorted(used & set(self.symbols)):
            raise LoopError(f"{self.name}: {', '.join(clash)} names a dim and a tensor or loop; rename one")

    def _add(self, known: dict[str, TensorType], name: str, type: TensorType) -> None:
        if name in known:
            raise LoopError(f"{self.name}: {name!r} is defined twice; give each tensor its own name")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise LoopError(f"{self.name}: {name!r} is not an identifier; use letters, digits and _")
        known[name] = type

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Every dim symbol, sorted: what a call must give the sizes of."""
        found = set(self.dims).union(*(t.symbols() for _, t in self.inputs), *(s.symbols() for _, s in self.stages))
        return tuple(sorted(found.union(*(n.symbols() for n in self.needs))))

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raises InputError for sizes that are not as the program needs them."""
        for need in self.needs:
            if problem := need.problem(sizes):
                raise InputError(f"{self.name}: {problem}")

    @cached_property
    def expressions(self) -> dict[str, TensorExpr]:
        """Stages by name."""
        return dict(self.stages)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(t for _, t in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.expressions[o].type for o in self.outputs)

    def to_text(self) -> str:
        """Text that `mirage.ir.loops.parse.parse_loops` reads back to an equal program."""
        from mirage.ir.loops.text import print_loops

        return print_loops(self)

    def __str__(self) -> str:
        return self.to_text()


def single(name: str, types: Sequence[TensorType], expression: TensorExpr) -> LoopProgram:
    """The program of one stage, `out`, over inputs `x0`, `x1`, ..."""
    inputs = tuple((f"x{i}", t) for i, t in enumerate(types))
    return LoopProgram(name, inputs, extra_dims(types, [expression]), (("out", expression),), ("out",))


def extra_dims(
    types: Sequence[TensorType], stages: Sequence[TensorExpr], needs: Sequence[AtMost] = ()
) -> tuple[str, ...]:
    """The symbols that no input has as a dim, sorted."""
    given = {str(d) for t in types for d in t.shape if d.is_Symbol}
    used = [*(t.symbols() for t in types), *(s.symbols() for s in stages), *(n.symbols() for n in needs)]
    return tuple(sorted(set().union(*used) - given))


def operands(types: Sequence[TensorType]) -> tuple[Operand, ...]:
    """The operands of an operator's rule, to read from: operand k is the input `xk`."""
    return tuple(Operand(f"x{k}", t) for k, t in enumerate(types))


def compute(out: TensorType, body: Callable[..., Scalar]) -> TensorExpr:
    """`out[i0, i1, ...] = body(i0, i1, ...)`: a rule without a reduction."""
    loops = tuple(f"i{k}" for k in range(out.rank))
    return TensorExpr(out.shape, out.dtype, loops, body(*map(Loop, loops)))


def reduction(
    out: TensorType,
    over: Sequence[Dim],
    combiner: str,
    body: Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], Scalar],
) -> TensorExpr:
    """`out[i...] = combiner of body(i, r)` for r over these extents. No extents: no reduction, but for any and all of a
    number, which is compared with 0 by the rule itself.
    """
    loops = tuple(f"i{k}" for k in range(out.rank))
    names = tuple(f"r{k}" for k in range(len(over)))
    value = body(tuple(map(Loop, loops)), tuple(map(Loop, names)))
    reduce = tuple((n, to_dim(d)) for n, d in zip(names, over, strict=True))
    return TensorExpr(out.shape, out.dtype, loops, value, reduce, combiner if reduce else "")


def reduce_axes(combiner: str, x: TensorType, axes: Sequence[int], out: TensorType) -> TensorExpr:
    """The operand `x0` reduced over dims 0 <= axis < rank, which `out` lacks, or has with size 1."""
    (operand,) = operands([x])
    kept = out.rank == x.rank

    def element(i: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        rest, over = iter(i), dict(zip(axes, r, strict=True))
        index: list[Scalar] = []
        for k in range(x.rank):
            own = next(rest) if kept or k not in over else None
            index.append(over[k] if own is None or k in over else own)
        return operand[tuple(index)]

    return reduction(out, [x.shape[a] for a in axes], combiner, element)


def fresh(name: str, taken: set[str]) -> str:
    """The name, with underscores behind if it is taken; it is taken from here on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def ravel(index: Sequence[Scalar], shape: Sequence[Dim]) -> Scalar:
    """The position in row-major order of an element of a tensor of this shape."""
    flat: Scalar = size(0)
    for i, d in zip(index, shape, strict=True):
        flat = flat * d + i
    return flat


def unravel(flat: Scalar, shape: Sequence[Dim]) -> tuple[Scalar, ...]:
    """The index of the element at this position in row-major order."""
    index: list[Scalar] = []
    for k, d in enumerate(shape):
        inner = sympy.expand(sympy.prod(shape[k + 1 :]))
        # the outermost quotient is less than its dim
        index.append(flat // inner if k == 0 else (flat // inner) % d)
    return tuple(index)
