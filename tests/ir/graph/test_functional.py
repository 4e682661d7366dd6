"""Data types, matches, functions as values and recursion: text, annotations, mistakes, and what the interpreter computes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from mirage.errors import DepthError, GuardError, InputError, MirageError
from mirage.ir.data import CONS, LIST, NIL, OPTION, Leaf, Nothing, Record, Rose, Some
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern, Wildcard, bound, missing, unreached
from mirage.ir.graph.text import print_module
from mirage.ir.graph.values import MAX_DEPTH, linked
from tests.ir.graph import functional
from tests.ir.graph.wrong_programs import WRONG

ONES = np.ones(3, np.float32)


def ran(text: str, *args: Any) -> Any:
    return run_module(parse_module(text), args)


def test_showcase(golden: Callable[[str, str], None]) -> None:
    text = print_module(parse_module(functional.SHOWCASE))
    golden("graph_functional.txt", text)
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize("text", [functional.SUM, functional.COUNT, functional.MAP, functional.EVEN])
def test_round_trip(text: str) -> None:
    printed = print_module(parse_module(text))
    assert print_module(parse_module(printed)) == printed


def test_wrong_programs(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, text in WRONG.items():
        with pytest.raises(MirageError) as e:
            parse_module(text)
        lines.append(f"{name}\n    {type(e.value).__name__}: {e.value}\n")
    assert len(lines) >= 60
    golden("wrong_programs.txt", "".join(lines))


def results(text: str) -> dict[str, str]:
    return {f.name: str(f.returns) for f in parse_module(text)}


def test_results_of_functions_that_call_themselves_are_found() -> None:
    assert results(functional.SUM)["total"] == "float32[n]"
    assert set(results(functional.EVEN).values()) == {"bool[()]"}
    # a dim in which the rounds differ is unknown
    text = """
def main(x: float32[n], c: bool[()]):
    with dataflow():
        r = if_else[stop, longer](c, x, c)
    return r

def stop(x: float32[n], c: bool[()]):
    return x

def longer(x: float32[n], c: bool[()]):
    with dataflow():
        y = concat(x, x, axis=0)
        r = call[main](y, c)
    return r
"""
    assert results(text) == {"main": "float32[_]", "stop": "float32[n]", "longer": "float32[_]"}


def test_values_of_data_types_are_lists_and_objects() -> None:
    numbers = [np.float32(k) * ONES for k in range(4)]
    assert (ran(functional.SUM, numbers, 0 * ONES) == 6).all()
    assert (ran(functional.SUM, [], 2 * ONES) == 2).all()
    assert [list(v) for v in ran(functional.MAP, numbers, 2 * ONES)] == [[0] * 3, [2] * 3, [4] * 3, [6] * 3]
    assert ran(functional.MAP, linked(numbers), ONES)[3][0] == 3
    assert [int(k) for k in ran(functional.COUNT, np.int64(4))] == [1, 2, 3, 4]
    assert not ran(functional.EVEN, np.int64(7))


def test_trees_and_options() -> None:
    text = """
def main(t: Tree[float32[n]], o: Option[Tuple[float32[n], int64[()]]]) -> Tuple[Tree[float32[n]], Option[float32[n]]]:
    with dataflow():
        s = match[Leaf(v): grown, Rose(_, Cons(c, _)): first, Rose(v, Nil()): grown](t)
        q = match[Some((x, _)): some, Nothing(): nothing](o)
        r = (s, q)
    return r

def grown(v: float32[n]) -> Tree[float32[n]]:
    with dataflow():
        e: List[Tree[float32[n]]] = Nil()
        l = Leaf(v)
        c = Cons(l, e)
        t = Rose(v, c)
    return t

def first(c: Tree[float32[n]]):
    return c

def some(x: float32[n]):
    with dataflow():
        r = Some(x)
    return r

def nothing():
    with dataflow():
        r = Nothing()
    return r
"""
    tree, option = ran(text, Leaf(ONES), Nothing())
    assert isinstance(tree, Rose) and tree.value is not None and isinstance(tree.children[0], Leaf)
    assert isinstance(option, Nothing)
    tree, option = ran(text, Rose(ONES, [Leaf(2 * ONES)]), Some((ONES, np.int64(1))))
    assert isinstance(tree, Leaf) and tree.value[0] == 2 and isinstance(option, Some)


def test_showcase_runs() -> None:
    module = parse_module(functional.SHOWCASE)
    data = module.data["Expr"]
    x = np.arange(2, dtype=np.float32)
    literal = Record(data, 0, (x,))
    many = Record(data, 1, (literal, Record(data, 2, (linked([literal, literal]),))))
    value, depth, held = run_module(module, [many, x])
    # each literal is shifted by x
    assert (value == 6 * x).all() and depth == 2 and (held == x).all()


def test_values_that_do_not_fit_are_refused() -> None:
    for xs, error, message in [
        ([ONES, np.ones(4, np.float32)], GuardError, r"argument 'xs', item 1 has shape \[4\]: dim 0 is 4, not n"),
        ([ONES, np.ones(3)], InputError, "argument 'xs', item 1 has elements of float64"),
        (ONES, InputError, r"argument 'xs' is ndarray, not List\[float32\[n\]\]; pass a list"),
        ([Some(ONES)], InputError, "argument 'xs', item 0 is Some"),
    ]:
        with pytest.raises(error, match=message):
            ran(functional.SUM, xs, ONES)
    with pytest.raises(InputError, match=r"argument 'e' is list, not Expr.*; pass a record of it"):
        ran(functional.SHOWCASE, [], ONES)


def test_functions_are_no_arguments_of_programs() -> None:
    text = "def main(f: Callable[[float32[n]], float32[n]], x: float32[n]):\n    y = apply[f](x)\n    return y\n"
    with pytest.raises(InputError, match=r"argument 'f' is of type Callable.*only programs have"):
        ran(text, np.exp, ONES)


def deep(levels: int) -> None:
    one = np.ones(1, np.float32)
    assert ran(functional.SUM, [one] * levels, 0 * one) == levels


def counted(levels: int) -> None:
    assert len(ran(functional.COUNT, np.int64(levels))) == levels


def test_calls_may_be_deeper_than_those_of_python() -> None:
    deep(3_000)
    counted(3_000)


@pytest.mark.slow
def test_calls_may_be_very_deep() -> None:
    deep(100_000)
    # last calls need no room
    counted(1_000_000)


def test_calls_that_are_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_DEPTH > 2 * 100_000
    monkeypatch.setattr("mirage.ir.graph.interpret.MAX_DEPTH", 100)
    with pytest.raises(DepthError, match="more: y: 100 calls are nested, the last one of total"):
        deep(1_000)
    counted(1_000)


def random_pattern(rng: Random, depth: int) -> Pattern:
    """A pattern of a pair of a list of options and an option."""

    def option(d: int) -> Pattern:
        if d == 0 or rng.random() < 0.4:
            return Wildcard() if rng.random() < 0.5 else Bind("x")
        k = rng.randrange(2)
        return Case(OPTION, k, (Wildcard(),) * k)

    def several(d: int) -> Pattern:
        if d == 0 or rng.random() < 0.3:
            return Wildcard()
        return Case(LIST, NIL) if rng.random() < 0.4 else Case(LIST, CONS, (option(d - 1), several(d - 1)))

    return Fields((several(depth), option(depth))) if rng.random() < 0.9 else Wildcard()


OPTIONS = [Record(OPTION, 0), Record(OPTION, 1, (1,))]
#: every value that patterns of three levels tell apart
VALUES = [(linked(xs), o) for k in range(4) for xs in product(OPTIONS, repeat=k) for o in OPTIONS]


@pytest.mark.parametrize("seed", range(60))
def test_coverage_against_all_values(seed: int) -> None:
    rng = Random(seed)
    patterns = [random_pattern(rng, 3) for _ in range(rng.randint(1, 6))]
    taken = [[bound(p, v, []) for p in patterns] for v in VALUES]
    left = missing(patterns)
    assert (left is None) == all(map(any, taken))
    if left is not None:
        assert any(bound(left, v, []) and not any(t) for v, t in zip(VALUES, taken, strict=True))
    useless = next((k for k in range(len(patterns)) if not any(t[k] and not any(t[:k]) for t in taken)), None)
    assert unreached(patterns) == useless


def test_modules_draw() -> None:
    drawn = parse_module(functional.SHOWCASE)
    assert "closure of shifted" in str(drawn._repr_svg_())
