"""Results as JSON: what `save` writes, the results store keeps, and both load again with suspicion.

A record holds graphs, certificates, schedules and timings, never code: C is printed again from the graph, and the graph
is verified again before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mirage.errors import FormatError
from mirage.kernels.profile import Timing
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.serial import mugraph_from_json, mugraph_to_json
from mirage.search.accuracy import Accuracy
from mirage.search.tune import Candidate
from mirage.verify.certificate import Certificate

#: version of the form; part of every key, so that a record of another version is never looked at
SCHEMA = 2


@dataclass(frozen=True)
class GraphRecord:
    """One graph as it was stored: nothing in it has been checked against a program yet."""

    graph: MuGraph
    certificate: Certificate
    cost: float
    schedule: Schedule | None
    timing: Timing | None
    accuracy: tuple[Accuracy, ...]


def timing_to_json(t: Timing | None) -> dict[str, Any] | None:
    return None if t is None else {"min_us": t.min_us, "median_us": t.median_us, "runs": t.runs}


def timing_from_json(obj: Any) -> Timing | None:
    """Raises FormatError for anything but what `timing_to_json` writes."""
    if obj is None:
        return None
    if not isinstance(obj, dict) or set(obj) != {"min_us", "median_us", "runs"}:
        raise FormatError(f"timing: expected min_us, median_us and runs, got {obj!r}")
    if type(obj["runs"]) is not int or not all(
        type(obj[k]) in (int, float) and obj[k] > 0 for k in ("min_us", "median_us")
    ):
        raise FormatError(f"timing: expected positive numbers, got {obj!r}")
    try:
        return Timing(float(obj["min_us"]), float(obj["median_us"]), obj["runs"])
    except OverflowError:
        raise FormatError(f"timing: {obj!r} are no times") from None


def accuracy_to_json(accuracy: Sequence[Accuracy]) -> list[dict[str, Any]]:
    return [asdict(a) for a in accuracy]


def accuracy_from_json(obj: Any) -> tuple[Accuracy, ...]:
    """Raises FormatError for anything but what `accuracy_to_json` writes."""
    if not isinstance(obj, list):
        raise FormatError(f"accuracy: expected a list, got {type(obj).__name__}")
    for item in obj:
        if not isinstance(item, dict) or set(item) != {"trial", "kernel", "program"} or type(item["trial"]) is not str:
            raise FormatError(f"accuracy: expected trial, kernel and program, got {item!r}")
        if not all(type(item[k]) is float and 0 <= item[k] < np.inf for k in ("kernel", "program")):
            raise FormatError(f"accuracy: errors must be numbers of at least 0, got {item!r}")
    return tuple(Accuracy(**item) for item in obj)


def candidates_to_json(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Graphs with their evidence, in order."""
    return [
        {
            "graph": mugraph_to_json(c.graph),
            "origin": c.graph.origin,
            "certificate": c.certificate.to_json(),
            "cost": c.cost,
            "schedule": c.schedule.to_json() if c.schedule else None,
            "timing": timing_to_json(c.timing),
            "accuracy": accuracy_to_json(c.accuracy),
        }
        for c in candidates
    ]


def candidates_from_json(obj: Any) -> list[GraphRecord]:
    """Raises FormatError for anything but what `candidates_to_json` writes."""
    if not isinstance(obj, list):
        raise FormatError(f"graphs: expected a list, got {type(obj).__name__}")
    found = []
    for item in obj:
        names = {"graph", "origin", "certificate", "cost", "schedule", "timing", "accuracy"}
        if not isinstance(item, dict) or set(item) != names:
            raise FormatError(f"graphs: an entry must have exactly {', '.join(sorted(names))}")
        cost = item["cost"]
        if type(cost) not in (int, float) or not abs(cost) < 1e300 or not isinstance(item["origin"], str):
            raise FormatError("graphs: cost must be a number and origin a text")
        graph = mugraph_from_json(item["graph"])
        schedule = None if item["schedule"] is None else Schedule.from_json(item["schedule"])
        if schedule is not None:
            schedule.check(graph)
        graph = MuGraph(graph.name, graph.axes, graph.inputs, graph.kernel, graph.outputs, graph.dtype, item["origin"])
        certificate = Certificate.from_json(item["certificate"])
        timing, accuracy = timing_from_json(item["timing"]), accuracy_from_json(item["accuracy"])
        found.append(GraphRecord(graph, certificate, float(cost), schedule, timing, accuracy))
    return found


def baselines_from_json(obj: Any) -> dict[str, Timing]:
    """Timings of the baselines by name; raises FormatError."""
    if not isinstance(obj, dict) or set(obj) != {"reference", "library"}:
        raise FormatError(f"baselines: expected reference and library, got {obj!r}")
    found = {name: timing_from_json(t) for name, t in obj.items()}
    if None in found.values():
        raise FormatError("baselines: a timing is missing")
    return {name: t for name, t in found.items() if t is not None}


def baselines_to_json(baselines: Mapping[str, Timing]) -> dict[str, Any]:
    return {name: timing_to_json(t) for name, t in baselines.items()}
