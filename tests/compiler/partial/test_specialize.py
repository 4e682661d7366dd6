"""Programs of which parts are known: they compute what they did, and what is known is gone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GuardError, InputError, MirageError
from mirage.ir.graph import nodes
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from tests.compiler.partial.evaluated import FLAG, ONES, VECTOR, is_straight, specialized
from tests.compiler.test_functional import same
from tests.frontends.graph import functional_programs as programs
from tests.frontends.graph.functional_programs import MODELS, Number, Product, Sum, arguments, in_float64, value
from tests.ir.graph import functional as texts
from tests.random_functional import random_arguments, random_functional
from tests.sampled import thinned


def compared(seed: int) -> None:
    """A random program with some of its arguments known, and a limit that may be too small for it."""
    rng = Random(seed)
    module, args = random_functional(seed, 2 + seed % 3), random_arguments(seed)
    names = [p.name for p in module.functions[module.main].parameters]
    known = {n: v for n, v in zip(names, args, strict=True) if rng.random() < 0.5}
    made = mi.specialize(module, known, limit=rng.choice([5, 50, 10_000, 10_000]))
    text = print_module(made)
    assert print_module(parse_module(text)) == text
    left = [v for n, v in zip(names, args, strict=True) if n not in known]
    same(run_module(made, left), run_module(module, args))
    same(run_module(specialized(module), args), run_module(module, args))


@pytest.mark.parametrize("seed", thinned(range(12)))
def test_random_programs(seed: int) -> None:
    compared(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int) -> None:
    for seed in range(1_000 + 100 * part, 1_100 + 100 * part):
        compared(seed)


@pytest.mark.parametrize("name", ["rnn", "lstm", "mlp", "char_rnn", "tree_lstm"])
def test_models_of_known_structure_are_straight_lines(name: str) -> None:
    fn, specs, wanted = MODELS[name]
    args = arguments(np.random.default_rng(0), name, steps=2)
    module = mi.trace_module(fn, specs)
    names = [p.name for p in module.functions[module.main].parameters]
    structured = next(k for k, a in enumerate(args) if isinstance(a, list | mi.Leaf | mi.Rose))
    made = mi.specialize(module, {names[structured]: args[structured]})
    assert not made.data
    assert name == "char_rnn" or is_straight(made)
    left = [a for k, a in enumerate(args) if k != structured]
    same(programs.flat(run_module(made, left)), programs.flat(wanted(*in_float64(args))), 1e-4)


def test_a_tree_whose_vectors_are_arguments(golden: Callable[[str, str], None]) -> None:
    vector = mi.tensor(1, "d")
    made = mi.specialize(programs.tree_lstm, {"t": mi.Rose(vector, [mi.Leaf(vector)])})
    assert is_straight(made)
    golden("specialized_tree_lstm.txt", print_module(made))
    rng = np.random.default_rng(0)
    x, y, *rest = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3), (1, 3), (4, 3, 2), (4, 2, 2), (1, 2)))
    found = mi.compile(made, without=("superoptimize", "fuse"))(x, y, *rest)
    same(found, programs.tree_lstm_numpy(*in_float64([mi.Rose(x, [mi.Leaf(y)]), *rest])), 1e-4)


def test_known_objects_lists_and_numbers() -> None:
    one = Number(np.ones(2, np.float32))
    made = mi.specialize(value, {"e": Sum(one, Product([one, Sum(one, one)]))})
    assert is_straight(made)
    same(run_module(made, []), 3 * np.ones(2, np.float32))
    made = mi.specialize(programs.factorial, {"n": 10})
    assert is_straight(made)
    assert run_module(made, []) == 3628800
    # it is computed
    assert not made.functions[made.main].bindings
    made = mi.specialize(parse_module(texts.EVEN), {"n": np.int64(7)})
    assert is_straight(made)
    assert not run_module(made, [])


def test_texts(golden: Callable[[str, str], None]) -> None:
    made = [specialized(parse_module(getattr(texts, name))) for name in ("SUM", "COUNT", "MAP", "SHOWCASE")]
    golden("specialized_functional.txt", "\n\n".join(map(print_module, made)))
    # closures are gone from a list of any length; data that grows is taken as unknown
    assert not any(isinstance(b.value, nodes.Closure | nodes.CallValue) for f in made[2] for b in f.bindings)
    assert len(run_module(made[1], [np.int64(40)])) == 40


def test_functions_that_something_unknown_gets() -> None:
    """A function that captures a known one is a function of its own, in which the other one is called directly."""

    def program(p: Any, x: Any, y: Any) -> Any:
        inner = mi.closure(lambda v: mi.tanh(v * y), VECTOR)
        outer = mi.closure(lambda v: inner(inner(v)) + x, VECTOR)
        return mi.cond(p, lambda: outer, lambda: inner)(x)

    module = mi.trace_module(program, {"p": FLAG, "x": VECTOR, "y": VECTOR})
    made = specialized(module)
    kinds = [type(b.value) for f in made for b in f.bindings]
    assert kinds.count(nodes.CallValue) == 1 and kinds.count(nodes.Closure) == 2
    for p in (True, False):
        args = [np.asarray(p), ONES, 2 * ONES]
        same(run_module(made, args), run_module(module, args))


def test_dims_that_known_values_tell() -> None:
    specs = {"xs": mi.List(VECTOR), "x": VECTOR}
    made = mi.specialize(lambda xs, x: mi.fold(lambda s, v: s + v, x, xs), {"xs": [ONES]}, specs=specs)
    assert str(made.functions[made.main].parameters) == "(x: float32[3],)"
    # the last one is another one, which the run of the program says, too
    unequal = [ONES, np.ones(4, np.float32)]
    with pytest.raises(GuardError, match=r"known 'xs', item 1 has shape \[4\].*make"):
        mi.specialize(lambda xs: mi.map(lambda v: v + 1, xs), {"xs": unequal}, specs={"xs": mi.List(VECTOR)})
    text = """
def main(x: float32[n], y: float32[n]):
    with dataflow():
        z = add(x, y)
    return z
"""
    # in the program that is left, a call with another size is refused
    with pytest.raises(GuardError):
        run_module(mi.specialize(text, {"x": ONES}), [np.ones(4, np.float32)])


def test_known_shapes_and_tuples() -> None:
    def program(x: Any, shape: Any, pair: Any) -> Any:
        a, b = pair
        return mi.broadcast_to_shape(x, shape) * a + b

    specs = {"x": VECTOR, "shape": mi.shape("m", "n"), "pair": (mi.tensor(), VECTOR)}
    module = mi.trace_module(program, specs)
    made = mi.specialize(module, {"shape": (2, 3), "pair": (np.float32(2), ONES)})
    same(run_module(made, [ONES]), run_module(module, [ONES, (2, 3), (np.float32(2), ONES)]))


WRONG = [
    ({"z": 1}, InputError, r"'z' is no parameter of main; they are xs, zero"),
    ({"xs": ONES}, InputError, r"known 'xs' is ndarray, not List.*; pass a list"),
    ({"zero": "no"}, InputError, r"known 'zero' is str, not float32\[n\]; pass an array"),
    ({"zero": ONES.astype(np.int64)}, InputError, r"known 'zero' has elements of int64, not of float32"),
    ({"zero": np.ones((2, 2), np.float32)}, GuardError, r"known 'zero' has shape \[2, 2\] of rank 2"),
    ({"zero": np.ones(1 << 21, np.float32)}, InputError, r"has 8388608 bytes, and at most 4194304 become part of a module"),
    ({"zero": np.array(["a"])}, InputError, r"has elements of <U1; convert it"),
    ({"zero": mi.tensor(2, 2)}, MirageError, r"rank 2 instead of 1"),
    ([1], InputError, r"known=\[1\] is not a mapping"),
]


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_what_cannot_be_known_is_refused(k: int) -> None:
    known, error, message = WRONG[k]
    with pytest.raises(error, match=message):
        mi.specialize(texts.SUM, known)  # type: ignore[arg-type]


def test_wrong_limits_are_refused() -> None:
    for limit in (0, -1, True, 1.5):
        with pytest.raises(InputError, match="is no count of bindings"):
            mi.specialize(texts.SUM, {}, limit=limit)  # type: ignore[arg-type]
