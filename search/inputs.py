"""Inputs that programs are tried and timed with, of which the program tells what kind of numbers they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from mirage.ir.dims import Dim
from mirage.ir.functions import Range, ScalarFunction
from mirage.ir.operator import RENAMING, Elementwise, get_operator
from mirage.ir.program import Program
from mirage.ir.samples import filled
from mirage.ir.types import ELEMENTS, STORED_INTEGERS, TensorType, compute_dtype, epsilon

#: operators that leave elements as they are, and those that sums of multiples of tensors are made of besides
MOVED = (*RENAMING, "cast")
LINEAR = (*MOVED, "add", "sub", "neg", "mul", "constant")
#: operators that make positive numbers of positive ones, beside elementwise ones
POSITIVE = (*MOVED, "sum", "mean", "max", "matmul")
#: what probabilities are drawn from
SHARES = (0.02, 0.98)
_NONE: frozenset[int] = frozenset()


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int, offset: float = 0.0) -> list[np.ndarray]:
    """Inputs of the program's shapes and dtype: normal ones (standard deviation 1) around `offset`, all numbers
    of an integer type, positive ones for `positives`, 0 and 1 for `masks`, as causal ones have them, numbers between these for
    `shares`, and numbers in order for `positions`.
    """
    rng = np.random.default_rng(seed)
    inputs = Inputs(program)
    return [inputs.draw(k, sizes, rng, offset) for k in range(len(program.inputs))]


def rounded_otherwise(program: Program, inputs: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """The inputs in float64, each normal number a bit of the type that is computed in larger or smaller."""
    rng = np.random.default_rng(seed)
    drawn = Inputs(program)
    found = []
    for k, x in enumerate(inputs):
        bit = epsilon(compute_dtype(x.dtype)) if drawn.normal(k) else 0.0
        found.append(x * (1 + rng.choice((-bit, bit), x.shape)))
    return found


def random_input(t: TensorType, sizes: Mapping[str, int], rng: np.random.Generator, offset: float = 0.0) -> np.ndarray:
    """One array as in `random_inputs`, of which nothing but the type is known."""

    def draw(count: int) -> np.ndarray:
        if t.dtype in STORED_INTEGERS:
            limits = np.iinfo(t.dtype)
            return rng.integers(limits.min, limits.max, count, endpoint=True).astype(ELEMENTS[t.dtype])
        return (rng.standard_normal(count) + offset).astype(ELEMENTS[t.dtype])

    return filled(t.bind(sizes), draw)


class Inputs:
    """Draws the inputs of a program one by one."""

    def __init__(self, program: Program) -> None:
        self.types = program.input_types
        self._shares = shares(program)
        self._masks = masks(program) - self._shares
        self._positives = positives(program)
        self._positions = positions(program)

    def normal(self, k: int) -> bool:
        """Whether the k-th input holds normal numbers, their absolute values, or numbers between 0 and 1."""
        return k not in self._masks and k not in self._positions and self.types[k].dtype not in STORED_INTEGERS

    def draw(self, k: int, sizes: Mapping[str, int], rng: np.random.Generator, offset: float = 0.0) -> np.ndarray:
        """The k-th input at these sizes."""
        t = self.types[k]
        shape, dtype = t.bind(sizes), ELEMENTS[t.dtype]
        if k in self._shares:
            return filled(shape, lambda n: rng.uniform(*SHARES, n).astype(dtype))
        if k in self._masks:
            return _mask(shape).astype(dtype)
        if k in self._positions:
            # those that are compared reach as far, however many they are: a single query is at the last key
            furthest = max(prod(self.types[i].bind(sizes)) for i in self._positions)
            # of large numbers, those before the last digits are taken times a power of two
            factor = self._positions[k]
            return filled(shape, lambda n: ((np.arange(1, n + 1) * furthest // n - 1) // factor).astype(dtype))
        drawn = random_input(t, sizes, rng, offset)
        return np.abs(drawn) if k in self._positives else drawn


def _mask(shape: tuple[int, ...]) -> np.ndarray:
    """Of rows and columns, those up to the diagonal, as masks hide what is together; a single row hides the last alone."""
    rows, columns = (1, 1, *shape)[-2:]
    counts = np.arange(1, rows + 1) * columns // rows if rows != 1 else np.array([columns - 1])
    seen = np.arange(columns) < np.maximum(counts, 1)[:, None]
    return np.broadcast_to(seen if len(shape) > 1 else seen.reshape(shape), shape)


def masks(program: Program) -> frozenset[int]:
    """The places of inputs of which the program takes the difference from 1, as of masks: 1 where something is seen, else 0.

    What is not seen has a term such as -1e9. With other numbers than 0 and 1 that term is all there is, and no trial would tell
    a kernel that has `low - low * mask` for `(1 - mask) * low`, which loses what is seen.
    """
    places = {i: k for k, i in enumerate(program.inputs)}
    one = _ones(program)
    found = set()
    for n in program.nodes:
        if n.op != "sub" or not one.intersection(n.inputs):
            continue
        for i in n.inputs:
            if (x := _unmoved(program, i)) in places:
                found.add(places[x])
    return frozenset(found)


def _unmoved(program: Program, i: int) -> int:
    """The node whose elements this one has, in another order."""
    while program.nodes[i].op in MOVED:
        i = program.nodes[i].inputs[0]
    return i


def _ones(program: Program) -> set[int]:
    """The nodes that are the number 1."""
    return {i for i, n in enumerate(program.nodes) if n.op == "constant" and n.attr["value"] == 1}


class _Arguments:
    """An algebra: a value is the places of inputs that it is made of by what makes positive numbers of positive ones. `limited`
    are those that an argument of a function which is undefined below 0, or a divisor that is 1 - x, is made of, `divisors` those
    that any divisor is made of.
    """

    def __init__(self) -> None:
        self.limited: frozenset[int] = _NONE
        self.divisors: frozenset[int] = _NONE

    def constant(self, value: Fraction) -> frozenset[int]:
        return _NONE

    def dim(self, size: Dim) -> frozenset[int]:
        return _NONE

    def neg(self, x: frozenset[int]) -> frozenset[int]:
        return _NONE

    def sub(self, x: frozenset[int], y: frozenset[int]) -> frozenset[int]:
        return _NONE

    def add(self, x: frozenset[int], y: frozenset[int]) -> frozenset[int]:
        return x | y

    def div(self, x: frozenset[int], y: frozenset[int]) -> frozenset[int]:
        self.divisors |= y
        return x | y

    def mul(self, x: frozenset[int], y: frozenset[int]) -> frozenset[int]:
        # a square is positive in any case
        return _NONE if x is y else x | y

    def function(self, fn: ScalarFunction, x: frozenset[int], *params: Fraction) -> frozenset[int]:
        if fn.domain_of(*params) is not Range.ANY:
            self.limited |= x
        return _NONE


def _arguments(program: Program) -> _Arguments:
    """What the functions and divisions of a program are applied to; 1 - x is made of x, for it is positive where x is a share."""
    places = {i: k for k, i in enumerate(program.inputs)}
    one = _ones(program)
    algebra = _Arguments()
    #: the differences of inputs from 1
    from_one: set[int] = set()
    made: list[frozenset[int]] = []
    for i, n in enumerate(program.nodes):
        args = [made[j] for j in n.inputs]
        if n.op == "div" and (below := _unmoved(program, n.inputs[1])) in from_one:
            algebra.limited |= made[below]
        if i in places:
            made.append(frozenset({places[i]}))
        elif n.op == "sub" and n.inputs[0] in one:
            made.append(args[1])
            if _unmoved(program, n.inputs[1]) in places:
                from_one.add(i)
        elif n.op in POSITIVE:
            made.append(args[0].union(*args[1:]))
        else:
            definition = get_operator(n.op)
            made.append(definition.apply(algebra, args, n.attr) if isinstance(definition, Elementwise) else _NONE)
    return algebra


def positives(program: Program) -> frozenset[int]:
    """The places of inputs that divisors are made of, or the arguments of functions such as roots and logarithms, as variances
    are.

    Of numbers below 0 these functions are undefined, and a divisor that is a sum may be near 0, as no user's is: no kernel could
    be compared.
    """
    arguments = _arguments(program)
    return arguments.limited | arguments.divisors


def shares(program: Program) -> frozenset[int]:
    """The places of those among the `masks` that are no masks but probabilities: where they are 0 or 1, logarithms, roots and
    quotients are undefined.
    """
    return masks(program) & _arguments(program).limited


def positions(program: Program) -> dict[int, int]:
    """The places of inputs that are compared, as positions are: with clamp(i - j + 1, 0, 1) of the vectors i and j, for one,
    which is 1 where j <= i, if both are whole numbers; each with the factor that it is taken times. A clamp to 0 to 1 takes sums
    of multiples of them, and has more elements than any of them.

    With numbers in order, as positions are, as many masked scores are hidden as in use; with random ones, hardly any tile is.
    """
    places = {i: k for k, i in enumerate(program.inputs)}
    found: dict[int, int] = {}
    for n in program.nodes:
        if n.op == "clamp" and (n.attr["lo"], n.attr["hi"]) == (0, 1):
            terms = _terms(program, n.inputs[0])
            elements = prod(n.type.shape)
            if all(i in places and prod(program.nodes[i].type.shape) != elements for i in terms):
                found |= {places[i]: factor for i, factor in terms.items()}
    return found


def _terms(program: Program, root: int) -> dict[int, int]:
    """The nodes that a sum adds, each with the whole number that it is taken times, or 1."""
    found: dict[int, int] = {}
    queue = [(root, 1)]
    while queue:
        i, factor = queue.pop()
        n = program.nodes[i]
        if n.op == "mul":
            constants = [program.nodes[j].attr["value"] for j in n.inputs if program.nodes[j].op == "constant"]
            factor *= max(1, *(int(abs(c)) for c in constants)) if constants else 1
        if n.op in LINEAR:
            queue += [(j, factor) for j in n.inputs]
        else:
            found[i] = factor
    return found
