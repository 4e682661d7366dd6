"""Attention of ONNX files, beside the reference evaluator."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import mirage as mi  # noqa: E402

SIZES: list[dict[Any, int]] = [
    {"b": 2, "s": 5, "t": 9, "m": 9}, {"b": 1, "s": 1, "t": 9, "m": 6}, {"b": 3, "s": 9, "t": 4, "m": 4},
]  # fmt: skip
_Shapes: TypeAlias = dict[str, list[Any]]


def heads(queries: int = 4, keys: int = 4) -> _Shapes:
    return {"Q": ["b", queries, "s", 16], "K": ["b", keys, "t", 16], "V": ["b", keys, "t", 16]}


FLAT: _Shapes = {"Q": ["b", "s", 64], "K": ["b", "t", 32], "V": ["b", "t", 32]}
PAST: _Shapes = {"PK": ["b", 4, 7, 16], "PV": ["b", 4, 7, 16]}
#: attributes, shapes of the inputs, how many results are asked for, and whether it is one call
FORMS: dict[str, tuple[dict[str, Any], _Shapes, int, bool]] = {
    "plain": ({}, heads(), 1, True),
    "scaled": ({"scale": 0.3}, heads(), 1, True),
    "heads that share keys": ({}, heads(4, 2), 1, True),
    "capped": ({"softcap": 2.0}, heads(), 1, True),
    "capped, with a mask": ({"softcap": 2.0}, heads() | {"M": ["s", "t"]}, 1, True),
    "causal": ({"is_causal": 1}, heads(), 1, True),
    "causal, with a mask": ({"is_causal": 1}, heads() | {"M": ["b", 1, "s", "t"]}, 1, True),
    "a mask of the first key": ({}, heads() | {"M": ["b", 1, "s", 1]}, 1, True),
    "a mask of some keys": ({}, heads() | {"M": ["s", 4]}, 1, True),
    "a mask of further keys": ({}, heads() | {"M": ["s", "m"]}, 1, True),
    "heads side by side": ({"q_num_heads": 4, "kv_num_heads": 2}, FLAT, 1, True),
    "behind what was": ({"is_causal": 1}, heads() | PAST, 3, True),
    "scores are a result": ({}, heads() | PAST, 4, False),
}


def model_of(attrs: dict[str, Any], shapes: _Shapes, results: int) -> Any:
    names, h = ["Y", "K2", "V2", "S"][:results], onnx.helper
    given = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    rank = len(shapes["Q"])
    found = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [f"{n}{i}" for i in range(rank)]) for n in names]
    inputs = ["Q", "K", "V", "", "PK", "PV"] if "PK" in shapes else list(shapes)
    node = h.make_node("Attention", inputs, names, **attrs)
    return h.make_model(h.make_graph([node], "g", given, found), opset_imports=[h.make_opsetid("", 24)], ir_version=11)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    attrs, shapes, results, is_call = FORMS[name]
    model = model_of(attrs, shapes, results)
    run: Any = mi.compile(model, without=("superoptimize",))
    for sizes in SIZES:
        rng = np.random.default_rng(0)
        at = {n: [d if isinstance(d, int) else sizes[d] for d in shape] for n, shape in shapes.items()}
        given = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in at.items()}
        if "M" in given:
            given["M"][given["M"] > 1] = -np.inf
            given["M"][..., 0, :] = -np.inf
        found = run(**given)
        wanted = ReferenceEvaluator(model).run(None, given)
        for f, w in zip(found if isinstance(found, tuple | list) else [found], wanted, strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-5)
    program = run.programs[0]
    assert not program.imported.fallback
    assert ("cpu.attention" in str(program.executable.program)) == is_call
