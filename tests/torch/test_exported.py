"""mirage.compile of what torch.export gave."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage as mi  # noqa: E402
from mirage.errors import GuardError, InputError  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "cache": False}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any, other: Any, *, shift: Any = None, flag: bool = True) -> Any:
        return {"y": self.inner(x) + other["b"] - shift, "n": x.shape[0]}


def arguments(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(n, 4), {"b": torch.randn(4)}), {"shift": torch.randn(n, 1), "flag": True}


@pytest.fixture(scope="module")
def exported() -> Any:
    n = torch.export.Dim("n", max=64)
    args, kwargs = arguments(3)
    dynamic = {"x": {0: n}, "other": {"b": None}, "shift": {0: n}, "flag": None}
    return torch.export.export(Model(), args, kwargs, dynamic_shapes=dynamic)


@pytest.fixture(scope="module")
def run(exported: Any) -> Any:
    return mi.compile(exported, **FAST)


@pytest.mark.parametrize("n", [2, 1, 9, 64])
def test_it_is_called_as_its_module(exported: Any, run: Any, n: int) -> None:
    args, kwargs = arguments(n)
    with torch.no_grad():
        found, expected = run(*args, **kwargs), Model()(*args, **kwargs)
    torch.testing.assert_close(found["y"], expected["y"])
    assert found["n"] == n
    reordered = run(*args, **dict(reversed(kwargs.items())))
    torch.testing.assert_close(reordered["y"], expected["y"])


def test_sizes_beyond_those_declared_are_refused(run: Any) -> None:
    args, kwargs = arguments(65)
    with pytest.raises(GuardError, match=r"no program takes x \[65, 4\].*\n.* <= 64"):
        run(*args, **kwargs)
    args, kwargs = arguments(3)
    with pytest.raises(GuardError, match=r"shift \[2, 1\]"):
        run(*args, **{**kwargs, "shift": torch.randn(2, 1)})


def test_other_arguments_are_refused(run: Any) -> None:
    args, kwargs = arguments(3)
    with pytest.raises(InputError, match=r"it takes\n.*flag: True"):
        run(*args, **{**kwargs, "flag": False})
    with pytest.raises(InputError, match="it takes"):
        run(args[0], **kwargs)


def test_bounds_are_by_input(exported: Any) -> None:
    run: Any = mi.compile(exported, bounds={"x": {0: 8}}, **FAST)
    assert "8" in run.programs[0].graph.executable.explain().partition("function")[0]
    with pytest.raises(InputError, match="there is no tensor 'n'; the tensors are x, other_b, shift"):
        mi.compile(exported, bounds={"n": {0: 8}}, **FAST)


@pytest.mark.parametrize("option", [{"specs": {"x": mi.tensor("n")}}, {"constants": ("x",)}])
def test_options_without_a_meaning_are_refused(exported: Any, option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has no meaning for an exported program"):
        mi.compile(exported, **option, **FAST)
