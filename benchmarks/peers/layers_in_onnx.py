"""Layers of `benchmarks/graphs/models.py` as ONNX models of built-in fused operators, run by ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime as ort

from benchmarks.graphs.models import frequencies
from benchmarks.graphs.programs import BERT_BASE, TINY_LLAMA, GraphProgram
from benchmarks.peers.in_onnx import EPS

#: the first opset with RMSNormalization, RotaryEmbedding and Attention
_OPSET, _IR_VERSION = 23, 11
#: positions that the tables of a rotary embedding have
_POSITIONS = 8192
#: weights that are joined along their last axis
_JOINED = {"wqkv": ("wq", "wk", "wv"), "w1_w3": ("w1", "w3")}
_TYPES = {np.dtype(np.float32): "float", np.dtype(np.int64): "int64", np.dtype(np.bool_): "bool"}


@dataclass(frozen=True)
class _Model:
    """Nodes in ONNX's text form, the results with their dims, and constants beside the weights.

    `dims` are those of the fed arrays, `prepare` makes these of the program's arguments.
    """

    body: str
    results: Mapping[str, str]
    dims: Mapping[str, str]
    constants: Mapping[str, np.ndarray]
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given


@dataclass(frozen=True)
class OnnxLayer:
    """A session whose inputs and outputs are bound to memory, so that a run copies nothing; a call returns the outputs."""

    session: ort.InferenceSession
    binding: ort.IOBinding
    outputs: tuple[np.ndarray, ...]

    def __call__(self) -> tuple[np.ndarray, ...]:
        self.session.run_with_iobinding(self.binding)
        return self.outputs


def onnx_layers(
    program: GraphProgram, arguments: Sequence[Any], shapes: Sequence[tuple[int, ...]], threads: int
) -> dict[str, OnnxLayer]:
    """By label, a program with its weights as constants, which a session packs in advance; empty for those that have no model.

    `shapes` are those of the results. Dims that callers vary are symbols of the model.
    """
    given = dict(zip(program.specs, arguments, strict=True))
    found = {}
    for label, make in _MODELS.get(program.name, {}).items():
        model = make()
        fed = model.prepare({n: a for n, a in given.items() if n not in program.constants})
        constants = {n: given[n] for n in program.constants} | dict(model.constants)
        for both, names in _JOINED.items():
            if both in model.body:
                constants[both] = np.concatenate([constants.pop(n) for n in names], -1)
        session = _session(program.name, model, fed, constants, threads)
        binding = session.io_binding()
        outputs = tuple(np.empty(shape, np.float32) for shape in shapes)
        for n, a in fed.items():
            binding.bind_input(n, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        for n, a in zip(model.results, outputs, strict=True):
            binding.bind_output(n, "cpu", 0, np.float32, a.shape, a.ctypes.data)
        # the binding holds addresses only
        binding.arrays = fed
        found[label] = OnnxLayer(session, binding, outputs)
    return found


def _session(
    name: str, model: _Model, fed: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray], threads: int
) -> ort.InferenceSession:
    declared = ", ".join(f"{_TYPES[a.dtype]}[{model.dims[n]}] {n}" for n, a in fed.items())
    returned = ", ".join(f"float[{dims}] {n}" for n, dims in model.results.items())
    text = (
        f'<ir_version: {_IR_VERSION}, opset_import: ["": {_OPSET}, "com.microsoft": 1]>\n'
        f"{name} ({declared}) => ({returned}) {{ {model.body} }}"
    )
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _llama(cached: bool, joined: bool = False) -> _Model:
    model = TINY_LLAMA
    angles = np.arange(_POSITIONS)[:, None] * frequencies(model.head)
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    # one new token sees all that is cached; a prompt has no cache
    attention = ('<{}>(q, k, v0, "", k_cache, v_cache)' if cached else "<{}, is_causal = 1>(q, k, v0)").format(
        f"q_num_heads = {model.heads}, kv_num_heads = {model.shared}"
    )
    cache = f"b, {model.shared}, t, {model.head}"
    # a session has keys and values before they are cached as [b, s, heads * head]
    split = "" if cached else _split("k", "keys") + _split("v0", "values")
    widths = {"sizes": np.array([n * model.head for n in (model.heads, model.shared, model.shared)], np.int64)}
    projections, gated = (
        ("qkv = MatMul(y1, wqkv)\n q0, k0, v0 = Split<axis = -1>(qkv, sizes)", _both_of("a", "u", "y2", "w1_w3"))
        if joined
        else (
            "q0 = MatMul(y1, wq)\n k0 = MatMul(y1, wk)\n v0 = MatMul(y1, wv)",
            "a = MatMul(y2, w1)\n u = MatMul(y2, w3)",
        )
    )
    body = f"""
        y1 = RMSNormalization<axis = -1, epsilon = {EPS}>(x, norm1)
        {projections}
        q = RotaryEmbedding<num_heads = {model.heads}>(q0, cos, sin, positions)
        k = RotaryEmbedding<num_heads = {model.shared}>(k0, cos, sin, positions)
        {f"mixed, keys, values = Attention{attention}" if cached else f"mixed = Attention{attention}"}
        {split}
        o = MatMul(mixed, wo)
        x1 = Add(x, o)
        y2 = RMSNormalization<axis = -1, epsilon = {EPS}>(x1, norm2)
        {gated}
        g = com.microsoft.QuickGelu<alpha = 1.0>(a)
        h = Mul(g, u)
        d = MatMul(h, w2)
        result = Add(x1, d)
    """
    length = "u" if cached else "s"
    kept = f"b, {model.shared}, {length}, {model.head}"
    tables |= widths if joined else {}
    constants = tables if cached else tables | {"heads": np.array([0, 0, model.shared, model.head], np.int64)}

    def prepare(given: dict[str, Any]) -> dict[str, Any]:
        b, s, _ = given["x"].shape
        return given | {"positions": np.ascontiguousarray(np.broadcast_to(given["positions"], (b, s)))}

    return _Model(
        body,
        {"result": f"b, s, {model.hidden}", "keys": kept, "values": kept},
        {"x": f"b, s, {model.hidden}", "positions": "b, s", "k_cache": cache, "v_cache": cache},
        constants,
        prepare,
    )


def _both_of(first: str, second: str, x: str, joined: str) -> str:
    """The two halves of a product with joined weights."""
    return f"{first}_{second} = MatMul({x}, {joined})\n {first}, {second} = Split<axis = -1, num_outputs = 2>({first}_{second})"


def _split(x: str, result: str) -> str:
    return f"{x}_heads = Reshape({x}, heads)\n {result} = Transpose<perm = [0, 2, 1, 3]>({x}_heads)\n"


def _bert() -> _Model:
    model = BERT_BASE

    def linear(result: str, x: str, w: str, b: str) -> str:
        return f"{result}_0 = MatMul({x}, {w})\n {result} = Add({result}_0, {b})\n"

    body = f"""
        {linear("q", "x", "wq", "bq")} {linear("k", "x", "wk", "bk")} {linear("v", "x", "wv", "bv")}
        mask = Cast<to = {onnx.TensorProto.INT32}>(valid)
        mixed = com.microsoft.MultiHeadAttention<num_heads = {model.heads}>(q, k, v, "", mask)
        {linear("o", "mixed", "wo", "bo")}
        r1 = Add(x, o)
        x1 = LayerNormalization<axis = -1, epsilon = {EPS}>(r1, g1, c1)
        {linear("a", "x1", "w1", "b1")}
        g = Gelu(a)
        {linear("d", "g", "w2", "b2")}
        r2 = Add(x1, d)
        result = LayerNormalization<axis = -1, epsilon = {EPS}>(r2, g2, c2)
    """
    rows = f"b, s, {model.hidden}"
    return _Model(body, {"result": rows}, {"x": rows, "valid": "b, s"}, {})


_MODELS: dict[str, dict[str, Callable[[], _Model]]] = {
    "llama_prefill": {
        "constant weights": lambda: _llama(False),
        "constant joined weights": lambda: _llama(False, joined=True),
    },
    "llama_decode": {
        "constant weights": lambda: _llama(True),
        "constant joined weights": lambda: _llama(True, joined=True),
    },
    "bert_encoder": {"constant weights": _bert},
}
