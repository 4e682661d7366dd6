"""Convolutions with constant weights become calls of the processor's own, with what is around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import lower_packages, pack_weights
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import LibraryCall, Module
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch import convolution
from tests.compiler.passes.running import after, assert_equal, expressions, main_text, ops, random_arrays

SIGNATURE = (
    "x: float32[b, 4, 9, 7], w: float32[6, 4, 3, 3], d: float32[4, 1, 3, 3], p: float32[6, 4, 1, 1], c: float32[6], "
    "y: float32[b, 6, 9, 7], m: float32[6, 4], s: float32[()]"
)
SHAPES = [(2, 4, 9, 7), (6, 4, 3, 3), (4, 1, 3, 3), (6, 4, 1, 1), (6,), (2, 6, 9, 7), (6, 4), ()]
CONSTANTS = ("w", "d", "p", "c", "m")
PAD = "e = pad(x, low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=0)\n"
SUM = f"{PAD}v = convolution(e, w, strides=(1, 1), dilations=(1, 1))\n"
BIAS = "k = reshape(c, shape=(1, 6, 1, 1))\n"
POINT = """q = reshape(p, shape=(6, 4))
f = reshape(x, shape=(b, 4, 63))
g = matmul(q, f)
"""
SPACE = "v = reshape(g, shape=(b, 6, 9, 7))\n"
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "low": (1, 1)}


def lowered(body: str, constants: tuple[str, ...] = CONSTANTS, packages: tuple[str, ...] = ()) -> Module:
    context = Context(constants=constants, packages=packages)
    return after(main_text(body, SIGNATURE), lower_packages.run, pack_weights.run, context=context)


def call(module: Module) -> LibraryCall:
    (found,) = [e for e in expressions(module) if isinstance(e, LibraryCall)]
    return found


def run(module: Module) -> Any:
    values = dict(zip("xwdpcyms", random_arrays(1, *SHAPES), strict=True))
    functions: dict[str, Any] = {"packed": convolution.PACKING, "library": convolution.FUNCTIONS}
    name = module.functions["main"].attr.get("prepare")
    if name is None:
        return run_module(module, list(values.values()), **functions)
    prepare = Module(module.functions, module.kernels, str(name))
    kept = run_module(prepare, [values[p.name] for p in module.functions[str(name)].parameters], **functions)
    return run_module(module, [*values.values(), *kept], **functions)


@pytest.mark.parametrize(
    ("body", "attrs"),
    [
        (f"{SUM}r = relu(v)", {**WINDOW, "least": 0.0}),
        ("r = convolution(x, w, strides=(2, 1), dilations=(1, 2))",
         {"strides": (2, 1), "dilations": (1, 2), "groups": 1, "low": (0, 0)}),
        (f"{SUM}{BIAS}z = add(v, k)\no = add(y, z)\nr = relu(o)", {**WINDOW, "bias": True, "other": True, "least": 0.0}),
        (f"{PAD}v = convolution(e, d, strides=(1, 1), dilations=(1, 1), groups=4)\nr = relu(v)",
         {**WINDOW, "groups": 4, "least": 0.0}),
        (f"{POINT}r = add(g, g)", {}),
        (f"{POINT}r = reshape(g, shape=(b, 6, 9, 7))", {}),
        (f"{POINT}{SPACE}{BIAS}z = add(k, v)\nr = relu(z)", {"bias": True, "least": 0.0}),
        (f"{POINT}{SPACE}r = add(v, y)", {"other": True}),
        # small weights, whose reshape was computed when the program was compiled
        (f"f = reshape(x, shape=(b, 4, 63))\nv = matmul(float32[2, 4]({', '.join(f'{k}.5' for k in range(8))}), f)\nr = relu(v)",
         {"least": 0.0}),
    ],
)  # fmt: skip
def test_what_is_around_a_convolution_is_computed_with_it(body: str, attrs: dict[str, Any]) -> None:
    module = lowered(body)
    found = call(module)
    assert found.function == "cpu.convolution" and dict(found.attrs) == {**attrs, "packed": True}
    assert_equal(run(module), run(parse_module(main_text(body, SIGNATURE))), 1e-5)


@pytest.mark.parametrize(("least", "most"), [("0.0", "6.0"), ("-1.5", "0.5")])
def test_bounds(least: str, most: str) -> None:
    low, high = f"float32[()]({least})", f"float32[()]({most})"
    module = lowered(f"{SUM}o = elementwise_max(v, {low})\nr = elementwise_min({high}, o)")
    found = dict(call(module).attrs)
    assert (found["least"], found["most"]) == (float(least), float(most)) and ops(module) == ["LibraryCall"]
    scalars = f"i = constant(value={least})\nj = constant(value={most})\n"
    clipped = lowered(f"{SUM}{scalars}o = elementwise_max(v, i)\nr = elementwise_min(o, j)")
    assert dict(call(clipped).attrs) == found
    assert np.min(run(module)) >= float(least) and np.max(run(module)) <= float(most)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        # images of zeros, other values than zeros, and what others read, too
        ("e = pad(x, low=(1, 0, 0, 0), high=(0, 0, 0, 0), value=0)\nr = convolution(e, w, strides=(1, 1), dilations=(1, 1))",
         ["pad", "LibraryCall"]),
        ("e = pad(x, low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=1)\nr = convolution(e, w, strides=(1, 1), dilations=(1, 1))",
         ["pad", "LibraryCall"]),
        (f"{SUM}o = relu(v)\nr = add(v, o)", ["LibraryCall", "relu", "add"]),
        # a bound that only the call tells
        (f"{SUM}r = elementwise_max(v, s)", ["LibraryCall", "elementwise_max"]),
        # a summand that makes the result larger, or is along another dim than the outputs
        (f"{SUM}t = reshape(y, shape=(1, b, 6, 9, 7))\nr = add(v, t)", ["LibraryCall", "reshape", "add"]),
        (f"{SUM}t = reshape(s, shape=(1, 1, 1, 1))\nr = add(v, t)", ["LibraryCall", "reshape", "add"]),
        # a matrix that was none of a convolution's weights
        ("f = reshape(x, shape=(b, 4, 63))\nr = matmul(m, f)", ["reshape", "matmul"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_stays(body: str, left: list[str]) -> None:
    module = lowered(body)
    assert [o for o in ops(module) if o != "constant"] == left
    assert_equal(run(module), run(parse_module(main_text(body, SIGNATURE))), 1e-5)


def test_weights_that_change_are_left_to_the_operator() -> None:
    assert "LibraryCall" not in ops(lowered(f"{SUM}r = relu(v)", constants=("c",)))


@pytest.mark.parametrize(("constants", "function"), [((), "torch.convolution"), (("w", "c"), "cpu.convolution")])
def test_programs_of_a_package_have_its_own_where_weights_change(constants: tuple[str, ...], function: str) -> None:
    module = lowered(f"{SUM}r = relu(v)", constants=constants, packages=("torch",))
    assert [e.function for e in expressions(module) if isinstance(e, LibraryCall)] == [function]
