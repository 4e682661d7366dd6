"""Triton functions to compile: one kernel per architecture and set of alignments."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirage.errors import NoCompilerError
from mirage.folders import check_private, private_folder, write_whole
from mirage.kernels.cuda.arguments import typical
from mirage.kernels.cuda.compile.kernels import WORKER, CompiledKernel, checked, compile_all
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emitted import ArgumentKind, EmittedTriton, TritonKernel

#: names of element types in a Triton signature
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


@dataclass(frozen=True)
class Request:
    """A Triton function to compile for an architecture such as 90.

    `signature` gives the Triton types of the arguments that are not constexpr, `divisible` those of them whose values are
    multiples of `emitted.DIVISIBILITY`.
    """

    source: str
    function: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, int]
    divisible: frozenset[str]
    num_warps: int
    num_stages: int
    arch: int

    def key(self) -> str:
        """The hash of all that the machine code depends on.

        Raises NoCompilerError if Triton is not installed.
        """
        content = asdict(self) | {
            "divisible": sorted(self.divisible),
            "triton": triton_version(),
            "worker": _worker_text(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def compiler(self) -> str:
        """The name of the compiler."""
        return "Triton"

    def job(self) -> dict[str, Any]:
        """The request in JSON values, with the source in a file."""
        source = str(_source_file(self.source))
        return asdict(self) | {"divisible": sorted(self.divisible), "source": source}


def request(emitted: EmittedTriton, kernel: TritonKernel, device: CudaDevice, divisible: Collection[str]) -> Request:
    """What to compile for a kernel on a device, where these arguments are multiples of `DIVISIBILITY`."""
    signature = {}
    for a in kernel.arguments:
        pointer = a.kind is ArgumentKind.POINTER
        signature[a.name] = f"*{TYPES[emitted.tensors[a.tensor].dtype]}" if pointer else a.kind.value
    return Request(
        emitted.source,
        kernel.name,
        signature,
        dict(kernel.constexprs),
        frozenset(divisible),
        kernel.num_warps,
        kernel.num_stages,
        device.number,
    )


def compile_triton(emitted: EmittedTriton, device: CudaDevice, sizes: Mapping[str, int]) -> tuple[CompiledKernel, ...]:
    """The kernels of an emitted muGraph in order, from the cache where they were compiled before.

    They run at any sizes at which the same sizes and strides are multiples of `DIVISIBILITY` as for aligned, contiguous arrays
    at `sizes` (dim symbol -> size). Raises NoCompilerError without Triton, CompilerError naming the kernel that it rejects,
    ScheduleError naming the bytes where the device has less shared memory per block than a kernel needs, UnsafeCacheError if
    another user could have written the cache.
    """
    return checked(compile_all(typical_requests(emitted, device, sizes)), device)


def typical_requests(emitted: EmittedTriton, device: CudaDevice, sizes: Mapping[str, int]) -> list[Request]:
    """What to compile for aligned, contiguous arrays of these sizes (dim symbol -> size), per kernel."""
    return [request(emitted, k, device, d) for k, d in zip(emitted.kernels, typical(emitted, sizes), strict=True)]


@functools.cache
def triton_version() -> str:
    """The version of Triton that is installed, which is not imported.

    Raises NoCompilerError if there is none.
    """
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise NoCompilerError(
            "CUDA kernels are compiled by Triton, which is not installed; `pip install triton`, or use target='cpu'"
        ) from None


@functools.cache
def _worker_text() -> str:
    return WORKER.read_text(encoding="utf-8")


def _source_file(source: str) -> Path:
    """A file with the source, at a place that debuggers and profilers find it at later."""
    file = private_folder("cuda/sources") / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.py"
    if not file.exists() or file.read_bytes() != source.encode():
        write_whole(file, source)
    # Triton imports it: nobody else may have had a chance to write it
    check_private(file)
    return file
