"""Registration of (pattern, library function) pairs by users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mirage.compiler.passes import lower_libraries
from mirage.compiler.patterns import Match, op, register_pattern, registry, rules, value
from mirage.errors import DuplicateFunction, PatternError
from mirage.ir.graph.nodes import LibraryCall
from mirage.runtime import packed
from tests.compiler.passes.running import after, evaluate, expressions, ops, random_arrays

PATTERN = op("mul", op("exp", value("x")), value("y"))


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    monkeypatch.setattr(packed, "_library", dict(packed._library))
    yield


def exp_mul(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    np.multiply(np.exp(inputs[0]), inputs[1], out=outputs[0])


TEXT = """
def main(a: float32[n], b: float32[n]):
    with dataflow():
        t = exp(a)
        r = mul(t, b)
    return r
"""


def test_a_function_of_the_user() -> None:
    rule = register_pattern("exp_mul", PATTERN, exp_mul)
    assert rule.inputs == ("x", "y")
    m = after(TEXT, lower_libraries.run)
    (call,) = expressions(m)
    assert isinstance(call, LibraryCall) and call.function == "exp_mul"
    a, b = random_arrays(0, (3,), (3,))
    found = np.empty(3, np.float32)
    packed.library_function("exp_mul")((a, b), (found,))
    np.testing.assert_allclose(found, evaluate(after(TEXT), a, b), rtol=1e-6)


def test_order_of_inputs_and_attributes() -> None:
    packed.register_library("scaled", lambda inputs, outputs, scale: None)
    register_pattern("p", PATTERN, "scaled", inputs=["y", "x"], attributes=lambda m: {"scale": 2})
    (call,) = expressions(after(TEXT, lower_libraries.run))
    assert isinstance(call, LibraryCall)
    assert [a.name for a in call.args] == ["b", "a"]  # type: ignore[union-attr]
    assert call.attrs == (("scale", 2),)


def test_a_check_refuses() -> None:
    seen: list[Match] = []

    def check(m: Match) -> bool:
        seen.append(m)
        return False

    register_pattern("exp_mul", PATTERN, exp_mul, check)
    assert ops(after(TEXT, lower_libraries.run)) == ["exp", "mul"]
    # the function's result is read by its caller
    assert len(seen) == 1 and seen[0].readers == ()


def test_priority_comes_before_registration() -> None:
    packed.register_library("low", lambda inputs, outputs: None)
    packed.register_library("high", lambda inputs, outputs: None)
    register_pattern("low", PATTERN, "low")
    register_pattern("high", PATTERN, "high", priority=1)
    (call,) = expressions(after(TEXT, lower_libraries.run))
    assert isinstance(call, LibraryCall) and call.function == "high"
    assert [r.name for r in rules() if r.name in ("low", "high")] == ["high", "low"]


def test_wrong_registrations() -> None:
    register_pattern("exp_mul", PATTERN, exp_mul)
    with pytest.raises(PatternError, match="registered already"):
        register_pattern("exp_mul", PATTERN, exp_mul)
    with pytest.raises(PatternError, match="'z' is not captured"):
        register_pattern("other", PATTERN, exp_mul, inputs=["x", "z"])
    with pytest.raises(DuplicateFunction):
        register_pattern("blas.matmul", PATTERN, exp_mul)
    assert "blas.matmul" not in [r.name for r in rules()]
