"""What tests of jobs share: the command line, and limits of tuning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import command, micro_kernels
from tests.jobs.limited import limit

__all__ = ["command", "micro_kernels"]


@pytest.fixture(scope="module", autouse=True)
def one_kernel() -> Iterator[None]:
    """What ends tuning is a number of kernels and of sizes, on every machine; races are short."""
    with pytest.MonkeyPatch.context() as patch:
        limit(patch.setattr)
        yield
