"""What users run instead: PyTorch eager and compiled, ONNX Runtime and JAX, each in its best form, with our threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np

from benchmarks.programs import WEIGHTS
from mirage.ir.program import Program

#: a peer's name and its version, such as "PyTorch SDPA"
Peers = Mapping[str, Callable[[], object]]
Say = Callable[[str], None]
#: every peer's name, and the packages that it needs
PEERS: dict[str, tuple[str, ...]] = {
    "PyTorch": ("torch",),
    "torch.compile": ("torch",),
    "ONNX Runtime": ("onnx", "onnxruntime"),
    "JAX": ("jax",),
}
#: those of layers of models
LAYER_PEERS = (*PEERS, "OpenVINO")


def complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def installed(say: Say = lambda _: None) -> list[str]:
    """The names of the peers whose packages are installed; `say` is told of the others."""
    found = [peer for peer, packages in PEERS.items() if all(map(find_spec, packages))]
    for peer in PEERS:
        if peer not in found:
            say(f"{peer} is not installed and left out; install it with pip install -e '.[test,bench]'")
    return found


def peers(
    program: Program,
    inputs: Sequence[np.ndarray],
    shape: tuple[int, ...],
    threads: int,
    of: Sequence[str] | None = None,
    say: Say = complain,
) -> Peers:
    """Functions of no arguments that compute a measured program for its inputs, with `threads` threads.

    `shape` is the result's. `of` are names of installed peers, all by default. Every form that may be the fastest is
    there; `say` is told of one that cannot be compiled.
    """
    found: dict[str, Callable[[], object]] = {}
    for peer in installed() if of is None else of:
        for label, run in _versions(peer, program, inputs, shape, threads, say).items():
            found[f"{peer} {label}".strip()] = run
    return found


def _versions(
    peer: str, program: Program, inputs: Sequence[np.ndarray], shape: tuple[int, ...], threads: int, say: Say
) -> Peers:
    name, by_name = program.name, dict(zip(program.input_names, inputs, strict=True))
    if peer == "PyTorch":
        from benchmarks.peers.in_torch import torch_forms

        return torch_forms(name, inputs, threads)
    if peer == "torch.compile":
        from benchmarks.peers.compiled import compiled_versions

        return compiled_versions(name, by_name, WEIGHTS.get(name, ()), threads, say)
    if peer == "ONNX Runtime":
        from benchmarks.peers.in_onnx import onnx_versions

        return onnx_versions(name, by_name, shape, threads)
    from benchmarks.peers.in_jax import jax_versions

    return jax_versions(name, by_name, WEIGHTS.get(name, ()), threads)


@contextmanager
def inference() -> Iterator[None]:
    """PyTorch, where it is installed, without the bookkeeping of gradients; what it compiles within is forgotten after."""
    if not find_spec("torch"):
        yield
        return
    import torch

    try:
        with torch.inference_mode():
            yield
    finally:
        torch.compiler.reset()
