"""Reductions over joined dims, and reads that tell all loops by their digits."""

from __future__ import annotations

from itertools import product
from operator import add, floordiv, mod, mul, sub
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import mirage as mi
from mirage.ir.dims import evaluate, symbol
from mirage.ir.loops.analysis import one_to_one
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.program import LoopProgram, TensorExpr, single
from mirage.ir.loops.scalars import Binary, Const, Loop, Operand, Scalar, size
from mirage.ir.loops.simplify import simplify
from mirage.ir.loops.split import with_split_outputs, with_split_reductions
from mirage.ir.loops.traverse import walk
from mirage.ir.types import tensor

R, AT, J = Loop("r"), Loop("i"), Loop("j")
N, W = symbol("n"), symbol("w")


def reduced(index: tuple[Any, ...], x: Any, extent: Any, combiner: str = "sum", **dims: Any) -> LoopProgram:
    body = Operand("x0", x)[index]
    dtype = "int64" if combiner.startswith("arg") else "float32"
    stage = TensorExpr((sympy.Integer(2),), dtype, ("i",), body, (("r", sympy.sympify(extent)),), combiner)
    return single("reduced", [x], stage)


def written(rows: Any, columns: Any, index: tuple[Any, ...], x: Any) -> LoopProgram:
    shape = (sympy.sympify(rows), sympy.sympify(columns))
    return single("written", [x], TensorExpr(shape, "float32", ("i", "j"), Operand("x0", x)[index]))


#: name -> a reduction over r, and the extents of the loops that it is split into
CASES: dict[str, tuple[LoopProgram, list[Any]]] = {
    "channels of a group": (reduced((AT * 3 + R // 20, R // 5 % 4, R % 5), tensor(6, 4, 5), 60), [3, 4, 5]),
    "of any width": (
        reduced((AT, R // size(W), R % size(W)), tensor(2, "n", "w"), N * W, "max"), [N, W],
    ),
    "every second digit": (reduced((AT, R // 6), tensor(2, 4), 24), [4, 6]),
    "also as it is": (reduced((AT * 24 + R, R % 4), tensor(48, 4), 24), [6, 4]),
    "not joined": (reduced((AT, R), tensor(2, 7), 7), [7]),
    "digits that overlap": (reduced((AT, R // 4, R % 6), tensor(2, 6, 6), 24), [24]),
    "a part is left": (reduced((AT, R // 5, R % 5), tensor(2, 5, 5), 23), [23]),
    "the place of the largest": (reduced((AT, R // 5, R % 5), tensor(2, 4, 5), 20, "argmax"), [20]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_loop_per_digit(name: str) -> None:
    program, wanted = CASES[name]
    ((_, stage),) = program.stages
    split = with_split_reductions(stage)
    assert [d for _, d in split.reduce] == wanted and split.loops == stage.loops
    if len(wanted) > 1:
        assert not any(getattr(n, "op", "") in ("floordiv", "mod") for n in walk(split.body))
    sizes = {s: n for s, n in {"n": 3, "w": 4}.items() if s in program.symbols}
    x = np.random.default_rng(0).standard_normal([evaluate(d, sizes) for d in program.input_types[0].shape]).astype(np.float32)
    (before,) = run_loops(program, [x], sizes)
    (after,) = run_loops(single("split", program.input_types, split), [x], sizes)
    np.testing.assert_array_equal(before, after)


#: name -> what is written at (i, j), and the shape that it is written in
OUTPUTS: dict[str, tuple[LoopProgram, list[Any]]] = {
    "patches": (written(N, 24, (J // 8, AT * 8 + J % 8), tensor(3, "8*n")), [N, 3, 8]),
    "of two dims": (written(6 * N, 16, (AT % size(N), AT // size(N), J), tensor("n", 6, 16)), [6, N, 16]),
    "interleaved": (written(N, 32, (AT, J % 2, J // 2), tensor("n", 2, 16)), [N, 16, 2]),
    "few interleaved": (written(N, 8, (AT, J % 2, J // 2), tensor("n", 2, 4)), [N, 8]),
    "six interleaved": (written(N, 60, (AT, J % 6, J // 6), tensor("n", 6, 10)), [N, 60]),
    "no digits": (written(N, 8, (AT, J), tensor("n", 8)), [N, 8]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_has_a_loop_per_digit(name: str) -> None:
    program, wanted = OUTPUTS[name]
    ((_, split),) = with_split_outputs(program).stages
    assert list(split.shape) == wanted
    shape = [evaluate(d, {"n": 5}) for d in program.input_types[0].shape]
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (before,) = run_loops(program, [array], {"n": 5})
    (after,) = run_loops(single("split", program.input_types, split), [array], {"n": 5})
    np.testing.assert_array_equal(before, after.reshape(before.shape))


def digits(data: st.DataObject, loops: dict[str, int]) -> Scalar:
    """A sum of multiples of loops and their digits."""
    found: Scalar = size(0)
    for _ in range(data.draw(st.integers(1, 3))):
        atom: Scalar = Loop(data.draw(st.sampled_from(sorted(loops))))
        unit, count = data.draw(st.sampled_from([1, 2, 3, 4, 6])), data.draw(st.sampled_from([2, 3, 4, 100]))
        found = found + (atom // size(unit)) % size(count) * size(data.draw(st.sampled_from([1, 2, 3, 4, 6, 12])))
    return found


OPERATORS = {"add": add, "sub": sub, "mul": mul, "floordiv": floordiv, "mod": mod}


def value(x: Scalar, at: dict[str, int]) -> int:
    match x:
        case Loop(name=name):
            return at[name]
        case Binary(op=op, left=left, right=right):
            return OPERATORS[op](value(left, at), value(right, at))
    assert isinstance(x, Const)
    return int(x.value)


@given(data=st.data())
def test_what_tells_the_loops_apart_does(data: st.DataObject) -> None:
    loops = {"a": data.draw(st.sampled_from([1, 4, 6, 12])), "b": data.draw(st.sampled_from([1, 2, 6]))}
    extents = {n: sympy.Integer(d) for n, d in loops.items()}
    index = tuple(simplify(digits(data, loops), extents) for _ in range(data.draw(st.integers(1, 3))))
    places = [dict(zip(loops, at, strict=True)) for at in product(*map(range, loops.values()))]
    read = {tuple(value(i, at) for i in index) for at in places}
    if one_to_one(index, extents):
        assert len(read) == len(places)


@pytest.mark.parametrize(
    ("index", "known"),
    [
        ((AT // 4, Loop("j") * 4 + AT % 4), True),
        ((AT // 4, Loop("j") * 3 + AT % 4), False),
        ((AT // 4, AT % 2, Loop("j")), False),
        ((AT // 4, AT // 2 % 2, AT % 2, Loop("j")), True),
        ((AT * 5 + Loop("j"),), True),
        ((AT * 4 + Loop("j"),), False),
    ],
    ids=str,
)
def test_digits_that_tell_a_loop(index: tuple[Scalar, ...], known: bool) -> None:
    assert one_to_one(index, {"i": sympy.Integer(8), "j": sympy.Integer(5)}) is known


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization_reads_its_input_where_it_stands(groups: int) -> None:
    def f(x: Any) -> Any:
        b, c, h, w = x.shape
        rows = x.reshape((b, groups, c // groups * h * w))
        mean = mi.mean(rows, axis=2, keepdims=True)
        y = (rows - mean) * mi.rsqrt(mi.mean(mi.square(rows - mean), axis=2, keepdims=True) + 1e-5)
        return mi.silu(y.reshape((b, c, h, w)))

    run = mi.compile(f, {"x": mi.tensor("b", 6, 5, 7)}, without=("superoptimize",), cache=False)
    loops = "\n".join(k.to_text() for k in run.kernels.values())
    assert "%" not in loops
    for b in (1, 3, 0):
        x = np.random.default_rng(b).standard_normal((b, 6, 5, 7)).astype(np.float32)
        rows = x.astype(np.float64).reshape(b, groups, 210 // groups)
        y = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
        y = y.reshape(x.shape)
        np.testing.assert_allclose(run(x), y / (1 + np.exp(-y)), rtol=1e-4, atol=1e-5)
