"""The C text of loop programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage.kernels.cpu.loops.emit import emit
from tests.ir.loops.programs import programs


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("masked_softmax.c", emit(programs()["masked_softmax"]).text)


@pytest.mark.parametrize("name", ["rotary", "concatenated", "padded"])
def test_choices_by_the_innermost_index_split_its_range(name: str) -> None:
    source = emit(programs()[name]).text
    assert "mi_clamp" in source and "mi_select" not in source and " ? " not in source.split("static void cell_0")[1]


@pytest.mark.parametrize("name", ["masked_softmax", "embedding", "cast_layer_norm", "halves", "matmul_relu", "mixed"])
def test_inner_loops_are_vectors(name: str) -> None:
    assert "i += MI_W" in emit(programs()[name]).text.replace("i1 +=", "i +=").replace("i2 +=", "i +=")


def test_quotients_by_what_a_row_has_once_are_products() -> None:
    cell = emit(programs()["masked_softmax"]).text.split("/* out */")[1]
    inverse, quotients = cell.split("else {")
    assert inverse.count(" / ") == 1
    # by a divisor without a normal inverse: whole vectors, and the rest
    assert quotients.count(" / mi_broadcast") == 2


def test_workspace_is_of_whole_tensors_between_nests() -> None:
    program = programs()["normalized_by_all"]
    # the last one holds the parts of the sum
    assert [str(t) for t in emit(program).workspace] == ["float32[n, m]", "float32[32]"]
    assert emit(programs()["masked_softmax"]).workspace == ()
