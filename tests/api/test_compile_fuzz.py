"""Random graphs through the whole compiler, against the reference interpreter."""

from __future__ import annotations

import pytest

import mirage as mi
from mirage.compiler.build import OPTIMIZATIONS
from mirage.errors import MirageError
from mirage.ir.graph.nodes import Module
from tests.random_graphs import Case, assert_close, random_case, shrink

#: what is left out, by the seed's remainder: fused kernels most often
LEFT_OUT = (("superoptimize",), ("superoptimize",), ("superoptimize", "plan"), tuple(OPTIMIZATIONS))


def differs(case: Case) -> str:
    """What is wrong with the compiled module; nothing if it computes what the interpreter does."""
    try:
        without = LEFT_OUT[case.seed % len(LEFT_OUT)]
        executable = mi.compile(case.module, without=without)
        for _ in range(2):
            assert_close(case, executable(*case.copies()))
    except (AssertionError, MirageError, ValueError, KeyError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def check(seeds: range) -> None:
    for seed in seeds:
        case = random_case(seed)
        if problem := differs(case):
            small = shrink(case, lambda c: bool(differs(c)))
            pytest.fail(f"seed {seed}: {problem}\n{case}\nsmallest part that fails:\n{small}: {differs(small)}")


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs(first: int) -> None:
    check(range(first, first + 3))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_random_graphs(first: int) -> None:
    check(range(first, first + 50))


def test_a_wrong_result_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = mi.compile

    def wrong(module: Module, **options: object) -> object:
        executable = compile_(module, **options)  # type: ignore[arg-type]
        return lambda *args: _changed(executable(*args))

    monkeypatch.setattr(mi, "compile", wrong)
    with pytest.raises(pytest.fail.Exception, match="smallest part that fails"):
        check(range(0, 20))


def _changed(result: object) -> object:
    """The result with something added to every number."""
    if isinstance(result, tuple):
        return tuple(_changed(r) for r in result)
    return result + 1 if getattr(result, "dtype", None) in ("float32", "float64") else result  # type: ignore[operator]
