"""Where a large program may be cut: into atoms, which no cut divides, and the sets of atoms that are searched together.

A cut stores values, so it should be where few small ones cross. An elementwise operator stays with its operands where its
result is no larger than what need not be stored then, or else with its reader, if there is only one. Values that scale with an
exp (`mirage.mugraph.degree`) stay with what they are divided by, so that the exp keeps its running maximum.

What may be stored after a cut is a *prefix*: a set of atoms with all that they read (an order ideal). A *piece* is what one
prefix has beyond another, and therefore convex: no value leaves it and comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from sympy.utilities.iterables import connected_components, strongly_connected_components

from mirage.ir.axes import AxisProgram
from mirage.ir.operator import Elementwise, get_operator
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.search.computed import SOURCES

#: operators of a piece: of more, a search takes more than a few seconds
MAX_OPERATORS = 12
#: prefixes that are told apart; of programs that have more, those of one order of the atoms
MAX_PREFIXES = 400

#: a set of atoms, a bit each
Atoms = int


class Cuts:
    """The atoms of a program for axes of these sizes (elements), in topological order, and their sets.

    `atoms` are the nodes of each, in order; `reads` the atoms that each one reads. Nodes that no output needs are in none.
    """

    def __init__(self, program: AxisProgram, axis_sizes: Mapping[str, int]) -> None:
        self.program = program
        self._sizes = axis_sizes
        #: the nodes that are computed, each with those that read it
        self._readers: dict[int, list[int]] = {i: [] for i in computed(program)}
        for i in self._readers:
            for j in self._operands(i):
                self._readers[j].append(i)
        self.atoms = self._atoms()
        self.number = {i: k for k, atom in enumerate(self.atoms) for i in atom}
        self.reads = tuple(
            sum(1 << j for j in {self.number[j] for i in atom for j in self._operands(i)} - {k})
            for k, atom in enumerate(self.atoms)
        )

    @property
    def all(self) -> Atoms:
        return (1 << len(self.atoms)) - 1

    def nodes(self, piece: Atoms) -> tuple[int, ...]:
        """The nodes of a set of atoms, in the program's order."""
        return tuple(sorted(i for k in members(piece) for i in self.atoms[k]))

    @cached_property
    def prefixes(self) -> tuple[Atoms, ...]:
        """Sets of atoms with all that they read, from none to all, smaller ones first."""
        found = {0}
        fresh = [0]
        while fresh:
            prefix = fresh.pop()
            for k, reads in enumerate(self.reads):
                larger = prefix | 1 << k
                if larger not in found and not reads & ~prefix:
                    found.add(larger)
                    fresh.append(larger)
            if len(found) > MAX_PREFIXES:
                return tuple((1 << k) - 1 for k in range(len(self.atoms) + 1))
        return tuple(sorted(found, key=lambda prefix: (prefix.bit_count(), prefix)))

    @cached_property
    def pieces(self) -> tuple[Atoms, ...]:
        """What a prefix has beyond another: every atom, and what is connected and has at most `MAX_OPERATORS` operators."""
        found: dict[Atoms, None] = {1 << k: None for k in range(len(self.atoms))}
        for k, prefix in enumerate(self.prefixes):
            for larger in self.prefixes[k + 1 :]:
                piece = larger & ~prefix
                if prefix & ~larger or piece in found or self._operators(piece) > MAX_OPERATORS:
                    continue
                if self._connected(piece):
                    found[piece] = None
        return tuple(found)

    def after(self, prefix: Atoms) -> Sequence[Atoms]:
        """The pieces with which a prefix makes another one."""
        return self._after[prefix]

    @cached_property
    def _after(self) -> dict[Atoms, list[Atoms]]:
        prefixes = set(self.prefixes)
        pieces = set(self.pieces)
        return {
            prefix: [p for larger in self.prefixes if not prefix & ~larger and (p := larger & ~prefix) in pieces]
            for prefix in prefixes
        }

    def _operators(self, piece: Atoms) -> int:
        return sum(len(self.atoms[k]) for k in members(piece))

    def _connected(self, piece: Atoms) -> bool:
        """Whether values flow between the atoms, or they read the same ones, so that there is something to share."""
        # what no atom computes has a negative number
        shared = [
            (k, self.number.get(j, -1 - j))
            for k in members(piece)
            for i in self.atoms[k]
            for j in self.program.nodes[i].operands
            if self.program.nodes[j].axes
        ]
        return len(connected_components((sorted({*members(piece), *(j for _, j in shared)}), shared))) == 1

    def _operands(self, i: int) -> list[int]:
        """The computed values that a node reads."""
        return [j for j in dict.fromkeys(self.program.nodes[i].operands) if j in self._readers]

    def _elements(self, i: int) -> int:
        return math.prod(self._sizes[a] for a in self.program.nodes[i].axes)

    def _atoms(self) -> tuple[tuple[int, ...], ...]:
        flow = [(i, j) for i in self._readers for j in self._operands(i)]
        # read both ways, what stays together is strongly connected, as are atoms that would read each other
        flow += self._together()
        atoms = [tuple(sorted(found)) for found in strongly_connected_components((list(self._readers), flow))]
        own = {i: atom for atom in atoms for i in atom}
        # depth-first from the outputs, so that what is computed for one reader is adjacent
        done: dict[tuple[int, ...], None] = {}
        stack = sorted({own[o.value] for o in self.program.outputs if o.value in own}, reverse=True)
        while stack:
            missing = {own[j] for i in stack[-1] for j in self._operands(i)} - {stack[-1], *done}
            if missing:
                stack += sorted(missing, reverse=True)
            else:
                done[stack.pop()] = None
        return tuple(done)

    def _together(self) -> Iterator[tuple[int, int]]:
        """Values, each with a reader of which no cut parts it."""
        stored = {o.value for o in self.program.outputs}
        degree = analyze(reference_graph(self.program)).degree
        for i, readers in self._readers.items():
            operands = self._operands(i)
            scales = degree[(i,), 0]
            if scales:
                yield from ((i, reader) for reader in readers)
            if not isinstance(get_operator(self.program.nodes[i].op), Elementwise):
                continue
            saved = [j for j in operands if self._readers[j] == [i] and j not in stored]
            if saved and not scales and self._elements(i) <= sum(map(self._elements, saved)):
                yield max(saved, key=lambda j: (self._elements(j), j)), i
            elif len(readers) == 1 and i not in stored:
                yield i, readers[0]


def members(atoms: Atoms) -> list[int]:
    """The numbers of a set of atoms, in order."""
    return [k for k in range(atoms.bit_length()) if atoms >> k & 1]


def computed(program: AxisProgram) -> list[int]:
    """The nodes that outputs need and that are computed, in order."""
    needed = {o.value for o in program.outputs}
    for i in reversed(range(len(program.nodes))):
        if i in needed:
            needed.update(program.nodes[i].operands)
    return [i for i in sorted(needed) if program.nodes[i].op not in SOURCES]
