"""What ends tuning for the processor does not limit what is made for a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirage.search import rank
from tests.api.small import RIVALS


@pytest.fixture(scope="module")
def few_kernels() -> Iterator[None]:
    """A few kernels are compiled, for any sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "MAX_RIVALS", RIVALS)
        yield
