"""Effects among views: compiled programs see what the interpreter sees, which copies what operators give."""

from __future__ import annotations

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.context import Context
from mirage.compiler.lower import lower
from mirage.errors import GuardError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.runtime import program as vm
from tests.sampled import crossed

MAIN = """
def main(x: float32[n, 4], z: float32[n, 4]):
    with dataflow():
        a = sort(x, axis=0)
        {before}
    e = packed["add_", float32[{shape}], in_place[0]]({written}, {added})
    with dataflow():
        {after}
    return r
"""
CASES = {
    "a view of an argument": ("v = reshape(x, shape=(4*n,))", "x", "z", "r = exp(v)"),
    "an argument under a view": ("v = reshape(x, shape=(4*n,))\ns = reshape(z, shape=(4*n,))", "v", "s", "r = exp(x)"),
    "a view of a value": ("v = reshape(a, shape=(4*n,))", "a", "z", "r = exp(v)"),
    "a value under a view": ("v = reshape(a, shape=(4*n,))\ns = reshape(z, shape=(4*n,))", "v", "s", "r = exp(a)"),
    "a view of a view": ("u = reshape(a, shape=(4*n,))\nv = reshape(u, shape=(2*n, 2))", "a", "z", "r = exp(v)"),
    "a view of a field": ("t = (a, x)\nf = item[0](t)\nv = reshape(f, shape=(4*n,))", "a", "z", "r = exp(v)"),
    "a view and its value": ("v = reshape(a, shape=(4*n,))", "a", "z", "r = (v, a)"),
    "transposed there and back": (
        "v = transpose(x, perm=(1, 0))",
        "x",
        "z",
        "b = transpose(v, perm=(1, 0))\nr = exp(b)",
    ),
    "negated there and back": ("v = neg(x)", "x", "z", "b = neg(v)\nr = exp(b)"),
    "reshaped there and back": ("v = reshape(x, shape=(4*n,))", "x", "z", "b = reshape(v, shape=(n, 4))\nr = exp(b)"),
    "cast there and back": ("v = cast(x, dtype='float64')", "x", "z", "b = cast(v, dtype='float32')\nr = exp(b)"),
}
CALLED = """
def f(x: float32[n], y: float32[n]):
    with dataflow():
        v = reshape(y, shape=(n, 1))
    e = packed["add_", float32[n], in_place[0]](x, x)
    with dataflow():
        r = exp(v)
    return r

def g(x: float32[n]):
    with dataflow():
        v = reshape(x, shape=(n, 1))
    return v

def h(x: float32[n]):
    with dataflow():
        a = sort(x, axis=0)
        v = reshape(a, shape=(n, 1))
        r = (a, v)
    return r

def main(x: float32[n], c: bool[()]):
    with dataflow():
        {line}
    {then}
    return r
"""
CALLS = {
    "one value given twice": ("a = sort(x, axis=0)", "r = call[f](a, a)"),
    "a returned view of an argument": (
        "v = if_else[g, g](c, x)",
        'e = packed["add_", float32[n, 1], in_place[0]](v, v)\n    with dataflow():\n        r = exp(x)',
    ),
    "a value and its view returned": (
        "t = if_else[h, h](c, x)\n        a = item[0](t)\n        v = item[1](t)",
        'e = packed["add_", float32[n], in_place[0]](a, a)\n    with dataflow():\n        r = exp(v)',
    ),
}


def programs() -> dict[str, str]:
    found = {}
    for name, (before, written, added, after) in CASES.items():
        lines = {"before": before.replace("\n", "\n        "), "after": after.replace("\n", "\n        ")}
        shape = "4*n" if written == "v" else "n, 4"
        found[name] = MAIN.format(**lines, written=written, added=added, shape=shape)
    return found | {name: CALLED.format(line=line, then=then) for name, (line, then) in CALLS.items()}


@pytest.mark.parametrize(("name", "fused"), crossed(programs(), [True, False]))
def test_what_is_written_later_does_not_show(name: str, fused: bool) -> None:
    module = parse_module(programs()[name])

    def arguments() -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        given = [rng.standard_normal((3,) if name in CALLS else (3, 4)).astype(np.float32) for _ in range(2)]
        return [given[0], np.array(True)] if name in CALLS else given

    without = ["superoptimize"] if fused else ["superoptimize", "fuse", "libraries"]
    run = mi.compile(module, without=without, cache=False)
    ours, theirs = arguments(), arguments()
    got, want = run(*ours), run_module(module, theirs)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_views_that_no_effect_reaches_stay_views() -> None:
    text = MAIN.format(
        before="v = reshape(z, shape=(4*n,))",
        written="x",
        added="z",
        shape="n, 4",
        after="r = reshape(e, shape=(4*n,))\n        s = exp(v)",
    )
    code = lower(parse_module(text), Context()).code.functions["main"].code
    assert sum(isinstance(i, vm.Reshape) for i in code) == 2


def test_only_arguments_that_are_written_to_have_to_be_writable() -> None:
    text = MAIN.format(before="v = exp(z)", written="a", added="v", shape="n, 4", after="r = exp(a)")
    x, z = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    for array in (x, z):
        array.flags.writeable = False
    run = mi.compile(text, without=["superoptimize"], cache=False)
    np.testing.assert_allclose(run(x, z), np.exp(np.full((3, 4), 2.0)), rtol=1e-6)
    own = mi.compile(text.replace("(a, v)", "(x, v)"), without=["superoptimize"], cache=False)
    with pytest.raises(GuardError, match="'x' is updated in place, and read-only"):
        own(x, z)


def test_numbers_are_read_across_effects() -> None:
    """Kernels on both sides of an effect have them, and are no tensors."""
    module = parse_module("""
def main(x: float32[n, 4], y: float32[n, 4]):
    with dataflow():
        c = constant(value=1/8)
        s = size(dim=n)
        a = mul(x, c)
    e = packed["copy_", float32[n, 4], in_place[0]](y, a)
    with dataflow():
        b = exp(x)
        d = mul(b, c)
        f = mul(d, s)
        r = add(f, e)
    return r
""")
    x, y = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    found = mi.compile(module, without=("superoptimize",))(x, y)
    np.testing.assert_allclose(found, np.exp(x) / 8 * 3 + x / 8, rtol=1e-6)
    np.testing.assert_array_equal(y, x / 8)
