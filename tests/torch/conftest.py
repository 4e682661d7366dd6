"""What tests of the backend of torch.compile share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of ATen's operators that the backend compiles, as they are called."""
    from mirage.torch.lifted import LiftedGraph

    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(LiftedGraph(*args))
        return found[-1]

    monkeypatch.setattr("mirage.torch.dynamo.LiftedGraph", noted)
    return found
