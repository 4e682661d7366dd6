"""Every form of every peer computes the program it is measured against."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

import numpy as np
import pytest

from benchmarks.fairness import aligned
from benchmarks.peers.peers import PEERS, inference, installed, peers
from benchmarks.programs import KERNELS
from mirage.ir.interpret import run_reference
from mirage.search.inputs import random_inputs
from tests.sampled import crossed

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

#: odd sizes where the program leaves them open, and more than one of everything
SMALL = {"b": 2, "h": 3, "s": 5, "t": 37, "n": 33, "e": 3, "f": 34, "m": 7}
#: forms per program, of each of `PEERS`
FORMS = {
    "gqa_decode": (4, 6, 3, 1),
    "gqa_decode_d64": (4, 6, 3, 1),
    "qknorm_attention": (3, 4, 3, 1),
    "rmsnorm_linear": (4, 6, 2, 4),
    "mha_decode": (3, 4, 3, 1),
    "mqa_decode": (4, 6, 3, 1),
    "gated_mlp": (8, 10, 4, 6),
    "adapter_mlp": (4, 6, 2, 4),
    "lora": (4, 6, 2, 4),
    "moe": (4, 6, 4, 4),
    "norm_transformer": (2, 2, 1, 1),
    "softmax": (2, 2, 1, 1),
    "layer_norm": (1, 2, 1, 1),
    "rms_norm": (2, 2, 1, 1),
}
#: peers that are ready at once, and need nothing that copies their inputs
QUICK = ("PyTorch", "ONNX Runtime")


def test_every_program_has_peers() -> None:
    assert set(FORMS) == set(KERNELS)


def small(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs of a program and its result in float64."""
    program = KERNELS[name].trace()
    inputs = [aligned(x) for x in random_inputs(program, {s: SMALL[s] for s in program.symbols()}, seed=3)]
    (wanted,) = run_reference(program, inputs, {s: SMALL[s] for s in program.symbols()}, "float64")
    return inputs, wanted


def check(name: str, peer: str) -> None:
    """Every form of a peer computes the program, and leaves its inputs as they are."""
    inputs, wanted = small(name)
    before = [x.copy() for x in inputs]
    with inference():
        found = peers(KERNELS[name].trace(), inputs, wanted.shape, 2, [peer], pytest.fail)
        assert len(found) == FORMS[name][list(PEERS).index(peer)]
        for label, run in found.items():
            assert label.startswith(peer)
            kept = run()
            # kept: memory that it allocates for the next result would be the same
            result = np.asarray(run())
            given = np.asarray(kept).ctypes.data == result.ctypes.data
            assert given == (peer == "ONNX Runtime" or label.endswith("out=")), label
            assert result.shape == wanted.shape, label
            assert np.max(np.abs(result - wanted)) <= 2e-5 * np.max(np.abs(wanted)), label
    for x, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.parametrize(("name", "peer"), crossed(KERNELS, [*QUICK, "JAX"]))
def test_peers_compute_the_program(name: str, peer: str) -> None:
    if peer == "JAX":
        pytest.importorskip("jax")
    check(name, peer)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++")
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_peers_compute_the_program(name: str) -> None:
    check(name, "torch.compile")


def test_what_cannot_be_compiled_is_reported_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def compiled(run: Callable, **_: object) -> Callable:
        def fails(*_: object) -> NoReturn:
            raise RuntimeError("no compiler\nand more")

        return fails if run.__name__ == "scaled_dot_product_attention" else run

    monkeypatch.setattr(torch, "compile", compiled)
    inputs, wanted = small("mha_decode")
    said: list[str] = []
    found = peers(KERNELS["mha_decode"].trace(), inputs, wanted.shape, 2, ["torch.compile"], said.append)
    assert list(found) == ["torch.compile", "torch.compile out=", "torch.compile SDPA, out="]
    assert said == ["mha_decode: torch.compile SDPA is left out: RuntimeError: no compiler"]


def test_compiled_functions_share_code_with_those_of_their_label_alone() -> None:
    from benchmarks.peers.compiled import into, with_own_code

    def plus(x: int, y: int = 2) -> int:
        return x + y

    made = [with_own_code(f, label) for label in ("a", "b") for f in (plus, into(plus), into(plus))]
    assert made[0](1) == made[3](1) == plus(1)
    a, b = [f.__code__ for f in made[:3]], [f.__code__ for f in made[3:]]
    assert a[1] is a[2] and b[1] is b[2] and len({plus.__code__, *a, *b}) == 5
    assert with_own_code(max, "a") is max, "what has no code"


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.peers.peers.find_spec", lambda package: None if package == "jax" else find_spec(package)
    )
    said: list[str] = []
    assert installed(said.append) == ["PyTorch", "torch.compile", "ONNX Runtime"]
    assert said == ["JAX is not installed and left out; install it with pip install -e '.[test,bench]'"]


@pytest.mark.parametrize("peer", [*QUICK, "JAX"])
def test_a_run_reads_the_memory_it_was_bound_to(peer: str) -> None:
    if peer == "JAX":
        pytest.importorskip("jax")
    program = KERNELS["softmax"].trace()
    x = aligned(np.zeros((2, 4), np.float32))
    versions = peers(program, [x], (2, 4), 1, [peer])
    for column in range(2):
        x[...] = 0.0
        x[:, column] = 50.0
        for label, run in versions.items():
            assert np.asarray(run())[0, column] > 0.999, label


def test_weights_may_be_packed_but_other_inputs_change() -> None:
    """What a version makes of weights in advance, it makes of nothing else."""
    program = KERNELS["gated_mlp"].trace()
    sizes = {"b": 2, "n": 33}
    inputs = [aligned(x) for x in random_inputs(program, sizes, seed=3)]
    installed_now = [p for p in installed() if p != "torch.compile"]
    versions = peers(program, inputs, (2, 33), 1, installed_now)
    inputs[0] *= -2.0
    (wanted,) = run_reference(program, inputs, sizes, "float64")
    for label, run in versions.items():
        assert np.max(np.abs(np.asarray(run()) - wanted)) <= 2e-5 * np.max(np.abs(wanted)), label
