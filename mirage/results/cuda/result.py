"""The answer of a superoptimization for a CUDA device: versions that the cost model ranks, or a device has measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from mirage.errors import BudgetError, DeviceError
from mirage.kernels.cuda.compile.kernels import compile_all
from mirage.kernels.cuda.device import CudaDevice, find_cupy, present_device
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.target import CudaTarget
from mirage.results import ranked
from mirage.results.ranked import Ranked
from mirage.search.accuracy import small_trials
from mirage.search.cuda.measure import DeviceRuns, remeasured
from mirage.search.decision import Version

#: seconds that measuring on first use takes, about
PROFILE_SECONDS = 10.0


@dataclass(kw_only=True, repr=False)
class CudaSuperoptimized(Ranked):
    """A program with verified graphs as kernels for `device`, for all sizes of its symbolic dims, see `Ranked`.

    Without a device at hand, calls raise DeviceError. On first use with one, the versions are checked against the program,
    measured at the sizes of the decision and decided among again (`profile`).
    """

    @property
    def device(self) -> CudaDevice:
        """The device at hand, or one of the table."""
        assert isinstance(self.machine, CudaTarget)
        return self.machine.device

    @property
    def device_name(self) -> str:
        return self.device.name

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
        return self._call(arrays, out, stream)

    def executable(self, version: Version) -> CudaExecutable:
        """The kernels of a version, ready to be launched."""
        found = version.executable
        assert isinstance(found, CudaExecutable)
        return found

    def prepare(self) -> None:
        """Compile, side by side, all that `profile` launches, so that it finds it in the cache. Needs no device.

        Raises NoCompilerError without Triton, UnsafeCacheError if another user could have written the cache.
        """
        at = [p.sizes for p in self.decision.points] + [sizes for sizes, _ in small_trials(self.program, self.sizes).values()]
        runs = [(v, self.executable(v)) for v in self.decision.versions]
        compile_all([r for v, run in runs for s in at if v.serves(s) for r in run.requests(s)])

    def profile(self, seconds: float = PROFILE_SECONDS) -> None:
        """Check the versions against the program on the device at hand, measure them at the sizes of the decision for about so
        many seconds, and decide among them again. The first call of the result does it, once per device.

        Raises DeviceError where no device of the architecture is at hand, BudgetError for `seconds` that are not positive,
        VerificationError where no version gives the program's results.
        """
        here = self._here()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
            raise BudgetError(f"seconds={seconds!r} must be a positive number")
        self.prepare()
        runs = DeviceRuns(
            find_cupy(), self.program, self.verifier.axis_program, self.sizes, here, self.executable, budget=seconds,
            points=len(self.decision.points), seed=self.verifier.seed,
        )  # fmt: skip
        decision, rejected = remeasured(self.decision, runs.check, runs.times, len(self.anchors), here.name)
        self.rejected += rejected
        self.decision, self.machine = decision, CudaTarget(here)
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


superoptimize = partial(ranked.superoptimize, kind=CudaSuperoptimized)
restored = partial(ranked.restored, kind=CudaSuperoptimized)
shapes = ranked.shapes
