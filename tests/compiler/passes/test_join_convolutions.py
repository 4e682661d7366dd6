"""Convolutions channel by channel become one call with the products around them."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, join_convolutions, lower_packages, pack_weights
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import LibraryCall, Module
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch import convolution, separable
from tests.compiler.passes.running import after, assert_equal, expressions, main_text, random_arrays

SIGNATURE = (
    "x: float32[b, 4, 9, 7], p: float32[12, 4, 1, 1], d: float32[12, 1, 3, 3], q: float32[6, 12, 1, 1], c: float32[12], "
    "y: float32[b, 6, 9, 7], z: float32[b, 12, 9, 7], u: float32[200, 12, 1, 1]"
)
SHAPES = [(2, 4, 9, 7), (12, 4, 1, 1), (12, 1, 3, 3), (6, 12, 1, 1), (12,), (2, 6, 9, 7), (2, 12, 9, 7), (200, 12, 1, 1)]
CONSTANTS = ("p", "d", "q", "c", "u")
FIRST = """i = reshape(p, shape=(12, 4))
j = reshape(x, shape=(b, 4, 63))
k = matmul(i, j)
l = reshape(k, shape=(b, 12, 9, 7))
"""
BOUNDED = "o = relu(l)\n"
BETWEEN = """e = pad({x}, low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=0)
v = convolution(e, d, strides=(1, 1), dilations=(1, 1), groups=12)
"""
SECOND = """m = reshape(q, shape=(6, 12))
n = reshape(v, shape=(b, 12, 63))
s = matmul(m, n)
r = reshape(s, shape=(b, 6, 9, 7))
"""
WINDOWS = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1)}


def joined(body: str) -> tuple[Module, list[LibraryCall]]:
    passes = lower_packages.run, pack_weights.run, dead_code.run, join_convolutions.run, dead_code.run
    module = after(main_text(body, SIGNATURE), *passes, context=Context(constants=CONSTANTS))
    return module, [e for e in expressions(module) if isinstance(e, LibraryCall)]


def run(module: Module) -> Any:
    values = dict(zip("xpdqcyzu", random_arrays(1, *SHAPES), strict=True))
    functions: dict[str, Any] = {"packed": convolution.PACKING, "library": {**convolution.FUNCTIONS, **separable.FUNCTIONS}}
    name = module.functions["main"].attr.get("prepare")
    kept: list[Any] = []
    if name is not None:
        prepare = Module(module.functions, module.kernels, str(name))
        kept = list(run_module(prepare, [values[p.name] for p in module.functions[str(name)].parameters], **functions))
    return run_module(module, [*values.values(), *kept], **functions)


BODIES = [
    (FIRST + BOUNDED + BETWEEN.format(x="o") + SECOND, {"first_least": 0.0, "first": True, "second": True}),
    (FIRST + BETWEEN.format(x="l") + "a = reshape(c, shape=(12, 1, 1))\nf = add(v, a)\nr = relu(f)",
     {"least": 0.0, "first": True, "bias": True}),
    (BETWEEN.format(x="z") + SECOND.replace("r = ", "a = ") + "r = add(a, y)", {"second": True, "other": True}),
    # what is between is the result of a convolution with its places in one dim
    (FIRST.replace("k = ", "h = ").replace("l = ", "k = relu(h)\nl = ") + BETWEEN.format(x="l") + SECOND,
     {"first_least": 0.0, "first": True, "second": True}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "attrs"), BODIES, ids=range(len(BODIES)))
def test_products_before_and_behind(body: str, attrs: dict[str, Any]) -> None:
    module, calls = joined(body)
    (call,) = calls
    assert call.function == "cpu.separable_convolution" and dict(call.attrs) == {**WINDOWS, **attrs}
    assert_equal(run(module), run(parse_module(main_text(body, SIGNATURE))), 1e-5)


#: programs, and which of the two products stays apart
APART = {
    # something else reads what is between
    "read": (
        FIRST + BOUNDED + BETWEEN.format(x="o") + SECOND.replace("r = ", "a = ")
        + "f = sum(o, axes=(1,), keepdims=True)\nr = add(a, f)", "first",
    ),
    "returned": (BETWEEN.format(x="z") + SECOND.replace("r = ", "a = ") + "r = (a, v)", "second"),
    # a product of many channels
    "many": (BETWEEN.format(x="z") + SECOND.replace("q, shape=(6", "u, shape=(200").replace("b, 6,", "b, 200,"), "second"),
    "alone": (BETWEEN.format(x="z") + "r = relu(v)", "second"),
    # a product of other places
    "turned": (BETWEEN.format(x="z") + "g = transpose(v, perm=(0, 1, 3, 2))\n" + SECOND.replace("(v,", "(g,"), "second"),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    body, apart = APART[name]
    module, calls = joined(body)
    assert len(calls) > 1 or name == "alone"
    assert not any(apart in dict(c.attrs) for c in calls)
    assert_equal(run(module), run(parse_module(main_text(body, SIGNATURE))), 1e-5)
