"""A device for whole programs that is not there: kernels that nobody compiled are run by Triton's interpreter, from the bytes of
their arguments; all else by `strict_cupy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.kernels.cuda import device as devices
from mirage.kernels.cuda import target
from mirage.kernels.cuda.compile import functions
from mirage.kernels.cuda.launch import executable as launching
from mirage.kernels.cuda.launch import graphs, loaded, profile
from mirage.kernels.cuda.library import blas, operators
from mirage.kernels.cuda.loops import together
from mirage.results.cuda import result as cuda_result
from mirage.search.decision import Version
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
        for module in (devices, loaded, graphs, profile, cuda_result, target):
            monkeypatch.setattr(module, "find_cupy", lambda: self.cupy if self.present else None)
        for module in (functions, launching, together, target):
            monkeypatch.setattr(module, "compile_all", self.compile_all)
        for module in (blas, operators, target):
            monkeypatch.setattr(module, "device_arrays", lambda: arrays)
        monkeypatch.setattr(launching, "CupyArrays", lambda: arrays)


class ByModel:
    """Stands for measurements, which Triton's interpreter would take hours for: every version is right, the first is fastest."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def check(self, version: Version) -> str:
        return ""

    def times(self, versions: Sequence[Version], sizes: Mapping[str, int]) -> list[float]:
        return [1.0 + k if v.serves(sizes) else float("inf") for k, v in enumerate(versions)]


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: Interpreter) -> StrictLab:
    """A device that is not there; nothing of it is left after the test."""
    monkeypatch.setattr(cuda_result, "DeviceRuns", ByModel)
    folder = tmp_path / "kernels"
    folder.mkdir()
    return StrictLab(folder, interpreter, monkeypatch)
