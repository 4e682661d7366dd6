"""A target of another package: found by its entry point, and searched, compiled, saved and loaded for like the own ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.errors import FormatError, SearchError, UnknownTarget
from mirage.ir.axes import to_axes
from mirage.kernels.target import get_target
from mirage.mugraph.graph import MuGraph
from mirage.results.page import search_page
from mirage.results.ranked import Ranked
from mirage.search.candidates import Known, admitted
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.search.rank import Ranker
from mirage.verify.equivalence import Verifier
from tests.programs import UNLIMITED
from tests.targets.plain_numpy import TARGET, NumpyKernels

SIZES = {"s": 8, "t": 32}


@mi.program(q=mi.tensor("s", 16), k=mi.tensor("t", 16), v=mi.tensor("t", 16), sizes=SIZES)
def attention(q: Any, k: Any, v: Any) -> Any:
    return mi.softmax(q @ k.mT / 4) @ v


def arrays(s: int, t: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 16), dtype=np.float32) for n in (s, t, t)]


def wanted(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    e = np.exp(q.astype(np.float64) @ k.T / 4)
    found: np.ndarray = e / e.sum(-1, keepdims=True) @ v
    return found


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package, which registers the target."""
    info = tmp_path / "mirage_numpy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mirage-numpy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mirage.targets]\nnumpy = tests.targets.plain_numpy\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_found_by_its_entry_point() -> None:
    assert get_target("numpy") is TARGET
    with pytest.raises(UnknownTarget, match="choose numpy"):
        get_target("numpy:fast")
    with pytest.raises(UnknownTarget, match=r"choose one of cpu, cuda, cuda:sm_80.*, numpy"):
        get_target("tpu")


def test_without_the_package_there_is_no_such_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mirage_numpy-1.0.dist-info" / "entry_points.txt").write_text("")
    with pytest.raises(UnknownTarget, match="'numpy' does not exist"):
        mi.superoptimize(attention, target="numpy", budget=1.0, cache=False)


def test_search_save_and_load(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    found = mi.superoptimize(attention, target="numpy", budget=10.0, cache=store)
    assert isinstance(found, Ranked) and isinstance(found.best.executable, NumpyKernels)
    assert found.certificate.equal and "NumPy" in {c for x in found.report().columns for c in x.cells}
    page = search_page(found)
    assert page.time == "modelled for numpy" and page.roofs.gflops == 0 and not page.baselines
    assert sum(e.runs for e in page.entries) == 1 and all(e.us and e.source for e in page.entries if e.runs)
    found.save(tmp_path / "result.json")
    loaded = mi.load(tmp_path / "result.json")
    again = mi.superoptimize(attention, target="numpy", budget=10.0, cache=store)
    assert isinstance(again, Ranked) and again.tune_stop == "from the cache" and not found.cache_hit
    for result in (found, loaded, again):
        for s, t in ((8, 32), (1, 5)):
            given = arrays(s, t)
            np.testing.assert_allclose(result(*given), wanted(*given), rtol=1e-5, atol=1e-6)
    text = (tmp_path / "result.json").read_text().replace('"schedule": {}', '"schedule": {"tiles": 1}')
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(FormatError, match="schedule: expected an object of no fields"):
        mi.load(tmp_path / "other.json")


def masked(q: Any, k: Any, v: Any, valid: Any) -> Any:
    scores = mi.where(valid[None, :], q @ k.mT / 4, -1e9)
    return mi.softmax(scores) @ v, mi.softmax(q @ k.mT / 4) @ v


@pytest.mark.parametrize("without", [(), ("superoptimize",)])
def test_whole_programs_are_compiled_saved_and_loaded(tmp_path: Path, without: tuple[str, ...]) -> None:
    specs = {
        "q": mi.tensor("s", 16), "k": mi.tensor("t", 16), "v": mi.tensor("t", 16), "valid": mi.tensor("t", dtype="bool"),
    }  # fmt: skip
    run = mi.compile(masked, specs, bounds=SIZES, target="numpy", budget=6.0, without=without, cache=False)
    assert {getattr(k, "target", "") for k in run.kernels.values()} == {"numpy"}
    run.save(tmp_path / "masked.mirage")
    loaded = mi.load_executable(tmp_path / "masked.mirage")
    assert loaded.target == "numpy"
    for executable in (run, loaded):
        for s, t in ((8, 32), (3, 7)):
            q, k, v = arrays(s, t)
            valid = np.arange(t) < t - 2
            first, second = executable(q, k, v, valid)
            np.testing.assert_allclose(first, wanted(q, k[: t - 2], v[: t - 2]), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(second, wanted(q, k, v), rtol=1e-5, atol=1e-5)


def is_accurate(graph: MuGraph) -> bool:
    """Whether a graph of relu(x * m + (1 - m) * -1e9) keeps x where m is 1."""
    x, m = np.full((5, 8), 0.5, np.float32), np.ones((5, 8), np.float32)
    (found,) = NumpyKernels(graph)([x, m], {"s": 5})
    return bool(np.all(found == x))


def test_what_is_equal_but_loses_what_a_mask_shows_is_not_used() -> None:
    """In float32, `m * low - low` has nothing left of what is added to it."""
    specs: dict[str, Any] = {"x": mi.tensor("s", 8), "m": mi.tensor("s", 8)}
    program = mi.trace(lambda x, m: mi.relu(x * m + (1 - m) * -1e9), **specs)
    other = mi.trace(lambda x, m: mi.relu(x * m - 1e9 + m * 1e9), **specs)
    options = SearchOptions(vocabulary="program", budget=UNLIMITED)
    graphs = generate(to_axes(other), {"s": 8}, options).graphs
    verifier = Verifier(program)
    found = [c for g in graphs if (c := admitted(verifier, Known(g, 1.0))) is not None]
    assert found and all(c.certificate.proof == "proved" for c in found)
    assert not any(is_accurate(c.graph) for c in found)
    with pytest.raises(SearchError, match="results differ from the program's at"):
        Ranker(program, [{"s": 8}], TARGET, budget=UNLIMITED).run(found)
