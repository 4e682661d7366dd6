"""Models of PyTorch that were compiled, shown as what they say of themselves."""

from __future__ import annotations

from mirage.drawing.html import folded, heading, table
from mirage.drawing.show import View, show
from mirage.torch.model import CompiledModel
from mirage.torch.programs import CompiledPrograms


@show.register
def _(model: CompiledModel) -> View:
    return _programs(model)


@show.register
def _(programs: CompiledPrograms) -> View:
    return _programs(programs)


def _programs(model: CompiledModel | CompiledPrograms) -> View:
    """A row per program, and `explain`."""
    rows = [
        (k, p.signature(), p.imported.native.total(), p.imported.fallback.total(), p.told)
        for k, p in enumerate(model.programs)
    ]
    head = ["program", "for", "operators", "calls of ATen's own", "kernels"]
    return View(html=heading(repr(model)) + table(rows, head, numbers=(0, 2, 3)) + folded("explain()", model.explain()))
