"""Counts of samples that were compared are printed at the end of a run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        str(value)
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for name, value in report.user_properties
        if name == "samples"
    ]
    if lines:
        terminalreporter.section("samples compared")
        terminalreporter.write_line("\n".join(sorted(set(lines))))
