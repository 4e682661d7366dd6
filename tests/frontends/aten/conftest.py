"""Counts of what was compared with eager torch are printed at the end of a run."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [(name, str(value)) for r in reports if r.when == "call" for name, value in r.user_properties]
    lines = sorted(value for name, value in found if name == "samples")
    core = Counter(value for name, value in found if name == "core")
    if core:
        lines.append(f"core overloads: {', '.join(f'{n} {what}' for what, n in sorted(core.items()))}")
    if lines:
        terminalreporter.section("compared with eager torch")
        terminalreporter.write_line("\n".join(lines))
