"""What ends tuning for the processor does not limit what is made for a device."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def few_kernels() -> None:
    """Kernels are compiled for all sizes."""
