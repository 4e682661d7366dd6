"""What Dask workers preload whose process ends as soon as a step of the program `deadly` begins."""

from __future__ import annotations

import os
from typing import Any

from mirage.ir.program import Program
from tests.jobs import limited


def dask_setup(worker: Any) -> None:
    limited.dask_setup(worker)

    from_text = Program.from_text

    def deadly(text: str) -> Program:
        if text.startswith("def deadly"):
            os._exit(3)
        return from_text(text)

    setattr(Program, "from_text", deadly)  # noqa: B010
