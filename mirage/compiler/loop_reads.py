"""Are the reads of a loop program within their tensors, whatever the sizes? Shown by the solver of constraints.

For each read, the loops around it are sizes below their extents, and the conditions of the choices that lead to it hold.
What cannot be shown for all sizes, but is an affine index whose ends are known, becomes something that the program needs
of the sizes of a call, which is checked before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import sympy

from mirage.compiler.constraints import Constraints
from mirage.errors import ConstraintError, DimError, LoopError
from mirage.ir.dim_functions import FloorDiv, Maximum, Minimum, Modulo
from mirage.ir.dims import Dim, dim_text, symbol
from mirage.ir.loops.program import LoopProgram, TensorExpr, fresh
from mirage.ir.loops.scalars import Binary, Checked, Const, Loop, Read, Scalar, Select, Size, Unary
from mirage.ir.loops.simplify import Affine, is_index, within
from mirage.ir.requirements import AtMost, always, never

#: a condition of a choice, and whether it holds
_Condition = tuple[Scalar, bool]
#: reads under different conditions that are told apart, in one stage: their number may double with every choice
_MOST_PATHS = 1024
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def with_reads_within(program: LoopProgram) -> LoopProgram:
    """The program, which may need more of the sizes of a call than before: then its reads are within their tensors.

    Raises LoopError for a read that is outside at all sizes, or whose ends are not known.
    """
    shapes = {n: t.shape for n, t in program.inputs} | {n: s.shape for n, s in program.stages}
    needs = dict.fromkeys(program.needs)
    for name, stage in program.stages:
        for read, path in _reads(stage.body):
            for axis, (index, extent) in enumerate(zip(read.index, shapes[read.tensor], strict=True)):
                if not path and within(index, extent, stage.extents):
                    continue
                terms = _Terms(stage.extents, {*program.symbols, *stage.extents})
                if _shown(index, extent, terms, path, tuple(needs)):
                    continue
                what = f"stage {name} reads within dim {axis} of {read.tensor}"
                needs.update(dict.fromkeys(_needed(index, extent, stage, what)))
    return replace(program, needs=tuple(needs))


def _reads(body: Scalar) -> Iterator[tuple[Read, frozenset[_Condition]]]:
    """The reads of an expression, each with every set of conditions under which it is evaluated."""
    seen: set[tuple[Scalar, frozenset[_Condition]]] = set()
    stack: list[tuple[Scalar, frozenset[_Condition]]] = [(body, frozenset())]
    while stack:
        node, path = found = stack.pop()
        if found in seen:
            continue
        seen.add(found)
        if isinstance(node, Read):
            yield node, path
        if isinstance(node, Select):
            stack.append((node.condition, path))
            told_apart = len(seen) < _MOST_PATHS
            for branch, holds in ((node.then, True), (node.orelse, False)):
                stack.append((branch, path | {(node.condition, holds)} if told_apart else frozenset()))
        else:
            stack += [(o, path) for o in node.operands]


def _shown(
    index: Scalar, extent: Dim, terms: _Terms, path: frozenset[_Condition], needs: tuple[AtMost, ...]
) -> bool:
    """Whether an index is proved to be one of `extent` elements wherever it is read."""
    try:
        value = terms.of(index)
        for loop, count in terms.extents.items():
            terms.facts.add_range(count, 1, None, loop)
        for n in needs:
            terms.facts.add_range(n.large - n.small, 0, None, n.what)
        for condition, holds in sorted(path, key=str):
            terms.add(condition, holds)
    except ConstraintError:
        # no element is read there
        return True
    except DimError:
        return False
    return value is not None and terms.facts.at_most(0, value) and terms.facts.less(value, extent)


def _needed(index: Scalar, extent: Dim, stage: TensorExpr, what: str) -> list[AtMost]:
    """What sizes have to fulfil; raises LoopError where none do, or where that is not known."""
    ends = Affine.of(index).bounds(stage.extents) if is_index(index) else None
    if ends is None:
        raise LoopError(f"{what}: its index {index} is not known to be; put it in checked(...)")
    found = [AtMost(sympy.Integer(0), ends[0], what), AtMost(sympy.expand(ends[1] + 1), extent, what)]
    for need in found:
        if never(need):
            raise LoopError(
                f"{what}: its index is from {dim_text(ends[0])} to {dim_text(ends[1])}, the dim has {dim_text(extent)} elements"
            )
    return [n for n in found if not always(n)]


@dataclass
class _Terms:
    """Scalars over dims and loops as dim expressions, in which a loop is a size below its extent."""

    extents: Mapping[str, Dim]
    taken: set[str]
    facts: Constraints = field(default_factory=Constraints)
    known: dict[Scalar, Dim] = field(default_factory=dict)

    def of(self, x: Scalar) -> Dim | None:
        """An index as a dim expression; None where it depends on more than loops, dims and checked data."""
        match x:
            case Const():
                return sympy.Integer(int(x.value)) if x.dtype == "int64" else None
            case Size():
                return x.dim
            case Loop():
                return self._below(x, x.name, self.extents[x.name])
            case Checked():
                return self._below(x, fresh("checked", self.taken), x.extent)
            case Unary(op="neg"):
                inner = self.of(x.x)
                return None if inner is None else -inner
            case Binary():
                left, right = self.of(x.left), self.of(x.right)
                if left is None or right is None:
                    return None
                match x.op:
                    case "add":
                        return left + right
                    case "sub":
                        return left - right
                    case "mul":
                        return left * right
                    case "max":
                        return Maximum(left, right)
                    case "min":
                        return Minimum(left, right)
                    case "floordiv" | "mod" if self.facts.less(0, right):
                        return FloorDiv(left, right) if x.op == "floordiv" else Modulo(left, right)
        return None

    def _below(self, x: Scalar, name: str, extent: Dim) -> Dim:
        if x not in self.known:
            self.known[x] = symbol(name)
            self.facts.add_range(extent - 1 - symbol(name), 0, None, name)
        return self.known[x]

    def add(self, condition: Scalar, holds: bool) -> None:
        """Take over what a condition that holds, or does not, says of indices; raises ConstraintError where it cannot."""
        match condition:
            case Unary(op="not"):
                self.add(condition.x, not holds)
            case Binary(op="and" | "or") if (condition.op == "and") == holds:
                self.add(condition.left, holds)
                self.add(condition.right, holds)
            case Binary(op=op) if op in _OPPOSITE:
                left, right = self.of(condition.left), self.of(condition.right)
                if left is None or right is None:
                    return
                match op if holds else _OPPOSITE[op]:
                    case "lt":
                        self.facts.add_range(right - left - 1, 0, None, "a condition")
                    case "le":
                        self.facts.add_range(right - left, 0, None, "a condition")
                    case "gt":
                        self.facts.add_range(left - right - 1, 0, None, "a condition")
                    case "ge":
                        self.facts.add_range(left - right, 0, None, "a condition")
                    case "eq":
                        self.facts.add_equal(left, right, "a condition")
