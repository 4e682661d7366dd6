"""Whether a compiled program gives what the model does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage.errors import MirageError
from mirage.torch.program import Program

#: largest difference of two ways to compute the same, as a share of the largest element
_SHARE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
#: the same of weights in fewer bits
_NARROW = 0.1
#: the share of rows, or of whole numbers, that has to be the same where rounding may choose others, as routers of experts do
_ROWS = 0.5

#: sizes that symbols have, of which the first that a program takes, while others of them are 0 or 1; combinations of such others
_TRIED = (2, 3, 4, 6, 8, 16)
_COMBINATIONS = 15


def compared(program: Program, tensors: Sequence[Any], model: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result of a program, and how it differs from the model's, if it does; what both write to is written once."""
    with torch.no_grad():
        written = program.written(tensors)
        before = [t.clone() for t in written]
        expected = model()
        after = [t.clone() for t in written]
        _restore(written, before)
        try:
            found = program(tensors)
        except MirageError as e:
            _restore(written, before)
            return None, f"{type(e).__name__}: {e}"
        why = difference([found, *written], [expected, *after], program.narrow, program.chooses, program.halves)
        if why is not None:
            _restore(written, before)
        return found, why


def _restore(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    for t, v in zip(tensors, values, strict=True):
        t.copy_(v)


def compare_small(program: Program, dtypes: Sequence[Any], model: Callable[[Sequence[Any]], Any]) -> None:
    """Compare a program with the model where sizes are 0 and 1, in combinations, with arguments of ones.

    Torch takes sizes to be 2 and more when it exports a model. What is equal is noted in `program.checked`, what is not in
    `program.refused`; what the model itself refuses in neither.
    """
    symbols = sorted({s.name for dims in program.guards.shapes for d in dims for s in d.free_symbols})
    combinations = (set(c) for r in range(1, len(symbols)) for c in itertools.combinations(symbols, r))
    # there are as many as subsets: the first ones are made, and that of all symbols
    chosen = [*itertools.islice(combinations, _COMBINATIONS - 1), *([set(symbols)] if symbols else [])]
    for some, small in [*((c, 1) for c in chosen), *(({s}, 0) for s in symbols)]:
        for other in _TRIED:
            shapes = program.guards.shapes_at({s: small if s in some else other for s in symbols})
            found = None if shapes is None else program.small(shapes)
            if shapes is None or found is None:
                continue
            if found not in program.checked:
                tensors = [torch.ones(s, dtype=t) for s, t in zip(shapes, dtypes, strict=True)]
                states = [t.clone() for t in program.state.tensors]
                with suppress(Exception):
                    why = compared(program, tensors, lambda given=tensors: model(given))[1]  # type: ignore[misc]
                    (program.checked if why is None else program.refused).add(found)
                _restore(program.state.tensors, states)
            break


def difference(
    found: Any, expected: Any, narrow: bool = False, chooses: bool = False, halves: Collection[str] = ()
) -> str | None:
    """What differs between two results of a model, in words; None where nothing does, but for rounding: that of narrow weights
    if it is `narrow`, that which decides where a model that `chooses` is in doubt, and that of the 16-bit types that it computes
    with, `halves`, whatever type the results have.
    """
    least = max((_SHARE[getattr(torch, name)] for name in halves), default=0.0)
    leaves, spec = pytree.tree_flatten(found)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    if spec != wanted_spec:
        return f"the result is a {spec}, the model's {wanted_spec}"
    for k, (a, b) in enumerate(zip(leaves, wanted, strict=True)):
        if (why := _differ(a, b, narrow, chooses, least)) is not None:
            return f"result {k} {why}" if len(leaves) > 1 else f"the result {why}"
    return None


def _differ(a: Any, b: Any, narrow: bool, chooses: bool, least: float) -> str | None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return None if same else f"is {a!r}, the model's {b!r}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype} of shape {list(a.shape)}, the model's {b.dtype} of shape {list(b.shape)}"
    if not b.numel():
        return None
    share = _SHARE.get(b.dtype)
    if share is None and narrow:
        # whole numbers, such as the place of the largest element, may be others
        return None
    if share is None:
        wrong = int((a != b).sum())
        return f"differs in {wrong} of {b.numel()} elements" if wrong > _ROWS * bool(least) * b.numel() else None
    share = max(share, least)
    x, y = a.double(), b.double()
    finite = y.isfinite()
    if not torch.equal(x.nan_to_num(0, 1, -1)[~finite], y.nan_to_num(0, 1, -1)[~finite]) or not x[finite].isfinite().all():
        return "has infinities or NaNs in other places"
    if not finite.any():
        return None
    errors = (x - y).masked_fill(~finite, 0).abs()
    if chooses and (narrow or share > _SHARE[torch.float32]) and errors.ndim:
        # the largest of each row, of which some may be any
        rows = errors.amax(-1).flatten().sort().values
        errors = rows[: -int(len(rows) * (1 - _ROWS)) or None]
    error, largest = float(errors.max()), float(y[finite].abs().max())
    # numbers below the smallest normal one have fewer digits
    if error <= max(share, _NARROW * narrow) * (largest or 1) + torch.finfo(b.dtype).tiny:
        return None
    return f"differs by {error:.3g}, where the largest element is {largest:.3g}"
