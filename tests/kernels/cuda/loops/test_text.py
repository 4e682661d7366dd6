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
        "schema": 2,
        "program": programs()["doubled"].to_text(),
        "target": "cuda:sm_90",
        "hints": {"m": 3, "n": 4},
    }
    return json.dumps({k: v for k, v in {**fields, **changes}.items() if v is not None})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", FormatError, "loops: not valid JSON"),
        ("[]", FormatError, "loops: not a mirage loops"),
        (_text(hints=None), FormatError, "loops: expected an object of program, target, hints"),
        (_text(format="mirage kernel"), FormatError, "loops: not a mirage loops"),
        (_text(schema=3), FormatError, "schema 3 is not 2"),
        (_text(program=3), FormatError, "loops.program: expected a text"),
        (_text(target=["cuda"]), FormatError, "loops.target: expected a text"),
        (_text(hints=[]), FormatError, "loops.hints: expected an object"),
        (_text(hints={"m": 3}), FormatError, "hints must give sizes of m, n"),
        (_text(hints={"m": 3, "n": -1}), FormatError, r"loops.hints.'n': expected"),
        (_text(hints={"m": 3, "n": True}), FormatError, r"loops.hints.'n': expected"),
        (_text(hints={"m": 3, "n": 1 << 63}), FormatError, r"loops.hints.'n': expected"),
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
