"""The operators of a search: those of the program, and those of the paper's Table 1 that its targets have room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage.ir.axes import AxisNode, AxisProgram
from mirage.ir.operator import REDUCTIONS
from mirage.search.abstract import Axis, Constant, Poly

#: attributes of an operator as (name, value) pairs
Attrs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Vocabulary:
    """The operators that a search may apply, on any operands.

    `inside` are operators that the program lacks and that may only be applied where one operand has all axes: a product of others
    is a matmul's, before its sum. So is one with few rows: `x @ w` is not tried as a sum of products where x has up to 4 rows.
    With one row, that makes more prefixes (lora 119 for 74, adapter_mlp 52 for 37, none in rmsnorm_linear, gated_mlp, moe and
    gqa_decode) and longer searches (1.28, 1.19 and 1.00 to 1.12 times), and the best cost stays the same in all of them: as
    modelled, a product and a sum take 0.10 ns where a matmul takes 0.03 ns, and graphs that cost so much more are not kept. Tuned
    kernels of that form take 0.83 to 0.91 times as long as a matmul's for 256 by 256 weights and 1 to 4 rows, but 1.5, 1.9 and 15
    times for 4096 by 1024 weights and 1, 2 and 4 rows (each the median of one race on a busy machine).
    """

    unary: tuple[tuple[str, Attrs], ...]
    binary: tuple[tuple[str, Attrs], ...]
    sums: tuple[tuple[str, ...], ...]
    matmuls: tuple[tuple[str, ...], ...]
    concats: tuple[AxisNode, ...]
    maxima: tuple[tuple[str, ...], ...] = ()
    inside: frozenset[str] = frozenset()

    @staticmethod
    def of(program: AxisProgram) -> Vocabulary:
        """The operators of a program."""
        plain = [n for n in program.nodes if n.op not in ("input", "constant", "size", "concat", *REDUCTIONS)]
        return Vocabulary(
            _distinct((n.op, n.attrs) for n in plain if len(n.operands) == 1),
            _distinct((n.op, n.attrs) for n in plain if len(n.operands) == 2),
            _distinct(n.reduce for n in program.nodes if n.op == "sum"),
            _distinct(n.reduce for n in program.nodes if n.op == "matmul"),
            tuple(n for n in program.nodes if n.op == "concat"),
            _distinct(n.reduce for n in program.nodes if n.op == "max"),
        )

    @staticmethod
    def table(program: AxisProgram, targets: Sequence[Poly]) -> Vocabulary:
        """The operators of a program, and what else of Table 1 a subexpression of its targets may be made by.

        A function that no target contains is in no subexpression, so those of the program are all. A sum of two values needs a
        place where terms are added, a quotient a denominator, a difference a factor of -1; all axes that are summed may be summed
        one by one, by a sum or by a matmul.
        """
        own = Vocabulary.of(program)
        sites = [site for poly in targets for site in poly.sites]
        monomials = [m for site in sites for m in site.terms]
        room = {
            "mul": any(sum(not isinstance(f, Axis) for f in m.factors) > 1 for m in monomials),
            "add": any(site.total > 1 for site in sites),
            "div": any(m.denominator is not None for m in monomials),
            "sub": any(isinstance(f, Constant) and f.value == Fraction(-1) for m in monomials for f in m.factors),
        }
        there = {op for op, _ in own.binary}
        more = tuple((op, ()) for op, possible in room.items() if possible and op not in there)
        reductions = _distinct(n.reduce for n in program.nodes if n.reduce and n.op != "max")
        single = [(a,) for over in reductions for a in over]
        return Vocabulary(
            own.unary,
            (*own.binary, *more),
            _distinct((*own.sums, *reductions, *single)),
            _distinct((*own.matmuls, *reductions, *single)),
            own.concats,
            own.maxima,
            frozenset(op for op, _ in more if op == "mul"),
        )

    @staticmethod
    def stages(program: AxisProgram, targets: Sequence[Poly]) -> tuple[Vocabulary, ...]:
        """Those of `table` in the order in which a search tries them: the program's own, and then what else there is, the most
        useful first. Sums and matmuls save whole axes, other operators a pass over a tile at most.
        """
        own, all_ = Vocabulary.of(program), Vocabulary.table(program, targets)
        reductions = Vocabulary((), (), _without(all_.sums, own.sums), _without(all_.matmuls, own.matmuls), ())
        elementwise = Vocabulary((), _without(all_.binary, own.binary), (), (), (), inside=all_.inside)
        return (own, *(v for v in (reductions, elementwise) if v.names))

    @property
    def names(self) -> tuple[str, ...]:
        """Its operators, for people."""
        reductions = ("sum", self.sums), ("matmul", self.matmuls), ("max", self.maxima)
        return (
            *(op for op, _ in (*self.unary, *self.binary)),
            *(f"{op} over {', '.join(over)}" for op, all_ in reductions for over in all_),
            *(n.op for n in self.concats),
        )


def _without(items: Sequence[Any], others: Sequence[Any]) -> Any:
    return tuple(x for x in items if x not in others)


def _distinct(items: Iterable[Any]) -> Any:
    return tuple(dict.fromkeys(items))
