"""MuGraphs are read as they were stored; whatever else is read is refused with an error of the package."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.errors import FormatError, GraphError, MirageError
from mirage.ir.codec import MAX_ITEMS, decode, encode
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.validate import validate
from tests.mugraph.graphs import CASES, flash_attention, flash_decoding, gated, joined

JSON = {name: json.dumps(encode(f().graph)) for name, f in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    graph = CASES[name]().graph
    back = decode(MuGraph, json.loads(JSON[name]), "muGraph")
    assert back == graph
    assert list(back.axes) == list(graph.axes)
    assert json.dumps(encode(back)) == JSON[name]
    # a store may sort the keys
    assert decode(MuGraph, json.loads(json.dumps(json.loads(JSON[name]), sort_keys=True)), "muGraph") == graph


def test_maps_are_those_of_the_paper() -> None:
    kernel = flash_decoding().graph.kernel.nodes[3]
    first = kernel.graph
    assert first is not None
    assert first.grid == ("b", "h", "s", "t") and first.loop == ("t",)
    assert first.imap(0) == {"b": 0, "h": 1, "s": 2, "t": None} and first.fmap(0) == {"t": None}
    assert first.imap(1) == {"b": 0, "h": 1, "s": None, "t": 2} and first.fmap(1) == {"t": 2}
    assert [first.omap(k, d) for k, d in enumerate(kernel.dims)] == [{"b": 1, "h": 2, "s": 4, "t": 0}] * 2
    assert first.fmap(8) == {"t": None}
    below = joined().graph.kernel.nodes[2].graph
    assert below is not None and below.fmap(3) == {"k": 1}


def block(obj: Any) -> Any:
    return obj["kernel"]["nodes"][3]["graph"]


def put(value: Any, *path: Any) -> Callable[[Any], None]:
    def change(obj: Any) -> None:
        for key in path[:-1]:
            obj = obj[key]
        obj[path[-1]] = value

    return change


BODY = ("kernel", "nodes", 3, "graph")
REFUSED: dict[str, tuple[Callable[[Any], None], str]] = {
    "a missing field": (lambda o: o.pop("dtype"), "muGraph: expected an object of name, axes, .* dtype"),
    "an unknown field": (put(0, "kernel", "nodes", 0, "note"), r"nodes\[0\]: expected an object of op, .* found .*note"),
    "a wrong type": (put({}, "kernel", "nodes"), "muGraph.kernel.nodes: expected an array"),
    "a bool as index": (put({"node": True}, "kernel", "outputs", 0), r"outputs\[0\].node: expected an integer, found True"),
    "a negative index": (put({"node": -1}, "kernel", "outputs", 0), r"outputs\[0\].node: expected a number of 0 to"),
    "an axis twice": (lambda o: o["axes"].append(o["axes"][0]), "axes: expected each name once"),
    "a dim that is no dim": (put("b()", "axes", 0, 1), r"axes\[0\]\[1\]: .*cannot read"),
    "a long text": (put("x" * 300, "name"), "at most 256 printable"),
    "a control character": (put("a\nb", "name"), "at most 256 printable"),
    "too many items": (put([["b"]] * (MAX_ITEMS + 1), "inputs", 0, "dims"), "at most 1024 items"),
    "too many axes": (put([[f"a{k}", "b"] for k in range(MAX_ITEMS + 1)], "axes"), "at most 1024 items"),
    "an unknown role": (put("both", *BODY, "roles", 0, 1), "one of parallel, whole, loop, split"),
    "an unknown operator": (put("exq", *BODY, "nodes", 6, "op"), "'exq' is not registered"),
    "an unknown attribute": (put([["value", {"number": "1"}], ["x", 1]], *BODY, "nodes", 4, "attrs"), "'x'"),
    "a number that is none": (put([["value", {"number": "1e9999999"}]], *BODY, "nodes", 4, "attrs"), "expected a number"),
    "a quotient by 0": (put([["value", {"number": "1/0"}]], *BODY, "nodes", 4, "attrs"), "expected a number"),
    "attributes of a matmul": (put([["axes", 1]], *BODY, "nodes", 3, "attrs"), "axes"),
    "an index that is a text": (put([["index", "0"]], *BODY, "nodes", 0, "attrs"), "reads input '0'"),
    "no dims": (put([], *BODY, "nodes", 6, "dims"), "dims for 0 outputs"),
    "another level": (put("thread", *BODY, "level"), "a kernel graph holds block graphs"),
    "a pair of three": (put(["b", "parallel", 0], *BODY, "roles", 0), "expected an array of 2"),
    "another role": (put("loop", *BODY, "roles", 0, 1), "muGraph"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    change, message = REFUSED[what]
    obj = json.loads(JSON["flash_attention"])
    decode(MuGraph, obj, "muGraph")
    change(obj)
    with pytest.raises((FormatError, GraphError), match=message):
        decode(MuGraph, obj, "muGraph")


def test_a_graph_that_breaks_a_rule_is_refused() -> None:
    obj = encode(flash_attention().graph)
    block(obj)["nodes"][6]["op"] = "sqrt"
    decode(MuGraph, obj, "muGraph")  # another function, but a valid graph
    block(obj)["outputs"] = [{"node": 9}]
    with pytest.raises(GraphError, match="changes with the loop over t"):
        decode(MuGraph, obj, "muGraph")


def test_graphs_nest_three_levels_deep_only() -> None:
    obj = encode(gated().graph)
    thread = obj["kernel"]["nodes"][3]["graph"]["nodes"][7]["graph"]
    below = copy.deepcopy(thread)
    thread["nodes"].append({"op": "graph", "operands": [{"node": 0}], "dims": [[]], "graph": below})
    with pytest.raises(GraphError, match="a thread graph is the lowest level"):
        decode(MuGraph, obj, "muGraph")


SCRAPS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.floats(),
    st.sampled_from(
        ("b", "t", "t.grid", "x", "sum", "exp", "input", "graph", "concat", "reshape", "split", "loop")
    ),
    st.sampled_from(
        ("", "n//0", "2**8", "1/0", "(((9**8)**8)**8)**8", "((n+m)**8)**8", "\0", "é", "a b", "thread")
    ),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [0, 0]),
    st.builds(lambda: [["b"]]),
)


def places(obj: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = (
        list(obj.items()) if isinstance(obj, dict) else list(enumerate(obj)) if isinstance(obj, list) else []
    )
    for key, value in items:
        found.append((obj, key))
        found.extend(places(value))
    return found


@settings(max_examples=6 * settings().max_examples)
@given(st.data())
def test_mutations_raise_only_errors_of_the_package(data: st.DataObject) -> None:
    obj = json.loads(JSON[data.draw(st.sampled_from(sorted(JSON)))])
    for _ in range(data.draw(st.integers(1, 3))):
        where = places(obj)
        container, key = where[data.draw(st.integers(0, len(where) - 1))]
        match data.draw(st.sampled_from(["replace", "copy", "delete", "repeat"])):
            case "replace":
                container[key] = data.draw(SCRAPS)
            case "copy":
                other, from_key = where[data.draw(st.integers(0, len(where) - 1))]
                container[key] = copy.deepcopy(other[from_key])
            case "delete":
                del container[key]
            case "repeat" if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
    try:
        graph = decode(MuGraph, obj, "muGraph")
    except MirageError:
        return
    # What is read is valid and written as it was read.
    validate(graph)
    assert decode(MuGraph, encode(graph), "muGraph") == graph


@given(
    st.recursive(
        SCRAPS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
    )
)
def test_foreign_json_is_a_format_error(obj: Any) -> None:
    with pytest.raises(FormatError):
        decode(MuGraph, obj, "muGraph")
