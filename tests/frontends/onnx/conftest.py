"""Counts of ONNX's own tests are printed at the end of a run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [(name, str(value)) for r in reports if r.when == "call" for name, value in r.user_properties]
    lines = sorted(value for name, value in found if name == "onnx")
    if lines:
        terminalreporter.section("ONNX's own backend tests")
        terminalreporter.write_line("\n".join(lines))
