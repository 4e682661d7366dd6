"""What loop programs need of sizes: from operators, through fusion, text and other dims, to a run."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.errors import InputError, ParseError
from mirage.ir.dims import symbol, to_dim
from mirage.ir.loops.fuse import Call, fuse
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.operator import get_operator
from mirage.ir.requirements import AtMost
from mirage.ir.types import tensor


def window() -> LoopProgram:
    """exp(x[k:k + 3]) as one program."""
    op = get_operator("slice")
    attrs = op.check_attrs({"axes": 0, "starts": ("k",), "stops": ("k + 3",)})
    part = lower_operator("slice", [tensor("n")], attrs, tensor(3))
    exp = lower_operator("exp", [tensor(3)], {}, tensor(3))
    assert part is not None and exp is not None
    return fuse("window", [Call(part, ("x",), ("y",)), Call(exp, ("y",), ("z",))], ["z"])


NEED = AtMost(to_dim("k + 3"), symbol("n"), "slice: the stop along axis 0 is within the dim")


def test_fused_programs_need_what_their_operators_need() -> None:
    assert window().needs == (NEED,)
    assert window().dims == ("k",) and window().symbols == ("k", "n")


def test_a_dim_that_only_a_need_has_is_an_extra_dim() -> None:
    topk = AtMost(symbol("k"), symbol("n"), "k is within the dim")
    exp = lower_operator("exp", [tensor("n")], {}, tensor("n"))
    assert exp is not None
    made = LoopProgram("f", exp.inputs, ("k",), exp.stages, exp.outputs, (topk,))
    assert parse_loops(made.to_text()) == made
    assert made.symbols == ("k", "n")


def test_text() -> None:
    text = window().to_text()
    assert "    assert k + 3 <= n, 'slice: the stop along axis 0 is within the dim'\n" in text
    assert parse_loops(text) == window()
    for wrong in ("assert k + 3 < n, 'why'", "assert k <= n", "assert k <= n <= 2, 'why'", "assert k <= n, 3"):
        with pytest.raises(ParseError, match="line 2: expected assert DIM <= DIM"):
            parse_loops(text.replace(text.splitlines()[1].strip(), wrong))


def test_runs() -> None:
    x = np.arange(5.0, dtype=np.float32)
    (found,) = run_loops(window(), [x], {"n": 5, "k": 2})
    np.testing.assert_allclose(found, np.exp(x[2:]), rtol=1e-6)
    with pytest.raises(InputError, match=r"window: needs k \+ 3 <= n \(slice: .*\), but 6 > 5 at k=3, n=5; use other"):
        run_loops(window(), [x], {"n": 5, "k": 3})
