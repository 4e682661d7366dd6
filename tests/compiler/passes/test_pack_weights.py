"""Products with constant weights go to the package that a program came from, which packs the weights once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.kernels.targets import kernels_for
from mirage.compiler.passes import lift_constants, lower_libraries, lower_packages, pack_weights
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import LibraryCall, Module, PackedCall
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays

SIGNATURE = "x: float32[b, n, 8], w: float32[8, 4], v: float32[4, 8], c: float32[4]"
SHAPES = [(2, 3, 8), (8, 4), (4, 8), (4,)]
TRANSPOSED = "t = transpose(v, perm=(1, 0))\n"


def lowered(body: str, constants: tuple[str, ...] = ("w", "v", "c"), packages: tuple[str, ...] = ("torch",)) -> Module:
    context = Context(constants=constants, packages=packages)
    return after(main_text(body, SIGNATURE), lower_packages.run, pack_weights.run, context=context)


def pack(w: np.ndarray, right: Any = ()) -> tuple[np.ndarray, Any]:
    return (w.T if right else w).copy(), right


def linear(
    inputs: Any, outputs: Any, right: Any = (), packed: bool = False, bias: bool = False, activation: str = ""
) -> None:
    x, _, (w, packed_right), *c = inputs
    assert packed and packed_right == right
    found = x @ w + (c[0] if bias else 0)
    outputs[0][...] = {"": found, "relu": np.maximum(found, 0), "tanh": np.tanh(found)}[activation]


def run(module: Module, *args: Any) -> Any:
    """The main function behind its preparation, with a package of our own."""
    main = module.functions["main"]
    prepare = module.functions[str(main.attr["prepare"])]
    values = dict(zip((p.name for p in main.parameters), args, strict=False))
    functions: dict[str, Any] = {"packed": {"cpu.pack_matmul": pack}, "library": {"blas.matmul": linear}}
    alone = Module(module.functions, module.kernels, prepare.name)
    kept = run_module(alone, [values[p.name] for p in prepare.parameters], **functions)
    return run_module(module, [*args, *kept], **functions)


@pytest.mark.parametrize(
    ("body", "attrs"),
    [
        ("r = matmul(x, w)", {}),
        (f"{TRANSPOSED}r = matmul(x, t)", {"right": (1, 0)}),
        ("p = matmul(x, w)\nr = add(c, p)", {"bias": True}),
        (f"{TRANSPOSED}p = matmul(x, t)\nr = relu(p)", {"right": (1, 0), "activation": "relu"}),
        ("p = matmul(x, w)\nq = add(p, c)\nr = tanh(q)", {"bias": True, "activation": "tanh"}),
    ],
)
def test_products(body: str, attrs: dict[str, object]) -> None:
    m = lowered(body)
    (call,) = (e for e in expressions(m) if isinstance(e, LibraryCall))
    assert call.function == "blas.matmul" and dict(call.attrs) == attrs | {"packed": True}
    assert not {"matmul", "add", "relu", "tanh"} & set(ops(m))
    args = random_arrays(0, *SHAPES)
    assert_equal(run(m, *args), evaluate(parse_module(main_text(body, SIGNATURE)), *args), 1e-6)


@pytest.mark.parametrize("right", [False, True])
def test_products_of_a_processor_read_panels(right: bool) -> None:
    body = f"{TRANSPOSED if right else ''}p = matmul(x, {'t' if right else 'w'})\nr = exp(p)"
    context = Context(constants=("w", "v"))
    m = after(main_text(body, SIGNATURE), lower_libraries.run, pack_weights.run, context=context)
    (call,) = (e for e in expressions(m) if isinstance(e, LibraryCall))
    assert call.function == "blas.matmul" and dict(call.attrs) == ({"right": (1, 0)} if right else {}) | {"packed": True}
    prepare = m.functions[str(m.functions["main"].attr["prepare"])]
    packing, _ = expressions(m, prepare.name)
    assert isinstance(packing, PackedCall) and packing.function == "cpu.pack_matmul"
    # once is enough
    assert after(m, pack_weights.run, context=context) == m


GROUPS = "x: float32[n, 6], w: float32[3, 6, 8], v: float32[3, 6, 8], t: float32[3, 8, 6], ends: int64[3]"
GATED = """a = grouped_matmul(x, w, ends)
b = silu(a)
c = grouped_matmul(x, v, ends)
r = mul(c, b)"""


def groups(body: str, constants: tuple[str, ...] = ("w", "v", "t")) -> LibraryCall:
    """The last call of groups of rows times the matrices of each."""
    context = Context(constants=constants, packages=("cpu",))
    m = after(main_text(body, GROUPS), lower_packages.run, pack_weights.run, context=context)
    return [e for e in expressions(m) if isinstance(e, LibraryCall)][-1]


@pytest.mark.parametrize(
    ("body", "attrs"),
    [
        ("r = grouped_matmul(x, w, ends)", {}),
        ("s = transpose(t, perm=(0, 2, 1))\nr = grouped_matmul(x, s, ends)", {"right": (0, 2, 1)}),
        (GATED, {"gated": True, "activation": "silu"}),
    ],
)
def test_groups_of_rows(body: str, attrs: dict[str, object]) -> None:
    call = groups(body)
    assert call.function == "cpu.grouped_matmul" and dict(call.attrs) == attrs | {"packed": True}
    assert len(call.args) == 3 + 2 * ("gated" in attrs) + 1


def test_groups_that_stay_as_they_lie() -> None:
    call = groups(GATED, constants=("w",))
    assert dict(call.attrs) == {"gated": True, "activation": "silu"} and len(call.args) == 4
    # other rows are no gate of these
    other = GATED.replace("c = grouped_matmul(x, v, ends)", "y = exp(x)\nc = grouped_matmul(y, v, ends)")
    assert "gated" not in dict(groups(other).attrs)


@pytest.mark.parametrize(
    ("body", "signature", "constants"),
    [
        ("r = matmul(x, w)", "x: float32[b, n, 8], w: float32[8, 4]", ()),
        ("r = matmul(x, w)", "x: float32[n, 8], w: float32[3, 8, 4]", ("w",)),
        ("r = matmul(x, w)", "x: float64[n, 8], w: float64[8, 4]", ("w",)),
        ("r = matmul(w, x)", "w: float32[4, 8], x: float32[8, n]", ("w",)),
    ],
)
def test_what_has_no_panels(body: str, signature: str, constants: tuple[str, ...]) -> None:
    context = Context(constants=constants)
    m = after(main_text(body, signature), lower_libraries.run, pack_weights.run, context=context)
    (call,) = (e for e in expressions(m) if isinstance(e, LibraryCall))
    assert call.function == "blas.matmul" and not call.attrs
    other = Context(constants=("w",), kernels=kernels_for("cuda"))
    m = after(main_text("r = matmul(x, w)", SIGNATURE), lower_libraries.run, pack_weights.run, context=other)
    assert "prepare" not in m.functions


def test_a_weight_is_packed_once_for_all_that_read_it() -> None:
    m = lowered("p = matmul(x, w)\nq = relu(x)\ns = matmul(q, w)\nr = add(p, s)")
    assert ops(m).count("LibraryCall") == 2
    assert [str(p.annotation) for p in m.functions["main"].parameters[4:]] == ["Object"]
    args = random_arrays(1, *SHAPES)
    x, w = args[:2]
    assert_equal(run(m, *args), x @ w + np.maximum(x, 0) @ w, 1e-6)


def test_what_is_prepared_already_may_be_packed() -> None:
    context = Context(constants=("w",), packages=("torch",))
    text = main_text("s = exp(w)\nr = matmul(x, s)", "x: float32[n, 8], w: float32[8, 4]")
    m = after(text, lift_constants.run, lower_packages.run, pack_weights.run, context=context)
    assert ops(m) == ["LibraryCall"]
    assert [p.name for p in m.functions["main"].parameters] == ["x", "w", "s_lifted", "s_lifted_packed"]
    x, w = random_arrays(2, (3, 8), (8, 4))
    assert_equal(run(m, x, w), x @ np.exp(w), 1e-6)


@pytest.mark.parametrize(
    ("body", "constants", "packages"),
    [
        ("r = matmul(x, w)", ("w",), ()),
        ("r = matmul(x, w)", ("c",), ("torch",)),
        ("p = mul(w, w)\nr = matmul(x, p)", ("w",), ("torch",)),
    ],
    ids=["another program", "not constant", "computed"],
)
def test_what_stays(body: str, constants: tuple[str, ...], packages: tuple[str, ...]) -> None:
    assert "LibraryCall" not in ops(lowered(body, constants, packages))


def test_a_bias_that_makes_the_result_larger_stays() -> None:
    text = main_text("p = matmul(x, w)\nr = add(p, c)", "x: float32[n, 8], w: float32[8, 1], c: float32[4]")
    context = Context(constants=("w", "c"), packages=("torch",))
    m = after(text, lower_packages.run, pack_weights.run, context=context)
    assert ops(m) == ["LibraryCall", "add"]
