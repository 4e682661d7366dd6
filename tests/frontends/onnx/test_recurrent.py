"""Recurrent networks of ONNX as compiled programs, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import mirage as mi  # noqa: E402
from mirage.errors import InputError  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def network(
    kind: str, hidden: int, direction: str, *, lengths: bool, states: bool, peepholes: bool, seed: int = 0, features: int = 5,
    **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray]]:  # fmt: skip
    """A model of any batch and any number of steps, and its weights in float64."""
    rng = np.random.default_rng([seed, hidden])
    count, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    scale = 1 / np.sqrt(hidden)
    shapes = {"w": (count, gates * hidden, features), "r": (count, gates * hidden, hidden), "b": (count, 2 * gates * hidden)}
    if peepholes:
        shapes["p"] = (count, 3 * hidden)
    weights = {n: rng.uniform(-scale, scale, s).astype(np.float32) for n, s in shapes.items()}
    state = ["h", "c"][: 2 if kind == "LSTM" else 1]
    names = ["x", "w", "r", "b", "lengths" if lengths else "", *(state if states else [""] * len(state)), *["p"] * peepholes]
    results = ["y", *(f"y_{s}" for s in state)]
    node = onnx.helper.make_node(kind, names, results, hidden_size=hidden, direction=direction, **attributes)
    tensor, real = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inputs = [tensor("x", real, ["t", "n", features])]
    inputs += [tensor("lengths", onnx.TensorProto.INT32, ["n"])] * lengths
    inputs += [tensor(s, real, [count, "n", hidden]) for s in state] * states
    outputs = [tensor("y", real, ["t", count, "n", hidden]), *(tensor(f"y_{s}", real, [count, "n", hidden]) for s in state)]
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = onnx.helper.make_graph([node], kind, inputs, outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]), weights


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def expected(
    kind: str, weights: dict[str, np.ndarray], x: np.ndarray, lengths: np.ndarray, states: list[np.ndarray], direction: str,
    linear_before_reset: int = 0,
) -> list[np.ndarray]:  # fmt: skip
    """The results in float64, sequence by sequence."""
    t, n, _ = x.shape
    count, hidden = weights["r"].shape[0], weights["r"].shape[2]
    y = np.zeros((t, count, n, hidden))
    ends = [s.astype(np.float64) for s in states]
    for d in range(count):
        w, r, b = (weights[k][d].astype(np.float64) for k in ("w", "r", "b"))
        bw, br = np.split(b, 2)
        p = np.split(weights["p"][d].astype(np.float64), 3) if "p" in weights else [np.zeros(hidden)] * 3
        for k in range(n):
            h, c = ends[0][d, k], ends[-1][d, k]
            for i in range(lengths[k]):
                at = lengths[k] - 1 - i if direction == "reverse" or d else i
                a = np.split(w @ x[at, k] + bw, GATES[kind])
                g = np.split(r @ h + br, GATES[kind])
                if kind == "RNN":
                    h = c = np.tanh(a[0] + g[0])
                elif kind == "LSTM":
                    forget = sigmoid(a[2] + g[2] + p[2] * c)
                    new = forget * c + sigmoid(a[0] + g[0] + p[0] * c) * np.tanh(a[3] + g[3])
                    h, c = sigmoid(a[1] + g[1] + p[1] * new) * np.tanh(new), new
                else:
                    z, reset = sigmoid(a[0] + g[0]), sigmoid(a[1] + g[1])
                    own = reset * g[2] if linear_before_reset else r[2 * hidden :] @ (reset * h) + br[2 * hidden :]
                    h = c = (1 - z) * np.tanh(a[2] + own) + z * h
                y[at, d, k] = h
            ends[0][d, k], ends[-1][d, k] = h, c
    return [y, *ends]


def check(kind: str, hidden: int, direction: str, sizes: list[tuple[int, int]], rounds_in_c: list[int], **options: Any) -> None:
    attributes = {k: options.pop(k) for k in ("linear_before_reset",) if k in options}
    chosen: dict[str, Any] = {"lengths": False, "states": False, "peepholes": False, **options}
    model, weights = network(kind, hidden, direction, **chosen, **attributes)
    run: Any = mi.compile(model, without=("superoptimize",), cache=False)
    count = weights["r"].shape[0]
    for t, n in sizes:
        rng = np.random.default_rng([t, n])
        x = rng.standard_normal((t, n, 5)).astype(np.float32)
        lengths = rng.integers(0, t + 1, n) if chosen["lengths"] else np.full(n, t)
        states = [np.zeros((count, n, hidden), np.float32)] * (2 if kind == "LSTM" else 1)
        if chosen["states"]:
            states = [rng.standard_normal(s.shape).astype(np.float32) for s in states]
        given = {"x": x, **({"lengths": lengths.astype(np.int32)} if chosen["lengths"] else {})}
        given |= dict(zip(("h", "c"), states, strict=False)) if chosen["states"] else {}
        rounds_in_c.clear()
        found = run.run(given)
        wanted = expected(kind, weights, x, lengths, states, direction, **attributes)
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f, w, rtol=0, atol=2e-5, err_msg=f"{t} steps of {n}")
        assert rounds_in_c == ([t] if t > 1 else []), "all rounds of both directions run in C, as one loop"


def test_an_lstm_of_everything(rounds_in_c: list[int]) -> None:
    sizes = [(1, 1), (2, 3), (9, 1), (17, 4)]
    check("LSTM", 7, "bidirectional", sizes, rounds_in_c, lengths=True, states=True, peepholes=True)


@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_a_gru(linear_before_reset: int, rounds_in_c: list[int]) -> None:
    check(
        "GRU", 7, "reverse", [(1, 2), (6, 1), (13, 5)], rounds_in_c, lengths=True, states=True,
        linear_before_reset=linear_before_reset,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("direction", "cut", "why"),
    [
        ("sideways", "", "Unknown direction"),
        ("bidirectional", "w", "num_directions=2"),
        ("forward", "r", "broadcast"),
        ("forward", "", ""),
    ],
)
def test_a_direction_or_weights_that_there_are_not(direction: str, cut: str, why: str) -> None:
    """The reference says what is wrong with them."""
    model, weights = network("LSTM", 4, direction, lengths=True, states=False, peepholes=False)
    for k, a in enumerate(model.graph.initializer):
        if cut and a.name == cut:
            part = weights[cut][:1] if direction == "bidirectional" else weights[cut][:, :, :3]
            model.graph.initializer[k].CopyFrom(onnx.numpy_helper.from_array(part, cut))
    given = {"x": np.zeros((3, 2, 5), np.float32), "lengths": np.array([3, 1], np.int32)}

    def run() -> Any:
        compiled: Any = mi.compile(model, without=("superoptimize",), cache=False)
        return compiled.run(given)

    if not why:
        assert run()[0].shape == (3, 1, 2, 4)
        return
    with pytest.raises(InputError, match=why):
        run()


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [1, 64, 257])
@pytest.mark.parametrize("kind", sorted(GATES))
def test_widths_and_batches(kind: str, hidden: int, rounds_in_c: list[int]) -> None:
    sizes = [(1, 1), (2, 1), (0, 2), (3, 64), (33, 2)]
    check(kind, hidden, "forward", sizes, rounds_in_c, states=True)
    check(kind, hidden, "bidirectional", sizes, rounds_in_c, lengths=True)
