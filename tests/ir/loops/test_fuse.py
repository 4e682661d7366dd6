"""Fusion of loop programs keeps their meaning, and makes one program of few stages."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest

from mirage.errors import LoopError
from mirage.ir.dims import Dim
from mirage.ir.loops.fuse import Call, can_stitch, fuse
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.nests import nests
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.types import tensor
from tests.ir.loops.calls import Calls
from tests.ir.loops.programs import programs


class Values(Calls):
    """Calls that are fused and compared."""

    def fuse(self, *outputs: str) -> LoopProgram:
        return fuse("fused", self.calls, outputs)

    def check(self, program: LoopProgram, outputs: list[str], sizes: dict[str, int]) -> None:
        """The fused program gives what the calls give one by one."""
        rng = np.random.default_rng(0)
        arrays = {n: np.asarray(rng.uniform(0.25, 1.0, t.bind(sizes))) for n, t in self.inputs.items()}
        values = self.one_by_one(arrays, sizes)
        found = run_loops(program, [arrays[n] for n, _ in program.inputs], sizes, "float64")
        for o, a in zip(outputs, found, strict=True):
            np.testing.assert_allclose(a, values[o], 1e-9, 1e-9, err_msg=str(program))


SIZES = dict(n=3, m=4, k=5, b=2)


def test_a_chain_is_one_stage() -> None:
    v = Values(x=tensor("n", "m"), y=tensor("m"))
    a = v("exp", v("add", v("transpose", v("mul", "x", "x"), perm=(1, 0)), v("reshape", "y", shape=("m", 1))))
    program = v.fuse(a)
    assert len(program.stages) == 1
    v.check(program, [a], SIZES)


def test_a_chain_of_reshapes_is_nothing() -> None:
    v = Values(x=tensor("n", "4*m", "k"))
    a = "x"
    for shape in [("n*m", "4*k"), ("4*n*m*k",), ("n", 4, "m", "k"), ("n", "4*m", "k")]:
        a = v("reshape", a, shape=shape)
    program = v.fuse(a)
    assert "return x[i0, i1, i2]" in program.to_text()
    v.check(program, [a], SIZES)


def test_reductions_and_their_results_are_stages_of_one_nest() -> None:
    v = Values(x=tensor("b", "n", "m"), y=tensor("b", "n", "m"))
    a = v("softmax", v("add", "x", "y"), axis=-1)
    b = v("sum", v("mul", a, "x"), axes=(2,), keepdims=True)
    c = v("div", a, b)
    program = v.fuse(c)
    assert [n.group for n in nests(program)] == [2] and can_stitch(v.calls, [c])
    v.check(program, [c], SIZES)


def test_costly_work_is_not_repeated() -> None:
    v = Values(x=tensor("n", "m"), y=tensor("m", "k"))
    a = v("matmul", v("exp", "x"), "y")
    program = v.fuse(a)
    # each exp is used for k elements
    assert len(program.stages) == 2 and program.to_text().count("exp") == 1
    v.check(program, [a], SIZES)
    b = Values(x=tensor("n", "m"), y=tensor("m", "k"))
    c = b("relu", b("matmul", b("mul", "x", "x"), "y"))
    cheap = b.fuse(c)
    assert len(cheap.stages) == 2 and len(nests(cheap)) == 1
    b.check(cheap, [c], SIZES)


def test_what_cannot_share_a_nest() -> None:
    v = Values(x=tensor("n", "m"))
    a = v("softmax", v("softmax", "x", axis=0), axis=1)
    assert not can_stitch(v.calls, [a])
    # columns are reduced before rows are
    assert nests(v.fuse(a))[-1].stages == ("v1_greatest", "v1_e", "v1_total", "v1")
    v.check(v.fuse(a), [a], SIZES)


def test_a_vector_and_its_reductions_share_a_nest() -> None:
    v = Values(x=tensor("n"))
    a = v("softmax", "x", axis=0)
    assert [n.group for n in nests(v.fuse(a))] == [0]
    v.check(v.fuse(a), [a], SIZES)


def test_intermediate_values_as_outputs() -> None:
    v = Values(x=tensor("n", "m"))
    a = v("exp", "x")
    b = v("sum", a, axes=(1,))
    c = v("neg", a)
    program = v.fuse(c, a, b)
    assert program.outputs == (c, a, b) and len(program.stages) == 3
    v.check(program, [c, a, b], SIZES)


def test_equal_dims_are_one() -> None:
    soft = programs()["masked_softmax"]
    where = parse_loops(programs()["doubled"].to_text().replace("[n, m]", "[k, m]"))
    calls = [Call(soft, ("x", "mask"), ("p",)), Call(where, ("p",), ("q",))]

    def equal(a: Dim, b: Dim) -> bool:
        return a == b or {str(a), str(b)} == {"k", "n"}

    assert can_stitch(calls, ["q"], equal)
    assert fuse("f", calls, ["q"], equal).symbols == ("m", "n")
    with pytest.raises(LoopError, match=re.escape("doubled: argument p is float32[n, m], not float32[k, m]")):
        fuse("f", calls, ["q"])


def test_wrong_calls() -> None:
    soft = programs()["masked_softmax"]
    with pytest.raises(LoopError, match="1 arguments and 1 results do not fit"):
        fuse("f", [Call(soft, ("x",), ("p",))], ["p"])
    with pytest.raises(LoopError, match="no call computes x"):
        fuse("f", [Call(soft, ("x", "mask"), ("p",))], ["x"])


def test_names_of_dims_and_loops_are_no_tensors() -> None:
    v = Values(n=tensor("n", "m"), i0=tensor("m"))
    a = v("mul", "n", "i0")
    program = v.fuse(a)
    assert [n for n, _ in program.inputs] == ["n_", "i0_"]


UNARY = ["exp", "neg", "square", "sigmoid", "relu"]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    rng = Random(seed)
    v = Values(x=tensor("n", "m"), y=tensor("m"), z=tensor("n", 1))
    values = ["x", "y", "z"]
    for _ in range(rng.randint(2, 9)):
        full = [a for a in values if v.types[a].shape == tensor("n", "m").shape]
        kind = rng.randrange(6)
        if kind == 0:
            values.append(v(rng.choice(UNARY), rng.choice(values)))
        elif kind == 1:
            values.append(v(rng.choice(["add", "mul", "sub"]), rng.choice(full), rng.choice(values)))
        elif kind == 2:
            values.append(v("sum", rng.choice(full), axes=(rng.randrange(2),), keepdims=True))
        elif kind == 3:
            values.append(v("softmax", rng.choice(full), axis=rng.randrange(2)))
        elif kind == 4:
            values.append(v("reshape", v("reshape", rng.choice(full), shape=("n*m",)), shape=("n", "m")))
        else:
            joined = v("concat", rng.choice(full), rng.choice(full), axis=1)
            values.append(v("sum", v("reshape", joined, shape=("n", 2, "m")), axes=(1,)))
        if v.types[values[-1]].rank < 1 or v.types[values[-1]].shape not in (
            tensor("n", "m").shape,
            tensor("m").shape,
            tensor("n", 1).shape,
        ):
            values.pop()
    computed = [a for a in values if a[0] == "v"] or [v("neg", "x")]
    outputs = sorted({computed[-1], rng.choice(computed)})
    program = v.fuse(*outputs)
    assert parse_loops(program.to_text()) == program
    for sizes in (SIZES, dict(n=1, m=1), dict(n=0, m=2)):
        v.check(program, outputs, sizes)
