"""CUTLASS kernels compiled ahead of time, without a GPU, and cached by content like those of Triton (`compile/kernels.py`).

Only what compiles needs nvidia-cutlass-dsl: a kernel that is in the cache is launched without it. The version is part of the
key, so it is fixed here rather than read from what is installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage.errors import CompilerError, NoCompilerError
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.gemm.gemm import Gemm

#: the version of nvidia-cutlass-dsl that kernels are compiled with
VERSION = "4.8.1"
WORKER = Path(__file__).with_name("worker.py")
KERNEL = Path(__file__).with_name("kernel.py")


@dataclass(frozen=True)
class GemmRequest:
    """A CUTLASS kernel to compile for an architecture such as "sm_90a"."""

    gemm: Gemm
    arch: str

    @property
    def function(self) -> str:
        """The first part of the name of its folder."""
        return f"cutlass_gemm_{self.gemm.dtype}"

    @property
    def compiler(self) -> str:
        """The name of the compiler."""
        return "CUTLASS"

    def key(self) -> str:
        """The hash of all that the machine code depends on."""
        content = self.gemm.to_json() | {"arch": self.arch, "cutlass": VERSION, "texts": _texts()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def job(self) -> dict[str, Any]:
        """What the worker is told.

        Raises NoCompilerError where nvidia-cutlass-dsl of this version is not installed.
        """
        check_installed()
        return {
            "gemm": self.gemm.to_json(),
            "kernel": str(KERNEL),
            "arch": self.arch,
            "shared": self.gemm.config.shared_bytes,
            "num_warps": self.gemm.config.num_warps,
            "worker": str(WORKER),
        }


def compile_gemms(gemms: Sequence[Gemm], device: CudaDevice) -> list[CompiledKernel | CompilerError]:
    """The kernels for a device, or why they were rejected; what was not compiled before is compiled side by side.

    Raises NoCompilerError where one is to be compiled and nvidia-cutlass-dsl is not installed, UnsafeCacheError if another
    user could have written the cache.
    """
    # instructions such as wgmma are those of one architecture and no later one
    arch = device.arch + "a" * (device.capability >= (9, 0))
    return compile_all([GemmRequest(g, arch) for g in gemms])


def check_installed() -> None:
    """Raises NoCompilerError where nvidia-cutlass-dsl is not installed in the version that kernels are compiled with."""
    try:
        found = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        raise NoCompilerError(
            "CUTLASS kernels are compiled by nvidia-cutlass-dsl, which is not installed; run pip install -e '.[cutlass]'"
        ) from None
    if found != VERSION:
        raise NoCompilerError(
            f"CUTLASS kernels are compiled by nvidia-cutlass-dsl {VERSION}, and {found} is installed; "
            "run pip install -e '.[cutlass]'"
        )


@functools.cache
def _texts() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in (WORKER, KERNEL)]
