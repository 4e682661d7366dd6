"""Graphs of other frameworks as modules: what an importer gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mirage.errors import UnsupportedNode
from mirage.frontends.tensors import GraphTensor
from mirage.ir.graph.nodes import Module


@dataclass(frozen=True)
class Given:
    """An output that is not computed: the input at a position, or a constant."""

    position: int | None = None
    value: Any = None


@dataclass
class Imported:
    """A graph as a module.

    The module's parameters are the graph's inputs at the positions `inputs`, a size as a shape of one dim, and behind them the
    tensors `attributes` that the graph has of its own. `outputs` has for each output of the graph the number of the result of the
    module that it is, or what it is without being computed. `native` and `fallback` count operators; `reasons` say why one of a
    name fell back.
    """

    module: Module
    inputs: list[int]
    attributes: list[Any]
    outputs: list[int | Given]
    native: Counter[str] = field(default_factory=Counter)
    fallback: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)


class Refused:
    """Stands for the value of a node that is not imported, so that the nodes after it are looked at as well."""


def unsupported(why: str) -> NoReturn:
    """Raise UnsupportedNode."""
    raise UnsupportedNode(why)


def as_tensor(x: Any) -> GraphTensor:
    """A tensor of the trace whose type is known; raises UnsupportedNode for anything else."""
    return x if isinstance(x, GraphTensor) else unsupported(f"{x!r} is no tensor of a known type")
