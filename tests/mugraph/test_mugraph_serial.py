"""MuGraphs survive JSON; whatever else is read is refused with an error of the package."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.errors import FormatError, GraphError, MirageError
from mirage.mugraph.serial import MAX_ITEMS, mugraph_from_json, mugraph_to_json
from mirage.mugraph.validate import validate
from tests.mugraph.graphs import CASES, flash_attention, flash_decoding, gated, joined

JSON = {name: json.dumps(mugraph_to_json(f().graph)) for name, f in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    graph = CASES[name]().graph
    back = mugraph_from_json(json.loads(JSON[name]))
    assert back == graph
    assert list(back.axes) == list(graph.axes)
    assert json.dumps(mugraph_to_json(back)) == JSON[name]
    # a store may sort the keys
    assert mugraph_from_json(json.loads(json.dumps(json.loads(JSON[name]), sort_keys=True))) == graph


def test_maps_are_written_as_in_the_paper() -> None:
    obj = mugraph_to_json(flash_decoding().graph)
    first = obj["kernel"]["nodes"][3]
    assert first["graph"]["grid"] == ["b", "h", "s", "t"]
    assert first["graph"]["loop"] == ["t"]
    q, k = first["graph"]["nodes"][:2]
    assert q["imap"] == {"b": 0, "h": 1, "s": 2, "t": None} and q["fmap"] == {"t": None}
    assert k["imap"] == {"b": 0, "h": 1, "s": None, "t": 2} and k["fmap"] == {"t": 2}
    assert first["omap"] == [{"b": 1, "h": 2, "s": 4, "t": 0}] * 2
    assert first["graph"]["nodes"][8]["fmap"] == {"t": None}
    assert mugraph_to_json(joined().graph)["kernel"]["nodes"][2]["graph"]["nodes"][3]["fmap"] == {"k": 1}


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
    "another schema": (put("mirage.program", "schema"), "expected schema 'mirage.mugraph', version 1"),
    "a newer version": (put(2, "version"), "version 1"),
    "a missing field": (lambda o: o.pop("dtype"), "muGraph.dtype: is missing"),
    "an unknown field": (put(0, "kernel", "nodes", 0, "note"), "has the unknown field 'note'"),
    "a wrong type": (put({}, "kernel", "nodes"), "kernel.nodes: expected a JSON array"),
    "a bool as index": (put(True, "kernel", "outputs", 0, 0), "expected an index of 0 or more"),
    "a negative index": (put(-1, "kernel", "outputs", 0, 0), "expected an index of 0 or more"),
    "an axis twice": (lambda o: o["axes"].append(o["axes"][0]), "each axis once"),
    "a dim that is no dim": (put("b()", "axes", 0, 1), r"axes\[0\]: .*cannot read"),
    "a long text": (put("x" * 300, "name"), "at most 256 printable"),
    "a control character": (put("a\nb", "name"), "at most 256 printable"),
    "too many items": (put([["b"]] * (MAX_ITEMS + 1), "inputs", 0, "dims"), "at most 1024 are read"),
    "an unknown role": (put("both", *BODY, "roles", 0, 1), "one of parallel, whole, loop, split"),
    "an unknown operator": (put("exq", *BODY, "nodes", 6, "op"), "'exq' is not registered"),
    "an unknown attribute": (put({"value": "1", "x": 1}, *BODY, "nodes", 4, "attrs"), "unknown field 'x'"),
    "a number that is none": (
        put({"value": "1e9999999"}, *BODY, "nodes", 4, "attrs"),
        "value: expected a number",
    ),
    "attributes of a matmul": (put({"axes": [1]}, *BODY, "nodes", 3, "attrs"), "unknown field 'axes'"),
    "an index that is a text": (
        put({"index": "0"}, *BODY, "nodes", 0, "attrs"),
        "index: expected a JSON integer",
    ),
    "no dims": (put([], *BODY, "nodes", 6, "dims"), "dims: expected the dims of at least one output"),
    "another level": (put("thread", *BODY, "level"), "level: expected 'block'"),
    "a pair of three": (put([0, 0, 0], *BODY, "outputs", 0), "expected a pair"),
    "another grid": (
        put(["b", "h"], *BODY, "grid"),
        r"graph.grid: expected \['b', 'h', 's'\], which follows from the roles",
    ),
    "another loop": (put([], *BODY, "loop"), "graph.loop: expected"),
    "another imap": (put(None, *BODY, "nodes", 0, "imap", "b"), r"nodes\[0\].imap: expected .*'b': 0"),
    "a bool in an imap": (put(False, *BODY, "nodes", 0, "imap", "b"), r"nodes\[0\].imap: expected .*'b': 0"),
    "another fmap": (put(0, *BODY, "nodes", 8, "fmap", "t"), r"nodes\[8\].fmap: expected"),
    "a missing fmap": (lambda o: block(o)["nodes"][0].pop("fmap"), r"fmap: expected .* found None"),
    "another omap": (put(1, "kernel", "nodes", 3, "omap", 0, "b"), r"nodes\[3\].omap: expected"),
    "a map where there is none": (put({}, *BODY, "nodes", 6, "fmap"), "is unknown for operator exp"),
    "an imap in the kernel graph": (put({}, "kernel", "nodes", 0, "imap"), "imap: is unknown here"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    change, message = REFUSED[what]
    obj = json.loads(JSON["flash_attention"])
    mugraph_from_json(obj)
    change(obj)
    with pytest.raises(FormatError, match=message):
        mugraph_from_json(obj)


def test_a_graph_that_breaks_a_rule_is_refused() -> None:
    obj = mugraph_to_json(flash_attention().graph)
    block(obj)["nodes"][6]["op"] = "sqrt"
    mugraph_from_json(obj)  # another function, but a valid graph
    block(obj)["outputs"] = [[9, 0]]
    with pytest.raises(GraphError, match="changes with the loop over t"):
        mugraph_from_json(obj)


def test_graphs_nest_three_levels_deep_only() -> None:
    obj = mugraph_to_json(gated().graph)
    thread = obj["kernel"]["nodes"][3]["graph"]["nodes"][7]["graph"]
    thread["nodes"].append({"op": "graph", "operands": [], "dims": [[]], "graph": thread})
    with pytest.raises(FormatError, match="there are three levels"):
        mugraph_from_json(obj)


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


@settings(max_examples=600)
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
        graph = mugraph_from_json(obj)
    except MirageError:
        return
    # What is read is valid and written as it was read.
    validate(graph)
    assert mugraph_from_json(mugraph_to_json(graph)) == graph


@given(
    st.recursive(
        SCRAPS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
    )
)
def test_foreign_json_is_a_format_error(obj: Any) -> None:
    with pytest.raises(FormatError):
        mugraph_from_json(obj)
