"""Reshapes do not keep stages apart (BladeDISC, section 4.2: dim collapse equality)."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.loops.fuse import Call, can_stitch
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.nests import nests
from mirage.ir.loops.regroup import regrouped
from tests.ir.loops.programs import inputs, programs


@pytest.mark.parametrize("name", ["merged_heads", "split_heads"])
def test_stages_on_both_sides_of_a_reshape_share_a_nest(name: str) -> None:
    program = programs()[name]
    assert len(nests(program)) == 2
    found = regrouped(program)
    assert [n.group for n in nests(found)] == [2]
    assert can_stitch([Call(program, ("x",), ("y",))], ["y"])
    for sizes in (dict(b=2, n=3, m=5), dict(b=1, n=1, m=2), dict(b=0, n=3, m=5), dict(b=3, n=0, m=1)):
        arrays = inputs(program, sizes)
        (a,), (b,) = (run_loops(p, arrays, sizes, "float64") for p in (program, found))
        # the same elements in the same order
        np.testing.assert_array_equal(a, b.reshape(a.shape))


@pytest.mark.parametrize("name", sorted(set(programs()) - {"merged_heads", "split_heads"}))
def test_other_programs_stay_as_they_are(name: str) -> None:
    assert regrouped(programs()[name]) is programs()[name]
