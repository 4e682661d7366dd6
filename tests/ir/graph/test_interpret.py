"""The reference interpreter: every form of expression, guards, effects, and float64 as the yardstick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import (
    DimError,
    DTypeError,
    GraphError,
    GuardError,
    InputError,
    MirageError,
    UnknownFunction,
)
from mirage.ir.dims import symbol
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.match import match_sizes
from mirage.ir.graph.nodes import Binding, Block, Function, KernelCall, Module, Var
from mirage.ir.graph.parse import parse_annotation, parse_module
from mirage.ir.types import tensor
from tests.ir.graph.modules import library, packed, showcase


def run(body: str, *args: Any, signature: str = "x: float32[n, m]", functions: str = "", **given: Any) -> Any:
    """The result of a main function of these lines."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return run_module(parse_module(f"{functions}\ndef main({signature}):\n{lines}"), args, **given)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_showcase() -> None:
    notes: list[Any] = []
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    args = [x, np.array(False), np.array(2)]
    u, f, shape, distinct, big = run_module(showcase(), args, packed=packed(notes), library=library())
    # (exp + 0.1), doubled three times and twice more, then halved by the library and doubled by the kernel
    want = (np.exp(x.ravel().astype(np.float64)) + 0.1) * 2**5
    np.testing.assert_allclose(u, want, rtol=1e-5)
    np.testing.assert_array_equal(f, np.full(8, 2, np.float32))
    np.testing.assert_array_equal(distinct, np.unique(u))
    assert shape == (9,) and big.tolist() == [1.0] * 17 and notes == [((8,), [[1, 2], [3, -4]], 2)]


def test_a_branch_runs_only_where_it_is_taken() -> None:
    functions = """
def log(x: float32[n]):
    e = packed["note", Object](x)
    return x

def skip(x: float32[n]):
    y = neg(x)
    return y
"""
    seen: list[Any] = []
    for flag in (True, False):
        y = run(
            "y = if_else[log, skip](c, x)\nreturn y", np.ones(2, np.float32), np.array(flag),
            signature="x: float32[n], c: bool[()]", functions=functions, packed={"note": seen.append},
        )  # fmt: skip
        assert y.tolist() == ([1, 1] if flag else [-1, -1])
    assert len(seen) == 1


POWERS = """
def body(i: int64[()], a: float32[n], b: float32[n], w: float32[()]):
    c = mul(a, w)
    d = add(b, a)
    e = (c, d)
    return e
"""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loops(count: int) -> None:
    one = np.ones(2, np.float32)
    a, b = run(
        "y = loop[body](c, (x, x), (w,), bound=5)\nreturn y", one, np.array(3, np.float32), np.array(count),
        signature="x: float32[n], w: float32[()], c: int64[()]", functions=POWERS,
    )  # fmt: skip
    assert a.tolist() == [3.0**count] * 2
    assert b.tolist() == [1 + sum(3.0**i for i in range(count))] * 2


def test_a_loop_s_bound_is_checked() -> None:
    with pytest.raises(GuardError, match=r"main: y: loop of body: 3 rounds, but its bound n is 2"):
        run(
            "y = loop[body](c, (x, x), (w,), bound=n)\nreturn y", np.ones(2, np.float32), np.array(3, np.float32),
            np.array(3), signature="x: float32[n], w: float32[()], c: int64[()]", functions=POWERS,
        )  # fmt: skip


def test_shapes_are_values() -> None:
    y, s, t = run("s = x.shape\nt = ([n*m, 2], s)\nz = item[0](t)\nr = (x, s, z)\nreturn r", X)
    assert (s, t) == ((2, 3), (6, 2)) and y is X


def test_extra_shape_arguments() -> None:
    functions = """
def zeros(*, k: Dim):
    y = full(shape=(k, 2), value=0)
    return y
"""
    assert run("y = call[zeros](dims=(2*n + 1,))\nreturn y", X, functions=functions).shape == (5, 2)


def test_expressions_in_parameters_determine_symbols() -> None:
    signature = "x: float32[2*n, n*m]"
    assert run("s = [n, m]\nreturn s", np.zeros((4, 6), np.float32), signature=signature) == (2, 3)
    with pytest.raises(GuardError, match=r"argument 'x' has shape \[3, 6\]: dim 0 is 3: no size of n makes 2\*n that"):
        run("s = [n, m]\nreturn s", np.zeros((3, 6), np.float32), signature=signature)
    with pytest.raises(GuardError, match="dim 1 is 5: no size of m makes m"):
        run("s = [n, m]\nreturn s", np.zeros((4, 5), np.float32), signature=signature)


@pytest.mark.parametrize(
    ("signature", "args", "message", "error"),
    [
        (
            "x: float32[n, n]",
            [X],
            r"main: argument 'x' has shape \[2, 3\]: dim 1 is 3, not n, which is 2 for n=2",
            GuardError,
        ),
        ("x: float32[n, 4]", [X], "dim 1 is 3, not 4; make them equal", GuardError),
        ("x: float32[n]", [X], "of rank 2, not 1", GuardError),
        ("x: float64[n, m]", [X], "has elements of float32, not of float64", InputError),
        ("x: float32[n, m]", [], r"takes 1 arguments \(x\), got 0", InputError),
        ("x: float32[n, m]", ["text"], "argument 'x' is str, not float32", InputError),
        ("x: int64[()]", [1.5], "1.5 is no int64", DTypeError),
        (
            "x: Tuple[float32[n, m], float32[m]]",
            [(X, X[0, :2])],
            r"field 1 has shape \[2\]: dim 0 is 2, not m",
            GuardError,
        ),
        ("x: Tuple[float32[n, m]]", [X], "is not a tuple of 1 values", InputError),
        ("x: Shape[n, n]", [(2, 3)], "dim 1 is 3, not n", GuardError),
        ("x: Shape[n]", [2], "is no shape", InputError),
    ],
)
def test_guards(signature: str, args: list[Any], message: str, error: type[MirageError]) -> None:
    with pytest.raises(error, match=message):
        run("return x", *args, signature=signature)


def test_symbols_that_nothing_determines() -> None:
    with pytest.raises(DimError, match=r"n\*m has several unknown sizes|m\*n has several unknown sizes"):
        match_sizes([("x", parse_annotation("float32[n*m]"), np.zeros(6, np.float32))], {})


def test_a_match_cast_checks_and_introduces() -> None:
    lines = "y = unique(x)\nz = match_cast[float32[2*q]](y)\ns = [q]\nreturn s"
    assert run(lines, X) == (3,)
    with pytest.raises(
        GuardError, match=r"^line 4: main: z: the value of the match_cast has shape .5.: .* no size of q"
    ):
        run(lines, np.array([[1, 2, 3, 4, 5]], np.float32))
    with pytest.raises(GuardError, match=r"^line 3: main: y: .*dim 0 is 2, not m, which is 3 for m=3"):
        run("y = match_cast[float32[m, m]](x)\nreturn y", X)
    with pytest.raises(InputError, match=r"main: y: .* has elements of float32, not of float64"):
        run("e = packed['id', Object](x)\ny = match_cast[float64[q, m]](e)\nreturn y", X, packed={"id": lambda x: x})


def test_a_guard_of_a_callee_names_both() -> None:
    functions = "def square(a: float32[p, p]):\n    return a\n"
    with pytest.raises(GuardError, match=r"main: y: square: argument 'a' has shape .2, 3.: dim 1 is 3, not p"):
        run("y = call[square](x)\nreturn y", X, functions=functions)


def test_the_innermost_binding_is_named_once() -> None:
    functions = "def f(a: float32[p, q]):\n    b = match_cast[float32[p, p]](a)\n    return b\n"
    with pytest.raises(GuardError, match=r"^line 2: f: b: the value of the match_cast"):
        run("y = call[f](x)\nreturn y", X, functions=functions)


def test_what_is_written_in_place_shows_in_the_value_only() -> None:
    lines = """
before = transpose(x, perm=(1, 0))
alias = x
o = packed["add_", float32[n, m], in_place[0]](x, x)
r = (before, alias, o)
return r
"""
    x = X.copy()
    before, alias, o = run(lines, x)
    np.testing.assert_array_equal(before, X.T)
    assert alias is x and o is x
    np.testing.assert_array_equal(x, 2 * X)


def test_functions_that_are_not_given() -> None:
    with pytest.raises(
        UnknownFunction, match=r"main: y: packed function 'f' is not given to run_module; given are .*g"
    ):
        run('y = packed["f", Object](x)\nreturn y', X, packed={"g": print})
    with pytest.raises(
        UnknownFunction, match=r"main: y: library function 'f' is not given to run_module; given are none"
    ):
        run('y = library["f", float32[n]](x)\nreturn y', X)


def test_a_shape_function_gives_a_shape() -> None:
    with pytest.raises(GuardError, match=r"has shape \[1, 2\] of rank 2, not 1"):
        run('s = shape_function["f", 1](x)\nreturn s', X, packed={"f": lambda x: [1, 2]})
    with pytest.raises(InputError, match="is no shape"):
        run('s = shape_function["f", 1](x)\nreturn s', X, packed={"f": lambda x: [1.5]})


class Copy:
    """A kernel of another kind, in destination-passing style."""

    kind = "copy"
    symbols = ("a", "b")
    output_types = (tensor("a", "b"),)

    def to_text(self) -> str:
        return ""

    def __call__(self, inputs: Any, sizes: Any, out: Any) -> None:
        assert sizes == {"a": 2, "b": 3}
        np.copyto(out[0], inputs[0])


class Silent:
    """A kernel that cannot run."""

    kind, symbols, output_types = "silent", ("a", "b"), Copy.output_types

    def to_text(self) -> str:
        return ""


def test_kernels_in_destination_passing_style() -> None:
    x = Var("x", tensor("n", "m"))
    call = KernelCall("k", (x,), (tensor("n", "m"),), (symbol("n"), symbol("m")))
    b = Binding(Var("y", tensor("n", "m")), call)
    main = Function("main", (x,), (Block((b,)),), b.var)
    y = run_module(Module({"main": main}, {"k": Copy()}), [X])
    assert y is not X and np.array_equal(y, X)
    with pytest.raises(GraphError, match=r"main: y: kernel k of kind silent cannot be run here"):
        run_module(Module({"main": main}, {"k": Silent()}), [X])


def test_wide_computes_in_float64() -> None:
    lines = "s = sum(x, axes=(0, 1))\nh = cast(s, dtype='float16')\nc = add(h, float16[1](0.1))\nreturn c"
    x = np.full((1, 3), 1 / 3, np.float32)
    assert run(lines, x).dtype == np.float16
    wide = run(lines, x, wide=True)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, [3 * float(np.float32(1 / 3)) + float(np.float16(0.1))], rtol=1e-15)


def test_a_wrong_annotation_is_found() -> None:
    x = Var("x", tensor("n", "m"))
    call = KernelCall("k", (x,), (tensor("n", "m"),), (symbol("n"), symbol("m")))
    wrong = Binding(Var("y", tensor("n")), call)
    with pytest.raises(
        GraphError, match=r"its value has shape \[2, 3\] of rank 2.*the annotation float32\[n\] is wrong"
    ):
        run_module(Module({"main": Function("main", (x,), (Block((wrong,)),), wrong.var)}, {"k": Copy()}), [X])


def test_kernels_compute_in_their_own_types() -> None:
    """Even where all around them is computed in float64."""
    x = Var("x", tensor("n", "m"))
    call = KernelCall("k", (x,), (tensor("n", "m"),), (symbol("n"), symbol("m")))
    b = Binding(Var("y", tensor("n", "m")), call)
    module = Module({"main": Function("main", (x,), (Block((b,)),), b.var)}, {"k": Copy()})
    x64 = X.astype(np.float64) + 1 / 3
    y = run_module(module, [x64], wide=True)
    assert y.dtype == np.float64 and np.array_equal(y, x64.astype(np.float32))
