"""A candidate of an upstream file, executed as it is written, at its own sizes: block by block, iteration by iteration.

This says what a candidate computes that no graph over axes expresses, such as one whose grid dim moves along two axes at once;
over any arithmetic, so that it can be compared with its program over finite fields.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from mirage.errors import FormatError, GraphError
from mirage.frontends.upstream.constants import Constants
from mirage.frontends.upstream.names import BINARY, ELEMENTWISE, Name, parse_name
from mirage.frontends.upstream.read import Block, BlockOperator, Candidate, KernelOperator, Tensor
from mirage.ir.arithmetic import Arithmetic
from mirage.ir.axes import to_axes
from mirage.ir.operator import get_operator
from mirage.ir.program import Program

A = TypeVar("A")

#: operators of all blocks and iterations, and elements of a tensor, up to which a candidate is executed
MAX_STEPS, MAX_ELEMENTS = 1 << 16, 1 << 25


@dataclass(frozen=True)
class Execution:
    """A candidate that can be executed at these `sizes` of the program's dim symbols, those of the file."""

    candidate: Candidate
    program: Program
    sizes: Mapping[str, int]

    @property
    def kernels(self) -> int:
        """The number of kernels."""
        return sum(o.op not in ("kn_input_op", "kn_output_op") for o in self.candidate.operators)

    def check(self) -> None:
        """Raises GraphError for a candidate that is too large to be executed."""
        blocks = [o.block for o in self.candidate.operators if o.block is not None]
        steps = sum(math.prod(b.grid) * b.loop * len(b.operators) for b in blocks)
        tensors = [t for o in self.candidate.operators for t in o.outputs]
        largest = max((math.prod(t.shape) for t in tensors), default=0)
        if steps > MAX_STEPS or largest > MAX_ELEMENTS:
            raise GraphError(
                f"{self.candidate.where}: {steps} steps on tensors of {largest} elements are too many to execute it as it is "
                f"written; make it smaller than {MAX_STEPS} steps and {MAX_ELEMENTS} elements"
            )

    def run(self, inputs: Sequence[A], ar: Arithmetic[A]) -> list[A]:
        """The results for inputs of the file's shapes.

        Raises FormatError, naming the operator, where the candidate contradicts itself or is not for the program; GraphError
        where what it computes depends on the order of its blocks, or on one that is not stored.
        """
        run = _Run(ar, Constants.of(to_axes(self.program)))
        results = run.kernels(self.candidate, inputs)
        wanted = [t.bind(self.sizes) for t in self.program.output_types]
        found = [ar.shape(r) for r in results]
        if found != wanted:
            raise FormatError(
                f"{self.candidate.where}: its results have shapes {list(map(list, found))}, those of program "
                f"{self.program.name} {list(map(list, wanted))}; pass the program that it was found for"
            )
        return results


class _Run:
    def __init__(self, ar: Arithmetic[Any], constants: Constants) -> None:
        self.ar = ar
        self.constants = constants

    def kernels(self, candidate: Candidate, inputs: Sequence[Any]) -> list[Any]:
        tensors: dict[int, Any] = {}
        given = iter(inputs)
        results: list[Any] = []
        for o in candidate.operators:
            name = parse_name(o.op, "kn", o.where)
            operands = [self.operand(t, tensors, o.where) for t in o.inputs]
            if name.kind == "output":
                if len(operands) != 1:
                    raise FormatError(f"{o.where}: {len(operands)} input tensors; it marks one result")
                results += operands
            elif name.kind == "customized":
                made = self.customized(o, tensors)
                if [t.guid for t in o.outputs] != list(made):
                    raise FormatError(f"{o.where}: its output tensors are not those that its block stores; list these")
                self.define(o.outputs, list(made.values()), tensors, o.where)
            else:
                value = next(given) if name.kind == "input" else self.apply(name, operands, None, o.where)
                self.define(o.outputs, [value], tensors, o.where)
        return results

    def operand(self, t: Tensor, known: Mapping[int, Any], where: str) -> Any:
        if t.guid not in known:
            raise FormatError(f"{where}: uses tensor {t.guid}, which no operator before makes")
        self.check_shape(t, known[t.guid], where)
        return known[t.guid]

    def define(self, tensors: Sequence[Tensor], values: Sequence[Any], known: dict[int, Any], where: str) -> None:
        if len(tensors) != len(values):
            raise FormatError(f"{where}: {len(tensors)} output tensors; it makes {len(values)}")
        for t, value in zip(tensors, values, strict=True):
            if t.guid in known:
                raise FormatError(f"{where}: makes tensor {t.guid} a second time; give each its own guid")
            self.check_shape(t, value, where)
            known[t.guid] = value

    def check_shape(self, t: Tensor, value: Any, where: str) -> None:
        if t.shape != self.ar.shape(value):
            found = list(self.ar.shape(value))
            raise FormatError(f"{where}: tensor {t.guid} has shape {list(t.shape)}, but it is made as {found}")

    # blocks

    def customized(self, o: KernelOperator, tensors: Mapping[int, Any]) -> dict[int, Any]:
        """The tensors that the blocks of a kernel store, by guid, in order."""
        assert o.block is not None
        made: dict[int, Any] = {}
        letters = [k for k, n in enumerate(o.block.grid) if n > 1]
        for cell in itertools.product(*map(range, o.block.grid)):
            for op, tile in self.block(o, o.block, cell, tensors):
                assert op.tensor is not None
                mapped = {op.map[k]: k for k in letters}
                shape = self.ar.shape(tile)
                if len(mapped) < len(letters) or min(mapped, default=0) < 0:
                    raise GraphError(f"{op.where}: blocks store to the same elements, or in an order that is not stored")
                if max(mapped, default=0) >= len(shape):
                    raise FormatError(f"{op.where}: output_map names a dim that the stored tensor lacks")
                whole = [n * o.block.grid[mapped[d]] if d in mapped else n for d, n in enumerate(shape)]
                if op.tensor.guid not in made:
                    made[op.tensor.guid] = self.ar.zeros(whole)
                starts = [cell[mapped[d]] * n if d in mapped else 0 for d, n in enumerate(shape)]
                place = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
                made[op.tensor.guid] = self.ar.apply(self._written(place), made[op.tensor.guid], tile)
        if not made:
            raise FormatError(f"{o.where}: stores nothing; add an output operator")
        return made

    def _written(self, place: tuple[slice, ...]) -> Any:
        index = (*[slice(None)] * self.ar.lead, *place)

        def write(whole: np.ndarray, tile: np.ndarray) -> np.ndarray:
            whole[index] = tile
            return whole

        return write

    def block(
        self, o: KernelOperator, block: Block, cell: Sequence[int], tensors: Mapping[int, Any]
    ) -> list[tuple[BlockOperator, Any]]:
        """What one block stores."""
        named = [(x, parse_name(x.op, "tb", x.where)) for x in block.operators]
        after: dict[int, Any] = {}
        inside: dict[int, Any] = {}
        widths: dict[int, int] = {}
        for step in range(block.loop):
            inside = {}
            for x, name in named:
                if name.kind == "input":
                    self.define(x.outputs, [self.read(o, x, block, cell, step, tensors)], inside, x.where)
                elif name.kind == "accumulator":
                    if len(x.inputs) != 1 or len(x.outputs) != 1 or x.inputs[0].guid not in inside:
                        raise FormatError(f"{x.where}: takes one tensor from inside the loop, and makes one")
                    value = self.operand(x.inputs[0], inside, x.where)
                    widths[x.outputs[0].guid] = (self.ar.shape(value) or (1,))[-1] * block.loop
                    part = self.part_of_sum(value, name.detail, block.reduction_dimx, x.where)
                    so_far = after.get(x.outputs[0].guid)
                    after[x.outputs[0].guid] = part if so_far is None else self.ar.add(so_far, part)
                elif name.kind != "output" and all(t.guid in inside for t in x.inputs):
                    operands = [self.operand(t, inside, x.where) for t in x.inputs]
                    value = self.apply(name, operands, block.reduction_dimx, x.where)
                    self.define(x.outputs, [value], inside, x.where)
        stored: list[tuple[BlockOperator, Any]] = []
        for x, name in named:
            if name.kind == "accumulator":
                guid = x.outputs[0].guid
                after[guid] = self.accumulated(after[guid], name.detail, widths[guid], x.where)
                self.check_shape(x.outputs[0], after[guid], x.where)
            elif name.kind == "output":
                if len(x.inputs) != 1 or x.inputs[0].guid in inside:
                    raise FormatError(f"{x.where}: stores one tensor, which is accumulated first")
                stored.append((x, self.operand(x.inputs[0], after, x.where)))
            elif not all(t.guid in inside for t in x.outputs):
                operands = [self.operand(t, after, x.where) for t in x.inputs]
                self.define(x.outputs, [self.apply(name, operands, block.reduction_dimx, x.where)], after, x.where)
            for t in x.outputs:
                if t.after is not None and t.after != (t.guid in after):
                    raise FormatError(f"{x.where}: after_accum of tensor {t.guid} is {t.after}, but it is on the other side")
        return stored

    def read(
        self, o: KernelOperator, x: BlockOperator, block: Block, cell: Sequence[int], step: int, tensors: Mapping[int, Any]
    ) -> Any:
        assert x.tensor is not None
        if x.tensor.guid not in [t.guid for t in o.inputs]:
            raise FormatError(f"{x.where}: reads tensor {x.tensor.guid}, which is no input of the kernel; list it there")
        value = self.operand(x.tensor, tensors, x.where)
        dims = [d for d, n in zip(x.map, block.grid, strict=True) if n > 1 and d >= 0]
        if len(set(dims)) < len(dims):
            raise GraphError(f"{x.where}: two grid dims divide one dim; which is outermost is not stored, use one of them")
        parts = [(d, n, i) for d, n, i in zip(x.map, block.grid, cell, strict=True) if n > 1 and d >= 0]
        for d, n, i in [*parts, (x.loop_dim, block.loop, step)]:
            if d >= 0:
                value = self.part(value, d, n, i, x.where)
        return value

    def part(self, x: Any, dim: int, count: int, index: int, where: str) -> Any:
        size = self.ar.shape(x)[dim]
        if size % count:
            raise FormatError(f"{where}: {count} parts of a dim of {size} elements; the grid and the loop have to divide it")
        n = size // count
        at = (*[slice(None)] * (self.ar.lead + dim), slice(index * n, (index + 1) * n))
        return self.ar.apply(lambda a: a[at], x)

    def part_of_sum(self, x: Any, mode: str, dimx: int | None, where: str) -> Any:
        """What an accumulator adds up in one iteration."""
        if mode == "red_ld_rms":
            x = self.op("square", [x], where)
        return x if mode == "nored" else self.sum(x, -1, dimx if mode == "redtox_ld_sum" else 1, where)

    def accumulated(self, total: Any, mode: str, count: int, where: str) -> Any:
        """What an accumulator makes of the sum of so many elements."""
        if mode == "red_ld_mean":
            return self.mean(total, count)
        return self.root_mean(total, count, where) if mode == "red_ld_rms" else total

    # operators

    def op(self, name: str, operands: Sequence[Any], where: str, **attrs: Any) -> Any:
        shapes = [self.ar.shape(x) for x in operands]
        try:
            return get_operator(name).evaluate(self.ar, operands, attrs, shapes)
        except ValueError:
            found = " and ".join(str(list(s)) for s in shapes)
            raise FormatError(f"{where}: {name} of tensors of shapes {found}, which do not fit each other") from None

    def apply(self, name: Name, operands: Sequence[Any], dimx: int | None, where: str) -> Any:
        """A predefined operator of either level."""
        kind = name.kind
        arity = 2 if kind == "matmul" or kind in BINARY else 4 if kind == "concat_then_matmul" else 1
        if (len(operands) < 2) if kind == "concat" else (len(operands) != arity):
            raise FormatError(f"{where}: {len(operands)} inputs; it takes {'2 or more' if kind == 'concat' else arity}")
        rank = len(self.ar.shape(operands[0]))
        if kind == "concat" or kind.startswith("reduction"):
            if name.dim >= rank:
                raise FormatError(f"{where}: dim {name.dim} of a tensor of rank {rank}")
            if kind == "concat":
                return self.op("concat", operands, where, axis=name.dim)
            return self.sum(operands[0], name.dim - rank, dimx if kind == "reduction_to_dimx" else 1, where)
        if kind == "matmul":
            return self.matmul(operands[0], operands[1], where)
        if kind == "concat_then_matmul":
            a, b, c, d = operands
            return self.op("add", [self.matmul(a, c, where), self.matmul(b, d, where)], where)
        if kind == "rms_norm":
            (x,) = operands
            total = self.sum(self.op("square", [x], where), -1, 1, where)
            return self.op("div", [x, self.root_mean(total, self.ar.shape(x)[-1], where)], where)
        if kind == "clamp":
            return self.op("clamp", operands, where, **dict(self.constants.clamp(where)))
        if kind == "mul_scalar":
            return self.ar.mul(operands[0], self.ar.constant(self.constants.scale(where)))
        return self.op(ELEMENTWISE[kind], operands, where)

    def matmul(self, x: Any, y: Any, where: str) -> Any:
        a, b = self.ar.shape(x), self.ar.shape(y)
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise FormatError(f"{where}: a product of tensors of shapes {list(a)} and {list(b)}; the summed dims have to agree")
        return self.op("matmul", [x, y], where)

    def sum(self, x: Any, dim: int, kept: int | None, where: str) -> Any:
        """The sum over a dim, counted from the last one, down to its inner `kept` elements."""
        shape = self.ar.shape(x)
        if kept is None or shape[dim] % kept:
            raise FormatError(f"{where}: a dim of {shape[dim]} elements is summed down to {kept}; use a divisor")
        at = len(shape) + dim
        split = (*shape[:at], shape[at] // kept, kept, *shape[at + 1 :])
        lead = self.ar.lead
        parts = self.ar.apply(lambda a: a.reshape((*a.shape[:lead], *split)), x)
        return self.ar.sum(parts, (dim - 1,))

    def mean(self, total: Any, count: int) -> Any:
        return self.ar.mul(total, self.ar.constant(Fraction(1, count)))

    def root_mean(self, total: Any, count: int, where: str) -> Any:
        """The square root of a mean, with the constant that the program's norms add."""
        mean = self.mean(total, count)
        if eps := self.constants.norm_eps(where):
            mean = self.ar.add(mean, self.ar.constant(eps))
        return self.op("sqrt", [mean], where)
