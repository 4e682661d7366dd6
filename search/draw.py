"""Searches as HTML: what was looked at, what each rule pruned, and the graphs that are left."""

from __future__ import annotations

from mirage.drawing.html import heading, table
from mirage.drawing.show import View, show
from mirage.search.candidates import Candidate
from mirage.search.decision import Version
from mirage.search.generate import SearchResult
from mirage.search.stats import RULES, SearchStats
from mirage.search.stream import Search

#: graphs of a search that are listed; the others are counted
_LISTED = 20


@show.register
def _(stats: SearchStats) -> View:
    return View(html=heading("Search", stats.stop_reason) + _counters(stats))


@show.register
def _(found: SearchResult) -> View:
    rows = [
        (k, len(g.kernels), g.origin, f"{cost / 1e3:,.1f}")
        for k, (g, cost) in enumerate(zip(found.graphs[:_LISTED], found.costs, strict=False))
    ]
    graphs = table(rows, ["graph", "kernels", "plans", "modelled us"], numbers=(0, 1, 3))
    more = len(found.graphs) - len(rows)
    rest = f"<p>and {more:,} more</p>" if more else ""
    title = heading(f"Search: {len(found.graphs):,} graphs", found.stats.stop_reason)
    return View(html=title + graphs + rest + _counters(found.stats))


@show.register
def _(search: Search) -> View:
    """What it has done so far."""
    return show(search.stats)


@show.register
def _(candidate: Candidate) -> View:
    return show(candidate.graph)


@show.register
def _(version: Version) -> View:
    return View(svg=show(version.graph).svg if version.graph else None)


def _counters(stats: SearchStats) -> str:
    rows: list[tuple[object, ...]] = [
        ("prefixes built", f"{stats.prefixes:,}", "distinct values that passed every check"),
        ("checks", f"{stats.checks:,}", "applications of an operator that were tested"),
        ("tensors", f"{stats.tensors:,}", "results that kernels may hand on"),
        ("candidates", f"{stats.candidates:,}", "graphs found"),
    ]
    pruned = sorted(stats.pruned.items(), key=lambda item: -item[1])
    rows += [(f"pruned by {why}", f"{count:,}", RULES.get(why, "")) for why, count in pruned]
    rows.append(("time", f"{stats.seconds:.2f} s", f"the first graph after {stats.first_seconds:.2f} s"))
    return table(rows, ["what", "count", "meaning"], numbers=(1,))
