"""A small program for CUDA, its result where there is no device, and what tests of results share."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mirage as mi
from mirage.cache import ResultStore
from mirage.results.cuda.result import CudaSuperoptimized


def gated(x: Any, w: Any, v: Any) -> Any:
    return mi.silu(x @ w) * (x @ v)


PROGRAM = mi.trace(
    gated,
    x=mi.tensor("b", 64, dtype="float16"),
    w=mi.tensor(64, "n", dtype="float16"),
    v=mi.tensor(64, "n", dtype="float16"),
)
SIZES = {"b": 16, "n": 64}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path_factory.mktemp('cuda')}/store.sqlite")


@pytest.fixture(scope="module")
def result(store: ResultStore) -> CudaSuperoptimized:
    return found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))


@pytest.fixture
def saved(result: CudaSuperoptimized, tmp_path: Path) -> Path:
    result.save(tmp_path / "r.json")
    return tmp_path / "r.json"


def found(r: Any) -> CudaSuperoptimized:
    assert isinstance(r, CudaSuperoptimized)
    return r


def text(r: CudaSuperoptimized) -> str:
    file = StringIO()
    Console(file=file, width=200).print(r.report())
    return file.getvalue()
