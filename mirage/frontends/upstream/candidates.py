"""A candidate of an upstream file as a muGraph over the axes of its program, with the sizes that the file gives it.

The file's grids and loops are numbers; here an axis has a role, and the numbers are one schedule of a graph for all
sizes. Where a candidate keeps part of an axis apart (an accumulator that adds up whole tiles, a sum down to
`reduction_dimx`), the graph is one of the same program with that axis as a product of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sympy

from mirage.errors import AxisError, FormatError, GraphError, MirageError
from mirage.frontends.upstream.execute import Execution
from mirage.frontends.upstream.kernel import KernelBuilder
from mirage.frontends.upstream.partition import Cut
from mirage.frontends.upstream.read import Candidate, raw_candidates, read_candidate
from mirage.ir.axes import to_axes
from mirage.ir.codec import read_json
from mirage.ir.dims import Dim, divide, symbol
from mirage.ir.program import Program
from mirage.ir.refine import substituted, with_factors
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.validate import validate
from mirage.runtime.binding import SizeBinder

#: axes of a program that one candidate may divide into two, one after the other
MAX_CUTS = 16


@dataclass(frozen=True)
class Imported:
    """A candidate as a muGraph of `program`: the given one, or the same with axes divided as `cuts` says in words.

    `schedule` holds the grid, loop and tile sizes of the file, at these `sizes` of the program's dim symbols. Where a dim symbol
    has to be a multiple, the program's symbol counts these, and `condition` says so; it is empty otherwise.
    """

    index: int
    program: Program
    graph: MuGraph
    schedule: Schedule
    sizes: dict[str, int]
    cuts: tuple[str, ...]
    condition: str = ""


@dataclass(frozen=True)
class UpstreamFile:
    """A file of candidates, or one of them: `UpstreamFile(path, 3)`."""

    path: Path
    only: int | None = None

    @cached_property
    def raw(self) -> list[Any]:
        return raw_candidates(read_json(self.path), str(self.path))

    @property
    def indices(self) -> list[int]:
        """The candidates that are meant; raises FormatError where the file has no such candidate."""
        if self.only is None:
            return list(range(len(self.raw)))
        if not 0 <= self.only < len(self.raw):
            raise FormatError(f"{self.path}: no candidate {self.only}; it has 0 to {len(self.raw) - 1}")
        return [self.only]

    def load(self, index: int, program: Program) -> Imported:
        """Candidate `index` as a muGraph of `program`, whose inputs are the candidate's in order.

        Raises FormatError, naming candidate and operator, for what is malformed or not for this program, GraphError for a
        well-formed candidate that no muGraph over the program's axes (or products of them) expresses.
        """
        candidate = read_candidate(self.raw[index], index, str(self.path))
        return import_candidate(candidate, program)

    def execution(self, index: int, program: Program) -> Execution:
        """Candidate `index` as something that is executed as it is written; raises as `load`, and as `Execution.check`."""
        candidate = read_candidate(self.raw[index], index, str(self.path))
        found = Execution(candidate, program, _sizes(candidate, program))
        found.check()
        return found


def import_candidate(candidate: Candidate, program: Program) -> Imported:
    """See `UpstreamFile.load`."""
    sizes = _sizes(candidate, program)
    cuts: list[str] = []
    multiples: list[str] = []
    current = program
    if len(to_axes(program).inputs) != len(program.inputs):
        raise GraphError(
            f"{candidate.where}: program {program.name} uses an argument under several axes, and the file does not say which "
            "are meant; pass the second use as an argument of its own"
        )
    while True:
        try:
            graph, schedule = KernelBuilder(candidate, to_axes(current), sizes).run()
            validate(graph)
        except Cut as cut:
            if len(cuts) + len(multiples) == MAX_CUTS:
                raise GraphError(f"{candidate.where}: divides more than {MAX_CUTS} axes; import it in parts") from None
            if (multiple := _multiple(current, cut, sizes)) is not None:
                name, count = multiple
                current, sizes = _in_multiples(current, sizes, name, count)
                multiples.append(f"{name} is a multiple of {count}")
                # its axes may have other names
                continue
            current, words = _divided(current, cut)
            cuts.append(words)
            continue
        return Imported(candidate.index, current, graph, schedule, sizes, tuple(cuts), " and ".join(multiples))


def _sizes(candidate: Candidate, program: Program) -> dict[str, int]:
    """The program's symbols at the shapes of the candidate's inputs."""
    inputs = [o for o in candidate.operators if o.op == "kn_input_op"]
    types = program.input_types
    if len(inputs) != len(types):
        raise FormatError(
            f"{candidate.where}: {len(inputs)} inputs, but program {program.name} has {len(types)}; pass the program that it "
            "was found for"
        )
    for o, name, t in zip(inputs, program.input_names, types, strict=True):
        if len(o.outputs) != 1:
            raise FormatError(f"{o.where}: {len(o.outputs)} output tensors; an input has one")
        if len(o.outputs[0].shape) != t.rank:
            raise FormatError(
                f"{o.where}: shape {list(o.outputs[0].shape)}, but input {name} of program {program.name} has rank {t.rank}; "
                "write the program with the file's inputs, in order"
            )
    try:
        return SizeBinder(program).bind([o.outputs[0].shape for o in inputs])
    except MirageError as e:
        raise FormatError(f"{candidate.where}: its inputs are not those of the program: {e}") from None


def _multiple(program: Program, cut: Cut, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """A dim symbol, and of what it has to be a multiple for a cut: one that it is at the sizes of the file."""
    whole = to_axes(program).axes.get(cut.axis)
    if whole is None or divide(whole, sympy.Integer(cut.size)) is not None:
        return None
    factor, rest = whole.as_coeff_Mul()
    count = cut.size // math.gcd(cut.size, int(factor))
    found = [s.name for s in sympy.Mul.make_args(rest) if s.is_Symbol and sizes[s.name] % count == 0]
    return (found[0], count) if found else None


def _in_multiples(
    program: Program, sizes: Mapping[str, int], name: str, count: int
) -> tuple[Program, dict[str, int]]:
    """The program with a dim symbol that counts so many elements at once, of the same name, and its sizes."""
    found = substituted(program, {name: count * symbol(name)})
    return found, {**sizes, name: sizes[name] // count}


def _divided(program: Program, cut: Cut) -> tuple[Program, str]:
    """The program with an axis seen as a product of two, and that in words."""
    axes = to_axes(program)
    if (whole := axes.axes.get(cut.axis)) is None:
        raise GraphError(f"{cut}, which no axis of the program does: they are partial results")
    inner = sympy.Integer(cut.size)
    if (outer := divide(whole, inner)) is None:
        raise GraphError(f"{cut}, but its size {whole} is not a product; write the dim in the program as {inner}*n")

    def factors(axis: str) -> list[Dim]:
        return [outer, inner] if axis == cut.axis else [axes.axes[axis]]

    try:
        found = with_factors(program, [[[f for a in d for f in factors(a)] for d in x.dims] for x in axes.inputs])
        if len(to_axes(found).axes) == len(axes.axes):
            raise GraphError(f"{cut}, but no input of the program has the axis; write it as two dims in the program")
    except AxisError as e:
        raise GraphError(f"{cut}, but the program does not allow that: {e}") from None
    return found, f"axis {cut.axis} = {whole} seen as {outer} * {inner}"
