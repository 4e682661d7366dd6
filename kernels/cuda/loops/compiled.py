"""The machine code of a loop program's kernels: code that relies on how sizes are aligned where they are, and code for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sympy

from mirage.ir.dims import Dim
from mirage.kernels.cuda.arguments import divisible
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emitted import DIVISIBILITY, ArgumentKind, TritonKernel
from mirage.kernels.cuda.loops.emit import EmittedLoops
from mirage.kernels.cuda.loops.ranges import value
from mirage.kernels.cuda.loops.together import Compilation


class CompiledLoops:
    """The kernels of one source, for arrays whose addresses are multiples of `DIVISIBILITY` but for the tensors `unaligned`.

    There are two of each: one for sizes that are multiples of it where those given (dim symbol -> size) are, and one that relies
    on no more than the dims as expressions tell, so that no size has to wait for the compiler.
    """

    def __init__(
        self, emitted: EmittedLoops, device: CudaDevice, sizes: Mapping[str, int], unaligned: Collection[int] = ()
    ) -> None:
        self.emitted = emitted
        self.device = device
        self.aligned = frozenset(range(len(emitted.tensors))) - frozenset(unaligned)
        #: per kernel, the sets of divisible arguments that there is code for: the larger one first
        self._sets = [tuple(dict.fromkeys((self._at(k, sizes), self._always(k)))) for k in emitted.kernels]
        together = zip(emitted.kernels, self._sets, strict=True)
        self._compilation = Compilation([self._request(k, d) for k, sets in together for d in sets])

    def at(self, sizes: Mapping[str, int]) -> tuple[CompiledKernel, ...]:
        """The kernels for these sizes; see `Compilation` for when they are compiled. Raises the errors of `compile_triton`."""
        results = iter(checked(self._compilation.results, self.device))
        found = []
        for k, sets in zip(self.emitted.kernels, self._sets, strict=True):
            here, compiled = self._at(k, sizes), [next(results) for _ in sets]
            found.append(next(c for c, d in zip(compiled, sets, strict=True) if d <= here))
        return tuple(found)

    def _at(self, kernel: TritonKernel, sizes: Mapping[str, int]) -> frozenset[str]:
        values = {a.name: value(a.value, sizes) for a in kernel.arguments if a.kind is ArgumentKind.SIZE}
        return divisible(kernel, values, self.aligned)

    def _always(self, kernel: TritonKernel) -> frozenset[str]:
        values = {a.name: _factor(a.value) for a in kernel.arguments if a.kind is ArgumentKind.SIZE}
        return divisible(kernel, values, self.aligned)

    def _request(self, kernel: TritonKernel, divisible: frozenset[str]) -> Request:
        return Request(
            self.emitted.source,
            kernel.name,
            self.emitted.signature(kernel),
            dict(kernel.constexprs),
            divisible,
            kernel.num_warps,
            kernel.num_stages,
            self.device.number,
        )


def _factor(dim: Dim) -> int:
    """What a dim is a multiple of, whatever the sizes: `DIVISIBILITY`, or 1."""
    coefficients = sympy.expand(dim).as_coefficients_dict().values()
    return DIVISIBILITY if all(c % DIVISIBILITY == 0 for c in coefficients) else 1
