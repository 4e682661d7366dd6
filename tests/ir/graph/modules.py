"""A module with every form of the graph IR, and the functions that it calls."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram, compute, operands, single
from mirage.ir.types import tensor

READERS = {"loops": parse_loops}


def doubling() -> LoopProgram:
    """A kernel that doubles the elements of a vector."""
    type_ = tensor("p")
    (x,) = operands([type_])
    return single("doubling", [type_], compute(type_, lambda i: x[i] + x[i]))


#: 17 ones
ONES = base64.b64encode(np.ones(17).tobytes()).decode()

TEXT = f'''
twice = kernel("loops", """{doubling().to_text()}""")

def sub(x: float32[n, m], *, k: Dim) -> float32[m*n]:
    with dataflow():
        v0 = exp(x)
        v1 = reshape(v0, shape=(-1,))
        v2 = full(shape=(k,), value=1/3, dtype="float32")
    return v1

def then_0(b: float32[n]) -> float32[n]:
    with dataflow():
        c = constant(value=1/3)
        y = mul(b, c)
    return y

def else_0(b: float32[q]):
    with dataflow():
        y = add(b, float32[1](0.1))
    return y

@attrs(origin="test", rank=1)
def body(i: int64[()], b: float32[n], w: float32[2*m]) -> float32[n]:
    with dataflow():
        pass
        y = add(b, b)
    return y

@main
def start(x: float32[k, 4], p: bool[()], c: int64[()]):
    with dataflow():
        a: float32[4*k] = call[sub](x, dims=(2*k,))
        b = match_cast[float32[q]](a)
        s = b.shape
        d = if_else[then_0, else_0](p, b)
        l = loop[body]((d,), (b,), count=3, bound=10)
        r = loop[body](c, (l,), (b,), bound=10)
        t = (d, r, [q, 2*k])
        g = item[1](t)
        h = library["scale", float32[q]](g, factor=1/2, name="a\\n\\"b\\"", dims=(q, True, -1, 0.5))
        u = kernel[twice, float32[q]](h, dims=(q,))
        z = shape_function["bins", 1](s)
        w = unique(u)
        alias = g
    e = packed["note", Object](u, int64[2, 2](1, 2, 3, -4), k=k)
    f = add_copy(u)
    o = packed["add_", float32[q], in_place[0]](f, g)
    fill = packed["fill_", float32[q], in_place[0]](f, value=2)
    with dataflow():
        big: Tensor = add(float64[17]("{ONES}"), float64[()](-0.0))
        everything = (u, f, z, w, big)
    return everything
'''.replace("f = add_copy(u)", "f = neg(u)")


def showcase() -> Module:
    return parse_module(TEXT, READERS)


def library() -> dict[str, Any]:
    def scale(inputs: Any, outputs: Any, *, factor: Any, name: str, dims: Any) -> None:
        outputs[0][...] = inputs[0] * float(factor)

    return {"scale": scale}


def packed(notes: list[Any]) -> dict[str, Any]:
    def note(x: np.ndarray, table: np.ndarray, k: int) -> None:
        notes.append((x.shape, table.tolist(), k))

    return {"note": note, "bins": lambda s: (s[0] + 1,)}
