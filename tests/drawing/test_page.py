"""The page of a search: one file that needs no other, whose pictures can be explored with a mouse and with a keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage.drawing.chart import KINDS, Chart, Line, Mark
from mirage.drawing.page import Entry, Roofs, Rule, SearchPage, costs, page_html, roofline
from mirage.drawing.show import picture
from mirage.results.page import Page
from tests.drawing.browser import CONTRAST, browser, find, opened, point_at, press, until
from tests.drawing.test_show import NASTY, Tags

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 60 30" width="60" height="30"><text x="4" y="20">{}</text></svg>'


def entry(k: int, us: float | None, **more: Any) -> Entry:
    """A graph of a search, whose parts tell its number."""
    given: dict[str, Any] = {
        "plans": f"plan {k}", "kernels": 1 + k % 3, "library": k % 4 == 3, "runs": k == 0, "modelled_us": 10.0 + k, "us": us,
        "intensity": 2.0 + k, "verdict": "proved equal", "drawing": SVG.format(f"picture {k}"), "text": f"text {k}",
        "source": f"source {k}" if us is not None else "", "notes": f"notes {k}",
    }  # fmt: skip
    return Entry(**(given | more))


def page(*entries: Entry) -> SearchPage:
    return SearchPage(
        title="attention at s=16", verdict="proved equal", equal=True, best="1 kernel", time="measured", entries=entries,
        baselines={"library": 40.0}, roofs=Roofs(100.0, {"memory": 10.0, "caches": 80.0}, 100_000, "measured here"),
        rules=[Rule("indices", "an index is summed", 12, ("sum of q",)), Rule("phase", "", 3, ())],
        report=[("search", "0.1 s")], program="def attention()", program_drawing=SVG.format("program"), certificate="proved",
    )  # fmt: skip


SMALL = page(entry(0, 20.0), entry(1, 15.0), entry(2, 90.0), entry(3, None))


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with browser() as found:
        yield found


def opened_page(session: Any, content: SearchPage, folder: Path, scheme: str = "light") -> None:
    """The page in the browser, when it has drawn the first graph."""
    file = folder / "page.html"
    file.write_text(page_html(content), encoding="utf-8")
    opened(session, file, scheme)
    until(session, "document.querySelector('#panel svg')")


def text_of(session: Any, selector: str) -> str:
    return str(session.execute_script("return document.querySelector(arguments[0]).textContent", selector))


def test_the_file_needs_no_other() -> None:
    html = page_html(SMALL)
    tags = Tags(html)
    assert {"style", "script", "svg"} <= tags.names
    assert not tags.names & {"img", "iframe", "object", "base"}
    # the only address is a namespace, the only link leads into the page, the only icon is empty
    assert {a for a in re.findall(r"""(?:src|href)=["']?([^"'\s>]*)""", html)} == {"#details", "data:,"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket", html)
    assert "default-src 'none'" in html


def test_equal_pages_are_equal_files() -> None:
    assert page_html(SMALL) == page_html(SMALL)


def test_marks_lie_where_their_costs_are() -> None:
    chart = costs(SMALL)
    assert [(m.x, m.y) for m in chart.marks] == [(10.0, 20.0), (11.0, 15.0), (12.0, 90.0), (13.0, None)]
    (front,) = [line for line in chart.lines if line.kind == "front"]
    # graph 2 is worse than graph 1 in both
    assert front.points == ((10.0, 20.0), (11.0, 20.0), (11.0, 15.0))
    found = re.findall(r'data-k="(\d)".*?translate\(([\d.]+) ([\d.]+)\)', chart.element())
    at = {int(k): (float(x), float(y)) for k, x, y in found}
    assert at[0][0] < at[1][0] < at[2][0] < at[3][0]
    # upwards is slower, and what was not measured lies above all
    assert at[3][1] < at[2][1] < at[0][1] < at[1][1]


def test_the_roofline_has_what_was_measured_below_the_roofs() -> None:
    chart = roofline(SMALL)
    # 100,000 operations in 20 us
    assert [(m.number, m.x) for m in chart.marks] == [(0, 2.0), (1, 3.0), (2, 4.0)]
    assert [m.y for m in chart.marks] == pytest.approx([5.0, 100 / 15, 100 / 90])
    roofs = {line.text: line.points for line in chart.lines}
    assert roofs["memory: 10 GB/s"][1] == (10.0, 100.0)
    assert roofs["caches: 80 GB/s"][1] == (1.25, 100.0)
    for name, gbs in (("memory", 10), ("caches", 80)):
        assert all(y == pytest.approx(x * gbs) for x, y in roofs[f"{name}: {gbs} GB/s"])
    unknown = roofline(page(entry(0, 20.0, intensity=None), entry(1, None)))
    assert not unknown.marks and unknown.lines
    # of some machines only one or none of the limits is known
    for limits, count in ((Roofs(0.0, {"memory": 10.0}, 10, ""), 1), (Roofs(0.0, {"memory": 0.0}, 10, ""), 0)):
        chart = roofline(replace(SMALL, roofs=limits))
        assert len(chart.lines) == count and len(chart.marks) == 3 and chart.element().startswith("<svg")


@pytest.mark.parametrize("entries", [(), (entry(0, None),), (entry(1, 5.0),)], ids=["none", "unmeasured", "alone"])
def test_pages_of_little_are_drawn(entries: tuple[Entry, ...]) -> None:
    html = page_html(replace(page(*entries), rules=(), baselines={}))
    assert Tags(html).names >= {"svg", "table"} and "nothing was pruned" in html
    assert "nan" not in html.replace("nance", "") and picture(costs(page(*entries))).startswith("<svg")


def test_a_reference_far_away_is_left_out() -> None:
    marks = [Mark(0, "kernels", 1.0, 10.0, "m")]
    near, far = (Chart("t", "x", "y", marks, [Line("reference", ((1.0, us),), "library")]).element() for us in (20.0, 2e6))
    assert "library" in near and "library" not in far


def test_kinds_of_marks_differ_in_shape_and_in_every_colour_vision() -> None:
    assert len({path for _, path in KINDS.values()}) == len(KINDS)
    # full loss of the long and of the middle cones: Machado, Oliveira and Fernandes, 2009
    sights = [
        np.eye(3),
        np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
        np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    ]
    colors = [np.array([int(fill[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for fill, _ in KINDS.values()]
    for sight in sights:
        seen = [np.clip(sight @ c**2.2, 0, 1) ** (1 / 2.2) for c in colors]
        assert min(float(np.linalg.norm(a - b)) for i, a in enumerate(seen) for b in seen[:i]) > 0.2


def test_a_mouse_explores_it(session: Any, tmp_path: Path) -> None:
    opened_page(session, SMALL, tmp_path)
    assert len(session.find_elements("css selector", "[aria-labelledby=h-costs] .mark")) == 4
    assert text_of(session, "#h-details") == "Graph 0" and text_of(session, "#panel") == "picture 0"
    point_at(session, find(session, ".mark[data-k='1']"))
    until(session, "document.querySelector('#preview:not([hidden]) svg')")
    assert "plan 1" in text_of(session, "#preview p") and text_of(session, "#preview svg") == "picture 1"
    find(session, ".mark[data-k='1']").click()
    until(session, "document.querySelector('#panel pre')?.textContent === 'source 1'")
    assert find(session, "#tab-source").get_attribute("aria-selected") == "true"
    for tab, found in (("text", "text 1"), ("notes", "notes 1"), ("drawing", "picture 1")):
        find(session, f"#tab-{tab}").click()
        until(session, f"document.querySelector('#panel').textContent === '{found}'")
    # one that was not compiled says so
    find(session, "[aria-labelledby=h-costs] .mark[data-k='3']").click()
    until(session, "document.querySelector('#panel pre')?.textContent.includes('was not compiled')")
    # by the measured time, the fastest first, and what was not measured last
    find(session, "th button[data-sort='3']").click()
    assert [r.get_attribute("data-k") for r in session.find_elements("css selector", "tbody tr[data-k]")] == ["1", "0", "2", "3"]
    find(session, "#filter").send_keys("PLAN 2")
    assert [r.get_attribute("data-k") for r in session.find_elements("css selector", "tbody tr[data-k]")] == ["2"]
    find(session, "tbody tr[data-k='2'] button").click()
    until(session, "document.querySelector('#h-details').textContent === 'Graph 2'")
    find(session, "details.rule summary").click()
    assert "sum of q" in find(session, "details.rule").text
    assert session.get_log("browser") == []


def test_a_keyboard_explores_it(session: Any, tmp_path: Path) -> None:
    opened_page(session, SMALL, tmp_path)
    press(session, "TAB")
    assert session.execute_script("return document.activeElement.className") == "skip"
    press(session, "TAB")
    focused = "document.activeElement.dataset.k"
    assert session.execute_script(f"return {focused}") == "0"
    style = "getComputedStyle(document.activeElement)"
    assert session.execute_script(f"return [{style}.outlineStyle, {style}.outlineWidth]") == ["solid", "3px"]
    press(session, "ARROW_RIGHT", "ARROW_RIGHT")
    assert session.execute_script(f"return {focused}") == "2"
    until(session, "document.querySelector('#preview:not([hidden]) svg')?.textContent === 'picture 2'")
    press(session, "ESCAPE")
    assert not find(session, "#preview").is_displayed()
    press(session, "HOME", "ENTER")
    until(session, "document.querySelector('#panel pre')?.textContent === 'source 0'")
    assert find(session, "[aria-labelledby=h-costs] .mark[data-k='0']").get_attribute("aria-selected") == "true"
    # a chart is one stop, then come the tabs, which arrows change, and what they show
    press(session, "TAB")
    assert session.execute_script("return document.activeElement.id") == "tab-source"
    press(session, "ARROW_RIGHT")
    assert session.execute_script("return document.activeElement.id") == "tab-text"
    until(session, "document.querySelector('#panel').textContent === 'text 0'")
    press(session, "TAB")
    assert session.execute_script("return document.activeElement.id") == "panel"
    seen = set()
    for _ in range(40):
        press(session, "TAB")
        where = session.execute_script("return document.activeElement.closest('section')?.getAttribute('aria-labelledby')")
        if where is None:
            break
        seen.add(where)
    assert seen == {"h-roofline", "h-rules", "h-table", "h-report", "h-program"}
    assert session.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_both_schemes_and_everything_has_a_name(session: Any, tmp_path: Path, scheme: str) -> None:
    opened_page(session, SMALL, tmp_path, scheme)
    for selector in ("h1", "h2", "p", ".facts li", ".badge", "button", ".chart text", "summary", ".meaning", "td", "th button"):
        assert session.execute_script(CONTRAST, find(session, selector)) >= 4.5, selector
    dark = session.execute_script("return getComputedStyle(document.body).backgroundColor").startswith("rgb(18")
    assert dark == (scheme == "dark")
    for element in session.find_elements("css selector", "button, input, [role], section, table, summary, a"):
        if element.get_attribute("role") not in ("tooltip", "status") and element.tag_name != "table":
            assert element.accessible_name.strip(), element.get_attribute("outerHTML")[:200]


def test_names_are_never_markup(session: Any, tmp_path: Path) -> None:
    bad = f"{NASTY}<img src=x onerror=\"window.hit=1\"></script><script>window.hit=1</script>"
    nasty = entry(0, 3.0, plans=bad, verdict=bad, text=bad, source=bad, notes=bad)
    content = replace(
        page(nasty), title=bad, verdict=bad, best=bad, program=bad, certificate=bad, baselines={bad: 3.0}, report=[(bad, bad)],
        rules=[Rule(bad, bad, 3, (bad,))], roofs=Roofs(10.0, {bad: 3.0}, 10, bad),
    )  # fmt: skip
    opened_page(session, content, tmp_path)
    for tab in ("source", "text", "notes"):
        find(session, f"#tab-{tab}").click()
        until(session, "document.querySelector('#panel pre')?.textContent.includes('onerror')")
    point_at(session, find(session, ".mark"))
    until(session, "document.querySelector('#preview:not([hidden]) svg')")
    assert session.execute_script("return [window.hit, document.images.length, document.scripts.length]") == [None, 0, 2]
    assert session.get_log("browser") == []


def test_a_notebook_shows_it_in_a_frame(session: Any, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><body>{Page(page_html(SMALL))._repr_html_()}</body>", encoding="utf-8")
    opened(session, file)
    session.switch_to.frame(find(session, "iframe"))
    until(session, "document.querySelector('#panel svg')?.textContent === 'picture 0'")
    # what runs in it reaches nothing of the notebook
    assert session.execute_script("return window.origin") == "null"
    find(session, ".mark[data-k='1']").click()
    until(session, "document.querySelector('#panel pre')?.textContent === 'source 1'")
    session.switch_to.default_content()
    assert session.get_log("browser") == []


def test_a_thousand_graphs_are_one_small_file(session: Any, tmp_path: Path) -> None:
    boxes = "".join(f'<rect x="{i}" y="{i}" width="9" height="9" fill="#fff3d6" stroke="#c79a3b"/>' for i in range(120))
    drawn = SVG.replace("<text", boxes + "<text")
    code = "int x;\n" * 900
    many = [
        entry(k, 10.0 + k % 97 if k < 60 else None, drawing=drawn.format(f"picture {k}"), source=f"source {k}\n{code}")
        for k in range(1000)
    ]
    content = page(*many)
    assert len(page_html(content)) < 1_500_000 < sum(len(e.drawing) for e in many)
    opened_page(session, content, tmp_path)
    assert len(session.find_elements("css selector", "tbody tr[data-k]")) == 1000
    session.execute_script("document.querySelector(\".mark[data-k='999']\").focus()")
    until(session, "document.querySelector('#preview:not([hidden]) svg')?.textContent === 'picture 999'")
    press(session, "ENTER")
    until(session, "document.querySelector('#h-details').textContent === 'Graph 999'")
    assert session.get_log("browser") == []
