"""Small programs that are superoptimized in about a second, their arrays, and the check of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mirage as mi
from mirage import background, compilation, subprograms
from mirage.cache import ResultStore
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, epsilon
from mirage.search import buckets, rank, tune, versions

#: the command line: arguments -> exit code, standard output, standard error
Run = Callable[..., tuple[int, str, str]]

#: seconds that no search and tuning of these programs takes, on any machine: a number of kernels ends them
BUDGET = 120.0

#: versions that are compiled for a device
RIVALS = 4

#: seconds after which what a test waits for has failed to happen, on any machine
PATIENCE = 600.0


_begin = background.Child.__init__


def _begin_limited(
    self: background.Child, task: dict[str, Any], environment: Mapping[str, str], module: str = "mirage.background"
) -> None:
    _begin(self, {**task, "runs": module}, environment, "tests.api.limited")


def limit_tuning(put: Callable[[object, str, object], None] = setattr, kernels: int = 2) -> None:
    """Have a number of kernels and of sizes end tuning, and keep its races short; also in the processes beside this one."""
    put(background.Child, "__init__", _begin_limited)
    put(tune, "MAX_KERNELS", kernels)
    put(tune, "RACE_SECONDS", 0.003)
    put(tune, "FINAL_SECONDS", 0.005)
    put(versions, "GIVEN_SECONDS", 0.005)
    put(versions, "RACE_SECONDS", 0.003)
    put(versions, "TABLE_SECONDS", 0.003)
    put(versions, "MAX_BETWEEN", 1)
    put(versions, "COMPILED_GRAPHS", 1)
    put(versions, "COMPILED_SCHEDULES", 1)
    put(buckets, "MAX_POINTS", 1)
    put(rank, "MAX_RIVALS", RIVALS)


class Judge:
    """Stands for the races of a compilation: `wanted` wins where it takes part, else the first form."""

    def __init__(self, *wanted: str) -> None:
        self.wanted = wanted
        self.asked: list[list[str]] = []

    def __call__(
        self, forms: dict[str, mi.Executable], arguments: list[Any], seconds: float, otherwise: str = "plain"
    ) -> str:
        self.asked.append(list(forms))
        for form in forms.values():
            for given in arguments:
                form(*given)
        return next((name for name in self.wanted if name in forms), next(iter(forms)))


def races_by(judge: Callable[..., str], put: Callable[[object, str, object], None]) -> None:
    """Have a judge say which form of a subprogram, and of a program, wins."""
    for module in (compilation, subprograms):
        put(module, "fastest", judge)


@mi.program(x=mi.tensor("b", 8), w=mi.tensor(8, "n"), v=mi.tensor("n", 8), sizes={"b": 3, "n": 5})
def adapter(x: Any, w: Any, v: Any) -> Any:
    """An adapter with its residual: a small program of many graphs."""
    return mi.relu(x @ w) @ v + x


@mi.program(x=mi.tensor("m", "n"), sizes={"m": 3, "n": 5})
def rows(x: Any) -> Any:
    """Softmax of every row."""
    return mi.softmax(x)


@mi.program(x=mi.tensor("m", "n"), y=mi.tensor("n"), sizes={"m": 3, "n": 5})
def several(x: Any, y: Any) -> Any:
    """A program of two results."""
    return x * y, mi.sum(x * y, axis=1)


PARTS = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8), "v": mi.tensor(8, 4)}


def parts(x: Any, w: Any, v: Any) -> Any:
    """Two subprograms."""
    return mi.softmax(mi.sort(mi.relu(x @ w), axis=1) @ v)


def check_parts(executable: mi.Executable) -> None:
    x, w, v = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((5, 8), (8, 8), (8, 4)))
    want = np.exp(np.sort(np.maximum(x @ w, 0), axis=1) @ v)
    np.testing.assert_allclose(executable(x, w, v), want / want.sum(axis=1, keepdims=True), rtol=1e-4)


def loaded(path: Path) -> mi.Superoptimized:
    """The result for the CPU of a file."""
    found = mi.load(path)
    assert isinstance(found, mi.Superoptimized)
    return found


def arrays(program: Program, sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """Standard normal inputs."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.bind(sizes)).astype(DTYPES[t.dtype]) for t in program.input_types]


def check(
    program: Program,
    found: Sequence[np.ndarray],
    inputs: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    floor: float = 64.0,
) -> None:
    """Fail unless results are about as near to float64 as those of NumPy in the program's dtype.

    `floor` times the epsilon of the dtype, relative to the largest element, is allowed at least.
    """
    wanted = run_reference(program, inputs, sizes, "float64")
    plain = run_reference(program, inputs, sizes)
    assert len(found) == len(wanted)
    for w, p, f in zip(wanted, plain, found, strict=True):
        assert f.shape == w.shape
        assert f.dtype == p.dtype
        assert np.isfinite(f).all()
        scale = float(np.max(np.abs(w), initial=0.0))
        own = float(np.max(np.abs(p.astype(np.float64) - w), initial=0.0))
        error = float(np.max(np.abs(f.astype(np.float64) - w), initial=0.0))
        assert error <= 16 * own + floor * epsilon(f.dtype) * scale, (dict(sizes), error, own, scale)


def searches() -> set[str]:
    """The keys of what the results store has of searches and tuning; compilations keep more beside them."""
    return {r.key for r in ResultStore().list() if r.family is not None}
