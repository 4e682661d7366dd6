"""MuGraphs with several inputs that read one argument: their rules, JSON, text, drawing and renaming."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mirage.errors import FormatError, GraphError
from mirage.ir.axes import AxisInput, to_axes
from mirage.ir.canonical import canonical_key
from mirage.ir.codec import decode, encode
from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.parse import parse_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.rename import rename_mugraph
from mirage.mugraph.validate import validate
from tests.ir.programs import rewritten
from tests.shared import SHARED, shared


def graph(name: str) -> MuGraph:
    return reference_graph(to_axes(shared(name)))


def with_argument(g: MuGraph, k: int, argument: str) -> MuGraph:
    inputs = [replace(x, argument=argument) if i == k else x for i, x in enumerate(g.inputs)]
    return replace(g, inputs=tuple(inputs))


@pytest.mark.parametrize("name", SHARED)
def test_json_keeps_arguments(name: str) -> None:
    g = graph(name)
    assert decode(MuGraph, encode(g), "muGraph") == g


def test_json_names_the_argument() -> None:
    obj = encode(graph("gram"))
    assert obj["inputs"] == [
        {"name": "x", "dims": [["m"], ["k"]], "argument": "x"},
        {"name": "x_2", "dims": [["m_2"], ["k"]], "argument": "x"},
    ]
    obj["inputs"][1]["argument"] = 3
    with pytest.raises(FormatError, match=r"inputs\[1\].argument: expected a text"):
        decode(MuGraph, obj, "muGraph")


def test_an_argument_is_the_inputs_own_name_unless_given() -> None:
    assert AxisInput("x", ()) == AxisInput("x", (), "x") != AxisInput("x", (), "y")


def test_inputs_of_one_argument_have_one_shape() -> None:
    validate(graph("two factorizations"))
    g = graph("rows and columns")
    message = r"inputs x and y read the argument x as \[m, k\] and \[m, m_2\], which differ in size"
    with pytest.raises(GraphError, match=message):
        validate(with_argument(g, 1, "x"))


def test_text_and_drawing_name_what_is_read_again() -> None:
    g = graph("gram")
    assert str(g).startswith("def gram(x: float32[m, k], x_2: x[m_2, k], *, m=m, m_2=m, k=k) -> ")
    assert parse_mugraph(str(g)).inputs == g.inputs
    assert "x_2 (= x)" in to_svg(g)
    apart = with_argument(g, 1, "x_2")
    assert "x_2: float32[m_2, k]" in str(apart) and "(=" not in to_svg(apart)


def test_renaming_keeps_which_inputs_read_one_argument() -> None:
    p = to_axes(shared("gram squared"))
    other, _ = rewritten(p, Random(1))
    renaming = canonical_key(p).renaming_to(canonical_key(other))
    renamed = rename_mugraph(reference_graph(p), renaming, other)
    validate(renamed)
    assert renamed.inputs == other.inputs
    apart = replace(other, inputs=tuple(replace(x, argument=x.name) for x in other.inputs))
    with pytest.raises(GraphError, match="its axes, inputs or outputs are not those of program other"):
        rename_mugraph(reference_graph(p), renaming, apart)
