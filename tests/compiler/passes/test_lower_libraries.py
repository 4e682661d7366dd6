"""Partial library lowering: what becomes a library call, and what must not."""

from __future__ import annotations

import pytest

from mirage.compiler.passes import lower_libraries
from mirage.ir.graph.nodes import LibraryCall
from mirage.ir.graph.parse import parse_module
from mirage.ir.types import DTYPES
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays

SIGNATURE = "x: float32[n, 8], w: float32[8, m], v: float32[m, 8], b: float32[m], c: float32[n, m]"
SHAPES = [(3, 8), (8, 5), (5, 8), (5,), (3, 5)]


def module(body: str, signature: str = SIGNATURE) -> str:
    return main_text(body, signature)


@pytest.mark.parametrize(
    ("body", "attrs"),
    [
        ("r = matmul(x, w)", {}),
        ("t = transpose(v, perm=(1, 0))\nr = matmul(x, t)", {"right": (1, 0)}),
        (
            "t = transpose(x, perm=(1, 0))\ns = transpose(w, perm=(1, 0))\nr = matmul(s, t)",
            {"left": (1, 0), "right": (1, 0)},
        ),
        ("p = matmul(x, w)\nr = add(p, b)", {"bias": True}),
        ("p = matmul(x, w)\nr = add(c, p)", {"bias": True}),
        ("p = matmul(x, w)\nr = relu(p)", {"relu": True}),
        ("p = matmul(x, w)\nq = add(p, b)\nr = relu(q)", {"bias": True, "relu": True}),
    ],
)
def test_products(body: str, attrs: dict[str, object]) -> None:
    m = after(module(body), lower_libraries.run)
    calls = [e for e in expressions(m) if isinstance(e, LibraryCall)]
    assert len(calls) == 1 and dict(calls[0].attrs) == attrs
    assert not {"matmul", "add", "relu"} & set(ops(m))
    args = random_arrays(0, *SHAPES)
    assert_equal(evaluate(m, *args), evaluate(parse_module(module(body)), *args), 1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types(dtype: str) -> None:
    body = "p = matmul(x, w)\nq = add(p, b)\nr = relu(q)"
    text = module(body).replace("float32", dtype)
    m = after(text, lower_libraries.run)
    assert ops(m) == ["LibraryCall"]
    args = [a.astype(DTYPES[dtype]) for a in random_arrays(1, *SHAPES)]
    found, wanted = (evaluate(x, *args) for x in (m, parse_module(text)))
    assert found.dtype == wanted.dtype
    assert_equal(found.astype("float64"), wanted.astype("float64"), 1e-12 if dtype == "float64" else 2e-2)


def test_batches_with_permuted_operands() -> None:
    text = module(
        "q = transpose(x, perm=(0, 2, 1, 3))\nk = transpose(y, perm=(0, 2, 3, 1))\nr = matmul(q, k)",
        "x: float32[b, s, h, 4], y: float32[b, t, h, 4]",
    )
    m = after(text, lower_libraries.run)
    (call,) = [e for e in expressions(m) if isinstance(e, LibraryCall)]
    assert dict(call.attrs) == {"left": (0, 2, 1, 3), "right": (0, 2, 3, 1)}
    args = random_arrays(2, (2, 3, 2, 4), (2, 5, 2, 4))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 3, 8), (0, 3, 8), (1, 1, 8), (2, 3, 4, 8)])
def test_batches_of_rows_are_one_product(shape: tuple[int, ...], dtype: str) -> None:
    dims = ", ".join("abc"[: len(shape) - 1])
    signature = f"x: float32[{dims}, 8], w: float32[m, 8], b: float32[{dims}, m]"
    text = main_text("t = transpose(w, perm=(1, 0))\np = matmul(x, t)\nq = add(b, p)\nr = relu(q)", signature)
    text = text.replace("float32", dtype)
    m = after(text, lower_libraries.run)
    (call,) = [e for e in expressions(m) if isinstance(e, LibraryCall)]
    assert dict(call.attrs) == {"right": (1, 0), "bias": True, "relu": True}
    args = [a.astype(dtype) for a in random_arrays(8, shape, (5, 8), (*shape[:-1], 5))]
    found, wanted = (evaluate(each, *args) for each in (m, parse_module(text)))
    assert found.dtype == wanted.dtype
    assert_equal(found.astype("float64"), wanted.astype("float64"), 1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize(
    "body",
    [
        # the product is a result as well
        "p = matmul(x, w)\nq = relu(p)\nr = (p, q)",
        # others read it
        "p = matmul(x, w)\nq = add(p, b)\ns = sum(p, axes=(0,))\nr = (q, s)",
        # the generated kernel of the next elementwise operator adds the bias as well
        "p = matmul(x, w)\nq = add(p, b)\nr = exp(q)",
        # both operands of the sum are the product
        "p = matmul(x, w)\nr = add(p, p)",
    ],
)
def test_an_epilogue_stays_outside(body: str) -> None:
    m = after(module(body), lower_libraries.run)
    (call,) = [e for e in expressions(m) if isinstance(e, LibraryCall)]
    assert call.attrs == ()
    args = random_arrays(3, *SHAPES)
    assert_equal(evaluate(m, *args), evaluate(parse_module(module(body)), *args), 1e-6)


def test_a_bias_that_the_product_broadcasts_to_stays_outside() -> None:
    text = module("p = matmul(x, w)\nr = add(p, b)", "x: float32[1, 8], w: float32[8, m], b: float32[n, m]")
    m = after(text, lower_libraries.run)
    assert ops(m) == ["LibraryCall", "add"]
    args = random_arrays(4, (1, 8), (8, 3), (4, 3))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


def test_a_view_that_others_read_stays() -> None:
    m = after(module("t = transpose(v, perm=(1, 0))\np = matmul(x, t)\nr = (p, t)"), lower_libraries.run)
    assert ops(m) == ["transpose", "LibraryCall", "MakeTuple"]


def test_no_match_across_effects() -> None:
    text = """
def main(x: float32[n, 8], w: float32[8, m], b: float32[m]):
    with dataflow():
        p = matmul(x, w)
    e = packed["log", Object](x)
    with dataflow():
        r = add(p, b)
    return r
"""
    assert ops(after(text, lower_libraries.run)) == ["LibraryCall", "PackedCall", "add"]


def test_results_of_unknown_shape_stay() -> None:
    assert ops(after(module("r = matmul(x, w)", "x: float32[_, 8], w: float32[8, m]"), lower_libraries.run)) == [
        "matmul"
    ]


def test_integers_stay() -> None:
    assert "LibraryCall" not in ops(after(module("r = add(x, x)", "x: int64[n]"), lower_libraries.run))


def test_functions_on_their_way_to_a_kernel_stay() -> None:
    text = '@attrs(origin="lax")\n' + module("r = matmul(x, w)")
    assert ops(after(text, lower_libraries.run)) == ["matmul"]


@pytest.mark.parametrize(
    ("shapes", "axes", "keepdims", "result"),
    [
        (((3, 4, 1), (1, 4, 5)), (1,), False, (3, 5)),
        (((3, 4, 1), (1, 4, 5)), (1,), True, (3, 1, 5)),
        (((3, 1, 4), (5, 4)), (2,), False, (3, 5)),
        (((2, 3, 1, 4), (2, 1, 5, 4)), (-1,), False, (2, 3, 5)),
        (((2, 3, 4, 1), (2, 1, 4, 5)), (2, 0), False, (3, 5)),
        # rows of the one are spread over two dims
        (((2, 1, 3, 4), (5, 1, 4)), (3,), False, (2, 5, 3)),
    ],
)
def test_contractions(
    shapes: tuple[tuple[int, ...], ...], axes: tuple[int, ...], keepdims: bool, result: tuple[int, ...]
) -> None:
    x, y = shapes
    text = module(
        f"p = mul(x, y)\nr = sum(p, axes={axes}, keepdims={keepdims})", f"x: float32{list(x)}, y: float32{list(y)}"
    )
    m = after(text, lower_libraries.run)
    assert ops(m) == ["LibraryCall"]
    args = random_arrays(5, x, y)
    found = evaluate(m, *args)
    assert found.shape == result
    assert_equal(found, evaluate(parse_module(text), *args), 1e-6)


@pytest.mark.parametrize(
    ("x", "y", "axes"),
    [
        # a reduction of one pass
        ((3, 4), (3, 4), (1,)),
        ((3, 4), (4,), (1,)),
        # nothing is summed over both
        ((3, 4, 1), (1, 1, 5), (1,)),
        ((3, 4, 1), (1, 4, 5), ()),
        # rows are summed as well
        ((3, 4, 1), (1, 4, 5), (0, 1)),
    ],
)
def test_no_contraction(x: tuple[int, ...], y: tuple[int, ...], axes: tuple[int, ...]) -> None:
    text = module(f"p = mul(x, y)\nr = sum(p, axes={axes})", f"x: float32{list(x)}, y: float32{list(y)}")
    assert ops(after(text, lower_libraries.run)) == ["mul", "sum"]


def test_empty_dims() -> None:
    for body, shapes in (
        ("p = matmul(x, w)\nr = add(p, b)", [(0, 8), (8, 5), (5, 8), (5,), (0, 5)]),
        ("r = matmul(x, w)", [(3, 8), (8, 0), (0, 8), (0,), (3, 0)]),
    ):
        m = after(module(body), lower_libraries.run)
        args = random_arrays(6, *shapes)
        assert_equal(evaluate(m, *args), evaluate(parse_module(module(body)), *args))
    text = module("p = mul(x, y)\nr = sum(p, axes=(1,))", "x: float32[n, k, 1], y: float32[1, k, 5]")
    m = after(text, lower_libraries.run)
    assert ops(m) == ["LibraryCall"]
    assert_equal(
        evaluate(m, *random_arrays(7, (3, 0, 1), (1, 0, 5))),
        evaluate(parse_module(text), *random_arrays(7, (3, 0, 1), (1, 0, 5))),
    )
