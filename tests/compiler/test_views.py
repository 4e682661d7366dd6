"""Values that need no kernel: views of tensors, and rows that a loop reads."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.compiler.views import is_view, positions, rows
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.runtime.executable import Executable

TURNED = """
def main(x: float32[{shape}]) -> float32[{after}]:
    with dataflow():
        y = transpose(x, perm={perm})
    return y
"""


@pytest.mark.parametrize(
    ("shape", "perm", "same"),
    [
        ("n, 1, b, 4", (0, 2, 1, 3), True),
        ("n, 1, b, 4", (1, -4, -2, -1), True),
        ("1, n, 1", (2, 1, 0), True),
        ("n, b, 4", (1, 0, 2), False),
        ("n, 1, b", (2, 1, 0), False),
    ],
)
def test_dims_of_one_element_may_be_anywhere(shape: str, perm: tuple[int, ...], same: bool) -> None:
    dims = shape.split(", ")
    module = parse_module(TURNED.format(shape=shape, after=", ".join(dims[p] for p in perm), perm=perm))
    (binding,) = module.functions["main"].bindings
    assert is_view(binding.value, binding.var.annotation) is same
    run = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(run, Executable) and bool(run.program.kernels) is not same
    x = np.random.default_rng(0).standard_normal([{"n": 3, "b": 5}.get(d) or int(d) for d in dims]).astype(np.float32)
    np.testing.assert_array_equal(run(x), x.transpose(perm))


def test_what_is_written_later_is_copied() -> None:
    text = """
def main(x: float32[n, 1, 4]):
    with dataflow():
        y = transpose(x, perm=(1, 0, 2))
        z = neg(x)
    e = packed["copy_", float32[n, 1, 4], in_place[0]](x, z)
    with dataflow():
        r = (y, x)
    return r
"""
    run = compile_program(parse_module(text), without=("superoptimize",), cache=False)
    assert isinstance(run, Executable)
    x = np.arange(8, dtype=np.float32).reshape(2, 1, 4)
    before = x.copy()
    y, z = run(x)
    np.testing.assert_array_equal(y, before.transpose(1, 0, 2))
    np.testing.assert_array_equal(z, -before)


BODY = """
def main(x: float32[t, 4], h: float32[4], k: int64[()], o: float32[t, 4]):
    r = loop[body]((h, o), (x, k), count=t)
    return r

def body(i: int64[()], h: float32[4], o: float32[t, 4], x: float32[t, 4], k: int64[()]):
    with dataflow():
        a = sub(k, i)
        b = add(a, int64[()](1))
        c = mul(i, k)
        d = add(c, i)
        e = dim_value(dim=t)
        f = sub(e, i)
        p = take(x, b, axis=0)
        q = take(x, c, axis=0)
        s = take(o, b, axis=0)
        u = take(x, i, axis=0)
        v = add(h, p)
        w = add(v, q)
        y = add(w, s)
    g = packed["scatter_", float32[t, 4], in_place[0]](o, i, y, axis=0)
    with dataflow():
        r = ({after}, o)
    return r
"""


def test_positions_are_sums_of_the_index_and_what_is_given() -> None:
    body = parse_module(BODY.format(after="y")).functions["body"]
    found = positions(body)
    assert {v.name for v in found} == {"i", "a", "b"}
    # of what stays as it is, and for nothing but what the body computes
    assert {v.name for v in rows(body, 2, found)} == {"p", "u"}
    handing_on = parse_module(BODY.format(after="u")).functions["body"]
    assert {v.name for v in rows(handing_on, 2, positions(handing_on))} == {"p"}


def test_such_a_loop_does_what_it_says() -> None:
    module = parse_module(BODY.format(after="y"))
    run = compile_program(module, without=("superoptimize",), cache=False)
    rng = np.random.default_rng(1)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((1, 4), (4,))]
    given = [*args, np.array(0), np.zeros((1, 4), np.float32)]
    given[2] = np.array(-1)
    wanted = run_module(module, [a.copy() for a in given])
    for f, w in zip(run(*given), wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-6)
