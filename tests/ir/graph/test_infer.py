"""Annotations of parameters that have none: what definitions and uses tell, and what is said where they do not."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest

from mirage.errors import MirageError
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_function, parse_module
from mirage.ir.graph.text import print_module
from tests.ir.graph import functional
from tests.ir.graph.unannotated import BOTH_WAYS, both_ways, without_annotations
from tests.random_functional import flat, random_arguments, random_functional


def parameters(text: str, name: str) -> list[str]:
    return [str(p.annotation) for p in parse_module(text).functions[name].parameters]


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_relations_of_operators_go_both_ways(name: str) -> None:
    lines, wanted = BOTH_WAYS[name]
    assert parameters(both_ways(lines), "f")[0] == wanted


@pytest.mark.parametrize("name", ["SUM", "COUNT", "EVEN", "MAP", "SHOWCASE"])
def test_what_is_found_is_a_module_of_its_own(name: str) -> None:
    text = getattr(functional, name)
    found = parse_module(without_annotations(text))
    assert parse_module(print_module(found)).functions.keys() == parse_module(text).functions.keys()
    assert print_module(parse_module(print_module(found))) == print_module(found)
    assert print_module(parse_module(without_annotations(text))) == print_module(found)


def test_functions_that_call_themselves() -> None:
    text = without_annotations(functional.SUM)
    assert parameters(text, "more") == ["float32[d0]", "List[float32[d0]]", "float32[d0]"]
    assert parameters(without_annotations(functional.EVEN), "odd_below") == ["int64[()]"]


def test_functions_as_values() -> None:
    text = "def main(x: float32[n]):\n    return x\n\n\ndef f(g, x, y: float32[m]):\n    a = apply[g](x)\n    b = add(a, y)\n"
    text += "    c = add(x, y)\n    return b\n"
    assert parameters(text, "f") == ["Callable[[float32[m]], float32[m]]", "float32[m]", "float32[m]"]


def test_functions_of_any_type() -> None:
    text = without_annotations(functional.MAP)
    assert parameters(text, "cell") == ["a", "List[a]", "Callable[[a], b]"]
    # used at two types
    lines = "zs = call[map](f, xs)\n        g = closure[count](w)\n        ys = call[map](g, zs)"
    twice = text.replace("ys = call[map](f, xs)", lines)
    twice += "\n\ndef count(x, w):\n    with dataflow():\n        y = sum(x, axes=(0,), keepdims=False)\n    return y\n"
    assert twice != text
    assert str(parse_module(twice).functions["main"].returns) == "List[float32[()]]"
    (found,) = run_module(parse_module(twice), [[np.ones(3, np.float32)], np.full(3, 2, np.float32)])
    assert found == 6


def test_each_call_has_dims_of_its_own() -> None:
    text = """
def main(x: float32[n, 4], y: float32[m, 8]):
    with dataflow():
        a = call[f](x)
        b = call[f](y)
        r = (a, b)
    return r

def f(x):
    with dataflow():
        t = transpose(x, perm=(1, 0))
        y = matmul(x, t)
    return y
"""
    assert parameters(text, "f") == ["float32[d0, d1]"]
    assert str(parse_module(text).functions["main"].returns) == "Tuple[float32[n, n], float32[m, m]]"


def test_callers_tell_which_dims_are_one() -> None:
    text = """
def main(x: float32[n, 4], y: float32[n, 1]):
    with dataflow():
        r = call[f](x, y)
    return r

def f(x, y):
    with dataflow():
        z = add(x, y)
    return z
"""
    assert parameters(text, "f") == ["float32[d0, d1]", "float32[d0, 1]"]


def test_what_nothing_tells_may_be_of_any_type() -> None:
    text = "def main(x: float32[n]):\n    return x\n\n\ndef first(x, y):\n    return x\n"
    assert parameters(text, "first") == ["a", "b"]
    assert str(parse_function("def f(x, y: float32[4]):\n    z = mul(x, y)\n    return z\n").returns) == "float32[4]"


def test_rigid_types_of_callers_are_found() -> None:
    header = "def cell(x: a, rest: List[a], f: Callable[[a], b])"
    text = functional.MAP.replace(header, "def cell(x, rest, f)")
    assert text != functional.MAP
    assert parameters(text, "cell") == ["a", "List[a]", "Callable[[a], b]"]


def stripped_and_run(seed: int, depth: int) -> bool:
    """Whether a random program names no dims beside its annotations; then it computes the same without them."""
    module = random_functional(seed, depth)
    text = print_module(module)
    if " dims=" in text:
        return False
    found: Any = parse_module(without_annotations(text, module.main))
    args = random_arguments(seed)
    for a, b in zip(flat(run_module(found, args)), flat(run_module(module, args)), strict=True):
        assert a == b if isinstance(a, str) else np.array_equal(a, b)
    return True


def test_random_programs() -> None:
    assert sum(stripped_and_run(seed, 3) for seed in range(12)) >= 6


@pytest.mark.slow
def test_many_random_programs() -> None:
    rng = Random(0)
    assert sum(stripped_and_run(rng.randrange(10**6), rng.randint(2, 4)) for _ in range(300)) >= 150


def test_mutated_programs_are_refused_or_fit() -> None:
    """Words of programs without annotations in other places: nothing but errors of ours, and what is found is well-formed."""
    rng = Random(0)
    texts = [without_annotations(getattr(functional, n)) for n in ("SUM", "COUNT", "MAP", "EVEN", "SHOWCASE")]
    texts += [both_ways(lines) for lines, _ in BOTH_WAYS.values()]
    fit = 0
    for _ in range(300):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            words = list(re.finditer(r"\w+", text))
            there = rng.choice(words)
            text = text[: there.start()] + rng.choice(words)[0] + text[there.end() :]
        try:
            check(parse_module(text))
        except MirageError:
            continue
        fit += 1
    assert 10 < fit < 200
