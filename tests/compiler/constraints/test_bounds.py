"""Bounds that users give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.constraints.bounds import from_range_constraints
from mirage.errors import DimError


def test_bounds_are_ranges() -> None:
    bounds: dict[str, Any] = {"n": 4096, "b": (1, 16), "m": (2, None), "k": np.int64(7)}
    c = from_bounds(bounds)
    assert [(c.lower_bound(s), c.upper_bound(s)) for s in ("n", "b", "m", "k", "other")] == [
        (0, 4096),
        (1, 16),
        (2, None),
        (0, 7),
        (0, None),
    ]
    assert c.describe()[0] == "n <= 4096 (bounds['n'])"
    assert from_bounds({"n": 5, "m": (5, 5)}).equal("m", 5)
    assert from_bounds({}).describe() == []


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"n": -1}, r"bounds\['n'\]: -1 is not a bound"),
        ({"n": 1.5}, r"bounds\['n'\]: 1.5 is not a bound"),
        ({"n": True}, r"bounds\['n'\]: True is not a bound"),
        ({"n": "4096"}, r"bounds\['n'\]: '4096' is not a bound"),
        ({"n": None}, r"bounds\['n'\]: None is not a bound"),
        ({"n": (1, 2, 3)}, r"bounds\['n'\]: \(1, 2, 3\) is not a bound"),
        ({"n": (None, 3)}, r"bounds\['n'\]: \(None, 3\) is not a bound"),
        ({"n": (-2, 3)}, r"bounds\['n'\]: \(-2, 3\) is not a bound"),
        ({"n": (8, 4)}, r"bounds\['n'\]: the smallest size 8 is above the largest, 4; swap them"),
        ({"4*n": 16}, r"dim name '4\*n' is not an identifier"),
        ({3: 16}, "3 is not the name of a dim"),
        ([("n", 3)], "is not a mapping"),
    ],
)
def test_what_is_not_a_bound(bounds: object, message: str) -> None:
    with pytest.raises(DimError, match=message):
        from_bounds(bounds)  # type: ignore[arg-type]


def test_range_constraints_of_an_exported_program_are_bounds() -> None:
    torch = pytest.importorskip("torch")

    class Double(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2

    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(Double(), (torch.zeros(8, 4),), dynamic_shapes={"x": {0: length}})
    (bound,) = from_range_constraints(exported.range_constraints).values()
    assert bound == (2, 4096)


def test_open_ranges_have_no_bound() -> None:
    open_, wrong = SimpleNamespace(lower=0, upper=float("inf")), SimpleNamespace(lower="few", upper=3)
    assert from_range_constraints({"n": open_}) == {"n": (0, None)}
    with pytest.raises(DimError, match="few"):
        from_range_constraints({"n": wrong})
