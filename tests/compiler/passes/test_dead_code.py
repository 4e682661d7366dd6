"""Dead code goes; checks and effects stay."""

from __future__ import annotations

import pytest

from mirage.compiler.passes import dead_code
from mirage.errors import GuardError
from mirage.ir.graph.nodes import FunctionCall, If
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, ops, random_arrays

MODULE = """
def unused(x: float32[n]) -> float32[n]:
    with dataflow():
        y = exp(x)
    return y

def pure(x: float32[n]) -> float32[n]:
    with dataflow():
        y = exp(x)
    return y

def checked(x: float32[n]) -> float32[4]:
    with dataflow():
        y = match_cast[float32[4]](x)
    return y

def same(x: float32[n], y: float32[n]) -> float32[n]:
    with dataflow():
        z = add(x, y)
    return z

def effect(x: float32[n]) -> Object:
    e = packed["log", Object](x)
    return e

def main(x: float32[a], y: float32[b]) -> float32[a]:
    {body}
    return r
"""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("    with dataflow():\n        r = exp(x)\n        d = exp(r)\n        e = exp(d)", ["exp"]),
        ("    with dataflow():\n        r = exp(x)\n        d = call[pure](x)", ["exp"]),
        (
            "    with dataflow():\n        r = exp(x)\n        d = (x, y)\n        e = item[0](d)\n        s = x.shape",
            ["exp"],
        ),
        # checks
        ("    with dataflow():\n        r = exp(x)\n        d = match_cast[float32[a]](y)", ["exp", "MatchCast"]),
        ("    with dataflow():\n        r = exp(x)\n        d = call[checked](x)", ["exp", "FunctionCall"]),
        # a and b may differ
        ("    with dataflow():\n        r = exp(x)\n        d = call[same](x, y)", ["exp", "FunctionCall"]),
        ("    with dataflow():\n        r = exp(x)\n        d = call[same](x, r)", ["exp"]),
        # effects
        ("    with dataflow():\n        r = exp(x)\n    d = packed['log', Object](x)", ["exp", "PackedCall"]),
        ("    with dataflow():\n        r = exp(x)\n    d = call[effect](x)", ["exp", "FunctionCall"]),
    ],
)
def test_bindings(body: str, left: list[str]) -> None:
    assert ops(after(MODULE.format(body=body.strip()), dead_code.run)) == left


def test_a_check_that_nothing_reads_still_fails() -> None:
    m = after(MODULE.format(body="with dataflow():\n        r = exp(x)\n        d = call[same](x, y)"), dead_code.run)
    x, y = random_arrays(0, (3,), (4,))
    with pytest.raises(GuardError):
        evaluate(m, x, y)


def test_functions_and_kernels_that_nothing_calls() -> None:
    m = after(MODULE.format(body="with dataflow():\n        r = call[pure](x)"), dead_code.run)
    assert set(m.functions) == {"main", "pure"}


def test_a_branch_is_reached() -> None:
    m = after(
        MODULE.format(body="p = packed['decide', bool[()]]()\n    r = if_else[pure, unused](p, x)"), dead_code.run
    )
    assert set(m.functions) == {"main", "pure", "unused"}


DIMS = """
def inner(x: float32[2*n], *, n: Dim, m: Dim) -> float32[n]:
    with dataflow():
        y = slice(x, axes=(0,), starts=(0,), stops=(n,))
    return y

def outer(x: float32[p], *, n: Dim, m: Dim, q: Dim) -> float32[n]:
    with dataflow():
        v = match_cast[float32[2*n]](x)
        y = call[inner](v, dims=(n, m + q))
    return y

def main(x: float32[2*a], s: Shape[b]) -> float32[a]:
    with dataflow():
        y = call[outer](x, dims=(a, b, 3))
    return y
"""


def test_shape_arguments_that_nothing_uses() -> None:
    m = after(DIMS, dead_code.run)
    assert m.functions["inner"].dims == ("n",)
    assert m.functions["outer"].dims == ("n",)
    call = expressions(m)[0]
    assert isinstance(call, FunctionCall) and len(call.dims) == 1
    (x,) = random_arrays(1, (6,))
    assert_equal(evaluate(m, x, (3,)), x[:3])


def test_branches_keep_what_one_of_them_uses() -> None:
    m = after(
        """
def left(x: float32[2*n], *, n: Dim, m: Dim) -> float32[_]:
    with dataflow():
        y = slice(x, axes=(0,), starts=(0,), stops=(n,))
    return y

def right(x: float32[k], *, n: Dim, m: Dim) -> float32[_]:
    with dataflow():
        y = exp(x)
    return y

def main(p: bool[()], x: float32[2*a], s: Shape[b]):
    y = if_else[left, right](p, x, dims=(a, b))
    return y
""".replace("-> float32[_]:", ":"),
        dead_code.run,
    )
    (branch,) = expressions(m)
    assert isinstance(branch, If) and len(branch.dims) == 1
    assert m.functions["left"].dims == m.functions["right"].dims == ("n",)
