"""Kernels of loop programs from text: made again from their operators, and refused where they are others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL
from mirage.compiler.codegen import EQUAL_DIMS, from_operators, loops_of
from mirage.compiler.kernels.loops import loops_from_text, verified
from mirage.errors import InputError, LoopError, ParseError, VerificationError
from mirage.ir.dims import to_dim
from mirage.ir.graph.parse import parse_function
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.requirements import AtMost
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.loops.programs import programs


def made(name: str) -> list[LoopProgram]:
    """The loop programs of a compiled program."""
    p = SMALL[name]
    executable = mi.compile(p.trace(), bounds=p.bounds, constants=p.constants, without=("superoptimize",), cache=False)
    return [k.program for k in executable.kernels.values() if isinstance(k, LoopKernel)]


@pytest.mark.parametrize("name", ["llama_prefill", "select_rows", "unique_tokens", "refinement"])
def test_kernels_of_compiled_programs_are_made_again(name: str) -> None:
    found = made(name)
    assert found
    for program in found:
        assert program.operators and from_operators(program) == program
        again = parse_loops(program.to_text())
        assert again == program and verified(again) is again


def equal(pairs: Sequence[tuple[str, str]]) -> Any:
    known = [{to_dim(a), to_dim(b)} for a, b in pairs]
    return lambda a, b: {a, b} in known


def test_equal_dims_that_loops_rely_on_are_needed() -> None:
    def one(text: str, same: Any) -> LoopProgram:
        found = loops_of(parse_function(text), same)
        assert found is not None
        return found

    text = (
        "def f(x: float32[n, m], y: float32[n, k]) -> (float32[n], float32[n]):\n    with dataflow():\n"
        "        a: float32[n] = sum(x, axes=(1,), keepdims=False)\n"
        "        b: float32[n] = sum(y, axes=(1,), keepdims=False)\n"
        "        c: Tuple[float32[n], float32[n]] = (a, b)\n    return c\n"
    ).replace("(float32[n], float32[n]):", "Tuple[float32[n], float32[n]]:")
    apart = one(text, equal([]))
    assert not apart.needs and verified(apart) is apart
    program = one(text, equal([("m", "k")]))
    m, k = to_dim("m"), to_dim("k")
    assert set(program.needs) == {AtMost(m, k, EQUAL_DIMS), AtMost(k, m, EQUAL_DIMS)}
    assert verified(parse_loops(program.to_text())) == program
    kernel = loops_from_text(program.to_text())
    x = np.ones((2, 3), np.float32)
    a, b = np.empty(2, np.float32), np.empty(2, np.float32)
    kernel([x, x], {"n": 2, "m": 3, "k": 3}, [a, b])
    assert a.tolist() == b.tolist() == [3, 3]
    with pytest.raises(InputError, match=r"f: needs .*dims that are equal"):
        kernel([x, x[:, :2]], {"n": 2, "m": 3, "k": 2}, [a, b])
    # without the needs, the loops rely on nothing
    with pytest.raises(VerificationError, match="stage"):
        verified(parse_loops("\n".join(line for line in program.to_text().splitlines() if "assert" not in line)))


@pytest.mark.parametrize(
    ("old", "new"),
    [(" + ", " - "), ("@max", "@min"), ("range(m)", "range(n)"), ("x[i0, r0]", "x[i0, 0]"), ("exp(", "tanh(")],
)
def test_other_loops_than_those_of_the_operators_are_refused(old: str, new: str) -> None:
    function = parse_function(
        "def f(x: float32[n, m], y: float32[m]) -> float32[n, m]:\n    with dataflow():\n"
        "        a: float32[n, m] = add(x, y)\n        b: float32[n, m] = exp(a)\n"
        "        c: float32[n, 1] = max(x, axes=(1,), keepdims=True)\n        d: float32[n, m] = mul(b, c)\n    return d\n"
    )
    program = loops_of(function, lambda a, b: bool(a == b))
    assert program is not None and verified(program) is program
    loops = program.to_text().removesuffix(program.operators)
    assert old in loops
    with pytest.raises(VerificationError, match=r"kernel f: stage \w+ computes something else; it is not the kernel of its op"):
        loops_from_text(loops.replace(old, new, 1) + program.operators)


def test_operators_that_are_none_are_refused() -> None:
    loops = programs()["doubled"].to_text()
    for operators in ("def f():\n    return x\n", "def f(x: float32[n]) -> float32[n]:\n    return x\n"):
        with pytest.raises(VerificationError, match=r"kernel doubled: .*compile the program again"):
            loops_from_text(loops + operators)
    with pytest.raises(ParseError, match="expected one function"):
        loops_from_text(loops * 3)


def test_loops_that_were_written_by_hand_stand_for_themselves() -> None:
    text = programs()["doubled"].to_text()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.empty_like(x)
    loops_from_text(text)([x], {"n": 2, "m": 3}, [out])
    assert np.array_equal(out, 2 * x)
    with pytest.raises(LoopError, match=r"stage out reads within dim 0 of x: its index is from 100 to n \+ 99, the dim has n"):
        loops_from_text(text.replace("x[i0, i1]", "x[i0 + 100, i1]"))


def test_what_is_joined_element_by_element_is_a_loop_nest() -> None:
    """Tiles gain nothing there; where something is summed, they do."""

    def joined(x: Any, b: Any, z: Any) -> Any:
        return mi.concat([x + b, z], axis=1)

    def summed(x: Any, b: Any, z: Any) -> Any:
        return mi.sum(joined(x, b, z), axis=1)

    specs = {"x": mi.tensor("n", 8), "b": mi.tensor(8), "z": mi.tensor("n", 5)}
    arrays = [np.random.default_rng(k).standard_normal(shape) for k, shape in enumerate(((3, 8), (8,), (3, 5)))]
    for function, form in ((joined, "a loop nest"), (summed, "a muGraph")):
        run = mi.compile(function, specs, without=("superoptimize",))
        assert f"fused into {form}: add, concat" in run.explain()
        x, b, z = arrays
        wanted = np.concatenate([x + b, z], 1)
        found = run(*(a.astype(np.float32) for a in arrays))
        np.testing.assert_allclose(found, wanted if function is joined else wanted.sum(1), rtol=1e-5, atol=1e-6)
