"""Results of a superoptimization in notebooks: the report with the verdict, and the graph that a call runs."""

from __future__ import annotations

from mirage.drawing.html import folded, heading, table
from mirage.drawing.show import View, show
from mirage.results.result import Result


@show.register
def _(result: Result) -> View:
    """The picture is that of the best graph; there is none where a library version is best."""
    svg, verdict = show(result.best).svg, result.certificate.verdict
    head = heading(result.title, verdict, "good" if result.certificate.equal else "open")
    report = head + table(result.report_rows(), ["what", "figure"]) + folded("certificate", str(result.certificate))
    return View(svg=svg, html=report + (svg or ""))
