"""Options of torch.compile for the backend: modes, bounds, and what is said of wrong ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch.dynamo as backend  # noqa: E402
from mirage.errors import BudgetError, DimError, GuardError, InputError, MirageError, UnknownTarget  # noqa: E402
from tests.torch.compared import compiled  # noqa: E402

r = torch.randn


def test_modes_are_budgets() -> None:
    assert backend.options_of().budget == backend.options_of("default").budget
    assert backend.options_of("max-autotune").budget > backend.options_of("default").budget
    assert backend.options_of("max-autotune", {"budget": 7}).budget == 7


REFUSED: list[tuple[Any, Any, type[MirageError], str]] = [
    (None, {"budgt": 3}, InputError, "'budgt' is not known; the options are budget, bounds,"),
    ("fastest", None, InputError, "mode='fastest' is not known; use one of 'default',"),
    (None, ["budget"], InputError, "options=['budget'] is not a dict; pass options={'budget': 60}"),
    (None, {"budget": -1}, BudgetError, "budget=-1 must be a positive number of seconds"),
    (None, {"budget": "60"}, BudgetError, "budget='60' must be a positive number of seconds"),
    (None, {"without": "fuse"}, InputError, "without='fuse': the optimizations are"),
    (None, {"without": ("speed",)}, InputError, "without=('speed',): the optimizations are"),
    (None, {"target": "tpu"}, UnknownTarget, "target='tpu'"),
    (None, {"background": "yes"}, InputError, "background='yes' is neither True nor False"),
    (None, {"strict": 1}, InputError, "strict=1 is neither True nor False"),
    (None, {"bounds": {"x": 4}}, InputError, "bounds={'x': 4}: pass the names of arguments with their dims"),
    (None, {"bounds": {"x": {"n": 4}}}, InputError, "'n' is not the number of a dim"),
    (None, {"bounds": {"x": {0: (4, 2)}}}, DimError, "x, dim 0"),
]


@pytest.mark.parametrize(("mode", "options", "error", "message"), REFUSED)
def test_refused(mode: Any, options: Any, error: type[MirageError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        backend.options_of(mode, options)


def test_torch_compile_says_which_option_is_wrong() -> None:
    run = torch.compile(lambda x: x + 1, backend=backend.mirage, options={"budgt": 3})
    with pytest.raises(Exception, match=r"InputError: options: 'budgt' is not known; the options are"):
        run(r(3))


def test_bounds() -> None:
    run = compiled(lambda x: x * 2 + 1, dynamic=True, bounds={"x": {0: (2, 6)}, "other": {0: 3}})
    for n in (2, 6):
        x = r(n, 3)
        torch.testing.assert_close(run(x), x * 2 + 1)
    with pytest.raises(GuardError, match="x: dim 0 is 7, but its bounds are declared to be 2 to 6; declare larger"):
        run(r(7, 3))
    # of one size, torch makes another graph
    with pytest.raises(GuardError, match="x: dim 0 is 1, but its bounds are declared to be 2 to 6"):
        run(r(1, 3))


def test_bounds_of_a_dim_that_is_none() -> None:
    run = compiled(lambda x: x * 2, strict=False, bounds={"x": {2: 4}})
    with pytest.raises(Exception, match="InputError: bounds of 'x': there is no dim 2; it has 2, counted from 0"):
        run(r(3, 4))


def test_what_torch_knows_of_dims_are_bounds(graphs: list[Any]) -> None:
    run = compiled(lambda x: (x * 2).softmax(-1) @ x.T)
    x = r(5, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch.testing.assert_close(run(x), (x * 2).softmax(-1) @ x.T)
    (plan,) = graphs[0].graph.executable.memory_plan.values()
    assert plan.arena and not plan.storages


def test_strict_says_what_cannot_be_compiled() -> None:
    run = compiled(lambda x: x * 2)
    with pytest.raises(Exception, match="UnsupportedNode: a tensor is on meta; graphs are compiled for tensors on the"):
        run(torch.empty(3, device="meta"))


@pytest.mark.slow
def test_background(graphs: list[Any]) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    run = compiled(layer, without=(), background=True, budget=5.0, cache=False)
    x = r(4, 8)
    with torch.no_grad():
        wanted = layer(x)
        torch.testing.assert_close(run(x), wanted)
        (graph,) = graphs
        first = graph.graph
        assert "not done" in graph.told
        assert backend._laters[-1][1].wait(300)
        assert "superoptimized in the background" in graph.told and graph.graph is not first
        torch.testing.assert_close(run(x), wanted)
