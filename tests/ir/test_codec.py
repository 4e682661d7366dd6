"""Values as JSON: exact round trips, and strict refusal of anything else, which names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import FormatError
from mirage.ir.codec import IN_ORDER, Form, Index, Json, above_zero, decode, encode, few, one_of, read_json
from mirage.ir.dims import Dim, to_dim
from mirage.ir.program import Program
from tests.ir.cases import CASES, Case, case_program, programs


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    """A branch's end."""

    size: Dim


@dataclass(frozen=True)
class Branch:
    below: Branch | Leaf
    above: Branch | Leaf | None = None


@dataclass(frozen=True)
class Shape:
    name: str


@dataclass(frozen=True)
class Square(Shape):
    side: float


@dataclass(frozen=True)
class Circle(Shape):
    radius: float


@dataclass(frozen=True)
class Everything:
    """One field of every type."""

    count: Index
    ratio: Annotated[float, above_zero]
    dim: Dim
    number: Fraction
    colour: Colour
    kind: Literal["a", "b"]
    word: Annotated[str, one_of("x", "y")]
    pair: tuple[int, str]
    many: Annotated[tuple[int, ...], few]
    sizes: Mapping[str, int]
    order: Annotated[Mapping[str, Dim], IN_ORDER]
    tree: Branch | Leaf
    shapes: tuple[Shape, ...]
    value: Any
    raw: Json
    flag: bool = False
    listed: list[float] = field(default_factory=list)
    other: int | str | None = None


def example() -> Everything:
    value = (None, True, 3, 0.5, "text", to_dim("4*n"), Fraction(1, 3), (-1, (to_dim(2),)), math.inf)
    tree = Branch(Leaf(to_dim("n")), Branch(Leaf(to_dim(3))))
    order = {"z": to_dim("n"), "a": to_dim("min(n, 4)")}
    shapes = (Square("s", 2.0), Circle("c", math.inf))
    return Everything(
        3, 0.1, to_dim("n // 2"), Fraction(-7, 3), Colour.BLUE, "b", "y", (1, "one"), (1, 2), {"b": 4}, order, tree, shapes,
        value, Json({"any": [1]}), True, [-math.inf, 1.0], "text",
    )  # fmt: skip


def test_every_type_reads_back() -> None:
    data = encode(example())
    back = decode(Everything, json.loads(json.dumps(data, allow_nan=False)), "it")
    assert back == example() and list(back.order) == ["z", "a"]
    # a store may sort the keys
    sorted_ = decode(Everything, json.loads(json.dumps(data, sort_keys=True)), "it")
    assert sorted_ == example() and list(sorted_.order) == ["z", "a"]


def test_what_is_written() -> None:
    data = encode(example())
    n, three = ({"is": "Leaf", "size": d} for d in ("n", "3"))
    assert data["tree"] == {"is": "Branch", "below": n, "above": {"is": "Branch", "below": three}}
    assert data["shapes"] == [{"is": "Square", "name": "s", "side": 2.0}, {"is": "Circle", "name": "c", "radius": "inf"}]
    assert data["order"] == [["z", "n"], ["a", "min(n, 4)"]] and data["number"] == "-7/3"
    assert data["value"][5:8] == [{"dim": "4*n"}, {"number": "1/3"}, [-1, [{"dim": "2"}]]]
    assert "flag" not in encode(Everything(**{**vars(example()), "flag": False}))


@given(st.floats())
def test_floats_are_exact(x: float) -> None:
    back = decode(float, json.loads(json.dumps(encode(x), allow_nan=False)), "it")
    assert back == x or (math.isnan(back) and math.isnan(x))
    anything: Any = Any
    again: Any = decode(anything, json.loads(json.dumps(encode(x, Any), allow_nan=False)), "it")
    assert type(again) is float and (again == x or (math.isnan(again) and math.isnan(x)))


REFUSED: list[tuple[str, Any, str]] = [
    ("count", True, r"it\.count: expected an integer, found True"),
    ("count", -1, r"it\.count: expected a number of 0 to"),
    ("ratio", 0, r"it\.ratio: expected a positive number"),
    ("ratio", "nan", r"it\.ratio: expected a positive number"),
    ("ratio", 10**400, r"it\.ratio: expected a number"),
    ("dim", 4, r"it\.dim: expected a dim as text"),
    ("dim", "__import__('os')", r"it\.dim: "),
    ("number", "1/0", r"it\.number: expected a number such as"),
    ("number", "9" * 2000, r"it\.number: expected a number such as"),
    ("colour", "green", r"it\.colour: expected one of red, blue"),
    ("kind", "c", r"it\.kind: expected one of a, b"),
    ("word", "z", r"it\.word: expected one of x, y"),
    ("pair", [1], r"it\.pair: expected an array of 2, found an array of 1 items"),
    ("pair", [1, 1], r"it\.pair\[1\]: expected a text"),
    ("many", [0] * 1025, r"it\.many: expected at most 1024 items"),
    ("many", [0, None], r"it\.many\[1\]: expected an integer, found None"),
    ("sizes", {"b": 1.5}, r"it\.sizes\.'b': expected an integer"),
    ("order", [["a", "n"], ["a", "m"]], r"it\.order: expected each name once"),
    ("tree", {"is": "Stem"}, r'it\.tree: expected an object whose "is" is one of Branch, Leaf'),
    ("tree", {"is": "Branch", "below": {"is": "Leaf"}}, r"it\.tree\.below: expected an object of size"),
    ("tree", 3, r"it\.tree: expected"),
    ("shapes", [{"is": "Shape", "name": "x"}], r"it\.shapes\[0\]: expected"),
    ("value", {"object": "os"}, r"it\.value: expected a plain value, or an object of one of float, dim, number"),
    ("value", [{"dim": "n", "number": "1"}], r"it\.value\[0\]: expected a plain value"),
    ("value", {}, r"it\.value: expected a plain value"),
    ("other", 1.5, r"it\.other: expected"),
    ("more", 1, "it: expected an object of count"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=[f"{n} {str(v)[:20]}" for n, v, _ in REFUSED])
def test_what_does_not_fit_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(Everything, {**encode(example()), name: value}, "it")


def test_missing_fields_and_deep_nesting_are_refused() -> None:
    data = encode(example())
    del data["count"]
    with pytest.raises(FormatError, match=r"it: expected an object of count, .* of which .*count.* must be there"):
        decode(Everything, data, "it")
    deep: Any = {"is": "Leaf", "size": "n"}
    for _ in range(5000):
        deep = {"is": "Branch", "below": deep}
    with pytest.raises(FormatError, match="it: nested too deeply"):
        decode(Everything, {**encode(example()), "tree": deep}, "it")


def test_values_without_json_are_refused() -> None:
    with pytest.raises(FormatError, match="of type ndarray cannot be saved"):
        encode(Everything(**{**vars(example()), "value": np.zeros(1)}))
    with pytest.raises(FormatError, match="cannot be saved"):
        encode(object())


def test_documents_say_what_they_are() -> None:
    form = Form("some leaf", 2, "make it again")
    text = form.to_text(Leaf(to_dim("n")))
    assert text == '{"format":"some leaf","schema":2,"size":"n"}'
    assert form.from_text(Leaf, text) == Leaf(to_dim("n"))
    for old, new, message in (
        ('"schema":2', '"schema":1', "leaf: schema 1 is not 2; make it again"),
        ("some leaf", "a leaf", "leaf: not a some leaf; make it again"),
        ('"n"', "3", r"leaf\.size: expected a dim as text, found 3; make it again"),
        ("{", "", "leaf: not valid JSON .*; make it again"),
        ('"n"', "NaN", "leaf: not valid JSON .*NaN is not JSON"),
    ):
        with pytest.raises(FormatError, match=message):
            form.from_text(Leaf, text.replace(old, new))


def test_files_that_are_no_json(tmp_path: Any) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match=r"x\.json: not valid JSON"):
        read_json(tmp_path / "x.json")


@given(programs())
def test_programs_are_their_text(p: Program) -> None:
    assert decode(Program, json.loads(json.dumps(encode(p))), "program") == p


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_of_every_operator(case: Case) -> None:
    p = case_program(case)
    assert decode(Program, json.loads(json.dumps(encode(p))), "program") == p


@pytest.mark.parametrize("data", [3, None, "", "import os", "def f(x: float32[n]) -> float32[m]:\n    return x\n"])
def test_other_programs_are_refused(data: Any) -> None:
    with pytest.raises(FormatError, match="program: "):
        decode(Program, data, "program")
