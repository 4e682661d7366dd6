"""Runs a notebook in this process, cell by cell, and shows what its cells end with as a notebook would.

A process of its own, because notebooks register operators and rules: `python -m tests.docs.notebook FILE`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.api.small import BUDGET, limit_tuning


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def shown(value: object) -> bool:
    """Whether a value has a view, which is made; values without one are shown by their `repr`."""
    views = [view() for name in ("_repr_html_", "_repr_svg_") if (view := getattr(value, name, None)) is not None]
    return any(views) or bool(repr(value))


def run(path: Path) -> None:
    """Run all cells; fails where one does, or where what it shows cannot be shown."""
    names: dict[str, Any] = {}
    for k, cell in enumerate(code_cells(path)):
        # a number of kernels ends tuning, on any machine
        source = re.sub(r"\bbudget=\d+", f"budget={BUDGET}", "".join(cell["source"]))
        body = ast.parse(source, f"{path.name}[{k}]")
        last = body.body[-1] if body.body else None
        if isinstance(last, ast.Expr):
            body.body.pop()
        exec(compile(body, f"{path.name}[{k}]", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{path.name}[{k}]", "eval"), names)
            assert value is None or shown(value), f"{path.name}[{k}]"


if __name__ == "__main__":
    limit_tuning()
    run(Path(sys.argv[1]))
