"""Kernels of muGraphs as text: JSON of the program, its graphs, their schedules and the decision among them.

No code and no evidence is stored: what is read is verified and compiled again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mirage.compiler.kernels.versions import KernelVersion
from mirage.errors import FormatError
from mirage.ir.program import Program
from mirage.ir.serial import program_from_json, program_to_json
from mirage.kernels.decision import Tree, tree_from_json, tree_to_json
from mirage.kernels.text import kernel_fields
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.serial import mugraph_from_json, mugraph_to_json
from mirage.results.records import BASELINES, sizes_from_json
from mirage.search.decision import MAX_VERSIONS

#: version of the form
SCHEMA = 1

_FORMAT = "mirage kernel"
_FIELDS = {"format", "schema", "origin", "program", "graphs", "versions", "tree", "constants"}
_ORIGINS = ("superoptimized", "fused", "library")


@dataclass(frozen=True)
class KernelParts:
    """What a kernel of muGraphs is made of. What was read has neither been verified nor compiled."""

    program: Program
    versions: tuple[KernelVersion, ...]
    tree: Tree
    origin: str
    constants: tuple[str, ...]

    def to_text(self) -> str:
        """JSON on one line, of which `parts_from_text` makes the parts again."""
        graphs = {id(v.graph): v.graph for v in self.versions if v.graph is not None}
        places = {key: k for k, key in enumerate(graphs)}
        versions = [
            {
                "kind": v.kind,
                "graph": places[id(v.graph)] if v.graph else None,
                "schedule": v.schedule.to_json() if v.schedule else None,
                "sizes": dict(v.sizes),
            }
            for v in self.versions
        ]
        return json.dumps(
            {
                "format": _FORMAT,
                "schema": SCHEMA,
                "origin": self.origin,
                "program": program_to_json(self.program),
                "graphs": [{"graph": mugraph_to_json(g), "origin": g.origin} for g in graphs.values()],
                "versions": versions,
                "tree": tree_to_json(self.tree),
                "constants": list(self.constants),
            },
            separators=(",", ":"),
        )


def parts_from_text(text: str) -> KernelParts:
    """The parts that `KernelParts.to_text` wrote; raises FormatError for any other text."""
    obj = kernel_fields(text, _FIELDS, _FORMAT, SCHEMA)
    if obj["origin"] not in _ORIGINS:
        raise FormatError(f"kernel: origin {obj['origin']!r}; use one of {', '.join(_ORIGINS)}")
    program = program_from_json(obj["program"])
    constants = obj["constants"]
    if not isinstance(constants, list) or not all(name in program.input_names for name in constants):
        raise FormatError(f"kernel: constants must be inputs of the program, got {constants!r}"[:200])
    if not isinstance(obj["graphs"], list):
        raise FormatError("kernel: graphs must be a list")
    graphs = [_graph(g) for g in obj["graphs"]]
    if not isinstance(obj["versions"], list) or not 0 < len(obj["versions"]) <= MAX_VERSIONS:
        raise FormatError(f"kernel: versions must be a list of 1 to {MAX_VERSIONS}")
    symbols = program.symbols()
    versions = tuple(_version(v, graphs, symbols) for v in obj["versions"])
    tree = tree_from_json(obj["tree"], symbols, len(versions))
    return KernelParts(program, versions, tree, obj["origin"], tuple(constants))


def _graph(obj: Any) -> MuGraph:
    if not isinstance(obj, dict) or set(obj) != {"graph", "origin"} or not isinstance(obj["origin"], str):
        raise FormatError("kernel: a graph must have graph and origin")
    g = mugraph_from_json(obj["graph"])
    return MuGraph(g.name, g.axes, g.inputs, g.kernel, g.outputs, g.dtype, obj["origin"])


def _version(obj: Any, graphs: list[MuGraph], symbols: list[str]) -> KernelVersion:
    if not isinstance(obj, dict) or set(obj) != {"kind", "graph", "schedule", "sizes"}:
        raise FormatError("kernel: a version must have kind, graph, schedule and sizes")
    kind, place = obj["kind"], obj["graph"]
    if kind == "mugraph" and type(place) is int and 0 <= place < len(graphs):
        schedule = Schedule.from_json(obj["schedule"])
        schedule.check(graphs[place])
        return KernelVersion(kind, graphs[place], schedule, sizes_from_json(obj["sizes"], symbols))
    if kind in BASELINES and place is None and obj["schedule"] is None and obj["sizes"] == {}:
        return KernelVersion(kind)
    raise FormatError(f"kernel: {kind!r} of graph {place!r} is no version"[:200])
