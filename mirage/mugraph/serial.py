"""MuGraphs as JSON objects: `mugraph_to_json` and `mugraph_from_json` are inverse.

    {"schema": "mirage.mugraph", "version": 1, "name": "f", "dtype": "float32", "origin": "",
     "axes": [["b", "b"], ["d64", "64"]],
     "inputs": [{"name": "x", "dims": [["b"], ["d64"]]}],
     "outputs": [{"value": 3, "dims": [["b"]]}],
     "kernel": GRAPH}
    GRAPH = {"level": "block", "nodes": [NODE], "outputs": [[4, 0]],
             "roles": [["b", "parallel"]], "grid": ["b"], "loop": []}
    NODE = {"op": "sum", "operands": [[3, 0]], "dims": [[["b"]]], "reduce": ["d64"]}

An input that reads the argument of an earlier one, x say, has `"argument": "x"` besides. A reference is
[node, output]. A node has, besides `op`, `operands` and `dims`, the fields that apply:
`attrs`, `reduce`, `joined`, `graph`, and the maps of Mirage, section 2: `imap` and `fmap` of an input,
`fmap` of an accumulator, `omap` of a graph-defined operator (one per output). A map gives, per grid or loop
axis, the position of the dim that it partitions, or null for the paper's phi. `grid`, `loop` and the maps
follow from the roles; they are written for readers, and compared when read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from mirage.errors import FormatError, MirageError
from mirage.ir.axes import AxisDims, AxisInput, AxisOutput
from mirage.ir.dims import Dim, dim_text, to_dim
from mirage.ir.operator import REDUCTIONS, Level, get_operator
from mirage.ir.program import AttrItems
from mirage.ir.serial import attr_from_json, attr_to_json
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.validate import validate

SCHEMA = "mirage.mugraph"
VERSION = 1

#: bounds on what is read, far above any graph that is searched
MAX_ITEMS = 1024
MAX_TEXT = 256

_LEVELS = (Level.KERNEL, Level.BLOCK, Level.THREAD)
_ATTRS: dict[str, dict[str, type]] = {
    "input": {"index": int},
    "accumulator": {"mode": str, "axis": str},
    "graph": {},
}

T = TypeVar("T")


def mugraph_to_json(graph: MuGraph) -> dict[str, Any]:
    """The muGraph as an object of JSON types."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": graph.name,
        "dtype": graph.dtype,
        "origin": graph.origin,
        "axes": [[a, dim_text(d)] for a, d in graph.axes.items()],
        "inputs": [_input_to_json(x) for x in graph.inputs],
        "outputs": [{"value": o.value, "dims": _dims(o.dims)} for o in graph.outputs],
        "kernel": _graph_to_json(graph.kernel),
    }


def _input_to_json(x: AxisInput) -> dict[str, Any]:
    again = {} if x.argument == x.name else {"argument": x.argument}
    return {"name": x.name, "dims": _dims(x.dims)} | again


def _dims(dims: AxisDims) -> list[list[str]]:
    return [list(d) for d in dims]


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    obj: dict[str, Any] = {
        "level": graph.level.value,
        "nodes": [_node_to_json(graph, i) for i in range(len(graph.nodes))],
        "outputs": [[r.node, r.out] for r in graph.outputs],
    }
    return obj | _split_to_json(graph)


def _split_to_json(graph: Graph) -> dict[str, Any]:
    if graph.level is Level.KERNEL:
        return {}
    return {
        "roles": [[a, r.value] for a, r in graph.roles],
        "grid": list(graph.grid),
        "loop": list(graph.loop),
    }


def _node_to_json(graph: Graph, i: int) -> dict[str, Any]:
    n = graph.nodes[i]
    obj: dict[str, Any] = {
        "op": n.op,
        "operands": [[r.node, r.out] for r in n.operands],
        "dims": [_dims(d) for d in n.dims],
    }
    if n.attrs:
        kinds = {} if n.op in _ATTRS else {a.name: a.kind for a in get_operator(n.op).attributes}
        obj["attrs"] = {k: attr_to_json(kinds[k], v) if k in kinds else v for k, v in n.attrs}
    if n.reduce:
        obj["reduce"] = list(n.reduce)
    if n.joined is not None:
        obj["joined"] = {"axis": n.joined[0], "parts": list(n.joined[1])}
    if n.graph is not None:
        obj["graph"] = _graph_to_json(n.graph)
    return obj | _maps_to_json(graph, i)


def _maps_to_json(graph: Graph, i: int) -> dict[str, Any]:
    n = graph.nodes[i]
    if n.graph is not None:
        return {"omap": [n.graph.omap(k, d) for k, d in enumerate(n.dims)]}
    if graph.level is Level.KERNEL:
        return {}
    if n.op == "input":
        return {"imap": graph.imap(i), "fmap": graph.fmap(i)}
    return {"fmap": graph.fmap(i)} if n.op == "accumulator" else {}


def mugraph_from_json(obj: object) -> MuGraph:
    """The muGraph that `mugraph_to_json` wrote; it is validated.

    Raises FormatError naming the field that is missing, unknown, of a wrong type or contradicted by the
    roles, and GraphError where the graph breaks a rule.
    """
    top = _fields(
        obj,
        "muGraph",
        {"schema", "version", "name", "dtype", "origin", "axes", "inputs", "outputs", "kernel"},
    )
    if top["schema"] != SCHEMA or type(top["version"]) is not int or top["version"] != VERSION:
        _wrong("muGraph", f"schema {SCHEMA!r}, version {VERSION}", (top["schema"], top["version"]))
    pairs = [_pair(p, f"axes[{i}]") for i, p in enumerate(_items(top["axes"], "axes"))]
    axes = {_text(a, f"axes[{i}]"): _dim(d, f"axes[{i}]") for i, (a, d) in enumerate(pairs)}
    if len(axes) != len(pairs):
        _wrong("axes", "each axis once", [a for a, _ in pairs])
    graph = MuGraph(
        name=_text(top["name"], "name"),
        axes=axes,
        inputs=tuple(_input(x, f"inputs[{i}]") for i, x in enumerate(_items(top["inputs"], "inputs"))),
        kernel=_graph(top["kernel"], 0, "kernel"),
        outputs=tuple(_output(x, f"outputs[{i}]") for i, x in enumerate(_items(top["outputs"], "outputs"))),
        dtype=_text(top["dtype"], "dtype"),
        origin=_text(top["origin"], "origin"),
    )
    validate(graph)
    return graph


def _input(obj: object, where: str) -> AxisInput:
    fields = _fields(obj, where, {"name", "dims"}, {"argument"})
    name = _text(fields["name"], f"{where}.name")
    argument = _text(fields.get("argument", name), f"{where}.argument")
    return AxisInput(name, _axis_dims(fields["dims"], f"{where}.dims"), argument)


def _output(obj: object, where: str) -> AxisOutput:
    fields = _fields(obj, where, {"value", "dims"})
    return AxisOutput(_index(fields["value"], f"{where}.value"), _axis_dims(fields["dims"], f"{where}.dims"))


def _graph(obj: object, depth: int, where: str) -> Graph:
    if depth == len(_LEVELS):
        raise FormatError(f"{where}: a graph inside a thread graph; there are three levels")
    level = _LEVELS[depth]
    fields = _fields(
        obj, where, {"level", "nodes", "outputs"} | (set() if depth == 0 else {"roles", "grid", "loop"})
    )
    if fields["level"] != level.value:
        _wrong(f"{where}.level", repr(level.value), fields["level"])
    raw = _items(fields["nodes"], f"{where}.nodes")
    graph = Graph(
        level,
        tuple(_node(x, depth, f"{where}.nodes[{i}]") for i, x in enumerate(raw)),
        tuple(_ref(r, f"{where}.outputs") for r in _items(fields["outputs"], f"{where}.outputs")),
        tuple(_role(r, f"{where}.roles") for r in _items(fields.get("roles", []), f"{where}.roles")),
    )
    _same(fields, _split_to_json(graph), where)
    for i, node in enumerate(raw):
        _same(node, _maps_to_json(graph, i), f"{where}.nodes[{i}]")
    return graph


def _node(obj: object, depth: int, where: str) -> Node:
    maps = {"imap", "fmap", "omap"}
    fields = _fields(obj, where, {"op", "operands", "dims"}, {"attrs", "reduce", "joined", "graph"} | maps)
    op = _text(fields["op"], f"{where}.op")
    joined = None
    if "joined" in fields:
        found = _fields(fields["joined"], f"{where}.joined", {"axis", "parts"})
        joined = (
            _text(found["axis"], f"{where}.joined.axis"),
            _names(found["parts"], f"{where}.joined.parts"),
        )
    node = Node(
        op,
        tuple(_ref(r, f"{where}.operands") for r in _items(fields["operands"], f"{where}.operands")),
        tuple(
            _axis_dims(d, f"{where}.dims[{k}]") for k, d in enumerate(_items(fields["dims"], f"{where}.dims"))
        ),
        _attrs(op, fields.get("attrs", {}), f"{where}.attrs"),
        _names(fields.get("reduce", []), f"{where}.reduce"),
        joined,
        _graph(fields["graph"], depth + 1, f"{where}.graph") if "graph" in fields else None,
    )
    if not node.dims:
        _wrong(f"{where}.dims", "the dims of at least one output", fields["dims"])
    for key in maps & fields.keys():
        if node.op not in ("input", "accumulator", "graph"):
            raise FormatError(f"{where}.{key}: is unknown for operator {op}; drop it")
    return node


def _attrs(op: str, obj: object, where: str) -> AttrItems:
    if op in _ATTRS:
        fields = _fields(obj, where, set(_ATTRS[op]))
        for k, kind in _ATTRS[op].items():
            if type(fields[k]) is not kind:
                _wrong(f"{where}.{k}", f"a JSON {_JSON_NAMES[kind]}", fields[k])
        return tuple((k, fields[k]) for k in _ATTRS[op])
    definition = _guard(lambda: get_operator(op), where)
    if op in REDUCTIONS or op == "concat":
        _fields(obj, where, set())
        return ()
    kinds = {a.name: a.kind for a in definition.attributes}
    fields = _fields(obj, where, set(), set(kinds))
    given = {k: attr_from_json(kinds[k], v, f"{where}.{k}") for k, v in fields.items()}
    return tuple(_guard(lambda: definition.check_attrs(given), where).items())


def _same(given: object, derived: dict[str, Any], where: str) -> None:
    """What is written for readers must be what follows from the roles."""
    assert isinstance(given, dict)
    for key in ("grid", "loop", "imap", "fmap", "omap"):
        if key not in derived and key in given:
            raise FormatError(f"{where}.{key}: is unknown here; drop it")
        # bool equals int in Python, but is no position of a dim
        if key in derived and repr(_sorted(given.get(key))) != repr(_sorted(derived[key])):
            _wrong(f"{where}.{key}", f"{derived[key]}, which follows from the roles,", given.get(key))


def _sorted(value: object) -> object:
    """Maps compare without regard to order: JSON objects have none."""
    match value:
        case dict():
            return sorted((repr(k), repr(v)) for k, v in value.items())
        case list():
            return [_sorted(v) for v in value[:MAX_ITEMS]]
    return value


# Reading values of one type each.


def _fields(obj: object, where: str, wanted: set[str], optional: set[str] | None = None) -> dict[str, Any]:
    if type(obj) is not dict:
        _wrong(where, "a JSON object", obj)
    for key in sorted(wanted - obj.keys()):
        raise FormatError(f"{where}.{key}: is missing; expected the fields {', '.join(sorted(wanted))}")
    for key in obj.keys() - wanted - (optional or set()):
        known = ", ".join(sorted(wanted | (optional or set()))) or "no fields"
        raise FormatError(f"{where}: has the unknown field {str(key)[:80]!r}; expected {known}")
    return obj


def _items(obj: object, where: str) -> list[Any]:
    if type(obj) is not list:
        _wrong(where, "a JSON array", obj)
    if len(obj) > MAX_ITEMS:
        raise FormatError(f"{where}: {len(obj)} items; at most {MAX_ITEMS} are read")
    return obj


def _text(obj: object, where: str) -> str:
    if type(obj) is not str:
        _wrong(where, "a JSON string", obj)
    if len(obj) > MAX_TEXT or not obj.isprintable():
        _wrong(where, f"at most {MAX_TEXT} printable characters", obj)
    return obj


def _dim(obj: object, where: str) -> Dim:
    text = _text(obj, where)
    return _guard(lambda: to_dim(text), where)


def _index(obj: object, where: str) -> int:
    if type(obj) is not int or not 0 <= obj < 1_000_000:
        _wrong(where, "an index of 0 or more", obj)
    return obj


def _pair(obj: object, where: str) -> tuple[Any, Any]:
    items = _items(obj, where)
    if len(items) != 2:
        _wrong(where, "a pair", items)
    return items[0], items[1]


def _names(obj: object, where: str) -> tuple[str, ...]:
    return tuple(_text(x, where) for x in _items(obj, where))


def _axis_dims(obj: object, where: str) -> AxisDims:
    return tuple(_names(d, f"{where}[{i}]") for i, d in enumerate(_items(obj, where)))


def _ref(obj: object, where: str) -> Ref:
    node, out = _pair(obj, where)
    return Ref(_index(node, where), _index(out, where))


def _role(obj: object, where: str) -> tuple[str, Role]:
    axis, role = _pair(obj, where)
    if role not in [r.value for r in Role]:
        _wrong(where, f"one of {', '.join(r.value for r in Role)}", role)
    return _text(axis, where), Role(role)


def _guard(read: Callable[[], T], where: str) -> T:
    """Any error of a part as a FormatError that names the field."""
    try:
        return read()
    except MirageError as e:
        raise FormatError(f"{where}: {e}") from None


_JSON_NAMES: dict[type, str] = {int: "integer", str: "string"}


def _wrong(where: str, wanted: str, value: object) -> NoReturn:
    text = repr(value)
    raise FormatError(f"{where}: expected {wanted} found {text if len(text) <= 80 else text[:77] + '...'}")
