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
from benchmarks.graphs.programs import BERT_BASE, GEMMA, GPT2, T5_BASE, TINY_LLAMA, WHISPER_SMALL, GraphProgram
from benchmarks.peers.in_onnx import EPS

#: the first opset with RMSNormalization, RotaryEmbedding and Attention
_OPSET, _IR_VERSION = 23, 11
#: positions that the tables of a rotary embedding have
_POSITIONS = 8192
#: weights that are joined along their last axis
_JOINED = {"wqkv": ("wq", "wk", "wv"), "w1_w3": ("w1", "w3")}
_TYPES = {np.dtype(np.float32): "float", np.dtype(np.int64): "int64", np.dtype(np.int32): "int32", np.dtype(np.bool_): "bool"}


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
            # a model may have them joined
            if both in model.body and both not in constants:
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
        {_rms("y1", "x", "norm1")}
        {projections}
        q = RotaryEmbedding<num_heads = {model.heads}>(q0, cos, sin, positions)
        k = RotaryEmbedding<num_heads = {model.shared}>(k0, cos, sin, positions)
        {f"mixed, keys, values = Attention{attention}" if cached else f"mixed = Attention{attention}"}
        {split}
        o = MatMul(mixed, wo)
        x1 = Add(x, o)
        {_rms("y2", "x1", "norm2")}
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
    body = f"""
        {_linear("q", "x", "wq", "bq")} {_linear("k", "x", "wk", "bk")} {_linear("v", "x", "wv", "bv")}
        mask = Cast<to = {onnx.TensorProto.INT32}>(valid)
        mixed = com.microsoft.MultiHeadAttention<num_heads = {model.heads}>(q, k, v, "", mask)
        {_linear("o", "mixed", "wo", "bo")}
        r1 = Add(x, o)
        {_norm("x1", "r1", "g1", "c1")}
        {_linear("a", "x1", "w1", "b1")}
        g = Gelu(a)
        {_linear("d", "g", "w2", "b2")}
        r2 = Add(x1, d)
        {_norm("result", "r2", "g2", "c2")}
    """
    rows = f"b, s, {model.hidden}"
    return _Model(body, {"result": rows}, {"x": rows, "valid": "b, s"}, {})


def _linear(result: str, x: str, w: str, b: str) -> str:
    return f"{result}_0 = MatMul({x}, {w})\n {result} = Add({result}_0, {b})\n"


def _norm(result: str, x: str, gain: str, shift: str) -> str:
    return f"{result} = LayerNormalization<axis = -1, epsilon = {EPS}>({x}, {gain}, {shift})\n"


def _rms(result: str, x: str, gain: str) -> str:
    return f"{result} = RMSNormalization<axis = -1, epsilon = {EPS}>({x}, {gain})\n"


def _appending(heads: int) -> str:
    """Attention of one new token to all that is cached, and to itself."""
    attributes = f"q_num_heads = {heads}, kv_num_heads = {heads}"
    return f'mixed, keys, values = Attention<{attributes}>(q, k, v, "", k_cache, v_cache)\n'


def _cached(heads: int, head: int, hidden: int) -> tuple[dict[str, str], dict[str, str]]:
    """Dims of the results and of the inputs of a layer with a cache."""
    rows, kept = f"b, s, {hidden}", f"b, {heads}, {{}}, {head}"
    results = {"result": rows, "keys": kept.format("u"), "values": kept.format("u")}
    return results, {"x": rows, "k_cache": kept.format("t"), "v_cache": kept.format("t")}


def _gpt2() -> _Model:
    model = GPT2
    body = f"""
        {_norm("y1", "x", "g1", "c1")} {_linear("qkv", "y1", "wqkv", "bqkv")}
        q, k, v = Split<axis = -1, num_outputs = 3>(qkv)
        {_appending(model.heads)}
        {_linear("o", "mixed", "wo", "bo")}
        x1 = Add(x, o)
        {_norm("y2", "x1", "g2", "c2")} {_linear("a", "y2", "w1", "b1")}
        g = Gelu<approximate = "tanh">(a)
        {_linear("d", "g", "w2", "b2")}
        result = Add(x1, d)
    """
    return _Model(body, *_cached(model.heads, model.hidden // model.heads, model.hidden), {})


def _t5() -> _Model:
    heads = T5_BASE.heads
    body = f"""
        {_rms("y1", "x", "norm1")}
        q = MatMul(y1, wq)
        k = MatMul(y1, wk)
        v = MatMul(y1, wv)
        biases = Gather<axis = 0>(bias, distances)
        by_head = Transpose<perm = [2, 0, 1]>(biases)
        added = Unsqueeze(by_head, first)
        mixed = com.microsoft.MultiHeadAttention<num_heads = {heads}, scale = 1.0>(q, k, v, "", "", added)
        o = MatMul(mixed, wo)
        x1 = Add(x, o)
        {_rms("y2", "x1", "norm2")}
        a = MatMul(y2, w1)
        r = Relu(a)
        d = MatMul(r, w2)
        result = Add(x1, d)
    """
    rows = f"b, s, {T5_BASE.hidden}"
    return _Model(body, {"result": rows}, {"x": rows, "distances": "s, s"}, {"first": np.zeros(1, np.int64)})


def _whisper() -> _Model:
    model = WHISPER_SMALL
    head = model.hidden // model.heads
    body = f"""
        {_norm("y1", "x", "g1", "c1")} {_linear("q", "y1", "wq", "bq")} {_linear("v", "y1", "wv", "bv")}
        k = MatMul(y1, wk)
        {_appending(model.heads)}
        {_linear("o", "mixed", "wo", "bo")}
        x1 = Add(x, o)
        {_norm("y2", "x1", "g2", "c2")} {_linear("cq", "y2", "wcq", "bcq")}
        heard = com.microsoft.MultiHeadAttention<num_heads = {model.heads}>(cq, k_sound, v_sound)
        {_linear("co", "heard", "wco", "bco")}
        x2 = Add(x1, co)
        {_norm("y3", "x2", "g3", "c3")} {_linear("a", "y3", "w1", "b1")}
        g = Gelu(a)
        {_linear("d", "g", "w2", "b2")}
        result = Add(x2, d)
    """
    results, dims = _cached(model.heads, head, model.hidden)
    sound = f"b, {model.heads}, f, {head}"
    return _Model(body, results, dims | {"k_sound": sound, "v_sound": sound}, {})


def _gemma() -> _Model:
    """`GroupQueryAttention` has the window, the cap, the rotary embedding and the cache."""
    model = GEMMA
    angles = np.arange(_POSITIONS)[:, None] * frequencies(model.head)
    attributes = (
        f"num_heads = {model.heads}, kv_num_heads = {model.shared}, local_window_size = {model.window}, "
        f"softcap = {model.cap}, do_rotary = 1"
    )
    gains = "".join(f"gain{i} = Add(norm{i}, one)\n" for i in range(1, 5))
    body = f"""
        {gains} {_rms("y1", "x", "gain1")}
        q = MatMul(y1, wq)
        k = MatMul(y1, wk)
        v = MatMul(y1, wv)
        mixed, keys, values = com.microsoft.GroupQueryAttention<{attributes}>(q, k, v, k_cache, v_cache, lasts, total, cos, sin)
        o = MatMul(mixed, wo)
        {_rms("n2", "o", "gain2")}
        x1 = Add(x, n2)
        {_rms("y3", "x1", "gain3")}
        a = MatMul(y3, w1)
        u = MatMul(y3, w3)
        g = Gelu<approximate = "tanh">(a)
        h = Mul(g, u)
        d = MatMul(h, w2)
        {_rms("n4", "d", "gain4")}
        result = Add(x1, n4)
    """
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}

    def prepare(given: dict[str, Any]) -> dict[str, Any]:
        """The lengths of the sequences in place of the positions."""
        tokens = given["k_cache"].shape[2] + given["x"].shape[1]
        rest = {n: a for n, a in given.items() if n != "positions"}
        last = np.full(given["x"].shape[0], tokens - 1, np.int32)
        return rest | {"lasts": last, "total": np.array([tokens], np.int32)}

    results, dims = _cached(model.shared, model.head, model.hidden)
    constants = tables | {"one": np.ones(1, np.float32)}
    return _Model(body, results, dims | {"lasts": "b", "total": "1"}, constants, prepare)


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
    "gpt2_decode": {"constant weights": _gpt2},
    "t5_encoder": {"constant weights": _t5},
    "whisper_decode": {"constant weights": _whisper},
    "gemma_decode": {"constant weights": _gemma},
}
