"""The benchmark of symmetric products."""

from __future__ import annotations

import pytest

from benchmarks.kernels import symmetric
from mirage.errors import InputError


def test_a_row_has_all_versions_and_a_kernel_with_half_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TUNE", 0.001), ("RACE", 0.001), ("RACES", 1), ("_FIRST", 1), ("_NEAR", 1), ("_STEPS", 1)):
        monkeypatch.setattr(symmetric, name, value)
    (row,) = symmetric.measure(["33x5"])
    assert (row.rows, row.terms) == (33, 5) and {"all", "half", "NumPy"} <= row.times.keys()
    assert all(0 < least <= median for least, median in row.times.values())
    table = symmetric.symmetric_table([row])
    assert table.rows[0][0] == "33 x 5" and all(len(line) == len(table.header) for line in table.rows)


def test_what_is_no_shape_is_refused() -> None:
    for shape in ("33", "33x", "axb", "1x2x3"):
        with pytest.raises(InputError, match="is no shape; write rows and terms as in 64x256"):
            list(symmetric.measure([shape]))
