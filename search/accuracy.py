"""Accuracy of a kernel beside the program's own: both against float64.

Equivalence over the reals says nothing about rounding. A graph that computes a variance as a difference of squares is
proved equal, and useless for data far from zero; trials with such data, and at sizes where results cancel, find it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np

from mirage.ir.codec import at_least
from mirage.ir.interpret import Runner, run_reference
from mirage.ir.program import Program, allowed
from mirage.ir.types import compute_dtype, epsilon, largest
from mirage.search.inputs import random_inputs, rounded_otherwise

#: a kernel may be this many times as far from float64 as the program with NumPy
SLACK = 16.0
#: and this many units in the last place of the largest result besides, in the type that is computed in
ULPS = 64.0
#: and as many of a 16-bit type, to which a kernel may round other values than the program does
ROUNDINGS = 4.0
#: at the given sizes, where float64 would take too long: units in the last place of the largest result
COARSE_ULPS = 4096.0
#: of the largest number of the dtype: results above this may overflow, or not, by rounding alone
IN_RANGE = 0.95
#: operations of the program, beyond which it isn't run in float64
MAX_FLOPS = 2e8
#: seconds that NumPy takes about for an element of an operator's result (which comes from fresh memory, mostly), for one of
#: an input, and for an operation
ELEMENT_S, INPUT_S, OPERATION_S = 1e-8, 3e-9, 2e-10
#: inputs drawn for a small trial until something can be compared, as for a log of a single number
REDRAWN = 4
#: the name of a trial at the sizes that are tuned for
GIVEN = "the given sizes"
#: sizes of the dim symbols, and offset of the inputs, of the trials beside that
_TRIALS = {"sizes of 1": ((1,), 0.0), "small sizes": ((3, 5, 2, 7), 0.0), "inputs around 1000": ((9, 17, 5, 3), 1000.0)}


@dataclass(frozen=True)
class Accuracy:
    """Largest errors against float64 in one trial: of a `kernel`, and of the `program` itself (NumPy, in its dtype).

    An error is the largest difference from float64 among an output's elements over the largest of these elements; of
    several outputs, the worst counts. Elements too large for the dtype, or that overflow in the program's own run, are left
    out.
    """

    trial: str
    kernel: Annotated[float, at_least(0)]
    program: Annotated[float, at_least(0)]


@dataclass(frozen=True)
class Trial:
    """Inputs with the results to expect: `exact`, and the program's own in its dtype; `ulps` are allowed besides.

    `in_float64`: whether `exact` is the program in float64, or only another version in its dtype. `nearby`, if any, are results
    in float64 for inputs that differ in their last bit: where the program's own are nearer than these, that is by chance.
    """

    name: str
    inputs: list[np.ndarray]
    sizes: dict[str, int]
    exact: list[np.ndarray]
    own: list[np.ndarray]
    ulps: float = ULPS
    in_float64: bool = True
    nearby: Sequence[np.ndarray] = ()

    @staticmethod
    def of(name: str, program: Program, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> Trial:
        exact = run_reference(program, inputs, sizes, "float64")
        return Trial(name, inputs, dict(sizes), exact, run_reference(program, inputs, sizes))

    @staticmethod
    def beside(name: str, library: Runner, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> Trial:
        """A coarse comparison with the program's library version, where float64 would take too long."""
        own = library(inputs, sizes)
        return Trial(name, inputs, dict(sizes), own, own, COARSE_ULPS, in_float64=False)

    @cached_property
    def compared(self) -> list[np.ndarray]:
        """Per output, the elements that are compared: those that are finite in the program's own run, and not too large."""
        return [in_range(e, own.dtype) & np.isfinite(own) for e, own in zip(self.exact, self.own, strict=True)]

    @property
    def tells(self) -> bool:
        """Whether something of every output is compared; an output of no elements has nothing to compare."""
        return all(c.any() or not c.size for c in self.compared)

    def measure(self, run: Runner) -> tuple[Accuracy, bool]:
        """The errors, and whether each result is about as near to float64 as the program's own, where that is finite.

        Where an output has no element to compare, no result passes.
        """
        worst, own_worst, passed = 0.0, 0.0, self.tells
        results = run(self.inputs, self.sizes)
        nearby = self.nearby or self.own
        for exact, own, near, finite, found in zip(self.exact, self.own, nearby, self.compared, results, strict=True):
            wanted = exact[finite].astype(np.float64)
            scale = float(np.max(np.abs(wanted), initial=0.0))
            own_error = max(float(np.max(np.abs(x[finite].astype(np.float64) - wanted), initial=0.0)) for x in (own, near))
            error = float(np.max(np.abs(found[finite].astype(np.float64) - wanted), initial=0.0))
            # not a number where the kernel's result is none
            passed &= error <= SLACK * own_error + rounding(own.dtype, self.ulps) * scale
            worst = max(worst, error / (scale or 1.0) if error == error else np.inf)
            own_worst = max(own_worst, own_error / (scale or 1.0))
        return Accuracy(self.name, worst, own_worst), passed


def in_range(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Which elements the dtype can hold, rounding errors included."""
    inside: np.ndarray = np.abs(exact) <= IN_RANGE * largest(dtype)
    return inside


def rounding(dtype: np.dtype, ulps: float) -> float:
    """What so many units of rounding in a type come to, relative to the largest result."""
    computed = compute_dtype(dtype)
    return ulps * epsilon(computed) + (ROUNDINGS * epsilon(dtype) if dtype != computed else 0.0)


class Trials:
    """What the kernels of a program are compared with at some sizes: the trials `made` so far.

    The `first` one is coarse: what `inputs` gives, with the results of the library version. The others, the cheapest first, are
    at small sizes, where rounding shows, and at the given ones in float64, unless the program has more than `MAX_FLOPS`
    operations there (`flops`) or that is estimated to take more than `seconds`.
    """

    def __init__(
        self,
        program: Program,
        inputs: Callable[[], list[np.ndarray]],
        sizes: Mapping[str, int],
        flops: float,
        library: Runner,
        seed: int,
        seconds: float = math.inf,
    ) -> None:
        self.made: list[Trial] = []
        self._first: Callable[[], Trial] = lambda: Trial.beside(GIVEN, library, inputs(), sizes)
        #: what each trial takes to make, and how it is made
        self._pending = _small_ones(program, sizes, flops, seed)
        exact = trial_seconds(program, sizes, flops)
        if flops <= MAX_FLOPS and exact <= seconds:
            self._pending.append((exact, partial(_exact, GIVEN, program, inputs, sizes)))
        self._pending.sort(key=lambda item: item[0])

    @staticmethod
    def of(made: Sequence[Trial]) -> Trials:
        """These trials, and no more."""
        found = Trials.__new__(Trials)
        found.made, found._pending = list(made), []
        return found

    @staticmethod
    def small(program: Program, sizes: Mapping[str, int], flops: float, seed: int) -> Trials:
        """Only the trials at small sizes, for a program of so many operations at the given ones."""
        found = Trials.of(())
        found._pending = sorted(_small_ones(program, sizes, flops, seed), key=lambda item: item[0])
        return found

    @property
    def begun(self) -> bool:
        """Whether the first one is made."""
        return bool(self.made) and self.made[0].name == GIVEN

    @property
    def needed(self) -> float:
        """Estimated seconds to make the next one; infinite where there is none."""
        return self._pending[0][0] if self._pending else math.inf

    @property
    def given(self) -> Trial:
        """The one at the given sizes, in float64 where it was made."""
        return [t for t in self.made if t.name == GIVEN][-1]

    def first(self) -> Trial:
        """The trial with which every kernel is compared before all others."""
        if not self.begun:
            self.made.insert(0, self._first())
        return self.made[0]

    def next(self) -> None:
        """Make one more, unless nothing can be compared in it, at sizes that are none of the user's."""
        _, make = self._pending.pop(0)
        trial = make()
        if trial.tells or trial.name == GIVEN:
            self.made.append(trial)

    def share(self, others: Trials) -> None:
        """Have the trials at small sizes, which do not depend on the given ones, in common with those for other given sizes."""
        small = [t for t in others.made if t.name != GIVEN]
        names = {t.name for t in small}
        self.made += small
        self._pending = [(s, make) for s, make in self._pending if make.args[0] not in names]


def small_trials(program: Program, sizes: Mapping[str, int]) -> dict[str, tuple[dict[str, int], float]]:
    """By name, the sizes of the trials of a program beside the given ones, and the offset of their inputs."""
    return {
        name: (allowed(program, {s: values[i % len(values)] for i, s in enumerate(sizes)}), offset)
        for name, (values, offset) in _TRIALS.items()
    }


def _small_ones(
    program: Program, sizes: Mapping[str, int], flops: float, seed: int
) -> list[tuple[float, partial[Trial]]]:
    """The trials at small sizes: the seconds that each takes to make, and how it is made."""
    each = flops / max(_made(program, sizes), 1)
    return [
        (trial_seconds(program, small, each * _made(program, small)), partial(_small, name, program, small, offset, seed + 1))
        for name, (small, offset) in small_trials(program, sizes).items()
    ]


def _exact(
    name: str, program: Program, inputs: Callable[[], list[np.ndarray]], sizes: Mapping[str, int]
) -> Trial:
    return Trial.of(name, program, inputs(), sizes)


def _small(name: str, program: Program, sizes: Mapping[str, int], offset: float, seed: int) -> Trial:
    for k in range(REDRAWN):
        inputs = random_inputs(program, sizes, seed + k, offset)
        trial = Trial.of(name, program, inputs, sizes)
        if trial.tells:
            break
    if offset:
        # scores of attention are so large then that rounding them decides which one is the largest
        near = run_reference(program, rounded_otherwise(program, inputs, seed), sizes, "float64")
        trial = replace(trial, nearby=near)
    return trial


def accuracy_trials(
    program: Program, inputs: list[np.ndarray], sizes: Mapping[str, int], flops: float, library: Runner, seed: int
) -> list[Trial]:
    """All trials of `Trials`, that at the given sizes first: the coarse one only where there is none in float64."""
    trials = Trials(program, lambda: inputs, sizes, flops, library, seed)
    while trials.needed < math.inf:
        trials.next()
    given = [t for t in trials.made if t.name == GIVEN] or [trials.first()]
    return given + [t for t in trials.made if t.name != GIVEN]


def reference_seconds(program: Program, sizes: Mapping[str, int], flops: float) -> float:
    """Estimated seconds of `run_reference` at these sizes, where the program has so many operations."""
    given = sum(math.prod(t.bind(sizes)) for t in program.input_types)
    return ELEMENT_S * _made(program, sizes) + INPUT_S * given + OPERATION_S * flops


def _made(program: Program, sizes: Mapping[str, int]) -> int:
    """Elements of the results of all operators."""
    return sum(math.prod(n.type.bind(sizes)) for n in program.nodes if n.op != "input")


def trial_seconds(program: Program, sizes: Mapping[str, int], flops: float) -> float:
    """Estimated seconds to make a trial in float64."""
    return 3 * reference_seconds(program, sizes, flops)
