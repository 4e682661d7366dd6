"""Inputs that read what operators make of an argument by moving its elements: views, zeros around them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import mirage as mi
from mirage.errors import AxisError, MirageError, ShapeError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisInput, read_arguments, to_axes
from mirage.ir.canonical import canonical_key
from mirage.ir.codec import decode, encode
from mirage.ir.dims import symbol
from mirage.ir.interpret import run_reference
from mirage.ir.moves import Move, map_moves, moved, moved_in, moved_strides, moved_type, moves_text
from mirage.ir.program import Program
from mirage.ir.types import TensorType
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.parse import parse_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.rename import rename_mugraph
from mirage.mugraph.schedule import Schedule
from mirage.verify.field import FieldArithmetic, draw
from mirage.verify.primes import with_primes

PAD = Move("pad", (("low", (0, 1)), ("high", (0, symbol("n"))), ("value", Fraction(0))))
WINDOWS = Move("windows", (("kernel", (3,)), ("strides", (2,)), ("dilations", (1,))))
SLICE = Move("slice", (("axes", (1,)), ("starts", (0,)), ("stops", (symbol("n"),)), ("steps", (1,))))


def convolution(padding: int = 1, strides: int = 1, name: str = "h") -> Any:
    @mi.program(x=mi.tensor("b", 2, name, 4), w=mi.tensor(3, 2, 3, 3))
    def program(x: Any, w: Any) -> Any:
        return mi.relu(mi.convolution(x, w, strides=(strides, 1), padding=padding))

    return program.trace()


def test_windows_are_views() -> None:
    x = np.arange(14.0).reshape(2, 7)
    found = moved((WINDOWS,), x, {})
    assert np.shares_memory(found, x) and found.shape == (2, 3, 3)
    for r in range(3):
        assert (found[:, r] == x[:, r : r + 5 : 2]).all()


def test_zeros_are_put_around_a_copy() -> None:
    x = np.arange(1.0, 7).reshape(2, 3)
    found = moved((PAD, SLICE), x, {"n": 2})
    assert not np.shares_memory(found, x) and found.tolist() == [[0, 1], [0, 4]]


def test_strides_of_views() -> None:
    x = np.zeros((2, 7), np.float32)
    assert moved_strides((WINDOWS,), x.shape, x.strides, {}, (2, 3, 3)) == moved((WINDOWS,), x, {}).strides
    windows = moved((WINDOWS,), x[:, :5], {})
    assert moved_strides((SLICE, WINDOWS), x.shape, x.strides, {"n": 5}, windows.shape) == windows.strides
    assert moved_strides((PAD,), x.shape, x.strides, {"n": 1}, (2, 9)) is None
    # where strides lead is not looked at
    assert moved_strides((PAD, WINDOWS), x.shape, (1 << 45, 1 << 42), {"n": 1}, (2, 5, 3)) is None
    assert moved_strides((WINDOWS,), x.shape, (1 << 45, 1 << 42), {}, (2, 3, 3)) is not None
    behind = Move("slice", (("axes", (1,)), ("starts", (1,)), ("stops", (4,)), ("steps", (1,))))
    assert moved_strides((behind,), x.shape, x.strides, {}, (2, 3)) is None
    assert moved_strides((SLICE,), x.shape, x.strides, {"n": 8}, (2, 8)) is None, "more than there is"


def test_values_of_every_arithmetic() -> None:
    x = np.arange(14.0).reshape(2, 7)
    moves, sizes = (PAD, WINDOWS), {"n": 3}
    wanted = moved(moves, x, sizes)
    assert (moved_in(FloatArithmetic(sizes), moves, x) == wanted).all()

    def in_fields(residues: Any) -> None:
        rng, primes = np.random.default_rng(0), residues.primes
        ar = FieldArithmetic(sizes, primes, np.arange(1, 5), 0, residues=residues)
        value = draw((2, 7), 4, primes, rng, np)
        found = moved_in(ar, moves, value)
        assert found.q is not None and value.q is not None
        for test in range(4):
            assert (found.p[test] == moved(moves, value.p[test], sizes)).all()
            assert (found.q[test] == moved(moves, value.q[test], sizes)).all()

    with_primes("moves", in_fields)


def test_types_and_texts() -> None:
    x = TensorType((symbol("b"), symbol("m")), "float32")
    assert moved_type((SLICE,), x).shape == (symbol("b"), symbol("n"))
    text = ".slice(axes=(1,), starts=(0,), stops=(n,), steps=(1,)).windows(kernel=(3,), strides=(2,), dilations=(1,))"
    assert moves_text((SLICE, WINDOWS)) == text
    renamed = map_moves((SLICE,), lambda d: d.xreplace({symbol("n"): symbol("k")}))
    assert "stops=(k,)" in moves_text(renamed)


def test_a_convolution_is_a_product_of_windows() -> None:
    program = to_axes(convolution())
    (x, w, windows) = program.inputs
    assert (x.moved, w.moved, windows.argument) == ((), (), "x")
    assert [m.op for m in windows.moved] == ["pad", "windows"]
    assert [n.op for n in program.nodes if n.op != "input"] == ["matmul", "relu"]
    (product,) = (n for n in program.nodes if n.op == "matmul")
    assert len(product.reduce) == 3


def test_inputs_are_stored_and_read() -> None:
    for x in to_axes(convolution()).inputs:
        assert decode(AxisInput, encode(x), "input") == x


@pytest.mark.parametrize(
    "move",
    [
        Move("matmul", ()),
        Move("take", (("axis", 0),)),
        Move("windows", (("kernel", (0,)), ("strides", (1,)), ("dilations", (1,)))),
        Move("windows", (("kernel", (3,)),)),
        Move("nothing", ()),
    ],
    ids=["computes", "reads indices", "empty windows", "attributes missing", "unknown"],
)
def test_stored_moves_are_checked(move: Move) -> None:
    stored = encode(AxisInput("y", (("a",),), "x", (move,)))
    with pytest.raises(MirageError):
        decode(AxisInput, stored, "input")


def test_what_is_read_tells_programs_apart() -> None:
    keys = {canonical_key(to_axes(convolution(*how))).text for how in ((1, 1, "h"), (0, 1, "h"), (1, 1, "4*h"))}
    assert len(keys) == 3
    assert canonical_key(to_axes(convolution(1, 1, "h"))).text == canonical_key(to_axes(convolution(1, 1, "k"))).text


def test_graphs_are_renamed_with_what_they_read() -> None:
    mine, other = to_axes(convolution()), to_axes(convolution(name="k"))
    renaming = canonical_key(mine).renaming_to(canonical_key(other))
    assert rename_mugraph(reference_graph(mine), renaming, other) == reference_graph(other)


def test_text_of_graphs_is_read() -> None:
    graph = reference_graph(to_axes(convolution()))
    assert "x_2: x.pad(low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=0).windows(" in str(graph)
    assert parse_mugraph(str(graph)).inputs == graph.inputs


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (".windows(kernel=(3, 3)", ".matmul(kernel=(3, 3)", "no operator that only moves elements"),
        ("strides=(1, 1)", "strides=(0, 1)", "not all positive"),
        ("strides=(1, 1), dilations", "**{}, dilations", "attributes by name"),
        ("kernel=(3, 3)", "kernel=(2, 3)", "differ in size"),
        ("kernel=(3, 3)", "kernel=(3, 3, 3, 3, 3)", "windows"),
        ("x_2: x.pad", "x_2: float32.pad", "element type"),
    ],
)
def test_wrong_texts_are_refused(old: str, new: str, says: str) -> None:
    text = str(reference_graph(to_axes(convolution())))
    assert old in text
    with pytest.raises(MirageError, match=says):
        parse_mugraph(text.replace(old, new, 1))


def test_windows_of_what_is_computed_are_refused() -> None:
    @mi.program(x=mi.tensor("b", 2, "h", 4), w=mi.tensor(2, 2, 3, 3))
    def twice(x: Any, w: Any) -> Any:
        return mi.convolution(mi.relu(x), w, padding=1)

    with pytest.raises(AxisError, match=r"pad of what relu computes.*program of its own"):
        to_axes(twice.trace())


def by_axes(program: Program, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
    """The result of the form over named axes."""
    graph = reference_graph(to_axes(program))
    read = read_arguments(program.name, graph.inputs, list(arrays), lambda moves, a: moved(moves, a, sizes))
    (found,) = run_mugraph(graph, Schedule(()), read, FloatArithmetic(sizes))
    return np.asarray(found)


def pooled(op: str, stride: int) -> Any:
    @mi.program(x=mi.tensor("b", 2, "4*h + 1", 5), w=mi.tensor(3, 2, 2, 2), bias=mi.tensor(3, 1, 1))
    def layer(x: Any, w: Any, bias: Any) -> Any:
        y = mi.relu(mi.convolution(x, w) + bias)
        return mi.apply(op, y, kernel=(2, 2), strides=(stride, stride), dilations=(1, 1))

    return layer


@pytest.mark.parametrize(("op", "fold"), [("sum_pool", "sum"), ("max_pool", "max")])
def test_windows_of_what_is_computed_are_computed_of_windows(op: str, fold: str) -> None:
    program = pooled(op, 2).trace()
    axes = to_axes(program)
    assert [n.op for n in axes.nodes if n.op != "input"] == ["matmul", "add", "relu", fold]
    (windows,) = (x for x in axes.inputs if x.moved)
    assert [dict(m.attrs)["kernel"] for m in windows.moved] == [(2, 2), (2, 2)]
    sizes = {"b": 2, "h": 3}
    rng = np.random.default_rng(0)
    x, w, bias = arrays = [rng.standard_normal(t.bind(sizes)) for t in program.input_types]
    places = sliding_window_view(x, (2, 2), (2, 3))  # type: ignore[call-overload]
    layer = np.maximum(np.einsum("bchwrs,ocrs->bohw", places, w) + bias, 0)
    each = layer.reshape(2, 3, 6, 2, 2, 2)
    wanted = each.sum((3, 5)) if fold == "sum" else each.max((3, 5))
    np.testing.assert_allclose(by_axes(program, arrays, sizes), wanted)
    np.testing.assert_allclose(run_reference(program, arrays, sizes, "float64")[0], wanted)


def test_windows_of_one_element_are_the_places() -> None:
    @mi.program(x=mi.tensor("b", 2, "2*h", 4), w=mi.tensor(3, 2, 1, 1))
    def layer(x: Any, w: Any) -> Any:
        return mi.max_pool(mi.convolution(x, w), (2, 2))

    (windows,) = (x for x in to_axes(layer.trace()).inputs if x.moved)
    assert [dict(m.attrs)["kernel"] for m in windows.moved] == [(2, 2)]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 2, 6, 4)), rng.standard_normal((3, 2, 1, 1))
    wanted = np.einsum("bchw,oc->bohw", x, w[..., 0, 0]).reshape(2, 3, 3, 2, 2, 2).max((3, 5))
    np.testing.assert_allclose(by_axes(layer.trace(), [x, w], {"b": 2, "h": 3}), wanted)


def test_windows_that_overlap_are_of_arguments_only() -> None:
    with pytest.raises(AxisError, match=r"windows of what reshape computes.*program of its own"):
        to_axes(pooled("max_pool", 1).trace())


def test_windows_of_what_is_broadcast_along_one_of_their_dims_are_refused() -> None:
    @mi.program(x=mi.tensor("b", 4, 6), row=mi.tensor(6))
    def layer(x: Any, row: Any) -> Any:
        return mi.max_pool(x * row, (2, 2))

    with pytest.raises(AxisError, match=r"windows of what mul computes.*program of its own"):
        to_axes(layer.trace())


def test_windows_of_windows_of_numbers_and_rows() -> None:
    """What is the same for all places, of any rank, is so for all windows."""

    @mi.program(x=mi.tensor("b", 3, "2*h", 8), gain=mi.tensor(3, 1, 1), one=mi.tensor(1))
    def layer(x: Any, gain: Any, one: Any) -> Any:
        return mi.max_pool(mi.max_pool(mi.exp(x * gain) - one * 2, (1, 2)), (2, 2)) * 3

    axes = to_axes(layer.trace())
    assert [len(n.reduce) for n in axes.nodes if n.op == "max"] == [1, 2]
    x, gain = np.random.default_rng(0).standard_normal((2, 3, 4, 8)), np.array([[[1.0]], [[-1.0]], [[0.5]]])
    wanted = (np.exp(x * gain) - 2).reshape(2, 3, 2, 2, 2, 4).max((3, 5)) * 3
    np.testing.assert_allclose(by_axes(layer.trace(), [x, gain, np.ones(1)], {"b": 2, "h": 2}), wanted)


def test_other_values_around_are_refused() -> None:
    @mi.program(x=mi.tensor("b", "n"))
    def padded(x: Any) -> Any:
        return mi.exp(mi.pad(x, (0, 1), (0, 0), value=2))

    with pytest.raises(AxisError, match="zeros"):
        to_axes(padded.trace())


def test_windows_larger_than_the_dim_are_refused() -> None:
    with pytest.raises(ShapeError, match="no size fulfils"):

        @mi.program(x=mi.tensor("b", 2, 2, 4), w=mi.tensor(3, 2, 3, 3))
        def program(x: Any, w: Any) -> Any:
            return mi.convolution(x, w)

        program.trace()
