"""Accuracy of a kernel beside the program's own: both against float64.

Equivalence over the reals says nothing about rounding. A graph that computes a variance as a difference of squares is
proved equal, and useless for data far from zero; trials with such data, and at sizes where results cancel, find it out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mirage.ir.interpret import Runner, run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, TensorType, compute_dtype, epsilon, largest

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
#: different numbers in an input: larger ones repeat them, as they take long to draw. A prime: no two rows are alike
DRAWN = 1_000_003
#: sizes of the dim symbols, and offset of the inputs, of the trials beside the given one
_TRIALS = {"sizes of 1": ((1,), 0.0), "small sizes": ((3, 5, 2, 7), 0.0), "inputs around 1000": ((9, 17, 5, 3), 1000.0)}


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int, offset: float = 0.0) -> list[np.ndarray]:
    """Normal inputs (standard deviation 1) of the program's shapes and dtype around `offset`."""
    rng = np.random.default_rng(seed)
    return [random_input(t, sizes, rng, offset) for t in program.input_types]


def random_input(t: TensorType, sizes: Mapping[str, int], rng: np.random.Generator, offset: float = 0.0) -> np.ndarray:
    """One array as in `random_inputs`."""
    shape = t.bind(sizes)
    drawn = rng.standard_normal(min(math.prod(shape), DRAWN)) + offset
    return np.resize(drawn.astype(DTYPES[t.dtype]), shape)


@dataclass(frozen=True)
class Accuracy:
    """Largest errors against float64 in one trial: of a `kernel`, and of the `program` itself (NumPy, in its dtype).

    An error is the largest difference from float64 among an output's elements over the largest of these elements; of
    several outputs, the worst counts. Elements too large for the dtype, or that overflow in the program's own run, are left
    out.
    """

    trial: str
    kernel: float
    program: float


@dataclass(frozen=True)
class Trial:
    """Inputs with the results to expect: `exact`, and the program's own in its dtype; `ulps` are allowed besides.

    `in_float64`: whether `exact` is the program in float64, or only another version in its dtype.
    """

    name: str
    inputs: list[np.ndarray]
    sizes: dict[str, int]
    exact: list[np.ndarray]
    own: list[np.ndarray]
    ulps: float = ULPS
    in_float64: bool = True

    @staticmethod
    def of(name: str, program: Program, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> Trial:
        exact = run_reference(program, inputs, sizes, "float64")
        return Trial(name, inputs, dict(sizes), exact, run_reference(program, inputs, sizes))

    @staticmethod
    def beside(name: str, library: Runner, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> Trial:
        """A coarse comparison with the program's library version, where float64 would take too long."""
        own = library(inputs, sizes)
        return Trial(name, inputs, dict(sizes), own, own, COARSE_ULPS, in_float64=False)

    def measure(self, run: Runner) -> tuple[Accuracy, bool]:
        """The errors, and whether each result is about as near to float64 as the program's own, where that is finite."""
        worst, own_worst, passed = 0.0, 0.0, True
        for exact, own, found in zip(self.exact, self.own, run(self.inputs, self.sizes), strict=True):
            finite = in_range(exact, own.dtype) & np.isfinite(own)
            wanted = exact[finite].astype(np.float64)
            scale = float(np.max(np.abs(wanted), initial=0.0))
            own_error = float(np.max(np.abs(own[finite].astype(np.float64) - wanted), initial=0.0))
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


def accuracy_trials(
    program: Program,
    inputs: list[np.ndarray],
    sizes: Mapping[str, int],
    flops: float,
    library: Runner,
    seed: int,
    seconds: float = math.inf,
) -> list[Trial]:
    """The given inputs first, then small ones where rounding shows.

    A program of more than `MAX_FLOPS` operations, or that would take more than `seconds` in float64, is compared with its
    library version at the given sizes, coarsely.
    """
    given = "the given sizes"
    if flops <= MAX_FLOPS and trial_seconds(program, sizes, flops) <= seconds:
        trials = [Trial.of(given, program, inputs, sizes)]
    else:
        trials = [Trial.beside(given, library, inputs, sizes)]
    for name, (small, offset) in small_trials(sizes).items():
        trials.append(Trial.of(name, program, random_inputs(program, small, seed + 1, offset), small))
    return trials


def small_trials(sizes: Mapping[str, int]) -> dict[str, tuple[dict[str, int], float]]:
    """By name, the sizes of the trials beside the given one, and the offset of their inputs."""
    return {
        name: ({s: values[i % len(values)] for i, s in enumerate(sizes)}, offset)
        for name, (values, offset) in _TRIALS.items()
    }


def reference_seconds(program: Program, sizes: Mapping[str, int], flops: float) -> float:
    """Estimated seconds of `run_reference` at these sizes, where the program has so many operations."""
    given = sum(math.prod(t.bind(sizes)) for t in program.input_types)
    return ELEMENT_S * _made(program, sizes) + INPUT_S * given + OPERATION_S * flops


def _made(program: Program, sizes: Mapping[str, int]) -> int:
    """Elements of the results of all operators."""
    return sum(math.prod(n.type.bind(sizes)) for n in program.nodes if n.op != "input")


def small_trial_seconds(program: Program, sizes: Mapping[str, int], flops: float) -> float:
    """Estimated seconds to make the trials beside the given one, where the program has so many operations at the given sizes:
    about as many fewer at others as there are fewer results.
    """
    each = flops / max(_made(program, sizes), 1)
    return sum(trial_seconds(program, s, each * _made(program, s)) for s, _ in small_trials(sizes).values())


def trial_seconds(program: Program, sizes: Mapping[str, int], flops: float) -> float:
    """Estimated seconds to make a trial in float64."""
    return 3 * reference_seconds(program, sizes, flops)
