"""Which inputs read which argument, so that no tensor has an axis twice.

In X @ X.T the two uses of X need rows of their own. Where unification would make two dims of one tensor the same axis,
one operand is lowered again from inputs of its own that read the same arguments; those that then fit an input that is
there are united with it. A program in which every use has an input of its own unifies the dims of different tensors
only, so this always succeeds, up to `MAX_READS`.

An input may also read what operators that move elements, such as `windows`, give of an argument: to all that is done with
the form it is a tensor like others, as what is equal for all tensors is equal for windows of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirage.errors import AxisError, MirageError
from mirage.ir.graph_operator import Moving
from mirage.ir.operator import get_operator
from mirage.ir.program import Program
from mirage.ir.unify import AxisLowering, AxisTensor, resolve

#: inputs that read an argument again, in all; far more than programs of a size to search need
MAX_READS = 8


@dataclass(frozen=True)
class Step:
    """A node of a program applied to earlier steps; `read` tells the inputs of one argument apart."""

    node: int
    operands: tuple[int, ...] = ()
    read: int = 0


@dataclass(frozen=True)
class Lowered:
    """The values of a program over unified dims; `read` gives, per input, the node of the program that it reads."""

    low: AxisLowering
    read: tuple[int, ...]
    outputs: tuple[AxisTensor, ...]


class Steps:
    """Steps with their lowered tensors; equal steps are shared."""

    def __init__(self, program: Program) -> None:
        self.program = program
        #: the arguments, and what moves their elements
        self.sources = frozenset(sources(program))
        self.low = AxisLowering()
        self.steps: list[Step] = []
        self.tensors: list[AxisTensor] = []
        self._index: dict[Step, int] = {}

    def add(self, node: int, operands: Sequence[int] = (), read: int = 0) -> int:
        """The step, lowered if it is new; raises AxisError where the operator's dims do not unify."""
        step = Step(node, tuple(operands), read)
        if step not in self._index:
            n = self.program.nodes[node]
            self.low.where = n.where
            if node in self.sources:
                tensor = self.low.input(n.type.shape)
            else:
                try:
                    rule = get_operator(n.op).to_axes
                    tensor = rule(self.low, [self.tensors[i] for i in step.operands], n.attr, n.type)
                except NotImplementedError as e:
                    raise MirageError(str(e)) from None
            self._index[step] = len(self.steps)
            self.steps.append(step)
            self.tensors.append(tensor)
        return self._index[step]

    def read_again(self, node: int) -> int:
        """One more input for an argument."""
        return self.add(node, read=1 + max(s.read for s in self.steps if s.node == node))

    def is_input(self, step: int) -> bool:
        return self.steps[step].node in self.sources

    def below(self, roots: Sequence[int]) -> list[int]:
        """The steps that some steps are computed from, and these themselves, in order."""
        seen = set(roots)
        for i in range(max(seen, default=-1), -1, -1):
            if i in seen:
                seen.update(self.steps[i].operands)
        return sorted(seen)

    def rebuilt(self, roots: Sequence[int], read: Callable[[int], int]) -> dict[int, int]:
        """The steps below the roots over other inputs: `read` gives the one for each input."""
        new: dict[int, int] = {}
        for i in self.below(roots):
            s = self.steps[i]
            new[i] = read(i) if self.is_input(i) else self.add(s.node, [new[j] for j in s.operands])
        return new

    def mark(self) -> tuple[int, tuple[int, int]]:
        return len(self.steps), self.low.mark()

    def back_to(self, mark: tuple[int, tuple[int, int]]) -> None:
        for s in self.steps[mark[0] :]:
            del self._index[s]
        del self.steps[mark[0] :], self.tensors[mark[0] :]
        self.low.back_to(mark[1])

    def check(self, mark: tuple[int, tuple[int, int]], node: int) -> None:
        """Raises AxisError where what came since the mark, for a node, gives a tensor an axis twice, or splits a joined
        dim.
        """
        unified = self.low.mark()[1] > mark[1][1]
        for i in range(0 if unified else mark[0], len(self.steps)):
            leaves = resolve([leaf for d in self.tensors[i].dims for leaf in d])
            if len(set(leaves)) < len(leaves):
                n = self.program.nodes[node]
                size = next(leaf.size for k, leaf in enumerate(leaves) if leaf in leaves[:k])
                raise AxisError(
                    f"{n.where + ': ' if n.where else ''}{n.op}: an axis of size {size} would occur twice in one tensor "
                    f"(as in X @ X.T), and to tell the uses of its inputs apart takes more than {MAX_READS} further "
                    "inputs; pass some uses as inputs of their own, or split the program"
                )
        if unified:
            self.low.check_joined()


class Reads(Steps):
    """Lowers a program, with inputs that read an argument again where an axis would occur twice."""

    def run(self) -> Lowered:
        """Raises AxisError, saying why, where a dim is not a product of axes."""
        nodes = self.program.nodes
        at: list[int] = []
        for i, n in enumerate(nodes):
            at.append(self.place(i, [] if i in self.sources else [at[j] for j in n.inputs]))
        outputs = [at[i] for i in self.program.outputs]
        moved = len(self.sources) > len(self.program.inputs)
        return self.needed(outputs) if moved or any(s.read for s in self.steps) else _lowered(self, outputs)

    def place(self, node: int, operands: Sequence[int]) -> int:
        """The step for a node, over operands read again where it must be."""
        mark = self.mark()
        try:
            step = self.add(node, operands)
            self.check(mark, node)
            return step
        except AxisError:
            self.back_to(mark)
            for chosen in self.choices(operands):
                try:
                    return self.apart(node, operands, chosen)
                except AxisError:
                    self.back_to(mark)
            raise

    def choices(self, operands: Sequence[int]) -> Iterator[list[int]]:
        """Operands to read again: each alone, of fewest inputs first, the later one of equals; then all."""

        def cost(k: int) -> tuple[int, int, int]:
            below = self.below([operands[k]])
            return sum(map(self.is_input, below)), len({self.tensors[i].value for i in below}), -k

        yield from ([k] for k in sorted(range(len(operands)), key=cost))
        if len(set(operands)) > 1:
            yield list(range(len(operands)))

    def apart(self, node: int, operands: Sequence[int], chosen: Sequence[int]) -> int:
        """The step for a node whose chosen operands read inputs of their own, as few as possible."""
        mark = self.mark()
        roots = [operands[k] for k in chosen]
        inputs = [i for i in self.below(roots) if self.is_input(i)]
        new = self.rebuilt(roots, lambda i: self.read_again(self.steps[i].node))
        self.add(node, self._with(operands, chosen, new))
        self.check(mark, node)
        there = [i for i in range(mark[0]) if self.is_input(i)]
        fitting = {i: self.fitting(new[i], there) for i in inputs}
        self.back_to(mark)
        further = [i for i in inputs if fitting[i] is None]
        if sum(self.steps[i].read > 0 for i in there) + len(further) > MAX_READS:
            raise AxisError(f"more than {MAX_READS} further inputs")

        def read(i: int) -> int:
            found = fitting[i]
            return self.read_again(self.steps[i].node) if found is None else found

        step = self.add(node, self._with(operands, chosen, self.rebuilt(roots, read)))
        self.check(mark, node)
        return step

    @staticmethod
    def _with(operands: Sequence[int], chosen: Sequence[int], new: dict[int, int]) -> list[int]:
        return [new[o] if k in chosen else o for k, o in enumerate(operands)]

    def fitting(self, new: int, inputs: Sequence[int]) -> int | None:
        """The first of the inputs that can be united with a new one; unites them."""
        for i in inputs:
            if self.steps[i].node == self.steps[new].node:
                mark = self.mark()
                try:
                    for a, b in zip(self.tensors[i].dims, self.tensors[new].dims, strict=True):
                        self.low.unify(a, b, "input")
                    self.check(mark, self.steps[new].node)
                    return i
                except AxisError:
                    self.back_to(mark)
        return None

    def needed(self, outputs: Sequence[int]) -> Lowered:
        """What the outputs are computed from, lowered anew: other steps no longer constrain it."""
        live = self.below(outputs)
        readers: dict[int, list[int]] = {node: [] for node in self.program.inputs}
        for i in filter(self.is_input, live):
            readers.setdefault(self.steps[i].node, []).append(i)
        fresh = Steps(self.program)
        new: dict[int, int] = {}
        # every argument has an input, read or not; then come the further ones
        for node, inputs in readers.items():
            first = fresh.add(node)
            new.update({i: first for i in inputs[:1]})
        for node, inputs in readers.items():
            new.update({i: fresh.read_again(node) for i in inputs[1:]})
        for i in live:
            if i not in new:
                s = self.steps[i]
                new[i] = fresh.add(s.node, [new[j] for j in s.operands])
        fresh.check((0, (0, 0)), self.steps[outputs[0]].node)
        return _lowered(fresh, [new[i] for i in outputs])


def _lowered(steps: Steps, outputs: Sequence[int]) -> Lowered:
    read = [s.node for i, s in enumerate(steps.steps) if steps.is_input(i)]
    return Lowered(steps.low, tuple(read), tuple(steps.tensors[i] for i in outputs))


def sources(program: Program) -> dict[int, int]:
    """The nodes that inputs can read, with the argument that each is of: the arguments, and what operators that move elements
    give of these.

    Raises AxisError for such an operator applied to what is computed.
    """
    found: dict[int, int] = {}
    for i, n in enumerate(program.nodes):
        if n.op == "input":
            found[i] = i
        elif isinstance(operator := get_operator(n.op), Moving):
            (of,), where = n.inputs, f"{n.where}: " if n.where else ""
            try:
                operator.check_read(n.attr)
            except AxisError as e:
                raise AxisError(f"{where}{e}") from None
            if of not in found:
                other = ", or take windows that do not overlap" if n.op == "windows" else ""
                raise AxisError(
                    f"{where}{n.op} of what {program.nodes[of].op} computes: a kernel reads it of "
                    f"arguments only; compute its operand in a program of its own{other}"
                )
            found[i] = found[of]
    return found


def lower(program: Program) -> Lowered:
    """The program, without composite operators, over unified dims.

    Raises AxisError, saying why, where a dim is not a product of axes.
    """
    return Reads(program).run()
