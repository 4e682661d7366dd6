"""The page of a result holds its graphs, their times and sources, the machine's limits, and what the search pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.results.page import Page, search_page
from mirage.search.examples import pruning_examples
from mirage.search.generate import generate
from mirage.search.pruned import MOST
from tests.api.small import BUDGET, adapter, limit_tuning, loaded

SIZES = {"b": 3, "n": 5}


@pytest.fixture(scope="module")
def result() -> mi.Superoptimized:
    with pytest.MonkeyPatch.context() as patch:
        limit_tuning(patch.setattr)
        return mi.superoptimize(adapter, budget=BUDGET, cache=False)


def test_it_holds_every_graph_with_what_was_measured(result: mi.Superoptimized) -> None:
    page = search_page(result)
    assert [e.text for e in page.entries] == [str(c.graph) for c in result.graphs]
    timed = [c.timing is not None or bool(c.tried) for c in result.graphs]
    assert any(timed) and [e.us is not None for e in page.entries] == timed
    # those that were compiled have a source, and no other does
    assert [bool(e.source) for e in page.entries] == [c.schedule is not None for c in result.graphs]
    runs = result.best.candidate
    assert [e.runs for e in page.entries] == [runs is not None and c.graph is runs.graph for c in result.graphs]
    for e, c in zip(page.entries, result.graphs, strict=True):
        assert e.verdict == c.certificate.verdict and e.modelled_us == c.cost / 1e3
        if c.executable is not None:
            assert e.source == c.executable.source
    assert page.baselines.keys() == result.baselines.keys()
    assert {r.name: r.count for r in page.rules} == result.stats.pruned


def test_intensity_is_by_what_all_kernels_read_and_write(result: mi.Superoptimized) -> None:
    from mirage.kernels.cpu.model.limits import program_cost

    moved, flops = program_cost(to_axes(adapter.trace()), SIZES)
    for e in search_page(result).entries:
        if e.kernels == 1 and not e.library:
            # one kernel moves what has to be moved; x is read by two products and a sum, once
            assert e.intensity == pytest.approx(flops / moved)
        elif e.intensity is not None:
            assert e.intensity < flops / moved


def test_a_saved_result_has_the_same_page_without_compiling(
    result: mi.Superoptimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result.save(tmp_path / "r.json")
    again = search_page(loaded(tmp_path / "r.json"))
    page = search_page(result)
    assert [(e.plans, e.us, e.source, e.text) for e in again.entries] == [(e.plans, e.us, e.source, e.text) for e in page.entries]
    assert again.rules == page.rules


def test_a_page_is_saved_and_framed(result: mi.Superoptimized, tmp_path: Path) -> None:
    page = mi.explore(result)
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    assert repr(page) == f"Page({len(page.html):,} characters; save it, and open the file in a browser)"
    frame = page._repr_html_() or ""
    assert frame.startswith("<iframe sandbox=") and frame.count("<") == 2
    with pytest.raises(InputError, match="cannot be written"):
        Page("").save(tmp_path / "none" / "page.html")


def test_examples_are_what_a_search_prunes() -> None:
    axes = to_axes(adapter.trace())
    found = pruning_examples(axes, SIZES)
    stats = generate(axes, SIZES).stats
    assert found.keys() == stats.pruned.keys()
    for why, examples in found.items():
        assert 0 < len(examples) <= min(MOST, stats.pruned[why])
        assert len({str(e) for e in examples}) == len(examples)
    # x is added to what comes of w, and never to w
    assert "add of w and x" in {f"{e.operator} of {' and '.join(sorted(e.operands))}" for e in found["placements"]}
    assert pruning_examples(axes, SIZES, steps=0) == {}


def test_a_record_changes_nothing_of_a_search() -> None:
    from mirage.ir.dims import evaluate
    from mirage.search.options import SearchOptions
    from mirage.search.pruned import Examples
    from mirage.search.space import Space
    from mirage.search.steps import finish

    axes = to_axes(adapter.trace())
    table = {a: evaluate(d, SIZES) for a, d in axes.axes.items()}
    plain, recorded = Space(axes, table, SearchOptions()), Space(axes, table, SearchOptions(), Examples())
    finish(plain.close())
    finish(recorded.close())
    assert plain.stats == recorded.stats
