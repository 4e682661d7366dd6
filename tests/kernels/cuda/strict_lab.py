"""A device for whole programs that is not there: kernels that nobody compiled are run by Triton's interpreter, from the bytes of
their arguments; all else by `strict_cupy`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage import cuda_result
from mirage.kernels.cuda import blas, graphs, loaded, operators, profile
from mirage.kernels.cuda import compile as compiling
from mirage.kernels.cuda import device as devices
from mirage.kernels.cuda import launch as launching
from mirage.kernels.cuda.interpret import Interpreter
from mirage.kernels.cuda.loops import kernel as loops
from mirage.compiler.kernels import cuda_mugraph
from mirage.search import rank
from tests.kernels.cuda.interpreted import Interpreted
from tests.kernels.cuda.lab import Lab
from tests.kernels.cuda.strict_cupy import StrictArrays, StrictCupy


class StrictLab(Lab):
    """Kernels compiled by nobody, and a device that may be taken away."""

    def __init__(self, folder: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.cupy: StrictCupy = StrictCupy()
        self.cupy.runner = Interpreted(self.cupy, interpreter)
        self.present = True
        arrays = StrictArrays(self.cupy)
        for module in (devices, loaded, graphs, profile, cuda_result):
            monkeypatch.setattr(module, "find_cupy", lambda: self.cupy if self.present else None)
        for module in (compiling, launching, loops, rank):
            monkeypatch.setattr(module, "compile_all", self.compile_all)
        for module in (blas, operators, cuda_mugraph):
            monkeypatch.setattr(module, "device_arrays", lambda: arrays)
        monkeypatch.setattr(launching, "CupyArrays", lambda: arrays)
