"""What a user may say to `mirage.torch.compile`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mirage.cache import ResultStore, check_cache
from mirage.compilation import FLOAT32, check_options
from mirage.compiler.constraints.bounds import range_of
from mirage.errors import InputError, UnknownTarget
from mirage.torch.guards import Range


@dataclass(frozen=True)
class ModelOptions:
    """The options of `mirage.torch.compile`, which says what they are; raises what it does for wrong ones."""

    budget: float = 60.0
    bounds: Mapping[str, Mapping[int, Any]] | None = None
    background: bool = True
    target: str = "cpu"
    without: Collection[str] = ()
    strict: bool = False
    dynamic: bool = True
    cache: ResultStore | bool = True
    seed: int = 0
    weights: str = FLOAT32

    def __post_init__(self) -> None:
        check_options(self.budget, self.without, self.weights)
        check_cache(self.cache)
        if self.target != "cpu":
            raise UnknownTarget(f"target={self.target!r}: models of PyTorch are compiled for target='cpu' only")
        for name in ("background", "strict", "dynamic"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r} is neither True nor False")
        ranges_of(self.bounds)

    @property
    def searches(self) -> bool:
        """Whether anything is superoptimized."""
        return "superoptimize" not in self.without

    def compilation(self, search: bool) -> dict[str, Any]:
        """The options of `mirage.compile`, with a search or without one."""
        without = tuple(self.without) if search or not self.searches else (*self.without, "superoptimize")
        return {
            "budget": self.budget, "target": self.target, "without": without, "weights": self.weights, "cache": self.cache,
            "seed": self.seed,
        }  # fmt: skip


def ranges_of(bounds: Any) -> dict[str, dict[int, Range]]:
    """Bounds by the names of arguments and the numbers of dims; raises InputError or DimError for anything else."""
    how = "pass the names of arguments with their dims, such as bounds={'input_ids': {0: 8, 1: (1, 512)}}"
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping) or not all(isinstance(dims, Mapping) for dims in bounds.values()):
        raise InputError(f"bounds={bounds!r}: {how}")
    found: dict[str, dict[int, Range]] = {}
    for name, dims in bounds.items():
        found[name] = {}
        for k, bound in dims.items():
            if not isinstance(k, int) or isinstance(k, bool) or k < 0:
                raise InputError(f"bounds[{name!r}]: {k!r} is not the number of a dim; {how}")
            found[name][k] = range_of(f"{name}, dim {k}", bound)
    return found
