"""Executables whose instructions all run one by one, so that what each of them does is seen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

from mirage.runtime.executable import Executable
from mirage.runtime.steps import Steps


def stepwise(executable: Executable, steps: Callable[..., Steps]) -> Executable:
    """The executable again, with instructions made by `steps`, which is called as `Steps` is."""
    with ExitStack() as patches:
        patches.enter_context(patch("mirage.runtime.function.Steps", steps))
        # what C calls in loops and straight lines is not seen
        for name in ("loop_body", "segments"):
            patches.enter_context(patch(f"mirage.runtime.{name}.launched", lambda i, make: None))
        return Executable(executable.program, executable.kernels, executable._constants, executable.facts)
