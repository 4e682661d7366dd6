"""What makes kernels for which target."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from mirage.compiler.kernels.maker import KernelMaker
from mirage.kernels.target import get_target


def kernels_for(target: str) -> KernelMaker:
    """What makes kernels for the target of that name; raises UnknownTarget."""
    machine = get_target(target)
    return cast(KernelMaker, import_module(machine.kernels).maker(machine))
