"""The normal form: every rule with a case where it must not apply."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes import canonicalize, collect_constraints, dead_code
from mirage.ir.graph.nodes import Constant, FunctionCall, Loop, MatchCast, OpCall, ShapeValue
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays


def normal(body: str, signature: str = "x: float32[n, 4]") -> list[str]:
    """The operators of a function `main` in normal form, without dead code."""
    return ops(after(main_text(body, signature), canonicalize.run, dead_code.run))


@pytest.mark.parametrize(
    "body",
    [
        "r = cast(x, dtype='float32')",
        "r = reshape(x, shape=(n, 4))",
        "a = transpose(x, perm=(1, 0))\nr = transpose(a, perm=(1, 0))",
        "r = transpose(x, perm=(0, -1))",
        "a = reshape(x, shape=(4*n,))\nr = reshape(a, shape=(n, 4))",
        "one = constant(value=1)\nr = mul(one, x)",
        "one = constant(value=1)\nr = div(x, one)",
        "zero = constant(value=0)\nr = sub(x, zero)",
        "r = pow(x, exponent=1)",
        "r = repeat(x, axis=0, times=1)",
        "a = neg(x)\nr = neg(a)",
        "r = sum(x, axes=())",
        "r = broadcast_to(x, shape=(n, 4))",
        "s = x.shape\nr = reshape_to(x, s)",
        "r = add(x, float32[()](-0.0))",
        "r = match_cast[float32[n, _]](x)",
        "r = match_cast[float32[...]](x)",
        "a = cast(x, dtype='float64')\nr = cast(a, dtype='float32')",
        "r = slice(x, axes=(1,), starts=(0,), stops=(4,), steps=(1,))",
        "a = concat(x, x, axis=0)\nr = slice(a, axes=(0,), starts=(n,), stops=(2*n,), steps=(1,))",
        "a = concat(x, x, axis=-1)\nr = slice(a, axes=(1,), starts=(0,), stops=(4,), steps=(1,))",
        "m = greater(x, x)\nr = where(m, x, x)",
        "r = elementwise_max(x, x)",
    ],
)
def test_goes_away(body: str) -> None:
    assert normal(body) == []


@pytest.mark.parametrize(
    "body",
    [
        # -0.0 + 0.0 is 0.0
        "zero = constant(value=0)\nr = add(x, zero)",
        # NaN * 0 is NaN
        "zero = constant(value=0)\nr = mul(x, zero)",
        "r = sub(x, float32[()](-0.0))",
        "two = constant(value=2)\nr = mul(x, two)",
        "one = constant(value=1)\nr = div(one, x)",
        "r = pow(x, exponent=2)",
        # the type between has fewer bits
        "a = cast(x, dtype='float16')\nr = cast(a, dtype='float32')",
        # dims in another order
        "a = reshape(x, shape=(4, n))\nr = transpose(a, perm=(1, 0))",
    ],
)
def test_stays(body: str) -> None:
    assert normal(body)


def test_a_neutral_operand_that_broadcasts_stays() -> None:
    assert normal("r = mul(x, float32[2, 1](1, 1))", "x: float32[4]") == ["mul"]


def test_sums_of_integers_with_zero() -> None:
    assert normal("r = add(x, int64[()](0))", "x: int64[n]") == []
    assert normal("r = add(x, int64[()](1))", "x: int64[n]") == ["add"]


def test_there_and_back_where_the_type_between_has_fewer_bits() -> None:
    there_and_back = "a = cast(x, dtype='float64')\nr = cast(a, dtype='{}')"
    assert normal(there_and_back.format("int32"), "x: int32[n]") == []
    assert normal(there_and_back.format("bfloat16"), "x: bfloat16[n]") == []
    assert normal(there_and_back.format("int64"), "x: int64[n]") == ["cast", "cast"]


def test_a_rank_that_only_the_run_knows_is_still_checked() -> None:
    assert normal("r = transpose(x, perm=(0, 1))", "x: float32[...]") == ["transpose"]
    assert normal("r = transpose(x, perm=(0, 1))", "x: float32[_, _]") == []


def test_chains_are_merged() -> None:
    assert normal("a = reshape(x, shape=(2, 2*n))\nr = reshape(a, shape=(4, n))") == ["reshape"]
    three = "a = transpose(x, perm=(1, 2, 0))\nr = transpose(a, perm=(1, 2, 0))"
    m = after(main_text(three, "x: float32[n, 4, k]"), canonicalize.run, dead_code.run)
    assert ops(m) == ["transpose"]
    (x,) = random_arrays(0, (2, 4, 3))
    assert_equal(evaluate(m, x), x.transpose(2, 0, 1))


PARTS = """a = concat(x, y, axis=1)
b = slice(a, axes=(1,), starts=({},), stops=({},), steps=(1,))
r = exp(b)"""


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        # within a piece, and all of one
        (("1", "3"), ["slice", "exp"]),
        (("4", "k + 4"), ["exp"]),
        # of both pieces
        (("3", "5"), ["concat", "slice", "exp"]),
        # only the run can tell whether there are as many
        (("4", "8"), ["concat", "slice", "exp"]),
    ],
)
def test_a_part_of_a_concat_is_a_part_of_its_piece(bounds: tuple[str, str], found: list[str]) -> None:
    text = main_text(PARTS.format(*bounds), "x: float32[n, 4], y: float32[n, k]")
    m = after(text, canonicalize.run, dead_code.run)
    assert ops(m) == found
    arrays = random_arrays(0, (2, 4), (2, 6))
    assert_equal(evaluate(m, *arrays), evaluate(parse_module(text), *arrays))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("m = greater(x, y)\nu = logical_not(m)\nr = where(u, x, y)", ["greater", "where"]),
        ("m = greater(x, y)\na = where(m, x, y)\nb = exp(x)\nr = where(m, a, b)", ["greater", "exp", "where"]),
        ("m = greater(x, y)\na = where(m, x, y)\nr = where(m, y, a)", []),
        ("m = greater(x, y)\nu = less(x, y)\na = where(u, x, y)\nr = where(m, a, x)", ["greater", "less", "where", "where"]),
        ("a = maximum(x, value=1)\nr = maximum(a, value=2)", ["maximum"]),
        ("a = relu(x)\nr = relu(a)", ["relu"]),
        ("a = neg(x)\nb = abs(a)\nr = abs(b)", ["abs"]),
        ("a = exp(x)\nr = abs(a)", ["exp"]),
        # -0.0 may be left of it
        ("a = relu(x)\nr = abs(a)", ["relu", "abs"]),
    ],
)  # fmt: skip
def test_conditions_and_bounds(body: str, found: list[str]) -> None:
    text = main_text(body, "x: float32[n, 4], y: float32[n, 4]")
    m = after(text, canonicalize.run, dead_code.run)
    assert ops(m) == found
    arrays = random_arrays(0, (3, 4), (3, 4))
    assert_equal(evaluate(m, *arrays), evaluate(parse_module(text), *arrays))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ((1, 4, 1), ("1", "2"), ["slice"]),
        ((0, 4, 2), ("1", "2"), ["slice", "slice"]),
        # only the run can tell whether there are as many
        ((0, 3, 1), ("0", "k"), ["slice", "slice"]),
    ],
)
def test_a_part_of_a_part_is_a_part(first: tuple[int, int, int], second: tuple[str, str], found: list[str]) -> None:
    start, stop, step = first
    body = f"a = slice(x, axes=(1,), starts=({start},), stops=({stop},), steps=({step},))\n"
    body += "r = slice(a, axes=(1,), starts=({},), stops=({},), steps=(1,))".format(*second)
    text = main_text(body, "x: float32[n, 4], y: float32[k]")
    m = after(text, canonicalize.run, dead_code.run)
    assert ops(m) == found
    arrays = random_arrays(0, (3, 4), (2,))
    assert_equal(evaluate(m, *arrays), evaluate(parse_module(text), *arrays))


SOFTMAX = """m = max(x, axes=({},), keepdims=True)
s = sub(x, m)
e = exp(s)
t = sum(e, axes=({},), keepdims={})
"""


@pytest.mark.parametrize(
    ("greatest", "total", "keepdims", "end", "found"),
    [
        (-1, 1, True, "r = div(e, t)", ["softmax"]),
        (0, 0, True, "r = div(e, t)", ["softmax"]),
        (1, -1, True, "l = log(t)\nr = sub(s, l)", ["log_softmax"]),
        # the maximum and the sum of other rows, and of another value
        (0, 1, True, "r = div(e, t)", ["max", "sub", "exp", "sum", "div"]),
        (1, 1, True, "r = div(s, t)", ["max", "sub", "exp", "sum", "div"]),
        (1, 1, True, "l = log(t)\nr = sub(e, l)", ["max", "sub", "exp", "sum", "log", "sub"]),
        (1, 1, True, "l = log(t)\nr = sub(x, l)", ["max", "sub", "exp", "sum", "log", "sub"]),
    ],
)
def test_a_softmax_that_is_written_by_hand(greatest: int, total: int, keepdims: bool, end: str, found: list[str]) -> None:
    text = main_text(SOFTMAX.format(greatest, total, keepdims) + end, "x: float32[n, 4]")
    m = after(text, canonicalize.run, dead_code.run)
    assert ops(m) == found
    x = np.array([[0.0, -np.inf, 1e30, 3.0], [1.0, 2.0, 3.0, 4.0]], np.float32)
    assert_equal(evaluate(m, x), evaluate(parse_module(text), x))


def test_values_stay_bit_by_bit() -> None:
    text = """
def main(x: float32[n]) -> float32[n]:
    with dataflow():
        one = constant(value=1)
        zero = constant(value=0)
        a = mul(x, one)
        b = sub(a, zero)
        c = add(b, float32[()](-0.0))
        d = mul(c, zero)
        e = add(c, d)
    return e
"""
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5], np.float32)
    m = after(text, canonicalize.run, dead_code.run)
    assert ops(m) == ["constant", "mul", "add"]
    assert_equal(evaluate(m, x), evaluate(parse_module(text), x))


def test_items_of_known_tuples() -> None:
    assert normal("t = (x, x)\nr = item[1](t)") == []
    assert normal("r = item[1](t)", "t: Tuple[float32[n, 4], float32[n, 4]]") == ["TupleItem"]


def test_shapes_become_values_and_attributes() -> None:
    m = after(
        """
def main(x: float32[n, 4], s: Shape[n, 4]) -> Shape[n, 4]:
    with dataflow():
        a = x.shape
        y = full_of(a, value=2, dtype='float32')
        z = broadcast_to_shape(y, s)
    return a
""",
        canonicalize.run,
    )
    assert ops(m) == ["full"]
    assert isinstance(m.functions["main"].result, ShapeValue)


def test_shapes_that_are_not_known_stay() -> None:
    assert normal("s = x.shape\nr = full_of(s, value=2)", "x: float32[n, _]") == ["ShapeOf", "full_of"]
    # whether 12 elements are n * 4 is for the run to say
    assert normal("r = reshape_to(x, s)", "x: float32[12], s: Shape[n, 4]") == ["reshape_to"]


def test_a_new_name_of_a_known_dim_is_replaced() -> None:
    m = after(
        """
def main(x: float32[n, 8*n]):
    with dataflow():
        y = match_cast[float32[a, 4*b]](x)
        z = reshape(y, shape=(4*b, a))
    return z
""",
        canonicalize.run,
    )
    assert ops(m) == ["reshape"]
    assert str(m.functions["main"].returns) == "float32[8*n, n]"


def test_casts_that_may_fail_stay() -> None:
    assert normal("r = match_cast[float32[k, 4]](x)", "x: float32[_, 4]") == ["MatchCast"]
    # two dims of the signature
    assert normal("r = match_cast[float32[m, 4]](x)", "x: float32[n, 4], y: float32[m]") == ["MatchCast"]
    # n is 4*b only at some sizes
    assert normal("r = match_cast[float32[4*b]](x)", "x: float32[n]") == ["MatchCast"]
    # one new name for two dims
    assert normal("r = match_cast[float32[b, b]](x)", "x: float32[n, m]") == ["MatchCast"]


def test_a_bounded_name_of_a_known_dim_stays() -> None:
    m = parse_module(main_text("r = match_cast[float32[b]](x)", "x: float32[n]"))
    store = Constraints()
    store.add_range("b", 0, 16, "the user")
    f = canonicalize.canonicalize(m.functions["main"], m.functions, store)
    assert isinstance(f.bindings[0].value, MatchCast)


BROADCAST = """
def main(x: float32[n], y: float32[m]) -> float32[m]:
    with dataflow():
        {check}
        s = y.shape
        b = broadcast_to_shape(x, s)
        r = add(b, y)
    return r
"""


def test_broadcasts_that_equal_dims_make_unnecessary_disappear() -> None:
    context = Context()
    text = BROADCAST.format(check="c = match_cast[float32[m]](x)")
    m = after(text, collect_constraints.run, canonicalize.run, context=context)
    assert ops(m) == ["MatchCast", "MatchCast", "add"]
    x, y = random_arrays(1, (3,), (3,))
    assert_equal(evaluate(m, x, y), x + y)


def test_broadcasts_of_dims_that_may_differ_stay() -> None:
    m = after(BROADCAST.format(check="c = exp(x)"), collect_constraints.run, canonicalize.run)
    assert "broadcast_to_shape" in ops(m)
    x, y = random_arrays(2, (1,), (3,))
    assert_equal(evaluate(m, x, y), x + y)


BRANCHES = """
def left(x: float32[n]) -> float32[n]:
    with dataflow():
        r = exp(x)
    return r

def right(x: float32[n]) -> float32[n]:
    with dataflow():
        r = neg(x)
    return r
"""


@pytest.mark.parametrize(("condition", "taken"), [("True", "left"), ("False", "right")])
def test_decided_branches_become_calls(condition: str, taken: str) -> None:
    text = BRANCHES + main_text(f"r = if_else[left, right](bool[()]({condition}), x)", "x: float32[n]")
    (call,) = expressions(after(text, canonicalize.run))
    assert isinstance(call, FunctionCall) and call.function == taken


def test_open_branches_stay() -> None:
    text = BRANCHES + main_text("r = if_else[left, right](p, x)", "p: bool[()], x: float32[n]")
    assert ops(after(text, canonicalize.run)) == ["If"]


LOOP = """
def body(i: int64[()], x: float32[n], w: float32[n]) -> float32[n]:
    with dataflow():
        y = mul(x, w)
    return y

def main(x: float32[n], w: float32[n], k: float32[c]) -> float32[n]:
    with dataflow():
        r = loop[body]({loop})
    return r
"""


@pytest.mark.parametrize(
    ("loop", "left", "power"),
    [
        ("(x,), (w,), count=0", [], 0),
        ("(x,), (w,), count=1", ["FunctionCall"], 1),
        ("int64[()](-2), (x,), (w,)", [], 0),
        ("int64[()](1), (x,), (w,)", ["FunctionCall"], 1),
        ("(x,), (w,), count=2", ["Loop"], 2),
        ("(x,), (w,), count=c", ["Loop"], 3),
        ("int64[()](2), (x,), (w,)", ["Loop"], 2),
    ],
)
def test_loops_of_no_or_one_round(loop: str, left: list[str], power: int) -> None:
    m = after(LOOP.format(loop=loop), canonicalize.run)
    assert ops(m) == left
    x, w, k = random_arrays(3, (4,), (4,), (3,))
    assert_equal(evaluate(m, x, w, k), evaluate(parse_module(LOOP.format(loop=loop)), x, w, k))
    assert_equal(evaluate(m, x, w, k), x * w**power, 1e-6)


def test_a_known_count_above_its_bound_is_left_to_the_run() -> None:
    m = after(LOOP.format(loop="int64[()](3), (x,), (w,), bound=2"), canonicalize.run)
    (loop,) = expressions(m)
    assert isinstance(loop, Loop) and loop.count is None
    assert ops(after(LOOP.format(loop="(x,), (w,), count=1, bound=0"), canonicalize.run)) == ["Loop"]


EFFECT = """
def main(x: float32[n]) -> float32[n]:
    with dataflow():
        y = reshape(x, shape=(n,))
    e = packed["clear", Object, in_place[0]]({written})
    with dataflow():
        r = exp(y)
    return r
"""


@pytest.mark.parametrize("written", ["x", "y"])
def test_what_is_written_to_is_not_shared(written: str) -> None:
    def clear(a: np.ndarray) -> None:
        a[...] = 0

    m = after(EFFECT.format(written=written), canonicalize.run)
    assert "reshape" in ops(m)
    x = np.ones(3, np.float32)
    wanted = np.ones(3) if written == "y" else np.exp(np.ones(3))
    if written == "y":
        assert_equal(evaluate(m, x.copy(), clear=clear), np.ones(3, np.float32))
    else:
        assert_equal(evaluate(m, x.copy(), clear=clear), wanted.astype(np.float32), 1e-6)


def test_without_writes_the_same_goes() -> None:
    text = EFFECT.format(written="x").replace(", in_place[0]", "")
    assert "reshape" not in ops(after(text, canonicalize.run))


def test_callers_see_what_callees_return_now() -> None:
    m = after(
        """
def f(x: float32[n]) -> float32[b]:
    with dataflow():
        y = match_cast[float32[b]](x)
    return y

def main(x: float32[k]) -> float32[_]:
    with dataflow():
        y = call[f](x)
    return y
""",
        canonicalize.run,
    )
    assert str(m.functions["main"].returns) == "float32[k]"


def test_constants_are_untouched() -> None:
    (add,) = expressions(after(main_text("r = add(x, float32[2](1, 2))", "x: float32[2]"), canonicalize.run))
    assert isinstance(add, OpCall) and isinstance(add.args[1], Constant)


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        ("a = broadcast_to(z, shape=(3, n, 4))\nr = slice(a, axes=(0,), starts=(1,), stops=(3,), steps=(1,))", []),
        ("a = broadcast_to(y, shape=(3, n, 4))\nr = slice(a, axes=(-2,), starts=(0,), stops=(n,), steps=(2,))", []),
        ("a = broadcast_to(z, shape=(3, n, 4))\nr = reshape(a, shape=(3*n, 2, 2))", []),
        # which elements are equal, x says
        ("a = broadcast_to(y, shape=(3, n, 4))\nr = slice(a, axes=(2,), starts=(1,), stops=(3,), steps=(1,))", ["slice"]),
        ("a = broadcast_to(x, shape=(3, n, 4))\nr = slice(a, axes=(0, 1), starts=(1, 0), stops=(3, 1), steps=(1, 1))", ["slice"]),
        ("a = broadcast_to(y, shape=(3, n, 4))\nr = reshape(a, shape=(3*n, 4))", ["reshape"]),
        ("a = broadcast_to(one, shape=(1, 1))\nr = reshape(a, shape=())", ["reshape"]),
    ],
)
def test_parts_of_what_was_broadcast_are_broadcast_alone(body: str, stays: list[str]) -> None:
    text = main_text(body, "x: float32[n, 4], y: float32[1, 4], z: float32[()], one: float32[1, 1]")
    m = after(text, canonicalize.run, dead_code.run)
    # a shape may have come to be that of what is broadcast
    assert [op for op in ops(m) if op != "broadcast_to"] == stays
    args = random_arrays(0, (5, 4), (1, 4), (), (1, 1))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args))
