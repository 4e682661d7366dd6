"""What worker processes of these tests run first: the limits of tuning that tests have."""

from __future__ import annotations

from typing import Any

from mirage.jobs.workers import begin_worker
from tests.api.small import limit_tuning


def begin_limited(parent: int) -> None:
    limit_tuning()
    begin_worker(parent)


def dask_setup(_: Any) -> None:
    """What Dask calls in a worker that preloads this module."""
    limit_tuning()
