"""Gains and offsets of what products read become a part of their weights and biases."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compiler.constraints.bounds import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import collect_constraints, dead_code, fold_gains, lift_constants
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from mirage.kernels import blas
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

SIGNATURE = (
    "x: float32[b, 6, 4], w: float32[4, 5], v: float32[5, 4], e: float32[3, 6], g: float32[4], c: float32[4], "
    "d: float32[5], h: float32[6, 1], y: float32[4], z: float32[1, 1, 4]"
)
SHAPES = [(2, 6, 4), (4, 5), (5, 4), (3, 6), (4,), (4,), (5,), (6, 1), (4,), (1, 1, 4)]
CONSTANTS = ("w", "v", "e", "g", "c", "d", "h", "z")
NORM = "n = rms_norm(x, g, axis=-1, eps=0.01)\n"
SHIFTED = "n = layer_norm(x, g, c, axis=-1, eps=0.01)\n"
TRANSPOSED = "t = transpose(v, perm=(1, 0))\n"


def folded(body: str, constants: tuple[str, ...] = CONSTANTS, signature: str = SIGNATURE, **bounds: int) -> Module:
    context = Context(constants=constants, bounds=from_bounds(bounds))
    return after(main_text(body, signature), collect_constraints.run, fold_gains.run, dead_code.run, context=context)


def lifted(module: Module, constants: tuple[str, ...] = CONSTANTS) -> Module:
    return after(module, lift_constants.run, dead_code.run, context=Context(constants=constants))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{NORM}r = matmul(n, w)", ["rms_norm", "matmul"]),
        ("n = mul(x, g)\nr = matmul(n, w)", ["matmul"]),
        ("n = mul(g, x)\nr = matmul(n, w)", ["matmul"]),
        ("n = div(x, z)\nr = matmul(n, w)", ["matmul"]),
        ("s = constant(value=3)\nm = mul(x, s)\nn = mul(m, g)\nr = matmul(n, w)", ["matmul"]),
        # several products, of which one reads its weights transposed, and another a view of the scaled value
        (
            f"{NORM}{TRANSPOSED}p = matmul(n, w)\nq = matmul(n, t)\n"
            "f = reshape(n, shape=(6*b, 4))\nu = matmul(f, w)\nr = (p, q, u)",
            ["rms_norm", "matmul", "transpose", "matmul", "reshape", "matmul", "MakeTuple"],
        ),
        ("m = mul(x, g)\nn = transpose(m, perm=(1, 0, 2))\nr = matmul(n, w)", ["transpose", "matmul"]),
        (
            "m = mul(x, g)\nn = slice(m, axes=(1,), starts=(1,), stops=(3,))\nr = matmul(n, w)",
            ["slice", "matmul"],
        ),
        # weights on the left
        ("n = mul(x, h)\nr = matmul(e, n)", ["matmul"]),
        # offsets, with a bias to join and without
        (f"{SHIFTED}p = matmul(n, w)\nr = add(d, p)", ["layer_norm", "matmul", "add"]),
        (f"{SHIFTED}r = matmul(n, w)", ["layer_norm", "matmul", "add"]),
        (f"{SHIFTED}{TRANSPOSED}r = matmul(n, t)", ["layer_norm", "transpose", "matmul", "add"]),
        ("m = mul(x, g)\nn = add(c, m)\np = matmul(n, w)\nr = add(p, d)", ["matmul", "add"]),
        ("n = add(x, c)\np = matmul(n, w)\nr = add(p, d)", ["matmul", "add"]),
    ],
)
@pytest.mark.parametrize("gain", ["random", "zeros", "negative"])
def test_gains_become_weights(body: str, left: list[str], gain: str) -> None:
    before = parse_module(main_text(body, SIGNATURE))
    module = folded(body)
    arrays = random_arrays(0, *SHAPES)
    if gain == "zeros":
        arrays[4][::2] = 0
        arrays[5][:] = 0
    elif gain == "negative":
        arrays[4] = -np.abs(arrays[4])
    # operands that are not contiguous
    arrays[1] = np.asfortranarray(arrays[1])
    arrays[4] = np.repeat(arrays[4], 2)[::2]
    exact = run_module(before, [a.astype(np.float64) for a in arrays], wide=True)
    found = evaluate(module, *arrays)
    pairs = zip(found, exact, strict=True) if isinstance(found, tuple) else [(found, exact)]
    for one, wanted in pairs:
        assert_equal(one, np.asarray(wanted, one.dtype), 2e-6)
    assert [op for op in ops(lifted(module)) if op != "constant"] == left


def test_offsets_are_summed_in_float64() -> None:
    """What cancels in the sums of an offset is exact."""
    signature = "x: float32[b, 3], w: float32[3, 1], c: float32[3], d: float32[1]"
    module = folded("n = add(x, c)\np = matmul(n, w)\nr = add(p, d)", ("w", "c", "d"), signature)
    zero, ones = np.zeros((1, 3), np.float32), np.ones((3, 1), np.float32)
    offset = np.array([1e8, 1, -1e8], np.float32)
    lone = np.full(1, 0.25, np.float32)
    assert evaluate(module, zero, ones, offset, lone).item() == 1.25


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        # a gain or weights that change
        (f"{NORM}r = matmul(n, w)", ("w",)),
        (f"{NORM}r = matmul(n, w)", ("g",)),
        ("n = mul(x, y)\nr = matmul(n, w)", CONSTANTS),
        (f"{SHIFTED}r = matmul(n, w)", ("w", "g")),
        # others read the scaled value: a residual, the caller, a function of its elements
        (f"{NORM}p = matmul(n, w)\nq = matmul(p, v)\nr = add(n, q)", CONSTANTS),
        (f"{NORM}p = matmul(n, w)\nr = (p, n)", CONSTANTS),
        (f"{NORM}p = matmul(n, w)\nq = relu(n)\nr = (p, q)", CONSTANTS),
        (f"{NORM}m = relu(n)\nr = matmul(m, w)", CONSTANTS),
        # not along what is summed, or along more than it
        ("n = mul(x, h)\nr = matmul(n, w)", CONSTANTS),
        ("m = mul(g, h)\nn = mul(x, m)\nr = matmul(n, w)", CONSTANTS),
        ("m = mul(x, g)\nn = reshape(m, shape=(b, 4, 6))\nk = transpose(e, perm=(1, 0))\nr = matmul(n, k)", CONSTANTS),
        ("m = mul(x, g)\nn = transpose(m, perm=(0, 2, 1))\nk = transpose(e, perm=(1, 0))\nr = matmul(n, k)", CONSTANTS),
        # the scaled value with itself
        ("n = mul(x, g)\nk = transpose(n, perm=(0, 2, 1))\nr = matmul(n, k)", CONSTANTS),
        # an offset whose sums would cost more than it
        (
            f"{SHIFTED}p = matmul(n, w)\nq = matmul(n, w)\na = exp(p)\no = exp(q)\nr = (a, o)",
            CONSTANTS,
        ),
        # a bias that something else is added to, too, is no bias of columns
        ("n = mul(x, h)\nm = add(n, h)\nr = matmul(e, m)", CONSTANTS),
    ],
)
def test_what_stays(body: str, constants: tuple[str, ...]) -> None:
    before = after(main_text(body, SIGNATURE), dead_code.run)
    assert str(folded(body, constants)) == str(before)


def test_float16_stays() -> None:
    signature = "x: float16[b, 4], w: float16[4, 5], g: float16[4]"
    assert ops(folded("n = mul(x, g)\nr = matmul(n, w)", ("w", "g"), signature)) == ["mul", "matmul"]
    signature = signature.replace("float16", "bfloat16")
    assert ops(lifted(folded("n = mul(x, g)\nr = matmul(n, w)", ("w", "g"), signature), ("w", "g"))) == ["matmul"]


SHARED = "n = mul(x, g)\np = matmul(n, w)\nm = mul(x, c)\nq = matmul(m, w)\nr = add(p, q)"


def test_shared_weights_are_copied_where_it_pays() -> None:
    signature = "x: float32[b, 4], w: float32[4, n], g: float32[4], c: float32[4]"
    constants: tuple[str, ...] = ("w", "g", "c")
    arrays = random_arrays(1, (100, 4), (4, 7), (4,), (4,))

    def muls(body: str, **sizes: int) -> int:
        given = signature
        for name, size in sizes.items():
            given = given.replace(f"{name},", f"{size},").replace(f"{name}]", f"{size}]")
        module = folded(body, constants, given)
        if sizes.get("n") == 7:
            text = parse_module(main_text(body, given))
            assert_equal(evaluate(module, *arrays), evaluate(text, *arrays), 2e-6)
        return ops(lifted(module, constants)).count("mul")

    # a second copy of 4 x 7 is less than 100 x 4 written and read, and that of 4 x 1000 is more than 2 x 4
    assert muls(SHARED, b=100, n=7) == 0
    assert muls(SHARED, b=2, n=1000) == 2
    # nothing is known
    assert muls(SHARED) == 2
    # one gain is one copy
    same = SHARED.replace("mul(x, c)", "mul(q0, g)").replace("m = ", "q0 = relu(x)\nm = ")
    assert muls(same, b=2, n=1000) == 0
    # something else reads the weights, and all of them
    other = f"{SHARED.splitlines()[0]}\np = matmul(n, w)\ns = exp(w)\nq = matmul(x, s)\nr = add(p, q)"
    assert muls(other, b=2, n=1000) == 1
    # rows that are looked up are no copy
    signature = "x: float32[b, 4], i: int64[k], e: float32[n, 4], g: float32[4]"
    constants = ("e", "g")
    tied = "h = take(e, i, axis=0)\nm = mul(h, g)\nt = transpose(e, perm=(1, 0))\nr = matmul(m, t)"
    assert ops(lifted(folded(tied, constants, signature), constants)).count("mul") == 0


def test_large_weights_are_not_copied() -> None:
    body = "n = mul(x, g)\nr = matmul(n, w)"
    for columns, folds in ((1 << 20, True), ((1 << 20) + 1, False)):
        signature = f"x: float32[b, 4], w: float32[4, {columns}], g: float32[4]"
        assert (ops(lifted(folded(body, ("w", "g"), signature), ("w", "g"))) == ["matmul"]) == folds


def test_weights_that_grow_stay() -> None:
    """Weights that each call makes of smaller ones are read as those."""
    signature = "x: float32[b, 4], w: int8[4, 5], g: float32[4]"
    body = "n = mul(x, g)\nf = cast(w, dtype='float32')\nr = matmul(n, f)"
    assert ops(folded(body, ("w", "g"), signature)) == ["mul", "cast", "matmul"]


def test_what_is_kept_is_of_the_arrays_given() -> None:
    """The function of what is computed once has the gains among its parameters."""
    module = lifted(folded(f"{SHIFTED}p = matmul(n, w)\nr = add(p, d)"))
    prepare = module.functions["prepare"]
    assert {p.name for p in prepare.parameters} == {"g", "c", "w", "d"}
    arrays = dict(zip((p.name for p in module.functions["main"].parameters), random_arrays(3, *SHAPES), strict=False))
    alone = Module(module.functions, module.kernels, prepare.name)
    kept = run_module(alone, [arrays[p.name] for p in prepare.parameters], library=blas.FUNCTIONS)
    assert [k.dtype for k in kept] == [np.float32, np.float32]
