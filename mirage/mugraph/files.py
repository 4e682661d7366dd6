"""MuGraphs in files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mirage.folders import save_file
from mirage.ir.codec import MUGRAPH, read_json
from mirage.mugraph.graph import MuGraph


def save_mugraph(graph: MuGraph, path: str | os.PathLike[str]) -> None:
    """Write a muGraph for `load_mugraph` and `mirage verify`; raises InputError where it cannot be written."""
    save_file(path, json.dumps(MUGRAPH.to_json(graph), indent=1) + "\n")


def load_mugraph(path: str | os.PathLike[str]) -> MuGraph:
    """The muGraph of a file, validated; it does what it says, whatever it is meant to do.

    Raises InputError where the file cannot be read, FormatError where it is not a muGraph, GraphError where the muGraph
    breaks a rule.
    """
    return MUGRAPH.from_json(MuGraph, read_json(Path(path)), str(path))
