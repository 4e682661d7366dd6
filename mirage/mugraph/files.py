"""MuGraphs in files, as text."""

from __future__ import annotations

import os
from pathlib import Path

from mirage.errors import MirageError
from mirage.folders import read_text, save_file
from mirage.ir.graph.deduce import located
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.parse import parse_mugraph


def save_mugraph(graph: MuGraph, path: str | os.PathLike[str]) -> None:
    """Write a muGraph for `load_mugraph` and `mirage verify`; raises InputError where it cannot be written."""
    save_file(path, str(graph))


def load_mugraph(path: str | os.PathLike[str]) -> MuGraph:
    """The muGraph of a file, as `mirage.mugraph.parse.parse_mugraph` reads it, whose errors it raises with the path; InputError
    where the file cannot be read.
    """
    text = read_text(Path(path), "a muGraph's text")
    try:
        return parse_mugraph(text)
    except MirageError as e:
        raise located(e, str(path)) from None
