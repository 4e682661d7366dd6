"""Every form of every peer computes the program it is measured against."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers import inference, peers
from benchmarks.programs import PROGRAMS
from mirage.ir.interpret import run_reference
from mirage.search.accuracy import random_inputs

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

#: odd sizes where the program leaves them open, and more than one of everything
SMALL = {"b": 2, "h": 3, "s": 5, "t": 37, "n": 33, "e": 3, "f": 34, "m": 7}
#: forms per program: PyTorch's and ONNX Runtime's
FORMS = {
    "gqa_decode": (3, 3),
    "qknorm_attention": (2, 3),
    "rmsnorm_linear": (2, 2),
    "mha_decode": (2, 3),
    "mqa_decode": (3, 3),
    "gated_mlp": (2, 2),
    "adapter_mlp": (2, 2),
    "lora": (2, 2),
    "moe": (1, 2),
    "norm_transformer": (1, 1),
    "softmax": (1, 1),
    "layer_norm": (1, 1),
    "rms_norm": (1, 1),
}


def test_every_program_has_peers() -> None:
    assert set(FORMS) == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_peers_compute_the_program(name: str) -> None:
    program = PROGRAMS[name].trace()
    sizes = {s: SMALL[s] for s in program.symbols()}
    inputs = random_inputs(program, sizes, seed=3)
    (wanted,) = run_reference(program, inputs, sizes, "float64")
    found = peers(program, inputs, wanted.shape, threads=2)
    counts = tuple(sum(label.startswith(peer) for label in found) for peer in ("PyTorch", "ONNX Runtime"))
    assert counts == FORMS[name]
    with inference():
        for label, run in found.items():
            result = np.asarray(run())
            assert result.shape == wanted.shape, label
            assert np.max(np.abs(result - wanted)) <= 2e-5 * np.max(np.abs(wanted)), label


def test_peers_do_not_change_their_inputs() -> None:
    for name in ("adapter_mlp", "lora", "norm_transformer", "gated_mlp"):
        program = PROGRAMS[name].trace()
        sizes = {s: SMALL[s] for s in program.symbols()}
        inputs = random_inputs(program, sizes, seed=3)
        before = [x.copy() for x in inputs]
        (wanted,) = run_reference(program, inputs, sizes)
        for run in peers(program, inputs, wanted.shape, threads=1).values():
            run()
        for x, old in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(x, old)


def test_a_run_reads_the_memory_it_was_bound_to() -> None:
    program = PROGRAMS["softmax"].trace()
    x = np.zeros((2, 4), np.float32)
    versions = peers(program, [x], (2, 4), threads=1)
    x[:, 0] = 50.0
    for label, run in versions.items():
        assert np.asarray(run())[0, 0] > 0.999, label
