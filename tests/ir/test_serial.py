"""Programs as JSON: exact round trips, and strict refusal of anything else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import FormatError
from mirage.ir.program import Program
from mirage.ir.serial import program_from_json, program_to_json
from tests.ir.cases import CASES, Case, case_program, programs


@given(programs())
def test_round_trip(p: Program) -> None:
    assert program_from_json(json.loads(json.dumps(program_to_json(p)))) == p


@pytest.mark.parametrize("case", CASES, ids=str)
def test_round_trip_of_every_operator(case: Case) -> None:
    p = case_program(case)
    assert program_from_json(json.loads(json.dumps(program_to_json(p)))) == p


def example() -> dict[str, Any]:
    def f(x: Any, w: Any) -> Any:
        return mi.maximum((x @ w).sum(axis=-1), 0.1).reshape("b", 1)

    return program_to_json(mi.trace(f, x=mi.tensor("b", 64), w=mi.tensor(64, "4*n")))


def test_the_object() -> None:
    obj = example()
    assert obj["schema"] == 1
    assert obj["nodes"][1] == {"op": "input", "name": "w", "dtype": "float32", "shape": ["64", "4*n"]}
    assert obj["nodes"][3] == {
        "op": "sum",
        "inputs": [2],
        "attrs": {"axes": [-1], "keepdims": False},
        "dtype": "float32",
        "shape": ["b"],
    }
    assert obj["nodes"][4]["attrs"] == {"value": "3602879701896397/36028797018963968"}
    assert obj["nodes"][5]["attrs"] == {"shape": ["b", "1"]}
    assert obj["outputs"] == [5]


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(obj: Any) -> None:
        for key in path[:-1]:
            obj = obj[key]
        obj[path[-1]] = value

    return damage


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def damage(obj: Any) -> None:
        for key in path[:-1]:
            obj = obj[key]
        del obj[path[-1]]

    return damage


BAD: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (put("schema", value=2), "program.schema: expected 1"),
    (drop("schema"), "program.schema: expected 1"),
    (put("name", value="a b"), "'a b' is not an identifier"),
    (put("name", value=3), "name: expected a JSON string, found 3"),
    (drop("outputs"), "program.outputs: is missing"),
    (put("extra", value=0), "program.extra: is unknown"),
    (put("nodes", value={}), "nodes: expected a JSON array"),
    (put("nodes", 1, value=None), "nodes[1]: expected a JSON object"),
    (put("nodes", 1, "name", value="x"), "'x' is declared twice"),
    (put("nodes", 1, "dtype", value="int8"), "'int8' is not supported"),
    (put("nodes", 1, "dtype", value=[]), "nodes[1].dtype: expected a JSON string"),
    (put("nodes", 1, "shape", 0, value=64), "nodes[1].shape[0]: expected a JSON string"),
    (put("nodes", 1, "shape", 0, value="n/"), "nodes[1].shape[0]: "),
    (drop("nodes", 1, "name"), "nodes[1].name: is missing"),
    (put("nodes", 1, "where", value="f.py"), "nodes[1].where: is unknown"),
    (put("nodes", 2, "op", value="matmull"), "nodes[2].op: operator 'matmull' is not registered"),
    (put("nodes", 2, "op", value=7), "nodes[2].op: expected a JSON string"),
    (
        put("nodes", 2, "inputs", value=[0, 2]),
        "nodes[2].inputs: expected the index of an earlier node, 0 to 1",
    ),
    (put("nodes", 2, "inputs", value=[0, -1]), "nodes[2].inputs: expected the index"),
    (put("nodes", 2, "inputs", value=[0, True]), "nodes[2].inputs: expected a JSON integer"),
    (put("nodes", 2, "inputs", value=[0]), "matmul: takes 2 operands, got 1"),
    (put("nodes", 2, "inputs", value=[0, 0]), "nodes[2]: matmul: shapes"),
    (
        put("nodes", 2, "shape", 1, value="5*n"),
        "float32[b, 5*n] is recorded, but matmul computes float32[b, 4*n]",
    ),
    (put("nodes", 2, "dtype", value="float64"), "float64[b, 4*n] is recorded"),
    (put("nodes", 3, "attrs", "axes", value=1), "nodes[3].attrs.axes: expected a JSON array"),
    (put("nodes", 3, "attrs", "axes", value=[1.0]), "nodes[3].attrs.axes: expected a JSON integer"),
    (put("nodes", 3, "attrs", "keepdims", value=0), "nodes[3].attrs.keepdims: expected a JSON boolean"),
    (put("nodes", 3, "attrs", "keep", value=False), "nodes[3].attrs: sum has no attribute 'keep'"),
    (drop("nodes", 3, "attrs", "axes"), "nodes[3]: sum: attribute 'axes' is missing"),
    (put("nodes", 4, "attrs", "value", value=0.1), "nodes[4].attrs.value: expected a JSON string"),
    (put("nodes", 4, "attrs", "value", value="1/0"), "nodes[4].attrs.value: expected a number"),
    (put("nodes", 4, "attrs", "value", value="1e99999999"), "nodes[4].attrs.value: expected a number"),
    (put("nodes", 4, "attrs", "value", value="9" * 400), "expected a finite number"),
    (put("nodes", 5, "attrs", "shape", value=["b", "x()"]), "nodes[5].attrs.shape: "),
    (put("outputs", value=[]), "returns nothing"),
    (put("outputs", value=[6]), "outputs[0]: expected the index of an earlier node, 0 to 5"),
    (put("outputs", value=[4]), "every other node must be used"),
    (lambda o: o["nodes"].append(copy.deepcopy(o["nodes"][3])), "nodes[6]: repeats an earlier node"),
]


@pytest.mark.parametrize(("damage", "message"), BAD, ids=[m for _, m in BAD])
def test_format_errors_name_the_field(damage: Callable[[dict[str, Any]], None], message: str) -> None:
    obj = example()
    damage(obj)
    with pytest.raises(FormatError) as e:
        program_from_json(obj)
    assert message in str(e.value)


@pytest.mark.parametrize("obj", [None, [], "text", 1, {}])
def test_what_is_not_a_program(obj: object) -> None:
    with pytest.raises(FormatError, match="program"):
        program_from_json(obj)


_JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=4), st.just([]), st.just({})
)


@given(st.data())
def test_damaged_objects_never_raise_anything_else(data: st.DataObject) -> None:
    """One value anywhere replaced by another: the object is refused, or it is another valid program."""
    obj: Any = example()
    place: Any = obj
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not place[key] or not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_JSON)
    try:
        p = program_from_json(obj)
    except FormatError:
        return
    assert program_from_json(program_to_json(p)) == p
