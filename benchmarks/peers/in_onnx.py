"""The measured programs as ONNX models of built-in fused operators, run by ONNX Runtime on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime as ort

from benchmarks.programs import WEIGHTS

#: the epsilon of this project's norms
EPS = 1e-6
#: the first opset with RMSNormalization and Attention
_OPSET, _IR_VERSION = 23, 11
#: weights that are joined along their last axis
_JOINED = {"w1_w2": ("w1", "w2"), "w1_w3": ("w1", "w3")}
#: label and nodes, in ONNX's text form, of every version of a program; the result is `y`
Bodies = dict[str, str]


@dataclass(frozen=True)
class OnnxVersion:
    """A session whose inputs and output are bound to memory, so that a run copies nothing.

    A call runs it and returns the output's array, the same one every time.
    """

    session: ort.InferenceSession
    binding: ort.IOBinding
    output: np.ndarray

    def __call__(self) -> np.ndarray:
        self.session.run_with_iobinding(self.binding)
        return self.output


def onnx_versions(
    name: str, inputs: Mapping[str, np.ndarray], shape: Sequence[int], threads: int
) -> dict[str, OnnxVersion]:
    """By label, functions of no arguments that compute program `name` for these inputs, by name.

    `shape` is the result's. Programs with weights have a version with weights as constants, which a session packs
    in advance for its matmuls, beside one that reads them from the memory of these arrays.
    """
    bodies, weights = _BUILDERS[name](inputs), WEIGHTS.get(name, ())
    versions = {label: _session(name, body, inputs, (), shape, threads) for label, body in bodies.items()}
    for label, body in bodies.items() if weights else ():
        label = ", ".join(filter(None, [label, "constant weights"]))
        versions[label] = _session(name, body, inputs, weights, shape, threads)
    return versions


def _session(
    name: str, body: str, arrays: Mapping[str, np.ndarray], weights: Sequence[str], shape: Sequence[int], threads: int
) -> OnnxVersion:
    ones = np.ones(next(iter(arrays.values())).shape[-1:], np.float32)
    joined = {both: np.concatenate([arrays[n] for n in of], -1) for both, of in _JOINED.items() if both in body}
    # those that the body mentions
    arrays = {n: a for n, a in {**arrays, **joined}.items() if re.search(rf"\b{n}\b", body)}
    fixed = {*weights, *joined} if weights else set()
    fed = {n: np.ascontiguousarray(a) for n, a in arrays.items() if n not in fixed}
    constants = {n: a for n, a in arrays.items() if n in fixed} | ({"ones": ones} if "ones" in body else {})
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = _model(name, body, fed, constants, shape).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding, output = session.io_binding(), np.empty(shape, np.float32)
    for n, a in fed.items():
        binding.bind_input(n, "cpu", 0, np.float32, a.shape, a.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, output.shape, output.ctypes.data)
    # the binding holds addresses only: a copy made above must live as long as it
    binding.arrays = fed
    return OnnxVersion(session, binding, output)


def _model(
    name: str, body: str, fed: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray], shape: Sequence[int]
) -> onnx.ModelProto:
    declared = ", ".join(f"{_type(a.shape)} {n}" for n, a in fed.items())
    text = (
        f'<ir_version: {_IR_VERSION}, opset_import: ["": {_OPSET}, "com.microsoft": 1]>\n'
        f"{name} ({declared}) => ({_type(shape)} y) {{ {body} }}"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def _type(shape: Sequence[int]) -> str:
    return f"float[{','.join(map(str, shape))}]"


def _norm(result: str, x: str, scale: str = "ones") -> str:
    return f"{result} = RMSNormalization<axis = -1, epsilon = {EPS}>({x}, {scale})\n"


def _rmsnorm_linear(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": _norm("n", "x", "g") + "y = MatMul(n, w)"}


def _gated(up: str, result: str) -> Bodies:
    """The gated product of `x` with `w1` and another weight: by two matmuls, and by one of both weights."""
    return {
        "": f"""a = MatMul(x, w1)
                s = com.microsoft.QuickGelu<alpha = 1.0>(a)
                b = MatMul(x, {up})
                {result} = Mul(s, b)
             """,
        "joined weights": f"""ab = MatMul(x, w1_{up})
                              a, b = Split<axis = -1, num_outputs = 2>(ab)
                              s = com.microsoft.QuickGelu<alpha = 1.0>(a)
                              {result} = Mul(s, b)
                           """,
    }


def _gated_mlp(_: Mapping[str, np.ndarray]) -> Bodies:
    return _gated("w2", "y")


def _adapter_mlp(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": 'a = com.microsoft.FusedGemm<activation = "Relu">(x, w1)\n y = Gemm(a, w2, x)'}


def _lora(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": "a = MatMul(x, w)\n b = MatMul(x, down)\n y = Gemm(b, up, a)"}


def _moe(_: Mapping[str, np.ndarray]) -> Bodies:
    return {label: body + "y = MatMul(m, w2)" for label, body in _gated("w3", "m").items()}


def _norm_transformer(_: Mapping[str, np.ndarray]) -> Bodies:
    skip = f"y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = {EPS}>(x, u, ones)"
    return {"": _norm("n", "h") + "d = Sub(n, x)\n u = Mul(alpha, d)\n" + skip}


def _softmax(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": "y = Softmax<axis = -1>(x)"}


def _layer_norm(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": f"y = LayerNormalization<axis = -1, epsilon = {EPS}>(x, weight, bias)"}


def _rms_norm(_: Mapping[str, np.ndarray]) -> Bodies:
    return {"": _norm("y", "x", "weight")}


def _attention(inputs: Mapping[str, np.ndarray], q: str = "q", k: str = "k") -> Bodies:
    """Three ways: matmuls and softmax, the standard operator, ONNX Runtime's own.

    Query heads that share a head of keys and values become rows of one head, where an operator has no better way.
    """
    b, heads, s, d = inputs["q"].shape
    shared = inputs["k"].shape[1]
    rows = heads // shared * s
    folded = f"folded = Constant<value_ints = [{b}, {shared}, {rows}, {d}]>()\n f = Reshape({q}, folded)\n"
    whole = f"whole = Constant<value_ints = [{b}, {heads}, {s}, {d}]>()\n"
    return {
        "": folded
        + whole
        + f"""kt = Transpose<perm = [0, 1, 3, 2]>({k})
              dots = MatMul(f, kt)
              scale = Constant<value_float = {d**-0.5}>()
              scaled = Mul(dots, scale)
              p = Softmax<axis = -1>(scaled)
              o = MatMul(p, v)
              y = Reshape(o, whole)""",
        "Attention": f"y = Attention({q}, {k}, v)",
        "MultiHeadAttention": folded
        + whole
        + f"""packed = Constant<value_ints = [{b}, {rows}, {shared * d}]>()
              split = Constant<value_ints = [{b}, {rows}, {shared}, {d}]>()
              ft = Transpose<perm = [0, 2, 1, 3]>(f)
              f3 = Reshape(ft, packed)
              o3 = com.microsoft.MultiHeadAttention<num_heads = {shared}>(f3, {k}, v)
              o4 = Reshape(o3, split)
              o = Transpose<perm = [0, 2, 1, 3]>(o4)
              y = Reshape(o, whole)""",
    }


def _qknorm_attention(inputs: Mapping[str, np.ndarray]) -> Bodies:
    norms = _norm("qn", "q") + _norm("kn", "k")
    return {label: norms + body for label, body in _attention(inputs, "qn", "kn").items()}


_BUILDERS: dict[str, Callable[[Mapping[str, np.ndarray]], Bodies]] = {
    "rmsnorm_linear": _rmsnorm_linear,
    "gated_mlp": _gated_mlp,
    "adapter_mlp": _adapter_mlp,
    "lora": _lora,
    "moe": _moe,
    "norm_transformer": _norm_transformer,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "mha_decode": _attention,
    "qknorm_attention": _qknorm_attention,
    "gqa_decode": _attention,
    "gqa_decode_d64": _attention,
    "mqa_decode": _attention,
}
