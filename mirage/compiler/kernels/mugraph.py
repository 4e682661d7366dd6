"""A kernel of a graph module that runs a program of the search's operators, by verified muGraphs or by library calls.

What the paper's call_tir calls (Relax, section 3.3): it takes arrays for its results, and for the tensors between its steps.
Which version runs at which sizes is a decision tree, compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.compiler.kernels.arrays import check_arrays
from mirage.compiler.kernels.text import KernelParts, parts_from_text
from mirage.compiler.kernels.versions import KernelVersion, compile_versions
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.ir.dims import Dim, check_complete, evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS, TensorType
from mirage.kernels.cpu.launch.choose import compile_tree
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.frames import BoundCall
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.rounds import Launch
from mirage.kernels.cpu.library import CpuLibraryProgram
from mirage.kernels.decision import Tree, leaves
from mirage.remember import remember

if TYPE_CHECKING:
    from mirage.results.cpu.result import Superoptimized

#: layouts of the arrays at sizes of the dims whose calls are kept
_KEPT = 64


@dataclass(frozen=True)
class _Ready:
    """What C code does for arrays of one layout, and the bytes of workspace that it needs."""

    call: BoundCall
    workspace: int


class MuGraphKernel:
    """A program of one float type, its compiled versions, and the decision tree among them over the program's dim symbols.

    `origin` says where the versions come from: "superoptimized", "fused" (without a search) or "library". `constants` are
    inputs whose contents never change between calls: schedules may have packed them. May be called from several threads.
    """

    kind = "mugraph"

    def __init__(
        self,
        program: Program,
        versions: Sequence[KernelVersion],
        tree: Tree,
        origin: str,
        constants: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.versions = tuple(versions)
        self.tree = tree
        self.origin = origin
        self.constants = tuple(constants)
        self.symbols = tuple(program.symbols())
        self.output_types = program.output_types
        self._itemsize = DTYPES[program.dtype].itemsize
        #: of the inputs, then of the results: their types, and bits of an address that have to be 0
        self._dtypes = [ELEMENTS[t.dtype] for t in (*program.input_types, *program.output_types)]
        self._alignments = [t.itemsize - 1 for t in self._dtypes]
        self._choose = compile_tree(program.name, tree, self.symbols)
        self._ready: dict[tuple[Any, ...], _Ready] = {}

    @classmethod
    def of_result(cls, result: Superoptimized) -> MuGraphKernel:
        """The kernel of a superoptimized program: its versions, which it has verified and compiled, and its decision."""
        versions = []
        for v in result.versions:
            c = v.candidate
            if c is None:
                versions.append(KernelVersion(v.kind))
            else:
                versions.append(KernelVersion(v.kind, c.graph, c.schedule, c.sizes, c.certificate, c.executable))
        return cls(result.program, versions, result.decision.tree, "superoptimized", result.constants)

    @classmethod
    def of_library(cls, program: Program) -> MuGraphKernel:
        """The kernel that runs a program as NumPy and BLAS calls at all sizes; it needs no C compiler."""
        return cls(program, [KernelVersion("library")], 0, "library")

    def forget(self) -> None:
        """Drop the packed copies of constants: needed where somebody wrote to one."""
        for v in self.versions:
            if v.executable is not None:
                v.executable.forget()

    def to_text(self) -> str:
        """JSON on one line, from which `kernel_from_text` makes the kernel again; it holds no code."""
        return KernelParts(self.program, self.versions, self.tree, self.origin, self.constants).to_text()

    def __str__(self) -> str:
        lines = [f"{self.program.name}: {self.origin}"]
        return "\n".join([*lines, *(f"    at {where}: {self.versions[k]}" for where, k in leaves(self.tree))])

    @cached_property
    def library(self) -> CpuLibraryProgram:
        """The program as NumPy and BLAS calls."""
        return CpuLibraryProgram(to_axes(self.program), self.constants)

    def version(self, sizes: Mapping[str, int]) -> KernelVersion:
        """What a call at these sizes (dim symbol -> elements) runs; raises DimError where a dim has no size."""
        check_complete(self.program.name, self.symbols, sizes)
        return self.versions[self._choose(sizes)]

    def launches(self, sizes: Mapping[str, int]) -> int:
        """How many kernels and calls of library functions a call at these sizes comes to."""
        graph = self.version(sizes).graph
        if graph is None:
            return sum(n.op not in ("input", "constant", "size") for n in self.library.program.nodes)
        return sum(n.op not in ("input", "constant", "size") for n in graph.kernel.nodes)

    @cached_property
    def workspace_types(self) -> tuple[TensorType, ...]:
        """The tensor that a call needs besides arguments and results (Relax, section 4.4), over the program's dims: none, or one
        vector that is at least as long as each version needs.
        """
        longest = _at_least([v.executable.workspace() for v in self.versions if v.executable is not None])
        return () if longest == 0 else (TensorType((longest,), self.program.dtype),)

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray] = (),
    ) -> None:
        """Write the program's results for `inputs` to `out`, which must not overlap them; `sizes` are those of the dim symbols.

        `workspace` are contiguous arrays of `workspace_types`, or nothing: then the kernel takes memory of its own, and keeps
        it for later calls. Raises InputError for arrays that do not fit the program at these sizes, naming the input and both
        shapes, and DimError for a dim without a size.
        """
        layout: list[Any] = [sizes.get(s) for s in self.symbols]
        addresses = []
        bits = 0
        arrays = (*inputs, *out)
        for a, dtype, alignment in zip(arrays, self._dtypes, self._alignments, strict=False):
            if a.dtype is not dtype:
                break
            layout += a.shape, a.strides
            addresses.append(at := address(a))
            bits |= at & alignment
        else:
            ready = self._ready.get(tuple(layout)) if len(arrays) == len(self._dtypes) else None
            if ready is not None and not bits:
                if not ready.workspace or not workspace:
                    return ready.call.run(addresses, inputs)
                if workspace[0].nbytes >= ready.workspace:
                    return ready.call.run(addresses, inputs, workspace[0])
        self._general(tuple(layout), inputs, sizes, out, workspace)

    def _general(
        self,
        layout: tuple[Any, ...],
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray],
    ) -> None:
        """The way of calls that are new, or that C code alone cannot do."""
        version = self.version(sizes)
        check_arrays(self.program, inputs, sizes, out)
        if not all(o.flags.writeable for o in out):
            raise InputError(f"{self.program.name}: a result cannot be written to; pass writable arrays")
        # no kernel runs on nothing: an empty dim is NumPy's case
        empty = not all(prod(a.shape) for a in (*inputs, *out))
        executable = version.executable
        if executable is not None and not empty:
            need, memory = self._memory(executable, sizes, workspace)
            call = executable.bind(sizes, [a.strides for a in (*inputs, *out)])
            if call is not None:
                remember(self._ready, layout, _Ready(call, need), _KEPT)
            executable(inputs, sizes, out, None, memory)
        elif version.kind == "library" and not empty and all(o.flags.c_contiguous for o in out):
            self.library(inputs, sizes, out)
        else:
            run: Callable[..., list[np.ndarray]] = (
                self._reference if empty or version.kind == "reference" else self.library
            )
            for o, r in zip(out, run(inputs, sizes), strict=True):
                o[...] = r

    def prepare(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray],
    ) -> tuple[Launch, ...] | None:
        """Launches that do what a call with arrays of these shapes and strides, and this workspace, does; None where more than C
        code takes part.

        They fail as calls do.
        """
        executable = self.version(sizes).executable
        if executable is None or not all(prod(a.shape) for a in (*inputs, *out)):
            return None
        check_arrays(self.program, inputs, sizes, out)
        call = executable.bind(sizes, [a.strides for a in (*inputs, *out)])
        return None if call is None else call.prepare(self._memory(executable, sizes, workspace)[1])

    def _memory(
        self, executable: CpuExecutable, sizes: Mapping[str, int], workspace: Sequence[np.ndarray]
    ) -> tuple[int, np.ndarray | None]:
        """The bytes that an executable needs between operators, and the memory for them in a workspace, if that has some."""
        need: int = evaluate(executable.workspace(), sizes) * self._itemsize
        memory = workspace[0] if workspace and need else None
        if memory is not None and (memory.nbytes < need or not memory.flags.c_contiguous):
            raise InputError(
                f"{self.program.name}: the workspace has {memory.nbytes} bytes, not {need} in one piece; pass arrays of "
                "workspace_types"
            )
        return need, memory

    def _reference(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        return run_reference(self.program, inputs, sizes)


def kernel_from_text(text: str, seed: int = 0) -> MuGraphKernel:
    """The kernel that `MuGraphKernel.to_text` wrote, verified with this seed and compiled for this machine.

    Raises FormatError for any other text, VerificationError where a graph in it does not compute its program, and what
    `compile_versions` raises.
    """
    p = parts_from_text(text)
    return MuGraphKernel(p.program, compile_versions(p.program, p.versions, p.constants, seed), p.tree, p.origin, p.constants)


def _at_least(dims: Sequence[Dim]) -> Dim:
    """A dim that is at least each of these polynomials with coefficients of 0 or more: each term's largest coefficient."""
    most: dict[Dim, int] = {}
    for d in dims:
        for term in sympy.Add.make_args(sympy.expand(d)):
            coefficient, rest = term.as_coeff_Mul()
            most[rest] = max(most.get(rest, 0), int(coefficient))
    return sympy.Add(*(c * rest for rest, c in most.items()))
