"""Inlining: dims of the callee become the caller's, checks stay checks."""

from __future__ import annotations

import pytest

from mirage.compiler.passes import dead_code, inline
from mirage.errors import GuardError
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, ops, random_arrays

SMALL = """
def f(x: float32[k, m], *, p: Dim) -> float32[k*m]:
    with dataflow():
        y = reshape(x, shape=(k*m,))
        s = size(dim=p)
        z = mul(y, s)
    return z

def main(x: float32[n, 3], y: float32[4, n]):
    with dataflow():
        z = call[f](x, dims=(2*n,))
        w = call[f](y, dims=(7,))
        r = (z, w)
    return r
"""


def test_symbolic_calls() -> None:
    m = after(SMALL, inline.run, dead_code.run)
    assert ops(m) == ["reshape", "size", "mul", "reshape", "size", "mul", "MakeTuple"]
    assert list(m.functions) == ["main"]
    assert str(m.functions["main"].returns) == "Tuple[float32[3*n], float32[4*n]]"
    x, y = random_arrays(0, (2, 3), (4, 2))
    assert_equal(evaluate(m, x, y), evaluate(parse_module(SMALL), x, y))


def test_what_the_signature_checks_is_still_checked() -> None:
    text = """
def f(x: float32[k], y: float32[k]) -> float32[k]:
    with dataflow():
        z = add(x, y)
    return z

def main(x: float32[n], y: float32[m], z: float32[_]):
    with dataflow():
        a = call[f](x, y)
        b = call[f](z, z)
        r = (a, b)
    return r
"""
    m = after(text, inline.run)
    assert ops(m).count("MatchCast") == 3
    x, y, z = random_arrays(1, (3,), (3,), (5,))
    assert_equal(evaluate(m, x, y, z), (x + y, z + z))
    with pytest.raises(GuardError):
        evaluate(m, x, z, z)


def test_dims_that_the_callee_introduces_get_names_of_their_own() -> None:
    text = """
def f(x: float32[k], y: float32[_]) -> float32[k, m]:
    with dataflow():
        z = match_cast[float32[m]](y)
        s = reshape(z, shape=(1, m))
        c = reshape(x, shape=(k, 1))
        r = mul(c, s)
    return r

def main(x: float32[m], y: float32[_], z: float32[_]):
    with dataflow():
        a = call[f](x, y)
        b = call[f](x, z)
        r = (a, b)
    return r
""".replace("-> float32[k, m]:", ":")
    m = after(text, inline.run)
    x, y, z = random_arrays(2, (2,), (3,), (4,))
    assert_equal(evaluate(m, x, y, z), evaluate(parse_module(text), x, y, z))


def test_checks_wait_for_the_dims_in_them() -> None:
    text = """
def f(x: float32[k*m], y: float32[k], z: float32[m]) -> float32[k, m]:
    with dataflow():
        r = reshape(x, shape=(k, m))
    return r

def main(x: float32[_], y: float32[_], z: float32[_]):
    with dataflow():
        r = call[f](x, y, z)
    return r
"""
    m = after(text, inline.run)
    assert ops(m) == ["MatchCast", "MatchCast", "MatchCast", "reshape"]
    x, y, z = random_arrays(4, (6,), (2,), (3,))
    assert_equal(evaluate(m, x, y, z), evaluate(parse_module(text), x, y, z))
    with pytest.raises(GuardError):
        evaluate(m, x, y, y)


def large(calls: str) -> str:
    steps = "\n".join(f"        v{i + 1} = exp(v{i})" for i in range(inline.FEW + 1))
    return f"""
def f(v0: float32[k]):
    with dataflow():
{steps}
    return v{inline.FEW + 1}

def main(p: bool[()], x: float32[n]):
{calls}
    return r
"""


def test_a_large_function_is_inlined_where_it_is_called_once() -> None:
    assert "FunctionCall" not in ops(after(large("    with dataflow():\n        r = call[f](x)"), inline.run))


@pytest.mark.parametrize(
    "calls",
    [
        "    with dataflow():\n        a = call[f](x)\n        r = call[f](a)",
        "    with dataflow():\n        a = call[f](x)\n        r = if_else[f, f](p, a)",
    ],
)
def test_a_large_function_of_several_calls_stays(calls: str) -> None:
    assert "FunctionCall" in ops(after(large(calls), inline.run))


def test_effects_stay_in_their_functions() -> None:
    text = """
def f(x: float32[k]) -> Object:
    e = packed["log", Object](x)
    return e

def main(x: float32[n]):
    e = call[f](x)
    return e
"""
    assert ops(after(text, inline.run)) == ["FunctionCall"]


def test_branches_and_bodies_stay_functions() -> None:
    text = """
def f(i: int64[()], x: float32[k]) -> float32[k]:
    with dataflow():
        y = exp(x)
    return y

def main(x: float32[n]):
    with dataflow():
        r = loop[f]((x,), (), count=n)
    return r
"""
    assert ops(after(text, inline.run)) == ["Loop"]


def test_calls_of_calls() -> None:
    text = """
def f(x: float32[k]) -> float32[k]:
    with dataflow():
        y = exp(x)
    return y

def g(x: float32[k, 2]):
    with dataflow():
        s = reshape(x, shape=(2*k,))
        y = call[f](s)
    return y

def main(x: float32[n, 2]):
    with dataflow():
        y = call[g](x)
    return y
"""
    m = after(text, inline.run, dead_code.run)
    assert ops(m) == ["reshape", "exp"] and list(m.functions) == ["main"]
    (x,) = random_arrays(3, (3, 2))
    assert_equal(evaluate(m, x), evaluate(parse_module(text), x))
