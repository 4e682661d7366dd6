"""Layers of `benchmarks/graphs/models.py` in OpenVINO: their forms in PyTorch, exported to ONNX for these shapes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.flow.exported import first_line, in_openvino, onnx_file
from benchmarks.graphs.programs import GraphProgram
from benchmarks.peers.compiled import Frozen
from benchmarks.peers.in_torch import Form


def openvino_layers(
    program: GraphProgram, forms: Mapping[str, Form], threads: int, say: Callable[[str], None]
) -> dict[str, Callable[[], Any]]:
    """By label, the forms of a program, whose weights are constants; what cannot be exported is left out, and `say` told why."""
    changing = sum(n not in program.constants for n in program.specs)
    found: dict[str, Callable[[], Any]] = {}
    for label, form in forms.items():
        frozen = Frozen(form, [i >= changing for i in range(len(form.arguments))]).eval()
        given = form.arguments[:changing]
        try:
            with tempfile.TemporaryDirectory() as folder:
                run = in_openvino(onnx_file(torch.export.export(frozen, tuple(given), strict=False), Path(folder)), threads)
            run(given)
        except Exception as e:  # of packages that are no part of this project: anything
            say(f"{program.name}: OpenVINO {label} is left out: {first_line(e)}")
            continue
        found[label] = partial(run, given)
    return found
