"""C of folds over vectors, by the name of what combines two elements."""

from __future__ import annotations

from collections.abc import Mapping

#: what two vectors `{a}` and `{b}` become
COMBINE: Mapping[str, str] = {
    "sum": "{a} + {b}",
    "prod": "{a} * {b}",
    "max": "mi_maximum({a}, {b})",
    "min": "mi_minimum({a}, {b})",
}
#: the functions of a vector that give what its lanes become
_HORIZONTAL = {"sum": "mi_hsum", "prod": "mi_hproduct", "max": "mi_hmaximum", "min": "mi_hminimum"}
#: a loop over partial results
EACH_PART = "MI_UNROLL for (int part = 0; part < MI_PARTS; part++)"


def of_parts(combiner: str, name: str) -> str:
    """What all lanes of the MI_PARTS partial results of that name become."""
    combine = COMBINE[combiner]
    both = [combine.format(a=f"{name}[{k}]", b=f"{name}[{k + 1}]") for k in (0, 2)]
    return f"{_HORIZONTAL[combiner]}({combine.format(a=both[0], b=both[1])})"
