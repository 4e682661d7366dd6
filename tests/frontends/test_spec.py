"""Functions with their types and sizes; the measured programs are such functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import DimError, TraceError
from mirage.ir.axes import to_axes
from mirage.ir.codec import decode, encode
from mirage.ir.interpret import run_reference
from mirage.ir.text import parse_program


@mi.program(x=mi.tensor("b", 64), w=mi.tensor(64, "4*n"), sizes={"b": 1, "n": 8})
def linear(x: Any, w: Any) -> Any:
    """A linear layer
    with ReLU.

    And details.
    """
    return mi.relu(x @ w)


def test_a_function_with_its_types() -> None:
    assert linear.name == "linear"
    assert linear.description == "A linear layer with ReLU."
    assert linear.symbols == ["b", "n"]
    assert linear.sizes == {"default": {"b": 1, "n": 8}}
    assert linear.trace() == mi.trace(linear.fn, "linear", **linear.specs)


def test_functions_use_each_other() -> None:
    p = mi.trace(lambda x, w: linear(x, w) + 1, x=mi.tensor("b", 64), w=mi.tensor(64, 8))
    assert [n.op for n in p] == ["input", "input", "matmul", "relu", "constant", "add"]


BAD: list[tuple[Any, str]] = [
    ({"b": 1}, "sizes 'default' lack dim 'n'"),
    ({"b": 1, "n": 2, "m": 3}, "name 'm', but the dims are b, n"),
    ({"b": 1, "n": -1}, "n=-1 is not a size"),
    ({"b": 1, "n": True}, "n=True is not a size"),
    ({"small": {"b": 1, "n": 1}, "n": 8}, "mixes sizes and sets of sizes"),
    ({"small": {"b": 1, "n": 1}, "large": {"b": 1}}, "sizes 'large' lack dim 'n'"),
]


@pytest.mark.parametrize(("sizes", "message"), BAD)
def test_sizes_bind_every_dim(sizes: Any, message: str) -> None:
    with pytest.raises(DimError) as e:
        mi.program(x=mi.tensor("b", "n"), sizes=sizes)(lambda x: x)
    assert message in str(e.value)


def test_what_cannot_be_decorated() -> None:
    with pytest.raises(TraceError, match="x='b' is not a tensor type"):
        mi.program(x="b")  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="not a plain function"):
        mi.program(x=mi.tensor("b"))(linear)


def load_programs() -> dict[str, mi.TensorFunction]:
    """The measured programs, loaded from their file as any user's are."""
    file = Path(__file__).parents[2] / "benchmarks" / "programs.py"
    spec = importlib.util.spec_from_file_location("measured_programs", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.PROGRAMS)


PROGRAMS = load_programs()


def _numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    e = np.exp(np.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(q.shape[-1]))
    return np.asarray(np.einsum("bhst,bhtd->bhsd", e / e.sum(-1, keepdims=True), v))


def _rms(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6))


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def _layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return np.asarray(
        (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * weight + bias
    )


EXPECTED: dict[str, Any] = {
    "rmsnorm_linear": lambda x, g, w: (_rms(x) * g) @ w,
    "gqa_decode": _numpy_attention,
    "mha_decode": _numpy_attention,
    "mqa_decode": _numpy_attention,
    "qknorm_attention": lambda q, k, v: _numpy_attention(_rms(q), _rms(k), v),
    "gated_mlp": lambda x, w1, w2: _silu(x @ w1) * (x @ w2),
    "adapter_mlp": lambda x, w1, w2: np.maximum(x @ w1, 0) @ w2 + x,
    "lora": lambda x, w, down, up: x @ w + x @ down @ up,
    "moe": lambda x, w1, w3, w2: (_silu(x @ w1) * (x @ w3)) @ w2,
    "norm_transformer": lambda x, h, alpha: _rms(x + alpha * (_rms(h) - x)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "layer_norm": _layer_norm,
    "rms_norm": lambda x, weight: _rms(x) * weight,
}


def test_every_program_is_checked() -> None:
    assert EXPECTED.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_measured_programs(name: str) -> None:
    """Each computes what its name says, has all its sizes, lowers to axes and survives both formats."""
    f = PROGRAMS[name]
    p = f.trace()
    assert f.description.endswith(".")
    for sizes in f.sizes.values():
        assert [t.bind(sizes) for t in p.input_types]
    small = {s: i + 2 for i, s in enumerate(f.symbols)}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.bind(small)) * 0.1 for t in p.input_types]
    (result,) = run_reference(p, arrays, small, "float64")
    np.testing.assert_allclose(result, EXPECTED[name](*arrays), rtol=1e-9, atol=1e-12)
    assert to_axes(p).outputs
    assert parse_program(str(p)) == p
    assert decode(type(p), encode(p), "program") == p


def test_attention_is_measured_at_every_stage() -> None:
    for name in ("gqa_decode", "mha_decode", "mqa_decode", "qknorm_attention"):
        stages = PROGRAMS[name].sizes
        assert {k: (s["s"], s["t"]) for k, s in stages.items()} == {
            "decode": (1, 4096),
            "speculative": (32, 4096),
            "prefill": (512, 4096),
        }
