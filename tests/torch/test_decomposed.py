"""Which exported programs are imported as they are, and which torch splits into core operators first."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage as mi  # noqa: E402
import mirage.torch  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.frontends.imported import Imported  # noqa: E402
from mirage.torch.export import decomposed  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",)}


class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
    """What needs no splitting: linear layers, views, a norm, dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        seen = torch.diff(torch.arange(x.shape[1] + 1), dim=0).bool() & torch.ones(x.shape[1], dtype=torch.bool)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, :])
        return x + self.drop(self.out(y.transpose(1, 2).flatten(2))).to(torch.float32)


def exported(model: Any, x: Any) -> Any:
    return torch.export.export(model.eval(), (x,), dynamic_shapes=({1: torch.export.Dim("n", max=64)},), strict=False)


def test_what_can_be_imported_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    with torch.no_grad():
        program = exported(model, x)
        assert decomposed(program) is program
        imports: list[Any] = []

        def counted(*args: Any, **kwargs: Any) -> Imported:
            imports.append(args)
            return import_graph(*args, **kwargs)

        monkeypatch.setattr("mirage.torch.export.import_graph", counted)
        run = mi.compile(program, **FAST)
        assert len(imports) == 1
        for n in (1, 2, 17):
            x = torch.randn(2, n, 8)
            torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A batch normalization, which has no lowering of its own, and an operator that writes, before a list of what follows."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.norm, self.writes = torch.nn.BatchNorm1d(4), writes

    def forward(self, x: Any) -> Any:
        if self.writes:
            return x.clone().mul_(2) + 1
        y = self.norm(x)
        return torch.cat([y, y * 2], dim=1)


@pytest.mark.parametrize("writes", (False, True))
def test_what_cannot_is_split(writes: bool) -> None:
    model = Scaled(writes).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=64)},), strict=False)
        assert decomposed(program) is not program
        torch.testing.assert_close(mi.compile(program, **FAST)(x), model(x), rtol=1e-5, atol=1e-5)


def test_what_would_be_split_into_checks_with_effects_is_called_whole() -> None:
    """The check that there is a result is an effect, which a program of tensors does not have."""

    def solved(a: Any, b: Any) -> Any:
        return torch.linalg.inv(a) @ b, torch.linalg.solve(a, b), torch.linalg.cholesky(a)

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return solved(a, torch.relu(b))

    run = mirage.torch.compile(Model(), **FAST)
    with torch.no_grad():
        for n in (3, 5):
            x = torch.randn(2, n, n)
            given = x @ x.mT + torch.eye(n), torch.randn(2, n, 2)
            torch.testing.assert_close(run(*given), Model()(*given), rtol=1e-4, atol=1e-4)
        assert len(run.programs) == 1
        with pytest.raises(mi.MirageError, match="linalg"):
            run(torch.zeros(2, 5, 5), given[1])
