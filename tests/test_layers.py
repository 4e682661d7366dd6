"""Which packages may import which: a lower layer never imports a higher one, not even inside of a function; and no modules
import each other.

Imports are read from the source, so that those count that run late, or only for types.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
#: packages that lie outside of `mirage` in the checkout
MAPPED = ("kernels", "search", "verify")

#: What each package or module below `mirage` may import beside itself: everything in an earlier row, nothing of its own row.
#: Modules that are not listed are the surface: they import what they like, and only each other import them.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("settings", "progress", "drawing", "remember"),
    ("folders", "logs"),
    ("ir",),
    # of records it only knows that they are JSON
    ("cache",),
    ("mugraph",),
    ("verify", "kernels"),
    ("runtime",),
    ("search", "frontends"),
    ("results",),
    ("compiler",),
)

#: packages of the surface
PACKAGES = frozenset({"jobs", "onnx", "torch"})

#: (module, what it imports nevertheless): why
EXCEPTIONS = {
    ("mirage.verify", "mirage.api"): "`mirage.verify(a, b)`, of the surface, has the name of the package",
    ("mirage.kernels.cpu.launch.executable", "mirage.runtime.arrays"): "kernels on their own read arrays as programs do",
}

#: (module, what it imports late, though that imports it): why
BACKWARDS = {
    ("mirage.compilation", "mirage.onnx.model"): "`mirage.compile` takes models of ONNX, too",
    ("mirage.compilation", "mirage.torch.exported"): "`mirage.compile` takes programs of torch.export, too",
    ("mirage.frontends.proxy", "mirage.frontends.indexing"): "an index becomes operators on proxies",
    ("mirage.frontends.proxy", "mirage.frontends.ops"): "operators of Python on proxies are these functions",
    ("mirage.ir.dim_values", "mirage.ir.dims"): "sympy's own functions in a dim are replaced before it has a value",
    ("mirage.ir.graph.nodes", "mirage.ir.graph.text"): "modules print themselves",
    ("mirage.ir.loops.program", "mirage.ir.loops.text"): "loop programs print themselves",
    ("mirage.ir.program", "mirage.ir.text"): "programs print and read themselves",
    ("mirage.mugraph.graph", "mirage.mugraph.text"): "muGraphs print themselves",
    ("mirage.mugraph.graph", "mirage.mugraph.validate"): "muGraphs that are read are validated",
}

RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}
SURFACE = len(LAYERS)


def modules_below(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """(module, file) of every Python file below `folder`, the package `name`."""
    for path in folder.rglob("*.py"):
        # links show the mapped folders a second time
        if not any(p.is_symlink() for p in path.parents):
            module = ".".join((name, *path.relative_to(folder).with_suffix("").parts))
            yield module.removesuffix(".__init__"), path


def sources() -> Iterator[tuple[str, Path]]:
    """(module, file) of everything that is installed."""
    for folder, name in ((ROOT / "mirage", "mirage"), *((ROOT / m, f"mirage.{m}") for m in MAPPED)):
        yield from modules_below(folder, name)


MODULES = dict(sources())
BENCHMARKS = dict(modules_below(ROOT / "benchmarks", "benchmarks"))


@functools.cache
def imported(text: str, *, types: bool = True) -> frozenset[str]:
    """The modules of `mirage` and `benchmarks` that a source imports; `from mirage import api` is the module `mirage.api`.

    Without `types`, those that only type checkers import are left out.
    """
    nodes = [*ast.walk(ast.parse(text))]
    conditions = [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = set() if types else {inner for n in conditions for inner in ast.walk(n)}
    found: set[str] = set()
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide what is imported; write the whole name"
            below = [f"{node.module}.{a.name}" for a in node.names]
            found |= {n if n in MODULES or n in BENCHMARKS else str(node.module) for n in below}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return frozenset(n for n in found if n.split(".")[0] in ("mirage", "benchmarks"))


def layer(module: str) -> str:
    """The package or module right below `mirage`; of `mirage` itself, nothing."""
    return module.partition(".")[2].partition(".")[0]


def is_allowed(module: str, target: str) -> bool:
    own, other = layer(module), layer(target)
    rank, reached = (RANKS.get(name, SURFACE) for name in (own, other))
    return own == other or reached < rank or rank == SURFACE


@functools.cache
def imports() -> list[tuple[str, str]]:
    """(module, what it imports) of everything that is installed: read for the tests, not by whoever collects them."""
    return [(module, target) for module, path in sorted(MODULES.items()) for target in sorted(imported(path.read_text()))]


def test_no_layer_imports_a_higher_one() -> None:
    wrong = [pair for pair in imports() if not is_allowed(*pair) and pair not in EXCEPTIONS]
    assert not wrong, "\n".join(f"{module} imports {target}, which lies above or beside it" for module, target in wrong)


def test_every_exception_is_one() -> None:
    assert all(pair in imports() and not is_allowed(*pair) for pair in EXCEPTIONS)


def test_every_package_has_a_layer() -> None:
    packages = {layer(module) for module, path in MODULES.items() if path.parent != ROOT / "mirage"}
    assert packages == {name for name in RANKS if (ROOT / "mirage" / name).is_dir()} | PACKAGES
    assert all((ROOT / "mirage" / f"{name}.py").is_file() for name in RANKS.keys() - packages)


def test_nothing_that_is_installed_imports_the_benchmarks() -> None:
    assert not [pair for pair in imports() if pair[1].startswith("benchmarks")]


def graph_of_imports() -> nx.DiGraph:
    """Which module imports which when the program runs, early or late."""
    modules = MODULES | BENCHMARKS
    edges = ((m, t) for m, path in modules.items() for t in imported(path.read_text(), types=False) if t in modules)
    return nx.DiGraph(edge for edge in edges if edge[0] != edge[1])


def circles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]


def test_no_modules_import_each_other() -> None:
    graph = graph_of_imports()
    graph.remove_edges_from([*BACKWARDS, *EXCEPTIONS])
    assert not circles(graph)


def test_every_import_backwards_is_one() -> None:
    graph = graph_of_imports()
    for module, target in BACKWARDS:
        assert graph.has_edge(module, target)
    graph.remove_edges_from([*BACKWARDS, *EXCEPTIONS])
    for module, target in BACKWARDS:
        assert nx.has_path(graph, target, module), f"{module} may import {target} at its top"


def test_modules_that_import_each_other_are_found() -> None:
    assert circles(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("mirage.ir.graph.nodes", "mirage.errors", True),
        ("mirage.ir.graph.nodes", "mirage.ir.dims", True),
        ("mirage.ir.graph.nodes", "mirage.mugraph.graph", False),
        ("mirage.kernels.library", "mirage.verify.proof", False),
        ("mirage.runtime.vm", "mirage.compiler.lower", False),
        ("mirage.compiler.lower", "mirage.runtime.vm", True),
        ("mirage.compiler.lower", "mirage.api", False),
        ("mirage.cli", "mirage.api", True),
        ("mirage", "mirage.api", True),
        ("mirage.search.tune", "mirage", False),
    ],
)
def test_the_order(module: str, target: str, allowed: bool) -> None:
    assert is_allowed(module, target) is allowed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from mirage.ir.dims import Dim", {"mirage.ir.dims"}),
        ("from mirage import api, errors", {"mirage.api", "mirage.errors"}),
        ("import mirage.api as a, numpy", {"mirage.api"}),
        ("def f():\n    from mirage.api import load", {"mirage.api"}),
        ("if TYPE_CHECKING:\n    from mirage.results.cpu.result import X", {"mirage.results.cpu.result"}),
        ("from mirage.ir import dims", {"mirage.ir.dims"}),
        ("from benchmarks.gpu import kernels", {"benchmarks.gpu.kernels"}),
        ("from numpy import mirage", set()),
    ],
)
def test_imports_are_found(text: str, expected: set[str]) -> None:
    assert imported(text) == expected
    assert imported(text, types=False) == (set() if "TYPE_CHECKING" in text else expected)
