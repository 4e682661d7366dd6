"""What notebooks display: every kind of object has a view, names in it are text and never markup, and `repr` stays short."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

import mirage as mi
from mirage.api import verify
from mirage.drawing.html import folded, heading, table
from mirage.drawing.show import Displayed, View, picture, show
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.mugraph.reference import reference_graph
from mirage.search.decision import Version
from mirage.search.generate import SearchResult, generate
from mirage.search.stats import RULES, SearchStats
from mirage.search.stream import Search
from tests.api.small import BUDGET, adapter, limit_tuning

SIZES = {"b": 3, "n": 5}
#: tags that stand alone
_VOID = {"meta", "br", "input", "link", "hr", "img"}


class Tags(HTMLParser):
    """Fails on tags that are not closed in order; `names` are those that occur, `text` is what is read."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return generate(to_axes(adapter.trace()), SIZES)


def drawn(thing: Displayed) -> None:
    """Fails unless the thing is displayed as a picture."""
    svg = thing._repr_svg_()
    assert svg is not None
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert svg == picture(thing) == show(thing).svg


def test_programs_graphs_and_executables_are_pictures(found: SearchResult) -> None:
    program = adapter.trace()
    compiled = mi.compile(adapter.fn, adapter.specs, without=("superoptimize",), bounds={"b": 4, "n": 8})
    for thing in (adapter, program, mi.trace_module(adapter.fn, adapter.specs), found.graphs[0], compiled):
        drawn(thing)
    assert picture(adapter) == picture(program)
    texts = [e.text for e in ElementTree.fromstring(picture(program)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"adapter", "x", "relu", "float32[b, 8]", "result"} <= set(texts)


def test_searches_and_certificates_are_tables(found: SearchResult) -> None:
    page = Tags(found._repr_html_() or "")
    assert f"Search: {len(found.graphs)} graphs" in page.text
    assert all(g.origin in page.text for g in found.graphs[:20])
    stats = Tags(found.stats._repr_html_() or "")
    for why, count in found.stats.pruned.items():
        assert f"pruned by {why}{count:,}{RULES[why]}" in stats.text
    search = Search(to_axes(adapter.trace()), SIZES)
    search.advance(0)
    assert "prefixes built" in Tags(search._repr_html_() or "").text and search._repr_svg_() is None
    certificate = verify(adapter, adapter)
    text = Tags(certificate._repr_html_() or "").text
    assert "proved equal" in text and str(certificate).splitlines()[1].strip() in text
    different = verify(adapter, mi.trace(lambda x, w, v: x, "other", **adapter.specs))
    assert "different" in Tags(different._repr_html_() or "").text
    assert found._repr_svg_() is None and certificate._repr_svg_() is None


def test_every_rule_that_prunes_has_a_meaning(found: SearchResult) -> None:
    assert found.stats.pruned
    assert found.stats.pruned.keys() <= RULES.keys()


def test_a_result_shows_its_report_and_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    result = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    page = Tags(result._repr_html_() or "")
    assert result.title in page.text and all(what in page.text for what, _ in result.report_rows())
    assert (result._repr_svg_() is None) == (result.best.graph is None) == ("svg" not in page.names)
    assert result.graphs[0]._repr_svg_() == picture(result.graphs[0].graph)
    # of a dataclass it would be all of its parts
    assert repr(result) == f"Superoptimized(adapter at b=3, n=5 on cpu: {result.best})"
    assert "adapter" in result.report()._repr_mimebundle_([], [])["text/html"]


def test_a_version_without_a_graph_has_no_picture() -> None:
    version = Version("library")
    assert version._repr_svg_() is None
    with pytest.raises(InputError, match=r"library \(NumPy\): there is no graph to draw"):
        picture(version)


def test_anything_else_has_no_view_until_it_is_registered() -> None:
    class Thing(Displayed):
        pass

    with pytest.raises(InputError, match="Thing objects have no view; register one with"):
        show(Thing())
    with pytest.raises(InputError, match="int objects have no view"):
        show(3)
    show.register(Thing, lambda _: View(html="<p>thing</p>"))
    assert Thing()._repr_html_() == "<p>thing</p>"
    assert Thing()._repr_svg_() is None


def test_text_beside_a_picture_is_that_of_print() -> None:
    class Printer:
        found = ""

        def text(self, text: str) -> None:
            self.found += text

    printer, program = Printer(), adapter.trace()
    program._repr_pretty_(printer, cycle=False)
    assert printer.found == str(program)


NASTY = '<script>alert("&")</script>\x07\u202e'


@pytest.mark.parametrize(
    "html",
    [
        table([[NASTY, 3]], [NASTY, "n"], numbers=(1,)),
        heading(NASTY, NASTY, "bad"),
        folded(NASTY, f"{NASTY}\n{NASTY}"),
        SearchStats(stop_reason=NASTY, pruned={NASTY: 3})._repr_html_(),
    ],
)
def test_names_are_text_and_never_markup(html: str) -> None:
    page = Tags(html)
    assert "script" not in page.names
    assert '<script>alert("&")</script>\ufffd' in page.text
    assert "\x07" not in html


def test_the_reference_graph_is_drawn() -> None:
    drawn(reference_graph(to_axes(adapter.trace())))
