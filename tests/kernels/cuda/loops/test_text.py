"""Kernels of loop programs as text, and texts that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirage.compiler.kernels.loops import target_loops_from_text
from mirage.errors import FormatError, LoopError, ParseError, UnknownTarget
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from tests.ir.loops.programs import programs
from tests.kernels.cuda.lab import Lab


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_kernel_is_read_back(lab: Lab, arch: str) -> None:
    kernel = CudaLoopKernel(programs()["extremes"], DEVICES[arch], {"n": 2, "m": 1 << 20})
    again = target_loops_from_text(kernel.to_text())
    assert isinstance(again, CudaLoopKernel)
    assert again.program == kernel.program and again.source == kernel.source
    assert again.device.arch == arch and again.workspace_types == kernel.workspace_types
    assert again.to_text() == kernel.to_text()


def _text(**changes: Any) -> str:
    fields = {
        "format": "mirage loops",
        "schema": 1,
        "program": programs()["doubled"].to_text(),
        "target": "cuda:sm_90",
        "hints": {"m": 3, "n": 4},
    }
    return json.dumps({k: v for k, v in {**fields, **changes}.items() if v is not None})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", FormatError, "kernel: not JSON"),
        ("[]", FormatError, "kernel: expected format, hints, program, schema, target"),
        (_text(hints=None), FormatError, "kernel: expected"),
        (_text(format="mirage kernel"), FormatError, "kernel: expected"),
        (_text(schema=2), FormatError, "schema 2 is not 1"),
        (_text(program=3), FormatError, "must be texts"),
        (_text(target=["cuda"]), FormatError, "must be texts"),
        (_text(hints=[]), FormatError, "hints must give sizes of m, n"),
        (_text(hints={"m": 3}), FormatError, "hints must give sizes of m, n"),
        (_text(hints={"m": 3, "n": -1}), FormatError, "hints must be sizes"),
        (_text(hints={"m": 3, "n": True}), FormatError, "hints must be sizes"),
        (_text(hints={"m": 3, "n": 1 << 63}), FormatError, "hints must be sizes"),
        (_text(target="cuda:sm_10"), UnknownTarget, "cuda:sm_10"),
        (_text(program="print(1)"), ParseError, "expected one function"),
        (
            _text(program="def f(x: float32[n]) -> float32[n]:\n    return x\n", hints={"n": 3}),
            LoopError,
            "outputs",
        ),
    ],
)
def test_other_texts_are_refused(lab: Lab, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        target_loops_from_text(text)
