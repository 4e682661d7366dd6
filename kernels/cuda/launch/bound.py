"""A call with its arrays: kernels and library calls that can be launched again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.emitted import PredefinedStep
from mirage.kernels.cuda.launch.arrays import DeviceArray, allocate, bits, view
from mirage.kernels.cuda.launch.plan import ALIGNMENT, Copy, Launch, LibraryRun, Plan, arrange
from mirage.kernels.cuda.library.predefined import PredefinedOperators


class BoundCall:
    """A call with its arrays: `launch` runs it on CuPy's current stream, of the device `device`, as often as one likes.

    `results` are the arrays that it writes. The arrays, and the memory between kernels, are kept as long as this object; two
    launches must not overlap in time, which those on one stream never do.

    `arrays` are the inputs, the results as they are on the device and as they are handed out, and an array whose library
    gives the memory. `load` gives the function of a kernel, `operator` the library calls of
    predefined operators. `packed` are
    the packed copies of constants, by tensor, as they were when the call was bound.
    """

    def __init__(
        self,
        cupy: Any,
        device: int,
        plan: Plan,
        sizes: Mapping[str, int],
        arrays: tuple[Sequence[DeviceArray], Sequence[DeviceArray], list[Any], Any],
        load: Callable[[CompiledKernel], Any],
        operator: Callable[[tuple[PredefinedStep, ...]], PredefinedOperators],
        packed: Mapping[int, DeviceArray] | None = None,
    ) -> None:
        inputs, written, self.results, like = arrays
        self.device = device
        self._cupy = cupy
        self._sizes = sizes
        self._load = load
        self._operator = operator
        self._held = inputs, written, packed
        self._workspace: Any = None
        address = 0
        if plan.workspace:
            address, self._workspace = allocate(cupy, like, plan.workspace + ALIGNMENT, device)
            address = -(-address // ALIGNMENT) * ALIGNMENT
        self._slots: dict[int, DeviceArray] = dict(enumerate(inputs))
        self._slots |= dict(packed or {})
        self._slots |= {plan.results + k: a for k, a in enumerate(written)}
        for i, s in enumerate(plan.slots):
            if s.offset is not None:
                self._slots[i] = DeviceArray(address + s.offset, s.shape, s.strides, s.dtype, device, self._workspace)
        self._steps = [self._bound(step) for step in plan.steps]

    def launch(self) -> None:
        """Enqueue the kernels, library calls and copies on CuPy's current stream; they are not waited for."""
        for step in self._steps:
            step()

    def _bound(self, step: Copy | Launch | LibraryRun) -> Callable[[], object]:
        cupy, slots = self._cupy, self._slots
        if isinstance(step, Launch):
            function, grid, block, shared = self._load(step.kernel), step.grid, step.block, step.kernel.shared
            arguments = tuple(np.uint64(slots[a].address) if isinstance(a, int) else a for a in step.arguments)
            return lambda: function(grid, block, arguments, shared_mem=shared)
        if isinstance(step, LibraryRun):
            operator = self._operator(step.steps)
            return operator.bind({t: view(cupy, slots[step.slots[t]]) for t in operator.tensors}, self._sizes, cupy)
        to = bits(cupy, slots[step.to])
        if to.size == 0:
            return lambda: None
        source = bits(cupy, slots[step.source])

        def copy() -> None:
            # here, as a reshape of scattered elements copies, and contents change between launches
            to[...] = arrange(cupy, step, source, to.shape)

        return copy
