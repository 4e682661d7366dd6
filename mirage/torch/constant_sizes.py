"""Which sizes an export takes as constants, as formulas of them grow too large.

torch simplifies the formula of every new size, in a time that grows exponentially with the formula: windows of attention that are
padded, as Swin's, take minutes. Such formulas come of the height and width of images, which hardly change between calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

#: quotients and remainders in the formula of a size: those of Swin's second layer of windows take half a minute
_LARGEST = 32


class FormulaTooLarge(Exception):
    """A formula of sizes is too large; `dims` are those that it is of, as the numbers of a tensor and of a dim."""

    def __init__(self, formula: sympy.Expr, dims: frozenset[tuple[int, int]]) -> None:
        super().__init__(f"a size has {_functions(formula)} quotients and remainders of others")
        self.dims = dims


class LimitFormulas(TorchFunctionMode):  # type: ignore[misc]
    """Raises FormulaTooLarge for a result of torch's functions whose sizes have too large formulas of the sizes of `tensors`."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self._tensors = tensors
        self._small: set[sympy.Expr] = set()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for t in pytree.tree_leaves(result):
            for formula in _formulas(t):
                if formula in self._small:
                    continue
                if _functions(formula) > _LARGEST:
                    raise FormulaTooLarge(formula, self._dims(formula))
                self._small.add(formula)
        return result

    def _dims(self, formula: sympy.Expr) -> frozenset[tuple[int, int]]:
        """The dims of tensors that a formula names most often: not the batch, which is a factor of it."""
        counts = Counter(x for x in sympy.preorder_traversal(formula) if x.is_Symbol)
        often = {s for s, n in counts.items() if 2 * n >= max(counts.values())}
        return frozenset(
            (k, d)
            for k, t in enumerate(self._tensors)
            for d, n in enumerate(t.shape)
            if isinstance(n, torch.SymInt) and n.node.expr.free_symbols & often
        )


def _functions(formula: sympy.Expr) -> int:
    return sum(isinstance(x, sympy.Function) for x in sympy.preorder_traversal(formula))


def _formulas(value: Any) -> list[sympy.Expr]:
    """The formulas of a tensor's sizes."""
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return [n.node.expr for n in sizes if isinstance(n, torch.SymInt)]
