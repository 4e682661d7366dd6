"""What users run instead: PyTorch eager and ONNX Runtime, each in its best form, with as many threads as our kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import numpy as np

from mirage.ir.program import Program

#: a peer's name ("PyTorch" or "ONNX Runtime") and its version, such as "PyTorch SDPA"
Peers = Mapping[str, Callable[[], object]]


def peers(program: Program, inputs: list[np.ndarray], shape: tuple[int, ...], threads: int) -> Peers:
    """Functions of no arguments that compute a measured program on the memory of its inputs, with `threads` threads.

    `shape` is the result's. Every form that may be the fastest is there; a peer that is not installed is left out.
    """
    found: dict[str, Callable[[], object]] = {}
    if find_spec("torch"):
        from benchmarks.peers_torch import torch_versions

        for label, run in torch_versions(program.name, inputs, threads).items():
            found[f"PyTorch {label}".strip()] = run
    if find_spec("onnx") and find_spec("onnxruntime"):
        from benchmarks.peers_onnx import onnx_versions

        by_name = dict(zip(program.input_names, inputs, strict=True))
        for label, version in onnx_versions(program.name, by_name, shape, threads).items():
            found[f"ONNX Runtime {label}".strip()] = version
    return found


def inference() -> AbstractContextManager[object]:
    """PyTorch without the bookkeeping of gradients, where it is installed."""
    if not find_spec("torch"):
        return nullcontext()
    import torch

    return torch.inference_mode()
