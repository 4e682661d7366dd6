"""Certificates as HTML: the verdict, and a row per kind of evidence."""

from __future__ import annotations

from mirage.drawing.html import folded, heading, table
from mirage.drawing.show import View, show
from mirage.verify.certificate import Certificate, power_text

#: how verdicts are coloured; others are open
_TONES = {"proved equal": "good", "tested equal": "good", "different": "bad"}


@show.register
def _(certificate: Certificate) -> View:
    c = certificate
    bound = "none" if c.error_bound is None else f"at most {power_text(c.error_bound)}"
    rows = [
        ("proof for all sizes", c.proof),
        ("random tests", f"{c.tests}, with {len(c.checks)} pairs of primes; error {bound}" if c.checks else "none"),
        ("running maxima", "safe" if c.safe_maximum else f"unsafe: {c.maximum_reason}"),
    ]
    rows += [("by rule", step) for step in c.chain]
    if c.condition is not None:
        rows.append(("only where", c.condition))
    if not c.equal:
        rows.append(("reason", c.reason))
    rows += [("note", note) for note in c.notes]
    tone = "open" if c.condition is not None else _TONES.get(c.verdict, "open")
    return View(html=heading("Certificate", c.verdict, tone) + table(rows) + folded("all draws", str(c)))
