"""`mirage.quantize` of networks of convolutions: between them there are whole numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall

RNG = np.random.default_rng(0)
FAST: Any = {"without": ("superoptimize",), "cache": False}
DATA = [RNG.standard_normal((b, 3, 16, 16)).astype(np.float32) for b in (4, 1, 2)]


def operators(module: Module) -> list[str]:
    return [b.value.op for b in module.functions[module.main].bindings if isinstance(b.value, OpCall)]


def torch_network() -> Any:
    """A residual block with a projection, one of depthwise convolutions, and pooling."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            self.first = nn.Sequential(nn.Conv2d(8, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(12, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12))
            self.project = nn.Conv2d(8, 12, 1)
            self.wide = nn.Sequential(nn.Conv2d(12, 24, 1), nn.ReLU6(), nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.ReLU6())
            self.narrow = nn.Conv2d(24, 12, 1)
            self.last = nn.Linear(12, 5)
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    nn.init.normal_(module.running_mean, std=0.1)
                    nn.init.uniform_(module.running_var, 0.5, 2)
                    nn.init.normal_(module.weight, 1, 0.1)
                    nn.init.normal_(module.bias, 0, 0.1)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            x = torch.relu(self.project(x) + self.second(self.first(x)))
            x = x + self.narrow(self.wide(x))
            return self.last(x.mean((2, 3)))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network().eval().requires_grad_(False)


def test_networks_are_whole_numbers_from_the_first_convolution_to_the_mean() -> None:
    model = torch_network()
    q = mi.quantize(model, DATA)
    convolutions = ["quantized_convolution"] * 6
    between = ["dequantize", "mean", "quantize"]
    wanted = ["quantize", convolutions[0], "pad", "max_pool", *convolutions, *between, "quantized_matmul"]
    assert operators(q.module) == wanted
    assert q.report.whole == 8 and q.report.requantized == 7
    assert q.report.stays == [("mean", "it has no rule", 1)]
    assert q.report.result.relative < 0.05
    run = mi.compile(q, **FAST)
    import torch

    for x in DATA:
        found = run(x)
        np.testing.assert_array_equal(found, run_module(q.module, [x]))
        exact = model(torch.from_numpy(x)).numpy()
        assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("scheme", [mi.Scheme("int8", weights="tensor"), mi.Scheme("int16"), mi.Scheme("float32")], ids=str)
def test_other_schemes(scheme: mi.Scheme) -> None:
    w = RNG.standard_normal((6, 3, 3, 3)).astype(np.float32)

    def fn(x: Any, w: Any) -> Any:
        return mi.relu(mi.apply("convolution", x, w, strides=(1, 1), dilations=(1, 1)))

    specs = {"x": mi.tensor("b", 3, 16, 16), "w": mi.tensor(*w.shape)}
    q = mi.quantize(fn, DATA, specs=specs, weights={"w": w}, scheme=scheme)
    assert q.report.whole == (scheme.activations == "int8")
    assert q.report.result.relative < 0.05
    run = mi.compile(q, **FAST)
    np.testing.assert_allclose(run(DATA[0]), run_module(q.module, [DATA[0]]), rtol=1e-4, atol=1e-4)


def test_a_file_with_scales() -> None:
    """DequantizeLinear -> Conv -> Relu -> QuantizeLinear, also with windows of one element, a residual and max pooling."""
    onnx = pytest.importorskip("onnx")
    h, arrays = onnx.helper, onnx.numpy_helper
    w, v = (RNG.integers(-127, 128, s).astype(np.int8) for s in ((6, 3, 3, 3), (6, 6, 1, 1)))
    held = {
        "s": np.float32(0.03), "z": np.uint8(128), "w": w, "v": v, "wz": np.zeros(6, np.int8),
        "ws": RNG.uniform(0.01, 0.02, 6).astype(np.float32), "b": RNG.integers(-99, 99, 6).astype(np.int32),
        "bs": (0.03 * RNG.uniform(0.01, 0.02, 6)).astype(np.float32),
        "bz": np.zeros(6, np.int32), "s1": np.float32(0.1), "z1": np.uint8(0), "s2": np.float32(0.5), "z2": np.uint8(100),
    }  # fmt: skip
    node = h.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]), node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0), node("DequantizeLinear", ["v", "ws", "wz"], ["vd"], axis=0),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "s1", "z1"], ["rq"]), node("DequantizeLinear", ["rq", "s1", "z1"], ["rd"]),
        node("Conv", ["rd", "vd"], ["d"]), node("Add", ["d", "rd"], ["e"]),
        node("QuantizeLinear", ["e", "s2", "z2"], ["eq"]), node("DequantizeLinear", ["eq", "s2", "z2"], ["ed"]),
        node("MaxPool", ["ed"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]  # fmt: skip
    graph = h.make_graph(
        nodes, "network", [h.make_tensor_value_info("x", 1, ["b", 3, 16, 16])],
        [h.make_tensor_value_info("y", 1, ["b", 6, 8, 8])], [arrays.from_array(np.asarray(a), n) for n, a in held.items()],
    )  # fmt: skip
    given = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    run: Any = mi.compile(given, **FAST)
    assert str(run.programs[0].executable.program).count("cpu.quantized_convolution") == 2
    (wanted,) = onnx.reference.ReferenceEvaluator(given).run(None, {"x": DATA[0]})
    (found,) = run.run({"x": DATA[0]})
    # a sum that rounds the other way is one step, half of which is 0.25
    assert np.mean(found != wanted) < 0.01 and np.abs(found - wanted).max() <= 0.5 + 1e-5
