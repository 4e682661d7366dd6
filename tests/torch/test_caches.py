"""Caches under torch.compile: what is written to a part of an input is written in place, where nothing reads the old value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.ir.operators.in_place import EFFECTS  # noqa: E402
from mirage.runtime.program import CallOperator, CallPacked  # noqa: E402
from tests.torch.compared import check_call, compiled  # noqa: E402

r = torch.randn


def _index_copy(c: Any, at: Any, new: Any) -> Any:
    c.index_copy_(2, at, new)
    return c.sum(-1) + 1


def _index_put(c: Any, at: Any, new: Any) -> Any:
    c[:, :, at] = new
    return c * 2


def _slice(c: Any, t: int, new: Any) -> Any:
    c[:, t : t + 2] = new
    return c * 2


def _select(c: Any, new: Any) -> Any:
    c[:, 3] = new
    return c.sum(1), c[:, 2:4] + 0


def _several(c: Any, new: Any) -> Any:
    c[:, 1:3] = new
    c[0, :2] = 7
    c[1] = c[0]
    return c.T @ c


def _returned(c: Any, new: Any) -> Any:
    c[:, 1:3] = new
    return c.clone(), c


def _read_before(c: Any, new: Any) -> Any:
    old, part, flat = c.clone(), c[0] + 0, c.view(-1)
    kept = flat * 1
    c[:, 1:3] = new
    return old, part, kept, flat.sum()


def _old_read_after(c: Any, new: Any) -> Any:
    updated = c.slice_scatter(new, 1, 1, 3)
    total = c.sum()
    c.copy_(updated)
    return total, updated


def _added(c: Any, at: Any, new: Any) -> Any:
    c.index_put_((at,), new, accumulate=True)
    return c * 1


def _steps(c: Any, new: Any) -> Any:
    c[:, ::2] = new
    return c.sum()


POSITIONS = torch.tensor([5, 1])
#: a function, its arguments, the effects that it compiles to, and whether a copy of the cache is made
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, int], bool]] = {
    "index_copy": (_index_copy, lambda: (r(2, 3, 8, 4), POSITIONS, r(2, 3, 2, 4)), {"scatter_": 1}, False),
    "index_put": (_index_put, lambda: (r(2, 3, 8), POSITIONS, r(2, 3, 2)), {"scatter_": 1}, False),
    "slice": (_slice, lambda: (r(2, 8), 3, r(2, 2)), {"update_slice_": 1}, False),
    "select": (_select, lambda: (r(2, 8), r(2)), {"update_slice_": 1}, False),
    "returned": (_returned, lambda: (r(2, 8), r(2, 2)), {"update_slice_": 1}, False),
    "read before": (_read_before, lambda: (r(2, 8), r(2, 2)), {"update_slice_": 1}, False),
    "steps": (_steps, lambda: (r(2, 8), r(2, 4)), {"scatter_": 1}, False),
    "the old value read after": (_old_read_after, lambda: (r(2, 8), r(2, 2)), {"copy_": 1}, True),
    "several": (_several, lambda: (r(2, 8), r(2, 2)), {"update_slice_": 3}, False),
    "added": (_added, lambda: (r(8, 2), torch.tensor([1, 1, 3]), r(3, 2)), {"copy_": 1}, True),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_in_place(name: str, graphs: list[Any]) -> None:
    fn, arguments, effects, copies = CASES[name]
    run = compiled(fn, dynamic=False)
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            check_call(fn, run, arguments())
    (lifted,) = graphs
    code = [i for f in lifted.graph.executable.program for i in f.code]
    assert Counter(i.function for i in code if isinstance(i, CallPacked) and i.function in EFFECTS) == effects
    if not copies:
        assert not [i for i in code if isinstance(i, CallOperator) and i.operator in ("scatter", "update_slice")]


def test_positions_outside_of_a_cache() -> None:
    run = compiled(_index_copy)
    cache = torch.zeros(2, 3, 8, 4)
    with pytest.raises(Exception, match="index 8 is outside of a dim of 8 elements"):
        run(cache, torch.tensor([1, 8]), r(2, 3, 2, 4))
    assert not cache.any()


def test_a_static_cache_that_another_graph_reads_is_no_constant(graphs: list[Any]) -> None:
    cache = torch.zeros(4, 3)
    torch._dynamo.mark_static_address(cache)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.register_buffer("scale", torch.full((3,), 2.0))

        def forward(self, x: Any, write: bool) -> Any:
            if write:
                cache[1] = x
            return cache @ self.layer(x * self.scale)

    model = Model()
    run = compiled(model)
    with torch.no_grad():
        for k, write in enumerate((True, False, True, False, False)):
            x = torch.full((3,), float(k))
            kept = cache.clone()
            found = run(x, write)
            if write:
                kept[1] = x
            torch.testing.assert_close(cache, kept)
            torch.testing.assert_close(found, kept @ model.layer(x * model.scale))
    assert [len(g.graph.constants) for g in graphs] == [3, 3]
