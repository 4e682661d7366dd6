"""What keeps a race honest, whoever runs in it: inputs whose values never come twice, and a referee of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import VerificationError
from mirage.ir.samples import DRAWN
from mirage.kernels.profile import settle
from mirage.search.accuracy import SLACK, ULPS, in_range, rounding

#: exact results and a float32 program's own, computed from the inputs as they are
Yardstick = Callable[[], tuple[Sequence[np.ndarray], Sequence[np.ndarray]]]
#: elements of an array that change between two calls, and by how many standard deviations at most
_PLACES, _CHANGE = 16, 4.0
#: standard deviation and mean of the values that are examined; those that are only timed have 1 and 0
_SCALE, _OFFSET = 2.0, 0.5
#: times 0.2 s that threads have to come to rest after a call
_WAITS = 15
#: a limit's greatest share of the time that it limits: clocks and minima are no more exact than this
MOST_SHARE = 1.05
#: XLA reads memory where it lies only from such an address on; a cache line
_ALIGNMENT = 64


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line, so that every peer can read it where it is."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


class Inputs:
    """The arguments of a program at one place in memory, where every version reads them, with values that change.

    Those that are `changing`, contiguous arrays of floats, have other values in each round of a race, and at some places in each
    call, so that no result can be kept for the next call, nor computed before the first. The others are weights, which a
    version may pack or fold in advance, or have values of which not all are allowed.
    """

    def __init__(self, arrays: Sequence[np.ndarray], changing: Sequence[bool], seed: int) -> None:
        self.arrays = list(arrays)
        self._rng = np.random.default_rng(seed)
        self._drawn = np.tile(self._rng.standard_normal(DRAWN).astype(np.float32), 2)
        changed = [a for a, changes in zip(arrays, changing, strict=True) if changes and a.size]
        assert all(a.flags.c_contiguous for a in changed)
        self._changing = [a.reshape(-1) for a in changed]
        self._places: list[tuple[np.ndarray, np.ndarray]] = []
        self.renew()

    def renew(self, scale: float = 1.0, offset: float = 0.0) -> None:
        """Normal values that no round has had, of about this standard deviation and mean."""
        self._places = []
        for a in self._changing:
            first, factor = self._rng.integers(DRAWN), scale * self._rng.uniform(0.9, 1.1)
            values = self._drawn[first : first + min(DRAWN, a.size)] * np.float32(factor) + np.float32(offset)
            for start in range(0, a.size, DRAWN):
                a[start : start + DRAWN] = values[: a.size - start]
            places = self._rng.integers(a.size, size=_PLACES)
            self._places.append((places, a[places]))

    def vary(self) -> None:
        """Values at a few places that no call has had: too few to change what is in which cache."""
        for a, (places, values) in zip(self._changing, self._places, strict=True):
            a[places] = values + self._rng.uniform(-_CHANGE, _CHANGE, _PLACES)

    def restore(self) -> None:
        """The values of the last renewal."""
        for a, (places, values) in zip(self._changing, self._places, strict=True):
            a[places] = values


class Referee:
    """Examines calls of versions, and refuses those whose result is not theirs, not there or not right.

    An examined round begins with `open` and ends with `judge`, which alone computes what is right: before that, the right
    results are nowhere in memory. In between, `examine` calls a version twice, first with a few other values. What the first
    call returned is overwritten before the second, and what the second returned, once a copy is taken, so that neither a
    rest of a result nor another version's memory is a result.

    Attributes: `refused`, by name of a version, the reason; `given`, whether it writes its results to memory that it was
    given instead of allocating it.
    """

    def __init__(self, inputs: Inputs, yardstick: Yardstick) -> None:
        self.inputs = inputs
        self.refused: dict[str, str] = {}
        self.given: dict[str, bool] = {}
        self._yardstick = yardstick
        self._before: list[np.ndarray] = []
        self._taken: dict[str, list[np.ndarray]] = {}

    def examine_all(self, versions: Mapping[str, Callable[[], object]]) -> None:
        """A round that is not timed."""
        self.open()
        for name, run in versions.items():
            self.examine(name, run)
        self.judge()

    def open(self) -> None:
        """Values that differ from those of all other rounds, in their distribution as well."""
        self.inputs.renew(_SCALE, _OFFSET)
        self._before = [a.copy() for a in self.inputs.arrays]
        self._taken = {}

    def examine(self, name: str, run: Callable[[], object]) -> None:
        """Call a version, take its result as it is at the end of the call, and look at what else the call has done."""
        self.inputs.vary()
        first = run()
        memory = _arrays(first)
        shared = self._shared(memory)
        if shared:
            self._refuse(name, "its result lies in the memory of its arguments")
        else:
            _spoil(memory)
        self.inputs.restore()
        second = run()
        if not _is_there(second):
            self._refuse(name, "it returns before its result is there")
        found = _arrays(second)
        self._taken[name] = [_inverted(f) for f in found]
        self.given[name] = [f.ctypes.data for f in found] == [f.ctypes.data for f in memory]
        if not shared:
            _spoil(found)
        for a, before in zip(self.inputs.arrays, self._before, strict=True):
            if not np.array_equal(a, before):
                self._refuse(name, "it writes to its arguments")
                a[...] = before
        if not at_rest():
            self._refuse(name, "its threads go on after its calls, on the cores of whoever runs next")

    def judge(self) -> None:
        """Refuse whose result is not about as near to the exact one as the program in float32."""
        exact, own = self._yardstick()
        for name, taken in self._taken.items():
            if reason := difference([_inverted(t) for t in taken], exact, own):
                self._refuse(name, reason)
        self._taken = {}

    def _shared(self, memory: Sequence[np.ndarray]) -> bool:
        return any(np.may_share_memory(m, a) for m in memory for a in self.inputs.arrays)

    def _refuse(self, name: str, reason: str) -> None:
        self.refused.setdefault(name, reason)


def at_rest() -> bool:
    """Wait until all threads of this process sleep, some seconds at most; whether they do then.

    Those of OpenMP and of ONNX Runtime count rounds while they spin, which takes them long on a busy machine.
    """
    return any(settle() for _ in range(_WAITS))


def difference(found: Sequence[np.ndarray], exact: Sequence[np.ndarray], own: Sequence[np.ndarray]) -> str:
    """What is wrong with results, where `own` are the program's in its types and `exact` those in float64; empty if nothing is.

    The error that is allowed is that of `mirage.search.accuracy`: some times the program's own, and some units in the last place
    of the largest element of all. Results that were computed in a narrower type are hundreds of times as far away.
    """
    if [(f.shape, f.dtype) for f in found] != [(o.shape, o.dtype) for o in own]:
        types = " and ".join(", ".join(f"{x.dtype}{list(x.shape)}" for x in of) for of in (found, own))
        return f"its results have other types than the program's: {types}"
    pairs = list(zip(found, exact, own, strict=True))
    counted = [in_range(e, o.dtype) & np.isfinite(o) for _, e, o in pairs if o.dtype.kind == "f"]
    floats = [
        [x[c] for x in pair] for pair, c in zip((p for p in pairs if p[2].dtype.kind == "f"), counted, strict=True)
    ]
    if any(not np.array_equal(f, o) for f, _, o in pairs if o.dtype.kind != "f"):
        return "it differs from the program in an exact type"
    scale = max((float(np.max(np.abs(e), initial=0.0)) for _, e, _ in floats), default=0.0)
    for f, e, o in floats:
        error, own_error = (float(np.max(np.abs(x - e.astype(np.float64)), initial=0.0)) for x in (f, o))
        # not a number where a result is none
        if not error <= SLACK * own_error + rounding(o.dtype, ULPS) * scale:
            least = scale or 1.0
            return f"it differs from float64 by {error / least:.1e} of the largest element, NumPy by {own_error / least:.1e}"
    return ""


def impossible(shares: Mapping[str, float]) -> None:
    """Raises VerificationError where a limit's share of the time that was measured, by name of a row, is over 105 %."""
    if found := [f"{row} ({share:.0%})" for row, share in shares.items() if share > MOST_SHARE]:
        raise VerificationError(
            f"faster than what was measured as the machine's limit: {', '.join(found)}; measure these again, on an idle machine"
        )


def _is_there(result: Any) -> bool:
    """Whether results are memory, as arrays of all libraries can tell, and have been computed (those of JAX may not yet)."""
    return all(
        hasattr(r, "__dlpack__") and getattr(r, "is_ready", lambda: True)()
        for r in (result if isinstance(result, tuple | list) else (result,))
    )


def _arrays(result: Any) -> list[np.ndarray]:
    """The memory of results, without a copy."""
    return [np.asarray(r) for r in (result if isinstance(result, tuple | list) else (result,))]


def _inverted(array: np.ndarray) -> np.ndarray:
    """A copy with all bits inverted, which is no result that anybody could find."""
    found = array.copy()
    bits = found.reshape(-1).view(np.uint8)
    np.invert(bits, out=bits)
    return found


def _spoil(memory: Sequence[np.ndarray]) -> None:
    """Overwrite what is there, where that is allowed."""
    for m in memory:
        if m.flags.writeable:
            m.fill(np.nan if np.issubdtype(m.dtype, np.floating) else 0)
