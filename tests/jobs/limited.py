"""What these tests, and worker processes of theirs, run first: the limits of tuning, with a single kernel per round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirage.jobs.workers import begin_worker
from tests.api.small import limit_tuning


def limit(put: Callable[[object, str, object], None] = setattr) -> None:
    limit_tuning(put, kernels=1)


def begin_limited(parent: int) -> None:
    limit()
    begin_worker(parent)


def dask_setup(_: Any) -> None:
    """What Dask calls in a worker that preloads this module."""
    limit()
