"""The benchmark of the matrix micro-kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.kernels import micro
from benchmarks.kernels.micro import Bench, Shape, measure, micro_table, shapes
from mirage.errors import InputError


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "SECONDS", 0.0)


def test_shapes_differ_and_cells_fit_the_memory() -> None:
    found = shapes()
    assert len(set(found)) == len(found)
    for s in found:
        assert not s.step or (s.k % s.step == 0 and 4 * s.bytes <= micro.BYTES)
        assert not s.stride or s.stride % s.n == 0


@pytest.mark.parametrize("kernel", [micro.OUTER, micro.STREAM, micro.DOT])
@pytest.mark.parametrize("step", [0, 16])
def test_what_is_timed_is_the_product(kernel: int, step: int) -> None:
    bench = Bench()
    seconds, read = bench.seconds(Shape("test", kernel, 3, 64, 32, step=step))
    assert seconds > 0 and (read > 0) == bool(step)
    x = bench.x[: 3 * 64].reshape(3, 64)
    flat = bench.y[: 64 * 32]
    y = flat.reshape(32, 64).T if kernel == micro.DOT else flat.reshape(64, 32)
    np.testing.assert_allclose(bench.o[: 3 * 32].reshape(3, 32), x @ y, rtol=1e-3, atol=1e-4)


def test_rows_and_their_table() -> None:
    rows = list(itertools.islice(measure(["adapter"]), 2))
    assert all(r.group == "adapter" and r.us > 0 and r.gflops > 0 and r.gbs > 0 and r.limit_share > 0 for r in rows)
    assert [line[0] for line in micro_table(rows).rows] == ["adapter", "adapter"]


def test_groups_that_do_not_exist() -> None:
    with pytest.raises(InputError, match=r"no shapes 'sores'; choose of scores, values"):
        list(measure(["scores", "sores"]))
