"""Pattern kinds, found from what is read and written (Relax, Algorithm 1)."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.ir.loops.analysis import Kind, pattern_kind
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import tensor
from tests.ir.loops.programs import programs

ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, OUTPUT_FUSIBLE, OPAQUE = Kind

KINDS = {
    "masked_softmax": REDUCTION,
    "doubled": ELEMENTWISE,
    "causal": ELEMENTWISE,
    "rotary": INJECTIVE,
    "embedding": INJECTIVE,
    "take_along": INJECTIVE,
    "concatenated": INJECTIVE,
    "padded": INJECTIVE,
    "beside_reductions": REDUCTION,
    "reversed_rows": INJECTIVE,
    "steps": INJECTIVE,
    "transposed": INJECTIVE,
    "extremes": REDUCTION,
    "columns": OPAQUE,
    "matmul_relu": OUTPUT_FUSIBLE,
    "rows_times_rows": OUTPUT_FUSIBLE,
    "integers": ELEMENTWISE,
    "counts": OPAQUE,
    "mixed": ELEMENTWISE,
    "cast_layer_norm": REDUCTION,
    "normalized_by_all": OPAQUE,
    "halves": OUTPUT_FUSIBLE,
    "conversions": ELEMENTWISE,
    "doubles": REDUCTION,
    "keep_ones": ELEMENTWISE,
    "scalars": OPAQUE,
    "regrouped": INJECTIVE,
    "stacked": INJECTIVE,
    "interleaved": INJECTIVE,
    "shuffled": INJECTIVE,
    "merged_heads": REDUCTION,
    "split_heads": REDUCTION,
    "softmax_columns": REDUCTION,
    "quantized": ELEMENTWISE,
    "dequantized": ELEMENTWISE,
    "stored": OPAQUE,
}


def test_every_program_has_a_kind() -> None:
    assert {n: pattern_kind(p).name for n, p in programs().items()} == {n: k.name for n, k in KINDS.items()}


@pytest.mark.parametrize(
    ("op", "dims", "attrs", "kind"),
    [
        ("add", [("n", "m"), ("m",)], {}, ELEMENTWISE),
        ("add", [("n", 1), ("m",)], {}, BROADCAST),
        ("exp", [("n",)], {}, ELEMENTWISE),
        ("exp", [()], {}, ELEMENTWISE),
        ("transpose", [("n", "m")], {"perm": (1, 0)}, INJECTIVE),
        ("reshape", [("n", "m")], {"shape": ("n*m",)}, INJECTIVE),
        # what a reshape does not change cancels
        ("reshape", [("n", "4*m")], {"shape": ("n", "4*m")}, ELEMENTWISE),
        ("repeat", [("n", "m")], {"axis": 0, "times": 3}, INJECTIVE),
        ("concat", [("n", "m"), ("n", "k")], {"axis": 1}, INJECTIVE),
        ("sum", [("n", "m")], {"axes": (1,)}, REDUCTION),
        ("sum", [("n", "m")], {"axes": (0,), "keepdims": True}, REDUCTION),
        ("sum", [("n", "m")], {"axes": ()}, ELEMENTWISE),
        ("mean", [("n", "m")], {"axes": (0, 1)}, REDUCTION),
        ("matmul", [("b", "n", "m"), ("m", "k")], {}, OUTPUT_FUSIBLE),
        ("concat_matmul", [("n", "m"), ("n", "r"), ("m", "k"), ("r", "k")], {}, OPAQUE),
        ("softmax", [("n", "m")], {"axis": -1}, REDUCTION),
        ("layer_norm", [("n", "m"), ("m",)], {}, REDUCTION),
        ("constant", [], {"value": 2}, ELEMENTWISE),
    ],
)
def test_operators(op: str, dims: list[tuple[Any, ...]], attrs: dict[str, Any], kind: Kind) -> None:
    definition = get_operator(op)
    types = [tensor(*d) for d in dims]
    given = definition.check_attrs(attrs)
    program = lower_operator(op, types, given, definition.infer(types, given))
    assert program is not None and pattern_kind(program) is kind
