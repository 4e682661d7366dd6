"""Which packages may import which: a lower layer never imports a higher one, not even inside of a function.

Imports are read from the source, so that those count that run late, or only for types.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: packages that lie outside of `mirage` in the checkout
MAPPED = ("kernels", "search", "verify")

#: What each package or module below `mirage` may import beside itself: everything in an earlier row, nothing of its own row.
#: Modules that are not listed are the surface: they import what they like, and only each other import them.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("settings", "progress", "drawing"),
    ("folders",),
    # of records it only knows that they are JSON
    ("cache",),
    ("ir",),
    ("mugraph",),
    ("verify", "kernels"),
    ("runtime",),
    ("search", "frontends"),
    ("results",),
    ("compiler",),
)

#: (module, what it imports nevertheless): why
EXCEPTIONS = {
    ("mirage.verify", "mirage.api"): "`mirage.verify(a, b)`, of the surface, has the name of the package",
    ("mirage.kernels.cpu.executable", "mirage.runtime.arrays"): "kernels on their own read arrays as programs do",
}

RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}
SURFACE = len(LAYERS)


def sources() -> Iterator[tuple[str, Path]]:
    """(module, file) of everything that is installed."""
    for folder, name in ((ROOT / "mirage", "mirage"), *((ROOT / m, f"mirage.{m}") for m in MAPPED)):
        for path in folder.rglob("*.py"):
            # links show the mapped folders a second time
            if not any(p.is_symlink() for p in path.parents):
                module = ".".join((name, *path.relative_to(folder).with_suffix("").parts))
                yield module.removesuffix(".__init__"), path


def imported(text: str) -> set[str]:
    """The modules of `mirage` that a source imports; `from mirage import api` is the module `mirage.api`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide what is imported; write the whole name"
            names = [f"mirage.{a.name}" for a in node.names] if node.module == "mirage" else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        found |= {n for n in names if n.split(".")[0] == "mirage"}
    return found


def layer(module: str) -> str:
    """The package or module right below `mirage`; of `mirage` itself, nothing."""
    return module.partition(".")[2].partition(".")[0]


def is_allowed(module: str, target: str) -> bool:
    own, other = layer(module), layer(target)
    rank, reached = (RANKS.get(name, SURFACE) for name in (own, other))
    return own == other or reached < rank or rank == SURFACE


IMPORTS = [(module, target) for module, path in sorted(sources()) for target in sorted(imported(path.read_text()))]


def test_no_layer_imports_a_higher_one() -> None:
    wrong = [pair for pair in IMPORTS if not is_allowed(*pair) and pair not in EXCEPTIONS]
    assert not wrong, "\n".join(f"{module} imports {target}, which lies above or beside it" for module, target in wrong)


def test_every_exception_is_one() -> None:
    assert all(pair in IMPORTS and not is_allowed(*pair) for pair in EXCEPTIONS)


def test_every_package_has_a_layer() -> None:
    packages = {layer(module) for module, path in sources() if path.parent != ROOT / "mirage"}
    assert packages == {name for name in RANKS if (ROOT / "mirage" / name).is_dir()}
    assert all((ROOT / "mirage" / f"{name}.py").is_file() for name in RANKS.keys() - packages)


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
        ("from numpy import mirage", set()),
    ],
)
def test_imports_are_found(text: str, expected: set[str]) -> None:
    assert imported(text) == expected
