"""The random graphs that fuzz the compiler: well-formed, made again from their seed, compared strictly, and shrunk."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import OpCall
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from mirage.ir.types import DTYPES
from tests.random_graphs import Case, assert_close, random_case, shrink


def _ops(case: Case) -> list[str]:
    return [b.value.op for f in case.module for b in f.bindings if isinstance(b.value, OpCall)]


@pytest.mark.parametrize("seed", range(40))
def test_cases_are_well_formed_and_the_interpreter_agrees_with_itself(seed: int) -> None:
    case = random_case(seed)
    check(case.module)
    args = case.copies()
    assert_close(case, run_module(case.module, args), args)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 250))
def test_many_cases(start: int) -> None:
    for seed in range(start, start + 250):
        case = random_case(seed)
        check(case.module)
        text = print_module(case.module)
        assert print_module(parse_module(text)) == text
        assert_close(case, run_module(parse_module(text), case.copies()))


def test_a_seed_gives_one_case() -> None:
    for seed in (3, 4):
        a, b = random_case(seed), random_case(seed)
        assert str(a) == str(b) and all(map(np.array_equal, a.args, b.args))
    assert str(random_case(3)) != str(random_case(4))


def test_cases_are_of_all_kinds() -> None:
    cases = [random_case(seed) for seed in range(150)]
    kinds = Counter(type(b.value).__name__ for c in cases for f in c.module for b in f.bindings)
    wanted = {"FunctionCall", "If", "Loop", "MatchCast", "MakeTuple", "TupleItem", "ShapeOf", "PackedCall", "OpCall"}
    assert wanted <= kinds.keys()
    assert len(set().union(*map(_ops, cases))) > 60
    assert {0, 1, 7} <= {n for c in cases for n in c.sizes.values()}
    assert {"float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"} <= {
        a.dtype.name for c in cases for a in c.args
    }
    assert any(p.dims for c in cases for p in c.module)


def _case_with(op: str) -> Case:
    return next(c for c in map(random_case, range(1000)) if op in _ops(c)[-1:])


@pytest.mark.parametrize("op", ["matmul", "argmax", "softmax"])
def test_a_wrong_result_is_refused(op: str) -> None:
    case = _case_with(op)
    for change in ("value", "shape", "dtype", "count"):
        found = run_module(case.module, case.copies())
        first = found[0] if isinstance(found, tuple) else found
        wrong = first.astype(np.float64) if first.dtype != np.float64 else first.astype(np.float32)
        if change == "value":
            if not first.size or (first.dtype.name in DTYPES and not np.isfinite(first.astype(np.float64)).all()):
                continue
            wrong = first.copy()
            if first.dtype.name in DTYPES:
                wrong.flat[-1] += np.maximum(np.abs(first).max(), 1) / 10
            else:
                wrong.flat[-1] = not first.flat[-1]
        elif change == "shape":
            wrong = first[None]
        rest = (wrong, *found[1:]) if isinstance(found, tuple) else wrong
        if change == "count":
            rest = (first, first, *(found if isinstance(found, tuple) else ()))
        with pytest.raises(AssertionError, match=r"random_case\(|elements"):
            assert_close(case, rest)


def test_arguments_after_the_run_are_compared() -> None:
    case = next(c for c in map(random_case, range(50)) if c.args[0].size and c.args[0].dtype == np.float32)
    args = case.copies()
    found = run_module(case.module, args)
    args[0].flat[0] += 1
    with pytest.raises(AssertionError, match=r"arguments\[0\]: off by 1"):
        assert_close(case, found, args)


@pytest.mark.parametrize("op", ["matmul", "where", "cumsum", "sort"])
def test_shrinking_leaves_what_fails(op: str) -> None:
    case = next(
        c for c in map(random_case, range(1000))
        if any(isinstance(b.value, OpCall) and b.value.op == op for b in c.module.functions["main"].bindings)
    )  # fmt: skip
    small = shrink(case, lambda c: op in _ops(c))
    check(small.module)
    assert_close(small, run_module(small.module, small.copies()))
    assert _ops(small) == [op] and len(small.module.functions) == 1
    assert len(small.args) == len(small.module.functions["main"].parameters) <= 3


def test_a_case_that_cannot_be_smaller_stays() -> None:
    case = random_case(5)
    assert shrink(case, lambda c: False) is case
