"""`mirage.quantize`: annotated, calibrated, realized; compiled, it gives what the interpreter does, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.context import Context
from mirage.compiler.passes import canonicalize
from mirage.compiler.quantize.annotate import annotate
from mirage.compiler.quantize.realize import realize
from mirage.compiler.quantize.rules import Role, Stays, quantization_rules
from mirage.errors import CalibrationError, InputError, QuantizationError, UnknownOperator
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.graph.text import print_module
from tests.api.small import BUDGET, Judge, races_by
from tests.sampled import thinned

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, np.ndarray] = {
    "w": RNG.standard_normal((24, 48)).astype(np.float32) / 5,
    "b": RNG.standard_normal(48).astype(np.float32),
    "v": RNG.standard_normal((48, 12)).astype(np.float32) / 7,
}
SPECS = {"x": mi.tensor("m", 24), **{n: mi.tensor(*w.shape) for n, w in WEIGHTS.items()}}
DATA = [RNG.standard_normal((m, 24)).astype(np.float32) for m in (8, 1, 20)]
FAST: Any = {"without": ("superoptimize",), "cache": False}


def network(x: Any, w: Any, b: Any, v: Any) -> Any:
    return mi.relu(x @ w + b) @ v


def quantized(fn: Any = network, scheme: mi.Scheme | None = None, data: Any = DATA) -> Any:
    return mi.quantize(fn, data, specs=SPECS, weights=WEIGHTS, scheme=scheme)


def operators(module: Module) -> list[str]:
    return [b.value.op for b in module.functions[module.main].bindings if isinstance(b.value, OpCall)]


SCHEMES = [
    mi.Scheme(),
    mi.Scheme(activations="int8", method="mse", weight_method="mse"),
    mi.Scheme(method="kl", weights="tensor"),
    mi.Scheme(method="percentile", percentile=99.9, weights=4),
    mi.Scheme(activations="int16"),
    mi.Scheme(scales="fixed point"),
    mi.Scheme(scales="power of two", weights="tensor"),
    mi.Scheme(activations="int16", scales="fixed point"),
]


@pytest.mark.parametrize("scheme", thinned(SCHEMES), ids=str)
def test_compiled_as_interpreted_bit_for_bit(scheme: mi.Scheme) -> None:
    q = quantized(scheme=scheme)
    assert operators(q.module) == ["quantize", "quantized_matmul", "quantized_matmul"]
    assert q.report.whole == 2 and q.report.requantized == 1
    run = mi.compile(q, **FAST)
    for x in (*DATA, np.full((3, 24), 100, np.float32)):
        np.testing.assert_array_equal(run(x), run_module(q.module, [x]))
    # whole numbers give what the simulation gave, but for where a rounding error meets a tie
    x = DATA[0]
    wanted = run_module(mi.trace_module(network, SPECS), [x, *WEIGHTS.values()])
    for found in (run(x), run_module(q.simulated, [x])):
        assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)


def test_the_report_says_errors_scales_and_what_stays_float() -> None:
    q = quantized(lambda x, w, b, v: mi.tanh(x @ w + b) @ v @ mi.transpose(v, (1, 0)).reshape(12, 48))
    report = q.report
    assert [layer.op for layer in report.layers] == ["matmul"] * 3
    assert all(0 < layer.difference.relative < 0.05 and layer.scale for layer in report.layers)
    assert 0 < report.result.relative < 0.05
    assert report.stays == [("tanh", "it has no rule", 1)]
    assert len(report.scales) == 3 and str(q) == str(report)
    assert "1 tanh: it has no rule" in str(report)


def test_a_product_of_activations_stays_float() -> None:
    q = quantized(lambda x, w, b, v: (x @ w) @ mi.transpose(x @ w, (1, 0)) + b[0])
    assert ("matmul", "both operands are activations", 1) in q.report.stays
    # what two layers read is quantized once, and the same product is computed once
    assert operators(q.module).count("quantize") == 1 and operators(q.module).count("quantized_matmul") == 1


@pytest.fixture
def restored() -> Iterator[None]:
    before = dict(quantization_rules())
    yield
    for op in quantization_rules().keys() - before.keys():
        mi.register_quantization(op, None)
    for op, rule in before.items():
        mi.register_quantization(op, rule)


@pytest.mark.usefixtures("restored")
def test_users_overload_rules() -> None:
    mi.register_quantization("matmul", lambda call: Stays("I say so"))
    mi.register_quantization("tanh", lambda call: [Role.ACTIVATION])
    q = quantized(lambda x, w, b, v: mi.tanh(x @ w))
    assert q.report.stays == [("matmul", "I say so", 1), ("tanh", "its quantization is simulated", 1)]
    assert [layer.op for layer in q.report.layers] == ["tanh"] and q.report.layers[0].difference.relative > 0
    assert operators(q.module) == ["matmul", "quantize", "dequantize", "tanh"]
    np.testing.assert_allclose(mi.compile(q, **FAST)(DATA[0]), run_module(q.module, [DATA[0]]), atol=1e-5)
    with pytest.raises(UnknownOperator):
        mi.register_quantization("no_such_operator", lambda call: [])
    mi.register_quantization("matmul", lambda call: [Role.ACTIVATION])
    with pytest.raises(QuantizationError, match=r"the rule of matmul gives .* for 2 operands"):
        quantized()


@pytest.mark.usefixtures("restored")
def test_a_role_that_an_operand_cannot_have_is_refused() -> None:
    mi.register_quantization("add", lambda call: [Role.ACTIVATION, Role.ACTIVATION])
    with pytest.raises(QuantizationError, match=r"of add gives Role.ACTIVATION for operand 1, .* are known; give Role.WEIGHT"):
        quantized(lambda x, w, b, v: x @ w + b)
    mi.register_quantization("tanh", lambda call: [Role.WEIGHT])
    with pytest.raises(QuantizationError, match=r"of tanh gives Role.WEIGHT for operand 0, .* are not known; give Role.ACTIV"):
        quantized(lambda x, w, b, v: mi.tanh(x @ w))


def test_branches_and_loops_stay_float_and_are_named() -> None:
    def fn(x: Any, w: Any, b: Any, v: Any) -> Any:
        return mi.loop(3, lambda i, y: y @ mi.transpose(w, (1, 0)) @ w, x @ w)

    q = quantized(fn)
    assert ("calls, branches and loops", "only the main function is quantized", 1) in q.report.stays
    np.testing.assert_allclose(mi.compile(q, **FAST)(DATA[0]), run_module(q.module, [DATA[0]]), rtol=1e-4, atol=1e-4)


def test_annotation_without_calibration_computes_what_the_program_does_and_is_not_realized() -> None:
    module = canonicalize.run(mi.trace_module(lambda x: x @ WEIGHTS["w"], {"x": SPECS["x"]}), Context())
    annotated = annotate(module, mi.Scheme())
    assert operators(annotated.module) == ["sim_quantize", "sim_quantize", "matmul"]
    np.testing.assert_array_equal(run_module(annotated.module, [DATA[0]]), run_module(module, [DATA[0]]))
    with pytest.raises(QuantizationError, match="has no scale; calibrate the module"):
        realize(annotated.module)


NAN = np.full((2, 24), np.nan, np.float32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there is no data"),
        ([DATA[0], np.zeros((2, 23), np.float32)], r"data\[1\] does not fit the program.*23"),
        ([DATA[0].astype(np.float64)], r"data\[0\] does not fit the program.*float64"),
        ([DATA[0], NAN], r"data\[1\] gives NaN at x"),
        ([(DATA[0], DATA[0])], r"data\[0\] has 2 arrays, and the program takes 1: x"),
        ([{"y": DATA[0]}], r"data\[0\] has y; the inputs are x"),
    ],
)
def test_data_that_scales_cannot_be_chosen_from(data: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        quantized(data=data)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"u": WEIGHTS["w"]}, "'u' is no parameter of network; they are x, w, b, v"),
        ({"w": WEIGHTS["v"]}, r"'w' is float32\[48, 12\], not float32\[24, 48\]"),
        ({"w": WEIGHTS["w"].astype(np.float64)}, "'w' is float64"),
        ({"x": DATA[0]}, r"'x' is float32\[m, 24\]; give the parameters of weights sizes that are numbers"),
    ],
)
def test_weights_that_do_not_fit(weights: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mi.quantize(network, DATA, specs=SPECS, weights=weights)


def test_a_program_of_weights_alone_is_refused() -> None:
    with pytest.raises(QuantizationError, match="no input but its weights"):
        mi.quantize(lambda w: w @ w, DATA, specs={"w": mi.tensor(3, 3)}, weights={"w": np.eye(3, dtype=np.float32)})


def test_models_of_pytorch_and_onnx_give_the_same() -> None:
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Linear(48, 12)).eval()
    first, second = model[0], model[2]
    q = mi.quantize(model, [torch.from_numpy(x) for x in DATA])
    names = ["w", "b", "v", "c"]
    arrays = [p.detach().numpy() for p in (first.weight, first.bias, second.weight, second.bias)]
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "v", "c"], ["y"], transB=1),
        ],
        "network",
        [helper.make_tensor_value_info("x", 1, ["m", 24])],
        [helper.make_tensor_value_info("y", 1, ["m", 12])],
        [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)],
    )
    opsets = [helper.make_opsetid("", 21)]
    of_onnx = mi.quantize(helper.make_model(graph, opset_imports=opsets, ir_version=10), [{"x": x} for x in DATA])
    results = []
    for found in (q, of_onnx):
        assert found.report.whole == 2 and found.report.requantized == 1
        run = mi.compile(found, **FAST)
        results.append(np.asarray(run(DATA[0])))
        np.testing.assert_array_equal(results[-1], run_module(found.module, [DATA[0]]))
    # both run the float model by other products, whose rounding errors are in the scales
    np.testing.assert_allclose(results[0], results[1], atol=0.02)
    with pytest.raises(InputError, match="have no meaning for a model"):
        mi.quantize(model, DATA, weights={"w": arrays[0]})


@pytest.mark.parametrize("scheme", [mi.Scheme(), mi.Scheme("float32", weights=4)], ids=str)
def test_saved_and_loaded(scheme: mi.Scheme, tmp_path: Any) -> None:
    # weights that folding leaves in 8 bits
    w = RNG.standard_normal((24, 6000)).astype(np.float32)
    q = mi.quantize(lambda x: mi.relu(x @ w), DATA, specs={"x": SPECS["x"]}, scheme=scheme)
    run = mi.compile(q, **FAST)
    assert "cpu.pack_" in str(run.program)
    run.save(tmp_path / "quantized.mirage")
    again = mi.load_executable(tmp_path / "quantized.mirage")
    for x in DATA:
        np.testing.assert_array_equal(again(x), run(x))


def test_the_text_of_a_quantized_module_is_read_back() -> None:
    q = quantized()
    again = mi.compile(print_module(q.module), **FAST)
    np.testing.assert_array_equal(again(DATA[0]), mi.compile(q, **FAST)(DATA[0]))


@pytest.mark.slow
def test_what_reads_quantized_weights_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that callers pass are made real before a kernel that the search has found, and proved, around their product."""
    races_by(Judge("full", "found", "fused"), monkeypatch.setattr)
    specs = {"x": mi.tensor("m", 24), "w": mi.tensor(24, 48, dtype="int8"), "scale": mi.tensor(48)}

    def fn(x: Any, w: Any, scale: Any) -> Any:
        return mi.rms_norm(x) @ mi.apply("dequantize", w, scale, axis=1)

    module = mi.trace_module(fn, specs)
    run = mi.compile(module, bounds={"m": 8}, budget=BUDGET, cache=False)
    found = {("lax" in name): what for name, what in run.facts.kernels.items()}
    assert len(run.facts.kernels) == 2 and found[True].endswith("complete") and found[False].endswith(": dequantize")
    w = RNG.integers(-127, 128, (24, 48)).astype(np.int8)
    for m in (1, 8):
        given = [RNG.standard_normal((m, 24), np.float32), w, RNG.random(48, np.float32)]
        np.testing.assert_allclose(run(*given), run_module(module, given), rtol=1e-4, atol=1e-4)
