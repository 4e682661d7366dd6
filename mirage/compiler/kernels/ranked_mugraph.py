"""A kernel of a graph module that runs a program of the search's operators on a target whose model ranks versions: by verified
muGraphs, or by the target's libraries at sizes that no compiled version serves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from mirage.compiler.kernels.arrays import check_arrays
from mirage.compiler.kernels.text import Origin
from mirage.errors import DimError, FormatError, VerificationError
from mirage.ir.axes import to_axes
from mirage.ir.codec import RANKED_KERNEL
from mirage.ir.dims import check_complete
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import TensorType
from mirage.kernels.target import Target, get_target
from mirage.results.ranked import Ranked
from mirage.results.result import StoredResult
from mirage.results.work import answers
from mirage.search.decision import Version

#: seconds that measuring the versions of one kernel on first use takes, about
PROFILE_SECONDS = 4.0



class RankedKernel:
    """A program of one float type, and its versions for a device, whose decision is that of `result`; None: library calls alone.

    `origin` says where the versions come from: "superoptimized", "fused" (without a search) or "library". Those of a search are
    checked and measured on first use with a device, as the result itself does; those that were fused stay ranked by the model.
    May be called from several threads at once.
    """

    kind = "ranked"
    #: versions differ in what they need, so that they take memory of their own
    workspace_types: tuple[TensorType, ...] = ()

    def __init__(
        self, program: Program, machine: Target, origin: Origin, result: Ranked | None = None
    ) -> None:
        self.program = program
        self.machine = machine
        self.target = machine.name
        self.origin = origin
        self.result = result
        self.symbols = tuple(program.symbols())
        self.output_types = program.output_types
        self.constants: tuple[str, ...] = () if result is None else result.constants
        #: why no version of the result is used; empty if they are
        self.refused = ""
        self._lock = threading.Lock()

    @property
    def note(self) -> str:
        """What is to be said of the choice among the versions."""
        if self.result is None:
            return ""
        if self.refused:
            return f"library calls, as {self.refused}"
        measured_on = self.result.decision.measured_on
        return f"measured on {measured_on}" if measured_on else "ranked by model"

    @property
    def source(self) -> str:
        """The Triton of what runs at the first typical sizes; empty for library calls."""
        return "" if self.result is None else self.result.source

    def forget(self) -> None:
        """Drop the packed copies of constants: needed where somebody wrote to one."""
        if self.result is not None:
            self.result.forget()

    def version(self, sizes: Mapping[str, int]) -> Version | None:
        """What a call at these sizes (dim symbol -> elements) runs; None: library calls."""
        if self.result is None or self.refused:
            return None
        try:
            return self.result.choice(sizes)
        except DimError:
            return None

    @cached_property
    def library(self) -> Callable[..., list[Any]]:
        """The program as calls of the target's libraries; raises LibraryError where one of them is missing."""
        return self.machine.library(to_axes(self.program))

    def __call__(
        self, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any], workspace: Sequence[Any] = ()
    ) -> None:
        """Write the program's results for `inputs`, arrays of the target's library, to `out`, contiguous ones that overlap
        nothing; `sizes` are those of the dim symbols. On a device, what is to be done is enqueued.

        Raises InputError for arrays that do not fit the program at these sizes, DeviceError where no device of the architecture
        is at hand, LibraryError where a library is missing.
        """
        self.machine.check_at_hand(self.program.name)
        check_complete(self.program.name, self.symbols, sizes)
        check_arrays(self.program, inputs, sizes, out)
        if not all(prod(a.shape) for a in (*inputs, *out)):
            # no kernel runs on nothing
            found = run_reference(self.program, inputs, sizes, arithmetic=self.machine.arithmetic())
        else:
            self._measure()
            version = self.version(sizes)
            if version is not None and self.result is not None:
                self.result.executable(version)(inputs, sizes, out)
                return
            found = self.library(inputs, sizes)
        for o, r in zip(out, found, strict=True):
            if o.size:
                o[...] = r

    def _measure(self) -> None:
        """Measure the versions of a search, if nobody has on this device."""
        result = self.result
        if result is None or self.origin != "superoptimized" or self.refused:
            return
        with self._lock:
            if not self.refused and result.is_unmeasured:
                try:
                    result.profile(PROFILE_SECONDS)
                except VerificationError as e:
                    self.refused = str(e)

    def to_text(self) -> str:
        """JSON on one line, of which `ranked_from_text` makes the kernel again; it holds no code."""
        stored = None if self.result is None else self.result.stored()
        return RANKED_KERNEL.to_text(_Stored(self.origin, self.target, self.program, stored))


@dataclass(frozen=True)
class _Stored:
    origin: Origin
    target: str
    program: Program
    result: StoredResult | None = None


def ranked_from_text(text: str, seed: int = 0) -> RankedKernel:
    """The kernel that `to_text` wrote, verified with this seed; what is not in the cache is compiled. Needs no device.

    Raises FormatError for any other text, VerificationError where a graph in it does not compute its program, UnknownTarget,
    and the errors of compilation.
    """
    found = RANKED_KERNEL.from_text(_Stored, text)
    program, stored, machine = found.program, found.result, get_target(found.target)
    if (stored is None) != (found.origin == "library"):
        raise FormatError(f"kernel: {found.origin!r} with or without versions is none; compile the program again")
    if stored is not None and (stored.program, stored.target) != (program, machine.name):
        raise FormatError("kernel: its versions are of another program; compile the program again")
    result = None if stored is None else answers(machine).restored(stored, "kernel", seed)
    if not isinstance(result, Ranked | None):
        raise FormatError(f"kernel: target {found.target!r} ranks no versions; compile the program again")
    return RankedKernel(program, machine, found.origin, result)
