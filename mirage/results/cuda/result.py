"""The answer of a superoptimization for a CUDA device: versions that the cost model ranks, or a device has measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mirage.errors import BudgetError, DeviceError, InputError
from mirage.ir.dims import check_complete
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cuda.device import CudaDevice, find_cupy, present_device
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.model.cost import floor_us
from mirage.kernels.decision import leaves
from mirage.results.cuda.records import StoredCudaResult, cuda_record
from mirage.results.result import FROM_FILE, Result
from mirage.runtime.arrays import check_inputs
from mirage.runtime.binding import SizeBinder
from mirage.search.cuda.gemms import why_none
from mirage.search.cuda.measure import DeviceRuns, remeasured
from mirage.search.cuda.versions import CudaDecision, CudaVersion
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

#: what a report says of times that are the model's
BY_MODEL = "ranked by model: no device"
#: seconds that measuring on first use takes, about
PROFILE_SECONDS = 10.0


@dataclass(kw_only=True)
class CudaSuperoptimized(Result):
    """A program with verified graphs as kernels for `device`, for all sizes of its symbolic dims.

    `decision` says which of `versions` runs at which sizes. Without a device at hand, its times are those of the cost model
    (`ranked_by_model`), and calls raise DeviceError. On first use with one, the versions are checked against the program,
    measured at the sizes of the decision and decided among again (`profile`); `keep` is then told of the new decision.
    `anchors` are the sizes (dim symbol -> elements) that were given. `constants` are inputs whose contents must not change
    between calls: kernels may read them from packed copies (`forget`).

    `graphs` are all verified graphs by modelled cost of the search. Those of versions have passed the second check of
    `Verifier.confirm`; making a result raises VerificationError where one does not.
    """

    device: CudaDevice
    decision: CudaDecision
    keep: Callable[[CudaDecision], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        #: by what was compiled, which versions keep
        self._executables: dict[int, CudaExecutable] = {}
        confirmed: dict[int, Certificate] = {}
        versions = tuple(replace(v, candidate=self._confirmed(v.candidate, confirmed)) for v in self.decision.versions)
        self.decision = replace(self.decision, versions=versions)
        self.graphs = [self._confirmed(c, confirmed) if id(c.graph) in confirmed else c for c in self.graphs]

    @property
    def _target_name(self) -> str:
        return self.device.target

    @property
    def target(self) -> str:
        """The target's name, such as "cuda:sm_90"."""
        return self.device.target

    @property
    def ranked_by_model(self) -> bool:
        """Whether the times of the decision are the model's, and no device's."""
        return not self.decision.measured_on

    @property
    def versions(self) -> tuple[CudaVersion, ...]:
        """The ways to run the program that `decision` decides among."""
        return self.decision.versions[: self.decision.used]

    def choice(self, sizes: Mapping[str, int]) -> CudaVersion:
        """What a call at these sizes (dim symbol -> elements) runs.

        Raises DimError where a dim has no size, or no version serves them.
        """
        check_complete(self.program.name, self.sizes, sizes)
        return self.decision.versions[self.decision.at(sizes)]

    @property
    def best(self) -> CudaVersion:
        """What a call at the first given sizes runs."""
        return self.choice(self.sizes)

    @property
    def best_us(self) -> float:
        """Microseconds of a call at the first given sizes: modelled, or measured on the device that the decision names."""
        return self.decision.points[0].times[self.decision.at(self.sizes)]

    @property
    def certificate(self) -> Certificate:
        """The evidence for what a call at the first given sizes runs; that of others is `candidate.certificate`."""
        return self.best.candidate.certificate

    @property
    def source(self) -> str:
        """The Triton of the best graph; what CUTLASS kernels compute of it is in comments."""
        return self.best.built.source

    @cached_property
    def floor_us(self) -> float:
        """The least time (us) that the device's bandwidth and arithmetic allow at the first given sizes."""
        moved, flops = program_cost(self.verifier.axis_program, self.sizes)
        return floor_us(self.device, moved, flops, self.program.dtype)

    def _report_rows(self) -> list[tuple[str, str]]:
        what = "modelled" if self.ranked_by_model else "measured"
        best = self.best
        rows = [
            ("times", BY_MODEL if self.ranked_by_model else f"measured on {self.decision.measured_on}"),
            ("device", self.device.note),
            *self._search_rows(
                (
                    "compile",
                    f"{self.seconds.get('tune', 0):.2f} s, {self.compiled} schedules compiled, {len(self.rejected)} rejected",
                )
            ),
            ("compilation stopped", self.tune_stop),
            (f"best: {best}", f"{self.best_us:,.2f} us {what}"),
            ("share of the floor", f"{self.floor_us / self.best_us:.0%} of {self.floor_us:,.2f} us"),
            *(
                (f"kernel {k.name}", f"{k.num_warps} warps, {k.registers} registers, {k.shared >> 10} KiB shared")
                for k in (*best.built.kernels, *best.built.gemms.values())
            ),
            ("CUTLASS kernels", f"not offered: {why}" if (why := why_none(self.program)) else "offered"),
            ("versions", f"{len(self.versions)} chosen of {len(self.decision.versions)} compiled"),
        ]
        rows += [(f"at {where}", f"version {k}: {self.versions[k]}") for where, k in leaves(self.decision.tree)]
        for p in self.decision.points:
            at = ", ".join(f"{s}={n}" for s, n in p.sizes.items()) or "fixed sizes"
            us = min(p.times)
            rows.append((f"{what} at {at}", f"{us:,.2f} us" if us < np.inf else "no version serves it"))
        return rows

    def stored(self) -> StoredCudaResult:
        return StoredCudaResult(decision=cuda_record(self.decision, self.graphs), **self._common())

    def _repr_svg_(self) -> str | None:
        return self.best.graph._repr_svg_()

    # calls

    @property
    def is_unmeasured(self) -> bool:
        """Whether the decision's times are of no measurement on the device at hand; raises DeviceError where there is none that
        runs these kernels.
        """
        return self.decision.measured_on != self._here().name

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        """The program's result (a tuple of results if it has several) for arrays on the device, of CuPy, torch or anything with
        DLPack or `__cuda_array_interface__`: torch's where the first argument is, else CuPy's.

        With `out`, an array (or a tuple of arrays, one per result), results are written there, and `out` is returned; it must not
        overlap the arguments. Kernels are enqueued on `stream`, by default the current one of the arrays' library, and not
        waited for. The first call measures and ranks the versions (`profile`).

        Raises DeviceError where no device of the architecture is at hand, InputError if the arrays do not fit the program or are
        not on the device, DimError for sizes that no version serves.
        """
        if self.is_unmeasured:
            self.profile()
        sizes = SizeBinder(self.program).bind(device_shapes(self.program, arrays))
        outs = None if out is None else out if isinstance(out, tuple | list) else (out,)
        found = self.executable(self.decision.versions[self.decision.at(sizes)])(arrays, sizes, outs, stream)
        if out is not None:
            return out
        return found[0] if len(found) == 1 else tuple(found)

    def forget(self) -> None:
        """Drop the packed copies of constants. The next call makes them again: needed where somebody wrote to a constant."""
        with self._lock:
            for executable in self._executables.values():
                executable.forget()

    def executable(self, version: CudaVersion) -> CudaExecutable:
        """The kernels of a version, ready to be launched; raises the errors of compilation."""
        with self._lock:
            found = self._executables.get(id(version.built))
            if found is None:
                graph, emitted = version.candidate.graph, version.built.emitted
                found = self._executables[id(version.built)] = CudaExecutable(
                    graph, emitted, self.device, version.sizes, self.constants
                )
            return found

    def profile(self, seconds: float = PROFILE_SECONDS) -> None:
        """Check the versions against the program on the device at hand, measure them at the sizes of the decision for about so
        many seconds, and decide among them again. The first call of the result does it, once per device.

        Raises DeviceError where no device of the architecture is at hand, BudgetError for `seconds` that are not positive,
        VerificationError where no version gives the program's results.
        """
        here = self._here()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
            raise BudgetError(f"seconds={seconds!r} must be a positive number")
        runs = DeviceRuns(
            find_cupy(), self.program, self.verifier.axis_program, self.sizes, here, self.executable, budget=seconds,
            points=len(self.decision.points), seed=self.verifier.seed,
        )  # fmt: skip
        decision, rejected = remeasured(self.decision, runs.check, runs.times, len(self.anchors), here.name)
        self.rejected += rejected
        self.decision, self.device = decision, here
        if self.keep is not None:
            self.keep(decision)

    def _here(self) -> CudaDevice:
        """The device at hand; raises DeviceError where there is none that runs these kernels."""
        here = present_device()
        if here is None:
            raise DeviceError(
                f"{self.program.name}: no CUDA device is at hand (or CuPy, which launches kernels, is not installed), so "
                f"that kernels for {self.target} cannot run; save() the result and mirage.load() it where a device is, or run "
                "the program itself with NumPy: reference(*arrays)"
            )
        if here.arch != self.device.arch:
            raise DeviceError(
                f"{self.program.name}: the kernels are for {self.target}, and {here.name} is {here.arch}; "
                f"superoptimize with target='{here.target}'"
            )
        return here

    def reference(self, *arrays: Any) -> Any:
        """The program itself on arrays in main memory, operator by operator with NumPy: its result, or a tuple of several.

        Raises InputError if the arrays do not fit the program.
        """
        inputs = check_inputs(self.program, arrays)
        found = run_reference(self.program, inputs, SizeBinder(self.program).bind([a.shape for a in inputs]))
        return found[0] if len(found) == 1 else tuple(found)


def restored(stored: StoredCudaResult, device: CudaDevice, where: str, seed: int) -> CudaSuperoptimized:
    """The result that was stored, for a device of its architecture: its graphs are verified again with this seed, and its kernels
    compiled if they are not in the cache. `where` says in errors where it comes from.

    Raises VerificationError for a graph that does not compute the program, and the errors of compilation.
    """
    verifier = Verifier(stored.program, seed)
    start = time.perf_counter()
    graphs = stored.rechecked(verifier, where)
    seconds = {"verify": time.perf_counter() - start}
    return CudaSuperoptimized(
        program=stored.program, verifier=verifier, anchors=stored.anchors, device=device, graphs=graphs,
        decision=stored.decision.restored(graphs, device), stats=stored.stats, seconds=seconds,
        cache_hit=True, candidates=stored.candidates, tune_stop=FROM_FILE, constants=stored.constants,
    )  # fmt: skip


def device_shapes(program: Program, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a program's arguments on a device; raises InputError for another number of them or of dims."""
    names, types = program.input_names, program.input_types
    if len(arrays) != len(names):
        raise InputError(
            f"{program.name}: takes {len(names)} arrays ({', '.join(names)}), got {len(arrays)}; pass each input once, in order"
        )
    for x, name, t in zip(arrays, names, types, strict=True):
        if not hasattr(x, "shape") or len(x.shape) != t.rank:
            raise InputError(
                f"{program.name}: input {name!r} must be an array on the device, {t}; got {type(x).__name__}"
            )
    return [tuple(int(n) for n in x.shape) for x in arrays]
