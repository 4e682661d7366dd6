"""Lax subprograms: which operators are searched together."""

from __future__ import annotations

import pytest

from mirage.compiler.context import Context
from mirage.compiler.lax import lax_program
from mirage.compiler.passes import partition
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.graph.parse import parse_module
from mirage.search.large import LARGEST, is_large
from tests.compiler.layers import DECODER, WEIGHTS


def partitioned(text: str, constants: tuple[str, ...] = ()) -> tuple[list[list[str]], Module, Context]:
    """The operators of every subprogram, but for scalars; the module, and the context with its report."""
    context = Context(constants=constants)
    module = partition.run(parse_module(text), context)
    check(module)
    groups = [
        [b.value.op for b in f.bindings if isinstance(b.value, OpCall) and b.value.op not in ("constant", "size")]
        for f in module
        if f.attr.get("origin") == "lax"
    ]
    return groups, module, context


def test_a_decoder_layer_is_cut_where_weights_are_streamed() -> None:
    groups, module, _ = partitioned(DECODER, WEIGHTS)
    assert groups == [
        ["rms_norm"],
        ["matmul"],
        ["matmul"],
        ["matmul"],
        ["reshape", "transpose", "reshape", "transpose", "repeat", "reshape", "transpose", "repeat", "matmul", "mul", "add",
         "softmax", "matmul", "transpose", "reshape"],
        ["matmul", "add"],
        ["rms_norm", "matmul", "silu", "matmul", "mul"],
        ["matmul", "add"],
    ]  # fmt: skip
    left = [b.value.op for b in module.functions["main"].bindings if isinstance(b.value, OpCall)]
    assert left == ["constant"]


def test_literal_matrices_count_as_weights_where_none_is_named() -> None:
    assert partitioned(DECODER)[0] == partitioned(DECODER, WEIGHTS)[0]


def test_a_cross_entropy_is_one_subprogram() -> None:
    text = """
def main(x: float32[n, m], y: float32[n, m]) -> float32[n]:
    with dataflow():
        p = log_softmax(x, axis=-1)
        a = mul(p, y)
        s = sum(a, axes=(1,))
        r = neg(s)
    return r
"""
    assert partitioned(text)[0] == [["log_softmax", "mul", "sum", "neg"]]


def test_a_transposed_weight_is_a_part_of_its_product() -> None:
    text = """
def main(x: float32[n, 8], w: float32[4, 8]) -> float32[n, 4]:
    with dataflow():
        t = transpose(w, perm=(1, 0))
        r = matmul(x, t)
    return r
"""
    assert partitioned(text, ("w",))[0] == [["transpose", "matmul"]]


def test_products_of_activations_grow_through_each_other() -> None:
    text = """
def main(q: float32[s, 8], k: float32[t, 8], v: float32[t, 8]) -> float32[s, 8]:
    with dataflow():
        kt = transpose(k, perm=(1, 0))
        a = matmul(q, kt)
        p = softmax(a, axis=-1)
        o = matmul(p, v)
    return o
"""
    assert partitioned(text)[0] == [["transpose", "matmul", "softmax", "matmul"]]


def test_what_two_read_is_computed_once() -> None:
    text = """
def main(x: float32[n, 64]) -> Tuple[float32[n], float32[n]]:
    with dataflow():
        e = exp(x)
        a = sum(e, axes=(1,), keepdims=False)
        s = square(e)
        b = sum(s, axes=(1,), keepdims=False)
        t = (a, b)
    return t
"""
    groups, module, _ = partitioned(text)
    assert groups == [["square", "sum"]]
    left = [b.value.op for b in module.functions["main"].bindings if isinstance(b.value, OpCall)]
    assert left == ["exp", "sum"]


def test_views_that_two_groups_read_are_read_by_both() -> None:
    text = """
def main(x: float32[n, 64], w: float32[64, 64], u: float32[64, 64]) -> Tuple[float32[64, n], float32[64, n]]:
    with dataflow():
        y = exp(x)
        z = transpose(y, perm=(1, 0))
        a = matmul(w, z)
        b = matmul(u, z)
        t = (a, b)
    return t
"""
    groups, module, _ = partitioned(text)
    assert groups == [["transpose", "matmul"], ["transpose", "matmul"]]
    assert module.functions["main"].bindings[0].var.name == "y"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("a = max(x, axes=(1,), keepdims=False)", "a maximum has no axis rule"),
        ("a = exp(x)", "nothing is summed"),
        ("a = sum(x, axes=(1,), keepdims=False)", "one reduction"),
        ("a = transpose(x, perm=(1, 0))", "nothing is computed"),
        ("a = concat(x, x, axis=0)", "a concat alone"),
    ],
)
def test_what_gains_nothing_from_a_search_stays(line: str, why: str) -> None:
    text = f"""
def main(x: float32[n, 64]):
    with dataflow():
        {line}
    return a
"""
    assert partitioned(text)[0] == [], why


def test_integers_are_not_searched() -> None:
    text = """
def main(x: int32[n, 64]):
    with dataflow():
        a = sum(x, axes=(1,), keepdims=False)
    return a
"""
    assert partitioned(text)[0] == []


def test_subprograms_are_bounded() -> None:
    lines = "\n".join(f"        v{k + 1} = tanh(v{k})" for k in range(60))
    text = f"""
def main(x: float32[n, 64]):
    with dataflow():
        v0 = exp(x)
{lines}
        a = sum(v60, axes=(1,), keepdims=False)
    return a
"""
    (group,), _, _ = partitioned(text)
    assert len(group) == LARGEST


def test_what_the_search_cuts_itself_is_one_subprogram() -> None:
    """A product with its epilogue: residual and norm, of more operators than a piece of the search has."""
    text = """
def main(x: float32[n, 32], w: float32[32, 32], b: float32[32], r: float32[n, 32], g: float32[32], c: float32[32]):
    with dataflow():
        p = matmul(x, w)
        h = add(p, b)
        s = add(h, r)
        y = layer_norm(s, g, c, axis=-1, eps=1e-05)
    return y
"""
    groups, module, _ = partitioned(text, ("w", "b", "g", "c"))
    assert groups == [["matmul", "add", "add", "layer_norm"]]
    (function,) = (f for f in module if f.attr.get("origin") == "lax")
    assert is_large(lax_program(function).axes)


def test_a_dim_that_no_tensor_has_is_reported() -> None:
    text = """
def main(s: Shape[n], x: float32[m, 64]):
    with dataflow():
        k = size(dim=n)
        y = mul(x, k)
        a = sum(y, axes=(1,), keepdims=False)
    return a
"""
    groups, _, context = partitioned(text)
    assert groups == []
    assert "a is not searched" in context.report.fallbacks[0] and "dim n" in context.report.fallbacks[0]


def test_effects_separate_subprograms() -> None:
    text = """
def main(x: float32[n, 64]):
    with dataflow():
        e = exp(x)
    o = packed["log", Object](e)
    with dataflow():
        f = neg(e)
        a = sum(f, axes=(1,), keepdims=False)
    return a
"""
    assert partitioned(text)[0] == [["neg", "sum"]]
