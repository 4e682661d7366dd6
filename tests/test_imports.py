"""What is imported when: heavy packages only where they are needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import pytest

import mirage as mi
from benchmarks.imports import PROCESSES, TRACE
from mirage.cache import ResultStore

#: what takes long to import, of others and of ours
HEAVY = {
    *(
        "cupy",
        "cutlass",
        "networkx",
        "numpy",
        "nvmath",
        "onnx",
        "rich",
        "scipy",
        "sqlalchemy",
        "sympy",
        "torch",
        "triton",
    ),
    *("typer", "z3", "mirage.compiler", "mirage.kernels", "mirage.kernels.cuda.emit", "mirage.search", "mirage.search.cuda"),
}


def imported(source: str) -> frozenset[str]:
    """Those of HEAVY that a process has imported after this source."""
    ask = f"{source}\nimport sys\nprint(*(name for name in {sorted(HEAVY)} if name in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    return frozenset(ended.stdout.split())


@pytest.mark.parametrize(
    ("what", "needed"),
    [
        ("Python", set()),
        ("import mirage", set()),
        ("a program traced", {"numpy", "sympy"}),
        ("superoptimize imported", {"numpy", "sympy", "mirage.kernels", "mirage.search"}),
    ],
)
def test_what_is_not_needed_is_not_imported(what: str, needed: Set[str]) -> None:
    assert imported(PROCESSES[what]) == needed


def test_what_the_first_kernel_does_not_need_is_not_imported() -> None:
    """Neither the loops of whole programs, nor what reads the metadata of installed packages, nor a database."""
    late = ("mirage.kernels.cpu.loops", "importlib.metadata", "sqlalchemy", "asyncio", "networkx", "z3", "rich")
    source = (
        f"{TRACE}r = mi.superoptimize(layer.trace(), sizes={{'n': 3}}, budget=1e-3, cache=False)\n"
        f"import sys\nprint(*(name for name in {late} if name in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == []


def test_what_a_store_without_the_answer_says_needs_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked, and leased, by SQLite alone: a first kernel waits for nothing else."""
    monkeypatch.delenv("MIRAGE_CACHE_URL", raising=False)
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    ResultStore()
    asked = "from mirage.cache import CallStore\ns, key = CallStore(), 64 * '0'\n"
    asked += "assert s.recall(key) is None and not s.family(key)\nwith s.acquire(key): assert s.checksum(key) is None\n"
    assert imported(asked) & {"sqlalchemy"} == set()


def test_torch_is_imported_by_the_first_use_of_what_needs_it() -> None:
    assert imported("import mirage.torch; dir(mirage.torch)") == set()


def test_a_heavy_import_is_noticed() -> None:
    assert imported("import mirage.cli") >= {"rich", "typer"}


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(mi, name) is not None for name in mi.__all__)
    assert set(mi.__all__) <= set(dir(mi))


def test_another_name_cannot() -> None:
    with pytest.raises(AttributeError, match="matmull"):
        mi.matmull  # type: ignore[attr-defined]  # noqa: B018
