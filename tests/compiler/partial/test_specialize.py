"""Programs of which parts are known: they compute what they did, in the order in which they did, and what is known is gone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.specialize import STOPPED, specialize_module
from mirage.errors import GuardError, InputError, MirageError
from mirage.ir.graph import nodes
from mirage.ir.graph.check import check
from mirage.ir.graph.functional import functional
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from tests.compiler.test_functional import same
from tests.frontends.graph import functional_programs as programs
from tests.frontends.graph.functional_programs import MODELS, Number, Product, Sum, arguments, in_float64, value
from tests.ir.graph import functional as texts
from tests.random_functional import random_arguments, random_functional

VECTOR, FLAG = mi.tensor("n"), mi.tensor(dtype="bool")
ONES = np.ones(3, np.float32)
FUNCTIONAL = (nodes.Construct, nodes.Match, nodes.Closure, nodes.CallValue, nodes.ReferenceCall, nodes.FunctionCall, nodes.If)


def specialized(module: nodes.Module, limit: int = 10_000) -> nodes.Module:
    """The module evaluated as far as it knows itself."""
    made = specialize_module(module, {}, Budget(steps=10 * limit, bindings=limit))
    check(made)
    return made


def is_straight(module: nodes.Module) -> bool:
    """Whether it is one function that only computes tensors."""
    return len(module.functions) == 1 and not any(isinstance(b.value, FUNCTIONAL) for f in module for b in f.bindings)


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


@pytest.mark.parametrize("seed", range(12))
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
    made = mi.specialize(parse_module(texts.EVEN), {"n": np.int64(7)})
    assert is_straight(made)
    assert not run_module(made, [])


def test_texts(golden: Callable[[str, str], None]) -> None:
    made = [specialized(parse_module(getattr(texts, name))) for name in ("SUM", "COUNT", "MAP", "SHOWCASE")]
    golden("specialized_functional.txt", "\n\n".join(map(print_module, made)))
    # closures are gone from a list of any length; data that grows is taken as unknown
    assert not any(isinstance(b.value, nodes.Closure | nodes.CallValue) for f in made[2] for b in f.bindings)
    assert len(run_module(made[1], [np.int64(40)])) == 40


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


class Effects:
    """A random program of references, functions that are told what they hold, and conditions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def steps(self, refs: list[Any], x: Any, flags: list[Any], depth: int) -> Any:
        rng = self.rng
        refs = list(refs)
        for _ in range(rng.randint(2, 5)):
            r = rng.choice(refs)
            kind = rng.randrange(7 if depth else 5)
            if kind == 0:
                refs.append(mi.ref(x))
            elif kind == 1:
                x = mi.tanh(x + mi.read(r))
            elif kind == 2:
                mi.write(r, x * rng.randint(2, 5))
            elif kind == 3:
                mi.call_packed("note", mi.read(r), result=VECTOR)
            elif kind == 4:
                # a function that holds the place
                x = mi.closure(lambda v, r=r: mi.read(mi.write(r, v + mi.read(r))), VECTOR)(x)
            elif kind == 5:
                again = partial(self.steps, refs, x, flags, depth - 1)
                x = mi.cond(rng.choice(flags), lambda f=again: f(), lambda f=again: f())
            else:
                x = mi.loop(rng.choice([2, 200]), lambda i, s, r=r: mi.read(mi.write(r, mi.tanh(s + mi.read(r)))), x)
        return x + mi.read(rng.choice(refs))


@pytest.mark.parametrize("seed", range(12))
def test_effects_stay_in_order(seed: int) -> None:
    def program(x: Any, y: Any, p: Any, q: Any) -> Any:
        refs = [mi.ref(x), mi.ref(y)]
        found = Effects(seed).steps(refs, x, [p, q], 2)
        return found, mi.read(refs[0]), mi.read(refs[1])

    module = mi.trace_module(program, {"x": VECTOR, "y": VECTOR, "p": FLAG, "q": FLAG})

    def run(m: nodes.Module, args: list[Any]) -> list[Any]:
        notes: list[np.ndarray] = []

        def note(a: np.ndarray) -> np.ndarray:
            notes.append(a.copy())
            return a

        return [*run_module(m, args, packed={"note": note}), *notes]

    x, y = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
    for p in (True, False):
        for q in (True, False):
            wanted = run(module, [x, y, np.asarray(p), np.asarray(q)])
            same(run(specialized(module), [x, y, np.asarray(p), np.asarray(q)]), wanted)
            known = mi.specialize(module, {"p": p})
            same(run(known, [x, y, np.asarray(q)]), wanted)
            known = mi.specialize(module, {"p": p, "q": q})
            same(run(known, [x, y]), wanted)


def test_places_that_nobody_else_has_vanish() -> None:
    def program(x: Any, p: Any) -> Any:
        r = mi.ref(x)
        f = mi.closure(lambda v: mi.read(mi.write(r, mi.read(r) + v)), VECTOR)
        y = mi.loop(3, lambda i, s: f(s), x)
        return y, mi.read(r)

    module = mi.trace_module(program, {"x": VECTOR, "p": FLAG})
    made = specialized(module)
    assert is_straight(made)
    same(run_module(made, [ONES, np.asarray(True)]), run_module(module, [ONES, np.asarray(True)]))


def test_places_that_others_have_are_read_again() -> None:
    def program(x: Any, p: Any) -> Any:
        r = mi.ref(x)
        mi.write(r, x + 1)
        mi.cond(p, lambda: mi.read(mi.write(r, x + 2)), lambda: x)
        seen = mi.read(r)
        mi.write(r, x + 3)
        return seen, mi.read(r)

    module = mi.trace_module(program, {"x": VECTOR, "p": FLAG})
    made = specialized(module)
    for p in (True, False):
        found = run_module(made, [ONES, np.asarray(p)])
        same(found, ((3 if p else 2) * ONES, 4 * ONES))
    kinds = [b.value.kind for b in made.functions["program"].bindings if isinstance(b.value, nodes.ReferenceCall)]
    # the last write is known; what the condition does to the place is not
    assert kinds == ["new", "write", "read", "write"]


def test_functions_that_hold_themselves() -> None:
    """Recursion without a name: a place holds a function that reads the place."""

    def program(x: Any, n: Any) -> Any:
        step = mi.closure(lambda v, k: mi.read(mi.ref(v)), VECTOR, mi.tensor(dtype="int64"))
        place = mi.ref(step)

        def again(v: Any, k: Any) -> Any:
            return mi.cond(k <= 0, lambda: v, lambda: mi.read(place)(v + v, k - 1))

        mi.write(place, mi.closure(again, VECTOR, mi.tensor(dtype="int64")))
        return mi.read(place)(x, n)

    module = mi.trace_module(program, {"x": VECTOR, "n": mi.tensor(dtype="int64")})
    same(run_module(specialized(module), [ONES, np.asarray(3)]), 8 * ONES)
    same(run_module(mi.specialize(module, {"n": 3}), [ONES]), 8 * ONES)


FOREVER = """
def main(x: float32[n], p: bool[()]):
    with dataflow():
        y = if_else[never_ends, ends](p, x)
    return y

def never_ends(x: float32[n]) -> float32[n]:
    with dataflow():
        k = int64[()](1)
        y: float32[n] = call[forever](x, k)
    return y

def forever(x: float32[n], k: int64[()]) -> float32[n]:
    with dataflow():
        one = int64[()](1)
        m = add(k, one)
        z = add(x, x)
        p = less(m, one)
        y: float32[n] = if_else[ends_so, on](p, z, m)
    return y

def on(x: float32[n], k: int64[()]) -> float32[n]:
    with dataflow():
        y: float32[n] = call[forever](x, k)
    return y

def ends_so(x: float32[n], k: int64[()]) -> float32[n]:
    return x

def ends(x: float32[n]):
    return x
"""


def test_recursion_without_an_end_is_left() -> None:
    module = parse_module(FOREVER)
    made = specialized(module, limit=500)
    assert "forever is not unrolled further" in str(made.functions["main"].attr[STOPPED])
    assert sum(len(f.bindings) for f in made) <= sum(len(f.bindings) for f in module)
    assert (run_module(made, [ONES, np.asarray(False)]) == 1).all()
    assert "forever is not unrolled further" in mi.compile(made, without=("superoptimize", "fuse")).explain()
    # the rest of the program is evaluated as ever
    assert is_straight(mi.specialize(module, {"p": False}, limit=500))


def test_what_needs_more_than_the_limit_is_left_whole() -> None:
    xs = [ONES] * 100
    for limit, straight in ((20, False), (10_000, True)):
        made = mi.specialize(texts.SUM, {"xs": [mi.tensor("n")] * 100}, limit=limit)
        assert is_straight(made) == straight
        assert (STOPPED in made.functions[made.main].attr) != straight
        assert (run_module(made, [*xs, 0 * ONES]) == 100).all()


def test_loops() -> None:
    def program(x: Any, w: Any) -> Any:
        f = mi.closure(lambda v: mi.tanh(v * w), VECTOR)
        return mi.loop(3, lambda i, s: f(s), x), mi.loop(1_000, lambda i, s: f(s), x)

    module = mi.trace_module(program, {"x": VECTOR, "w": VECTOR})
    made = specialized(module)
    args = [ONES, 2 * ONES]
    same(run_module(made, args), run_module(module, args))
    values = [b.value for f in made for b in f.bindings]
    # short ones are written out, long ones have the function in their body
    assert sum(isinstance(v, nodes.Loop) for v in values) == 1
    assert not any(isinstance(v, nodes.Closure | nodes.CallValue) for v in values)


def test_loops_of_known_counts_check_their_bounds() -> None:
    specs = {"x": VECTOR, "n": mi.tensor(dtype="int64")}
    module = mi.trace_module(lambda x, n: mi.loop(n, lambda i, s: s + x, x, bound=4), specs)
    assert is_straight(mi.specialize(module, {"n": 4}))
    with pytest.raises(GuardError, match="5 rounds, but its bound 4 is 4"):
        run_module(mi.specialize(module, {"n": 5}), [ONES])


def test_deep_data() -> None:
    made = mi.specialize(texts.SUM, {"xs": [np.ones(1, np.float32)] * 2_000})
    assert is_straight(made)
    assert run_module(made, [np.zeros(1, np.float32)]) == 2_000


def test_arrays_that_are_written_to() -> None:
    def program(x: Any, y: Any) -> Any:
        z = mi.zeros((3,)) + y
        return mi.add_(z, x), mi.add_(y, 1)

    module = mi.trace_module(program, {"x": mi.tensor(3), "y": mi.tensor(3)})
    made = mi.specialize(module, {"x": ONES})
    for m, args in ((module, [ONES, 2 * ONES]), (made, [2 * ONES])):
        for _ in range(2):
            given = [a.copy() for a in args]
            same(run_module(m, given), (3 * ONES, 3 * ONES))
            assert (given[-1] == 3).all()
    with pytest.raises(InputError, match="known 'y': a tensor in it may be written to in place; leave it an argument"):
        mi.specialize(module, {"y": ONES})


def test_what_is_written_to_between_is_read_again() -> None:
    def program(x: Any, y: Any, c: Any) -> Any:
        a = x + 1
        mi.add_(x, y)
        return a, x + 1, c * 2 + 1, mi.add_(c * 2, y)

    specs = {"x": mi.tensor(3), "y": mi.tensor(3), "c": mi.tensor(3)}
    made = mi.specialize(mi.trace_module(program, specs), {"c": ONES})
    for _ in range(2):
        same(run_module(made, [ONES.copy(), ONES]), (2 * ONES, 3 * ONES, 3 * ONES, 3 * ONES))
    # what is not written to is computed
    assert sum(isinstance(b.value, nodes.OpCall) and b.value.op == "mul" for f in made for b in f.bindings) == 1


def test_writes_of_functions_that_are_not_known() -> None:
    def program(x: Any, xs: Any) -> Any:
        mi.add_(x, 1)
        return mi.fold(lambda s, v: s * v, x, xs)

    module = mi.trace_module(program, {"x": VECTOR, "xs": mi.List(VECTOR)})
    with pytest.raises(InputError, match="known 'xs': a tensor in it may be written to"):
        mi.specialize(module, {"xs": [ONES]})
    made = mi.specialize(module, {"xs": [VECTOR, VECTOR]})
    assert not functional(made)
    same(mi.compile(made, without=("superoptimize", "fuse"))(ONES.copy(), 2 * ONES, 3 * ONES), 12 * ONES)


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
